"""A fitted workflow as files: JSON, and a Parquet file for each table that an op has learned.

Files are not trusted when they are read: `_check` looks at every field of the JSON, classes are
looked up by name and never imported, no path from a file is opened, and the fingerprint must match.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.columns import (
    Chunk,
    Masked,
    Ragged,
    Strings,
    column_from_arrow,
    column_to_arrow,
    to_host,
)
from tutorlib.ops import ColumnGroup, LambdaOp, Op
from tutorlib.ops.base import is_builtin, op_class, saved_name
from tutorlib.workflow.graph import OpGraph

FORMAT_VERSION = 5
FILE = "workflow.json"
_SAVE_AGAIN = "Save the workflow again."
SUBFOLDER = "_workflow"  # of a folder of transformed rows

Functions = Mapping[str, Callable[..., Any]]  # {name: function of the user}
Graph = TypeVar("Graph", bound=OpGraph)


def write_files(graph: OpGraph, folder: Path) -> None:
    """Write a fitted workflow into a folder, which is made if it is missing."""
    check_functions(graph)
    description = {**_description(graph), "fingerprint": fingerprint(graph)}
    folder.mkdir(parents=True, exist_ok=True)
    for file, _, table in _tables(graph):
        path = folder / file
        pq.write_table(table.to_arrow(), path, compression="lz4", write_page_checksum=True)
    (folder / FILE).write_text(json.dumps(description, indent=1), encoding="utf-8")


def check_functions(graph: OpGraph) -> None:
    """Raise ValueError if a function of the user has no name, or two have the same."""
    functions: dict[str, Any] = {}
    for op in ops_with_functions(graph):
        if functions.setdefault(op.function_name, op.function) != op.function:
            raise ValueError(
                f"two functions are called {op.function_name!r}. Rename one, so that "
                "Workflow.load can tell them apart."
            )


def ops_with_functions(graph: OpGraph) -> list[LambdaOp]:
    """Return the ops that call a function of the user."""
    return [op for op in _all_ops(graph) if isinstance(op, LambdaOp)]


def code_is_known(graph: OpGraph) -> bool:
    """Return whether all code that makes the output is of this library."""
    ours = type(graph).__module__.startswith("tutorlib.")
    return (
        ours
        and all(is_builtin(type(op)) for op in _all_ops(graph))
        and not (ops_with_functions(graph))
    )


def _all_ops(graph: OpGraph) -> list[Op]:
    return [op for group in graph.groups for op in group.ops]


def fingerprint(graph: OpGraph) -> str:
    """Return the SHA-256 of everything that decides what a fitted workflow's output is."""
    digest = hashlib.sha256(json.dumps(_description(graph), sort_keys=True).encode())
    for _, name, table in _tables(graph):
        digest.update(name.encode())
        for array in _arrays(table):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _description(graph: OpGraph) -> dict[str, Any]:
    """Return a workflow as JSON values, without its tables."""
    return {
        "format_version": FORMAT_VERSION,
        "label_names": graph.label_names,
        "weight_name": graph.weight_name,
        "inputs": {name: list(kind) for name, kind in graph.input_types.items()},
        "nullable": graph.nullable,
        "groups": [
            {
                "columns": list(group.names),
                "ops": [
                    {**_named(op), "learned": op.learned(), "tables": list(op.learned_tables())}
                    for op in group.ops
                ],
            }
            for group in graph.groups
        ],
    }


def _named(op: Op) -> dict[str, Any]:
    return {"op": saved_name(type(op)), "config": op.get_config()}


def _tables(graph: OpGraph) -> Iterator[tuple[str, str, Chunk]]:
    """Yield (file name, table name, table) of each learned table, in order."""
    for g, group in enumerate(graph.groups):
        for o, op in enumerate(group.ops):
            for t, (name, table) in enumerate(op.learned_tables().items()):
                yield _table_file(g, o, t), name, table


def _table_file(group: int, op: int, table: int) -> str:
    return f"group{group}_op{op}_table{table}.parquet"


def _arrays(column: Any) -> Iterator[np.ndarray]:
    """Yield the arrays that a chunk or a column consists of, as they are after saving."""
    if isinstance(column, Chunk):
        for name, part in column.items():
            yield np.frombuffer(name.encode(), np.uint8)
            if isinstance(part, Masked):  # values at nulls are not saved
                part = column_from_arrow(column_to_arrow(part))
            yield from _arrays(part)
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


