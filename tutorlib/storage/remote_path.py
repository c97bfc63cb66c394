"""RemotePath: a file or folder in an object store, with what an output needs of it."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from pyarrow import fs

from tutorlib.storage.filesystems import shown, store_errors

METADATA_FILE = "_building.json"  # in a folder that is being written
COPIES, COPY_BYTES = 8, 2**23  # at a time, each
FILES_PER_CHECK = 16  # copied between two looks whether another process writes, too
COPIED_BY_STORE = 5 * 2**30  # bytes at most of an object that S3 copies in one request


@dataclasses.dataclass(frozen=True)
class RemotePath:
    """A file or folder of another filesystem.

    An object appears when it is complete. A folder is not one object: while it is written it holds
    `METADATA_FILE`, for which `refuse_unfinished` refuses it, and which goes last.

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
        with store_errors(self.url, self.filesystem):
            return self.filesystem.get_file_info(self.inner).type == fs.FileType.File

    def sizes(self) -> dict[str, int]:
        """Return {name within the folder: bytes} of the objects in a folder, {} without any."""
        selector = fs.FileSelector(self.inner, recursive=True, allow_not_found=True)
        infos: list[fs.FileInfo] = []
        with store_errors(self.url, self.filesystem), contextlib.suppress(NotADirectoryError):
            infos = self.filesystem.get_file_info(selector)
        files = [info for info in infos if info.type == fs.FileType.File]
        return {info.path.removeprefix(self.inner).strip("/"): info.size for info in files}

    def read_text(self) -> str:
        """Return the content of an object."""
        with store_errors(self.url, self.filesystem):
            with self.filesystem.open_input_stream(self.inner) as file:
                return file.read().decode()

    def write_text(self, text: str) -> None:
        """Write an object."""
        with store_errors(self.url, self.filesystem):
            with self.filesystem.open_output_stream(self.inner) as file:
                file.write(text.encode())

    def copy_from(self, file: Path) -> None:
        """Copy a file of this machine here; what is stopped half way leaves a part of it.

        Raises:
            OSError: if a request failed, or fewer bytes arrived.
        """
        # Not `pyarrow.fs.copy_files`, which ignores what fails when it closes the object.
        with store_errors(self.url, self.filesystem):
            with open(file, "rb") as source, self.filesystem.open_output_stream(self.inner) as out:
                shutil.copyfileobj(source, out, COPY_BYTES)
            arrived, size = self.filesystem.get_file_info(self.inner).size, file.stat().st_size
        if arrived != size:
            raise OSError(f"{self}: {arrived} of {size} bytes arrived. Run the same call again.")

    def copy_to(self, file: Path) -> None:
        """Copy the object to a file of this machine."""
        with store_errors(self.url, self.filesystem):
            with self.filesystem.open_input_stream(self.inner) as source, open(file, "wb") as out:
                shutil.copyfileobj(source, out, COPY_BYTES)

    def remove(self) -> None:
        """Remove an object."""
        with store_errors(self.url, self.filesystem):
            self.filesystem.delete_file(self.inner)

    def replace_by_file(self, file: Path) -> None:
        """Replace an object by a file of this machine; the old one stays until the new is whole.

        More than 5 GB, or a file of HDFS, is written in place.

        Raises:
            OSError: if a request failed, or fewer bytes arrived.
        """
        if file.stat().st_size > COPIED_BY_STORE or self.filesystem.type_name == "hdfs":
            self.copy_from(file)
            return
        # Not in place: an object of pyarrow that is closed after an error holds what was sent.
        hidden = self.inner.removesuffix(self.name) + f".{self.name}.partial"
        partial = dataclasses.replace(self, inner=hidden)
        try:
            partial.copy_from(file)
            with store_errors(self.url, self.filesystem):
                self.filesystem.copy_file(partial.inner, self.inner)
        finally:
            with contextlib.suppress(OSError):
                partial.remove()

    def replace_by(self, folder: Path) -> None:
        """Replace all that is in this folder by the files of a folder of this machine.

        If several processes do this at the same time, readers refuse a mixture of their files.

        Raises:
            BlockingIOError: if another process wrote here at the same time.
            OSError: if a request failed, or a file did not arrive whole.
        """
        files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
        files.pop(METADATA_FILE, None)
        run = f'"being written by run {uuid.uuid4()}, or left when that was stopped"'
        (self / METADATA_FILE).write_text(run)
        gone = self.sizes().keys() - files.keys() - {METADATA_FILE}

        def copy(name: str) -> None:
            (self / name).copy_from(files[name])

        try:
            with ThreadPoolExecutor(COPIES, thread_name_prefix="tutorlib-copy") as pool:
                list(pool.map(lambda name: (self / name).remove(), sorted(gone)))
                for number, _ in enumerate(pool.map(copy, sorted(files))):
                    if number % FILES_PER_CHECK == 0:
                        self._refuse_other(run)
        except BaseException:
            with contextlib.suppress(OSError):
                self._refuse_other(run)
            raise
        there = self.sizes()
        there.pop(METADATA_FILE, None)
        self._refuse_other(run, there == {name: p.stat().st_size for name, p in files.items()})
        (self / METADATA_FILE).remove()

    def _refuse_other(self, run: str, as_written: bool = True) -> None:
        """Raise BlockingIOError unless `METADATA_FILE` and the content are those of this run."""
        try:
            found = (self / METADATA_FILE).read_text()
        except FileNotFoundError:
            found = ""
        if found != run or not as_written:
            (self / METADATA_FILE).write_text(run)  # so that readers and the other refuse it, too
            raise BlockingIOError(
                f"another process wrote to {self} at the same time, so readers refuse what is "
                "there. Run one of the calls again, alone."
            )

    def refuse_existing(self, overwrite: bool, mark: str) -> None:
        """Raise FileExistsError if something is here that must not be replaced.

        Args:
            overwrite: whether to replace a file, or a folder with the object `mark`.
            mark: name of that object.
        """
        names = self.sizes()
        if METADATA_FILE in names:  # of a run of the same call that was stopped
            return
        if (names or self.is_file()) and not overwrite:
            raise FileExistsError(f"{self} exists already. Pass overwrite=True to replace it.")
        if names and mark not in names:
            raise FileExistsError(
                f"{self} was not made by tutorlib (it has no object {mark}), so it is not "
                "replaced. Move it away, or choose another output."
            )

    def refuse_overlap(self, inputs: Iterable[str]) -> None:
        """Raise ValueError if this is or contains an input, or is inside an input folder.

        Args:
            inputs: URLs; other paths are of this machine, so they cannot overlap.
        """
        for path in map(shown, inputs):
            if "://" not in path or path.startswith("file://"):
                continue
            other = path.partition("?")[0].rpartition("://")[2].strip("/") + "/"
            mine = self.inner.strip("/") + "/"
            if other.startswith(mine) or mine.startswith(other):
                raise ValueError(
                    f"the output {self} overlaps the input {path}: writing would replace or change "
                    "what is read. Choose an output outside the input."
                )


def refuse_unfinished(folder: str, names: Iterable[str]) -> None:
    """Raise ValueError if the names in a folder tell that it is being written.

    Args:
        folder: what messages call it.
        names: paths of the files in it.
    """
    if any(PurePosixPath(name).name == METADATA_FILE for name in names):
        raise ValueError(
            f"{folder} is being written, or a run that wrote it was stopped: it holds "
            f"{METADATA_FILE}. Wait, run the call that writes it again, or delete the folder."
        )
