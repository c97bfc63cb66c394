"""States larger than memory: counted values written as sorted runs, and merged as a stream.

Takes the states of ops that say `spills`: {key: (values, counts)}, where the values are a rising
int64 array or Arrow texts, each once. Does not belong here: counting, vocabularies (`ops`), when it
is time to write (`learning.py`).
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.ops import LearningOp

BLOCK_ROWS = 65_536  # rows of a run read at a time: 1 MB of integers and counts
MOST_RUNS = 64  # merged at a time; each is an open file, and a block in memory

Counted = tuple[Any, np.ndarray]  # (int64 array or Arrow texts [n], int64 counts [n])


class Runs:
    """Sorted runs of counted values in a temporary folder, which goes away with the `with` block.

    The folder is where `tempfile` puts it: the environment variable TMPDIR says where. A run takes
    16 bytes an integer.

    Args:
        ops: ops that learn in a pass, in order.
    """

    def __init__(self, ops: Sequence[LearningOp]) -> None:
        self._ops = ops
        self._files: dict[tuple[int, str], list[Path]] = {}
        self._written, self._lock = 0, threading.Lock()

    def __enter__(self) -> Runs:
        self._place = tempfile.TemporaryDirectory(prefix="tutorlib_fit_")
        return self

    def __exit__(self, *_: Any) -> None:
        self._place.cleanup()

    def write(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write the states that can be written; return the others."""
        for number, (op, state) in enumerate(zip(self._ops, states, strict=True)):
            for key, counted in state.items() if op.spills else ():
                path = self._new_path()
                _write_run(path, [counted])
                with self._lock:
                    self._files.setdefault((number, key), []).append(path)
        return [{} if op.spills else s for op, s in zip(self._ops, states, strict=True)]

    def _new_path(self) -> Path:
        with self._lock:
            self._written += 1
            return Path(self._place.name) / f"run_{self._written}.arrow"

    def merge(self, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the states merged with all that was written, for `finalize`.

        Values that `finalize` leaves out anyway, for they are too rare, are left out on the way, so
        that not all have to be in memory at a time.
        """
        if self._files:
            states = self.write(states)
        for (number, key), paths in self._files.items():
            states[number][key] = self._merged(self._ops[number], key, paths)
        return states

    def _merged(self, op: LearningOp, key: str, paths: list[Path]) -> Counted:
        while len(paths) > MOST_RUNS:
            some, paths = paths[:MOST_RUNS], [*paths[MOST_RUNS:], self._new_path()]
            with _open_runs(some) as runs:
                _write_run(paths[-1], merge_sorted(runs, op))
            for path in some:
                path.unlink()
        lowest_count, most_values = op.kept(key)
        kept, rows = [_empty_of(paths[0])], 0
        with _open_runs(paths) as runs:
            for values, counts in merge_sorted(runs, op):
                frequent = counts >= lowest_count
                kept.append((_taken(values, np.flatnonzero(frequent)), counts[frequent]))
                rows += len(kept[-1][1])
                if most_values is not None and rows > 2 * most_values + BLOCK_ROWS:
                    kept = [most_frequent(_joined(kept), most_values)]
                    rows = most_values
        return _joined(kept)


def merge_sorted(runs: Sequence[Iterator[Counted]], op: LearningOp) -> Iterator[Counted]:
    """Yield all values of several runs, those of equal value merged, the smaller ones earlier.

    Holds a block of each run. What all runs have shown up to the smallest of their last values is
    complete, and goes out.
    """
    held = [block for block in (next(run, None) for run in runs)]
    while any(block is not None for block in held):
        lasts = [block[0][-1] for block in held if block is not None]
        limit = min(lasts, key=_sort_key)
        ready: list[Counted] = []
        for number, block in enumerate(held):
            if block is None:
                continue
            end = _rows_up_to(block[0], limit)
            ready.append((block[0][:end], block[1][:end]))
            rest = block[0][end:], block[1][end:]
            held[number] = rest if len(rest[1]) else next(runs[number], None)
        yield functools.reduce(op.merge_states, [block for block in ready if len(block[1])])


def most_frequent(counted: Counted, most_values: int) -> Counted:
    """Return the most frequent values, of equally frequent ones the smaller, in rising order.

    Example:
        >>> values, counts = most_frequent((np.array([1, 5, 9]), np.array([2, 1, 2])), 2)
        >>> values.tolist(), counts.tolist()
        ([1, 9], [2, 2])
    """
    values, counts = _sorted(counted)
    rows = np.sort(np.argsort(-counts, kind="stable")[:most_values])
    return _taken(values, rows), counts[rows]


def spillable_nbytes(ops: Sequence[LearningOp], states: list[dict[str, Any]]) -> int:
    """Return the bytes of those states that can be written."""
    return sum(
        values.nbytes + counts.nbytes
        for op, state in zip(ops, states, strict=True) if op.spills
        for values, counts in state.values()
    )  # fmt: skip


def _write_run(path: Path, blocks: Iterable[Counted]) -> None:
    """Write sorted blocks, at least one, each behind the one before."""
    with contextlib.ExitStack() as stack:
        writer = None
        for values, counts in blocks:
            values, counts = _sorted((values, counts))
            table = pa.table({"value": values, "count": counts})
            if writer is None:
                writer = stack.enter_context(pa.ipc.new_file(str(path), table.schema))
            writer.write_table(table, max_chunksize=BLOCK_ROWS)


@contextlib.contextmanager
def _open_runs(paths: Iterable[Path]) -> Iterator[list[Iterator[Counted]]]:
    with contextlib.ExitStack() as stack:
        yield [_read_run(stack.enter_context(pa.OSFile(str(path)))) for path in paths]


def _read_run(file: Any) -> Iterator[Counted]:
    reader = pa.ipc.open_file(file)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        if batch.num_rows:
            yield _counted(batch)


def _empty_of(path: Path) -> Counted:
    with pa.OSFile(str(path)) as file:
        return _counted(pa.ipc.open_file(file).schema.empty_table().combine_chunks())


def _counted(rows: Any) -> Counted:
    values, counts = (rows.column(name) for name in ("value", "count"))
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks or [pa.array([], values.type)])
    return (values.to_numpy() if pa.types.is_integer(values.type) else values), counts.to_numpy()


def _sorted(counted: Counted) -> Counted:
    """Return texts in the order of their UTF-8 bytes; integers are in order."""
    values, counts = counted
    if isinstance(values, np.ndarray):
        return counted
    order = pc.array_sort_indices(values)
    return values.take(order), counts[order.to_numpy()]


def _sort_key(value: Any) -> Any:
    return value.as_py().encode() if isinstance(value, pa.Scalar) else int(value)


def _rows_up_to(values: Any, limit: Any) -> int:
    if isinstance(values, np.ndarray):
        return int(np.searchsorted(values, limit, side="right"))
    return pc.sum(pc.less_equal(values, limit)).as_py() or 0


def _taken(values: Any, rows: np.ndarray) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))


def _joined(parts: Sequence[Counted]) -> Counted:
    values, counts = zip(*parts, strict=True)
    join = np.concatenate if isinstance(values[0], np.ndarray) else pa.concat_arrays
    return join(values), np.concatenate(counts)
