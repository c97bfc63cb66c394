"""The loader and what people use instead, on the same rows: reading alone, and training one DLRM.

Each other library has an environment of its own, which `--install` makes with `venv` and pip from
`ENVIRONMENTS`, and reads in a process of its own, so that it takes turns with everything else
although one of them needs a TensorFlow of 2023. That process runs `peer_readers.py`, where the
settings of each reader are, as its documentation recommends them. The servers of Ray run only in
Ray's turns. Keras' arrays, tf.data and the loader run in this process.

A library without environment, or whose process fails when it starts, is left out and named. Before
the turns, the sums of all columns are compared with those of the files.

Sections (--only): read, an epoch of shuffled batches, as the library makes them: tensors of its own
framework, or NumPy arrays; train, an epoch of `fit` with SGD, and of PyTorch's own DLRM from
memory; XLA compiles all trainings of Keras. All rows are in the page cache. The loader, prebatched
TFRecord and PyTorch read all files --copies times, by hard links: with few rows, the wait for an
epoch's first chunk would be half of it. Slow readers get fewer rows; the table says how many.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, measure
from benchmarks.data import Dataset, column_sums, criteo_shape, linked
from benchmarks.device import Device
from benchmarks.measure import Claim
from tutorlib.memory import usable_cores
from tutorlib.parquet import ParquetSource

SUMMARY = "rows/s and samples/s of the loader and other libraries, each at its best (6 minutes)"
SCRIPT = Path(__file__).with_name("peer_readers.py")
ENVIRONMENTS_FOLDER = machine.ROOT / "build" / "peers"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"  # PyTorch without CUDA's 3 GB
TORCH, ARROW = "torch==2.13.0", "pyarrow==26.0.1"
TENSORFLOW = "tensorflow-cpu==2.21.0"
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "datasets": ("datasets==5.2.0", TORCH, TENSORFLOW, ARROW),
    "torch": (TORCH, ARROW, "numpy==2.4.6"),
    "grain": ("grain==0.2.18", "array-record==0.8.6", ARROW),
    "streaming": ("mosaicml-streaming==0.13.0", TORCH),
    "ray": ("ray[data]==2.60.0", "aiohttp==3.14.5", ARROW),  # its threads import it
    "merlin": (
        "merlin-dataloader==23.8.0", "merlin-core==23.8.0", "tensorflow-cpu==2.12.1",
        "numpy==1.23.5", "pandas==1.5.3", "pyarrow==14.0.2", "dask==2023.7.1",
        "distributed==2023.7.1", "dask-cuda==23.8.0", "setuptools==65.5.0",
    ),
}  # fmt: skip
TITLES = {
    "datasets": "HF datasets",
    "torch": "PyTorch DataLoader over Arrow",
    "grain": "Grain",
    "streaming": "MosaicML streaming",
    "ray": "Ray Data",
    "merlin": "merlin-dataloader",
    "dlrm": "PyTorch",
}
SECTIONS = {"read": tuple(ENVIRONMENTS), "train": ("dlrm",)}
COPIED = ("torch",)  # fast enough to read all files several times
PACKAGES = ("datasets", "torch", "grain", "mosaicml-streaming", "ray", "merlin-dataloader")
PANELS = {  # of the figure: (title, key of the batch size in the report)
    "read": ("Reading: rows/s", "batch_size"),
    "train": ("A DLRM: samples/s", "train_batch_size"),
}
TRAIN = "train: "  # begins the names of trainings
COLUMNS, STACKED = "loader, columns", "loader, stacked"
NATIVE = "tf.data, make_batched_features_dataset"
ARRAYS = "Keras arrays in memory"
PREBATCHED = "tf.data, prebatched TFRecord, not shuffled"
FUSED = "loader, stacked and fused"
TORCH_DLRM = f"{TRAIN}PyTorch, tensors in memory"
CLAIMS = (
    Claim(COLUMNS, 5, other="merlin-dataloader, per partition"),
    Claim(COLUMNS, 1, other=ARRAYS),
    Claim(f"{TRAIN}{FUSED}", 2, other=TORCH_DLRM),
)
SUM_TOLERANCE = 1e-6  # relative: float32 added up in another order

Epochs = dict[str, Callable[[], int]]  # {candidate: an epoch, which returns its rows}


class PeerError(RuntimeError):
    """A process that reads with another library has failed; the message has its last output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    slow = "rows for readers of one example per row; the slowest get a sixteenth of them"
    measure.add_numbers(
        parser,
        rows=(2_097_152, "rows"),
        slow_rows=(262_144, slow),
        copies=(4, "times that the fastest readers read the rows"),
        batch_size=(65_536, "rows per batch"),
        train_rows=(262_144, "rows of an epoch of training"),
        train_batch_size=(8192, "rows per batch of training"),
    )
    parser.add_argument(
        "--environments", type=Path, default=ENVIRONMENTS_FOLDER, metavar="FOLDER",
        help="folder with an environment for each library (default: build/peers)",
    )  # fmt: skip
    parser.add_argument(
        "--install", action="store_true",
        help=f"make the environments of {', '.join(ENVIRONMENTS)} there (8 GB); measure nothing",
    )  # fmt: skip
    measure.add_options(parser, "peers", repeat=3, sections=SECTIONS, device=False)


