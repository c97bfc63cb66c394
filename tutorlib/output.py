"""Outputs that are whole or absent, and checkpoints whose hashes are verified.

An output is written in a temporary folder beside it, whose name begins with "_", so that readers of
data skip it, and ends with `.partial`. It is renamed at the end: an error or a kill leaves the old
output, or none. A kill also leaves the temporary folder, which can be deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tutorlib.filesystems import URL, shown

MANIFEST_FILE = "manifest.json"
CHECKPOINT = re.compile(r"(\d+)-epoch-(\d+)-batch-(\d+)")


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


# ---- verified folders and checkpoints ------------------------------------------------------------


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write `MANIFEST_FILE`: JSON values, and the SHA-256 of all other files in the folder.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "weights").write_bytes(b"123")
        >>> write_manifest(folder, {"epoch": 2})
        >>> read_manifest(folder)
        {'epoch': 2}
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    files = {name: _sha256(folder / name) for name in names if name != MANIFEST_FILE}
    text = json.dumps({"content": content, "files": files}, indent=1, sort_keys=True)
    line = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST_FILE).write_text(f"{line}\n{text}\n", encoding="utf-8")


def read_manifest(folder: Path, *, verify: bool = True) -> dict[str, Any]:
    """Return the JSON values of a manifest; nothing is parsed before its hash is verified.

    Args:
        folder: what `write_manifest` was given.
        verify: whether to verify the other files too.

    Raises:
        FileNotFoundError: if there is no manifest.
        ValueError: if a file was changed or is missing; it names the file.
    """
    path = folder / MANIFEST_FILE
    line, _, text = path.read_bytes().partition(b"\n")
    changed = [path] if hashlib.sha256(text.rstrip(b"\n")).hexdigest().encode() != line else []
    manifest = {} if changed else json.loads(text)
    if verify and not changed:
        files = {folder / name: value for name, value in manifest["files"].items()}
        changed = [file for file, value in files.items() if _sha256(file) != value]
    if changed:
        was = "was changed after it was saved" if changed[0].is_file() else "is missing"
        raise ValueError(f"{changed[0]} {was}: its checksum differs. Save it again.")
    return manifest["content"]


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Checkpoint(NamedTuple):
    """A whole checkpoint: its number, its folder, and the JSON values saved with it."""

    number: int
    folder: Path
    state: dict[str, Any]


def find_checkpoints(path: str | os.PathLike[str]) -> list[Checkpoint]:
    """Return the whole checkpoints in a folder, the newest last; everything else is ignored.

    Their states are verified; `read_manifest(folder)` verifies the other files.

    Args:
        path: folder that holds the checkpoints; it may be missing.

    Raises:
        ValueError: if the path is a URL.
    """
    found, parent = [], local_path(path)
    for folder in parent.iterdir() if parent.is_dir() else ():
        if name := CHECKPOINT.fullmatch(folder.name):
            with contextlib.suppress(OSError, ValueError):
                state = read_manifest(folder, verify=False)
                found.append(Checkpoint(int(name[1]), folder, state))
    return sorted(found, key=lambda checkpoint: checkpoint.number)


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

    Example:
        >>> path = tempfile.mkdtemp()
        >>> with new_checkpoint(path, 2, 40, {"version": 1}) as folder:
        ...     _ = (folder / "weights").write_bytes(b"123")
        >>> [newest] = find_checkpoints(path)
        >>> newest.folder.name, newest.state
        ('000001-epoch-2-batch-40', {'version': 1})
    """
    path = local_path(path)
    path.mkdir(parents=True, exist_ok=True)
    numbers = [int(name[1]) for name in map(CHECKPOINT.fullmatch, os.listdir(path)) if name]
    number = max(numbers, default=0) + 1
    with new_folder(path / f"{number:06d}-epoch-{epoch}-batch-{batch}") as folder:
        yield folder
        write_manifest(folder, state)
        for file in [*folder.iterdir(), folder]:
            _flush(file)
    _flush(path)


def remove_old(path: str | os.PathLike[str], keep: int) -> None:
    """Remove all checkpoints except the newest `keep`, and what killed processes left.

    A checkpoint is renamed before its files are deleted, so a partial one is never loaded.

    Args:
        path: folder that holds the checkpoints.
        keep: checkpoints to keep, at least 1.
    """
    path = local_path(path)
    for checkpoint in find_checkpoints(path)[:-keep]:
        name = f"_{checkpoint.folder.name}.partial"
        checkpoint.folder.rename(checkpoint.folder.with_name(name))
    for entry in path.glob("_*-epoch-*-batch-*.partial"):
        shutil.rmtree(entry)
