"""Raw Criteo day files to Parquet: the same values, typed, with every line checked.

Files are streamed, so memory does not grow with their size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from tqdm import tqdm

from data_prep.output import DataPrepError, fingerprint, finished_metadata, new_output
from data_prep.synthetic_criteo import CATEGORICAL_NAMES, COLUMN_NAMES, INTEGER_NAMES
from tutorlib.checks import check_choice
from tutorlib.memory import map_on_threads, thread_count
from tutorlib.storage import refuse_overlap

RAW_SCHEMA = pa.schema([("label", pa.int32()), *((n, pa.int64()) for n in COLUMN_NAMES[1:])])
_TEXT_SCHEMA = pa.schema([(name, pa.binary()) for name in COLUMN_NAMES])
RAW_ROW_GROUP_ROWS = 131_072
READ_BLOCK_BYTES = 1 << 23  # also the longest line
_DAY_FILE = re.compile(r"(?P<stem>day_(?P<day>\d+)[^.]*)(\.tsv|\.txt)?(\.gz)?$")

_COUNT_DIGITS = 18
_OF_COUNTS = np.isin(np.arange(256), list(b"-0123456789"))  # bool [256]


@dataclasses.dataclass
class BadLines:
    """The malformed lines of one file.

    Args:
        file: name of the file.
        total: number of malformed lines.
        reasons: {line number, from 1: reason} of the first ten.
    """

    KEPT = 10

    file: str
    total: int = 0
    reasons: dict[int, str] = dataclasses.field(default_factory=dict)

    def add(self, number: int, reason: str) -> None:
        """Count line `number`, and keep its reason if it is one of the first ten."""
        self.total += 1
        self.reasons[number] = reason
        if len(self.reasons) > self.KEPT:
            del self.reasons[max(self.reasons)]

    @property
    def first(self) -> list[str]:
        """The first ten, each as "day_0.tsv:17: 39 fields instead of 40"."""
        return [f"{self.file}:{number}: {self.reasons[number]}" for number in sorted(self.reasons)]

    def __str__(self) -> str:
        rest = self.total - len(self.reasons)
        more = f"; and {rest:,} more" if rest else ""
        return f"{self.total:,} malformed lines in {self.file}: {'; '.join(self.first)}{more}"


def find_day_files(folder: str | Path) -> dict[str, Path]:
    """Return {stem: path} of the day files in a folder, sorted by day.

    The name of a day file is `day_<number>`, optionally with a suffix (`day_0_head`), and the
    extension is `.tsv`, `.txt`, `.gz`, `.tsv.gz` or none.

    Raises:
        DataPrepError: if there is no day file, or two have the same stem.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataPrepError(
            f"--from {folder}: no such folder. Pass the folder with the day files, or create one "
            "with `python -m data_prep synthetic criteo`."
        )
    found: dict[str, tuple[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _DAY_FILE.fullmatch(path.name)
        if not match or not path.is_file():
            continue
        stem = match["stem"]
        if stem in found:
            raise DataPrepError(
                f"{found[stem][1]} and {path} are the same day. Remove one of them."
            )
        found[stem] = (int(match["day"]), path)
    if not found:
        raise DataPrepError(
            f"--from {folder}: no day files in this folder (day_0.tsv, day_0.gz, day_0, ...)"
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

    A line is malformed if it does not have 40 fields, its label is not 0 or 1, a count is not an
    integer of at most 18 digits, a categorical value is not 8 hex digits, or the line is longer
    than 8 MB. An empty field is a missing value, except for the label.

    Memory: about 300 MB per file that is being read (some blocks of 8 MB of text and a row group of
    131,072 rows), whatever the size of the files.

    Args:
        source: folder of day files, plain or gzip.
        output: folder for label, I1..I13 (int64) and C1..C26 (int64, the number the digits encode).
        on_bad_lines: "error" refuses the data after reading the file to its end, so that the
            message has the total; "skip" skips malformed lines and reports them.
        overwrite: replace an output made with other settings.
        workers: files read at the same time, at least 1; None is one per core.
        client: `distributed.Client` whose workers read the files instead.

    Returns:
        {"rows": {stem: rows}, "bad_lines": {stem: {"total": n, "first": [text, ...]}}}.

    Raises:
        ValueError: if `on_bad_lines` or `workers` is out of range.
        DataPrepError: if a line is malformed and `on_bad_lines` is "error", there are no day files,
            a gzip file is damaged, or the output exists with other settings.
    """
    check_choice("on_bad_lines", on_bad_lines, ("error", "skip"))
    files = find_day_files(source)
    settings = {"command": "criteo raw_to_parquet", "version": 1, "on_bad_lines": on_bad_lines,
                "files": fingerprint(list(files.values()))}  # fmt: skip
    output = Path(output)
    refuse_overlap(output, [source])
    finished = finished_metadata(output, settings, overwrite=overwrite)
    if finished is not None:
        return finished
    metadata: dict[str, Any] = {"rows": {}, "bad_lines": {}}
    convert = functools.partial(_convert_day, skip=on_bad_lines == "skip")
    with new_output(output, settings) as staging:
        targets = [staging.path / f"{stem}.parquet" for stem in files]
        if client is None:
            days = zip(files.values(), targets, strict=True)
            converted = map_on_threads(lambda day: convert(*day), days, thread_count(workers))
        else:
            futures = client.map(convert, list(files.values()), targets, pure=False)
            converted = [future.result() for future in futures]
        for stem, (rows, bad) in zip(files, converted, strict=True):
            metadata["rows"][stem] = rows
            if bad.total:
                metadata["bad_lines"][stem] = {"total": bad.total, "first": bad.first}
                print(f"skipped: {bad}", flush=True)
        staging.metadata.update(metadata)
    print(f"{output}: {sum(metadata['rows'].values()):,} rows in {len(files)} files", flush=True)
    return metadata


def _convert_day(path: Path, target: Path, skip: bool) -> tuple[int, BadLines]:
    rows, bad = 0, BadLines(path.name)
    with pq.ParquetWriter(
        target, RAW_SCHEMA, compression="zstd", write_page_checksum=True
    ) as writer:
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
        raise DataPrepError(f"{path} is empty. Remove it, or fetch it again.")
    if bad.total and not skip:
        raise DataPrepError(
            f"{bad}. Nothing was written. Correct them, or pass --on-bad-lines skip."
        )
    return rows, bad


def read_day(path: Path, bad: BadLines) -> Iterator[pa.Table]:
    """Yield the well-formed lines of a day file as tables of RAW_SCHEMA; add the others to `bad`.

    Raises:
        DataPrepError: if a gzip file is truncated or damaged.
    """
    bar = tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=path.name, disable=None)
    try:
        with bar, _open(path) as (raw, text):
            for first, lines, block in _blocks(text, bad):
                yield _typed(*_fields(first, lines, block, bad), bad)
                bar.update(raw.tell() - bar.n)
    except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk, not of the data
        raise DataPrepError(
            f"{path} cannot be unpacked ({error}): it is truncated or damaged. Fetch it again."
        ) from error


def _blocks(text: BinaryIO, bad: BadLines) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (number of the first line, lines, their text); lines longer than that are malformed."""
    number, rest = 1, b""
    while data := text.read(READ_BLOCK_BYTES):
        data = rest + data
        if end := data.rfind(b"\n") + 1:
            lines = int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))
            yield number, lines, memoryview(data)[:end]
            number += lines
        rest = data[end:]
        if len(rest) > READ_BLOCK_BYTES:
            bad.add(number, f"longer than {READ_BLOCK_BYTES:,} bytes")
            number, rest = number + 1, _after_this_line(text)
    if rest:
        yield number, rest.count(b"\n") + (not rest.endswith(b"\n")), memoryview(rest)


def _after_this_line(text: BinaryIO) -> bytes:
    """Read up to the end of the line; return what was read of the next ones."""
    while data := text.read(READ_BLOCK_BYTES):
        if end := data.find(b"\n") + 1:
            return data[end:]
    return b""


def _fields(
    first: int, lines: int, block: memoryview, bad: BadLines
) -> tuple[pa.Table, np.ndarray]:
    """Return (40 columns of bytes, line numbers) of the lines of a block that have 40 fields."""
    with contextlib.suppress(pa.ArrowInvalid):  # a line has another number of fields
        table = _parse_csv(block)
        if table.num_rows == lines:
            return table, first + np.arange(lines)
    good: list[bytes] = []
    numbers: list[int] = []
    for number, line in enumerate(bytes(block).split(b"\n")[:lines], first):
        line = line.removesuffix(b"\r")
        fields = line.count(b"\t") + 1
        if fields != len(COLUMN_NAMES):
            bad.add(number, f"{fields} fields instead of {len(COLUMN_NAMES)}")
        elif b"\r" in line:
            bad.add(number, "a carriage return within the line")
        else:
            good.append(line)
            numbers.append(number)
    table = _parse_csv(b"\n".join(good)) if good else _TEXT_SCHEMA.empty_table()
    return table, np.array(numbers, np.int64)


def _parse_csv(block: bytes | memoryview) -> pa.Table:
    """Return the fields of some lines as bytes; ArrowInvalid if a line does not have 40."""
    return pa_csv.read_csv(
        pa.BufferReader(block),
        read_options=pa_csv.ReadOptions(
            column_names=list(COLUMN_NAMES), block_size=len(block) + 1, use_threads=False
        ),
        parse_options=pa_csv.ParseOptions(
            delimiter="\t", quote_char=False, ignore_empty_lines=False
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=_TEXT_SCHEMA, null_values=[""], strings_can_be_null=True
        ),
    )


@contextlib.contextmanager
def _open(path: Path) -> Iterator[tuple[BinaryIO, Any]]:
    """Yield (raw file, whose position is the progress; file of plain text)."""
    with open(path, "rb") as raw:
        yield raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw


def _typed(table: pa.Table, lines: np.ndarray, bad: BadLines) -> pa.Table:
    """Return rows of bytes as RAW_SCHEMA, without those that have a bad value."""
    columns, wrong = _parse(table)
    if wrong:
        first_wrong = {row: name for name in reversed(wrong) for row in wrong[name].tolist()}
        rows = np.array(sorted(first_wrong))
        for row in rows.tolist():
            name = first_wrong[row]
            value = (table[name][row].as_py() or b"")[:40].decode(errors="replace")
            bad.add(int(lines[row]), f"{name} is {value!r}, must be {_RULES[name][1]}")
        keep = np.ones(table.num_rows, bool)
        keep[rows] = False
        columns, _ = _parse(table.filter(pa.array(keep)))
    return pa.table(dict(zip(COLUMN_NAMES, columns, strict=True))).cast(RAW_SCHEMA)


def _parse(table: pa.Table) -> tuple[list[pa.Array], dict[str, np.ndarray]]:
    """Return (columns, {name: rows with a bad value}); a column with bad values is unusable."""
    columns, wrong = [], {}
    for name in COLUMN_NAMES:
        column = pa.concat_arrays([*table[name].chunks, pa.array([], pa.binary())])
        parsed = _PARSERS[name](column)
        if parsed is None:
            wrong[name] = _bad_rows(name, column)
        columns.append(parsed)
    return columns, wrong


def _bad_rows(name: str, column: pa.Array) -> np.ndarray:
    """Return the rows that break the column's rule; only a label must not be missing."""
    fits = pc.match_substring_regex(column, _RULES[name][0])
    return np.flatnonzero(~pc.fill_null(fits, name != "label").to_numpy(zero_copy_only=False))


def _text(values: pa.Array) -> np.ndarray:
    """Return the concatenated bytes of all values: uint8, without a copy."""
    ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    if not len(values) or values.buffers()[2] is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(values.buffers()[2], np.uint8)[ends[0] : ends[-1]]


def _label_to_int(column: pa.Array) -> pa.Array | None:
    """Return int8, or None unless every value is 0 or 1."""
    digits = _text(column)
    if column.null_count or len(digits) != len(column) or (digits & 0xFE != ord("0")).any():
        return None
    return pa.array(digits & 1, pa.int8())


def _count_to_int(column: pa.Array) -> pa.Array | None:
    """Return int64 with the same nulls, or None unless every value fits the rule."""
    values = column.drop_null()
    if not _OF_COUNTS[_text(values)].all():
        return None  # Arrow parses 0x1F as a number
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest > _COUNT_DIGITS and len(_bad_rows("I1", column)):
        return None
    try:
        return column.cast(pa.string()).cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _hex_pairs() -> np.ndarray:
    """Return the value of two hex digits by their bytes, little-endian; 256 if they are not hex."""
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


_COUNT_RULE = (rf"^-?[0-9]{{1,{_COUNT_DIGITS}}}$", f"an integer of at most {_COUNT_DIGITS} digits")
_RULES = {
    "label": (r"^[01]$", "0 or 1"),
    **dict.fromkeys(INTEGER_NAMES, _COUNT_RULE),
    **dict.fromkeys(CATEGORICAL_NAMES, (r"^[0-9a-fA-F]{8}$", "8 hex digits")),
}
"""{column: (regular expression, words) of its values}; the parsers take exactly these values."""
_PARSERS = {
    "label": _label_to_int,
    **dict.fromkeys(INTEGER_NAMES, _count_to_int),
    **dict.fromkeys(CATEGORICAL_NAMES, _hex_to_int),
}
