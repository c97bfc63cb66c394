"""Online transforms: a fitted Workflow applied to chunks as they are read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from tutorlib.columns import Chunk
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column, Schema


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
