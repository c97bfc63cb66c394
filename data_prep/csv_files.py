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
import itertools
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from tqdm import tqdm

from data_prep.output import DataPrepError, fingerprint, make_once
from tutorlib.checks import check_choice, check_integer
from tutorlib.parquet import ParquetSink
from tutorlib.storage import remove

REJECTED_FILE = "_rejected.csv"  # readers of data folders skip names that start with "_"
BLOCK_CHARACTERS = 1 << 23  # more than the longest line and record
TEXT = pa.string()
_NOT_DECODED = re.compile("[\udc80-\udcff]")  # what escaped bytes become
_NO_TEXT = pa.scalar(None, TEXT)


@dataclasses.dataclass(frozen=True)
class CsvOptions:
    r"""How CSV files are written, and what becomes of their columns.

    Args:
        names: names of the columns, for files that have no header.
        types: types of columns, such as int64, float, string, bool or timestamp[us]. Those of other
            columns are inferred from all values.
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
        kept: CSV file to which each is appended (file, line, reason, text), if given.
        total: number of malformed lines.
        lines: (number, from 1; reason) of the first ten.
    """

    file: str
    kept: Path | None = None
    total: int = 0
    lines: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def add(self, number: int, reason: str, text: str) -> None:
        """Count the record that begins in line `number`."""
        self.total += 1
        bisect.insort(self.lines, (number, reason))
        del self.lines[10:]
        if self.kept is not None:
            header = [] if self.kept.exists() else [("file", "line", "reason", "text")]
            readable = text.encode("utf-8", "replace").decode().rstrip("\n")
            with open(self.kept, "a", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([*header, (self.file, number, reason, readable)])

    def report(self) -> dict[str, Any]:
        """Return {"total": n, "first": ["day_0.tsv:17: 39 fields instead of 40", ...]}."""
        first = [f"{self.file}:{number}: {reason}" for number, reason in self.lines]
        return {"total": self.total, "first": first}

    def __str__(self) -> str:
        more = f"; and {self.total - 10:,} more" if self.total > 10 else ""
        first = "; ".join(self.report()["first"])
        return f"{self.total:,} malformed lines in {self.file}: {first}{more}"

    def refuse(self) -> None:
        """Raise DataPrepError if there are any."""
        if self.total:
            raise DataPrepError(
                f"{self}. Nothing was written. Correct them, or pass --on-bad-lines skip."
            )


# ---- text: lines, records, blocks --------------------------------------------------------------


@contextlib.contextmanager
def _open(path: Path, options: CsvOptions) -> Iterator[tuple[Any, io.TextIOWrapper]]:
    """Yield (raw file, whose position is the progress; its text after `skip_lines`).

    Line ends of every kind are read as LF. Bytes that the encoding does not have are escaped.
    """
    csv.field_size_limit(BLOCK_CHARACTERS)
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
                text.readline(BLOCK_CHARACTERS)
            yield raw, text
    except UnicodeError as error:  # utf-16 and the like have no bytes to escape
        raise DataPrepError(f"{path}: {_not_encoded(options)} ({error})") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataPrepError(
            f"{path} cannot be unpacked ({error}): it is truncated or damaged. Fetch it again."
        ) from error


def _not_encoded(options: CsvOptions) -> str:
    return f"not encoded in {options.encoding}. Pass its --encoding, such as latin-1"


def _read_head(
    path: Path, text: io.TextIOWrapper, options: CsvOptions
) -> tuple[CsvOptions, list[str]]:
    """Return the options with a delimiter and names of columns, and the lines that were read.

    Raises:
        DataPrepError: if the header is missing or malformed, or has a name twice.
    """
    read: list[str] = []

    def lines() -> Iterator[str]:
        while line := text.readline(BLOCK_CHARACTERS):
            read.append(line)
            yield line

    first = next((line for line in lines() if line != "\n"), "")
    unquoted = re.sub(r'"[^"]*"', "", first)
    delimiter = "\t" if options.delimiter == r"\t" else options.delimiter
    options = dataclasses.replace(options, delimiter=delimiter or max(",\t;|", key=unquoted.count))
    if options.names is not None:
        return options, read
    try:
        fields: list[str] = next(options.reader(itertools.chain([first], lines())), [])
        reason = "" if fields else "it is empty. Leave it out."
        if _NOT_DECODED.search(first):
            reason = _not_encoded(options)
    except csv.Error as error:
        reason = f"its first record is malformed ({error})"
    if reason:
        raise DataPrepError(f"{path}: {reason}")
    names = [field.strip() or f"f{place}" for place, field in enumerate(fields)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataPrepError(
            f"{path}: several columns are called {twice}. Rename them, or skip the header "
            "(--skip-lines 1) and pass --names."
        )
    return dataclasses.replace(options, names=names), read


def column_names(path: Path, options: CsvOptions) -> list[str]:
    """Return the names of the columns of a file."""
    with _open(path, options) as (_, text):
        return list(_read_head(path, text, options)[0].names or ())


@dataclasses.dataclass
class Block:
    """Some rows of a file.

    Args:
        table: the fields as strings; an empty field without quotes is null.
        bad: the malformed lines of the file.
        text, number, options: where the rows are from; `number` is that of the first line.
        records: (line number, text) of each row, if known.
    """

    table: pa.Table
    bad: BadLines
    text: str
    number: int
    options: CsvOptions
    records: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def record(self, row: int) -> tuple[int, str]:
        """Return the line number and the text of a row."""
        if not self.records:
            good = _records(self.text, self.number, self.options, BadLines(""), at_end=True)
            self.records = good[0]
        return self.records[row]

    def reject(self, reasons: Mapping[int, str]) -> None:
        """Remove rows, {row: reason}, because they are malformed."""
        for row, reason in sorted(reasons.items()):
            number, text = self.record(row)
            self.bad.add(number, reason, text)
        keep = [row not in reasons for row in range(self.table.num_rows)]
        self.records = list(itertools.compress(self.records, keep))
        self.table = self.table.filter(pa.array(keep, pa.bool_()))


def read_blocks(path: Path, options: CsvOptions, bad: BadLines) -> Iterator[Block]:
    """Yield the rows of a CSV file, plain or gzip; records that are malformed are added to `bad`.

    A record is malformed if it has another number of fields, is not of the encoding, opens a quote
    that does not end, or has text after a quote that ends.

    Raises:
        DataPrepError: if a gzip file is damaged, the file has another encoding, or a line is longer
            than 8 MB.
    """
    bar = tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=path.name, disable=None)
    with bar, _open(path, options) as (raw, text):
        number, has_header = 1 + options.skip_lines, options.names is None
        options, head = _read_head(path, text, options)
        number += len(head) * has_header
        block, at_end = "" if has_header else "".join(head), False
        while not at_end:
            part, end = text.read(BLOCK_CHARACTERS), text.readline(BLOCK_CHARACTERS)
            block, at_end = block + part + end, not part
            if len(end) == BLOCK_CHARACTERS and not end.endswith("\n"):
                line = number + block.count("\n")
                raise DataPrepError(f"{path}:{line}: a line longer than {len(end):,} characters")
            # Most blocks hold whole records of the right length: PyArrow reads them as they are.
            rest = ""
            records: list[tuple[int, str]] = []
            table = _parsed(block, options) if _has_whole_records(block, options) else None
            if table is None:
                records, rest = _records(block, number, options, bad, at_end)
                table = _parsed("".join(record for _, record in records), options)
            yield Block(table, bad, block, number, options, records)
            number += block.count("\n") - rest.count("\n")
            block = rest
            bar.update(raw.tell() - bar.n)


def _has_whole_records(block: str, options: CsvOptions) -> bool:
    """Return whether quotes are in order, and records of a block with quotes have all fields."""
    if not options.quote or options.quote not in block:
        return True
    try:
        lengths = set(map(len, options.reader(io.StringIO(block))))
    except csv.Error:
        return False
    return lengths <= {0, len(options.names or ())}


def _records(
    block: str, number: int, options: CsvOptions, bad: BadLines, at_end: bool
) -> tuple[list[tuple[int, str]], str]:
    """Return [(line number, text)] of the well-formed records of a block, and the text left over.

    That is the last record, if it may go on in the next block.
    """
    good: list[tuple[int, str]] = []
    lines, start, stop, expected = list(io.StringIO(block)), 0, 0, len(options.names or ())

    def following() -> Iterator[str]:
        nonlocal stop
        while stop < len(lines):
            stop += 1
            yield lines[stop - 1]

    reader = options.reader(following())
    while start < len(lines):
        try:
            fields, reason = len(next(reader)), ""
        except csv.Error as error:
            rest = "".join(lines[start:stop])
            if stop == len(lines) and not at_end and len(rest) < BLOCK_CHARACTERS:
                return good, rest
            fields, reason, stop = expected, f"malformed quotes ({error})", start + 1
            reader = options.reader(following())  # only the first line is to blame
        record = "".join(lines[start:stop])
        if fields != expected:
            reason = f"{fields} fields instead of {expected}"
        if _NOT_DECODED.search(record):
            reason = _not_encoded(options)
        if reason and fields:
            bad.add(number + start, reason, record)
        elif fields:
            good.append((number + start, record))
        start = stop
    return good, ""


def _parsed(block: str, options: CsvOptions) -> pa.Table | None:
    """Return the fields of records as strings, or None if one is malformed."""
    names, invalid = list(options.names or ()), False

    def note(row: pa_csv.InvalidRow) -> str:
        nonlocal invalid
        invalid = True
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

KINDS = {  # {type, the narrowest first: what no value may match, so that all keep their digits}
    pa.null(): "^",
    pa.bool_(): "[01]",  # which are numbers
    pa.int64(): r"^(-0|0[0-9xX])",
    pa.float64(): r"^[+-]?(0[0-9]|[0-9]{16,}$)",
    pa.date32(): "",
    pa.timestamp("us"): "",
    pa.timestamp("us", "UTC"): "",
}
_NO_NUMBER = pa.array(pa_csv.ConvertOptions().null_values)  # "NA", "NaN", "null", ...
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


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text without spaces around; NA, NaN, null, ... are null."""
    values = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(values, _NO_NUMBER), _NO_TEXT, values)


def converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return text as another type; for integers, 11.0 is 11.

    Raises:
        pa.ArrowInvalid: if a value does not fit.
    """
    return column if kind == TEXT else _cast(_plain(column), kind)


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if kind == pa.null():
        return pa.chunked_array([pa.nulls(len(values))])
    if pa.types.is_integer(kind) and pc.any(pc.match_substring(values, ".")).as_py():
        values = pc.replace_substring_regex(values, r"^(-?[0-9]+)\.0+$", r"\1")
    return values.cast(kind)


def fitting(kinds: Sequence[pa.DataType], column: pa.ChunkedArray) -> list[pa.DataType]:
    """Return those of some types that take every value of a column of text.

    true and false are bool. Whole numbers are int64, also with zeros after the point; all numbers
    are float64. ISO 8601 dates are date32; with times, timestamp[us]. No type takes numbers that
    would not keep their digits: 007, 0x1F, or identifiers beyond 64 bits. Such columns are text.

    Example:
        >>> kinds = fitting(list(KINDS), pa.chunked_array([["1", "2.0", None]]))
        >>> kinds
        [DataType(int64), DataType(double)]
        >>> fitting(kinds, pa.chunked_array([["2.5", "NA"]]))
        [DataType(double)]
    """
    values = _plain(column) if kinds else column
    return [kind for kind in kinds if _fits(values, kind)]


def _fits(values: pa.ChunkedArray, kind: pa.DataType) -> bool:
    # Arrow words an error for every value: of those that fail, most do so in the first few.
    for part in (values[:64], values):
        wrong = KINDS[kind] and pc.match_substring_regex(part, KINDS[kind])
        if wrong and pc.any(wrong, min_count=0).as_py():
            return False
        try:
            _cast(part, kind)
        except pa.ArrowInvalid:
            return False
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
    names = column_names(paths[0], chosen)
    for path in paths[1:]:
        if {*names} != {*(own := column_names(path, chosen))}:
            raise DataPrepError(
                f"{path} has the columns {own}, but {paths[0]} has {names}. Convert files with "
                "other columns into another folder, or pass --names if they have no header."
            )
    if unknown := sorted(kinds.keys() - {*names}):
        raise ValueError(f"types names the columns {unknown}; there are {names}")

    def write(folder: Path) -> dict[str, Any]:
        notes = _infer(paths, chosen, names, kinds)
        rules, rows, nulls = _rules(kinds), 0, dict.fromkeys(names, 0)
        bad_lines: dict[str, Any] = {}
        with ParquetSink(folder / "rows") as sink:
            for block in _all_blocks(paths, chosen, bad_lines, folder / REJECTED_FILE):
                table = typed_table(block, rules)
                sink.write(table)
                rows += table.num_rows
                for name in names:
                    nulls[name] += table[name].null_count
            if not rows:
                raise DataPrepError(f"{paths[0]}: no rows to convert in this file, nor in others.")
        for part in (folder / "rows").glob("*.parquet"):
            part.rename(folder / part.name)
        remove(folder / "rows")
        types = {name: str(kinds[name]) for name in names}
        return {"rows": rows, "types": types, "nulls": nulls, "bad_lines": bad_lines,
                "notes": notes}  # fmt: skip

    settings = {"command": "csv", "version": 3, **dataclasses.asdict(chosen),
                "files": [fingerprint([path]) for path in paths]}  # fmt: skip
    return make_once(output, settings, write, inputs=paths, overwrite=overwrite)


def _rules(kinds: Mapping[str, pa.DataType]) -> dict[str, Rule]:
    return {
        n: Rule(functools.partial(converted, kind=kind), str(kind)) for n, kind in kinds.items()
    }


def _all_blocks(
    paths: Sequence[Path], options: CsvOptions, bad_lines: dict[str, Any], kept: Path | None = None
) -> Iterator[Block]:
    """Yield the blocks of all files; `bad_lines` gets those of each file, if they are skipped.

    Raises:
        DataPrepError: at the end of a file with malformed lines, unless they are skipped.
    """
    for path in paths:
        bad = BadLines(str(path), kept)
        yield from read_blocks(path, options, bad)
        if options.on_bad_lines == "error":
            bad.refuse()
        if bad.total:
            bad_lines[str(path)] = bad.report()


def _infer(
    paths: Sequence[Path], options: CsvOptions, names: Sequence[str], kinds: dict[str, pa.DataType]
) -> list[str]:
    """Add the types of the other columns to `kinds`; return notes about those that became text."""
    columns = {name: list(KINDS) for name in names if name not in kinds}
    rules, notes = _rules(kinds), []
    for block in _all_blocks(paths, options, {}) if columns else ():
        typed_table(block, rules)  # rows that do not fit decide about no other column
        for name, before in columns.items():
            column = block.table[name]
            columns[name] = fitting(before, column)
            if before and not columns[name] and (note := _note(before, column)):
                row, meaning = note
                notes.append(
                    f"{name} is text because of {column[row].as_py()[:40]!r} at "
                    f"{block.bad.file}:{block.record(row)[0]}. {meaning}. To refuse such lines, "
                    "pass --types."
                )
    kinds.update({name: left[0] if left else TEXT for name, left in columns.items()})
    return notes


def _note(before: Sequence[pa.DataType], column: pa.ChunkedArray) -> tuple[int, str] | None:
    """Return (row, meaning) of the value that made a column text; None for a column of words."""
    ends = range(1, len(column))
    row = bisect.bisect_left(ends, True, key=lambda end: not fitting(before, column[:end]))
    for pattern, meaning in _ELSEWHERE.items():
        if re.match(pattern, column[row].as_py().strip()):
            return row, f"It looks like {meaning}"
    if pa.null() in fitting(before, column[:row]):
        return None
    return row, "If this is a missing value, pass it in --null-values"


def summary(output: str | Path, made: Mapping[str, Any]) -> str:
    """Return what `csv_to_parquet` returned as lines of text."""
    lines = [f"{output}: {made['rows']:,} rows"]
    width = max(map(len, made["types"]))
    for name, kind in made["types"].items():
        nulls = made["nulls"][name]
        lines.append(f"  {name:{width}}  {kind}" + f", {nulls:,} without a value" * bool(nulls))
    for path, bad in made["bad_lines"].items():
        where = f"{output}/{REJECTED_FILE}"
        lines.append(f"skipped: {bad['total']:,} malformed lines in {path}; see {where}")
    return "\n".join([*lines, *(f"note: {note}" for note in made["notes"])])
