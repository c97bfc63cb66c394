"""A fitted workflow as files: a manifest with all settings, and Parquet for each learned table.

All hashes are compared before a file is parsed, so what is parsed is what `write_files` wrote.
Classes are looked up by name and never imported, and no path from a file is opened.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.columns import Chunk
from tutorlib.ops import ColumnGroup, LearningOp, Op, op_class, saved_name
from tutorlib.output import MANIFEST_FILE, read_manifest, write_manifest

FORMAT_VERSION = 6
TABLE = "table number"  # the key under which JSON names a Parquet file
SUBFOLDER = "_workflow"  # of a folder of transformed rows


def write_files(workflow: Any, folder: Path) -> None:
    """Write a fitted workflow into a folder, which is made if it is missing."""
    description = _description(workflow)
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in _files(workflow):
        (folder / file).write_bytes(data)
    write_manifest(folder, description)


def check_savable(workflow: Any) -> None:
    """Raise ValueError, naming op and argument, unless JSON can hold the settings of all ops."""
    for group in workflow.groups:
        for op in group.ops:
            who = f"{type(op).__name__} of the columns {list(group.names)}"
            try:
                settings = _without_tables(op.get_config(), [])
            except AttributeError as error:
                raise ValueError(
                    f"{who} cannot be saved: {error}. Keep each argument as an attribute of its "
                    "name, or write get_config and from_config."
                ) from error
            for name, value in settings.items():
                try:
                    json.dumps(value)
                except (TypeError, ValueError, RecursionError) as error:
                    raise ValueError(
                        f"{who} cannot be saved: JSON cannot hold its argument {name!r}, "
                        f"{reprlib.repr(value)} ({error}). Give the op a name or number instead, "
                        "of which it makes the value, or write get_config and from_config. "
                        "transform and loader.map work without that."
                    ) from error


def read_files(kind: type[Any], folder: Path) -> Any:
    """Return the workflow of class `kind` that `write_files` wrote, as `Workflow.load` says."""
    if not (folder / MANIFEST_FILE).is_file():
        below = folder / SUBFOLDER
        hint = f". There is one at {below}" if (below / MANIFEST_FILE).is_file() else ""
        raise FileNotFoundError(f"no saved workflow at {folder}: it has no {MANIFEST_FILE}{hint}")
    description = read_manifest(folder)
    if (version := description.get("format_version")) != FORMAT_VERSION:
        raise ValueError(
            f"{folder}: format version {version}, but this tutorlib reads version "
            f"{FORMAT_VERSION}. Fit and save the workflow again."
        )
    groups = []
    for g, group in enumerate(description["groups"]):
        ops = []
        for o, saved in enumerate(group["ops"]):
            tables = [
                Chunk.from_arrow(pq.read_table(folder / _table_file(g, o, t)))
                for t in range(saved["tables"])
            ]
            op = op_class(saved["op"]).from_config(_with_tables(saved["config"], tables))
            if isinstance(op, LearningOp):
                op.state = _with_tables(saved["state"], tables)
            ops.append(op)
        groups.append(ColumnGroup(group["columns"], ops))
    workflow = kind(
        *groups, label_names=description["label_names"], weight_name=description["weight_name"]
    )
    workflow.input_types = {name: tuple(kind) for name, kind in description["inputs"].items()}
    workflow.nullable = description["nullable"]
    workflow.time_kinds = description.get("time_kinds", {})
    return workflow


def fingerprint(workflow: Any) -> str:
    """Return the SHA-256 of all that decides a fitted workflow's output: of what is saved of it."""
    digest = hashlib.sha256(json.dumps(_description(workflow), sort_keys=True).encode())
    for _, data in _files(workflow):
        digest.update(data)
    return digest.hexdigest()


def _description(workflow: Any) -> dict[str, Any]:
    """Return a workflow as JSON values, without its tables; ValueError if JSON cannot hold it."""
    check_savable(workflow)
    return {
        "format_version": FORMAT_VERSION,
        "label_names": workflow.label_names,
        "weight_name": workflow.weight_name,
        "inputs": workflow.input_types,
        "nullable": workflow.nullable,
        **({"time_kinds": workflow.time_kinds} if workflow.time_kinds else {}),
        "groups": [
            {"columns": list(group.names), "ops": [_described(op)[0] for op in group.ops]}
            for group in workflow.groups
        ],
    }


def _described(op: Op) -> tuple[dict[str, Any], list[Chunk]]:
    """Return an op as JSON values, and the tables that these name by number."""
    tables: list[Chunk] = []
    described = {
        "op": saved_name(type(op)),
        "config": _without_tables(op.get_config(), tables),
        "state": _without_tables(op.state if isinstance(op, LearningOp) else {}, tables),
    }
    return {**described, "tables": len(tables)}, tables


def _without_tables(value: Any, tables: list[Chunk]) -> Any:
    """Return settings or a state as JSON values; tables are appended to a list."""
    if isinstance(value, Chunk):
        tables.append(value)
        return {TABLE: len(tables) - 1}
    if isinstance(value, dict):  # in the order in which JSON has them
        return {name: _without_tables(value[name], tables) for name in sorted(value)}
    return value


def _with_tables(value: Any, tables: list[Chunk]) -> Any:
    """Return the settings or the state of which `_without_tables` made JSON values."""
    if not isinstance(value, dict):
        return value
    if value.keys() == {TABLE}:
        return tables[value[TABLE]]
    return {name: _with_tables(part, tables) for name, part in value.items()}


def _files(workflow: Any) -> Iterator[tuple[str, Any]]:
    """Yield (file name, Parquet file as a buffer) of each table, in order."""
    for g, group in enumerate(workflow.groups):
        for o, op in enumerate(group.ops):
            for t, table in enumerate(_described(op)[1]):
                written = pa.BufferOutputStream()
                pq.write_table(table.to_arrow(), written, compression="lz4")
                yield _table_file(g, o, t), written.getvalue()


def _table_file(group: int, op: int, table: int) -> str:
    """Return the file of a table: by number, so that no name from a file is opened."""
    return f"group{group}_op{op}_table{table}.parquet"
