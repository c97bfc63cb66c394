"""The loader and what people use instead, on the same rows: reading alone, and training one DLRM.

Each way to read has a process of its own, which takes turns with all others. It runs
`peer_readers.py`, where the settings of each reader are, as its documentation recommends them; the
report has them, with the page. Other libraries have environments of their own, made by `python -m
benchmarks install`. A library without environment, or whose process fails, is left out and named.

Sections (--only): read, an epoch of shuffled batches from plain Parquet (int64, PyArrow's
defaults), or from TFRecord, MDS or arrays; own, from the Parquet that this project's ETL writes;
train, an epoch of `fit` with SGD, compiled by XLA, and of PyTorch's own DLRM from memory. The
tables of reading begin with the fastest way. All rows are in the page cache. Readers of one example
per row get fewer rows; the table says how many.

Rows are sorted by time: one column is the row's number. Before the turns, each process reads an
epoch in which the sums of all columns are compared with those of the files, and which gives two
values. worth_rows: how many random rows a batch is worth (`tutorlib.shuffling`), at most about its
size. peak_bytes: memory of the process and its children, without files mapped into memory.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import ROW_GROUP_ROWS, Dataset, column_sums, criteo_shape, files_of
from benchmarks.install import ENVIRONMENTS
from benchmarks.measure import ROOT, Absent, Benchmark, Epoch, Way, faster, fit_epoch, ratios
from tutorlib import shuffle_quality
from tutorlib.memory import usable_cores

SCRIPT = Path(__file__).with_name("peer_readers.py")
COLUMNS, STACKED = "loader, columns", "loader, stacked"
NATIVE = "tf.data, make_batched_features_dataset"
PREBATCHED = "tf.data, prebatched TFRecord, not shuffled"
ARRAYS = "Keras arrays in memory"
FUSED, MERLIN = "loader, stacked and fused", "merlin-dataloader"
PARQUET = {  # reader: its environment, its title
    "columns": ("", COLUMNS), "stacked": ("", STACKED),
    "torch_loader": ("torch", "PyTorch DataLoader over Arrow"),
    "torch_nodes": ("torch", "PyTorch torchdata.nodes over Arrow"),
    "grain_groups": ("grain", "Grain over Arrow"), "polars_slices": ("polars", "Polars, slices"),
    "hf_blocks": ("datasets", "HF datasets, Arrow blocks"), "ray_files": ("ray", "Ray Data"),
}  # fmt: skip
PLAIN = {  # with other formats; the old PyArrow of merlin does not read this project's files
    **PARQUET, "merlin": ("merlin", MERLIN), "mosaic_blocks": ("streaming", "MosaicML streaming"),
    "hf_flattened": ("datasets", "HF datasets, flatten_indices"), "keras": ("", ARRAYS),
    "prebatched": ("", PREBATCHED), "tf.data": ("", NATIVE),
}  # fmt: skip
TRAININGS = {
    "torch_dlrm": ("torch", "PyTorch, tensors in memory"),
    "torch_dlrm_compiled": ("torch", "PyTorch, tensors in memory, torch.compile"),
}
BOUNDS = (
    ("read", COLUMNS, MERLIN, 5),
    ("read", COLUMNS, ARRAYS, 1),
    *(("train", FUSED, title, 2) for _, title in TRAININGS.values()),
)
SUM_TOLERANCE = 1e-6  # relative: float32 added up in another order
ROW = "I1"  # holds the row's number: exact in float32 below 16,777,216
SAMPLE_S = 0.05  # between two looks at the memory of a process


# ---- reading ------------------------------------------------------------------------------------


def by_time(folder: Path, rows: int) -> Dataset:
    """Return Criteo-shaped rows in order of time: the first number is the row's number."""
    shape, starts = criteo_shape(folder, rows), itertools.count(step=ROW_GROUP_ROWS)

    def make(count: int, rng: np.random.Generator) -> dict[str, Any]:
        return {**shape._make(count, rng), ROW: next(starts) + np.arange(count, dtype=np.float32)}

    return Dataset(folder, "criteo-by-time", shape.schema, rows, make)


def read(arguments: argparse.Namespace) -> list[Way | Absent]:
    """Return all readers, those of Parquet on plain files."""
    data = by_time(arguments.data, arguments.rows)
    size = arguments.batch_size
    data.examples(min(arguments.slow_rows, data.rows)), data.prebatched(size)  # before the turns
    return [peer(reader, data, files_of(data.plain), arguments) for reader in PLAIN]


