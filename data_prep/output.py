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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tutorlib.storage import (
    MARK,
    is_ours,
    locked_folder,
    mark,
    new_folder,
    refuse_foreign,
    remove,
    scratch_folder,
)

PARTS_FOLDER = "parts.partial"
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
    """Return {"settings": {...}, "metadata": {...}, "made": [...]} of a finished folder, else None.

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
    if not isinstance(content, dict) or not {"settings", "metadata", "made"} <= content.keys():
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
        DataPrepError: if it was made with other settings and `overwrite` is False.

    Example:
        >>> import tempfile
        >>> target = tempfile.mkdtemp() + "/squares"
        >>> with new_output(target, {"n": 3}) as staging:
        ...     _ = (staging.path / "squares.txt").write_text("0 1 4")
        ...     staging.metadata["bytes"] = 5
        >>> finished_metadata(target, {"n": 3})
        /.../squares: already made with these settings; left alone.
        {'bytes': 5}
    """
    _finish_publishing(Path(folder))
    have = read_settings(folder)
    if have is None or overwrite:
        return None
    want = _as_json(settings)
    if have["settings"] == want:
        print(f"{folder}: already made with these settings; left alone.")
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
def new_output(folder: str | os.PathLike[str], settings: Mapping[str, Any]) -> Iterator[Staging]:
    """Give a staging folder, which becomes `folder` when the block ends without an error.

    A finished folder is replaced, so call `finished_metadata` first.

    Raises:
        DataPrepError: if `folder` holds files and was not made by data_prep, or another process is
            writing it.
    """
    with _one_line_errors(), new_folder(folder) as path:
        staging = Staging(path)
        yield staging
        made = sorted(entry.name for entry in path.iterdir() if entry.name != MARK)
        _write_settings(staging, settings, made)


@contextlib.contextmanager
def new_parts(
    folder: str | os.PathLike[str], names: Sequence[str], settings: Mapping[str, Any]
) -> Iterator[Staging]:
    """Give a staging folder whose entries `names` become `folder/name` when the block ends.

    `_settings.json` is removed before the first entry is replaced and written after the last, so
    entries without it are not finished: after a kill the next run finishes them. Other entries of
    `folder` stay as they are.

    Raises:
        DataPrepError: if one of the entries exists and data_prep did not make it, or another
            process is writing them.
    """
    target = Path(folder)
    _finish_publishing(target)
    made = (read_settings(target) or {"made": ()})["made"]
    with _one_line_errors():
        for name in names:
            refuse_foreign(target / name)
            if (target / name).is_file() and name not in made:
                raise DataPrepError(
                    f"{target / name} exists and was not made by data_prep (no {SETTINGS_FILE} "
                    "says so). Move it away, or choose another --output."
                )
        with scratch_folder(target / PARTS_FOLDER) as path:
            staging = Staging(path)
            yield staging
            for name in names:
                if (path / name).is_dir():
                    mark(path / name)
            _write_settings(staging, settings, sorted(names))
            _publish(path, target)


def _publish(staging: Path, target: Path) -> None:
    """Move the finished parts to their names; calling it again after a kill does the rest."""
    made = (read_settings(staging) or {})["made"]
    (target / SETTINGS_FILE).unlink(missing_ok=True)
    for name in made:
        if (staging / name).exists():
            if (target / name).is_dir():
                remove(target / name)
            (staging / name).rename(target / name)
    (staging / SETTINGS_FILE).rename(target / SETTINGS_FILE)


def _finish_publishing(target: Path) -> None:
    """Finish what a killed run has made whole but not yet moved to its names."""
    staging = target / PARTS_FOLDER
    if is_ours(staging) and read_settings(staging) is not None:
        with _one_line_errors(), locked_folder(staging):
            _publish(staging, target)
            remove(staging)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (BlockingIOError, FileExistsError) as error:
        raise DataPrepError(str(error)) from error


def _write_settings(staging: Staging, settings: Mapping[str, Any], made: list[str]) -> None:
    content = {
        "settings": _as_json(settings),
        "metadata": _as_json(staging.metadata),
        "made": made,
    }
    text = json.dumps(content, indent=1) + "\n"
    (staging.path / SETTINGS_FILE).write_text(text, encoding="utf-8")


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(values))


def fingerprint(paths: Sequence[Path]) -> dict[str, list[int]]:
    """Return {file name: [bytes, modification time in ns]} of input files."""
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in paths}
