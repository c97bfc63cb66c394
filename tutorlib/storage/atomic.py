"""Outputs that are whole or absent: written under a staging name, then renamed to the target.

The staging name is the target's with `.partial` appended, so both are in the same file system and
renaming is one step. An error leaves the old target as it was. A process that is killed leaves its
staging file or folder, which the next call removes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tutorlib.storage.locks import locked_folder


def refuse_existing(target: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise FileExistsError if `target` exists and `overwrite` is False."""
    if Path(target).exists() and not overwrite:
        raise FileExistsError(f"{target} exists already. Pass overwrite=True to replace it.")


def staging_path(target: Path) -> Path:
    """Return the name under which a target is written before it is whole."""
    return target.with_name(target.name + ".partial")


@contextlib.contextmanager
def new_file(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write a file to, which becomes `target` when the block ends without an error.

    Args:
        target: path of the file; one that exists is replaced. Missing folders are made.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "numbers.txt"
        >>> with new_file(target) as path:
        ...     _ = path.write_text("1 2 3")
        >>> target.read_text(), path.exists()
        ('1 2 3', False)
    """
    target = Path(target)
    staging = staging_path(target)
    remove(staging)
    staging.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield staging
        replace(target, staging)
    finally:
        remove(staging)


@contextlib.contextmanager
def new_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give an empty folder, which becomes `target` when the block ends without an error.

    Args:
        target: path of the folder; one that exists is replaced. Missing parents are made.

    Raises:
        BlockingIOError: if another process is writing the same target.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "numbers"
        >>> with new_folder(target) as folder:
        ...     _ = (folder / "odd.txt").write_text("1 3 5")
        >>> [path.name for path in target.iterdir()], folder.exists()
        (['odd.txt'], False)
    """
    target = Path(target)
    with scratch_folder(staging_path(target)) as staging:
        yield staging
        replace(target, staging)


@contextlib.contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder for the block; it is removed afterwards, unless the block renamed it.

    Raises:
        BlockingIOError: if another process is using it.
    """
    with locked_folder(folder):
        identity = folder.stat()
        clear(folder)
        try:
            yield folder
        finally:
            # Once it is renamed, another process may make a new folder of the same name.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(folder.stat(), identity):
                    remove(folder)


def replace(target: Path, new: Path) -> None:
    """Rename `new`, a file or a folder, to `target`, which may exist."""
    if target.is_dir() or (target.exists() and new.is_dir()):
        old = target.with_name(target.name + ".replaced")
        remove(old)
        target.rename(old)
        new.rename(target)
        remove(old)
    else:
        new.replace(target)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def clear(folder: Path) -> None:
    """Remove everything in a folder."""
    for entry in folder.iterdir():
        remove(entry)
