"""The loader and what people use instead, on the same rows: reading alone, and training one DLRM.

Each way to read has a process of its own, which takes turns with all others. It runs
`peer_readers.py`, where the settings of each reader are, as its documentation recommends them; the
report has them, with the page. Other libraries have environments of their own, made by `python -m
benchmarks install`. A library without environment is left out and named.

Sections (--only): read, an epoch of shuffled batches from plain Parquet (int64, PyArrow's
defaults), or from TFRecord, MDS or arrays; own, from the Parquet that this project's ETL writes;
train, an epoch of the fastest way of `train` and of PyTorch's own DLRM from memory. The tables of
reading begin with the fastest way. All rows are in the page cache. Readers of one example per row
get fewer rows; the table says how many.

Before the turns, each process reads an epoch in which the sums of all columns are compared with
those of the files. It warms up, and gives two values. worth_rows: what the shuffle is worth, as in
`loader`; compare it at the default --rows only, where the loader mixes 8 of 32 row groups.
peak_bytes: memory of the process and its children, without files mapped into memory. A process that
fails, or takes longer than --limit-s for an answer, is left out and named with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.data import TIME, Dataset, column_sums, criteo_shape, files_of
from benchmarks.install import ENVIRONMENTS
from benchmarks.loader import ARRAYS, BASELINE, COLUMNS, PREBATCHED, STACKED
from benchmarks.measure import ROOT, Absent, Benchmark, Failed, Way, faster, ratios
from benchmarks.readers import worth
from benchmarks.train import FUSED, XLA, training
from turns import Epoch
from tutorlib.memory import usable_cores

SCRIPT = Path(__file__).with_name("peer_readers.py")
MERLIN = "merlin-dataloader"
PARQUET = {  # reader: its environment, its title
    COLUMNS: ("", COLUMNS), STACKED: ("", STACKED),
    "torch_loader": ("torch", "PyTorch DataLoader over Arrow"),
    "torch_nodes": ("torch", "PyTorch torchdata.nodes over Arrow"),
    "grain_groups": ("grain", "Grain over Arrow"), "polars_slices": ("polars", "Polars, slices"),
    "hf_blocks": ("datasets", "HF datasets, Arrow blocks"), "ray_files": ("ray", "Ray Data"),
}  # fmt: skip
PLAIN = {  # with other formats; the old PyArrow of merlin does not read this project's files
    **PARQUET, "merlin": ("merlin", MERLIN), "mosaic_blocks": ("streaming", "MosaicML streaming"),
    "hf_iterable": ("datasets", "HF datasets, shuffle buffer"), ARRAYS: ("", ARRAYS),
    PREBATCHED: ("", PREBATCHED), BASELINE: ("", BASELINE),
}  # fmt: skip
TRAININGS = {
    "torch_dlrm": ("torch", "PyTorch, tensors in memory"),
    "torch_dlrm_compiled": ("torch", "PyTorch, tensors in memory, torch.compile"),
}
LEAST = {MERLIN: 5, ARRAYS: 1}  # times as fast
BOUNDS = [
    *(("own", COLUMNS, title, None) for env, title in PARQUET.values() if env),
    *(("read", COLUMNS, title, LEAST.get(title)) for env, title in PLAIN.values() if env),
    ("read", COLUMNS, ARRAYS, LEAST[ARRAYS]),
    *(("train", FUSED + XLA, title, 2) for _, title in TRAININGS.values()),
]
SUM_TOLERANCE = 1e-6  # relative: float32 added up in another order
SAMPLE_S = 0.05  # between two looks at the memory of a process


# ---- reading ------------------------------------------------------------------------------------


def read(arguments: argparse.Namespace) -> list[Way | Absent]:
    """Return all readers, those of Parquet on plain files."""
    data = criteo_shape(arguments.data, arguments.rows)
    size = arguments.batch_size
    data.examples(min(arguments.slow_rows, data.rows)), data.prebatched(size)  # before the turns
    return [peer(reader, data, files_of(data.plain), arguments) for reader in PLAIN]


def own(arguments: argparse.Namespace) -> list[Way | Absent]:
    """Return the readers of Parquet on the files that this project's ETL writes."""
    data = criteo_shape(arguments.data, arguments.rows)
    return [peer(reader, data, files_of(data.parquet), arguments) for reader in PARQUET]


def fastest_first(result: Any) -> list[dict[str, Any]]:
    """Sort the ways of reading by speed, so that ratios are to the fastest; return the claims."""
    for section in ("own", "read"):
        ways = [entry for entry in result["ways"] if entry["section"] == section]
        ways.sort(key=lambda entry: -entry["rows_per_s"])
        for entry in ways:
            entry["ratio"] = statistics.median(ratios(entry, ways[0]))
        result["ways"] = ways + [e for e in result["ways"] if e["section"] != section]
    return faster(BOUNDS)(result)


# ---- training -----------------------------------------------------------------------------------


def train(arguments: argparse.Namespace) -> list[Way | Absent]:
    """Return the fastest way of `train`, and PyTorch's own DLRM."""
    data = criteo_shape(arguments.data, arguments.train_rows)
    options = {"batch_size": arguments.train_batch_size, "device": "cpu", "widths": "scaled"}
    given = argparse.Namespace(**options, optimizer="sgd")
    others = [peer(reader, data, files_of(data.parquet), arguments) for reader in TRAININGS]
    return [training(FUSED + XLA, "dlrm", data, given), *others]


# ---- processes ----------------------------------------------------------------------------------


