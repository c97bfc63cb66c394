"""Outputs that are whole or absent, checkpoints whose hashes are verified, and progress bars.

An output is written in a folder of its name with the ending `.partial` and renamed at the end: an
error or a kill leaves the old one, or none. A folder that was made here holds a file `MARK`; no
other folder is ever replaced or removed. What goes to an object store is made in TMPDIR and copied
at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pyarrow import fs

from tutorlib.filesystems import (
    UNFINISHED_FILE,
    URL,
    find_filesystem,
    refuse_unfinished,
    shown,
    store_errors,
)

MARK = ".tutorlib"  # readers of data folders skip names that start with "."
FOREIGN = (
    f"{{}} was not made by tutorlib (it has no file {MARK}), so it is neither replaced nor "
    "removed. Move it away, or choose another output."
)
MANIFEST_FILE = "manifest.json"
TEMPORARY = "tutorlib_remote_"  # how the names of temporary folders begin
COPIES, COPY_BYTES = 8, 2**23  # at a time, each
CHECKPOINT = re.compile(r"(\d+)-epoch-(\d+)-batch-(\d+)")
FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
# What flock says where a filesystem has no locks; NFS wants a file that is open for writing.
NO_LOCKS = errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF
LEFT_OVER = re.compile(CHECKPOINT.pattern + r"\.(partial|replaced|removed)")


# ---- outputs on this machine ---------------------------------------------------------------------


def local_path(target: str | os.PathLike[str]) -> Path:
    """Return the path of an output that is written on this machine.

    Raises:
        ValueError: for a URL.
    """
    if URL.match(os.fspath(target)):
        raise ValueError(
            f"{shown(os.fspath(target))} is a URL, but this output is written on this machine. "
            "Write it to a local folder and copy that, for example with `aws s3 cp --recursive`."
        )
    return Path(target).expanduser()


@contextlib.contextmanager
def new_file(target: str | os.PathLike[str] | RemotePath) -> Iterator[Path]:
    """Give a path to write a file to, which becomes `target` when the block ends without an error.

    Args:
        target: the file, by `output_path` if it may be a URL; one that exists is replaced. Missing
            folders are made.

    Raises:
        IsADirectoryError: if `target` is a folder.
        FileExistsError: if its name with `.partial` appended exists and was not made here.
        BlockingIOError: if another process is writing the same target.

    Example:
        >>> target = Path(tempfile.mkdtemp()) / "numbers.txt"
        >>> with new_file(target) as path:
        ...     _ = path.write_text("1 2 3")
        >>> target.read_text(), path.exists()
        ('1 2 3', False)
    """
    if isinstance(target, RemotePath):
        with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
            yield Path(folder, target.name)
            target.copy_from(Path(folder, target.name))
        return
    target = local_path(target)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder. Move it away, or choose another file.")
    with _staging(target) as folder:
        yield folder / target.name
        _flush(folder / target.name)  # a power cut must not leave the name of half a file
        (folder / target.name).replace(target)


@contextlib.contextmanager
def new_folder(
    target: str | os.PathLike[str] | RemotePath, run: Mapping[str, Any] | None = None
) -> Iterator[Path]:
    """Give an empty folder, which becomes `target` when the block ends without an error.

    A kill leaves the old folder, the new one or none: where it struck between two renamings, the
    next call puts the old one back.

    Args:
        target: the folder, by `output_path` if it may be a URL; one that was made here is replaced.
        run: JSON values that decide what the files will hold. If a kill, an interrupt or an error
            ends the block, the next call with equal values gives the folder with the files that are
            in it; a call with other values removes them. None begins with an empty folder, as do
            all outputs to URLs.

    Raises:
        FileExistsError: if `target`, or its name with `.partial` appended, holds files and was not
            made here.
        BlockingIOError: if another process is writing the same target.

    Example:
        >>> target = Path(tempfile.mkdtemp()) / "numbers"
        >>> with new_folder(target) as folder:
        ...     _ = (folder / "odd.txt").write_text("1 3 5")
        >>> (target / "odd.txt").read_text(), folder.exists()
        ('1 3 5', False)
    """
    if isinstance(target, RemotePath):
        with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
            yield Path(folder)
            mark(Path(folder))
            target.replace_by(Path(folder))
        return
    target = local_path(target)
    old = target.with_name(target.name + ".replaced")
    # The name is the identity: a worker that still writes for a killed run writes elsewhere.
    name = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]
    with _staging(target, name if run else None) as staging:
        _check_folders(target, old)
        if target.exists():
            remove(old)
        elif (old / MARK).exists():  # a kill struck between the two renamings below
            old.rename(target)
        building = staging / name
        building.mkdir(exist_ok=True)
        mark(building)
        yield building
        _check_folders(target, old)
        if os.path.lexists(target):
            target.rename(old)
        building.rename(target)
        remove(old)


@contextlib.contextmanager
def _staging(target: Path, kept: str | None = None) -> Iterator[Path]:
    """Give the folder `{target}.partial`, empty but for an entry to keep; removed after the block.

    It stays as long as the entry holds files. A lock, which ends with the process, however it ends,
    keeps other processes out.
    """
    folder = target.with_name(target.name + ".partial")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, f"another process is writing {folder}. Wait until it is done, or choose "
                        "another output."):  # fmt: skip
        _check_folders(folder)
        mark(folder)
        _clear(folder, kept)
        try:
            with _named_if_full(target):
                yield folder
        finally:
            found = (folder / kept).rglob("*") if kept else ()
            if not any(path.is_file() and path.name != MARK for path in found):
                remove(folder)
            elif stopped := sys.exception():
                stopped.add_note(
                    f"What is finished stays in {folder}: the same call goes on with the rest. "
                    "Or delete that folder."
                )


@contextlib.contextmanager
def locked(folder: Path, busy: str) -> Iterator[None]:
    """Keep other processes, and other blocks of this one, from entering with the same folder.

    Args:
        folder: an existing folder. Its lock ends with the process, however that ends.
        busy: what to say if another has it.

    Raises:
        BlockingIOError: if another has it.
    """
    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(handle), folder.stat()):
                raise BlockingIOError("it was removed by the process that had the lock")
        except (BlockingIOError, FileNotFoundError) as error:
            raise BlockingIOError(busy) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            warnings.warn(
                f"the filesystem of {folder} refuses locks ({error.strerror}), so nothing keeps "
                "another process from writing the same output at the same time. Run one at a time.",
                stacklevel=6,
            )
        yield


@contextlib.contextmanager
def _named_if_full(target: Path | RemotePath) -> Iterator[None]:
    """Name the output in errors of a full disk, which otherwise name no path."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = str(target)
            error.add_note("Make room or choose another output, and run the same call again.")
        raise


