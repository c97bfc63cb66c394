"""The loader and what people use instead, on the same rows: reading alone, and training one DLRM.

Each other library has an environment of its own, made by `python -m benchmarks install`, and reads
in a process of its own, so that it takes turns with everything else although one of them needs a
TensorFlow of 2023. That process runs `peer_readers.py`, where the settings of each reader are, as
its documentation recommends them. Keras' arrays, tf.data and the loader run in this process.

A library without environment, or whose process fails when it starts, is left out and named. Before
the turns, the sums of all columns are compared with those of the files.

Sections (--only): read, an epoch of shuffled batches, as the library makes them: tensors of its own
framework, or NumPy arrays; train, an epoch of `fit` with SGD, compiled by XLA, and of PyTorch's own
DLRM from memory. All rows are in the page cache. The loader, prebatched TFRecord and PyTorch read
all files --copies times, by hard links. Slow readers get fewer rows; the table says how many.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.data import Dataset, column_sums, criteo_shape, files_of, linked
from benchmarks.install import ENVIRONMENTS, REQUIREMENTS
from benchmarks.measure import Absent, Benchmark, Way, faster, fit_epoch
from tutorlib.memory import usable_cores

SCRIPT = Path(__file__).with_name("peer_readers.py")
TITLES = {
    "datasets": "HF datasets",
    "torch": "PyTorch DataLoader over Arrow",
    "grain": "Grain",
    "streaming": "MosaicML streaming",
    "ray": "Ray Data",
    "merlin": "merlin-dataloader",
    "dlrm": "PyTorch",
}
COPIED = ("torch",)  # fast enough to read all files several times
COLUMNS, STACKED = "loader, columns", "loader, stacked"
NATIVE = "tf.data, make_batched_features_dataset"
PREBATCHED = "tf.data, prebatched TFRecord, not shuffled"
ARRAYS = "Keras arrays in memory"
FUSED = "loader, stacked and fused"
BOUNDS = (
    ("read", COLUMNS, f"{TITLES['merlin']}, per partition", 5),
    ("read", COLUMNS, ARRAYS, 1),
    ("train", FUSED, f"{TITLES['dlrm']}, tensors in memory", 2),
)
SUM_TOLERANCE = 1e-6  # relative: float32 added up in another order


# ---- ways in this process -----------------------------------------------------------------------


def read(arguments: argparse.Namespace) -> list[Way | Absent]:
    """Return tf.data, Keras' arrays in memory, the loader, and the other libraries."""
    import tfrecords
    from benchmarks.readers import as_fit_shuffles, consume, consume_awake
    from tutorlib import KerasSequenceLoader

    data, size = criteo_shape(arguments.data, arguments.rows), arguments.batch_size
    schema, files = data.schema, files_of(linked(data.parquet, arguments.copies))
    examples = data.examples(min(arguments.slow_rows, data.rows))
    prebatched = tfrecords.prebatched_dataset(data.prebatched(size), schema)
    loader = functools.partial(KerasSequenceLoader, files, size, schema=schema)
    awake = {
        NATIVE: tfrecords.native_dataset(examples, size, schema),
        "tf.data, batch then parse_example": tfrecords.parsed_batches(examples, size, schema),
    }
    delivering = {
        PREBATCHED: prebatched.repeat(arguments.copies),
        ARRAYS: as_fit_shuffles(data.arrays(), size),
        COLUMNS: loader(),
        STACKED: loader(batch_layout="stacked"),
    }
    ways = [Way(name, functools.partial(consume_awake, each)) for name, each in awake.items()]
    ways += [Way(name, functools.partial(consume, each)) for name, each in delivering.items()]
    others = [way for library in REQUIREMENTS for way in peer(library, data, arguments)]
    return [*ways, *others]


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
    return [*ways, *peer("dlrm", data, arguments)]


# ---- other libraries ----------------------------------------------------------------------------


class PeerError(RuntimeError):
    """A process that reads with another library has failed; the message has its last output."""