def own(arguments: argparse.Namespace) -> list[Way | Absent]:
    """Return the readers of Parquet on the files that this project's ETL writes."""
    data = by_time(arguments.data, arguments.rows)
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
    """Return the DLRM of `train` on each reader, all compiled, and PyTorch's own."""
    import tfrecords
    from benchmarks.networks import NETWORKS
    from benchmarks.train import compiled, native
    from tutorlib import KerasSequenceLoader

    data, size = criteo_shape(arguments.data, arguments.train_rows), arguments.train_batch_size
    network = NETWORKS["dlrm"](data.schema, "scaled")
    schema = network.schema
    loader = functools.partial(KerasSequenceLoader, data.parquet, size, schema=schema)
    batches: dict[str, tuple[Any, ...]] = {
        NATIVE: (native(data, data.rows, size, schema),),
        PREBATCHED: (tfrecords.prebatched_dataset(data.prebatched(size), schema),),
        ARRAYS: data.arrays(),
        COLUMNS: (loader(),),
        FUSED: (loader(batch_layout="stacked"),),
    }
    ways = []
    for name, given in batches.items():
        model = compiled(network.fused if name == FUSED else network.by_column, "sgd", True)
        options = {"batch_size": size, "shuffle": True} if name == ARRAYS else {}
        ways.append(Way(name, functools.partial(fit_epoch, model, *given, **options)))
    files = files_of(data.parquet)
    return [*ways, *(peer(reader, data, files, arguments) for reader in TRAININGS)]


# ---- processes ----------------------------------------------------------------------------------


class PeerError(RuntimeError):
    """A process that reads with another library has failed; the message has its last output."""


class Peer:
    """A process that runs an epoch whenever it is asked.

    Args:
        command: command line that starts it.
        settings: its first line of input, as JSON.

    Attributes:
        facts: what it says of itself: settings, page and versions.
    """

    def __init__(self, command: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._command = list(command)
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        path = str(ROOT) if command[0] == sys.executable else ""
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path}
        self._process = subprocess.Popen(self._command, stderr=self._errors, env=env, **pipes)
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
        if requests is not None and answers is not None:
            with contextlib.suppress(BrokenPipeError):
                requests.write(json.dumps(request) + "\n")
                requests.flush()
                line = answers.readline()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            last = "\n".join(self._errors.read().splitlines()[-15:])
            self.close()
            raise PeerError(
                f"{' '.join(self._command)} ended with status {status} instead of answering "
                f"{json.dumps(request)[:200]}. Its last output:\n{last}"
            )
        return json.loads(line)

    def close(self) -> None:
        """End the process; once more does nothing."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
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
        "cells": str(data.raw_rows() / "cells.bin"), "order": str(data.folder / "order.npz"),
        "names": schema.names, "row": ROW, "label": schema.labels.names[0],
        "continuous": schema.continuous.names, "categorical": schema.categorical.names,
        "sizes": [column.cardinality for column in schema.categorical],
        "batch_size": arguments.train_batch_size if training else arguments.batch_size,
        "slow_rows": min(arguments.slow_rows, data.rows), "threads": usable_cores(),
    }  # fmt: skip
    words = [str(python) if environment else sys.executable, str(SCRIPT), reader]
    try:
        with contextlib.ExitStack() as stack:
            process = Peer(words, settings)
            stack.callback(process.close)
            process.ask({"do": "start"})
            answer, peak = process.watched("check")
            process.ask({"do": "stop"})
            values: dict[str, float] = {"peak_bytes": peak}
            if not training:
                check_sums(title, answer["rows"], answer["sums"], files)
                with np.load(settings["order"]) as order:
                    batches = np.split(order["numbers"], np.cumsum(order["sizes"])[:-1])
                values["worth_rows"] = shuffle_quality(batches).effective_batch_size
            stack.pop_all()
    except PeerError as error:
        return Absent(title, str(error))

    def epoch() -> Epoch:
        done = process.ask({"do": "epoch"})
        return Epoch(done["rows"], elapsed_s=done["elapsed_s"], values=values)

    do = functools.partial(functools.partial, process.ask)
    before, after = do({"do": "start"}), do({"do": "stop"})
    return Way(title, epoch, before, after, process.close, process.facts)


def check_sums(reader: str, rows: int, sums: Mapping[str, float], files: list[str]) -> None:
    """Raise PeerError unless these are the sums of the first `rows` rows of the files."""
    wrong = {
        name: (sums.get(name), value)
        for name, value in _sums(tuple(files), rows).items()
        if not math.isclose(sums.get(name, math.nan), value, rel_tol=SUM_TOLERANCE)
    }
    if wrong:
        raise PeerError(
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
        "environments": (ENVIRONMENTS, "folder with an environment for each library"),
    },
    fastest_first,
    repeat=3,
)
