"""Outputs that are whole or absent, and made once for each settings.

`new_output` makes a whole folder, `new_parts` some entries of a folder that holds other things too.
`_settings.json` in the folder says with which settings it was made. A run that is killed leaves
nothing that looks finished; the next one removes the leftover.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tutorlib.storage import new_folder, refuse_overlap, remove

PARTS_FOLDER = "_parts"  # holds the parts of `new_parts` until they get their names
SETTINGS_FILE = "_settings.json"  # readers of data folders skip names that start with "_"


class DataPrepError(Exception):
    """A failure that the user can do something about; the message is one line and says what."""


@dataclasses.dataclass
class Staging:
    """A folder that is being written.

    Args:
        path: folder to write in; it becomes the output at the end.
        metadata: measured values, as JSON values, that `_settings.json` gets besides the settings.
    """

    path: Path
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)


def read_settings(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return {"settings": {...}, "metadata": {...}} of a finished folder, else None.

    Raises:
        DataPrepError: if `_settings.json` exists but was not written by data_prep.
    """
    path = Path(folder) / SETTINGS_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise DataPrepError(f"{path} is not JSON ({error}). Move {folder} away.") from error
    if not isinstance(content, dict) or not {"settings", "metadata"} <= content.keys():
        raise DataPrepError(f"{path} was not written by data_prep. Move {folder} away.")
    return content


def finished_metadata(
    folder: str | os.PathLike[str], settings: Mapping[str, Any], *, overwrite: bool = False
) -> dict[str, Any] | None:
    """Return the metadata of a folder that was finished with the same settings, and print so.

    Args:
        folder: output folder.
        settings: everything that decides what the output holds, as JSON values.
        overwrite: whether to make a finished folder again: the answer is then None.

    Returns:
        The metadata; None if the folder has to be made.

    Raises:
        DataPrepError: if the folder was finished with other settings; the message names them.
    """
    have, want = read_settings(folder), json.loads(json.dumps(settings, default=str))
    if have is None or overwrite:
        return None
    if have["settings"] == want:
        print(f"{folder} exists with these settings and is left alone", flush=True)
        return have["metadata"]
    differences = [
        f"{key} was {have['settings'].get(key)!r}, is now {want.get(key)!r}"
        for key in sorted(want.keys() | have["settings"].keys())
        if have["settings"].get(key) != want.get(key)
    ]
    raise DataPrepError(
        f"{folder} was made with other settings ({'; '.join(differences)[:600]}). "
        "Pass --overwrite to replace it, or choose another --output."
    )


@contextlib.contextmanager
def new_output(
    folder: str | os.PathLike[str], settings: Mapping[str, Any], *, inputs: Sequence[Path] = ()
) -> Iterator[Staging]:
    """Give a staging folder, which becomes `folder` when the block ends without an error.

    A finished folder is replaced, so call `finished_metadata` first.

    Args:
        folder: output folder.
        settings: as for `finished_metadata`.
        inputs: what is read meanwhile, which must not lie in the output, nor contain it.

    Raises:
        DataPrepError: if `folder` holds files and was not made by data_prep, or another process is
            writing it.
        ValueError: if the output and an input overlap.
    """
    refuse_overlap(folder, inputs)
    with _one_line_errors(), new_folder(folder) as path:
        staging = Staging(path)
        yield staging
        _write_settings(path, settings, staging)


@contextlib.contextmanager
def new_parts(
    folder: str | os.PathLike[str],
    names: Sequence[str],
    settings: Mapping[str, Any],
    *,
    inputs: Sequence[Path] = (),
) -> Iterator[Staging]:
    """Give a staging folder whose folders `names` become `folder/name` when the block ends.

    Each part is whole or absent. `_settings.json` is removed before the first part is replaced and
    written after the last, so a kill in between leaves an output that is not finished. Other
    entries of `folder` stay as they are.

    Raises:
        DataPrepError: if one of the parts exists and data_prep did not make it, or another process
            is writing them.
        ValueError: if a part and an input overlap.
    """
    target = Path(folder)
    for name in names:
        refuse_overlap(target / name, inputs)
    with _one_line_errors(), contextlib.ExitStack() as publishing:
        parts = {name: publishing.enter_context(new_folder(target / name)) for name in names}
        with new_folder(target / PARTS_FOLDER) as path:
            staging = Staging(path)
            yield staging
            for name, part in parts.items():
                move_entries(path / name, part)
        remove(target / PARTS_FOLDER)
        (target / SETTINGS_FILE).unlink(missing_ok=True)
    _write_settings(target, settings, staging)


def move_entries(source: Path, target: Path) -> None:
    """Move what a folder holds into another one, but for hidden files, such as tutorlib's mark."""
    for entry in source.iterdir():
        if not entry.name.startswith("."):
            entry.rename(target / entry.name)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (BlockingIOError, FileExistsError) as error:
        raise DataPrepError(str(error)) from error


def _write_settings(folder: Path, settings: Mapping[str, Any], staging: Staging) -> None:
    content = {"settings": settings, "metadata": staging.metadata}
    text = json.dumps(content, indent=1, default=str) + "\n"
    partial = folder / f"{SETTINGS_FILE}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(folder / SETTINGS_FILE)


def fingerprint(paths: Sequence[Path]) -> dict[str, list[int]]:
    """Return {file name: [bytes, modification time in ns]} of input files."""
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in paths}


def check_space(folder: Path, needed: int, name: str) -> None:
    """Raise DataPrepError unless the disk of a folder has so many bytes free for a file."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataPrepError(
            f"{name}: {needed:,} bytes are needed, but {folder} has {free:,} bytes free. Free some "
            "space or choose another --output."
        )
