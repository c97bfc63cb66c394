"""CSV files to training-ready Parquet: streamed, with types that hold for the whole of all files.

A first pass over the text finds the type of each column, a second one converts. So an integer
column that becomes float or text in its last row does not fail half way.

PyArrow parses blocks of 8 MB, so memory does not grow with the files. It knows no line numbers, and
drops the quotes of `"Weird Al" Yankovic` without a word. So a regular expression checks the quotes
of blocks that have some, and `_records` finds the malformed lines of a block that is refused.
`read_tables` also reads the raw click logs (`criteo`).
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_NO_TEXT = pa.scalar(None, TEXT)
_NOT_DECODED = re.compile("[\udc80-\udcff]")  # what escaped bytes become


@dataclasses.dataclass(frozen=True)
class CsvOptions:
    """How CSV files are written, and what becomes of their columns.

    Args:
        names: names of the columns, for files that have no header.
        types: types of columns, such as int64, float64, string, bool, date32 or timestamp[us].
            Those of other columns are inferred from all values.
        null_values: texts that mean a missing value in every column, besides the empty field. In
            columns that are not text, NA, NaN, null, NULL and the like are missing values too.
        strip: characters that are removed from both ends of every value, such as " ".
        delimiter: character between fields; None takes the most frequent of , ; | and tab in the
            first line.
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
    encoding: str = "utf-8"
    skip_lines: int = 0
    on_bad_lines: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        check_choice("on_bad_lines", self.on_bad_lines, ("error", "skip"))
        check_integer("skip_lines", self.skip_lines, at_least=0)
        mark = self.delimiter or ","
        if not (len(mark) == 1 and mark.isascii()):
            raise ValueError(f"delimiter must be one ASCII character, got {self.delimiter!r}")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise ValueError(f"encoding must be a codec of Python, got {self.encoding!r}") from None


class Record(NamedTuple):
    """A record of a file: the number, from 1, of its first line; its text; what is wrong, or ""."""

    line: int
    text: str
    reason: str


@dataclasses.dataclass
class BadLines:
    """The malformed lines of one file.

    Args:
        file: name of the file.
        kept: CSV file to which each is appended (file, line, reason, text), if given.
        total: number of malformed lines.
        first: the first ten, such as "day_0.tsv:17: 39 fields instead of 40".
    """

    file: str
    kept: Path | None = None
    total: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def add(self, records: Iterable[Record]) -> None:
        """Count the malformed records of a block."""
        wrong = sorted(record for record in records if record.reason)
        self.total += len(wrong)
        texts = [f"{self.file}:{line}: {reason}" for line, _, reason in wrong[:10]]
        self.first = [*self.first, *texts][:10]
        if self.kept is not None and wrong:
            with open(self.kept, "a", encoding="utf-8", errors="replace", newline="") as file:
                header = [] if file.tell() else [("file", "line", "reason", "text")]
                rows = [(self.file, line, why, text.rstrip("\n")) for line, text, why in wrong]
                csv.writer(file).writerows([*header, *rows])

    def __str__(self) -> str:
        more = "; ..." * (self.total > len(self.first))
        return f"{self.total:,} malformed lines in {self.file}: {'; '.join(self.first)}{more}"


# ---- text: lines, records, tables --------------------------------------------------------------