class Peer:
    """A process that runs an epoch whenever it is asked.

    Args:
        command: command line that starts it.
        settings: its first line of input, as JSON.
        limit_s: seconds that an answer may take.

    Attributes:
        facts: what it says of itself: settings, page and versions.
    """

    def __init__(
        self, command: Sequence[str], settings: Mapping[str, Any], limit_s: float = 180
    ) -> None:
        self._command, self._limit_s = list(command), limit_s
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        path = str(ROOT) if command[0] == sys.executable else ""
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path}
        self._process = subprocess.Popen(
            self._command, stderr=self._errors, env=env, start_new_session=True, **pipes
        )
        self.facts = self.ask(settings)

    def watched(self, what: str) -> tuple[dict[str, Any], int]:
        """Let it do something; return the answer, and the peak memory of it and its children."""
        peak = 0
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.ask, {"do": what})
            while not asked.done():
                peak = max(peak, memory_bytes(self._process.pid))
                time.sleep(SAMPLE_S)
            return asked.result(), peak

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a line and return the answer to it."""
        requests, answers, line = self._process.stdin, self._process.stdout, ""
        timer = threading.Timer(self._limit_s, self._kill)
        timer.start()
        if requests is not None and answers is not None:
            with contextlib.suppress(BrokenPipeError, ValueError):  # ValueError: closed before
                requests.write(json.dumps(request) + "\n")
                requests.flush()
                line = answers.readline()
        late = not timer.is_alive()
        timer.cancel()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            last = "\n".join(self._errors.read().splitlines()[-15:])
            self.close()
            took = f" after {self._limit_s:.0f} s, its limit," * late
            raise Failed(
                f"{self._command[-1]} ended with status {status}{took} instead of "
                f"answering {json.dumps(request)[:200]}. Its last output:\n{last}"
            )
        return json.loads(line)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # and its children, which hold the pipes

    def close(self) -> None:
        """End the process; once more does nothing."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._errors.close()


def memory_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants, without mapped files; Linux only.

    What processes share counts once: each has its part of it.
    """
    parents, total = {}, 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # has ended
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    for this in parents:
        above: int | None = this
        while above and above != pid:
            above = parents.get(above)
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{this}/smaps_rollup").read_text() if above else ""
            found = re.findall(r"^Pss_(?:Anon|Shmem): +([0-9]+)", text, re.MULTILINE)
            total += 1024 * sum(map(int, found))
    return total


def peer(
    reader: str, data: Dataset, files: list[str], arguments: argparse.Namespace
) -> Way | Absent:
    """Start a reader's process, check what it reads, and return its way."""
    training = reader in TRAININGS
    environment, title = (TRAININGS if training else PLAIN)[reader]
    python = arguments.environments / environment / "bin" / "python"
    if environment and not python.exists():
        why = f"no environment {environment}; `python -m benchmarks install` makes it"
        return Absent(title, why)
    schema = data.schema
    cache = data.folder / f"{reader}-{Path(files[0]).parent.name}-cache"
    settings = {
        "paths": files, "data": str(arguments.data), "rows": data.rows, "cache": str(cache),
        "cells": str(data.raw_rows() / "cells.bin"), "copies": 1,
        "plain": Path(files[0]).parent.name == "plain", "names": schema.names, "time": TIME,
        "label": schema.labels.names[0],
        "continuous": schema.continuous.names, "categorical": schema.categorical.names,
        "sizes": [column.cardinality for column in schema.categorical],
        "batch_size": arguments.train_batch_size if training else arguments.batch_size,
        "slow_rows": min(arguments.slow_rows, data.rows), "threads": usable_cores(),
    }  # fmt: skip
    words = [str(python) if environment else sys.executable, str(SCRIPT), reader]
    try:
        with contextlib.ExitStack() as stack:
            process = Peer(words, settings, arguments.limit_s)
            stack.callback(process.close)
            process.ask({"do": "start"})
            answer, peak = process.watched("check")
            process.ask({"do": "stop"})
            values: dict[str, float] = {"peak_bytes": peak}
            if not training:
                check_sums(title, answer["rows"], answer["sums"], files)
                if len(answer["times"]) > 1:
                    values["worth_rows"] = worth(answer["times"])
            stack.pop_all()
    except Failed as error:
        return Absent(title, str(error))

    def epoch() -> Epoch:
        done = process.ask({"do": "epoch"})
        return Epoch(done["rows"], elapsed_s=done["elapsed_s"], values=values)

    do = functools.partial(functools.partial, process.ask)
    before, after = do({"do": "start"}), do({"do": "stop"})
    return Way(title, epoch, before, after, process.close, process.facts)


def check_sums(reader: str, rows: int, sums: Mapping[str, float], files: list[str]) -> None:
    """Raise Failed unless these are the sums of the first `rows` rows of the files."""
    wrong = {
        name: (sums.get(name), value)
        for name, value in _sums(tuple(files), rows).items()
        if not math.isclose(sums.get(name, math.nan), value, rel_tol=SUM_TOLERANCE)
    }
    if wrong:
        raise Failed(
            f"{reader} did not read the values of the first {rows} rows of the files; "
            f"{{column: (its sum, the files' sum)}}: {wrong}"
        )


_sums = functools.cache(lambda files, rows: column_sums(list(files), rows))


PEERS = Benchmark(
    "peers",
    "rows/s and samples/s of the loader and other libraries, each at its best (10 minutes)",
    {"read": read, "own": own, "train": train},
    {
        "rows": (4_194_304, "rows"),
        "slow_rows": (262_144, "rows for readers of one example per row"),
        "batch_size": (65_536, "rows per batch"),
        "train_rows": (262_144, "rows of an epoch of training"),
        "train_batch_size": (8192, "rows per batch of training"),
        "limit_s": (180, "seconds that a process may take for an answer"),
        "environments": (ENVIRONMENTS, "folder with an environment for each library"),
    },
    fastest_first,
    warmup=0,
)
