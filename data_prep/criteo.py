"""Criteo click logs: raw day files to Parquet, then to training-ready Parquet.

`raw_to_parquet` checks every line and keeps the values; `prepare` calls it, then fits the Workflow
on the training days and writes train/, valid/ and workflow/. All rows are streamed (by DuckDB, then
by the Workflow), so memory does not grow with the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from data_prep.output import DataPrepError, fingerprint, make_once
from data_prep.synthetic_criteo import CATEGORICAL_NAMES, COLUMN_NAMES, INTEGER_NAMES
from tutorlib.memory import usable_cores
from tutorlib.ops import Categorify, Clip, FillMissing, LogOp, Normalize
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.workflow import Workflow, split_rows
from tutorlib.workflow.fit import map_on_threads

RAW_SCHEMA = pa.schema([("label", pa.int32()), *((n, pa.int64()) for n in COLUMN_NAMES[1:])])
RAW_ROW_GROUP_ROWS = 131_072
ROWS_PER_FILE = 1_048_576  # of train/ and valid/
_DAY_FILE = re.compile(r"(?P<stem>day_(?P<day>\d+)[^.]*)(\.tsv|\.txt)?(\.gz)?$")


class Rule(NamedTuple):
    """What a field must match (RE2), in words, and the SQL that converts it."""

    pattern: str
    words: str
    conversion: str


_COUNT = Rule("(-?[0-9]{1,18})?", "an integer of at most 18 digits", "nullif({}, '')::BIGINT")
_HEX = Rule("([0-9a-fA-F]{8})?", "8 hex digits", "('0x' || nullif({}, ''))::BIGINT")
RULES = {
    "label": Rule("[01]", "0 or 1", "{}::INTEGER"),
    **dict.fromkeys(INTEGER_NAMES, _COUNT),
    **dict.fromkeys(CATEGORICAL_NAMES, _HEX),
}
FIELDS = {name: f"fields[{number}]" for number, name in enumerate(COLUMN_NAMES, start=1)}  # SQL
FIRST_FAULTS = 10  # malformed lines that an error names


def find_day_files(folder: str | Path) -> dict[str, Path]:
    """Return {stem: path} of the day files in a folder, sorted by day.

    The name of a day file is `day_<number>`, optionally with a suffix (`day_0_head`), and the
    extension is `.tsv`, `.txt`, `.gz`, `.tsv.gz` or none.

    Raises:
        DataPrepError: if there is no day file, or two have the same stem.
    """
    found: dict[tuple[int, str], Path] = {}
    for path in Path(folder).glob("day_*"):
        if name := _DAY_FILE.fullmatch(path.name):
            other = found.setdefault((int(name["day"]), name["stem"]), path)
            if other is not path:
                raise DataPrepError(f"{path} and {other} are the same day. Remove one.")
    if not found:
        raise DataPrepError(
            f"--from {folder}: no day files there (day_0.tsv, day_0.gz, day_0, ...). Pass their "
            "folder, or create one with `python -m data_prep synthetic criteo`."
        )
    return {stem: found[day, stem] for day, stem in sorted(found)}


def read_day(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a day file as tables, after a pass that looks for malformed lines.

    Raises:
        DataPrepError: if lines are malformed (the message has their number and names the first
            ten), or the file cannot be read as UTF-8 text, plain or gzip.
    """
    reasons = [f"WHEN len(fields) <> {len(FIELDS)} THEN len(fields) || ' fields instead of 40'"]
    for name, rule in RULES.items():
        wrong = f"format('{name} is ''{{}}'', must be {rule.words}', {FIELDS[name]})"
        reasons.append(f"WHEN NOT regexp_full_match({FIELDS[name]}, '{rule.pattern}') THEN {wrong}")
    values = [rule.conversion.format(FIELDS[name]) for name, rule in RULES.items()]
    columns = [f"{value} AS {name}" for name, value in zip(RULES, values, strict=True)]
    try:
        # One thread: files are read beside each other. No line has \x01, so a line is one field.
        with duckdb.connect(config={"threads": 1}) as connection:
            text = connection.read_csv(
                str(path), columns={"text": "VARCHAR"}, header=False, delimiter="\x01",
                quotechar="", escapechar="", auto_detect=False,
            )  # fmt: skip
            numbered = "row_number() OVER () AS line, string_split(text, '\t') AS fields"
            lines = text.project(numbered).filter("fields IS NOT NULL")  # blank lines are no rows
            bad = lines.project(f"line, CASE {' '.join(reasons)} END AS reason")
            bad = bad.filter("reason IS NOT NULL")
            found = bad.aggregate(f"count(*), min_by((line, reason), line, {FIRST_FAULTS})")
            [(count, first)] = found.fetchall()
            if count:
                faults = "; ".join(f"{path.name}:{line}: {reason}" for line, reason in first)
                more = "; ..." * (count > FIRST_FAULTS)
                raise DataPrepError(
                    f"{count:,} malformed lines in {path.name}: {faults}{more}. Nothing was "
                    "written. Correct or remove them."
                )
            for batch in lines.project(", ".join(columns)).to_arrow_reader(RAW_ROW_GROUP_ROWS):
                yield pa.Table.from_batches([batch])
    except duckdb.Error as error:
        reason = str(error).partition("\nPossible ")[0]
        raise DataPrepError(
            f"{path} cannot be read: {reason}. Fetch a damaged file again."
        ) from error


