"""Outputs that are whole or absent: written under a staging name, then renamed to the target.

The staging name is the target's with `.partial` appended, so both are in the same file system and
renaming is one step. It is a folder with the mark of this library, also where the target is a file.
An error leaves the old target as it was. A process that is killed leaves its staging folder, which
the next call removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tutorlib.storage.locks import locked_folder
from tutorlib.storage.owned import (
    MARK,
    clear,
    discard,
    is_ours,
    local_path,
    mark,
    refuse_foreign,
    remove,
)

AT_FDCWD, RENAME_EXCHANGE, RENAME_SWAP = -100, 2, 2  # linux/fcntl.h, linux/fs.h, macOS sys/stdio.h


def staging_path(target: Path) -> Path:
    """Return the name under which a target is written before it is whole."""
    return target.with_name(target.name + ".partial")


def replaced_path(target: Path) -> Path:
    """Return the name of an old target while `replace` renames two folders one after the other."""
    return target.with_name(target.name + ".replaced")


@contextlib.contextmanager
def new_file(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write a file to, which becomes `target` when the block ends without an error.

    Args:
        target: path of the file; one that exists is replaced. Missing folders are made.

    Raises:
        IsADirectoryError: if `target` is a folder.
        FileExistsError: if its name with `.partial` appended exists and this library did not make
            it.
        BlockingIOError: if another process is writing the same target.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "numbers.txt"
        >>> with new_file(target) as path:
        ...     _ = path.write_text("1 2 3")
        >>> target.read_text(), path.exists()
        ('1 2 3', False)
    """
    target = local_path(target)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder. Move it away, or choose another file.")
    with scratch_folder(staging_path(target)) as folder:
        yield folder / target.name
        (folder / target.name).replace(target)


@contextlib.contextmanager
def new_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give an empty folder, which becomes `target` when the block ends without an error.

    At any moment, also after a kill, either the old or the new folder is at `target`. Only where
    the system cannot swap two names (Windows, some network file systems) may a kill leave the old
    folder at `target.replaced`; then the next call renames it to `target` before the block.

    Args:
        target: path of the folder; one that this library made is replaced. Missing parents are
            made.

    Raises:
        FileExistsError: if `target`, or its name with `.partial` appended, holds files and was not
            made by this library.
        BlockingIOError: if another process is writing the same target.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "numbers"
        >>> with new_folder(target) as folder:
        ...     _ = (folder / "odd.txt").write_text("1 3 5")
        >>> (target / "odd.txt").read_text(), folder.exists()
        ('1 3 5', False)
    """
    target = local_path(target)
    check_target(target)
    with scratch_folder(staging_path(target)) as staging:
        recover(target)
        yield staging
        replace(target, staging)


@contextlib.contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder for the block; it is removed afterwards, unless the block renamed it.

    Raises:
        FileExistsError: if the folder holds files and was not made by this library, or is a file.
        BlockingIOError: if another process is using it.
    """
    check_target(folder)
    with locked_folder(folder):
        refuse_foreign(folder)
        mark(folder)
        clear(folder)
        identity = folder.stat()
        try:
            yield folder
        finally:
            # Once it is renamed, another process may make a new folder of the same name.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(folder.stat(), identity):
                    remove(folder)


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Give an empty folder among the temporary files (TMPDIR); it is removed after the block.

    What killed processes left under the same prefix is removed first, where locks show that they
    do not live (not on Windows).
    """
    discard_left(prefix)
    with scratch_folder(Path(tempfile.mkdtemp(prefix=prefix))) as folder:
        yield folder


def discard_left(prefix: str) -> None:
    """Remove the temporary folders of this prefix that killed processes left."""
    if sys.platform != "win32":
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with contextlib.suppress(PermissionError):  # of another user
                if (left / MARK).exists():
                    discard(left)


def check_target(target: Path) -> None:
    """Raise FileExistsError unless this library may make, or replace, the folder `target`."""
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file. Move it away, or choose another folder.")
    refuse_foreign(target)


def recover(target: Path) -> None:
    """Clear up what a kill within `replace` left; call it with the lock of the staging folder."""
    old = replaced_path(target)
    if target.exists() and is_ours(old):
        discard(old)
    elif (old / MARK).exists():
        old.rename(target)


def replace(target: Path, new: Path) -> None:
    """Rename a folder to `target`; a folder there that this library made is removed."""
    if not target.exists():
        new.rename(target)
    elif exchange(new, target):
        discard(new)
    else:
        old = replaced_path(target)
        target.rename(old)
        new.rename(target)
        discard(old)


def exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step; return False if the system or the file system cannot."""
    names = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin":
        return ctypes.CDLL(None).renamex_np(*names, RENAME_SWAP) == 0
    if sys.platform == "linux":
        rename = getattr(ctypes.CDLL(None), "renameat2", None)  # glibc 2.28, musl 1.2.6
        if rename is not None:
            return rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0
    return False
