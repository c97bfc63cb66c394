"""Files from the network and from archives: checked, resumable, and never partially visible."""

from __future__ import annotations

import errno
import hashlib
import lzma
import shutil
import struct
import time
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import requests
from tqdm import tqdm

from data_prep.output import DataPrepError, check_space, fingerprint, make_once

BLOCK_BYTES = 1 << 16  # the most that is lost when a connection breaks
ATTEMPTS = 4  # in a row without progress
PAUSE_S = 1.0  # before the second attempt; doubled for each further one
TIMEOUT_S = 30.0  # without an answer, then an attempt has failed
_DAMAGE = (  # what zipfile and its decompressors raise; RuntimeError is for encryption
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError,
    ValueError, OSError,
)  # fmt: skip


def download(url: str, path: Path, sha256: str) -> Path:
    """Download `url` to `path`, unless the file exists with the right checksum; return `path`.

    The download goes to `NAME.part`, which is renamed to `path` once the checksum is right. After a
    broken connection it resumes where it stopped (HTTP Range), also in a later run.

    Args:
        url: address of the file.
        path: path of the downloaded file.
        sha256: expected hex digest.

    Raises:
        DataPrepError: if there is no connection, an HTTP error, a connection that keeps breaking,
            not enough space, or a wrong checksum. The message says what to do.
    """
    if path.exists():
        if _digest(path) == sha256:
            return path
        raise DataPrepError(
            f"{path} exists, but its sha256 is not {sha256}. Delete it to fetch it again."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    _fetch_all(url, part)
    if (have := _digest(part)) != sha256:
        part.unlink()
        raise DataPrepError(
            f"{url}: sha256 is {have}, expected {sha256}; the download was deleted. Run the "
            "command again. If this happens twice, the file on the server has changed: download it "
            "manually and pass --from."
        )
    return part.rename(path)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch_all(url: str, part: Path) -> None:
    """Append to `part` until it is complete, or `ATTEMPTS` in a row made no progress."""
    failures = 0
    while True:
        before = _size(part)
        try:
            _fetch_rest(url, part)
            return
        except requests.RequestException as error:
            failures = 1 if _size(part) > before else failures + 1
            what, final = f"no connection ({type(error).__name__})", failures >= ATTEMPTS
            if error.response is not None:
                what = f"the server answers HTTP {error.response.status_code}"
                final |= error.response.status_code < 500  # will not answer better later
            if final:
                kept = _size(part)
                if not kept:
                    part.unlink(missing_ok=True)
                raise DataPrepError(
                    f"{url}: {what} after {kept:,} bytes"
                    + f", which are kept in {part}" * (kept > 0)
                    + ". Check the network and the address and run the command again, which fetches"
                    " the rest, or download the file manually and pass --from. `python -m data_prep"
                    " synthetic` works without a network."
                ) from error
            time.sleep(PAUSE_S * 2 ** (failures - 1))


def _fetch_rest(url: str, part: Path) -> None:
    have = _size(part)
    # identity: a compressed transfer would have other byte positions than the file
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as answer:
        if answer.status_code == 416:  # `part` is complete: the checksum decides
            return
        answer.raise_for_status()
        if not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
        rest = int(answer.headers.get("Content-Length", 0))
        check_space(part.parent, rest, url)
        size = {"total": have + rest or None, "initial": have, "unit": "B", "unit_scale": True}
        with (
            open(part, "ab" if have else "wb") as file,
            tqdm(**size, desc=part.stem, disable=None) as bar,
        ):
            for block in answer.iter_content(BLOCK_BYTES):
                file.write(block)
                bar.update(len(block))


def fetch(
    output: str | Path,
    source: str | Path | None,
    urls: Mapping[str, str],
    names: Sequence[str],
    *,
    copy: bool = False,
    overwrite: bool = False,
) -> Path:
    """Return the folder `output/raw` with the files of a data set, or that of `source`.

    Args:
        output: folder for downloads (`output/downloads`) and the files (`output/raw`).
        source: local folder, or zip archive that is unpacked; None downloads.
        urls: {address: SHA-256} of the files, or of an archive of them.
        names: of the files, two or more.
        copy: whether the files of a local folder are copied to `output/raw`.
        overwrite: replace an `output/raw` made from other files.

    Raises:
        DataPrepError: if the download fails, a checksum is wrong, or files are missing or damaged.
    """
    raw, downloads = Path(output) / "raw", Path(output) / "downloads"
    given = [] if source is None else [Path(source)]
    if source is not None and Path(source).is_dir():
        given = [Path(source) / name for name in names]
    if missing := [path.name for path in given if not path.is_file()]:
        raise DataPrepError(f"--from {source}: no {' and no '.join(missing)} there")
    if len(given) > 1 and not (copy and (not raw.is_dir() or not raw.samefile(given[0].parent))):
        return given[0].parent

    def write(folder: Path) -> dict[str, Any]:
        files = given or [
            download(url, downloads / url.rpartition("/")[2], digest)
            for url, digest in urls.items()
        ]
        for path in files:
            if len(files) == 1:
                _unpack(path, folder, names)
            else:
                shutil.copy(path, folder)
        return {}

    settings = {"command": "fetch", "archive": fingerprint(given) or sorted(urls.values())}
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
                size = inside[0].file_size  # no more than this is read
                check_space(folder, size, f"{archive}: {name}")
                with file.open(inside[0]) as packed, open(folder / name, "wb") as target:
                    shutil.copyfileobj(packed, target)
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # of the disk, not of the data
        raise DataPrepError(
            f"{archive} is not an intact, unencrypted zip archive ({error}). Fetch it again."
        ) from error