class Peer:
    """A process that runs an epoch whenever it is asked.

    Args:
        command: command line that starts it.
        settings: its first line of input, as JSON.

    Attributes:
        readers: {name of a reader: its settings in words}.
        versions: {package: version} of what it runs.
    """

    def __init__(self, command: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._command = list(command)
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": ""},
        )
        try:
            answer = self.ask(settings)
        except BaseException:
            self.close()
            raise
        self.readers: dict[str, str] = answer["readers"]
        self.versions: dict[str, str] = answer["versions"]

    def do(self, reader: str, what: str) -> dict[str, Any]:
        """Let a reader do one of "start", "epoch", "sums" and "stop"; return the answer."""
        return self.ask({"reader": reader, "do": what})

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a line and return the answer to it."""
        requests, answers = self._process.stdin, self._process.stdout
        line = ""
        if requests is not None and answers is not None:
            try:
                requests.write(json.dumps(request) + "\n")
                requests.flush()
                line = answers.readline()
            except BrokenPipeError:
                pass
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            last = "\n".join(self._errors.read().splitlines()[-15:])
            raise PeerError(
                f"{' '.join(self._command)} ended with status {status} instead of answering "
                f"{json.dumps(request)[:200]}. Its last output:\n{last}"
            )
        return json.loads(line)

    def close(self) -> None:
        """End the process; once more does nothing."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def peer(library: str, data: Dataset, arguments: argparse.Namespace) -> list[Way | Absent]:
    """Start a library's process and check what it reads; return a way for each of its readers.

    merlin's old PyArrow only understands the plain files.
    """
    environment = arguments.environments / ("torch" if library == "dlrm" else library)
    if not (environment / "bin" / "python").exists():
        why = f"no environment {environment.name}; `python -m benchmarks install` makes it"
        return [Absent(TITLES[library], why)]
    folder = data.plain if library == "merlin" else data.parquet
    files = files_of(linked(folder, arguments.copies) if library in COPIED else folder)
    schema = data.schema
    settings = {
        "paths": files,
        "cells": str(data.raw_rows() / "cells.bin"),
        "names": schema.names,
        "label": schema.labels.names[0],
        "continuous": schema.continuous.names,
        "categorical": schema.categorical.names,
        "sizes": [column.cardinality for column in schema.categorical],
        "batch_size": arguments.train_batch_size if library == "dlrm" else arguments.batch_size,
        "slow_rows": min(arguments.slow_rows, data.rows),
        "cache": str(data.folder / f"{library}-cache"),
        "threads": usable_cores(),
    }
    ways: list[Way | Absent] = []
    try:
        process = Peer([str(environment / "bin" / "python"), str(SCRIPT), library], settings)
    except PeerError as error:
        return [Absent(TITLES[library], str(error))]
    try:
        for reader, words in process.readers.items():
            name = f"{TITLES[library]}, {reader}"
            process.do(reader, "start")
            answer = process.do(reader, "sums")
            process.do(reader, "stop")
            if "sums" in answer:  # a reader; a training has none
                check_sums(name, answer["rows"], answer["sums"], files)

            def do(what: str, reader: str = reader) -> int:
                return process.do(reader, what).get("rows", 0)

            ways.append(
                Way(
                    name,
                    functools.partial(do, "epoch"),
                    before=functools.partial(do, "start"),
                    after=functools.partial(do, "stop"),
                    close=process.close,
                    facts={"settings": words, "versions": process.versions},
                )
            )
    except PeerError as error:
        process.close()
        return [Absent(TITLES[library], str(error))]
    return ways


def check_sums(reader: str, rows: int, sums: Mapping[str, float], files: list[str]) -> None:
    """Raise PeerError unless these are the sums of the first `rows` rows of the files."""
    wrong = {
        name: (sums.get(name), value)
        for name, value in column_sums(files, rows).items()
        if not math.isclose(sums.get(name, math.nan), value, rel_tol=SUM_TOLERANCE)
    }
    if wrong:
        raise PeerError(
            f"{reader} did not read the values of the first {rows} rows of the files; "
            f"{{column: (its sum, the files' sum)}}: {wrong}"
        )


PEERS = Benchmark(
    "peers",
    "rows/s and samples/s of the loader and other libraries, each at its best (6 minutes)",
    {"read": read, "train": train},
    {
        "rows": (2_097_152, "rows"),
        "slow_rows": (
            262_144,
            "rows for readers of one example per row; the slowest get a sixteenth of them",
        ),
        "copies": (4, "times that the fastest readers read the rows"),
        "batch_size": (65_536, "rows per batch"),
        "train_rows": (262_144, "rows of an epoch of training"),
        "train_batch_size": (8192, "rows per batch of training"),
        "environments": (ENVIRONMENTS, "folder with an environment for each library"),
    },
    faster(BOUNDS),
    repeat=3,
)
