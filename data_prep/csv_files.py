"""CSV files to training-ready Parquet: streamed, with types that hold for the whole of all files.

A first pass over the text finds the type of each column, a second one converts. So an integer
column that becomes float or text in its last row does not fail half way.

PyArrow parses blocks of 8 MB, so memory does not grow with the files. Where a block has quotes or
malformed lines, Python's csv module says first where each record begins and what is wrong with it:
PyArrow knows no line numbers, and drops the quotes of `"Weird Al" Yankovic` without a word.
`read_blocks` and `typed_table` also read the raw click logs (`criteo`).
"""

from __future__ import annotations

import bisect
import codecs
import contextlib
import csv
import dataclasses
import functools
import gzip
import io
import re
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from tqdm import tqdm

from data_prep.output import DataPrepError, fingerprint, finished_metadata, move_entries, new_output
from tutorlib.checks import check_choice, check_integer
from tutorlib.parquet import ParquetSink

REJECTED_FILE = "_rejected.csv"  # readers of data folders skip names that start with "_"
BLOCK_CHARACTERS = 1 << 23  # also the longest line and field
TOO_LONG = "\ud800"  # marks a longer line; no text that was decoded has it
ROWS_PER_FILE = 4_194_304
DELIMITERS = ",\t;|"
TEXT = pa.string()
_NO_TEXT = pa.scalar(None, TEXT)
_Heads = dict[Path, tuple["CsvOptions", list[str]]]  # what `read_head` returns of each file


@dataclasses.dataclass(frozen=True)
class CsvOptions:
    r"""How CSV files are written, and what becomes of their columns.

    Args:
        names: names of the columns, for files that have no header.
        types: types of columns, such as int64, float, string, bool or timestamp[us]. Those of other
            columns are inferred from all values.
        like: folder of an earlier conversion, whose types these files get: a column of words stays
            text, even if all words of another day are numbers.
        null_values: texts that mean a missing value in every column, besides the empty field. In
            columns that are not text, NA, NaN, null, NULL and the like are missing values too.
        strip: characters that are removed from both ends of every value, such as " ".
        delimiter: character between fields, \t for a tab; None takes the most frequent of , ; | and
            tab in the first line.
        quote: character around fields with delimiters or line breaks; "" if there is none.
        encoding: encoding of the files, such as latin-1 or utf-16.
        skip_lines: lines before the header or the first row, at least 0.
        on_bad_lines: "error" refuses a file with malformed lines after reading it to its end;
            "skip" leaves them out and keeps them in _rejected.csv: file, line, reason, text.

    Raises:
        ValueError: if an option is out of range.
    """

    names: Sequence[str] | None = None
    types: Mapping[str, str] | None = None
    like: str | None = None
    null_values: Sequence[str] = ()
    strip: str = ""
    delimiter: str | None = None
    quote: str = '"'
    encoding: str = "utf-8"
    skip_lines: int = 0
    on_bad_lines: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        check_choice("on_bad_lines", self.on_bad_lines, ("error", "skip"))
        check_integer("skip_lines", self.skip_lines, at_least=0)
        for name in ("delimiter", "quote"):
            mark = getattr(self, name)
            if mark not in (None, "", r"\t") and not (len(mark) == 1 and mark.isascii()):
                raise ValueError(f"{name} must be one ASCII character, got {mark!r}")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise ValueError(f"encoding must be a codec of Python, got {self.encoding!r}") from None

    def reader(self, lines: Iterator[str]) -> Any:
        """Return the reader of Python's csv module for lines of these files."""
        mark: Any = {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        return csv.reader(lines, strict=True, delimiter=self.delimiter or ",", **mark)


@dataclasses.dataclass
class BadLines:
    """The malformed lines of one file.

    Args:
        file: name of the file.
        keep: called with (file, number of the line, reason, text) of each, if given.
        total: number of malformed lines.
        lines: (number, from 1; reason) of the first ten.
    """

    file: str
    keep: Callable[[str, int, str, str], Any] | None = None
    total: int = 0
    lines: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def add(self, number: int, reason: str, text: str) -> None:
        """Count the record that begins in line `number`."""
        self.total += 1
        bisect.insort(self.lines, (number, reason))
        del self.lines[10:]
        if self.keep is not None:
            readable = text.encode("utf-8", "replace").decode().rstrip("\n")
            self.keep(self.file, number, reason, readable)

    @property
    def first(self) -> list[str]:
        """The first ten, each as "day_0.tsv:17: 39 fields instead of 40"."""
        return [f"{self.file}:{number}: {reason}" for number, reason in self.lines]

    def __str__(self) -> str:
        more = f"; and {self.total - 10:,} more" if self.total > 10 else ""
        return f"{self.total:,} malformed lines in {self.file}: {'; '.join(self.first)}{more}"

    def refuse(self) -> None:
        """Raise DataPrepError if there are any."""
        if self.total:
            raise DataPrepError(
                f"{self}. Nothing was written. Correct them, or pass --on-bad-lines skip."
            )


# ---- text: lines, records, blocks --------------------------------------------------------------


@contextlib.contextmanager
def _open(path: Path, options: CsvOptions) -> Iterator[tuple[BinaryIO, TextIO]]:
    """Yield (raw file, whose position is the progress; its text after `skip_lines`).

    Line ends of every kind are read as LF. Bytes that the encoding does not have are escaped.
    """
    utf8 = codecs.lookup(options.encoding).name == "utf-8"
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2).startswith(b"\x1f\x8b")  # of gzip
            text = io.TextIOWrapper(
                gzip.GzipFile(fileobj=raw) if packed else raw,
                encoding="utf-8-sig" if utf8 else options.encoding,
                errors="surrogateescape",
            )
            for _ in range(options.skip_lines):
                _line(text)
            yield raw, text
    except UnicodeError as error:  # utf-16 and the like have no bytes to escape
        raise DataPrepError(f"{path}: {_not_encoded(options)} ({error})") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataPrepError(
            f"{path} cannot be unpacked ({error}): it is truncated or damaged. Fetch it again."
        ) from error


