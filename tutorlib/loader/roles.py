"""Which columns a loader reads, and in which roles.

Arguments come first, then the `_schema.json` that `Workflow.transform_to_parquet` writes into its
folder, then the types of the columns. A mapped Workflow replaces the features by its own.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

from tutorlib.columns import Chunk
from tutorlib.filesystems import read_text, shown
from tutorlib.parquet import ParquetSource
from tutorlib.parquet.stored import PARQUET_ENDINGS
from tutorlib.schema import Column, Schema, resolve_schema

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
    for path in map(os.fspath, paths):
        if path.partition("?")[0].endswith(PARQUET_ENDINGS):
            return None
        text = read_text(path, SCHEMA_FILE, filesystem)
        if text is None:
            return None
        try:
            schemas.append(Schema.from_json(text))
        except ValueError as error:
            place = f"{shown(path)}/{SCHEMA_FILE}"
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
        stored = folder_schema(source.paths, source.filesystem)
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


def _with_sizes(column: Any, stored: Schema) -> Any:
    if column.name not in stored or stored[column.name].role != column.role:
        return column
    known = stored[column.name]
    return dataclasses.replace(
        column, cardinality=known.cardinality, embedding_dim=known.embedding_dim
    )


@dataclasses.dataclass(frozen=True)
class Online:
    """What a loader needs of a workflow."""

    schema: Schema  # of the workflow's results, with the labels and weights of the files
    columns: list[str]  # to read
    transform: Callable[[Chunk], Chunk]  # of each chunk of these columns


def online(workflow: Any, source: ParquetSource, given: Schema, named: bool) -> Online:
    """Return how a loader applies a fitted workflow to the chunks of a source.

    Args:
        workflow: fitted `Workflow`.
        source: the files.
        given: schema of their columns. A column that passes through the workflow unchanged keeps
            its cardinality; labels and weights stay, and without any the workflow's take effect.
        named: whether the user named the features of `given`. Those that no group of the workflow
            takes or makes then pass through unchanged.

    Raises:
        ValueError: if the workflow needs a column that the files do not have.
    """
    workflow = workflow.for_columns(source.column_types)
    inputs = workflow.input_names
    missing = [name for name in inputs if name not in source.column_types]
    if missing:
        raise ValueError(
            f"the workflow needs columns {missing}, which the files do not have: "
            f"{list(source.column_types)}"
        )
    made = workflow.output_schema
    kept = [*_targets("label", given, made), *_targets("weight", given, made)]
    kept_names = [column.name for column in kept]
    workflow.check_label_ids(column.name for column in kept if column.role == "label")
    unchanged = {name for group in workflow.groups if not group.ops for name in group.names}
    features = [
        given[column.name] if column.name in unchanged and column.name in given else column
        for column in made.features
        if column.name not in kept_names
    ]
    if named:
        used = {name for group in workflow.groups for name in group.names}
        used |= {*made.names, *kept_names}
        features += [column for column in given.features if column.name not in used]
    schema = Schema([*features, *kept])
    passed = [name for name in schema.names if name not in made]
    transform = functools.partial(_transformed, workflow, inputs, passed)
    return Online(schema, list(dict.fromkeys([*inputs, *passed])), transform)


def _transformed(workflow: Any, inputs: list[str], passed: list[str], chunk: Chunk) -> Chunk:
    result: Chunk = workflow.transform(chunk.select(inputs))
    return result.with_columns({name: chunk[name] for name in passed})


def _targets(role: str, given: Schema, made: Schema) -> list[Column]:
    """Return the labels or weights of a loader, with their types; without any, the workflow's."""
    columns = given.with_role(role)
    return [_with_type_made(column, made) for column in columns or made.with_role(role)]


def _with_type_made(column: Column, made: Schema) -> Column:
    """Return a label or weight column with the type that the workflow gives it."""
    if column.name not in made:
        return column
    by_workflow = made[column.name]
    length = column.length if by_workflow.multi_hot else by_workflow.length
    return Column(column.name, column.role, by_workflow.dtype, length=length)
