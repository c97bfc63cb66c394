"""A fitted workflow as files, and its fingerprint: JSON, and a Parquet file for each table learned.

What is read is compared with names that are known and with a fingerprint; nothing in it is
executed, and no path in it is followed. Does not belong here: what an op learns (`ops`), when to
save (`workflow.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.chunk import (
    Chunk,
    Masked,
    Ragged,
    Strings,
    column_from_arrow,
    column_to_arrow,
    to_host,
)
from tutorlib.ops import ColumnGroup, Op, RowOp, op_class, row_op_class, saved_name

FORMAT_VERSION = 3
FILE = "workflow.json"
BESIDE_DATA = "_workflow"  # where transform_to_parquet puts it


def describe(workflow: Any) -> dict[str, Any]:
    """Return everything of a fitted workflow but its tables, as JSON can hold it."""
    return {
        "format_version": FORMAT_VERSION,
        "label_names": workflow.label_names,
        "weight_name": workflow.weight_name,
        "inputs": {name: list(kind) for name, kind in workflow.input_types.items()},
        "row_ops": [_described(op) for op in workflow.row_ops],
        "groups": [
            {
                "columns": list(group.names),
                "ops": [
                    {
                        **_described(op),
                        "learned": op.learned(),
                        "tables": list(op.learned_tables()),
                    }
                    for op in group.ops
                ],
            }
            for group in workflow.groups
        ],
    }


def _described(op: Op | RowOp) -> dict[str, Any]:
    return {"op": saved_name(type(op)), "config": op.get_config()}


def fingerprint(workflow: Any) -> str:
    """Return a SHA-256 over everything that decides what comes out of a fitted workflow."""
    digest = hashlib.sha256(json.dumps(describe(workflow), sort_keys=True).encode())
    for _, name, table in _tables(workflow):
        digest.update(name.encode())
        for row_range in _arrays(table):
            digest.update(f"{row_range.dtype.str}{row_range.shape}".encode())
            digest.update(np.ascontiguousarray(row_range))
    return digest.hexdigest()


def _tables(workflow: Any) -> Iterator[tuple[str, str, Chunk]]:
    """Yield (file name, table name, table) of every op's tables, in order."""
    for g, group in enumerate(workflow.groups):
        for o, op in enumerate(group.ops):
            for t, (name, table) in enumerate(op.learned_tables().items()):
                yield _table_file(g, o, t), name, table


def _table_file(group: int, op: int, table: int) -> str:
    return f"group{group}_op{op}_table{table}.parquet"


def _arrays(column: Any) -> Iterator[np.ndarray]:
    """Yield the arrays that a chunk or a column consists of, as they are after saving."""
    if isinstance(column, Chunk):
        for name, row_range in column.items():
            yield np.frombuffer(name.encode(), np.uint8)
            if isinstance(row_range, Masked):  # what stands at a null is not saved
                row_range = column_from_arrow(column_to_arrow(row_range))
            yield from _arrays(row_range)
    elif isinstance(column, Ragged):
        yield to_host(column.offsets)
        yield from _arrays(column.values)
    elif isinstance(column, Strings):
        yield to_host(column.offsets)
        yield to_host(column.data)
    elif isinstance(column, Masked):
        yield to_host(column.valid)
        yield from _arrays(column.values)
    else:
        yield to_host(column)


def check_functions(workflow: Any) -> None:
    """Raise ValueError if a function of the user cannot be named, or two have one name."""
    functions: dict[str, Any] = {}
    for op in [*workflow.row_ops, *(op for group in workflow.groups for op in group.ops)]:
        function = getattr(op, "function", None)
        if function is not None and functions.setdefault(op.function_name, function) != function:
            raise ValueError(
                f"two functions are called {op.function_name!r}; rename one, so that load can "
                "tell them apart"
            )


def write_files(workflow: Any, folder: Path) -> None:
    """Write a fitted workflow into a folder."""
    check_functions(workflow)
    description = {**describe(workflow), "fingerprint": fingerprint(workflow)}
    folder.mkdir(parents=True, exist_ok=True)
    for file, _, table in _tables(workflow):
        pq.write_table(table.to_arrow(), folder / file, compression="lz4")
    (folder / FILE).write_text(json.dumps(description, indent=1), encoding="utf-8")


def read_files(
    make: Callable[..., Any], folder: Path, functions: Mapping[str, Callable[..., Any]]
) -> Any:
    """Return the workflow that `write_files` wrote.

    Args:
        make: `Workflow`.
        folder: the folder.
        functions: {name: function} of the user.

    Raises:
        FileNotFoundError: if there is no workflow.
        ValueError: if there is another, with the path.
    """
    path = folder / FILE
    if not path.is_file():
        extra_columns = folder / BESIDE_DATA
        hint = f". There is one at {extra_columns}" if (extra_columns / FILE).is_file() else ""
        raise FileNotFoundError(f"no saved workflow at {folder}: {FILE} is not there{hint}")
    for name, function in functions.items():
        if getattr(function, "__name__", None) != name:
            raise ValueError(
                f"functions: what is passed as {name!r} is called "
                f"{getattr(function, '__name__', None)!r}. FitPass the function that was saved."
            )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format_version"] != FORMAT_VERSION:
            raise ValueError(
                f"format version {found['format_version']}, but this tutorlib reads version "
                f"{FORMAT_VERSION}. Fit and save the workflow again."
            )
        workflow = _made(make, found, folder, functions)
        unchanged = fingerprint(workflow) == found["fingerprint"]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, IndexError, pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path}: not what `save` writes ({type(error).__name__}: {error}). Save it again."
        ) from error
    if not unchanged:
        raise ValueError(
            f"{path}: the files were changed after they were saved (the fingerprint is not "
            "theirs). Save the workflow again."
        )
    return workflow


def _made(make: Any, found: Mapping[str, Any], folder: Path, functions: Mapping[str, Any]) -> Any:
    groups = []
    for g, group in enumerate(found["groups"]):
        ops = []
        for o, saved in enumerate(group["ops"]):
            # Tables are found by place, so that no file name is believed.
            files = [folder / _table_file(g, o, t) for t in range(len(saved["tables"]))]
            tables = [Chunk.from_arrow(pq.read_table(file)) for file in files]
            ops.append(_op(saved, dict(zip(saved["tables"], tables, strict=True)), functions))
        groups.append(ColumnGroup(group["columns"], ops))
    workflow = make(
        *groups,
        label_names=found["label_names"],
        weight_name=found["weight_name"],
        row_ops=[
            row_op_class(saved["op"]).from_config(saved["config"], functions)
            for saved in found["row_ops"]
        ],
    )
    workflow.input_types = {name: (dtype, hot) for name, (dtype, hot) in found["inputs"].items()}
    return workflow


def _op(saved: Mapping[str, Any], tables: Mapping[str, Chunk], functions: Mapping[str, Any]) -> Op:
    op = op_class(saved["op"]).from_config(saved["config"], tables, functions)
    op.restore(saved["learned"], tables)
    return op
