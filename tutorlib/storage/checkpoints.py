"""Checkpoints: numbered folders that are there whole or not at all, the newest of them last.

A checkpoint is written into a folder beside its place, forced to the disk and renamed. Whatever
moment a process is killed at, the folders with a checkpoint's name are whole. Does not belong here:
what is in one (`callbacks/loader_checkpoint.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tutorlib.storage.atomic import remove, written_whole

STATE_FILE = "state.json"
NAME = re.compile(r"(\d+)-epoch-(\d+)-batch-(\d+)")
LEFT_OVER = re.compile(NAME.pattern + r"\.(partial|removed)")


class Checkpoint(NamedTuple):
    """A whole checkpoint: its number, its folder, and what its state file says."""

    number: int
    folder: Path
    state: dict[str, Any]


def find_checkpoints(path: str | os.PathLike[str]) -> list[Checkpoint]:
    """Return the whole checkpoints in a folder, the newest last; none if there is no folder.

    Anything else in it, also a folder of such a name without a readable state file, is none.

    Args:
        path: folder that holds the checkpoints.
    """
    found = []
    for folder in Path(path).iterdir() if Path(path).is_dir() else ():
        name = NAME.fullmatch(folder.name)
        state = None if name is None else _read_state(folder)
        if name is not None and state is not None:
            found.append(Checkpoint(int(name[1]), folder, state))
    return sorted(found, key=lambda checkpoint: checkpoint.number)


def _read_state(folder: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return None
    return state if isinstance(state, dict) and "version" in state else None


@contextlib.contextmanager
def new_checkpoint(
    path: str | os.PathLike[str], epoch: int, batch: int, state: Mapping[str, Any]
) -> Iterator[Path]:
    """Yield a free folder for files; when the block ends well it is the newest checkpoint.

    All of it is on the disk before it gets its name, and the name before this returns: without
    that, a machine that loses power could keep the name and lose what it stands for.

    Args:
        path: folder that holds the checkpoints; made if it is not there.
        epoch: for the name.
        batch: for the name.
        state: JSON values that `find_checkpoints` gives back; taken when the block has ended.

    Raises:
        OSError: if something cannot be written; the older checkpoints are still there.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> with new_checkpoint(path, 2, 40, {"version": 1}) as folder:
        ...     _ = (folder / "weights").write_bytes(b"123")
        >>> [newest] = find_checkpoints(path)
        >>> newest.folder.name, newest.state
        ('000001-epoch-2-batch-40', {'version': 1})
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    numbers = [int(name[1]) for name in map(NAME.fullmatch, os.listdir(path)) if name]
    number = max(numbers, default=0) + 1
    with written_whole(path / f"{number:06d}-epoch-{epoch}-batch-{batch}") as folder:
        folder.mkdir()
        yield folder
        (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
        for file in [*folder.iterdir(), folder]:
            _to_disk(file)
    _to_disk(path)


def _to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_old(path: str | os.PathLike[str], keep: int) -> None:
    """Remove all checkpoints but the newest `keep`, and what a killed process has left half done.

    A checkpoint loses its name before its files, so that one half removed is none.

    Args:
        path: folder that holds the checkpoints.
        keep: how many to leave, at least 1.
    """
    for checkpoint in find_checkpoints(path)[:-keep]:
        checkpoint.folder.rename(checkpoint.folder.with_name(checkpoint.folder.name + ".removed"))
    for entry in Path(path).iterdir():
        if LEFT_OVER.fullmatch(entry.name):
            remove(entry)
