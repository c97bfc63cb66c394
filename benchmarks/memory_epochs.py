"""What a process of the memory benchmark does: epochs of one loader, its own memory watched.

Does not belong here: which cases there are, and what is made of the outcome (`memory.py`). Nothing
heavy is imported before `run`, because the process that starts this one imports it, too.
"""

from __future__ import annotations

import dataclasses
import gc
import mmap
import threading
import time
from pathlib import Path

SAMPLE_S = 0.003
WARM_BATCH_SIZE = 256


@dataclasses.dataclass(frozen=True)
class Case:
    """What a process is to do.

    Args:
        name: of the case.
        path: folder of Parquet files.
        warm_path: folder of Parquet files with a few such rows.
        schema: as JSON.
        rows: in these files.
        data_bytes: of these rows in batches.
        budget_bytes: `memory_budget` of the loader.
        batch_size: rows of a batch.
        epochs: how often.
        in_series: whether it is one of the sizes that are compared with each other.
    """

    name: str
    path: str
    warm_path: str
    schema: str
    rows: int
    data_bytes: int
    budget_bytes: int
    batch_size: int
    epochs: int
    in_series: bool


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What it found.

    Args:
        before_bytes: anonymous memory before the first epoch.
        peak_bytes: the most that was added to it.
        mapped_bytes: the most that was added in pages of mapped files.
        planned_bytes: what `describe()` had said.
        elapsed_s: seconds of each epoch.
    """

    before_bytes: int
    peak_bytes: int
    mapped_bytes: int
    planned_bytes: int
    elapsed_s: tuple[float, ...]


def run(case: Case) -> Outcome:
    """Go through all epochs of a case and return the memory it took."""
    from benchmarks.loader import consume
    from tutorlib.loader import KerasSequenceLoader
    from tutorlib.schema import Schema

    schema = Schema.from_json(case.schema)
    for _ in KerasSequenceLoader(case.warm_path, WARM_BATCH_SIZE, schema=schema):
        pass  # TensorFlow and Arrow set up what they keep: it counts as there before
    loader = KerasSequenceLoader(
        case.path, case.batch_size, schema=schema, memory_budget=case.budget_bytes
    )
    gc.collect()
    elapsed_s = []
    with MemoryWatch() as watch:
        for _ in range(case.epochs):
            started = time.perf_counter()
            rows = consume(loader)
            elapsed_s.append(time.perf_counter() - started)
            if rows != case.rows:
                raise ValueError(f"{case.path}: {rows} rows came, {case.rows} were to come")
    return Outcome(
        before_bytes=watch.before[0],
        peak_bytes=watch.peak[0] - watch.before[0],
        mapped_bytes=watch.peak[1] - watch.before[1],
        planned_bytes=loader.describe()["peak_bytes"],
        elapsed_s=tuple(elapsed_s),
    )


class MemoryWatch:
    """Samples the memory of this process from a thread while the `with` block runs.

    Attributes:
        before: (anonymous, mapped) bytes at its start; mapped are pages of files.
        peak: the most of each that was seen.

    Example:
        >>> import numpy as np
        >>> with MemoryWatch() as watch:
        ...     numbers = np.ones(4_000_000)
        ...     time.sleep(0.1)
        >>> watch.peak[0] - watch.before[0] > 30_000_000
        True
    """

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self.before = self.peak = resident_bytes()
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._end.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        now = resident_bytes()
        self.peak = max(self.peak[0], now[0]), max(self.peak[1], now[1])

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._sample()


def resident_bytes() -> tuple[int, int]:
    """Return the bytes of this process that are in memory: (anonymous, of mapped files)."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * mmap.PAGESIZE, int(shared) * mmap.PAGESIZE
