"""Download a file over HTTP: with a checksum, resumable, and never partially visible."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from pathlib import Path

import requests
from tqdm import tqdm

from data_prep.output import DataPrepError

BLOCK_BYTES = 1 << 16  # the most that is lost when a connection breaks
PAUSE_S = 1.0  # before the second attempt; doubled for each further one
_OUTAGES = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
)


class ServerError(requests.HTTPError):
    """The server answers HTTP 500 or above: it may answer better later."""


def download(
    url: str,
    path: str | Path,
    *,
    sha256: str | None = None,
    attempts: int = 4,
    pause_s: float | None = None,
    timeout_s: float = 30.0,
) -> Path:
    """Download `url` to `path`, unless the file exists with the right checksum; return `path`.

    The download goes to `NAME.part`, which is renamed to `path` once the checksum is right. After a
    broken connection it resumes where it stopped (HTTP Range), also in a later run.

    Args:
        url: address of the file.
        path: path of the downloaded file.
        sha256: expected hex digest; None compares the MD5 that the server publishes at
            `url + ".md5"`.
        attempts: consecutive attempts without progress before it gives up, at least 1.
        pause_s: seconds before the second attempt, doubled for each further one; None is `PAUSE_S`.
        timeout_s: seconds without an answer after which an attempt has failed.

    Raises:
        DataPrepError: if there is no connection, an HTTP error, a connection that keeps breaking,
            not enough space, or a wrong checksum. The message says what to do.
    """
    path = Path(path)
    algorithm, digest = ("sha256", sha256) if sha256 else ("md5", _published_md5(url, timeout_s))
    if path.exists():
        if file_digest(path, algorithm) == digest:
            return path
        raise DataPrepError(
            f"{path} exists, but its {algorithm} is not {digest}. Delete it to fetch it again."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    _fetch_all(url, part, attempts, PAUSE_S if pause_s is None else pause_s, timeout_s)
    have = file_digest(part, algorithm)
    if have != digest:
        part.unlink()
        raise DataPrepError(
            f"{url}: {algorithm} is {have}, expected {digest}; the download was deleted. Run the "
            "command again. If this happens twice, the file on the server has changed: download it "
            "manually and pass --from."
        )
    part.rename(path)
    return path


def file_digest(path: str | Path, algorithm: str) -> str:
    """Return the hex digest of a file.

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
        raise DataPrepError(
            f"{url}.md5 contains no MD5 checksum. Download {url} manually and pass --from."
        )
    return found.group().lower()


def _fetch_all(url: str, part: Path, attempts: int, pause_s: float, timeout_s: float) -> None:
    """Append to `part` until it is complete, or `attempts` in a row made no progress."""
    failures = 0
    while True:
        before = _size(part)
        try:
            _fetch_rest(url, part, timeout_s)
            return
        except (*_OUTAGES, ServerError) as error:
            failures = 1 if _size(part) > before else failures + 1
            if failures >= attempts:
                if _size(part) == 0:
                    part.unlink(missing_ok=True)
                    raise _unreachable(url, error) from error
                raise DataPrepError(
                    f"{url}: {_what_failed(error, 'the connection broke')} after "
                    f"{_size(part):,} bytes, which are kept in {part}. Run the same command again "
                    "to fetch the rest."
                ) from error
            time.sleep(pause_s * 2 ** (failures - 1))
        except requests.RequestException as error:
            raise _unreachable(url, error) from error


def _fetch_rest(url: str, part: Path, timeout_s: float) -> None:
    have = _size(part)
    # identity: a compressed transfer would have other byte positions than the file
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=timeout_s) as answer:
        if answer.status_code == 416:  # `part` is complete: the checksum decides
            return
        if answer.status_code >= 500:
            raise ServerError(response=answer)
        answer.raise_for_status()
        resumed = answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not (have and answer.status_code == 206 and resumed):
            have = 0
        rest = int(answer.headers.get("Content-Length", 0))
        check_space(part.parent, rest)
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


def check_space(folder: Path, needed: int) -> None:
    """Raise DataPrepError unless the disk of a folder has so many bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataPrepError(
            f"{folder} has {free:,} bytes free, but {needed:,} are needed. Free some space or "
            "choose another --output."
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _what_failed(error: requests.RequestException, without_answer: str) -> str:
    if error.response is not None:
        return f"the server answers HTTP {error.response.status_code}"
    return without_answer


def _unreachable(url: str, error: requests.RequestException) -> DataPrepError:
    what = _what_failed(error, f"no connection ({type(error).__name__})")
    return DataPrepError(
        f"{url}: {what}. Check the network and the address and run the command again, or "
        "download the file manually and pass --from. `python -m data_prep synthetic` works without "
        "a network."
    )
