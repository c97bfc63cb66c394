"""Which columns a loader reads, and in which roles.

Arguments come first, then the `_schema.json` that `Workflow.transform_to_parquet` writes into its
folder, then the types of the columns. A mapped Workflow replaces the features by its own.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from tutorlib.checks import shortened
from tutorlib.filesystems import read_text
from tutorlib.parquet import ParquetSource
from tutorlib.parquet.files import PARQUET_ENDINGS
from tutorlib.schema import MOST_NAMED, Column, Schema, listed, remedy_for, role_of, type_words

SCHEMA_FILE = "_schema.json"


def folder_schema(paths: Iterable[str | os.PathLike[str]], filesystem: Any = None) -> Schema | None:
    """Return the schema that all of these folders hold; None without one, or if they differ.

    Args:
        paths: folders, also as URLs; other paths have no schema.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds them; None takes it from URLs.

    Raises:
        ValueError: if a `_schema.json` holds no schema.
    """
    texts: set[str | None] = set()
    for path in paths:
        folder = os.fspath(path)
        is_file = folder.partition("?")[0].endswith(PARQUET_ENDINGS)
        texts.add(None if is_file else read_text(folder, SCHEMA_FILE, filesystem))
    text = texts.pop() if len(texts) == 1 else None
    if text is None:
        return None
    folder = re.sub("//[^/]*@", "//", folder)  # a URL without its secrets
    return Schema.from_json(text, f"{folder}/{SCHEMA_FILE}")


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
        id_names: columns that are no features, unless they are named as such; None means those of
            either schema.

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
    # What the arguments name. Features of one kind that are named are all features.
    names = {
        "categorical": list(cat_names or ()) if by_name else None,
        "continuous": list(cont_names or ()) if by_name else None,
        "label": None if label_names is None else list(label_names),
        "weight": [weight_name] if weight_name else None,
        "id": None if id_names is None else list(id_names),
    }
    named: set[str] = set()
    for of_role in names.values():
        named.update(of_role or ())
    # What is known: the schema, else that of the folder, else what types tell.
    known = folder_schema(source.paths, source.filesystem) if schema is None else Schema(schema)
    if known is None:
        known = Schema([]) if by_name else _features_by_type(source, named)
    # Roles that no argument names are as known. An argument may take a column away from the
    # folder's schema, and from what types tell, but not from a schema that is an argument too.
    columns = []
    for column in known:
        is_taken = schema is None and column.name in named
        if names[column.role] is None and not is_taken:
            columns.append(column)
    # The others are as the arguments name them, with the cardinalities that are known.
    for role, of_role in names.items():
        for name in of_role or ():
            is_known = name in known and known[name].role == role
            columns.append(known[name] if is_known else Column(name, role))
    return Schema(_checked(columns, source.column_types), known.left_out)


def _features_by_type(source: ParquetSource, named: Collection[str]) -> Schema:
    """Return the features, categorical ones first, and in words the columns that it leaves out."""
    columns = []
    words = []
    for name, kind in source.column_types.items():
        remedy = remedy_for(*kind)
        if name in named or name in source.index_names:
            continue
        if remedy is None:
            columns.append(Column(name, role_of(kind[0])))
        else:
            words.append(f"{name!r} ({type_words(kind)}): {remedy}")
    columns.sort(key=lambda column: column.role)
    return Schema(columns, shortened(words, MOST_NAMED))


def _checked(columns: list[Column], types: Mapping[str, tuple[str, bool]]) -> list[Column]:
    """Return the columns with the types of the data; ValueError for those that do not fit."""
    missing = {column.name: column.role for column in columns if column.name not in types}
    if missing:
        remedy = ". To predict rows without labels, pass label_names=[]"
        raise ValueError(
            f"columns {listed(missing)} are not in the files, which have {listed(types)}"
            f"{remedy if set(missing.values()) == {'label'} else ''}"
        )
    roles: dict[str, str] = {}
    typed = []
    for column in sorted(columns, key=lambda column: column.role == "id"):  # ids last
        role = roles.setdefault(column.name, column.role)
        if role == column.role:
            typed.append(column.with_type(*types[column.name]))
        elif column.role != "id":  # which may have another role too
            raise ValueError(
                f"column {column.name!r} is named as {role} and as {column.role}: name it once"
            )
    weights = [name for name, role in roles.items() if role == "weight"]
    if len(weights) > 1:
        raise ValueError(f"at most one column may hold weights, got {weights}")
    return typed


def online(
    workflow: Any, source: ParquetSource, schema: Schema, *, named: bool, unlabelled: bool
) -> tuple[Schema, list[str], Callable[[pa.Table], pa.Table]]:
    """Return how a loader applies a fitted workflow to the rows of a source.

    Args:
        workflow: fitted `Workflow`.
        source: the files.
        schema: of their columns. A column that passes through the workflow unchanged keeps
            its cardinality; labels and weights stay, and without any the workflow's take effect.
        named: whether the user named the features of `schema`.
        unlabelled: whether the user asked for no labels, so that those of the workflow are not made
            even if the files have them.

    Returns:
        Schema of the workflow's results, with the labels and weights of the files; the columns to
        read; and the function that transforms a table of these.

    Raises:
        ValueError: if the workflow is not fitted; if it needs a column that the files do not have,
            or that has a type of another kind than the one fitted on; if the user named other
            features than those that the workflow takes.
    """
    workflow.check_fitted()
    workflow = workflow.with_targets(schema.labels.names, *schema.with_role("weight").names)
    types = dict(source.column_types)
    if unlabelled:  # then columns of labels count as missing, so that the workflow leaves them out
        for group in workflow.groups:
            if set(workflow.label_names).issuperset(group.output_names):
                for name in group.names:
                    types.pop(name, None)
    workflow = workflow.for_columns(types)
    missing = [name for name in workflow.input_names if name not in source.column_types]
    if missing:
        raise ValueError(
            f"the workflow needs columns {listed(missing)}, which the files do not have: "
            f"{listed(source.column_types)}. Only labels and weight may be missing: name them in "
            "the workflow (label_names)."
        )
    workflow.check_types(source.column_types, source.arrow_schema)
    output: Schema = workflow.output_schema
    # Labels and weights: the loader's, with the types that the workflow gives them, else its own.
    columns = []
    for role in ("label", "weight"):
        for column in schema.with_role(role) or output.with_role(role):
            if column.name in output:
                result = output[column.name]
                length = column.length if result.multi_hot else result.length
                column = Column(column.name, role, result.dtype, length=length)
            columns.append(column)
    targets = Schema(columns)
    workflow.check_label_ids(targets.labels.names)
    # Features: all other results, of which those without an op are known to the loader.
    features = []
    feature_inputs: set[str] = set()
    for group in workflow.groups:
        for name in group.output_names:
            if name in output.features and name not in targets:
                is_unchanged = not group.ops and name in schema.features
                features.append(schema[name] if is_unchanged else output[name])
                feature_inputs.update(group.names)
    feature_inputs -= set(targets.names)
    if named and feature_inputs != set(schema.features.names):
        raise ValueError(
            f"the workflow makes features of columns {listed(sorted(feature_inputs))}, but the "
            "loader's cat_names and cont_names, schema or feature_columns name "
            f"{listed(schema.features.names)}. Leave these arguments out, or fit a workflow of "
            "the columns that they name: as they are, in a group without ops."
        )
    batches = Schema([*features, *targets])
    passed = [name for name in batches.names if name not in output]
    transform = functools.partial(_transformed, workflow, passed)
    return batches, list(dict.fromkeys([*workflow.input_names, *passed])), transform


def _transformed(workflow: Any, passed: list[str], table: pa.Table) -> pa.Table:
    """Return the results of a workflow, and the columns that pass beside it."""
    from tutorlib.columns import Chunk  # who maps a Workflow has it

    rows = Chunk.from_arrow(table.select(workflow.input_names))
    result: pa.Table = workflow.transform(rows).to_arrow()
    for name in passed:
        result = result.append_column(table.field(name), table[name])
    return result
