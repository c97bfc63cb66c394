"""Outputs that are there whole or not at all, and are made once: staging, settings file, lock.

`new_folder` makes a whole folder, `new_parts` some entries of a folder that holds other things too.
Both build in a staging folder (`NAME.part`) beside the target and rename at the end, so that a run
that is killed leaves nothing that looks finished; the next run clears the leftover. What was made
with which settings stands in `_settings.json` in the finished folder.
Does not belong here: anything about a particular data set.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tutorlib.storage.atomic import remove, replace

SETTINGS_FILE = "_settings.json"  # readers of data folders pass over names with "_"


class DataPrepError(Exception):
    """A failure that the user can do something about; the message is one line and says what."""


@dataclasses.dataclass
class Staging:
    """A folder under construction.

    Args:
        path: write here; it becomes the target at the end.
        facts: measured values that are kept in `_settings.json` beside the settings.
    """

    path: Path
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


def read_settings(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return {"settings": ..., "facts": ..., "made": [...]} of a finished folder, else None.

    Raises:
        DataPrepError: if the file is there and is not what this module writes.
    """
    path = Path(folder) / SETTINGS_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise DataPrepError(f"{path} is not JSON ({error}). Move {folder} away.") from error
    if not isinstance(content, dict) or not {"settings", "facts", "made"} <= content.keys():
        raise DataPrepError(f"{path} was not written by data_prep. Move {folder} away.")
    return content


def is_finished(
    folder: str | os.PathLike[str], settings: Mapping[str, Any], *, overwrite: bool = False
) -> bool:
    """Return whether `folder` was finished with the same settings, and say so.

    Args:
        folder: target folder.
        settings: everything that decides what the output holds; JSON values.
        overwrite: True answers False for any finished folder, so that it is made again.

    Raises:
        DataPrepError: if it was made with other settings and `overwrite` is False.

    Example:
        >>> import tempfile
        >>> target = tempfile.mkdtemp() + "/squares"
        >>> with new_folder(target, {"n": 3}) as staging:
        ...     _ = (staging.path / "squares.txt").write_text("0 1 4")
        >>> read_settings(target)["settings"], is_finished(target, {"n": 3}, overwrite=True)
        ({'n': 3}, False)
    """
    have = read_settings(folder)
    if have is None or overwrite:
        return False
    want = _as_json(settings)
    if have["settings"] == want:
        print(f"{folder}: already made with these settings; left alone.")
        return True
    differences = [
        f"{key} is {have['settings'].get(key)!r} there, {want.get(key)!r} asked for"
        for key in sorted(want.keys() | have["settings"].keys())
        if have["settings"].get(key) != want.get(key)
    ]
    raise DataPrepError(
        f"{folder} was made with other settings ({'; '.join(differences)[:600]}). "
        "Pass --overwrite to replace it, or choose another --output."
    )


def finished_facts(
    folder: str | os.PathLike[str], settings: Mapping[str, Any], *, overwrite: bool = False
) -> dict[str, Any] | None:
    """Return the facts of `folder` if `is_finished` with the same arguments, else None."""
    content = read_settings(folder)
    finished = is_finished(folder, settings, overwrite=overwrite)
    return content["facts"] if content is not None and finished else None


@contextlib.contextmanager
def new_folder(folder: str | os.PathLike[str], settings: Mapping[str, Any]) -> Iterator[Staging]:
    """Give a staging folder that becomes `folder` when the block ends well.

    Call `is_finished` first: a finished folder is replaced. Renaming a folder is one step, so that
    the target is either absent, the old one or the new one.

    Raises:
        DataPrepError: if `folder` holds something that this module did not make, or another
            process is making it.
    """
    target = Path(folder)
    if target.exists() and read_settings(target) is None and not _is_empty_folder(target):
        raise _foreign(target)
    with _locked(target.with_name(target.name + ".part")) as path:
        staging = Staging(path)
        yield staging
        _write_settings(staging, settings, sorted(entry.name for entry in path.iterdir()))
        replace(target, path)


@contextlib.contextmanager
def new_parts(
    folder: str | os.PathLike[str], names: tuple[str, ...], settings: Mapping[str, Any]
) -> Iterator[Staging]:
    """Give a staging folder whose entries `names` become `folder/name` when the block ends well.

    `_settings.json` goes away before the first entry is replaced and comes back after the last, so
    entries without it are not finished. Other entries of `folder` stay as they are.

    Raises:
        DataPrepError: if one of the entries is there and this module did not make it, or another
            process is making them.
    """
    target = Path(folder)
    marker = target / "parts.publishing"
    if read_settings(target) is None and not marker.exists():
        for name in names:
            if (target / name).exists():
                raise _foreign(target / name)
    with _locked(target / "parts.part") as path:
        staging = Staging(path)
        yield staging
        _write_settings(staging, settings, sorted(names))
        # The marker tells a later run that entries without _settings.json are ours to replace.
        marker.touch()
        (target / SETTINGS_FILE).unlink(missing_ok=True)
        for name in names:
            remove(target / name)
            (path / name).rename(target / name)
        (path / SETTINGS_FILE).rename(target / SETTINGS_FILE)
        marker.unlink()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Give an empty folder that no other process uses; what is left of it at the end is removed."""
    path.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataPrepError(
                f"another process is writing {path}. Wait for it, then run the command again."
            ) from error
        try:
            for leftover in path.iterdir():
                remove(leftover)
            yield path
        finally:
            remove(path)
    finally:
        os.close(handle)


def _write_settings(staging: Staging, settings: Mapping[str, Any], made: list[str]) -> None:
    content = {
        "settings": _as_json(settings),
        "facts": _as_json(staging.facts),
        "made": made,
    }
    text = json.dumps(content, indent=1) + "\n"
    (staging.path / SETTINGS_FILE).write_text(text, encoding="utf-8")


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(values))


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _foreign(path: Path) -> DataPrepError:
    return DataPrepError(
        f"{path} is there and was not made by data_prep (no {SETTINGS_FILE} says so). "
        "Move it away, or choose another --output."
    )


def fingerprint(paths: list[Path]) -> dict[str, list[int]]:
    """Return {file name: [bytes, modification time in ns]}: what an input was when it was read."""
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in paths}
