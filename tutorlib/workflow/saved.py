"""A fitted workflow as files: a manifest with all settings, and Parquet for the tables of its ops.

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

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.columns import Chunk
from tutorlib.ops import ColumnGroup, LearningOp, Op, op_class, saved_name
from tutorlib.ops.base import State
from tutorlib.ops.keys import after_null, keys_of
from tutorlib.output import MANIFEST_FILE, read_manifest, write_manifest

FORMAT_VERSION = 6
SUBFOLDER = "_workflow"  # of a folder of transformed rows


def write_files(workflow: Any, folder: Path) -> None:
    """Write a fitted workflow into a folder, which is made if it is missing."""
    description, files = _description(workflow)
    folder.mkdir(parents=True, exist_ok=True)
    for file, table in files.items():
        (folder / file).write_bytes(_as_parquet(table))
    write_manifest(folder, description)


def check_savable(workflow: Any) -> None:
    """Raise ValueError, naming op and argument, unless JSON can hold the settings of all ops."""
    for group in workflow.groups:
        for op in group.ops:
            who = f"{type(op).__name__} of the columns {list(group.names)}"
            try:
                settings = _without_tables({**op.get_config(), "state": _state_of(op)})
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
    if (version := description.get("format_version")) not in (5, FORMAT_VERSION):
        raise ValueError(
            f"{folder}: format version {version}, but this tutorlib reads versions 5 and "
            f"{FORMAT_VERSION}. Fit and save the workflow again."
        )
    parts_of = _parts_in_version_5 if version == 5 else _parts_of
    groups = []
    for g, group in enumerate(description["groups"]):
        ops = []
        for o, saved in enumerate(group["ops"]):
            files = [_table_file(g, o, t) for t in range(len(saved["tables"]))]
            config, state = parts_of(saved, [pq.read_table(folder / file) for file in files])
            op = op_class(saved["op"]).from_config(config)
            if isinstance(op, LearningOp):
                op.state = state
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
    description, files = _description(workflow)
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for table in files.values():
        digest.update(_as_parquet(table))
    return digest.hexdigest()


def _description(workflow: Any) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """Return (a workflow as JSON values, its tables by file); ValueError if JSON cannot hold it."""
    check_savable(workflow)
    groups, files = [], dict[str, pa.Table]()
    for g, group in enumerate(workflow.groups):
        ops = []
        for o, op in enumerate(group.ops):
            described, tables = _described(op)
            ops.append(described)
            files |= {_table_file(g, o, t): table for t, table in enumerate(tables)}
        groups.append({"columns": list(group.names), "ops": ops})
    description = {
        "format_version": FORMAT_VERSION,
        "label_names": workflow.label_names,
        "weight_name": workflow.weight_name,
        "inputs": workflow.input_types,
        "nullable": workflow.nullable,
        **({"time_kinds": workflow.time_kinds} if workflow.time_kinds else {}),
        "groups": groups,
    }
    return description, files


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
        "tables": [places for places, _ in files.values()],
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


def _parts_of(saved: dict[str, Any], files: list[pa.Table]) -> tuple[dict[str, Any], State]:
    """Return (the config, the state) of a described op with its tables in their places."""
    parts = {"config": saved["config"], "state": {}}
    for places, rows in zip(saved["tables"], files, strict=True):
        start = 0
        for (*way, name), count in places:
            place = parts
            for step in way:
                place = place[step]
            place[name] = Chunk.from_arrow(rows.slice(start, count))
            start += count
    return parts["config"], parts["state"]


def _parts_in_version_5(
    saved: dict[str, Any], files: list[pa.Table]
) -> tuple[dict[str, Any], State]:
    """Return what `_parts_of` does for an op in format version 5.

    There, `learned` held numbers that are in the tables now: of Categorify how many values were
    null and how many had no id, of TargetEncoding the priors, of other ops all they learned.
    """
    config, learned = dict(saved["config"]), saved["learned"]
    state = dict(zip(saved["tables"], map(Chunk.from_arrow, files), strict=True))
    match saved["op"].removeprefix("tutorlib.ops."):
        case "Categorify":
            given, config["vocabularies"] = config["vocabularies"], {}
            for name in given:
                config["vocabularies"][name] = keys_of(state.pop(name)["value"], 0)
            for name, table in state.items():
                without_id = [learned.get(part, {}).get(name, 0) for part in ("nulls", "rare")]
                keys = after_null(keys_of(table["value"], 0), nulls=2)
                counts = np.append(without_id, table["count"])
                state[name] = Chunk({"value": keys, "count": counts})
        case "TargetEncoding":
            for name, table in state.items():
                prior, *out_of_fold = np.array(learned["priors"][name], config["dtype"])
                with_prior = {"mean": np.append(prior, table["mean"])}
                if out_of_fold:
                    with_prior["out_of_fold"] = np.vstack([out_of_fold, table["out_of_fold"]])
                state[name] = Chunk({"key": after_null(keys_of(table["key"], 0)), **with_prior})
        case "JoinExternal":
            config["table"] = state.pop("table")
        case "FillMedian":
            for name, median in learned["medians"].items():
                state[name] = Chunk({"median": np.array([median])})
        case "Normalize":
            for name, mean in learned["mean"].items():
                std = learned["std"][name]
                state[name] = Chunk({"mean": np.array([mean]), "std": np.array([std])})
        case "LabelEncoder":
            pass
        case _ if learned or state:
            raise ValueError(
                f"{saved['op']} was saved in format version 5 with a state that this tutorlib "
                "cannot read. Fit and save the workflow again."
            )
    return config, state


def _as_parquet(table: pa.Table) -> pa.Buffer:
    written = pa.BufferOutputStream()
    pq.write_table(table, written, compression="lz4")
    return written.getvalue()


def _table_file(group: int, op: int, table: int) -> str:
    """Return the file of a table: by number, so that no name from a file is opened."""
    return f"group{group}_op{op}_table{table}.parquet"