def _not_encoded(options: CsvOptions) -> str:
    return f"not encoded in {options.encoding}. Pass its --encoding, such as latin-1"


def _line(text: TextIO) -> str:
    """Return the next line, or "" at the end; of one that is too long the beginning, marked."""
    line = text.readline(BLOCK_CHARACTERS)
    if len(line) == BLOCK_CHARACTERS and not line.endswith("\n"):
        while (rest := text.readline(BLOCK_CHARACTERS)) and not rest.endswith("\n"):
            pass
        line = f"{line[:200]}{TOO_LONG}\n"
    return line


def _lines(text: TextIO) -> Iterator[str]:
    return iter(functools.partial(_line, text), "")


def _unreadable(text: str, options: CsvOptions) -> str:
    """Return what is wrong with the characters of a text, "" if nothing is."""
    if TOO_LONG in text:
        return f"longer than {BLOCK_CHARACTERS:,} characters"
    return _not_encoded(options) if re.search("[\udc80-\udcff]", text) else ""


def read_head(path: Path, options: CsvOptions) -> tuple[CsvOptions, list[str]]:
    """Return the options with the delimiter of a file, and the names of its columns.

    Raises:
        DataPrepError: if the file is empty, its first record is malformed, or two columns have the
            same name.
    """
    delimiter = "\t" if options.delimiter == r"\t" else options.delimiter
    if delimiter is None:
        with _open(path, options) as (_, text):
            line = next((line for line in _lines(text) if line.strip("\n")), "")
        delimiter = max(DELIMITERS, key=re.sub(r'"[^"]*"', "", line).count)
    options = dataclasses.replace(options, delimiter=delimiter)
    with _open(path, options) as (_, text):
        fields, _ = _first_record(path, text, options)
    if options.names is not None:
        return options, list(options.names)
    names = [field.strip() or f"f{place}" for place, field in enumerate(fields)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataPrepError(
            f"{path}: several columns are called {twice}. Rename them, or skip the header "
            "(--skip-lines 1) and pass --names."
        )
    return options, names


def _first_record(path: Path, text: TextIO, options: CsvOptions) -> tuple[list[str], int]:
    """Return the fields of the first record, and the number of lines up to its end."""
    reader = options.reader(_lines(text))
    fields: list[str]
    try:
        fields = next((record for record in reader if record), [])
        reason = _unreadable("".join(fields), options) if fields else "it is empty. Leave it out."
    except csv.Error as error:
        reason = f"its first record is malformed ({error})"
    if reason:
        raise DataPrepError(f"{path}: {reason}")
    return fields, reader.line_num


class _Lines:
    """The lines of a block and, for a record that ends behind it, those that follow.

    Attributes:
        left: lines of the block that were not taken.
        taken: lines that were taken since this was last cleared.
    """

    def __init__(self, block: str, text: TextIO) -> None:
        self.left, self._text = deque(io.StringIO(block)), text
        self.taken: list[str] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self.left.popleft() if self.left else _line(self._text)
        if not line:
            raise StopIteration
        self.taken.append(line)
        return line


def _records(
    lines: _Lines, number: int, options: CsvOptions, expected: int, bad: BadLines
) -> tuple[list[tuple[int, str]], int]:
    """Return (line number, text) of records of `expected` fields, and the next line's number."""
    good: list[tuple[int, str]] = []
    reader = options.reader(lines)
    while lines.left:
        lines.taken.clear()
        try:
            fields, reason = len(next(reader)), ""
        except csv.Error as error:
            fields, reason = expected, f"malformed quotes ({error})"
            lines.left.extendleft(reversed(lines.taken[1:]))  # only the first line is to blame
            del lines.taken[1:]
        record = "".join(lines.taken)
        if fields != expected:
            reason = f"{fields} fields instead of {expected}"
        reason = _unreadable(record, options) or reason
        if reason and fields:
            bad.add(number, reason, record)
        elif fields:
            good.append((number, record))
        number += len(lines.taken)
    return good, number


class Block:
    """Some rows of a file.

    Args:
        table: the fields as strings; an empty field without quotes is null.
        bad: the malformed lines of the file.
        records: returns [(number of the line, text) of each row], and what follows.
    """

    def __init__(self, table: pa.Table, bad: BadLines, records: Callable[[], Any]) -> None:
        self.table, self._bad, self._records = table, bad, records

    @functools.cached_property
    def records(self) -> list[tuple[int, str]]:
        """(line number, text) of each row of the table."""
        return self._records()[0]

    def reject(self, reasons: Mapping[int, str]) -> None:
        """Remove rows, {row: reason}, because they are malformed."""
        for row, reason in sorted(reasons.items()):
            self._bad.add(self.records[row][0], reason, self.records[row][1])
        self.records = [each for row, each in enumerate(self.records) if row not in reasons]
        keep = ~np.isin(np.arange(self.table.num_rows), list(reasons))
        self.table = self.table.filter(pa.array(keep))


def read_blocks(
    path: Path, options: CsvOptions, names: Sequence[str], bad: BadLines
) -> Iterator[Block]:
    """Yield the rows of a file; records that are malformed are added to `bad`.

    A record is malformed if it has another number of fields, is not of the encoding, has a line
    longer than 8 MB, opens a quote that does not end, or has text after a quote that ends.

    Args:
        path: a CSV file, plain or gzip.
        options: with the delimiter.
        names: names of the columns.
        bad: the malformed lines of the file.

    Raises:
        DataPrepError: if a gzip file is damaged, or the file has another encoding.
    """
    csv.field_size_limit(BLOCK_CHARACTERS)
    bar = tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=path.name, disable=None)
    with bar, _open(path, options) as (raw, text):
        number = 1 + options.skip_lines
        if options.names is None:
            number += _first_record(path, text, options)[1]
        while block := text.read(BLOCK_CHARACTERS):
            block += "" if block.endswith("\n") else _line(text)
            # Most blocks hold whole records of the right length: PyArrow reads them as they are.
            whole = _has_whole_records(block, options, len(names))
            table = _parsed(block, options, names) if whole else None
            if table is not None:
                lines, unread = _Lines(block, io.StringIO()), BadLines("")
                of_rows = functools.partial(_records, lines, number, options, len(names), unread)
                yield Block(table, bad, of_rows)
                number += block.count("\n")
            else:
                lines = _Lines(block, text)
                records, number = _records(lines, number, options, len(names), bad)
                table = _parsed("".join(record for _, record in records), options, names)
                yield Block(table, bad, functools.partial(tuple, (records, number)))
            bar.update(raw.tell() - bar.n)


