"""Readers of other libraries, each library in a process of its own that does an epoch when asked.

So they take turns with everything else although one of them needs a TensorFlow of 2023, and their
threads and servers do not share our interpreter. What runs there is `peer_readers.py`.
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
    """A process that reads with another library has failed; the message holds its last words."""


class Peer:
    """A process that goes through an epoch whenever it is asked.

    Args:
        command: how to start it.
        settings: its first line of input.

    Attributes:
        readers: names of what it can read with.
        version: of its library.

    Raises:
        PeerError: if it ends before it answers.
    """

    def __init__(self, command: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._words = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
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
        """Go through an epoch; return its rows."""
        return self._ask({"reader": reader, "sums": False})["rows"]

    def sums(self, reader: str) -> tuple[int, dict[str, float]]:
        """Go through an epoch; return its rows and the sum of each column."""
        answer = self._ask({"reader": reader, "sums": True})
        return answer["rows"], answer["sums"]

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            self._words.seek(0)
            last = "\n".join(self._words.read().splitlines()[-15:])
            raise PeerError(
                f"{' '.join(self._process.args)} ended with status {status} instead of answering "
                f"{json.dumps(request)[:200]}. Its last words:\n{last}"
            )
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        with self._process.stdin, self._process.stdout:
            pass
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.close()


def start(
    library: str, python: str | None, data: Dataset, slow_rows: int, batch_size: int
) -> tuple[Peer, dict[str, Callable[[], int]]]:
    """Start a library's process and see that it reads what is there.

    Args:
        library: key of `TITLES`.
        python: interpreter that has the library; None for this one.
        data: what to read: merlin's old PyArrow only understands the plain files.
        slow_rows: rows for the readers that go row by row.
        batch_size: rows of a batch.

    Returns:
        The process, and {name of a reader: function that goes through an epoch}.

    Raises:
        PeerError: if it fails, or the sums of what it read are not those of the files.
    """
    source = data.plain if library == "merlin" else data.source
    [label] = data.schema.labels.names
    settings = {
        "paths": source.files,
        "batch_size": batch_size,
        "slow_rows": slow_rows,
        "label": label,
        "cache": str(data.folder / "datasets-cache"),
        "threads": len(os.sched_getaffinity(0)),
    }
    peer = Peer([python or sys.executable, str(SCRIPT), library], settings)
    try:
        for reader in peer.readers:
            check_sums(f"{TITLES[library]}, {reader}", *peer.sums(reader), source)
    except BaseException:
        peer.close()
        raise
    return peer, {
        f"{TITLES[library]}, {reader}": functools.partial(peer.epoch, reader)
        for reader in peer.readers
    }


def check_sums(reader: str, rows: int, sums: Mapping[str, float], source: ParquetSource) -> None:
    """Raise PeerError unless these are the sums of the first `rows` rows of the files."""
    wanted = column_sums(source, rows)
    wrong = {
        name: (sums.get(name), value)
        for name, value in wanted.items()
        if not math.isclose(sums.get(name, math.nan), value, rel_tol=SUM_TOLERANCE)
    }
    if wrong:
        raise PeerError(
            f"{reader} did not read what the files hold in their first {rows} rows; "
            f"{{column: (its sum, the files' sum)}}: {wrong}"
        )


def is_here(library: str) -> bool:
    """Return whether this interpreter has the library."""
    module = MODULES[library]
    return (
        importlib.util.find_spec(module.partition(".")[0]) is not None
        and importlib.util.find_spec(module) is not None
    )


def how_to_have(library: str) -> str:
    """Return a line that says how a library could be measured that is not here."""
    return (
        f"{TITLES[library]}: not installed here; pip install {INSTALL[library]} elsewhere, then "
        f"--peer-python {library}=/path/to/its/python"
    )
