"""States larger than memory: sorted runs of keys in files, merged as a stream.

Takes the states of `SpillingOp`s, as tables of keys. Does not belong here: what a state is, what is
made of it (`ops`), when it is time to write (`learning.py`).
"""

from __future__ import annotations

import bisect
import contextlib
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.ops import LearningOp, SpillingOp

BLOCK_ROWS = (1024, 65_536)  # rows of a run read at a time, at least and at most
MOST_RUNS = 64  # merged at a time; each is an open file, and a block in memory


class Runs:
    """Sorted runs of keys in a temporary folder, which goes away with the `with` block.

    The folder is where `tempfile` puts it: the environment variable TMPDIR says where. A run of
    `Categorify` takes 16 bytes an integer.

    Args:
        ops: ops that learn in a pass, in order.
        memory_budget: bytes of states. The blocks of runs that are merged take at most a quarter
            of it, unless 1,024 rows of each run do not fit there.

    Attributes:
        limit_bytes: of states in memory, beyond which they are to be written: half of the budget,
            for merging them takes the other half.
    """

    def __init__(self, ops: Sequence[LearningOp], memory_budget: int) -> None:
        self._ops, self.limit_bytes = ops, memory_budget // 2
        self._block_bytes = memory_budget // 4 // MOST_RUNS
        self._files: dict[tuple[int, str], list[Path]] = {}
        self._schemas: dict[tuple[int, str], pa.Schema] = {}
        self._written, self._lock = 0, threading.Lock()

    def __enter__(self) -> Runs:
        self._place = tempfile.TemporaryDirectory(prefix="tutorlib_fit_")
        return self

    def __exit__(self, *_: Any) -> None:
        self._place.cleanup()

    def write(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write the states that can be written; return the others."""
        rest = []
        for number, (op, by_key) in enumerate(zip(self._ops, states, strict=True)):
            if not isinstance(op, SpillingOp):
                rest.append(by_key)
                continue
            for key, state in by_key.items():
                table, path = op.to_table(state), self._new_path()
                self._refuse_other_keys(op, (number, key), table)
                self._write(path, [in_order(table)])
                with self._lock:
                    self._files.setdefault((number, key), []).append(path)
            rest.append({})
        return rest

    def _refuse_other_keys(self, op: SpillingOp, place: tuple[int, str], table: pa.Table) -> None:
        """Let the op raise its error if keys are of other types than those written before."""
        with self._lock:
            known = self._schemas.setdefault(place, table.schema)
        types = [[schema.field(n).type for n in _keys(schema)] for schema in (known, table.schema)]
        if types[0] != types[1]:
            empty = (op.from_table(schema.empty_table()) for schema in (known, table.schema))
            op.merge(*({place[1]: state} for state in empty))

    def _new_path(self) -> Path:
        with self._lock:
            self._written += 1
            return Path(self._place.name) / f"run_{self._written}.arrow"

    def _write(
        self, path: Path, tables: Iterable[pa.Table], schema: pa.Schema | None = None
    ) -> None:
        """Write sorted tables, each behind the one before; None for the schema of the only one."""
        with contextlib.ExitStack() as stack:
            writer = None
            for table in tables:
                if writer is None:
                    schema = schema or table.schema
                    writer = stack.enter_context(pa.ipc.new_file(str(path), schema))
                rows = self._block_bytes * table.num_rows // max(table.nbytes, 1)
                rows = min(max(rows, BLOCK_ROWS[0]), BLOCK_ROWS[1])
                writer.write_table(_with_zeros(table, schema), max_chunksize=rows)

    def merge(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the states merged with all that was written, for `finalize`.

        They may be read from the files then: `finalize` belongs into the `with` block.
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
    """The states of several runs as one: each iteration gives states whose keys rise, at least one.

    Holds a block of each run. What all runs have shown up to the smallest of their last keys is
    complete, and goes out.

    Args:
        op: says how to merge.
        paths: of the runs.
    """

    def __init__(self, op: SpillingOp, paths: Sequence[Path]) -> None:
        self._op, self._paths = op, list(paths)

    def __iter__(self) -> Iterator[Any]:
        empty = True
        for table in self.tables():
            empty = False
            yield self._op.from_table(table)
        if empty:
            yield self._op.from_table(_schema_of_all(self._paths).empty_table())

    def tables(self) -> Iterator[pa.Table]:
        """Yield all rows, those of equal key merged, in order, in tables with some rows each."""
        op = self._op
        with contextlib.ExitStack() as stack:
            runs = [_read_run(stack.enter_context(pa.OSFile(str(p)))) for p in self._paths]
            held = [next(run, None) for run in runs]
            while any(block is not None for block in held):
                limit = min(block.last for block in held if block is not None)
                ready = []
                for number, block in enumerate(held):
                    if block is None:
                        continue
                    rows = block.take_up_to(limit)
                    if rows is not None:
                        ready.append(rows)
                    if not block.num_rows:
                        held[number] = next(runs[number], None)
                if len(ready) == 1:
                    yield ready[0]
                    continue
                merged = op.merge(*({"": op.from_table(table)} for table in ready))
                yield in_order(op.to_table(merged[""]))


class _Block:
    """Sorted rows of a run that are in memory, and have not gone out yet.

    Args:
        batch: at least one row.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch, self._start = batch, 0
        self._keys = [batch.column(name) for name in _keys(batch.schema)]
        self.last = self._key(batch.num_rows - 1)

    def _key(self, row: int) -> tuple[tuple[bool, Any], ...]:
        """Return the key of a row, to be compared with others as `in_order` does."""
        row_ranges = [column[row].as_py() for column in self._keys]
        return tuple((p is None, p.encode() if isinstance(p, str) else p) for p in row_ranges)

    @property
    def num_rows(self) -> int:
        return self._batch.num_rows - self._start

    def take_up_to(self, limit: Any) -> pa.Table | None:
        """Return the rows whose keys are not above `limit`, and let go of them; None for no row."""
        start, stop = self._start, self._batch.num_rows
        if self.last > limit:
            stop = bisect.bisect_right(range(stop), limit, lo=start, key=self._key)
        self._start = stop
        if start == stop:
            return None
        return pa.Table.from_batches([self._batch.slice(start, stop - start)])


def in_order(table: pa.Table) -> pa.Table:
    """Return the rows of a table by their keys, part by part: texts by their bytes, null last.

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
    """Return the bytes of those states that can be written."""
    return sum(
        op.to_table(state).nbytes
        for op, by_key in zip(ops, states, strict=True) if isinstance(op, SpillingOp)
        for state in by_key.values()
    )  # fmt: skip


def _keys(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name.startswith("key_")]


def _with_zeros(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema, zeros where the table has none of that name."""
    zeros = {
        field.name: np.zeros(table.num_rows, field.type.to_pandas_dtype())
        for field in schema if field.name not in table.column_names
    }  # fmt: skip
    return pa.table({n: zeros[n] if n in zeros else table[n] for n in schema.names}, schema)


def _schema_of_all(paths: Iterable[Path]) -> pa.Schema:
    """Return all columns of several runs, keys first."""
    fields: dict[str, pa.Field] = {}
    for path in paths:
        with pa.OSFile(str(path)) as file:
            fields |= {field.name: field for field in pa.ipc.open_file(file).schema}
    return pa.schema(fields.values())


def _read_run(file: Any) -> Iterator[_Block]:
    reader = pa.ipc.open_file(file)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        if batch.num_rows:
            yield _Block(batch)