def _has_whole_records(block: str, options: CsvOptions, fields: int) -> bool:
    """Return whether quotes are in order, and records with quotes have so many fields."""
    if not options.quote or options.quote not in block:
        return True
    try:
        return set(map(len, options.reader(io.StringIO(block)))) <= {0, fields}
    except csv.Error:
        return False


def _parsed(block: str, options: CsvOptions, names: Sequence[str]) -> pa.Table | None:
    """Return the fields of records as strings, or None if one is malformed."""
    invalid = 0

    def note(row: pa_csv.InvalidRow) -> str:
        nonlocal invalid
        invalid += 1
        return "skip"

    try:
        data = block.encode() or b"\n"
    except UnicodeEncodeError:
        return None
    table = pa_csv.read_csv(
        pa.BufferReader(data),
        pa_csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
        pa_csv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote or False,
            newlines_in_values=bool(options.quote),
            invalid_row_handler=note,
        ),
        pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, TEXT),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    no_value = pa.array([*options.null_values, *([""] if options.strip else [])], TEXT)
    for place, name in enumerate(names if len(no_value) else []):
        column = pc.utf8_trim(table[name], options.strip)
        column = pc.if_else(pc.is_in(column, no_value), _NO_TEXT, column)
        table = table.set_column(place, name, column)
    return None if invalid else table


