"""A fitted workflow as files: `workflow.json` with all settings, and Parquet for tables of its ops.

The JSON begins with the SHA-256 of its text, which holds those of the tables: a file is compared
with its hash before it is parsed. Classes are looked up by name and never imported, and the names
of the files are fixed: none is read from a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.columns import Chunk
from tutorlib.ops import ColumnGroup, LearningOp, Op, op_class, saved_name
from tutorlib.ops.base import State

FORMAT_VERSION = 7
FILE = "workflow.json"
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
    for file, table in tables.items():
        (folder / file).write_bytes(table)
    (folder / FILE).write_bytes(_sha256(text).encode() + b"\n" + text)


def fingerprint(workflow: Any) -> str:
    """Return the SHA-256 of all that decides a fitted workflow's output: of what is saved of it."""
    return _sha256(_description(workflow)[0])


def check_savable(workflow: Any) -> None:
    """Raise ValueError, naming the op, unless JSON can hold the settings of all ops."""
    for group in workflow.groups:
        for op in group.ops:
            try:
                json.dumps(_without_tables({**op.get_config(), "state": _state_of(op)}))
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
    description = json.loads(text)
    if (version := description["format_version"]) != FORMAT_VERSION:
        raise ValueError(f"format version {version}, but this tutorlib reads {FORMAT_VERSION}")
    groups = []
    for g, group in enumerate(description["groups"]):
        ops = []
        for o, saved in enumerate(group["ops"]):
            tables = []
            for t, of_file in enumerate(saved["tables"]):
                file = path.parent / _table_file(g, o, t)
                data = file.read_bytes()
                _check_hash(file, data, of_file["sha256"])
                tables.append((pq.read_table(pa.BufferReader(data)), of_file["places"]))
            config, state = _parts_of(saved, tables)
            op = op_class(saved["op"]).from_config(config)
            if isinstance(op, LearningOp):
                op.state = state
            ops.append(op)
        groups.append(ColumnGroup(group["columns"], ops))
    workflow = kind(
        *groups, label_names=description["label_names"], weight_name=description["weight_name"]
    )
    workflow.input_types = {name: tuple(kind) for name, kind in description["inputs"].items()}
    workflow.time_kinds = dict(description["time_kinds"])
    _ = workflow.output_schema  # raises, as types and ops must fit each other
    return workflow


def _check_hash(path: Path, data: bytes, expected: str) -> None:
    if _sha256(data) != expected:
        raise ValueError(f"{path} was changed after it was saved: its checksum differs")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _description(workflow: Any) -> tuple[bytes, dict[str, bytes]]:
    """Return (a workflow as JSON, its tables as Parquet by file).

    Raises:
        ValueError: if JSON cannot hold it.
    """
    check_savable(workflow)
    groups, files = [], dict[str, bytes]()
    for g, group in enumerate(workflow.groups):
        ops = []
        for o, op in enumerate(group.ops):
            described, tables = _described(op)
            for t, (table, of_file) in enumerate(zip(tables, described["tables"], strict=True)):
                data = files[_table_file(g, o, t)] = _as_parquet(table)
                of_file["sha256"] = _sha256(data)
            ops.append(described)
        groups.append({"columns": list(group.names), "ops": ops})
    description = {
        "format_version": FORMAT_VERSION,
        "label_names": workflow.label_names,
        "weight_name": workflow.weight_name,
        "inputs": workflow.input_types,
        "time_kinds": workflow.time_kinds,
        "groups": groups,
    }
    return json.dumps(description, indent=1, sort_keys=True).encode(), files


def _described(op: Op) -> tuple[dict[str, Any], list[pa.Table]]:
    """Return an op as JSON values, and its tables, of which equal columns make one file.

    The values name the place and the number of rows of each table in each file.
    """
    config, files = op.get_config(), dict[pa.Schema, tuple[list[Any], list[pa.Table]]]()
    for place, table in _tables_in({"config": config, "state": _state_of(op)}):
        rows = table.to_arrow()
        places, tables = files.setdefault(rows.schema, ([], []))
        places.append([place, rows.num_rows])
        tables.append(rows)
    described = {
        "op": saved_name(type(op)),
        "config": _without_tables(config),
        "tables": [{"places": places} for places, _ in files.values()],
    }
    return described, [pa.concat_tables(tables) for _, tables in files.values()]


def _state_of(op: Op) -> State:
    return op.state if isinstance(op, LearningOp) else {}


def _without_tables(value: Any) -> Any:
    """Return settings without the tables among them, which are values of dicts."""
    if not isinstance(value, dict):
        return value
    parts = {name: part for name, part in value.items() if not isinstance(part, Chunk)}
    return {name: _without_tables(part) for name, part in parts.items()}


def _tables_in(value: Any, *place: str) -> Iterator[tuple[list[str], Chunk]]:
    """Yield (names of the dicts' keys on the way to a table, the table), in order of the names."""
    if isinstance(value, Chunk):
        yield list(place), value
    elif isinstance(value, dict):
        for name in sorted(value):
            yield from _tables_in(value[name], *place, name)


def _parts_of(
    saved: dict[str, Any], tables: list[tuple[pa.Table, list[Any]]]
) -> tuple[dict[str, Any], State]:
    """Return (the config, the state) of a described op with its tables in their places."""
    parts = {"config": saved["config"], "state": {}}
    for rows, places in tables:
        start = 0
        for (*way, name), count in places:
            place = parts
            for step in way:
                place = place[step]
            place[name] = Chunk.from_arrow(rows.slice(start, count))
            start += count
    return parts["config"], parts["state"]


def _as_parquet(table: pa.Table) -> bytes:
    written = pa.BufferOutputStream()
    pq.write_table(table, written, compression="lz4")
    return written.getvalue().to_pybytes()


def _table_file(group: int, op: int, table: int) -> str:
    """Return the file of a table: by number, so that no name from a file is opened."""
    return f"group{group}_op{op}_table{table}.parquet"
