"""Folders that are written file by file and can be resumed after the process was killed.

`new_folder` begins again after a kill. Here the files that were finished stay, as long as the
metadata that decides what they hold is the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tutorlib.storage.atomic import check_target, recover, replace, staging_path
from tutorlib.storage.locks import locked_folder
from tutorlib.storage.owned import MARK, clear, mark, refuse_foreign, remove
from tutorlib.storage.remote_path import METADATA_FILE

WRITING_FOLDER = "_writing"


@contextlib.contextmanager
def resumable_folder(
    target: str | os.PathLike[str], metadata: Mapping[str, Any] | None
) -> Iterator[Path]:
    """Give a folder, which becomes `target` when the block ends without an error.

    If the process is killed or interrupted, or an error ends the block, the folder stays as
    `{target}.partial`. The next call with equal metadata gives it back with the files that were
    finished by `new_file_in`; a call with other metadata gives an empty one. After an error the
    folder goes if a later call could not use it: without metadata, or without a finished file.

    Args:
        target: path of the folder; one that this library made is replaced. Missing parents are
            made.
        metadata: everything that decides what the files hold, as JSON values; None to begin with
            an empty folder always.

    Raises:
        FileExistsError: if `target`, or its name with `.partial` appended, holds files and was not
            made by this library.
        BlockingIOError: if another process is writing the same target.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "squares"
        >>> with resumable_folder(target, {"up to": 3}) as folder:
        ...     with new_file_in(folder, "squares.txt") as path:
        ...         _ = path.write_text("0 1 4")
        >>> (target / "squares.txt").read_text()
        '0 1 4'
    """
    target = Path(target)
    staging = staging_path(target)
    check_target(target)
    check_target(staging)
    with locked_folder(staging):
        refuse_foreign(staging)
        mark(staging)
        recover(target)
        _clear_unless_equal(staging, metadata)
        try:
            yield staging
        except Exception as error:
            shutil.rmtree(staging / WRITING_FOLDER, ignore_errors=True)
            if metadata is None or not _has_finished_files(staging):
                remove(staging)
                raise
            error.add_note(
                f"The finished files are kept in {staging}. Running the same call again resumes "
                f"with the next one and makes {target} of it; or delete the folder."
            )
            raise
        shutil.rmtree(staging / WRITING_FOLDER, ignore_errors=True)
        (staging / METADATA_FILE).unlink()
        replace(target, staging)


@contextlib.contextmanager
def new_file_in(folder: Path, name: str) -> Iterator[Path]:
    """Give a path to write a file to, which becomes `folder/name` when the block ends.

    The file is on the disk before it is renamed. Several processes may write the same file, as the
    workers of a cluster can; the last one wins.

    Args:
        folder: what `resumable_folder` gave.
        name: path of the file in the folder, such as "train/part_00000.parquet".
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
        path.unlink(missing_ok=True)


def _has_finished_files(staging: Path) -> bool:
    files = (path.name for path in staging.rglob("*") if path.is_file())
    return any(name not in (MARK, METADATA_FILE) for name in files)


def _clear_unless_equal(staging: Path, metadata: Mapping[str, Any] | None) -> None:
    """Clear the folder unless its files were written under the same metadata."""
    known = staging / METADATA_FILE
    wanted = None if metadata is None else json.loads(json.dumps(metadata))
    try:
        equal = wanted is not None and json.loads(known.read_text(encoding="utf-8")) == wanted
    except (FileNotFoundError, ValueError):
        equal = False
    if not equal:
        known.unlink(missing_ok=True)  # first, so that a kill meanwhile cannot leave a mixture
        clear(staging)
        with new_file_in(staging, METADATA_FILE) as path:
            path.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
    shutil.rmtree(staging / WRITING_FOLDER, ignore_errors=True)
