"""Which columns a loader reads, and in which roles.

Arguments come first, then the `_schema.json` that `Workflow.transform_to_parquet` writes into its
folder, then the types of the columns. A mapped Workflow replaces the features by its own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from tutorlib.checks import shortened
from tutorlib.filesystems import read_text, shown
from tutorlib.parquet import ParquetSource
from tutorlib.parquet.files import PARQUET_ENDINGS
from tutorlib.schema import MOST_NAMED, Column, Schema, listed, remedy_for, role_of, type_words

SCHEMA_FILE = "_schema.json"


def folder_schema(paths: Iterable[Any], filesystem: Any = None) -> Schema | None:
    """Return the schema that all of these folders hold; None without one, or if they differ.

    Args:
        paths: folders, also as URLs; other paths have no schema.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds them; None takes it from URLs.

    Raises:
        ValueError: if a `_schema.json` holds no schema.
    """
    texts: set[str | None] = set()
    for path in map(os.fspath, paths):
        is_file = path.partition("?")[0].endswith(PARQUET_ENDINGS)
        texts.add(None if is_file else read_text(path, SCHEMA_FILE, filesystem))
    text = texts.pop() if len(texts) == 1 else None
    if text is None:
        return None
    try:
        return Schema.from_json(text)
    except ValueError as error:
        place = f"{shown(path)}/{SCHEMA_FILE}"
        raise ValueError(f"{place}: {error}. Write the schema again.") from error


def schema_of_arguments(
    source: ParquetSource,
    schema: Schema | None,
    feature_columns: Iterable[Any] | None,
    cat_names: Iterable[str] | None,
    cont_names: Iterable[str] | None,
    label_names: Iterable[str] | None,
    weight_name: str | None,
    id_names: Iterable[str] | None,
) -> Schema:
    """Return the columns that a loader reads, from its arguments, checked against the files.

    Features are named by `schema`, by `feature_columns`, or by `cat_names` and `cont_names`;
    otherwise they are those of the folder's schema, or follow from the types of the columns.

    Args:
        source: the files.
        schema: all columns; replaces the schema of the folder.
        feature_columns: `tf.feature_column` objects; replace the schema of the folder.
        cat_names: categorical columns, with the cardinalities of the folder's schema.
        cont_names: continuous columns.
        label_names: label columns; None means those of either schema.
        weight_name: column of sample weights; None means that of either schema.
        id_names: columns that are no features, unless they are named as such.

    Raises:
        ValueError: if features are named in two ways, a column is not in the files, or a column has
            two roles.
    """
    by_name = cat_names is not None or cont_names is not None
    if (schema is not None) + (feature_columns is not None) + by_name > 1:
        raise ValueError(
            "name the features in one way: schema, or feature_columns, or cat_names and cont_names"
        )
    if feature_columns is not None:
        schema = Schema.from_feature_columns(feature_columns)
    labels = None if label_names is None else list(label_names)
    targets = {"label": labels, "weight": [weight_name] if weight_name else None}
    asked = [Column(name, role) for role, names in targets.items() for name in names or ()]
    ids = [Column(name, "id") for name in id_names or ()]
    types, left_out = source.column_types, ""
    if schema is not None:
        given = list(schema)
        asked = [c for c in asked if c.name not in schema or schema[c.name].role != c.role]
    else:
        stored = folder_schema(source.paths, source.filesystem)
        known = stored or Schema([])
        given = [*known.features, *known.labels, *known.with_role("weight")]
        if by_name:
            sizes = {column.name: column for column in known.categorical}
            named = [sizes.get(name, Column(name, "categorical")) for name in cat_names or ()]
            named += [Column(name, "continuous") for name in cont_names or ()]
            asked = [*named, *asked]
            given = [column for column in given if column.role in targets]
        elif stored is None:
            usable = (name for name, kind in types.items() if remedy_for(*kind) is None)
            given = [Column(name, role_of(types[name][0])) for name in usable]
            given = [column for column in given if column.name not in source.index_names]
            given.sort(key=lambda column: column.role)
        taken = {column.name for column in [*asked, *ids]}
        given = [column for column in given if column.name not in taken]
        if stored is None and not by_name:
            known_names = taken | {column.name for column in given} | source.index_names
            left_out = _left_out(types, known_names)
    kept = [c for c in given if (names := targets.get(c.role)) is None or c.name in names]
    columns = [*kept, *asked]
    columns += [column for column in ids if column.name not in {c.name for c in columns}]
    if missing := [column for column in columns if column.name not in types]:
        names = [column.name for column in missing]
        why = ""
        if all(column.role == "label" for column in missing):
            why = ". To predict rows without labels, pass label_names=[]"
        raise ValueError(
            f"columns {listed(names)} are not in the files, which have {listed(types)}{why}"
        )
    roles: dict[str, str] = {}
    for column in columns:
        if roles.setdefault(column.name, column.role) != column.role:
            raise ValueError(
                f"column {column.name!r} is named as {roles[column.name]} and as {column.role}: "
                "name it once"
            )
    weights = [column.name for column in columns if column.role == "weight"]
    if len(weights) > 1:
        raise ValueError(f"at most one column may hold weights, got {weights}")
    return Schema((column.with_type(*types[column.name]) for column in columns), left_out)


def _left_out(types: Mapping[str, tuple[str, bool]], used: Collection[str]) -> str:
    """Return the columns that inference leaves out, with what to do; "" if there are none."""
    words = []
    for name, kind in types.items():
        remedy = remedy_for(*kind)
        if name not in used and remedy is not None:
            words.append(f"{name!r} ({type_words(kind)}): {remedy}")
    return shortened(words, MOST_NAMED)


def online(
    workflow: Any, source: ParquetSource, given: Schema, *, named: bool, unlabelled: bool
) -> tuple[Schema, list[str], Callable[[pa.Table], pa.Table]]:
    """Return how a loader applies a fitted workflow to the rows of a source.

    Args:
        workflow: fitted `Workflow`.
        source: the files.
        given: schema of their columns. A column that passes through the workflow unchanged keeps
            its cardinality; labels and weights stay, and without any the workflow's take effect.
        named: whether the user named the features of `given`.
        unlabelled: whether the user asked for no labels, so that those of the workflow are not made
            even if the files have them.

    Returns:
        Schema of the workflow's results, with the labels and weights of the files; the columns to
        read; and the function that transforms a table of these.

    Raises:
        ValueError: if the workflow needs a column that the files do not have, or that has a type of
            another kind than the one fitted on; if the user named other features than those that
            the workflow takes.
    """
    workflow = workflow.with_targets(given.labels.names, *given.with_role("weight").names)
    types = dict(source.column_types)
    for group in workflow.groups if unlabelled else []:
        if {*group.output_names} <= {*workflow.label_names}:
            types = {name: kind for name, kind in types.items() if name not in group.names}
    workflow = workflow.for_columns(types)
    inputs = workflow.input_names
    missing = [name for name in inputs if name not in source.column_types]
    if missing:
        raise ValueError(
            f"the workflow needs columns {listed(missing)}, which the files "
            f"do not have: {listed(source.column_types)}. Only "
            "labels and weight may be missing: name them in the workflow (label_names)."
        )
    workflow.check_types(source.column_types, source.arrow_schema)
    made = workflow.output_schema
    kept = []  # labels and weights: without any of the loader's own, the workflow's
    for role in ("label", "weight"):
        for column in given.with_role(role) or made.with_role(role):
            kept.append(_with_type_made(column, made))
    kept_names = [column.name for column in kept]
    workflow.check_label_ids(column.name for column in kept if column.role == "label")
    unchanged = {name for group in workflow.groups if not group.ops for name in group.names}
    features = []
    for column in made.features:
        if column.name not in kept_names:
            passes = column.name in unchanged and column.name in given
            features.append(given[column.name] if passes else column)
    if named:
        taken: set[str] = set()
        for group in workflow.groups:
            if not {*group.output_names} <= {*kept_names}:
                taken |= {*group.names} - {*kept_names}
        if taken != {*given.features.names}:
            raise ValueError(
                f"the workflow makes features of columns {listed(sorted(taken))}, but the loader's "
                "cat_names and cont_names, schema or feature_columns name "
                f"{listed(given.features.names)}. Leave these arguments out, or fit a workflow of "
                "the columns that they name: as they are, in a group without ops."
            )
    schema = Schema([*features, *kept])
    passed = [name for name in schema.names if name not in made]
    transform = functools.partial(_transformed, workflow, inputs, passed)
    return schema, list(dict.fromkeys([*inputs, *passed])), transform


def _transformed(workflow: Any, inputs: list[str], passed: list[str], table: pa.Table) -> pa.Table:
    from tutorlib.columns import Chunk  # who maps a Workflow has it

    result: pa.Table = workflow.transform(Chunk.from_arrow(table.select(inputs))).to_arrow()
    for name in passed:
        result = result.append_column(table.field(name), table[name])
    return result


def _with_type_made(column: Column, made: Schema) -> Column:
    """Return a label or weight column with the type that the workflow gives it."""
    if column.name not in made:
        return column
    by_workflow = made[column.name]
    length = column.length if by_workflow.multi_hot else by_workflow.length
    return Column(column.name, column.role, by_workflow.dtype, length=length)