def run(arguments: argparse.Namespace) -> None:
    """Make the environments; or measure, print the table and write the JSON file."""
    if arguments.install:
        install(arguments.environments)
        return
    device = Device("cpu")
    data = criteo_shape(arguments.data, arguments.rows)
    train_data = criteo_shape(arguments.data, arguments.train_rows)
    sections: dict[str, Epochs] = {name: {} for name in arguments.only}
    if "read" in sections:
        sections["read"] = own_readers(data, arguments)
    if "train" in sections:
        sections["train"] = own_trainings(train_data, arguments, device)
    peers: dict[str, tuple[Peer, str]] = {}  # {candidate: its process, its name there}
    not_measured: list[str] = []
    with contextlib.ExitStack() as stack:
        for section, library in [(s, each) for s in sections for each in SECTIONS[s]]:
            training = section == "train"
            try:
                peer = start(
                    library, arguments.environments, train_data if training else data,
                    arguments.slow_rows, arguments.copies,
                    arguments.train_batch_size if training else arguments.batch_size,
                )  # fmt: skip
            except PeerError as error:
                not_measured.append(f"not measured: {TITLES[library]}: {error}")
                continue
            stack.callback(peer.close)
            for reader in peer.readers:
                name = f"{TRAIN if training else ''}{TITLES[library]}, {reader}"
                peers[name] = peer, reader
                sections[section][name] = functools.partial(peer.epoch, reader)
        timings = measure.turns(
            {name: work for made in sections.values() for name, work in made.items()},
            repeat=arguments.repeat,
            beforehand={n: functools.partial(p.ask, r, "start") for n, (p, r) in peers.items()},
            synchronise=device.synchronise,
            afterwards={n: functools.partial(p.ask, r, "stop") for n, (p, r) in peers.items()},
        )
    details = {
        **{n: getattr(arguments, n) for n in ("batch_size", "train_batch_size")},
        "data": {data.name: data.describe()},
        "sections": {section: list(made) for section, made in sections.items()},
        "settings": {name: peer.readers[reader] for name, (peer, reader) in peers.items()},
        "peer_versions": {
            n.removeprefix(TRAIN).split(",")[0]: peer.versions for n, (peer, _) in peers.items()
        },
        "not_measured": not_measured,
    }
    result = report(timings, measure.command_line(arguments), details)
    notes = [f"of trainings: to {TRAIN}{NATIVE}"]
    notes += [f"faster than the loader: {', '.join(result['faster']) or 'none'}", *not_measured]
    print(measure.table(result, notes=notes))
    measure.save(result, arguments.out)


