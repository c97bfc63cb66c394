"""UCI Adult: who earned more than 50,000 dollars, from CSV files to typed Parquet.

`fetch` brings the two files, by download or from a local copy; `etl` converts them (`csv_files`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from data_prep.csv_files import csv_to_parquet
from data_prep.download import download
from data_prep.movielens import unpack
from data_prep.output import DataPrepError, fingerprint, finished_metadata, new_output, new_parts
from data_prep.synthetic_adult import COLUMNS, FILES
from tutorlib.storage import refuse_overlap

BASE_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
COMMENT = b"|"  # adult.test begins with a line "|1x3 Cross validator"


def fetch(
    output: str | Path,
    *,
    source: str | Path | None = None,
    overwrite: bool = False,
    base_url: str | None = None,
) -> Path:
    """Return `output/raw`, a folder with adult.data and adult.test.

    Args:
        output: folder for raw/, and for downloads/ if `source` is None.
        source: local zip archive, folder with the two files, or one of the files next to the other;
            None downloads them (6 MB, with checksums).
        overwrite: replace an `output/raw` made from other files.
        base_url: address of the two files; None is `BASE_URL`.

    Raises:
        DataPrepError: if the download fails, a checksum is wrong, or files are missing or damaged.
    """
    raw, names = Path(output) / "raw", tuple(FILES.values())
    if source is None:
        source = Path(output) / "downloads"
        for name in names:
            download(f"{base_url or BASE_URL}/{name}", source / name, sha256=SHA256[name])
    source = Path(source)
    if source.name in names and source.is_file():
        source = source.parent
    archive = [source] if source.is_file() else []
    missing = [name for name in names if not (archive or (source / name).is_file())]
    if missing:
        raise DataPrepError(f"--from {source}: no {' and no '.join(missing)} there")
    if not archive and raw.is_dir() and source.samefile(raw):
        return raw
    given = archive or [source / name for name in names]
    settings = {"command": "adult fetch", "files": fingerprint(given)}
    if finished_metadata(raw, settings, overwrite=overwrite) is None:
        refuse_overlap(raw, [source])
        with new_output(raw, settings) as staging:
            if archive:
                unpack(source, staging.path, names)
            else:
                for path in given:
                    shutil.copyfile(path, staging.path / path.name)
    return raw


def etl(source: str | Path, output: str | Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Write `output/train` (adult.data) and `output/valid` (adult.test): the same values, typed.

    "?" becomes null; spaces around values and the dot after the labels of adult.test go. Columns
    have the names of `synthetic_adult.COLUMNS`; the label is the text of `income`.

    Args:
        source: folder with the two files.
        output: output folder.
        overwrite: replace an output made with other settings.

    Returns:
        {"train_rows": n, "valid_rows": n}.

    Raises:
        DataPrepError: if a line is malformed, or the output exists with other settings.
    """
    files = {part: Path(source) / name for part, name in FILES.items()}
    settings = {"command": "adult etl", "version": 1, "files": fingerprint(list(files.values()))}
    finished = finished_metadata(output, settings, overwrite=overwrite)
    if finished is not None:
        return finished
    for part in files:
        refuse_overlap(Path(output) / part, [source])
    with new_parts(output, tuple(files), settings) as staging:
        for part, path in files.items():
            with open(path, "rb") as file:
                comment = file.read(1) == COMMENT
            made = csv_to_parquet(
                [path],
                staging.path / part,
                names=COLUMNS,
                delimiter=",",
                null_values=["?"],
                strip=" .",
                skip_lines=int(comment),
                overwrite=True,
            )
            staging.metadata[f"{part}_rows"] = made["rows"]
    print(
        f"{output}: {staging.metadata['train_rows']:,} rows in train/, "
        f"{staging.metadata['valid_rows']:,} in valid/",
        flush=True,
    )
    return staging.metadata
