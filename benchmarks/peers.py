"""Readers of other libraries, each library in its own process, which runs an epoch on request.

So they take turns with everything else although one of them needs a TensorFlow of 2023, and their
threads and servers do not share our interpreter. That process runs `peer_readers.py`.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.data import Dataset, column_sums
from tutorlib.memory import usable_cores
from tutorlib.parquet import ParquetSource

SCRIPT = Path(__file__).with_name("peer_readers.py")
TITLES = {"datasets": "HF datasets", "ray": "Ray Data", "merlin": "merlin-dataloader"}
MODULES = {"datasets": "datasets", "ray": "ray.data", "merlin": "merlin.dataloader"}
INSTALL = {
    "datasets": "tensorflow datasets",
    "ray": "tensorflow 'ray[data]' aiohttp",
    "merlin": "'tensorflow==2.12.1' 'pandas<1.6' 'numpy<1.24' 'dask==2023.7.1' "
    "'distributed==2023.7.1' 'dask-cuda==23.8.0' 'pyarrow<15' 'merlin-core==23.8.0' "
    "'merlin-dataloader==23.8.0' 'setuptools<70'",
}
SUM_TOLERANCE = 1e-6  # relative: float32 added up in another order


class PeerError(RuntimeError):
    """A process that reads with another library has failed; the message has its last output."""


class Peer:
    """A process that runs an epoch whenever it is asked.

    Args:
        command: command line that starts it.
        settings: its first line of input, as JSON.

    Attributes:
        readers: names of its readers.
        version: version of its library.
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
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        try:
            answer = self._ask(settings)
        except BaseException:
            self.close()
            raise
        self.readers, self.version = list(answer["readers"]), answer["version"]

    def epoch(self, reader: str) -> int:
        """Run an epoch; return its rows."""
        return self._ask({"reader": reader, "sums": False})["rows"]

    def sums(self, reader: str) -> tuple[int, dict[str, float]]:
        """Run an epoch; return its rows and the sum of each column."""
        answer = self._ask({"reader": reader, "sums": True})
        return answer["rows"], answer["sums"]

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
    library: str, python: str | None, data: Dataset, slow_rows: int, batch_size: int
) -> tuple[Peer, dict[str, Callable[[], int]]]:
    """Start a library's process, with `python` or else this interpreter; check what it reads.

    merlin's old PyArrow only understands the plain files.

    Returns:
        The process, and {name of a reader: function that runs an epoch}.
    """
    source = data.plain if library == "merlin" else data.source
    [label] = data.schema.labels.names
    settings = {
        "paths": source.files,
        "batch_size": batch_size,
        "slow_rows": slow_rows,
        "label": label,
        "cache": str(data.folder / "datasets-cache"),
        "threads": usable_cores(),
    }
    peer = Peer([python or sys.executable, str(SCRIPT), library], settings)
    names = {f"{TITLES[library]}, {reader}": reader for reader in peer.readers}
    try:
        for name, reader in names.items():
            check_sums(name, *peer.sums(reader), source)
    except BaseException:
        peer.close()
        raise
    return peer, {name: functools.partial(peer.epoch, reader) for name, reader in names.items()}


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


def is_installed(library: str) -> bool:
    """Return whether this interpreter has the library."""
    try:
        return importlib.util.find_spec(MODULES[library]) is not None
    except ModuleNotFoundError:  # the package that would hold it
        return False


def how_to_install(library: str) -> str:
    """Return a line that says how a library that is not installed can be measured."""
    return (
        f"{TITLES[library]}: not installed here; pip install {INSTALL[library]} elsewhere, then "
        f"--peer-python {library}=/path/to/its/python"
    )