def report(
    timings: Sequence[measure.Timing], command: str, details: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what was measured as JSON values.

    `ratio` is to native in the same section. `faster` names what is faster than the loader, in
    columns when reading and in its faster layout in a training.
    """
    result = measure.report(
        "peers", timings, command=command, claims=CLAIMS, details=details, baseline=timings[0].name
    )
    rates = {timing.name: timing.rows_per_s for timing in timings}
    result["faster"] = []
    for names in details["sections"].values():
        training = names[0].startswith(TRAIN)
        native = rates[f"{TRAIN if training else ''}{NATIVE}"]
        loaders = [name for name in names if name.removeprefix(TRAIN).startswith("loader")]
        fastest = max(rates[name] for name in (loaders if training else [COLUMNS]))
        for entry in result["candidates"]:
            if entry["name"] in names:
                entry["ratio"] = entry["rows_per_s"] / native
                if entry["rows_per_s"] > fastest and entry["name"] not in loaders:
                    result["faster"].append(entry["name"])
    return result


def versions_of(result: Mapping[str, Any]) -> str:
    """Return the packages of a report's libraries with their versions, as text."""
    found = {p: v for versions in result["peer_versions"].values() for p, v in versions.items()}
    return ", ".join(f"{name} {found[name]}" for name in PACKAGES if name in found)


# ---- candidates of this process -----------------------------------------------------------------


def own_readers(data: Dataset, arguments: argparse.Namespace) -> Epochs:
    """Return tf.data in three forms, Keras' arrays in memory, and the loader in two layouts."""
    import tfrecords
    from benchmarks.loader import Candidate, awake, delivering
    from benchmarks.readers import arrays_in_memory, as_fit_shuffles
    from tutorlib.loader import KerasSequenceLoader

    size, schema = arguments.batch_size, data.schema
    examples = data.examples(min(arguments.slow_rows, data.rows))
    files = ParquetSource(linked(data.parquet, arguments.copies)).files
    loader = functools.partial(KerasSequenceLoader, files, size, schema=schema)
    prebatched = tfrecords.prebatched_dataset(data.prebatched(size), schema)
    arrays = arrays_in_memory(data.source, schema)
    candidates: dict[str, Candidate] = {
        NATIVE: awake(tfrecords.native_dataset(examples, size, schema)),
        "tf.data, batch then parse_example": awake(
            tfrecords.parsed_batches(examples, size, schema)
        ),
        PREBATCHED: delivering(prebatched.repeat(arguments.copies)),
        ARRAYS: delivering(as_fit_shuffles(arrays, size)),
        COLUMNS: delivering(loader()),
        STACKED: delivering(loader(batch_layout="stacked")),
    }
    return {name: candidate.work for name, candidate in candidates.items()}


def own_trainings(data: Dataset, arguments: argparse.Namespace, device: Device) -> Epochs:
    """Return the DLRM of `train` in its ways, and on Keras' arrays in memory."""
    import keras

    from benchmarks import train
    from benchmarks.networks import NETWORKS
    from benchmarks.readers import arrays_in_memory

    size = arguments.train_batch_size
    options = argparse.Namespace(
        ways=("native", "prebatched", "columns", "stacked"), batch_size=size, slow_rows=None,
        widths="scaled", optimizer="sgd", precision="float32", device="cpu",
    )  # fmt: skip
    names = {
        train.NATIVE: NATIVE,
        train.PREBATCHED: PREBATCHED,
        train.COLUMNS: COLUMNS,
        train.STACKED: FUSED,
    }
    ways = train.of_section("dlrm", data, options, device, all_compiled=True)
    made = {f"{TRAIN}{names[n.split(': ')[1]]}": way.epoch for n, way in ways.items()}
    network = NETWORKS["dlrm"](data.schema, "scaled")
    keras.utils.set_random_seed(0)
    model = network.by_column()
    model.compile("sgd", "binary_crossentropy", jit_compile=True)
    inputs, label = arrays_in_memory(data.source, network.schema)

    def epoch() -> int:
        ended, _ = measure.fit_epoch(model, inputs, label, batch_size=size, shuffle=True)
        return ended

    return {**made, f"{TRAIN}{ARRAYS}": epoch}


# ---- other libraries ----------------------------------------------------------------------------


def install(folder: Path) -> None:
    """Make the environments that are not there; name those that pip cannot install."""
    for library, requirements in ENVIRONMENTS.items():
        path = folder / library
        if path.exists():
            print(f"there: {path}")
            continue
        python = str(path / "bin" / "python")
        wheels = ["--extra-index-url", CPU_WHEELS] if TORCH in requirements else []
        try:
            subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
            command = [python, "-m", "pip", "install", "-q", *wheels, *requirements]
            subprocess.run(command, check=True)
            print(f"made: {path}")
        except subprocess.CalledProcessError as error:
            shutil.rmtree(path, ignore_errors=True)
            print(f"not made: {path}: pip ended with status {error.returncode}")


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
            answer = self._ask(settings)
        except BaseException:
            self.close()
            raise
        self.readers: dict[str, str] = answer["readers"]
        self.versions: dict[str, str] = answer["versions"]

    def epoch(self, reader: str) -> int:
        """Run an epoch; return its rows."""
        return self.ask(reader, "epoch")["rows"]

    def sums(self, reader: str) -> tuple[int, dict[str, float]]:
        """Run an epoch; return its rows and the sum of each column; none of a training."""
        self.ask(reader, "start")
        answer = self.ask(reader, "sums")
        self.ask(reader, "stop")
        return answer["rows"], answer.get("sums", {})

    def ask(self, reader: str, what: str) -> dict[str, Any]:
        """Let a reader do one of "start", "epoch", "sums" and "stop"; return the answer."""
        return self._ask({"reader": reader, "do": what})

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
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
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def start(
    library: str,
    environments: Path,
    data: Dataset,
    slow_rows: int,
    copies: int,
    batch_size: int,
) -> Peer:
    """Start a library's process and check what each of its readers reads.

    merlin's old PyArrow only understands the plain files. `COPIED` libraries read all files
    `copies` times.

    Raises:
        PeerError: if the library has no environment, fails, or reads other values.
    """
    environment = environments / ("torch" if library == "dlrm" else library)
    python = environment / "bin" / "python"
    if not python.exists():
        raise PeerError(
            f"no environment {environment.name}; `python -m benchmarks peers --install` makes it, "
            "or say --environments FOLDER"
        )
    source = ParquetSource(data.plain) if library == "merlin" else data.source
    if library in COPIED:
        source = ParquetSource(linked(data.parquet, copies))
    schema = data.schema
    settings = {
        "paths": source.files,
        "cells": str(data.raw_rows() / "cells.bin"),
        "names": schema.names,
        "label": schema.labels.names[0],
        "continuous": schema.continuous.names,
        "categorical": schema.categorical.names,
        "sizes": [column.cardinality for column in schema.categorical],
        "batch_size": batch_size,
        "slow_rows": min(slow_rows, data.rows),
        "cache": str(data.folder / f"{library}-cache"),
        "threads": usable_cores(),
    }
    peer = Peer([str(python), str(SCRIPT), library], settings)
    try:
        for reader in peer.readers:
            rows, sums = peer.sums(reader)
            if sums:
                check_sums(f"{TITLES[library]}, {reader}", rows, sums, source)
    except BaseException:
        peer.close()
        raise
    return peer


def check_sums(reader: str, rows: int, sums: Mapping[str, float], source: ParquetSource) -> None:
    """Raise PeerError unless these are the sums of the first `rows` rows of the files."""
    wrong = {
        name: (sums.get(name), value)
        for name, value in column_sums(source, rows).items()
        if not math.isclose(sums.get(name, math.nan), value, rel_tol=SUM_TOLERANCE)
    }
    if wrong:
        raise PeerError(
            f"{reader} did not read the values of the first {rows} rows of the files; "
            f"{{column: (its sum, the files' sum)}}: {wrong}"
        )
