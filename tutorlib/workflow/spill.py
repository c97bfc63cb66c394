"""Spilling: states of `SpillingOp`s that do not fit into memory, as sorted runs in files.

A run is a file of rows in the order of their keys, each key once. Runs are merged as streams.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.ops import LearningOp, SpillingOp
from tutorlib.ops.shared.group_sums import GroupSums

BLOCK_ROWS = (1024, 65_536)  # fewest and most rows of a run that are read at a time
MOST_RUNS = 64  # runs merged at a time; each is an open file and a block in memory


class Runs:
    """Sorted runs in a temporary folder, which is removed at the end of the `with` block.

    Args:
        ops: the ops of a pass, in order.
        memory_budget: bytes for states. The blocks of merged runs take at most a quarter of it,
            unless 1,024 rows of each run are more than that.
    """

    def __init__(self, ops: Sequence[LearningOp], memory_budget: int) -> None:
        self._ops = {n: op for n, op in enumerate(ops) if isinstance(op, SpillingOp)}
        self.limit_bytes = (
            memory_budget // 2
        )  # write states beyond it: merging takes the other half
        self._block_bytes = memory_budget // 4 // MOST_RUNS
        self._files: dict[tuple[int, str], list[Path]] = {}
        self._schemas: dict[tuple[int, str], pa.Schema] = {}
        self._written, self._lock = 0, threading.Lock()

    def __enter__(self) -> Runs:
        self._temporary = tempfile.TemporaryDirectory(prefix="tutorlib_fit_")
        self._folder = Path(self._temporary.__enter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._temporary.__exit__(*error)

    def write(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write the states of spilling ops; return the states with those left out."""
        rest = []
        for number, by_key in enumerate(states):
            op = self._ops.get(number)
            if op is None:
                rest.append(by_key)
                continue
            for key, state in by_key.items():
                table, path = state.to_table(), self._new_path()
                self._refuse_other_keys(op, (number, key), table)
                self._write(path, [in_order(table)], table.schema)
                with self._lock:
                    self._files.setdefault((number, key), []).append(path)
            rest.append({})
        return rest

    def _refuse_other_keys(self, op: SpillingOp, run: tuple[int, str], table: pa.Table) -> None:
        """Let the op raise its error if keys have other types than those of earlier runs."""
        with self._lock:
            known = self._schemas.setdefault(run, table.schema)
        types = [[schema.field(n).type for n in _keys(schema)] for schema in (known, table.schema)]
        if types[0] != types[1]:
            empty = (GroupSums.from_table(schema.empty_table()) for schema in (known, table.schema))
            op.merge(*({run[1]: state} for state in empty))

    def _new_path(self) -> Path:
        with self._lock:
            self._written += 1
            return self._folder / f"run_{self._written}.arrow"

    def _write(self, path: Path, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
        """Write tables, which are in the order of their keys, as one run."""
        with pa.ipc.new_file(str(path), schema) as writer:
            for table in tables:
                rows = self._block_bytes * table.num_rows // max(table.nbytes, 1)
                rows = min(max(rows, BLOCK_ROWS[0]), BLOCK_ROWS[1])
                writer.write_table(_with_zeros(table, schema), max_chunksize=rows)

    def merge(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the states merged with all written ones, for `finalize`.

        Call `finalize` within the `with` block: it may read the states from the files.
        """
        if self._files:
            states = self.write(states)
        for (number, key), paths in self._files.items():
            op = self._ops[number]
            while len(paths) > MOST_RUNS:
                some, paths = paths[:MOST_RUNS], [*paths[MOST_RUNS:], self._new_path()]
                self._write(paths[-1], MergedRuns(op, some).tables(), _schema_of_all(some))
                for path in some:
                    path.unlink()
            states[number][key] = op.gathered(key, MergedRuns(op, paths))
        return states


class MergedRuns:
    """Several runs merged: each iteration yields states with ascending keys, at least one state.

    Holds a block of each run in memory. All rows up to the smallest of the blocks' last keys are
    complete, so they are merged and yielded.
    """

    def __init__(self, op: SpillingOp, paths: Sequence[Path]) -> None:
        self._op, self._paths = op, list(paths)

    def __iter__(self) -> Iterator[Any]:
        empty = True
        for table in self.tables():
            empty = False
            yield GroupSums.from_table(table)
        if empty:
            yield GroupSums.from_table(_schema_of_all(self._paths).empty_table())

    def tables(self) -> Iterator[pa.Table]:
        """Yield tables with all rows in the order of their keys, rows of equal keys merged."""
        op = self._op
        with contextlib.ExitStack() as stack:
            runs = [_read_run(stack.enter_context(pa.OSFile(str(p)))) for p in self._paths]
            heads = [(run, block) for run in runs for block in itertools.islice(run, 1)]
            while heads:
                limit = min(block.last for _, block in heads)
                ready = [
                    rows for _, block in heads if (rows := block.take_up_to(limit)) is not None
                ]
                heads = [
                    (run, kept)
                    for run, block in heads
                    for kept in ([block] if block.num_rows else itertools.islice(run, 1))
                ]
                if len(ready) == 1:
                    yield ready[0]
                    continue
                merged = op.merge(*({"": GroupSums.from_table(table)} for table in ready))
                yield in_order(merged[""].to_table())


class _Block:
    """Sorted rows of a run, in memory, that are not merged yet. The batch has at least one row."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch, self._start = batch, 0
        self._keys = [batch.column(name) for name in _keys(batch.schema)]
        self.last = self._key(batch.num_rows - 1)

    def _key(self, row: int) -> tuple[tuple[bool, Any], ...]:
        """Return the key of a row; keys compare as `in_order` sorts them."""
        values = [column[row].as_py() for column in self._keys]
        return tuple((v is None, v.encode() if isinstance(v, str) else v) for v in values)

    @property
    def num_rows(self) -> int:
        return self._batch.num_rows - self._start

    def take_up_to(self, limit: Any) -> pa.Table | None:
        """Remove and return the rows whose keys are at most `limit`; None if there are none."""
        start, stop = self._start, self._batch.num_rows
        if self.last > limit:
            stop = bisect.bisect_right(range(stop), limit, lo=start, key=self._key)
        self._start = stop
        if start == stop:
            return None
        return pa.Table.from_batches([self._batch.slice(start, stop - start)])


def in_order(table: pa.Table) -> pa.Table:
    """Return the rows of a table sorted by `key_0`, `key_1`, ...: strings by bytes, nulls last.

    Example:
        >>> in_order(pa.table({"key_0": [7, None, 5], "count": [1, 2, 3]}))["count"].to_pylist()
        [3, 1, 2]
    """
    keys = _keys(table.schema)
    if len(keys) == 1 and pa.types.is_integer(table.schema.field(keys[0]).type):
        values = table[keys[0]]
        if not values.null_count and (np.diff(values.to_numpy()) > 0).all():
            return table
    return table.take(pc.sort_indices(table, [(name, "ascending") for name in keys]))


def spillable_nbytes(ops: Sequence[LearningOp], states: list[dict[str, Any]]) -> int:
    """Return the bytes of the states of spilling ops."""
    return sum(
        state.to_table().nbytes
        for op, by_key in zip(ops, states, strict=True) if isinstance(op, SpillingOp)
        for state in by_key.values()
    )  # fmt: skip


def _keys(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name.startswith("key_")]


def _with_zeros(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema; those that the table does not have are zeros."""
    zeros = {
        field.name: np.zeros(table.num_rows, field.type.to_pandas_dtype())
        for field in schema if field.name not in table.column_names
    }  # fmt: skip
    return pa.table({n: zeros[n] if n in zeros else table[n] for n in schema.names}, schema)


def _schema_of_all(paths: Iterable[Path]) -> pa.Schema:
    """Return a schema with all columns of several runs, keys first."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(pa.OSFile(str(path))) for path in paths]
        return pa.unify_schemas([pa.ipc.open_file(file).schema for file in files])


def _read_run(file: Any) -> Iterator[_Block]:
    reader = pa.ipc.open_file(file)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        if batch.num_rows:
            yield _Block(batch)