@contextlib.contextmanager
def _open(path: Path, options: CsvOptions) -> Iterator[tuple[Any, io.TextIOWrapper]]:
    """Yield (raw file, whose position is the progress; its text after `skip_lines`).

    Line ends of every kind are read as LF. Bytes that the encoding does not have are escaped.
    """
    encoding = "utf-8-sig" if options.encoding == "utf-8" else options.encoding
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2).startswith(b"\x1f\x8b")  # of gzip
            unpacked: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            text = io.TextIOWrapper(unpacked, encoding, errors="surrogateescape")
            for _ in range(options.skip_lines):
                text.readline(BLOCK_CHARACTERS)
            yield raw, text
    except (UnicodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataPrepError(
            f"{path} cannot be unpacked, or is {_not_encoded(options)} ({error}). Fetch a damaged "
            "file again."
        ) from error


def _not_encoded(options: CsvOptions) -> str:
    return f"not encoded in {options.encoding}: pass its --encoding, such as latin-1"


def _with_header(path: Path, options: CsvOptions) -> CsvOptions:
    """Return the options with the delimiter and names of a file, and its header among skip_lines.

    Raises:
        DataPrepError: if the header is missing or malformed, or has a name twice.
    """
    with _open(path, options) as (_, text):
        lines = options.skip_lines
        while (first := text.readline(BLOCK_CHARACTERS)) == "\n":
            lines += 1
        delimiter = options.delimiter or max(",\t;|", key=first.count)
        options = dataclasses.replace(options, delimiter=delimiter)
        if options.names is not None:
            return options
        reader = csv.reader(itertools.chain([first], text), strict=True, delimiter=delimiter)
        try:
            fields = next(reader)
        except csv.Error as error:
            raise DataPrepError(f"{path}: its first record is malformed ({error})") from error
    if not fields or _NOT_DECODED.search("".join(fields)):
        raise DataPrepError(f"{path} is " + (_not_encoded(options) if fields else "empty"))
    names = [field.strip() or f"f{place}" for place, field in enumerate(fields)]
    if len(names) > len({*names}):
        raise DataPrepError(
            f"{path}: several columns have the same name: {names}. Rename them, or skip the header "
            "(--skip-lines 1) and pass --names."
        )
    return dataclasses.replace(options, names=names, skip_lines=lines + reader.line_num)


def read_tables(
    path: Path, options: CsvOptions, rules: Mapping[str, Rule], bad: BadLines
) -> Iterator[pa.Table]:
    """Yield the rows of a CSV file, plain or gzip; records that are malformed are added to `bad`.

    A record is malformed if it has another number of fields, is not of the encoding, opens a quote
    that does not end, has text after a quote that ends, or a value breaks the rule of its column.

    Args:
        path: the file.
        options: how it is written, with names and a delimiter.
        rules: of some columns, which get their types; the others are text.
        bad: the malformed lines so far.

    Raises:
        DataPrepError: at the end of a file with malformed lines, unless they are skipped; if a gzip
            file is damaged, the file has another encoding, or a line is longer than 8 MB.
    """
    bar = tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=path.name, disable=None)
    with bar, _open(path, options) as (raw, text):
        number, rest, part = 1 + options.skip_lines, "", "more"
        while part:
            part, end = text.read(BLOCK_CHARACTERS), text.readline(BLOCK_CHARACTERS)
            block, rest = rest + part + end, ""
            if len(end) == BLOCK_CHARACTERS and not end.endswith("\n"):
                line = number + block.count("\n")
                raise DataPrepError(f"{path}:{line}: a line longer than {len(end):,} characters")
            if not block.endswith("\n"):  # the last line of the file
                block += "\n"
            records: list[Record] = []
            if (table := _parsed(block, options)) is None:
                records, rest = _records(block, number, options, at_end=not part)
                table = _parsed("".join(each.text for each in records if not each.reason), options)
            try:
                table = _typed(table, rules)
            except pa.ArrowInvalid:
                records = records or _records(block, number, options, at_end=True)[0]
                good = [place for place, each in enumerate(records) if not each.reason]
                wrong = _wrong_values(table, rules)
                for row, reason in wrong.items():
                    records[good[row]] = records[good[row]]._replace(reason=reason)
                keep = pa.array([row not in wrong for row in range(table.num_rows)])
                table = _typed(table.filter(keep), rules)
            bad.add(records)
            yield table
            number += block.count("\n") - rest.count("\n")
            bar.update(raw.tell() - bar.n)
    if bad.total and options.on_bad_lines == "error":
        raise DataPrepError(
            f"{bad}. Nothing was written. Correct them, or pass --on-bad-lines skip."
        )


