"""Files from the network and from archives: checked, and never partially visible."""

from __future__ import annotations

import errno
import hashlib
import lzma
import shutil
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import requests
from tqdm import tqdm

from data_prep.output import DataPrepError, fingerprint, make_once
from tutorlib.output import new_file

TIMEOUT_S = 30.0  # without an answer, then a download has failed
DAMAGE = (  # what zipfile and its decompressors raise; RuntimeError is for encryption
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError,
    ValueError, OSError,
)  # fmt: skip


def download(url: str, path: Path, sha256: str) -> Path:
    """Download `url` to `path`, unless the file exists with the right checksum; return `path`.

    Raises:
        DataPrepError: if there is no connection, an HTTP error, a connection that breaks, or a
            wrong checksum (a hex digest). The message says what to do.
    """
    if path.exists():
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                return path
        raise DataPrepError(
            f"{path} exists, but its sha256 is not {sha256}. Delete it to fetch it again."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with (
            requests.get(url, stream=True, timeout=TIMEOUT_S) as answer,
            tqdm(unit="B", unit_scale=True, desc=path.name, disable=None) as bar,
            new_file(path) as part,
            open(part, "wb") as file,
        ):
            answer.raise_for_status()
            for block in answer.iter_content(1 << 16):
                digest.update(block)
                file.write(block)
                bar.update(len(block))
            if digest.hexdigest() != sha256:
                raise DataPrepError(
                    f"{url}: sha256 is {digest.hexdigest()}, expected {sha256}; nothing was kept. "
                    "Run the command again. If this happens twice, the file on the server has "
                    "changed: download it manually and pass --from."
                )
    except requests.RequestException as error:
        raise DataPrepError(
            f"{url}: no download ({error}). Check the network and the address and run the command "
            "again, or download the file manually and pass --from. `python -m data_prep synthetic` "
            "works without a network."
        ) from error
    return path


def fetch(
    output: str | Path,
    source: str | Path | None,
    url: str,
    sha256: str,
    names: Sequence[str],
    *,
    overwrite: bool = False,
) -> Path:
    """Return the folder `output/raw` with the files of an archive, or `source` if it is a folder.

    Args:
        output: folder for the download (`output/downloads`) and the files (`output/raw`).
        source: local folder, or zip archive that is unpacked; None downloads.
        url: address of the archive.
        sha256: its checksum, a hex digest.
        names: of the files.
        overwrite: replace an `output/raw` made from another archive.

    Raises:
        DataPrepError: if the download fails, a checksum is wrong, or files are missing or damaged.
    """
    raw, downloads = Path(output) / "raw", Path(output) / "downloads"
    given = [] if source is None else [Path(source)]
    if source is not None and Path(source).is_dir():
        given = [Path(source) / name for name in names]
    if missing := [path.name for path in given if not path.is_file()]:
        raise DataPrepError(f"--from {source}: no {' and no '.join(missing)} there")
    if len(given) > 1:
        return given[0].parent

    def write(folder: Path) -> dict[str, Any]:
        archive = given[0] if given else download(url, downloads / url.rpartition("/")[2], sha256)
        _unpack(archive, folder, names)
        return {}

    settings = {"command": "fetch", "archive": fingerprint(given) or [sha256]}
    make_once(raw, settings, write, inputs=given, overwrite=overwrite)
    return raw


def _unpack(archive: Path, folder: Path, names: Sequence[str]) -> None:
    """Write files of a zip archive, wherever they are in it, into a folder, which exists."""
    try:
        with zipfile.ZipFile(archive) as file:
            for name in names:
                inside = [each for each in file.infolist() if Path(each.filename).name == name]
                if len(inside) != 1:
                    raise DataPrepError(f"{archive}: {len(inside)} files named {name}, expected 1")
                with file.open(inside[0]) as packed, open(folder / name, "wb") as target:
                    shutil.copyfileobj(packed, target)
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # of the disk, not of the data
        raise DataPrepError(
            f"{archive} is not an intact, unencrypted zip archive ({error}). Fetch it again."
        ) from error
