"""UCI Adult: who earned more than 50,000 dollars, from CSV files to typed Parquet."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from data_prep.csv_files import csv_to_parquet
from data_prep.download import download, unpack
from data_prep.output import DataPrepError, fingerprint, finished_metadata, new_output, new_parts
from data_prep.synthetic_adult import COLUMNS, FILES

BASE_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
COMMENT = b"|"  # adult.test begins with a line "|1x3 Cross validator"


def prepare(
    output: str | Path, *, source: str | Path | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Make UCI Adult ready for training: train/ (adult.data) and valid/ (adult.test).

    The values stay the same, typed: "?" becomes null; spaces around values and the dot after the
    labels of adult.test go. Columns have the names of `synthetic_adult.COLUMNS`; the label is the
    text of `income`.

    Args:
        output: folder for raw/, train/ and valid/.
        source: local zip archive, folder with adult.data and adult.test, or one of the two files
            next to the other; None downloads them (6 MB, with checksums, resumable).
        overwrite: replace an output made with other settings.

    Returns:
        {"train_rows": n, "valid_rows": n}.

    Raises:
        DataPrepError: if the download fails, a checksum is wrong, files are missing or damaged, a
            line is malformed, or the output exists with other settings.
    """
    raw = fetch(output, source, overwrite)
    files = {part: raw / name for part, name in FILES.items()}
    settings = {"command": "adult etl", "version": 1, "files": fingerprint(list(files.values()))}
    finished = finished_metadata(output, settings, overwrite=overwrite)
    if finished is not None:
        return finished
    with new_parts(output, tuple(files), settings, inputs=[raw]) as staging:
        for part, path in files.items():
            with open(path, "rb") as file:
                comment = file.read(1) == COMMENT
            made = csv_to_parquet(
                [path], staging.path / part, names=COLUMNS, delimiter=",", null_values=["?"],
                strip=" .", skip_lines=int(comment),
            )  # fmt: skip
            staging.metadata[f"{part}_rows"] = made["rows"]
    rows = staging.metadata
    print(f"{output}: {rows['train_rows']:,} rows in train/, {rows['valid_rows']:,} in valid/")
    return rows


def fetch(output: str | Path, source: str | Path | None, overwrite: bool = False) -> Path:
    """Return `output/raw`, a folder with adult.data and adult.test; arguments as for `prepare`."""
    raw, names = Path(output) / "raw", tuple(FILES.values())
    if source is None:
        source = Path(output) / "downloads"
        for name in names:
            download(f"{BASE_URL}/{name}", source / name, SHA256[name])
    source = Path(source)
    if source.name in names and source.is_file():
        source = source.parent
    given = [source] if source.is_file() else [source / name for name in names]
    if missing := [path.name for path in given if not path.is_file()]:
        raise DataPrepError(f"--from {source}: no {' and no '.join(missing)} there")
    if raw.is_dir() and source.samefile(raw):
        return raw
    settings = {"command": "adult fetch", "files": fingerprint(given)}
    if finished_metadata(raw, settings, overwrite=overwrite) is None:
        with new_output(raw, settings, inputs=given) as staging:
            if source.is_file():
                unpack(source, staging.path, names)
            else:
                for path in given:
                    shutil.copyfile(path, staging.path / path.name)
    return raw
