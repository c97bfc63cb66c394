"""Outputs that are whole or absent.

An output is written in a temporary folder beside it, whose name begins with "_", so that readers of
data skip it, and ends with `.partial`. It is renamed at the end: an error or a kill leaves the old
output, or none. A kill also leaves the temporary folder, which can be deleted.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tutorlib.filesystems import URL, shown

# ---- outputs -------------------------------------------------------------------------------------


def local_path(target: str | os.PathLike[str]) -> Path:
    """Return the path of an output, which is written on this machine.

    Raises:
        ValueError: for a URL.
    """
    if URL.match(os.fspath(target)):
        raise ValueError(
            f"{shown(os.fspath(target))} is a URL, but outputs are written on this machine. Write "
            "to a local folder and copy that, for example with `aws s3 cp --recursive`."
        )
    return Path(target).expanduser()


@contextlib.contextmanager
def new_file(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write a file to, which becomes `target` when the block ends without an error.

    Args:
        target: the file; one that exists is replaced. Missing folders are made.

    Raises:
        IsADirectoryError: if `target` is a folder.

    Example:
        >>> target = Path(tempfile.mkdtemp()) / "numbers.txt"
        >>> with new_file(target) as path:
        ...     _ = path.write_text("1 2 3")
        >>> target.read_text(), path.exists()
        ('1 2 3', False)
    """
    target = local_path(target)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder. Move it away, or choose another file.")
    with folder_beside(target) as staging:
        yield staging / target.name
        _flush(staging / target.name)  # a power cut must not leave the name of half a file
        (staging / target.name).replace(target)


@contextlib.contextmanager
def new_folder(target: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Give an empty folder, which becomes `target` when the block ends without an error.

    Args:
        target: the folder. Missing folders above it are made.
        overwrite: whether to replace `target` if it exists.

    Raises:
        FileExistsError: as `refuse_existing`.

    Example:
        >>> target = Path(tempfile.mkdtemp()) / "numbers"
        >>> with new_folder(target) as folder:
        ...     _ = (folder / "odd.txt").write_text("1 3 5")
        >>> (target / "odd.txt").read_text(), folder.exists()
        ('1 3 5', False)
    """
    target = local_path(target)
    refuse_existing(target, overwrite)
    with folder_beside(target) as staging:
        building = staging / target.name
        building.mkdir()
        yield building
        if overwrite:
            replace(target, building)
        else:
            building.rename(target)  # fails if another process made it meanwhile


def replace(target: Path, folder: Path) -> None:
    """Rename a folder to `target`; what was there is renamed to stand beside the folder."""
    if os.path.lexists(target):
        target.rename(folder.with_name(folder.name + ".replaced"))
    folder.rename(target)


@contextlib.contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """Give a folder beside `target`, on the same disk, which is removed after the block."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(".partial", f"_{target.name}.", target.parent) as folder:
        yield Path(folder)


def refuse_existing(target: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise FileExistsError if `target` exists and must not be replaced.

    Args:
        target: path of a file or folder to write. An empty folder counts as none.
        overwrite: whether to replace it, with all that it holds; not a folder that holds the
            working folder or the home folder.
    """
    path = local_path(target)
    is_folder = path.is_dir() and not path.is_symlink()
    if not os.path.lexists(path) or (is_folder and not any(path.iterdir())):
        return
    if not overwrite:
        raise FileExistsError(f"{target} exists already. Pass overwrite=True to replace it.")
    for place in (Path.cwd(), Path.home()):
        if is_folder and place.resolve().is_relative_to(path.resolve()):
            raise FileExistsError(
                f"{target} holds {place}, so it is not replaced. Choose another output."
            )


def refuse_overlap(
    target: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]
) -> None:
    """Raise ValueError if `target` is or contains an input, or is inside an input folder.

    Args:
        target: path of the output; an output replaces all that it contains.
        inputs: paths of the input files and folders; those that do not exist here are ignored.

    Example:
        >>> refuse_overlap("data/train", ["data/raw/day_0.parquet"])
    """
    output = os.path.realpath(os.path.expanduser(target)) + os.sep
    for path in map(os.path.expanduser, inputs):
        other = os.path.realpath(path) + os.sep
        if os.path.exists(path) and (other.startswith(output) or output.startswith(other)):
            raise ValueError(
                f"the output {target} overlaps the input {path}: writing would replace or change "
                "what is read. Choose an output outside the input."
            )


def _flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