def _check_folders(*paths: Path) -> None:
    """Raise FileExistsError unless each path may be made or replaced as a folder."""
    for path in paths:
        if path.exists() and not path.is_dir():
            raise FileExistsError(f"{path} is a file. Move it away, or choose another output.")
        refuse_foreign(path)


# ---- which folders may be removed ----------------------------------------------------------------


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
        raise FileExistsError(FOREIGN.format(path))


def refuse_existing(target: str | os.PathLike[str] | RemotePath, overwrite: bool) -> None:
    """Raise FileExistsError if `target` exists and must not be replaced.

    Args:
        target: path of a file or folder to write.
        overwrite: whether to replace a file, an empty folder, or a folder that was made here.
    """
    if isinstance(target, RemotePath):
        names = target.sizes()
        if UNFINISHED_FILE in names:  # of a run that was stopped
            return
        exists, foreign = bool(names) or target.is_file(), bool(names) and MARK not in names
    else:
        path = Path(target).expanduser()
        exists, foreign = path.exists(), path.is_dir() and not is_ours(path)
    if exists and not overwrite:
        raise FileExistsError(f"{target} exists already. Pass overwrite=True to replace it.")
    if foreign:
        raise FileExistsError(FOREIGN.format(target))


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
    for path in (os.path.expanduser(path) for path in inputs):
        url = "://" in path and not path.startswith("file://")
        if isinstance(target, RemotePath) and url:
            mine = target.inner.strip("/") + "/"
            other = shown(path).partition("?")[0].rpartition("://")[2].strip("/") + "/"
        elif not isinstance(target, RemotePath) and os.path.exists(path):
            mine, other = (
                os.path.realpath(os.path.expanduser(place)) + os.sep for place in (target, path)
            )
        else:
            continue
        if other.startswith(mine) or mine.startswith(other):
            raise ValueError(
                f"the output {target} overlaps the input {shown(path)}: writing would replace or "
                "change what is read. Choose an output outside the input."
            )


