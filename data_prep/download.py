"""Fetch one file over HTTP: checked, resumable, whole or not at all.

Does not belong here: which files there are (`movielens.py`).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from pathlib import Path

import requests
from tqdm import tqdm

from data_prep.output import DataPrepError

BLOCK_BYTES = 1 << 16  # so much is lost at most when a connection breaks
PAUSE_S = 1.0  # before the second try; doubled for each further one
_OUTAGES = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
)


def download(
    url: str,
    path: str | Path,
    *,
    sha256: str | None = None,
    attempts: int = 4,
    pause_s: float | None = None,
    timeout_s: float = 30.0,
) -> Path:
    """Return `path` after it holds the file at `url` with the right checksum.

    Bytes go to `NAME.part`, which is renamed to `path` once the checksum is right. A connection
    that breaks is taken up again where it broke off (HTTP Range), also by a later run. A file that
    is there with the right checksum is not fetched again.

    Args:
        url: address of the file.
        path: where it goes.
        sha256: hex digest it must have; without one the MD5 that the server publishes at
            `url + ".md5"` counts.
        attempts: tries in a row without a byte of progress before giving up, at least 1.
        pause_s: seconds before the second try, doubled for each further one; None: `PAUSE_S`.
        timeout_s: seconds without an answer after which a try counts as failed.

    Raises:
        DataPrepError: no connection, an HTTP error, a connection that keeps breaking, too little
            space, or a wrong checksum; the message says what to do.
    """
    path = Path(path)
    algorithm, digest = ("sha256", sha256) if sha256 else ("md5", _published_md5(url, timeout_s))
    if path.exists():
        if file_digest(path, algorithm) == digest:
            return path
        raise DataPrepError(
            f"{path} is there but its {algorithm} is not {digest}. Delete it to fetch it again."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    _fetch_all(url, part, attempts, PAUSE_S if pause_s is None else pause_s, timeout_s)
    have = file_digest(part, algorithm)
    if have != digest:
        part.unlink()
        raise DataPrepError(
            f"{url}: {algorithm} is {have}, expected {digest}; the file was thrown away. Run the "
            "command again; if it happens twice, the file on the server has changed: fetch it by "
            "hand and pass --from."
        )
    part.rename(path)
    return path


def file_digest(path: str | Path, algorithm: str) -> str:
    """Return the hex digest of a file, read in blocks.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "empty"
        >>> file.touch()
        >>> file_digest(file, "md5")
        'd41d8cd98f00b204e9800998ecf8427e'
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _published_md5(url: str, timeout_s: float) -> str:
    try:
        answer = requests.get(url + ".md5", timeout=timeout_s)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise _unreachable(url + ".md5", error) from error
    found = re.search(r"\b[0-9a-fA-F]{32}\b", answer.text)
    if not found:
        raise DataPrepError(f"{url}.md5 holds no MD5 checksum. Fetch {url} by hand, pass --from.")
    return found.group().lower()


def _fetch_all(url: str, part: Path, attempts: int, pause_s: float, timeout_s: float) -> None:
    """Append to `part` until it holds the whole file; tries without progress are counted."""
    failures = 0
    while True:
        before = _size(part)
        try:
            _fetch_rest(url, part, timeout_s)
            return
        except _OUTAGES as error:
            failures = 1 if _size(part) > before else failures + 1
            if failures >= attempts:
                if _size(part) == 0:
                    part.unlink(missing_ok=True)
                    raise _unreachable(url, error) from error
                raise DataPrepError(
                    f"{url}: the connection broke off after {_size(part):,} bytes, which are kept "
                    f"in {part}. Run the same command again to fetch the rest."
                ) from error
            time.sleep(pause_s * 2 ** (failures - 1))
        except requests.RequestException as error:
            raise _unreachable(url, error) from error


def _fetch_rest(url: str, part: Path, timeout_s: float) -> None:
    have = _size(part)
    # identity: a compressed transfer would count other bytes than the file has
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=timeout_s) as answer:
        if answer.status_code == 416:  # nothing beyond what we have: the checksum decides
            return
        if answer.status_code >= 500:
            raise requests.exceptions.ConnectionError(f"HTTP {answer.status_code}")
        answer.raise_for_status()
        resumed = answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not (have and answer.status_code == 206 and resumed):
            have = 0
        rest = int(answer.headers.get("Content-Length", 0))
        _check_space(part, rest)
        with (
            open(part, "ab" if have else "wb") as file,
            tqdm(
                total=have + rest or None,
                initial=have,
                unit="B",
                unit_scale=True,
                desc=part.stem,
                disable=None,
            ) as bar,
        ):
            for block in answer.iter_content(BLOCK_BYTES):
                file.write(block)
                bar.update(len(block))


def _check_space(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise DataPrepError(
            f"{part.parent} has {free:,} bytes free, {needed:,} are needed. Free some space or "
            "choose another --output."
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _unreachable(url: str, error: requests.RequestException) -> DataPrepError:
    if error.response is not None:
        what = f"the server answers HTTP {error.response.status_code}"
    else:
        what = f"no connection ({type(error).__name__})"
    return DataPrepError(
        f"{url}: {what}. Check the network and the address and run the command again, or fetch "
        "the file by hand and pass --from; `python -m data_prep synthetic` needs no network."
    )