@functools.cache
def _patterns(delimiter: str, fields: int) -> dict[str, re.Pattern[str]]:
    """Return the patterns of a field with its end, of records and of an unfinished record."""
    mark = re.escape(delimiter)
    # Inner groups are not possessive: Python 3.11.2 goes on behind what a failed one had matched.
    quoted = '"[^"]*+(?:""[^"]*+)*'
    field = rf'(?:{quoted}"|(?!")[^{mark}\n]*+)'
    record = rf"(?:{field}{mark}){{{fields - 1}}}{field}\n"
    patterns = {
        "field": rf"{field}[{mark}\n]",
        "records": rf"(?:\n|{record})*+",
        "record": record,
        "other length": rf"(?:{field}{mark})*{field}\n",
        "unfinished": rf"(?:{field}{mark})*{quoted}\Z",
    }
    return {name: re.compile(pattern) for name, pattern in patterns.items()}


def _records(
    block: str, number: int, options: CsvOptions, at_end: bool
) -> tuple[list[Record], str]:
    """Return the records of a block, and the last one, if it may go on in the next block."""
    names = options.names or ()
    patterns, start = _patterns(options.delimiter or ",", len(names)), 0
    found: list[Record] = []
    while start < len(block):
        reason = ""
        match = patterns["record"].match(block, start)
        if match is None and (match := patterns["other length"].match(block, start)):
            reason = f"{len(patterns['field'].findall(match[0]))} fields instead of {len(names)}"
        elif match is None:
            if not at_end and len(block) - start < BLOCK_CHARACTERS:
                if patterns["unfinished"].match(block, start):
                    return found, block[start:]
            reason = "malformed quotes: one does not end, or text follows its end"
        text = match[0] if match else block[start : block.index("\n", start) + 1]
        if _NOT_DECODED.search(text):
            reason = _not_encoded(options)
        if text != "\n":
            found.append(Record(number, text, reason))
        number, start = number + text.count("\n"), start + len(text)
    return found, ""


def _parsed(block: str, options: CsvOptions) -> Any:
    """Return the fields of records as a table of strings, or None if one is malformed.

    An empty field without quotes is null.
    """
    names = list(options.names or ())
    patterns = _patterns(options.delimiter or ",", len(names))
    if '"' in block and not patterns["records"].fullmatch(block):
        return None
    try:
        data = block.encode() or b"\n"
        table = pa_csv.read_csv(
            pa.BufferReader(data),
            pa_csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
            pa_csv.ParseOptions(delimiter=options.delimiter, newlines_in_values=True),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, TEXT),
                null_values=["", *options.null_values],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (UnicodeEncodeError, pa.ArrowInvalid):
        return None
    if options.strip:
        no_value = pa.array(["", *options.null_values])
        columns = [pc.utf8_trim(column, options.strip) for column in table.columns]
        columns = [pc.if_else(pc.is_in(x, no_value), _NO_TEXT, x) for x in columns]
        table = pa.table(columns, names)
    return table


# ---- values: rules of columns ------------------------------------------------------------------


class Rule(NamedTuple):
    """What the values of a column must be: `words`.

    `convert` returns a column of text as its type, and raises `pa.ArrowInvalid` if a value does not
    fit, whatever the other values are.
    """

    convert: Callable[[pa.ChunkedArray], pa.ChunkedArray]
    words: str


def _typed(table: pa.Table, rules: Mapping[str, Rule]) -> pa.Table:
    typed = {name: rule.convert(table[name]) for name, rule in rules.items()}
    return pa.table({name: typed.get(name, table[name]) for name in table.column_names})