def remove(folder: Path) -> None:
    """Remove a folder that was made here, the mark last; a link is removed by itself.

    Raises:
        FileExistsError: if the folder has content and no mark.
    """
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        refuse_foreign(folder)
        _clear(folder)
        (folder / MARK).unlink(missing_ok=True)
        folder.rmdir()


def _clear(folder: Path, kept: str | None = None) -> None:
    """Remove everything in a folder but its mark and the entry to keep."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink() and entry.name != kept:
            shutil.rmtree(entry)
        elif entry.name not in (MARK, kept):
            entry.unlink()


def _flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- outputs in an object store ------------------------------------------------------------------


def output_path(path: Any, filesystem: Any = None) -> Path | RemotePath:
    """Return where an output goes: a `Path` on this machine, or a `RemotePath`.

    Args:
        path: path or URL such as `s3://bucket/train`.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds it; None takes it from a URL.

    Example:
        >>> output_path("data/train").name
        'train'
    """
    where, inner, prefix = find_filesystem(os.fspath(path), filesystem)
    if isinstance(where, fs.LocalFileSystem):
        return local_path(inner)
    inner = inner.rstrip("/")
    return RemotePath(where, inner, prefix + inner)


@dataclasses.dataclass(frozen=True)
class RemotePath:
    """A file or folder of another filesystem.

    An object appears when it is complete. A folder is not one object: while it is written it holds
    `UNFINISHED_FILE`, for which `refuse_unfinished` refuses it, and which goes last.

    Args:
        filesystem: the filesystem.
        inner: path within it.
        url: what messages call it.
    """

    filesystem: fs.FileSystem
    inner: str
    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.filesystem, f"{self.inner}/{name}", f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """Last part of the path."""
        return PurePosixPath(self.inner).name

    @property
    def suffix(self) -> str:
        """Ending of the name, such as ".parquet"."""
        return PurePosixPath(self.inner).suffix

    def is_file(self) -> bool:
        """Return whether it is one object."""
        with store_errors(self.url):
            return self.filesystem.get_file_info(self.inner).type == fs.FileType.File

    def sizes(self) -> dict[str, int]:
        """Return {name within the folder: bytes} of the objects in a folder, {} without any."""
        selector = fs.FileSelector(self.inner, recursive=True, allow_not_found=True)
        infos: list[fs.FileInfo] = []
        with store_errors(self.url), contextlib.suppress(NotADirectoryError):
            infos = self.filesystem.get_file_info(selector)
        files = [info for info in infos if info.type == fs.FileType.File]
        return {info.path.removeprefix(self.inner).strip("/"): info.size for info in files}

    def read_bytes(self) -> bytes:
        """Return the content of an object."""
        with store_errors(self.url), self.filesystem.open_input_stream(self.inner) as file:
            return file.read()

    def copy_from(self, file: Path) -> None:
        """Copy a file of this machine here; a copy that was stopped half way is removed.

        Raises:
            OSError: if a request failed, or fewer bytes arrived.
        """
        # Not `pyarrow.fs.copy_files`, which ignores what fails when it closes the object.
        size, arrived = file.stat().st_size, -1
        try:
            with store_errors(self.url):
                out = self.filesystem.open_output_stream(self.inner)
                with open(file, "rb") as source, out:
                    shutil.copyfileobj(source, out, COPY_BYTES)
                arrived = self.filesystem.get_file_info(self.inner).size
        finally:
            if arrived != size:
                with contextlib.suppress(OSError):
                    self.remove()
        if arrived != size:
            raise OSError(f"{self}: {arrived} of {size} bytes arrived. Run the same call again.")

    def remove(self) -> None:
        """Remove an object."""
        with store_errors(self.url):
            self.filesystem.delete_file(self.inner)

    def replace_by(self, folder: Path) -> None:
        """Replace all that is in this folder by the files of a folder of this machine.

        Raises:
            BlockingIOError: if another process wrote here at the same time.
            OSError: if a request failed, or a file did not arrive whole.
        """
        files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
        unfinished = self / UNFINISHED_FILE
        with store_errors(unfinished.url):
            self.filesystem.open_output_stream(unfinished.inner).close()
        gone = self.sizes().keys() - files.keys() - {UNFINISHED_FILE}
        with ThreadPoolExecutor(COPIES, thread_name_prefix="tutorlib-copy") as pool:
            list(pool.map(lambda name: (self / name).remove(), sorted(gone)))
            list(pool.map(lambda name: (self / name).copy_from(files[name]), sorted(files)))
        sizes = {name: path.stat().st_size for name, path in files.items()}
        if self.sizes() != {**sizes, UNFINISHED_FILE: 0}:
            self.filesystem.open_output_stream(unfinished.inner).close()
            raise BlockingIOError(
                f"another process wrote to {self} at the same time, so readers refuse what is "
                "there. Run one of the calls again, alone."
            )
        unfinished.remove()


@contextlib.contextmanager
def local_copy(path: Any, filesystem: Any = None) -> Iterator[Path]:
    """Give a folder with the files of a folder, without those of folders in it.

    Args:
        path: a folder of this machine, which is given as it is, or a URL, which is copied.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds it; None takes it from a URL.

    Raises:
        FileNotFoundError: if a URL has no files.
        ValueError: if it is being written.
    """
    source = output_path(path, filesystem)
    if isinstance(source, Path):
        yield source
        return
    names = source.sizes()
    refuse_unfinished(source.url, names)
    if not names:
        raise FileNotFoundError(f"there is nothing at {source}")
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
        for name in names:
            if "/" not in name and not name.startswith("."):
                Path(folder, name).write_bytes((source / name).read_bytes())
        yield Path(folder)


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
    files = {name: _sha256(folder / name) for name in names if name not in (MARK, MANIFEST_FILE)}
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
        BlockingIOError: if another process is writing a checkpoint to the same folder.

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
    with _only_training(path):
        numbers = [int(name[1]) for name in map(CHECKPOINT.fullmatch, os.listdir(path)) if name]
        number = max(numbers, default=0) + 1
        with new_folder(path / f"{number:06d}-epoch-{epoch}-batch-{batch}") as folder:
            yield folder
            write_manifest(folder, state)
            for file in [*folder.iterdir(), folder]:
                _flush(file)
        _flush(path)


def _only_training(path: Path) -> contextlib.AbstractContextManager[None]:
    return locked(
        path,
        f"another training is writing its checkpoints to {path}. Give each training a folder of "
        "its own.",
    )


def remove_old(path: str | os.PathLike[str], keep: int) -> None:
    """Remove all checkpoints except the newest `keep`, and what killed processes left.

    A checkpoint is renamed before its files are deleted, so a partial one is never loaded.

    Args:
        path: folder that holds the checkpoints.
        keep: checkpoints to keep, at least 1.

    Raises:
        BlockingIOError: if another process is writing a checkpoint to the same folder.
    """
    path = local_path(path)
    with _only_training(path):
        for checkpoint in find_checkpoints(path)[:-keep]:
            if is_ours(checkpoint.folder):
                name = checkpoint.folder.name + ".removed"
                checkpoint.folder.rename(checkpoint.folder.with_name(name))
        for entry in path.iterdir():
            if LEFT_OVER.fullmatch(entry.name) and is_ours(entry):
                remove(entry)
