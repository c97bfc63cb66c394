"""Criteo click logs: raw day files -> Parquet -> training-ready Parquet with its Workflow.

Two stages that can be called one by one: `raw_to_parquet` checks every line and writes the same
values as Parquet; `etl` fits the Workflow on the training days and writes train/ and valid/. Both
stream, so their memory does not grow with the files.
Does not belong here: drawing synthetic logs (`synthetic_criteo.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from tqdm import tqdm

from data_prep.output import (
    DataPrepError,
    fingerprint,
    is_finished,
    new_folder,
    new_parts,
    read_settings,
)
from data_prep.synthetic_criteo import CATEGORICAL_NAMES, COLUMN_NAMES, INTEGER_NAMES
from tutorlib.memory import thread_count
from tutorlib.storage import map_on_threads
from tutorlib.storage.atomic import remove

RAW_SCHEMA = pa.schema([("label", pa.int32()), *((n, pa.int64()) for n in COLUMN_NAMES[1:])])
RAW_ROW_GROUP_ROWS = 131_072
READ_BLOCK_BYTES = 1 << 23
_DAY_FILE = re.compile(r"(?P<stem>day_(?P<day>\d+)[^.]*)(\.tsv|\.txt)?(\.gz)?$")
_INTEGER = r"^-?[0-9]{1,18}$"
_HEX = r"^[0-9a-fA-F]{8}$"


@dataclasses.dataclass
class BadLines:
    """The malformed lines of one file.

    Args:
        file: name of the file.
        total: how many there are.
        reasons: {line number from 1: reason} of the first ten.
    """

    KEPT = 10

    file: str
    total: int = 0
    reasons: dict[int, str] = dataclasses.field(default_factory=dict)

    def add(self, number: int, reason: str) -> None:
        """Count line `number`; its reason is kept if it is one of the first ten so far."""
        self.total += 1
        self.reasons[number] = reason
        if len(self.reasons) > self.KEPT:
            del self.reasons[max(self.reasons)]

    @property
    def first(self) -> list[str]:
        """The first ten as "day_0.tsv:17: 39 fields instead of 40"."""
        return [f"{self.file}:{number}: {self.reasons[number]}" for number in sorted(self.reasons)]

    def __str__(self) -> str:
        rest = self.total - len(self.reasons)
        more = f"; and {rest:,} more" if rest else ""
        return f"{self.total:,} malformed lines in {self.file}: {'; '.join(self.first)}{more}"


def find_day_files(folder: str | Path) -> dict[str, Path]:
    """Return {stem: path} of the day files in a folder, in the order of their days.

    A day file is named `day_<number>`, with or without something behind the number (`day_0_head`),
    and ends in `.tsv`, `.txt`, `.gz`, `.tsv.gz` or nothing.

    Raises:
        DataPrepError: if there is none, or two of them would become the same Parquet file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataPrepError(
            f"--from {folder}: no such folder. Give the folder with the day files, or make one by "
            "`python -m data_prep synthetic criteo`."
        )
    found: dict[str, tuple[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _DAY_FILE.fullmatch(path.name)
        if not match or not path.is_file():
            continue
        stem = match["stem"]
        if stem in found:
            raise DataPrepError(
                f"{found[stem][1]} and {path} are the same day twice. Take one of them out."
            )
        found[stem] = (int(match["day"]), path)
    if not found:
        raise DataPrepError(
            f"--from {folder}: no day files there (day_0.tsv, day_0.gz, day_0, ...)"
        )
    order = sorted(found, key=lambda stem: (found[stem][0], stem))
    return {stem: found[stem][1] for stem in order}


def raw_to_parquet(
    source: str | Path,
    output: str | Path,
    *,
    on_bad_lines: str = "error",
    overwrite: bool = False,
    workers: int | None = None,
    client: Any = None,
) -> dict[str, Any]:
    """Write each raw day file as `output/day_*.parquet`: the same values, typed and checked.

    A line is malformed if it has not 40 fields, its label is not 0 or 1, an integer is not one, or
    a categorical value is not 8 hex digits; an empty field is a missing value, except for the
    label. Memory: about 300 MB for each file that is being read (a few blocks of 8 MB of text and a
    row group of 131,072 rows), whatever the files.

    Args:
        source: folder of day files, plain or gzip.
        output: folder for label, I1..I13 (int64) and C1..C26 (int64: the hex digits as a number).
        on_bad_lines: "error" refuses the data after having read the file to its end, so that the
            message has the total; "skip" keeps malformed lines out and reports them.
        overwrite: replace an output made with other settings.
        workers: files read at a time; None for as many as there are cores to use.
        client: `distributed.Client`, whose workers read the files instead.

    Returns:
        {"rows": {stem: rows}, "bad_lines": {stem: {"total": n, "first": [text, ...]}}}.

    Raises:
        ValueError: if `on_bad_lines` is neither.
        DataPrepError: malformed lines with "error", no day files, a broken gzip file, an output
            that is there with other settings.
    """
    if on_bad_lines not in ("error", "skip"):
        raise ValueError(f"on_bad_lines must be 'error' or 'skip', got {on_bad_lines!r}")
    files = find_day_files(source)
    settings = {"command": "criteo raw_to_parquet", "version": 1, "on_bad_lines": on_bad_lines,
                "files": fingerprint(list(files.values()))}  # fmt: skip
    output = Path(output)
    if is_finished(output, settings, overwrite=overwrite):
        return read_settings(output)["facts"]
    facts: dict[str, Any] = {"rows": {}, "bad_lines": {}}
    convert = functools.partial(_convert_day, skip=on_bad_lines == "skip")
    with new_folder(output, settings) as staging:
        targets = [staging.path / f"{stem}.parquet" for stem in files]
        if client is None:
            days = zip(files.values(), targets, strict=True)
            converted = map_on_threads(lambda day: convert(*day), days, thread_count(workers))
        else:
            futures = client.map(convert, list(files.values()), targets, pure=False)
            converted = [future.result() for future in futures]
        for stem, (rows, bad) in zip(files, converted, strict=True):
            facts["rows"][stem] = rows
            if bad.total:
                facts["bad_lines"][stem] = {"total": bad.total, "first": bad.first}
                print(f"kept out: {bad}", flush=True)
        staging.facts.update(facts)
    print(f"{output}: {sum(facts['rows'].values()):,} rows in {len(files)} files", flush=True)
    return facts


def _convert_day(path: Path, target: Path, skip: bool) -> tuple[int, BadLines]:
    rows, bad = 0, BadLines(path.name)
    with pq.ParquetWriter(target, RAW_SCHEMA, compression="zstd") as writer:
        held: list[pa.Table] = []
        for table in read_day(path, bad):
            rows += table.num_rows
            held.append(table)
            if sum(t.num_rows for t in held) >= RAW_ROW_GROUP_ROWS:
                whole = pa.concat_tables(held)
                full = whole.num_rows - whole.num_rows % RAW_ROW_GROUP_ROWS
                writer.write_table(whole.slice(0, full), row_group_size=RAW_ROW_GROUP_ROWS)
                held = [whole.slice(full)]
        whole = pa.concat_tables(held) if held else RAW_SCHEMA.empty_table()
        if whole.num_rows:
            writer.write_table(whole, row_group_size=RAW_ROW_GROUP_ROWS)
    if not rows and not bad.total:
        raise DataPrepError(f"{path} holds no line. Take it out, or fetch it again.")
    if bad.total and not skip:
        raise DataPrepError(f"{bad}. Nothing was kept. Correct them, or pass --on-bad-lines skip.")
    return rows, bad


def read_day(path: Path, bad: BadLines) -> Iterator[pa.Table]:
    """Yield the good lines of a raw day file as tables of RAW_SCHEMA; bad ones go to `bad`.

    Raises:
        DataPrepError: if a gzip file is cut short or damaged.
    """
    skipped: list[int] = []  # lines with a wrong number of fields, which the parser leaves out

    def leave_out(row: pa_csv.InvalidRow) -> str:
        bad.add(row.number, f"{row.actual_columns} fields instead of {row.expected_columns}")
        skipped.append(row.number)
        return "skip"

    bar = tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=path.name, disable=None)
    try:
        with bar, _open(path) as (raw, text):
            before = 0
            for batch in _csv_batches(text, leave_out):
                table = pa.Table.from_batches([batch])
                yield _typed(table, _LineNumbers(before, skipped), bad)
                before += table.num_rows
                bar.update(raw.tell() - bar.n)
    except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the data
        raise DataPrepError(
            f"{path} cannot be unpacked ({error}): cut short or damaged. Fetch it again."
        ) from error


def _csv_batches(text: Any, leave_out: Any) -> Iterator[pa.RecordBatch]:
    try:
        yield from pa_csv.open_csv(
            text,
            read_options=pa_csv.ReadOptions(
                column_names=list(COLUMN_NAMES), block_size=READ_BLOCK_BYTES, use_threads=False
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter="\t",
                quote_char=False,
                ignore_empty_lines=False,
                invalid_row_handler=leave_out,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types={name: pa.binary() for name in COLUMN_NAMES},
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV file" not in str(error):
            raise


class _open:
    """Context: (raw file, whose `tell` is the progress; file of plain text)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> tuple[Any, Any]:
        self._raw = open(self._path, "rb")
        packed = self._path.suffix == ".gz"
        return self._raw, gzip.GzipFile(fileobj=self._raw) if packed else self._raw

    def __exit__(self, *_: Any) -> None:
        self._raw.close()


@dataclasses.dataclass
class _LineNumbers:
    """Line numbers of parsed rows: `before` rows came earlier, `skipped` lines were left out."""

    before: int
    skipped: list[int]

    def of(self, rows: np.ndarray) -> np.ndarray:
        skipped = np.array(self.skipped, np.int64)
        good_before = skipped - 1 - np.arange(len(skipped))  # good rows before each skipped line
        rows = rows + self.before
        return rows + 1 + np.searchsorted(good_before, rows, side="right")


def _typed(table: pa.Table, lines: _LineNumbers, bad: BadLines) -> pa.Table:
    """Return the rows of bytes as RAW_SCHEMA, without those that have a bad value."""
    columns, wrong = _parse(table)
    if wrong:
        first_wrong = {row: name for name in reversed(wrong) for row in wrong[name].tolist()}
        rows = np.array(sorted(first_wrong))
        for row, number in zip(rows.tolist(), lines.of(rows).tolist(), strict=True):
            name = first_wrong[row]
            bad.add(number, _say_wrong(name, table[name][row].as_py()))
        keep = np.ones(table.num_rows, bool)
        keep[rows] = False
        columns, _ = _parse(table.filter(pa.array(keep)))
    return pa.table(dict(zip(COLUMN_NAMES, columns, strict=True))).cast(RAW_SCHEMA)


def _parse(table: pa.Table) -> tuple[list[pa.Array], dict[str, np.ndarray]]:
    """Return (columns, {name: rows with a bad value}); bad values make their column useless."""
    columns, wrong = [], {}
    for name in COLUMN_NAMES:
        column = pa.concat_arrays([*table[name].chunks, pa.array([], pa.binary())])
        parse = _hex_to_int if name in CATEGORICAL_NAMES else _text_to_int
        parsed = parse(column)
        if parsed is None:
            wrong[name] = _bad_rows(name, column)
        elif name == "label":
            good = pc.fill_null(pc.is_in(parsed, pa.array([0, 1])), False)
            if not pc.all(good).as_py() and len(parsed):
                wrong[name] = np.flatnonzero(~good.to_numpy(zero_copy_only=False))
        columns.append(parsed)
    return columns, {name: rows for name, rows in wrong.items() if len(rows)}


def _text(values: pa.Array) -> np.ndarray:
    """Return the bytes of all values behind one another: uint8, no copy."""
    ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    if not len(values) or values.buffers()[2] is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(values.buffers()[2], np.uint8)[ends[0] : ends[-1]]


def _text_to_int(column: pa.Array) -> pa.Array | None:
    """Return int64 with the same nulls, or None unless every value fits `_INTEGER`."""
    try:
        parsed = column.cast(pa.string()).cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    if (_text(column.drop_null()) | 32 == ord("x")).any():
        return None  # Arrow takes 0x1F for a number
    limits = pc.min_max(parsed).as_py()
    if limits["min"] is not None and max(-limits["min"], limits["max"]) >= 10**18:
        return None
    return parsed


def _hex_pairs() -> np.ndarray:
    """Return what two hex digits mean, by their bytes as a little-endian number; 256: none."""
    table = np.full(65_536, 256, np.uint16)
    for number in range(256):
        low, high = f"{number:02x}", f"{number:02X}"
        for text in {a + b for a in (low[0], high[0]) for b in (low[1], high[1])}:
            table[int.from_bytes(text.encode(), "little")] = number
    return table


_HEX_PAIRS = _hex_pairs()


def _hex_to_int(column: pa.Array) -> pa.Array | None:
    """Return int64 with the same nulls, or None unless every value is 8 hex digits."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    values = column.drop_null()
    if len(values) and pc.min_max(pc.binary_length(values)).as_py() != {"min": 8, "max": 8}:
        return None
    numbers = np.zeros(len(column), np.int64)
    if len(values):
        pairs = _HEX_PAIRS[_text(values).view("<u2")]
        if pairs.max() > 255:
            return None
        numbers[valid] = pairs.astype(np.uint8).view(">u4")
    return pa.array(numbers, mask=~valid)


def _bad_rows(name: str, column: pa.Array) -> np.ndarray:
    pattern = _HEX if name in CATEGORICAL_NAMES else _INTEGER
    fits = pc.match_substring_regex(column, pattern)
    return np.flatnonzero(~pc.fill_null(fits, True).to_numpy(zero_copy_only=False))


def _say_wrong(name: str, value: bytes | None) -> str:
    if name == "label":
        want = "0 or 1"
    else:
        want = "an integer" if name in INTEGER_NAMES else "8 hex digits"
    return f"{name} is {(value or b'')[:40].decode(errors='replace')!r}, must be {want}"


def make_workflow(freq_threshold: int = 15) -> Any:
    """Return the unfitted Workflow of the click logs.

    Counts: missing -> 0, negative -> 0, log1p, mean 0 and variance 1. Categorical values: ids by
    frequency; a value seen fewer than `freq_threshold` times shares the id for unknown values.
    """
    from tutorlib.ops import Categorify, Clip, FillMissing, LogOp, Normalize
    from tutorlib.workflow import Workflow

    counts = list(INTEGER_NAMES) >> FillMissing(0) >> Clip(min_value=0) >> LogOp() >> Normalize()
    ids = list(CATEGORICAL_NAMES) >> Categorify(freq_threshold=freq_threshold)
    return Workflow(counts, ids, ["label"])


def etl(
    parquet: str | Path,
    output: str | Path,
    *,
    valid_days: int = 1,
    valid_share: float = 0.2,
    freq_threshold: int = 15,
    row_group_rows: int = 131_072,
    rows_per_file: int = 1_048_576,
    overwrite: bool = False,
    workers: int | None = None,
    client: Any = None,
) -> dict[str, Any]:
    """Fit the Workflow on the training days and write `output/` train/, valid/ and workflow/.

    The split is by time: the last `valid_days` days validate. If there is one day only, its last
    `valid_share` of rows do, since rows stand in time order. A run that is killed while it writes
    leaves `output/tables.partial`, with which the next one goes on.

    Args:
        parquet: folder that `raw_to_parquet` wrote.
        output: folder that gets train/, valid/ and workflow/ (`Workflow.load` reads it).
        valid_days: days for validation, at least 1.
        valid_share: share of rows for validation if there is one day, in (0, 1).
        freq_threshold: `Categorify(freq_threshold=...)`.
        row_group_rows: rows of a row group of train/ and valid/.
        rows_per_file: rows of a part file.
        overwrite: replace an output made with other settings.
        workers: threads; None for as many as there are cores.
        client: `distributed.Client`, whose workers do the work instead.

    Returns:
        {"train_rows", "valid_rows", "cardinalities": {C1: ...}}.

    Raises:
        ValueError: if a setting is out of range.
        DataPrepError: if `parquet` was not written by `raw_to_parquet`, has too few days, or the
            output is there with other settings.
    """
    if valid_days < 1 or not 0 < valid_share < 1 or freq_threshold < 0:
        raise ValueError(
            "need valid_days >= 1, 0 < valid_share < 1, freq_threshold >= 0; got "
            f"{valid_days}, {valid_share}, {freq_threshold}"
        )
    days = _days_of(parquet)
    settings = {"command": "criteo etl", "version": 1, "valid_days": valid_days,
                "valid_share": valid_share, "freq_threshold": freq_threshold,
                "row_group_rows": row_group_rows, "rows_per_file": rows_per_file,
                "files": fingerprint(days)}  # fmt: skip
    output = Path(output)
    if is_finished(output, settings, overwrite=overwrite):
        return read_settings(output)["facts"]
    with new_parts(output, ("train", "valid", "workflow"), settings) as staging:
        sources = split_by_time(days, valid_days, valid_share)
        workflow = make_workflow(freq_threshold).fit(sources["train"], client, threads=workers)
        tables = workflow.transform_to_parquet(
            sources,
            output / "tables",
            row_group_rows=row_group_rows,
            rows_per_file=rows_per_file,
            client=client,
            threads=workers,
            overwrite=True,
        )
        for name, made in (("train", "train"), ("valid", "valid"), ("workflow", "_workflow")):
            (tables / made).rename(staging.path / name)
        remove(tables)
        sizes = workflow.embedding_sizes()
        staging.facts.update(
            {
                "train_rows": sources["train"].num_rows,
                "valid_rows": sources["valid"].num_rows,
                "cardinalities": {name: int(size) for name, (size, _) in sizes.items()},
            }
        )
    print(
        f"{output}: {staging.facts['train_rows']:,} rows in train/, "
        f"{staging.facts['valid_rows']:,} in valid/",
        flush=True,
    )
    return staging.facts


def _days_of(parquet: str | Path) -> list[Path]:
    """Return the Parquet files of the days, in the order in which they were converted."""
    content = read_settings(parquet)
    if content is None or content["settings"].get("command") != "criteo raw_to_parquet":
        raise DataPrepError(
            f"{parquet} was not finished by raw_to_parquet. Run `python -m data_prep criteo`."
        )
    return [Path(parquet) / f"{stem}.parquet" for stem in content["facts"]["rows"]]


def split_by_time(days: list[Path], valid_days: int, valid_share: float) -> dict[str, Any]:
    """Return {"train": source, "valid": source}: the last days, or the last rows of the only day.

    Raises:
        DataPrepError: if there are too few days, or rows, to have some on each side.
    """
    from tutorlib.parquet import ParquetSource
    from tutorlib.workflow import split_rows

    if len(days) == 1:
        try:
            return split_rows(days[0], {"train": 1 - valid_share, "valid": valid_share})
        except ValueError as error:
            raise DataPrepError(f"{days[0]} has too few rows to split: {error}") from error
    if len(days) <= valid_days:
        raise DataPrepError(
            f"{days[0].parent} has {len(days)} days, and --valid-days {valid_days} leaves none to "
            "train on. Give more days or a smaller --valid-days."
        )
    return {
        "train": ParquetSource(days[:-valid_days]),
        "valid": ParquetSource(days[-valid_days:]),
    }


def prepare(
    source: str | Path,
    output: str | Path,
    *,
    on_bad_lines: str = "error",
    overwrite: bool = False,
    workers: int | None = None,
    client: Any = None,
    **etl_settings: Any,
) -> dict[str, Any]:
    """Run both stages: `raw_to_parquet` into `output/parquet`, then `etl` into `output`.

    Args:
        source: folder of raw day files.
        output: data folder; gets parquet/, train/, valid/ and workflow/.
        on_bad_lines: see `raw_to_parquet`.
        overwrite: replace outputs made with other settings.
        workers: see `raw_to_parquet` and `etl`.
        client: see `raw_to_parquet` and `etl`.
        **etl_settings: passed on to `etl`.

    Returns:
        What `etl` returns.
    """
    parquet = Path(output) / "parquet"
    if client is not None:  # workers may have been started in another folder
        source, output = Path(source).absolute(), Path(output).absolute()
        parquet = output / "parquet"
    how = {"overwrite": overwrite, "workers": workers, "client": client}
    raw_to_parquet(source, parquet, on_bad_lines=on_bad_lines, **how)
    return etl(parquet, output, **how, **etl_settings)