# ---- values: rules of columns ------------------------------------------------------------------


class Rule(NamedTuple):
    """What the values of a column must be: `words`.

    `convert` returns a column of text as its type, and raises `pa.ArrowInvalid` if a value does not
    fit, whatever the other values are.
    """

    convert: Callable[[pa.ChunkedArray], pa.ChunkedArray]
    words: str


def typed_table(block: Block, rules: Mapping[str, Rule]) -> pa.Table:
    """Return the columns that have a rule with their types; rows that break one are rejected."""
    try:
        return pa.table({name: rule.convert(block.table[name]) for name, rule in rules.items()})
    except pa.ArrowInvalid:
        reasons: dict[int, str] = {}
        for name, rule in rules.items():
            for row in _misfits(block.table[name], rule, 0):
                value = (block.table[name][row].as_py() or "")[:40]
                reasons.setdefault(row, f"{name} is {value!r}, must be {rule.words}")
        block.reject(reasons)
        return typed_table(block, rules)


def _misfits(column: pa.ChunkedArray, rule: Rule, first: int) -> list[int]:
    """Return the numbers, from `first` on, of the values that do not fit: by halves."""
    try:
        rule.convert(column)
        return []
    except pa.ArrowInvalid:
        if len(column) == 1:
            return [first]
        half = len(column) // 2
        after = _misfits(column[half:], rule, first + half)
        return [*_misfits(column[:half], rule, first), *after]


# ---- types: the narrowest that takes every value, whatever block it is in -----------------------

_WIDER = (
    (pa.bool_(),),
    (pa.int64(), pa.float64()),
    (pa.date32(), pa.timestamp("us")),
    (pa.timestamp("us", "UTC"),),
)  # the narrowest first
_NO_NUMBER = pa.array(pa_csv.ConvertOptions().null_values)  # "NA", "NaN", "null", ...
_FEW = 64  # values that are tried first
_EXACT = 2**53  # float64 holds all integers up to this
_ALIASES = {"float": "float64", "date": "date32", "timestamp": "timestamp[us]"}
_ELSEWHERE = {  # {pattern of values that are text here: what they look like, and what to write}
    r"[+-]?[0-9]{1,3}(\.?[0-9]{3})*,[0-9]+$": "a number with a decimal comma; write 1.5 for 1,5",
    r"[0-9]{1,2}[./][0-9]{1,2}[./][0-9]{2,4}\b": "a date; write 2024-12-31 for 31.12.2024",
}