def _wrong_values(table: pa.Table, rules: Mapping[str, Rule], first: int = 0) -> dict[int, str]:
    """Return {row, from `first` on: the value that breaks a rule, and the rule}: by halves."""
    try:
        for name, rule in rules.items():
            rule.convert(table[name])
    except pa.ArrowInvalid:
        if len(table) == 1:
            value = (table[name][0].as_py() or "")[:40]
            return {first: f"{name} is {value!r}, must be {rule.words}"}
        half = len(table) // 2
        wrong = _wrong_values(table[:half], rules, first)
        return wrong | _wrong_values(table[half:], rules, first + half)
    return {}


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
        As `convert`.

    Raises:
        ValueError: if an option is out of range.
        OSError: if a file cannot be read.
        DataPrepError: if a file has other columns than the first or malformed lines, or the output
            exists with other settings.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.csv").write_text("id,price\n1,2\n2,3.5\n")
        >>> made = csv_to_parquet([folder / "a.csv"], folder / "out")  # doctest: +ELLIPSIS
        /.../out: 2 rows
          id     int64
          price  double
    """
    chosen, paths = CsvOptions(**options), [Path(path) for path in files]

    def write(folder: Path) -> dict[str, Any]:
        made = convert(paths, folder, chosen)
        print(f"{output}: {made['rows']:,} rows")
        width = max(map(len, made["types"]))
        for name, kind in made["types"].items():
            nulls = made["nulls"][name]
            print(f"  {name:{width}}  {kind}" + f", {nulls:,} without a value" * bool(nulls))
        for path, bad in made["bad_lines"].items():
            where = f"{output}/{REJECTED_FILE}"
            print(f"skipped: {bad['total']:,} malformed lines in {path}; see {where}", flush=True)
        return made

    settings = {"command": "csv", "version": 3, **dataclasses.asdict(chosen),
                "files": [fingerprint([path]) for path in paths]}  # fmt: skip
    return make_once(output, settings, write, inputs=paths, overwrite=overwrite)


def convert(paths: Sequence[Path], folder: Path, options: CsvOptions) -> dict[str, Any]:
    """Write CSV files as Parquet files into a folder, which exists.

    Returns:
        {"rows": n, "types": {column: type}, "nulls": {column: n}, "bad_lines": {file: {"total": n,
        "first": [text, ...]}}}.

    Raises:
        ValueError, DataPrepError: as `csv_to_parquet`.
    """
    if not paths:
        raise DataPrepError("no CSV file is given. Pass the files, such as FOLDER/*.csv.")
    forms = [_with_header(path, options) for path in paths]
    names = list(forms[0].names or ())
    for path, form in zip(paths, forms, strict=True):
        if {*names} != {*(form.names or ())}:
            raise DataPrepError(
                f"{path} has the columns {form.names}, but {paths[0]} has {names}. Convert files "
                "with other columns into another folder, or pass --names if they have no header."
            )
    given = dict(options.types or {})
    kinds = {name: pa.type_for_alias(_ALIASES.get(kind, kind)) for name, kind in given.items()}
    if unknown := sorted(kinds.keys() - {*names}):
        raise ValueError(f"types names the columns {unknown}; there are {names}")
    bad_lines: dict[str, Any] = {}

    def tables(kept: Path | None = None) -> Iterator[pa.Table]:
        rules = {name: Rule(functools.partial(converted, kind=kind), str(kind))
                 for name, kind in kinds.items()}  # fmt: skip
        for path, form in zip(paths, forms, strict=True):
            bad = BadLines(str(path), kept)
            yield from read_tables(path, form, rules, bad)
            if bad.total:
                bad_lines[str(path)] = {"total": bad.total, "first": bad.first}

    columns = {name: list(KINDS) for name in names if name not in kinds}
    for table in tables() if columns else ():  # rows that break a rule decide about no other type
        columns = {name: fitting(left, table[name]) for name, left in columns.items()}
    kinds |= {name: [*left, TEXT][0] for name, left in columns.items()}
    rows, nulls = 0, dict.fromkeys(names, 0)
    with ParquetSink(folder / "rows") as sink:
        for table in tables(folder / REJECTED_FILE):
            sink.write(table.select(names))
            rows += table.num_rows
            for name in names:
                nulls[name] += table[name].null_count
        if not rows:
            raise DataPrepError(f"{paths[0]}: no rows to convert in this file, nor in others.")
    for part in (folder / "rows").glob("*.parquet"):
        part.rename(folder / part.name)
    remove(folder / "rows")
    types = {name: str(kinds[name]) for name in names}
    return {"rows": rows, "types": types, "nulls": nulls, "bad_lines": bad_lines}
