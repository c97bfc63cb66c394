"""locked_folder: only one process at a time writes in a folder."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Make a folder and hold a lock on it during the block.

    The lock ends with the process, however it ends. The folder may be renamed or removed in the
    block. Windows has no such lock, so there the folder is only made.

    Raises:
        BlockingIOError: if another process, or another block of this one, holds the lock.
    """
    try:
        handle = lock_handle(folder)
    except BlockingIOError as error:
        raise BlockingIOError(
            f"another process is writing {folder}. Wait for it, then try again."
        ) from error
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def lock_handle(folder: Path) -> int | None:
    """Make a folder and return a descriptor that holds its lock until it is closed.

    The lock is on the folder which now has this name; None on Windows.
    """
    if sys.platform == "win32":
        folder.mkdir(parents=True, exist_ok=True)
        return None
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        # FileNotFoundError: the process that held the lock has just renamed or removed the folder.
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as unless_locked:
            handle = os.open(folder, os.O_RDONLY)
            unless_locked.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), folder.stat()):
                unless_locked.pop_all()
                return handle