def type_named(name: str) -> pa.DataType:
    """Return the Arrow type of a name: "int64", "float32", "string", "date32", "timestamp[s]", ...

    Raises:
        ValueError: if there is no such type, or text cannot be converted to it.

    Example:
        >>> type_named("float"), type_named("int8")
        (DataType(double), DataType(int8))
    """
    try:
        kind = pa.type_for_alias(_ALIASES.get(name, name))
        pa.array([], TEXT).cast(kind)
    except (ValueError, pa.ArrowNotImplementedError) as error:
        raise ValueError(
            f"{name!r} is no type that text can have. Use bool, int64, float32, string, date32, "
            "timestamp[us] or another numeric type of Arrow."
        ) from error
    return kind


def _plain(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return text without spaces around; NA, NaN, null, ... are null; for integers, 11.0 is 11."""
    values = pc.utf8_trim_whitespace(column)
    values = pc.if_else(pc.is_in(values, _NO_NUMBER), _NO_TEXT, values)
    if pa.types.is_integer(kind) and pc.any(pc.match_substring(values, ".")).as_py():
        values = pc.replace_substring_regex(values, r"^(-?[0-9]+)\.0+$", r"\1")
    return values


def converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return text as another type.

    Raises:
        pa.ArrowInvalid: if a value does not fit.
    """
    if kind == TEXT:
        return column
    if kind == pa.null():
        return pa.chunked_array([pa.nulls(len(column))])
    return _plain(column, kind).cast(kind)


class ColumnType:
    """The narrowest type of a column, learned block by block.

    true and false are bool. Whole numbers are int64, also with zeros after the point; with other
    decimals among them, float64. ISO 8601 dates are date32; with times, timestamp[us]. Anything
    else is text, also numbers that would not keep their digits: 007, 0x1F, or identifiers beyond 64
    bits. A column without any value has the type null.

    Example:
        >>> column = ColumnType()
        >>> column.add(pa.chunked_array([["1", "2.0", None]]))
        >>> column.kind
        DataType(int64)
        >>> column.add(pa.chunked_array([["2.5", "NA"]]))
        >>> column.kind
        DataType(double)
    """

    def __init__(self) -> None:
        self.kind = pa.null()
        self._beyond_float = False

    def add(self, column: pa.ChunkedArray) -> tuple[int, str] | None:
        """Widen the type to that of more values.

        Returns:
            (row, reason) of a value that made the column text, though all values before had a
            narrower type, or it looks like a number or date; otherwise None.
        """
        before = self.kind
        if before == TEXT:
            return None
        self.kind = self._widened(before, column)
        if self.kind != TEXT:
            return None
        row = bisect.bisect_left(
            range(1, len(column)), True, key=lambda n: self._widened(before, column[:n]) == TEXT
        )
        for pattern, meaning in _ELSEWHERE.items():
            if re.match(pattern, column[row].as_py().strip()):
                return row, f"It looks like {meaning}"
        if self._widened(before, column[:row]) == pa.null():
            return None
        return row, "If this is a missing value, pass it in --null-values"

    def _widened(self, kind: pa.DataType, column: pa.ChunkedArray) -> pa.DataType:
        if _plain(column, TEXT).null_count == len(column):
            return kind
        for types in _WIDER:
            if kind == pa.null() or kind in types:
                for wider in types[types.index(kind) if kind in types else 0 :]:
                    if self._fits(column, wider):
                        return wider
        return TEXT

    def _fits(self, column: pa.ChunkedArray, kind: pa.DataType) -> bool:
        # Arrow words an error for every value: a cast that fails takes a hundred times as long.
        if len(column) > _FEW and not self._fits(column[:_FEW], kind):
            return False
        try:
            values = converted(column, kind)
        except pa.ArrowInvalid:
            return False
        if pa.types.is_integer(kind):  # 007 and 0x1F are not written as integers are
            spelled = pc.equal(values.cast(TEXT), _plain(column, kind))
            ends = pc.min_max(values).as_py().values()
            self._beyond_float |= any(end is not None and abs(end) > _EXACT for end in ends)
            return pc.all(spelled, min_count=0).as_py()
        if pa.types.is_floating(kind):
            inexact = pc.match_substring_regex(column, r"^\s*[+-]?(0[0-9]|[0-9]{16,}\s*$)")
            return not self._beyond_float and not pc.any(inexact, min_count=0).as_py()
        if pa.types.is_boolean(kind):  # 0 and 1 are numbers
            return not pc.any(pc.match_substring_regex(column, "[01]"), min_count=0).as_py()
        return True


# ---- the conversion ----------------------------------------------------------------------------


def csv_to_parquet(
    files: Sequence[str | Path], output: str | Path, *, overwrite: bool = False, **options: Any
) -> dict[str, Any]:
    r"""Make CSV files of your own ready for training: Parquet with types that hold for all values.

    Rows keep their order. Memory (300 MB) does not grow with the files. Malformed lines are refused
    with their numbers: those with another number of fields than the header, a value that is not of
    the type given for its column, bytes that the encoding does not have, a quote that does not end,
    or text after a quote that ends.

    Args:
        files: CSV files with the same columns, plain or gzip (recognised by content).
        output: folder for part_*.parquet; complete or absent, even after a kill.
        overwrite: replace an output made with other settings.
        **options: those of `CsvOptions`.

    Returns:
        {"rows": n, "types": {column: type}, "nulls": {column: n}, "bad_lines": {file: {"total": n,
        "first": [text, ...]}}, "notes": [text, ...]}. The notes name each column that is text
        because of a value after narrower ones, or of one that looks like a number or date.

    Raises:
        ValueError: if an option is out of range.
        DataPrepError: if a file does not exist, has other columns than the first or malformed
            lines, or the output exists with other settings.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.csv").write_text("id,price\n1,2\n2,3.5\n")
        >>> csv_to_parquet([folder / "a.csv"], folder / "out")["types"]
        {'id': 'int64', 'price': 'double'}
    """
    chosen, paths = CsvOptions(**options), [Path(path) for path in files]
    if not paths:
        raise DataPrepError("no CSV file is given. Pass the files, such as FOLDER/*.csv.")
    for path in paths:
        if not path.is_file():
            remedy = f"a folder. Pass its files: {path}/*.csv" if path.is_dir() else "no such file"
            raise DataPrepError(f"{path}: {remedy}")
    kinds = {column: type_named(name) for column, name in (chosen.types or {}).items()}
    settings = {"command": "csv", "version": 2, **dataclasses.asdict(chosen),
                "files": [fingerprint([path]) for path in paths]}  # fmt: skip
    finished = finished_metadata(output, settings, overwrite=overwrite)
    if finished is not None:
        return finished
    heads = {path: read_head(path, chosen) for path in paths}
    _, names = heads[paths[0]]
    for path, (_, own) in heads.items():
        if {*own} != {*names}:
            raise DataPrepError(
                f"{path} has the columns {own}, but {paths[0]} has {names}. Convert files with "
                "other columns into another folder, or pass --names if they have no header."
            )
    if unknown := sorted(kinds.keys() - {*names}):
        raise ValueError(f"types names the columns {unknown}; there are {names}")
    if chosen.like is not None:
        kinds = _types_of(chosen.like, names) | kinds
    with new_output(output, settings, inputs=paths) as staging:
        bad_lines: dict[str, Any] = {}
        notes = _infer(heads, kinds, bad_lines) if len(kinds) < len(names) else []
        rules = _rules({name: kinds[name] for name in names})
        keep = _keeper(staging.path / REJECTED_FILE)
        rows, nulls = 0, dict.fromkeys(names, 0)
        with ParquetSink(staging.path / "rows", rows_per_file=ROWS_PER_FILE) as sink:
            for _, block in _blocks(heads, bad_lines, keep):
                table = typed_table(block, rules)
                sink.write(table)
                rows += table.num_rows
                for name in names:
                    nulls[name] += table[name].null_count
            if not rows:
                raise DataPrepError(f"{paths[0]}: no rows to convert in this file, nor in others.")
        move_entries(staging.path / "rows", staging.path)
        shutil.rmtree(staging.path / "rows")
        staging.metadata.update(
            {"rows": rows, "types": {name: str(kinds[name]) for name in names},
             "nulls": nulls, "bad_lines": bad_lines, "notes": notes}
        )  # fmt: skip
    return staging.metadata


def _types_of(folder: str | Path, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the types that an earlier conversion gave to columns of these names."""
    parts = sorted(Path(folder).glob("part_*.parquet"))
    if not parts:
        raise DataPrepError(f"--like {folder}: no part_*.parquet there, as this command writes")
    fields = [field for field in pq.read_schema(parts[0]) if field.name in names]
    return {field.name: field.type for field in fields if field.type != pa.null()}


def _rules(kinds: Mapping[str, pa.DataType]) -> dict[str, Rule]:
    return {
        n: Rule(functools.partial(converted, kind=kind), str(kind)) for n, kind in kinds.items()
    }


def _blocks(
    heads: _Heads, bad_lines: dict[str, Any], keep: Any = None
) -> Iterator[tuple[Path, Block]]:
    """Yield the blocks of all files; `bad_lines` gets those of each file, if they are skipped.

    Raises:
        DataPrepError: at the end of a file with malformed lines, unless they are skipped.
    """
    for path, (options, names) in heads.items():
        bad = BadLines(str(path), keep)
        for block in read_blocks(path, options, names, bad):
            yield path, block
        if options.on_bad_lines == "error":
            bad.refuse()
        if bad.total:
            bad_lines[str(path)] = {"total": bad.total, "first": bad.first}


def _infer(heads: _Heads, kinds: dict[str, pa.DataType], bad_lines: dict[str, Any]) -> list[str]:
    """Add the types of the other columns to `kinds`; return notes about those that became text."""
    notes, given = [], _rules(kinds)
    _, names = next(iter(heads.values()))
    columns = {name: ColumnType() for name in names if name not in kinds}
    for path, block in _blocks(heads, bad_lines):
        typed_table(block, given)  # rows that do not fit decide about no other column
        for name, column in columns.items():
            if reason := column.add(block.table[name]):
                row, meaning = reason
                notes.append(
                    f"{name} is text because of {block.table[name][row].as_py()[:40]!r} at "
                    f"{path}:{block.records[row][0]}. {meaning}. To refuse such lines, pass "
                    "--types."
                )
    kinds.update({name: column.kind for name, column in columns.items()})
    return notes


def _keeper(path: Path) -> Callable[..., None]:
    """Return a function that appends a malformed line to a CSV file."""

    def keep(*line: Any) -> None:
        header = [] if path.exists() else [("file", "line", "reason", "text")]
        with open(path, "a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([*header, line])

    return keep


def summary(output: str | Path, made: Mapping[str, Any]) -> str:
    """Return what `csv_to_parquet` returned as lines of text."""
    lines = [f"{output}: {made['rows']:,} rows"]
    width = max(map(len, made["types"]))
    for name, kind in made["types"].items():
        nulls = made["nulls"][name]
        lines.append(f"  {name:{width}}  {kind}" + (f", {nulls:,} without a value" * bool(nulls)))
    for path, bad in made["bad_lines"].items():
        where = f"{output}/{REJECTED_FILE}"
        lines.append(f"skipped: {bad['total']:,} malformed lines in {path}; see {where}")
    return "\n".join([*lines, *(f"note: {note}" for note in made["notes"])])
