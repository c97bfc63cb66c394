"""Which folders this library may replace or remove: those that hold a file named `MARK`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from tutorlib.storage.filesystems import shown
from tutorlib.storage.locks import locked_folder
from tutorlib.storage.remote_path import RemotePath

MARK = ".tutorlib"  # readers of data folders skip names that start with "."
URL = re.compile(r"[a-z][a-z0-9]+:/")  # `Path` leaves one of the two slashes


def local_path(target: str | os.PathLike[str]) -> Path:
    """Return the path of an output that can be written on this machine only.

    Raises:
        ValueError: for a URL.

    Example:
        >>> local_path("data/train").name
        'train'
    """
    if URL.match(os.fspath(target)):
        raise ValueError(
            f"{shown(os.fspath(target))} is a URL, but this output is written on this machine. "
            "Write it to a local folder and copy that, for example with `aws s3 cp --recursive`."
        )
    return Path(target)


def is_ours(folder: Path) -> bool:
    """Return whether a path is a folder that may be removed: it has the mark, or it is empty."""
    return (folder / MARK).is_file() or (folder.is_dir() and not any(folder.iterdir()))


def mark(folder: Path) -> None:
    """Let this library replace and remove a folder."""
    text = "tutorlib made this folder and may replace or remove it. Delete this file to keep it.\n"
    (folder / MARK).write_text(text, encoding="utf-8")


def refuse_foreign(path: Path) -> None:
    """Raise FileExistsError for a folder that has content and no mark."""
    if path.is_dir() and not is_ours(path):
        raise FileExistsError(
            f"{path} was not made by tutorlib (it has no file {MARK}), so it is neither replaced "
            "nor removed. Move it away, or choose another output."
        )


def refuse_existing(target: str | os.PathLike[str] | RemotePath, overwrite: bool) -> None:
    """Raise FileExistsError if `target` exists and must not be replaced.

    Args:
        target: path of a file or folder to write.
        overwrite: whether to replace a file, an empty folder, or a folder that this library made.
    """
    if isinstance(target, RemotePath):
        target.refuse_existing(overwrite, MARK)
        return
    if Path(target).exists() and not overwrite:
        raise FileExistsError(f"{target} exists already. Pass overwrite=True to replace it.")
    refuse_foreign(Path(target))


def refuse_overlap(
    target: str | os.PathLike[str] | RemotePath, inputs: Iterable[str | os.PathLike[str]]
) -> None:
    """Raise ValueError if `target` is or contains an input, or is inside an input folder.

    Args:
        target: path of the output; an output replaces all that it contains.
        inputs: paths of the input files and folders; those that do not exist here are ignored.

    Example:
        >>> refuse_overlap("data/train", ["data/raw/day_0.parquet"])
    """
    if isinstance(target, RemotePath):
        target.refuse_overlap(str(path) for path in inputs)
        return
    output = Path(target).resolve()
    for path in filter(os.path.exists, inputs):
        resolved = Path(path).resolve()
        if output == resolved or output in resolved.parents or resolved in output.parents:
            raise ValueError(
                f"the output {target} overlaps the input {path}: writing would replace or change "
                "what is read. Choose an output outside the input."
            )


def remove(folder: Path) -> None:
    """Remove a folder that this library made, the mark last; a link is removed by itself.

    Raises:
        FileExistsError: if the folder has content and no mark.
    """
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        refuse_foreign(folder)
        clear(folder)
        (folder / MARK).unlink(missing_ok=True)
        folder.rmdir()


def clear(folder: Path) -> None:
    """Remove everything in a folder but its mark."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != MARK:
            entry.unlink()


def discard(folder: Path) -> None:
    """Remove a replaced folder, unless another process already does, or uses its name."""
    with contextlib.suppress(BlockingIOError), locked_folder(folder):
        remove(folder)