def read_files(kind: type[Graph], folder: Path, functions: Functions) -> Graph:
    """Return the workflow of class `kind` that `write_files` wrote, as `Workflow.load` says."""
    path = folder / FILE
    if not path.is_file():
        below = folder / SUBFOLDER
        hint = f". There is one at {below}" if (below / FILE).is_file() else ""
        raise FileNotFoundError(f"no saved workflow at {folder}: it has no {FILE}{hint}")
    for name, function in functions.items():
        if getattr(function, "__name__", None) != name:
            raise ValueError(
                f"functions: what is passed as {name!r} is called "
                f"{getattr(function, '__name__', None)!r}. Pass the function that was saved."
            )
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        _check_numbers("", saved)
        _check(saved)
        graph = _rebuilt(kind, saved, folder, functions)
        written = json.loads(json.dumps(_description(graph)))
        if unknown := list(_unknown_fields("", saved, {**written, "fingerprint": ""})):
            raise ValueError(f"fields that this tutorlib does not know: {', '.join(unknown)}")
        unchanged = fingerprint(graph) == saved["fingerprint"]
    except RecursionError:
        raise ValueError(f"{path}: fields are nested too deeply. {_SAVE_AGAIN}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, IndexError, pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path}: not what Workflow.save writes ({type(error).__name__}: {error}). "
            f"{_SAVE_AGAIN}"
        ) from error
    if not unchanged:
        raise ValueError(
            f"{path}: the files were changed after they were saved: the fingerprint does not "
            f"match. {_SAVE_AGAIN}"
        )
    return graph


def _check_numbers(where: str, value: Any) -> None:
    """Raise ValueError for an integer of more than 64 bits, anywhere in the JSON."""
    if isinstance(value, dict):
        for name, field in value.items():
            _check_numbers(f"{where}.{name}", field)
    elif isinstance(value, list):
        for k, field in enumerate(value):
            _check_numbers(f"{where}[{k}]", field)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        got = reprlib.repr(value)
        raise ValueError(f"{where.lstrip('.')}: integers have at most 64 bits, got {got}")


def _unknown_fields(where: str, saved: Any, written: Any) -> Iterator[str]:
    """Yield the places of fields in the JSON that a workflow made from it does not write."""
    if isinstance(saved, dict) and isinstance(written, dict):
        for name, field in saved.items():
            if name in written:
                yield from _unknown_fields(f"{where}.{name}", field, written[name])
            else:
                yield f"{where}.{name}".lstrip(".")
    elif isinstance(saved, list) and isinstance(written, list):
        for k, (field, other) in enumerate(zip(saved, written, strict=False)):
            yield from _unknown_fields(f"{where}[{k}]", field, other)


def _check(saved: Any) -> None:
    """Raise ValueError unless the JSON has the fields that `_description` writes.

    The class of each op checks the values in `config` and `learned`.
    """
    _check_fields("the workflow", saved, format_version=int)
    if saved["format_version"] != FORMAT_VERSION:
        raise ValueError(
            f"format version {saved['format_version']}, but this tutorlib reads version "
            f"{FORMAT_VERSION}. Fit and save the workflow again."
        )
    fields = dict.fromkeys(["label_names", "nullable", "groups"], list)
    _check_fields("the workflow", saved, fingerprint=str, inputs=dict, **fields)
    _check_names("label_names", saved["label_names"])
    _check_names("nullable", saved["nullable"])
    if saved["weight_name"] is not None:
        _check_names("weight_name", [saved["weight_name"]])
    for name, kind in saved["inputs"].items():
        if not isinstance(kind, list) or [type(part) for part in kind] != [str, bool]:
            raise ValueError(f"the type of input {name!r} must be [name, is list], got {kind!r}")
    for group in saved["groups"]:
        _check_fields("a group", group, columns=list, ops=list)
        _check_names("columns of a group", group["columns"])
        for op in group["ops"]:
            _check_fields("an op", op, op=str, config=dict, learned=dict, tables=list)
            _check_names("tables of an op", op["tables"])


def _check_fields(what: str, record: Any, **kinds: type) -> None:
    if not isinstance(record, dict):
        raise ValueError(f"{what} must be a JSON object, got {reprlib.repr(record)}")
    for name, kind in kinds.items():
        if name not in record:
            raise ValueError(f"{what} has no {name!r}")
        if type(record[name]) is not kind:
            got = reprlib.repr(record[name])
            raise ValueError(f"{what}: {name!r} must be of type {kind.__name__}, got {got}")


def _check_names(what: str, names: list[Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{what} must be strings, got {reprlib.repr(name)}")


def _rebuilt(kind: type[Graph], saved: dict[str, Any], folder: Path, functions: Functions) -> Graph:
    groups = []
    for g, group in enumerate(saved["groups"]):
        ops = []
        for o, op in enumerate(group["ops"]):
            # Files are found by number: no file name from the JSON is used.
            tables = {
                name: Chunk.from_arrow(
                    pq.read_table(folder / _table_file(g, o, t), page_checksum_verification=True)
                )
                for t, name in enumerate(op["tables"])
            }
            ops.append(op_class(op["op"]).from_config(op["config"], tables, functions))
            ops[-1].restore(op["learned"], tables)
        groups.append(ColumnGroup(group["columns"], ops))
    graph = kind(
        *groups,
        label_names=saved["label_names"],
        weight_name=saved["weight_name"],
    )
    graph.input_types = {name: (dtype, hot) for name, (dtype, hot) in saved["inputs"].items()}
    graph.nullable = saved["nullable"]
    return graph
