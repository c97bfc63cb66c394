"""A fitted workflow as files: `workflow.json` with all settings, `tables.arrow` with all tables.

The JSON begins with the SHA-256 of its text, which holds that of the tables: a file is compared
with its hash before it is parsed. Classes are looked up by name and never imported, and the names
of the files are fixed: none is read from a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tutorlib.columns import Chunk
from tutorlib.ops import ColumnGroup, LearningOp, Op, op_class, saved_name

FORMAT_VERSION = 8
FILE = "workflow.json"
TABLES = "tables.arrow"  # Arrow streams, one after the other
TABLE = "__table__"  # in the JSON, {TABLE: number} stands for a table
SUBFOLDER = "_workflow"  # of a folder of transformed rows
DAMAGE = (  # what a changed or forged file may lead to
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    pa.ArrowException,
)


def write_files(workflow: Any, folder: Path) -> None:
    """Write a fitted workflow into a folder, which is made if it is missing."""
    text, tables = _description(workflow)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TABLES).write_bytes(tables)
    (folder / FILE).write_bytes(_sha256(text).encode() + b"\n" + text)


def fingerprint(workflow: Any) -> str:
    """Return the SHA-256 of all that decides a fitted workflow's output: of what is saved of it."""
    return _sha256(_description(workflow)[0])


def check_savable(workflow: Any) -> None:
    """Raise ValueError, naming the op, unless JSON can hold the settings of all ops."""
    for group in workflow.groups:
        for op in group.ops:
            try:
                _as_json(_saved(op), [])
            except (AttributeError, TypeError, ValueError, RecursionError) as error:
                raise ValueError(
                    f"{type(op).__name__} of the columns {list(group.names)} cannot be saved: "
                    f"{error}. Keep each argument as an attribute of its name, which JSON can "
                    "hold, or write get_config and from_config. transform and loader.map work "
                    "without that."
                ) from error


def read_files(kind: type[Any], folder: Path) -> Any:
    """Return the workflow of class `kind` that `write_files` wrote, as `Workflow.load` says."""
    path = folder / FILE
    if not path.is_file():
        below = folder / SUBFOLDER
        hint = f". There is one at {below}" if (below / FILE).is_file() else ""
        raise FileNotFoundError(f"no saved workflow at {folder}: it has no {FILE}{hint}")
    try:
        return _read(kind, path)
    except DAMAGE as error:
        rule = "is not a whole workflow as this tutorlib saves it"
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} {rule} ({why}). Fit and save the workflow again.") from error


def _read(kind: type[Any], path: Path) -> Any:
    line, _, text = path.read_bytes().partition(b"\n")
    _check_hash(path, text, line.decode(errors="replace"))
    version = json.loads(text)["format_version"]
    if version != FORMAT_VERSION:
        raise ValueError(f"format version {version}, but this tutorlib reads {FORMAT_VERSION}")
    data = path.with_name(TABLES).read_bytes()
    _check_hash(path.with_name(TABLES), data, json.loads(text)["tables_sha256"])
    tables = _tables_in(data)

    def with_tables(values: dict[str, Any]) -> Any:
        return tables[values[TABLE]] if TABLE in values else values

    description = json.loads(text, object_hook=with_tables)
    groups = []
    for group in description["groups"]:
        ops = []
        for saved in group["ops"]:
            op = op_class(saved["op"]).from_config(saved["config"])
            if isinstance(op, LearningOp):
                op.state = saved["state"]
            ops.append(op)
        groups.append(ColumnGroup(group["columns"], ops))
    workflow = kind(
        *groups, label_names=description["label_names"], weight_name=description["weight_name"]
    )
    for name, (dtype, is_list) in description["inputs"].items():
        workflow.input_types[name] = (dtype, is_list)
    workflow.time_kinds = dict(description["time_kinds"])
    _ = workflow.output_schema  # raises, as types and ops must fit each other
    return workflow


def _description(workflow: Any) -> tuple[bytes, bytes]:
    """Return (a workflow as JSON, its tables as Arrow streams).

    Raises:
        ValueError: if JSON cannot hold it.
    """
    check_savable(workflow)
    groups = []
    for group in workflow.groups:
        groups.append({"columns": list(group.names), "ops": [_saved(op) for op in group.ops]})
    description = {
        "format_version": FORMAT_VERSION,
        "label_names": workflow.label_names,
        "weight_name": workflow.weight_name,
        "inputs": workflow.input_types,
        "time_kinds": workflow.time_kinds,
        "groups": groups,
    }
    tables: list[Chunk] = []
    _as_json(groups, tables)
    data = _as_arrow(tables)
    return _as_json({**description, "tables_sha256": _sha256(data)}, []).encode(), data


def _saved(op: Op) -> dict[str, Any]:
    state = op.state if isinstance(op, LearningOp) else {}
    return {"op": saved_name(type(op)), "config": op.get_config(), "state": state}


def _as_json(values: object, tables: list[Chunk]) -> str:
    """Return values as JSON, in which numbers stand for the tables that are added to `tables`."""

    def number(value: object) -> dict[str, int]:
        if not isinstance(value, Chunk):
            raise TypeError(f"JSON cannot hold a value of type {type(value).__name__}")
        tables.append(value)
        return {TABLE: len(tables) - 1}

    return json.dumps(values, indent=1, sort_keys=True, default=number)


def _as_arrow(tables: Sequence[Chunk]) -> bytes:
    stream = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    for table in tables:
        rows = table.to_arrow()
        with pa.ipc.new_stream(stream, rows.schema, options=options) as writer:
            writer.write_table(rows)
    return stream.getvalue().to_pybytes()


def _tables_in(data: bytes) -> list[Chunk]:
    stream = pa.BufferReader(data)
    tables = []
    while stream.tell() < len(data):
        rows = pa.ipc.open_stream(stream).read_all()
        rows.validate(full=True)
        tables.append(Chunk.from_arrow(rows))
    return tables


def _check_hash(path: Path, data: bytes, expected: str) -> None:
    if _sha256(data) != expected:
        raise ValueError(f"{path} was changed after it was saved: its checksum differs")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
