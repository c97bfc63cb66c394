"""The `_schema.json` that `transform_to_parquet` writes, as a loader of that folder uses it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

from tutorlib.schema import Schema, resolve_schema
from tutorlib.storage import output_path, read_text, shown

SCHEMA_FILE = "_schema.json"


def folder_schema(paths: Iterable[Any], filesystem: Any = None) -> Schema | None:
    """Return the schema that all of these folders hold; None without one, or if they differ.

    Args:
        paths: folders, also as URLs; other paths have no schema.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds them; None takes it from URLs.

    Raises:
        ValueError: if a `_schema.json` holds no schema.
    """
    schemas = []
    for path in paths:
        text = read_text(path, SCHEMA_FILE, filesystem)
        if text is None:
            return None
        try:
            schemas.append(Schema.from_json(text))
        except ValueError as error:
            place = f"{shown(os.fspath(path))}/{SCHEMA_FILE}"
            raise ValueError(f"{place}: {error}. Write the schema again.") from error
    if not schemas:
        return None
    first, *others = schemas
    return first if all(other == first for other in others) else None


def schema_of_arguments(
    source: Any,
    schema: Schema | None,
    feature_columns: Iterable[Any] | None,
    cat_names: Iterable[str] | None,
    cont_names: Iterable[str] | None,
    label_names: Iterable[str] | None,
    weight_name: str | None,
    id_names: Iterable[str] | None,
) -> Schema:
    """Return what `resolve_schema` does, with the schema of the folder where arguments are silent.

    Args:
        source: a `ParquetSource`.
        schema: columns; replaces the schema of the folder.
        feature_columns: `tf.feature_column` objects; replace the schema of the folder.
        cat_names: categorical columns, with the cardinalities of the folder's schema.
        cont_names: continuous columns.
        label_names: label columns; None means those of either schema.
        weight_name: column of sample weights; None means that of either schema.
        id_names: columns that are no features, unless they are named as such.
    """
    stored = None
    if schema is None and feature_columns is None:
        stored = None if _are_files(source) else folder_schema(source.paths, source.filesystem)
    by_name = cat_names is not None or cont_names is not None
    cat_names, cont_names, label_names, id_names = (
        None if names is None else list(names)
        for names in (cat_names, cont_names, label_names, id_names)
    )
    if stored is not None:
        features = {*(cat_names or ()), *(cont_names or ())}
        taken = {*(label_names or ()), *(id_names or ()), weight_name, *features}
        if label_names is None:
            label_names = [name for name in stored.labels.names if name not in taken]
        if weight_name is None:
            weights = [name for name in stored.with_role("weight").names if name not in taken]
            weight_name = next(iter(weights), None)
        if not by_name:
            schema = Schema(column for column in stored.features if column.name not in taken)
    resolved = resolve_schema(
        source, schema, feature_columns, cat_names, cont_names, label_names, weight_name, id_names
    )
    if stored is None or not by_name:
        return resolved
    return Schema((_with_sizes(column, stored) for column in resolved), resolved.left_out)


def _are_files(source: Any) -> bool:
    """Return whether a path of a source is one of its files; then not all are folders."""
    paths = (str(output_path(path, source.filesystem)) for path in source.paths)
    return not set(source.files).isdisjoint(paths)


def _with_sizes(column: Any, stored: Schema) -> Any:
    if column.name not in stored or stored[column.name].role != column.role:
        return column
    known = stored[column.name]
    return dataclasses.replace(
        column, cardinality=known.cardinality, embedding_dim=known.embedding_dim
    )
