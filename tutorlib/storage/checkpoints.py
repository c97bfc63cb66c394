"""Checkpoints: numbered folders, each whole or absent, the newest with the highest number.

A checkpoint is written to a staging folder, flushed to the disk and renamed. Whenever a process is
killed, each folder with a checkpoint's name is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tutorlib.storage.atomic import new_folder
from tutorlib.storage.owned import is_ours, local_path, remove

STATE_FILE = "state.json"
NAME = re.compile(r"(\d+)-epoch-(\d+)-batch-(\d+)")
LEFT_OVER = re.compile(NAME.pattern + r"\.(partial|removed)")


class Checkpoint(NamedTuple):
    """A whole checkpoint: its number, its folder, and the content of its state file."""

    number: int
    folder: Path
    state: dict[str, Any]


def find_checkpoints(path: str | os.PathLike[str]) -> list[Checkpoint]:
    """Return the whole checkpoints in a folder, the newest last.

    A folder with the name of a checkpoint but no readable state file is ignored, as is everything
    else.

    Args:
        path: folder that holds the checkpoints; it may be missing.

    Raises:
        ValueError: if the path is a URL.
    """
    found, parent = [], local_path(path)
    for folder in parent.iterdir() if parent.is_dir() else ():
        name = NAME.fullmatch(folder.name)
        state = None if name is None else _read_state(folder)
        if name is not None and state is not None:
            found.append(Checkpoint(int(name[1]), folder, state))
    return sorted(found, key=lambda checkpoint: checkpoint.number)


def _read_state(folder: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) and "version" in state else None


@contextlib.contextmanager
def new_checkpoint(
    path: str | os.PathLike[str], epoch: int, batch: int, state: Mapping[str, Any]
) -> Iterator[Path]:
    """Give an empty folder; when the block ends without an error, it is the newest checkpoint.

    All files are on the disk before the folder gets its name, and the name is on the disk before
    this returns: otherwise a machine that loses power could keep the name and lose the files.

    Args:
        path: folder that holds the checkpoints; made if it is missing.
        epoch: epoch to put in the folder's name.
        batch: batch to put in the folder's name.
        state: JSON values that `find_checkpoints` returns; they are written after the block.

    Raises:
        OSError: if a file cannot be written; the older checkpoints stay.
        BlockingIOError: if another process is writing the same checkpoint.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> with new_checkpoint(path, 2, 40, {"version": 1}) as folder:
        ...     _ = (folder / "weights").write_bytes(b"123")
        >>> [newest] = find_checkpoints(path)
        >>> newest.folder.name, newest.state
        ('000001-epoch-2-batch-40', {'version': 1})
    """
    path = local_path(path)
    path.mkdir(parents=True, exist_ok=True)
    numbers = [int(name[1]) for name in map(NAME.fullmatch, os.listdir(path)) if name]
    number = max(numbers, default=0) + 1
    with new_folder(path / f"{number:06d}-epoch-{epoch}-batch-{batch}") as folder:
        yield folder
        (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
        for file in [*folder.iterdir(), folder]:
            _flush(file)
    _flush(path)


def _flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_old(path: str | os.PathLike[str], keep: int) -> None:
    """Remove all checkpoints except the newest `keep`, and what killed processes left.

    A checkpoint is renamed before its files are deleted, so a partial one is never loaded. Folders
    that this library did not make stay.

    Args:
        path: folder that holds the checkpoints.
        keep: checkpoints to keep, at least 1.
    """
    for checkpoint in find_checkpoints(path)[:-keep]:
        if is_ours(checkpoint.folder):
            name = checkpoint.folder.name + ".removed"
            checkpoint.folder.rename(checkpoint.folder.with_name(name))
    for entry in Path(path).iterdir():
        if LEFT_OVER.fullmatch(entry.name) and is_ours(entry):
            remove(entry)