def raw_to_parquet(
    source: str | Path, output: str | Path, *, overwrite: bool = False
) -> dict[str, Any]:
    """Write each raw day file as `output/day_*.parquet`: the same values, typed and checked.

    A line is malformed if it does not have 40 fields, its label is not 0 or 1, a count is not an
    integer of at most 18 digits, or a categorical value is not 8 hex digits. An empty field is a
    missing value, except for the label. Blank lines are no rows.

    Files are read on all cores; memory does not grow with their size.

    Args:
        source: folder of day files, plain or gzip.
        output: folder for label, I1..I13 (int64) and C1..C26 (int64, the number the digits encode).
        overwrite: replace an output made with other settings.

    Returns:
        {"rows": {stem: rows}}.

    Raises:
        DataPrepError: if a line is malformed (`read_day`), there are no day files, a file is empty
            or damaged, or the output exists with other settings.
    """
    files = find_day_files(source)
    form = {"row_group_rows": RAW_ROW_GROUP_ROWS, "schema": RAW_SCHEMA}

    def write(folder: Path) -> dict[str, Any]:
        def convert(stem: str) -> int:
            rows = 0
            with ParquetSink(folder / f"{stem}.parquet", **form) as sink:
                for table in read_day(files[stem]):
                    sink.write(table)
                    rows += table.num_rows
                if not rows:
                    raise DataPrepError(f"{files[stem]} is empty. Remove it, or fetch it again.")
            return rows

        counts = map_on_threads(convert, files, usable_cores())
        rows = dict(zip(files, counts, strict=True))
        print(f"{output}: {sum(rows.values()):,} rows in {len(files)} files", flush=True)
        return {"rows": rows}

    settings = {"command": "criteo raw_to_parquet", "version": 2,
                "files": fingerprint(list(files.values()))}  # fmt: skip
    return make_once(output, settings, write, inputs=[Path(source)], overwrite=overwrite)


def make_workflow(freq_threshold: int = 15) -> Workflow:
    """Return the unfitted Workflow of the click logs.

    Counts: missing and negative values become 0, then log1p, then mean 0 and variance 1.
    Categorical values: ids by frequency; values that occur fewer than `freq_threshold` times share
    the id of unknown values.
    """
    counts = list(INTEGER_NAMES) >> FillMissing(0) >> Clip(min_value=0) >> LogOp() >> Normalize()
    ids = list(CATEGORICAL_NAMES) >> Categorify(freq_threshold=freq_threshold)
    return Workflow(counts, ids, ["label"])


def split_by_time(days: list[Path]) -> dict[str, ParquetSource]:
    """Return {"train": source, "valid": source}: the last day, or a fifth of one day, validates.

    Raises:
        DataPrepError: if the only day has fewer than two rows.
    """
    if len(days) > 1:
        return {"train": ParquetSource(days[:-1]), "valid": ParquetSource(days[-1:])}
    try:
        return split_rows(days[0], {"train": 0.8, "valid": 0.2})
    except ValueError as error:
        raise DataPrepError(f"{days[0]} has too few rows to split: {error}") from error


def prepare(
    source: str | Path,
    output: str | Path,
    *,
    freq_threshold: int = 15,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Make raw click logs ready for training: parquet/, then train/, valid/ and workflow/.

    The folder parquet/ holds the same values, checked (`raw_to_parquet`). Then a Workflow is fitted
    on the training days. The split is by time: the last day validates, or the last fifth of the
    rows if there is one day. Memory does not grow with the rows.

    Args:
        source: folder with day_0.tsv, day_1.gz, ...
        output: folder for parquet/, train/, valid/ and workflow/.
        freq_threshold: values with fewer occurrences in the training days count as unknown.
        overwrite: replace outputs made with other settings.

    Returns:
        {"train_rows": n, "valid_rows": n}.

    Raises:
        ValueError: if a setting is out of range.
        DataPrepError: as `raw_to_parquet`, or if the only day has fewer than two rows.
    """
    output, parquet = Path(output), Path(output) / "parquet"
    read = raw_to_parquet(source, parquet, overwrite=overwrite)
    days = [parquet / f"{stem}.parquet" for stem in read["rows"]]

    def write(folder: Path) -> dict[str, Any]:
        sources = split_by_time(days)
        workflow = make_workflow(freq_threshold).fit(sources["train"])
        for side, rows in sources.items():
            sizes: Any = {"row_group_rows": RAW_ROW_GROUP_ROWS, "rows_per_file": ROWS_PER_FILE}
            workflow.transform_to_parquet(rows, folder / side, **sizes)
            print(f"{output / side}: {rows.num_rows:,} rows", flush=True)
        workflow.save(folder / "workflow")
        return {f"{side}_rows": rows.num_rows for side, rows in sources.items()}

    settings = {"command": "criteo etl", "version": 3, "freq_threshold": freq_threshold,
                "files": fingerprint(days)}  # fmt: skip
    parts = ("train", "valid", "workflow")
    return make_once(output, settings, write, parts=parts, inputs=[parquet], overwrite=overwrite)


def prepared_rows(data_dir: str | Path) -> Path:
    """Return the folder `criteo` of a data folder, with training-ready `train` and `valid`.

    Rows that exist are kept; if there are none, a synthetic log is made and prepared.
    """
    from data_prep.synthetic_criteo import write_criteo

    folder = Path(data_dir) / "criteo"
    if not (folder / "train").is_dir():
        if not (folder / "raw").is_dir():
            write_criteo(folder / "raw")
        prepare(folder / "raw", folder)
    return folder
