"""UCI Adult: who earned more than 50,000 dollars, from CSV files to typed Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from data_prep.download import fetch
from data_prep.output import DataPrepError, fingerprint, make_once
from data_prep.synthetic_adult import COLUMNS, FILES
from tutorlib.parquet import ParquetSink

BASE_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
NUMBERS = (
    "age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week",
)  # fmt: skip


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
    if source is not None and Path(source).name in SHA256:
        source = Path(source).parent
    urls = {f"{BASE_URL}/{name}": digest for name, digest in SHA256.items()}
    raw = fetch(output, source, urls, tuple(SHA256), copy=True, overwrite=overwrite)
    files = {part: raw / name for part, name in FILES.items()}

    def write(folder: Path) -> dict[str, Any]:
        rows = {}
        for part, path in files.items():
            table = read_people(path)
            with ParquetSink(folder / part) as sink:
                sink.write(table)
            rows[f"{part}_rows"] = table.num_rows
        print(f"{output}: {rows['train_rows']:,} rows in train/, {rows['valid_rows']:,} in valid/")
        return rows

    settings = {"command": "adult etl", "version": 1, "files": fingerprint(list(files.values()))}
    return make_once(output, settings, write, parts=tuple(files), inputs=[raw], overwrite=overwrite)


def read_people(path: Path) -> pa.Table:
    """Return the rows of adult.data or adult.test.

    Raises:
        DataPrepError: if a line is malformed.
    """
    types = {name: "BIGINT" if name in NUMBERS else "VARCHAR" for name in COLUMNS}
    try:
        with duckdb.connect() as connection:
            rows = connection.read_csv(
                str(path), columns=types, header=False, delimiter=", ", na_values="?",
                comment="|", auto_detect=False,  # a comment is the first line of adult.test
            )  # fmt: skip
            return rows.project("* REPLACE (rtrim(income, '.') AS income)").to_arrow_table()
    except duckdb.Error as error:
        text = str(error).partition("\nPossible ")[0]
        raise DataPrepError(f"{path} is malformed: {text}. Fetch it again.") from error
