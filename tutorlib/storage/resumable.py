"""Folders that are built file by file, survive being killed, and are taken up again or begun anew.

Beside `written_whole`, whose work is lost with its process: here a finished file stays, as long as
the facts under which it was written are the same. Does not belong here: what is in the files.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tutorlib.storage.atomic import remove, replace

METADATA_FILE = "_building.json"
WRITING_FOLDER = "_writing"


@contextlib.contextmanager
def unfinished_folder(
    target: str | os.PathLike[str], metadata: Mapping[str, Any] | None
) -> Iterator[Path]:
    """Give a folder `{target}.partial`, which becomes `target` when the block ends well.

    If the process dies, or is interrupted, the folder stays. A later run with equal facts finds the
    files there that were finished, one with other facts an empty folder. An error removes it. One
    process at a time may build.

    Args:
        target: folder to be; one that is there is replaced.
        metadata: everything that decides what the files hold, as JSON values; None to begin anew.

    Raises:
        BlockingIOError: if another process is building the same folder.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "squares"
        >>> with unfinished_folder(target, {"up to": 3}) as folder:
        ...     with written_into(folder, "squares.txt") as path:
        ...         _ = path.write_text("0 1 4")
        >>> (target / "squares.txt").read_text()
        '0 1 4'
    """
    target = Path(target)
    building = target.with_name(target.name + ".partial")
    with _locked(building):
        _keep_only_if_equal(building, metadata)
        try:
            yield building
        except Exception:
            remove(building)
            raise
        remove(building / WRITING_FOLDER)
        (building / METADATA_FILE).unlink()
        replace(target, building)


@contextlib.contextmanager
def written_into(folder: Path, name: str) -> Iterator[Path]:
    """Give a free path; what is there when the block ends becomes `folder/name`, on disk, at once.

    Safe if several processes write the same file, as a cluster may make them.
    """
    path = folder / WRITING_FOLDER / f"{uuid.uuid4().hex}{Path(name).suffix}"
    path.parent.mkdir(exist_ok=True)
    try:
        yield path
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        (folder / name).parent.mkdir(exist_ok=True)
        path.replace(folder / name)
    finally:
        remove(path)


def _keep_only_if_equal(building: Path, metadata: Mapping[str, Any] | None) -> None:
    """Empty the folder unless what is in it was written under the same facts."""
    known = building / METADATA_FILE
    wanted = None if metadata is None else json.loads(json.dumps(metadata))
    try:
        equal = wanted is not None and json.loads(known.read_text(encoding="utf-8")) == wanted
    except (FileNotFoundError, ValueError):
        equal = False
    if not equal:
        known.unlink(missing_ok=True)  # first: without it, nothing of the rest is believed
        for entry in building.iterdir():
            remove(entry)
        with written_into(building, METADATA_FILE) as path:
            path.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
    remove(building / WRITING_FOLDER)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make a folder that no other process builds in; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    handle = _lock_folder(folder, fcntl)
    try:
        yield
    finally:
        os.close(handle)


def _lock_folder(folder: Path, fcntl: Any) -> int:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # renamed meanwhile by whoever had it
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(handle), folder.stat()):
                    return handle
            except BlockingIOError as error:
                os.close(handle)
                raise BlockingIOError(
                    f"another process is writing {folder}. Wait for it, then try again."
                ) from error
            except FileNotFoundError:
                os.close(handle)
                raise
            os.close(handle)
