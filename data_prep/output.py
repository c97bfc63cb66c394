"""Outputs that are whole or absent, and made once for each settings.

`make_once` makes a whole folder, or some parts of a folder that holds other things too.
`_settings.json` in the folder says with which settings it was made. A run that is killed leaves
nothing that looks finished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tutorlib.output import folder_beside, new_folder, refuse_existing, refuse_overlap, replace

SETTINGS_FILE = "_settings.json"  # readers of data folders skip names that start with "_"


class DataPrepError(Exception):
    """A failure that the user can do something about; the message is one line and says what."""


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


def make_once(
    folder: str | os.PathLike[str],
    settings: Mapping[str, Any],
    write: Callable[[Path], dict[str, Any]],
    *,
    parts: Sequence[str] = (),
    inputs: Sequence[Path] = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Make a folder, unless it was finished with the same settings, and return its metadata.

    With `parts`, what is written to the folders of these names is moved to `folder/name`, and other
    entries of `folder` stay as they are. Each part is whole or absent. `_settings.json` is removed
    before the first part is replaced and written after the last, so a kill in between leaves an
    output that is not finished.

    Args:
        folder: output folder.
        settings: everything that decides what the output holds, as JSON values.
        write: called with a folder to write in; returns measured values, as JSON values.
        parts: names of the folders in `folder` that are made; without, all of `folder` is.
        inputs: what is read meanwhile, which must not lie in the output, nor contain it.
        overwrite: whether to make the folder, or the parts, again and replace what is there.

    Returns:
        What `write` returned when the folder was made.

    Raises:
        DataPrepError: if the folder was finished with other settings (the message names them), or
            it or a part exists and was not finished by data_prep.
        ValueError: if the output and an input overlap.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp() + "/numbers"
        >>> make_once(folder, {"up to": 3}, lambda path: {"numbers": 3})
        {'numbers': 3}
        >>> read_settings(folder)["settings"]
        {'up to': 3}
    """
    target, want = Path(folder).expanduser(), json.loads(json.dumps(settings, default=str))
    have = None if overwrite else read_settings(target)
    if have is not None:
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
    places = [target / name for name in parts] or [target]
    try:
        for place in places:
            refuse_overlap(place, inputs)
            refuse_existing(place, overwrite)
    except FileExistsError as error:
        raise DataPrepError(str(error).replace("overwrite=True", "--overwrite")) from error
    if not parts:
        with new_folder(target, overwrite=overwrite) as path:
            metadata = write(path)
            _write_settings(path, want, metadata)
        return metadata
    with folder_beside(target / "parts") as path:
        metadata = write(path)
        (target / SETTINGS_FILE).unlink(missing_ok=True)
        for place in places:
            replace(place, path / place.name)
    _write_settings(target, want, metadata)
    return metadata


def _write_settings(folder: Path, settings: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    text = json.dumps({"settings": settings, "metadata": metadata}, indent=1, default=str) + "\n"
    partial = folder / f"{SETTINGS_FILE}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(folder / SETTINGS_FILE)


def fingerprint(paths: Sequence[Path]) -> dict[str, list[int]]:
    """Return {file name: [bytes, modification time in ns]} of input files."""
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in paths}
