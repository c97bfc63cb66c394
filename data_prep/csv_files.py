"""CSV files to training-ready Parquet: streamed, with types that hold for the whole of all files.

`text_files` opens them, `csv_types` finds and makes the types.

A first pass over the text finds the type of each column, a second one converts. So an integer
column that becomes float or text in its last row does not fail half way.

PyArrow parses blocks of 8 MB, so memory does not grow with the files. It knows no line numbers, and
drops the quotes of `"Weird Al" Yankovic` without a word. So a regular expression checks the quotes
of blocks that have some, and `_records` finds the malformed lines of a block that is refused.
It knows only delimiters of one byte. Others become a character that the block does not have.
`read_tables` also reads the raw click logs (`criteo`).
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime
import functools
import io
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from tqdm import tqdm

from data_prep.csv_types import (
    KINDS,
    NO_TEXT,
    TEXT,
    Forms,
    advice,
    converted,
    dated,
    fits_dates,
    fitting,
)
from data_prep.output import DataPrepError, fingerprint, make_once
from data_prep.text_files import not_encoded, open_text
from tutorlib.checks import check_choice, check_integer
from tutorlib.parquet import ParquetSink

_ALIASES = {"float": "float64", "date": "date32", "timestamp": "timestamp[us]"}
REJECTED_FILE = "_rejected.csv"  # readers of data folders skip names that start with "_"
BLOCK_CHARACTERS = 1 << 23  # more than the longest line and record
WHITESPACE = "whitespace"  # as a delimiter: any number of blanks and tabs
COLUMNS = "  "  # as a delimiter: two or more blanks
EVERY = "*"  # as the column of a date format
_MARKS = "\x1f\x1e\x1d\x1c\x02\x03\x04\x05"  # that stand for other delimiters
NOT_DECODED = re.compile("[\udc80-\udcff]")  # what escaped bytes become
_START_CHARACTERS = 1 << 16  # in which delimiter and header are found


@dataclasses.dataclass(frozen=True)
class CsvOptions:
    r"""How CSV files are written, and what becomes of their columns.

    Args:
        no_header: the first line is a row, so the columns are f0, f1, ... or those of `names`.
        names: names of the columns, such as a,b,c, for files that have no header.
        rename: new names of columns: old=new.
        types: types of columns, such as int64, float64, string, bool, date32 or timestamp[us].
            Those of other columns are inferred from all values.
        decimal: decimal sign of numbers, . or a comma, with which 1.250,00 is 1250.
        thousands: sign between groups of three digits of numbers; without it, . with a decimal
            comma, and no sign otherwise.
        date_format: how dates that are not ISO 8601 are written, such as day=%d.%m.%Y for a column,
            or %d.%m.%Y for all of them (in Python the column "*").
        null_values: texts that mean a missing value in every column, besides the empty field. In
            columns that are not text, NA, NaN, null, NULL and the like are missing values too.
            In a column of text, an empty field in quotes is an empty text, not a missing value.
        strip: characters that are removed from both ends of every value, such as " " or "$".
        delimiter: text between fields, such as ; or :: or \t; "whitespace" is any number of blanks
            and tabs, two or more blanks are that many or more. By default it is found in the first
            lines.
        encoding: encoding of the files, such as latin-1 or utf-16-le; with utf-8, a byte order mark
            says which it is.
        skip_lines: lines before the header or the first row, at least 0.
        on_bad_lines: "error" refuses a file with malformed lines after reading it to its end;
            "skip" leaves them out and keeps them in _rejected.csv: file, line, reason, text.

    Raises:
        ValueError: if an option is out of range.
    """

    no_header: bool = False
    names: Sequence[str] | None = None
    rename: Mapping[str, str] | None = None
    types: Mapping[str, str] | None = None
    decimal: str = "."
    thousands: str | None = None
    date_format: Mapping[str, str] | None = None
    null_values: Sequence[str] = ()
    strip: str = ""
    delimiter: str | None = None
    encoding: str = "utf-8"
    skip_lines: int = 0
    on_bad_lines: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        check_choice("on_bad_lines", self.on_bad_lines, ("error", "skip"))
        check_choice("decimal", self.decimal, (".", ","))
        check_integer("skip_lines", self.skip_lines, at_least=0)
        if self.delimiter is not None and (not self.delimiter or {*self.delimiter} & {*'\n\r"'}):
            raise ValueError(
                f"delimiter must be a text without quotes and line ends, got {self.delimiter!r}"
            )
        sign = self.thousands or " "
        if len(sign) > 1 or sign.isalnum() or sign in "+-" or sign == self.decimal:
            raise ValueError(
                "thousands must be one character, no letter or digit, and not the decimal sign "
                f"{self.decimal!r}, got {self.thousands!r}"
            )
        try:
            "".encode(self.encoding)
        except LookupError:
            raise ValueError(f"encoding must be a codec of Python, got {self.encoding!r}") from None

    @property
    def forms(self) -> Forms:
        """How numbers are written."""
        thousands = "." if self.thousands is None and self.decimal == "," else self.thousands
        return Forms(self.decimal, thousands or "", self.strip)


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
        advice: {column: what its values look like, with the option to pass}.
    """

    file: str
    kept: Path | None = None
    total: int = 0
    first: list[str] = dataclasses.field(default_factory=list)
    advice: dict[str, str] = dataclasses.field(default_factory=dict)

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

    def remedy(self) -> str:
        """Return what to pass instead of correcting the lines, or ""."""
        return "".join(f" {text.removesuffix('.')}." for text in self.advice.values() if text)

    def __str__(self) -> str:
        more = "; ..." * (self.total > len(self.first))
        return f"{self.total:,} malformed lines in {self.file}: {'; '.join(self.first)}{more}"


# ---- text: lines, delimiters --------------------------------------------------------------------


@contextlib.contextmanager
def _open(path: Path, options: CsvOptions) -> Iterator[tuple[Any, io.TextIOWrapper]]:
    """Yield (raw file, whose position is the progress; its text after `skip_lines`)."""
    with open_text(path, options.encoding) as (raw, text):
        for _ in range(options.skip_lines):
            text.readline(BLOCK_CHARACTERS)
        yield raw, text


def _marked(text: str, delimiter: str) -> tuple[str, str]:
    r"""Return whole lines with one ASCII character instead of a delimiter, and this character.

    Example:
        >>> _marked("1::F::a,b\n", "::")
        ('1\x1fF\x1fa,b\n', '\x1f')
        >>> _marked(' 1   2 "New  York"\n', "whitespace")
        ('1\x1f2\x1f"New  York"\n', '\x1f')
    """
    if len(delimiter) == 1 and delimiter.isascii():
        return text, delimiter
    if (mark := next((each for each in _MARKS if each not in text), None)) is None:
        raise DataPrepError(f"text with the delimiter {delimiter!r} has all of {_MARKS!r} too")
    if delimiter != WHITESPACE and delimiter.strip(" "):
        return text.replace(delimiter, mark), mark
    blanks = r"[ \t]+" if delimiter == WHITESPACE else f" {{{len(delimiter)},}}"
    text = re.sub(r"^[ \t]+|[ \t]+$", "", text, flags=re.MULTILINE)
    if '"' not in text:
        return re.sub(blanks, mark, text), mark
    quoted = r'(?<![^ \t\n])"[^"\n]*+(?:""[^"\n]*+)*"'
    return re.sub(f"({quoted})|{blanks}", lambda found: found[1] or mark, text), mark


def _restored(text: str, delimiter: str, mark: str) -> str:
    """Return a text as it was before `_marked`, except for the number of blanks."""
    return text.replace(mark, " " if delimiter == WHITESPACE else delimiter)


# ---- what the first lines say: delimiter, header -------------------------------------------------

DELIMITERS = (",", "\t", ";", "|", "::", "||", "^", "~", "\x01", "¦", "§")
_QUOTED = re.compile(r'(?<![^,\t;|:^~\x01\s])"[^"]*+(?:""[^"]*+)*"')
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?|\d{4}-\d\d-\d\d([T ].*)?|"
                     r"\d{1,2}[./]\d{1,2}[./]\d{2,4}")  # fmt: skip


def _split(line: str, delimiter: str) -> list[str]:
    if delimiter == WHITESPACE:
        return line.split()
    return re.split(" {2,}", line.strip()) if delimiter == COLUMNS else line.split(delimiter)


def _found(lines: Sequence[str], delimiter: str, share: float = 1) -> int:
    """Return how often the first line has a delimiter, if a share of all has it as often, or 0."""
    numbers = [len(_split(line, delimiter)) - 1 for line in lines]
    return numbers[0] if numbers.count(numbers[0]) >= share * len(lines) else 0


def _delimiter(lines: Sequence[str], decimal: str) -> str:
    """Return the delimiter of some lines without quoted fields: the one that all have as often.

    A few lines may be malformed. A comma between digits is a decimal sign if the lines have another
    delimiter. Blanks separate lines that have a number in some column, or several in each place.
    """
    steady = {each: _found(lines, each, 0.8) for each in DELIMITERS}
    steady = {each: number for each, number in steady.items() if number}
    if steady.get("|", -1) == 2 * steady.get("||", 0):
        del steady["|"]
    if len(steady) > 1 and (decimal == "," or re.search(r"\d,\d", lines[-1])):
        commas = [re.sub(r"(?<=\d),(?=\d)", "", line) for line in lines]
        if decimal == "," or not _found(commas, ",", 0.8):
            steady.pop(",", None)
    if steady:
        return max(steady, key=lambda each: (len(each), each in ",\t;|", steady[each]))
    if len(lines) > 1 and _found(lines, WHITESPACE):
        columns = zip(*(line.split() for line in lines[1:]), strict=True)
        if any(all(map(_NUMBER.fullmatch, column)) for column in columns):
            return WHITESPACE
    if len(lines) > 1 and _found(lines, COLUMNS):
        return COLUMNS
    often = [each for each in DELIMITERS if sum(each in line for line in lines) > len(lines) / 2]
    seen = [each for each in often if len(each) > 1 and each in lines[0]]
    return (seen or [max(",\t;|", key=lines[0].count)])[0]


def _one_column(lines: Sequence[str]) -> str:
    """Return what seems to separate fields in lines that were read as one column, or ""."""
    if len(lines) < 2:
        return ""
    marks = sorted({*re.findall(r"[^\w\s\"'.+-]+", lines[0])})
    for delimiter in (*DELIMITERS, *marks, COLUMNS, WHITESPACE):
        if number := _found(lines, delimiter, 1 if delimiter == WHITESPACE else 0.8):
            shown = "groups of blanks" if delimiter in (COLUMNS, WHITESPACE) else repr(delimiter)
            return (
                f"was read as one column, but its lines have {number} of {shown} each. If these "
                f"separate fields, pass --delimiter {delimiter!r}"
            )
    if all(COLUMNS in line.strip() for line in lines):
        return (
            "was read as one column, but each line has several blanks in one place. If its columns "
            "have fixed widths, pandas.read_fwf reads it"
        )
    for delimiter in DELIMITERS:
        if delimiter not in lines[0] and _found(lines[1:], delimiter, 0.8):
            return (
                f"was read as one column, because its first line has no {delimiter!r}; those after "
                "it have. If it is no header, pass --skip-lines 1"
            )
    return ""


def _is_row(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a header looks like a row: some of its fields are numbers, as those below are.

    Numbers that ascend, such as 2019, 2020 or 0, 1, 2, may well be names.
    """
    numbers = [place for place, name in enumerate(names) if _NUMBER.fullmatch(name.strip())]
    for row in rows:
        numbers = [x for x in numbers if x < len(row) and _NUMBER.fullmatch(row[x].strip() or "0")]
    if not numbers or not rows:
        return False
    values = [names[place].strip() for place in numbers]
    ascend = all(each.isdigit() for each in values) and [*map(int, values)] == sorted(
        {*map(int, values)}
    )
    step = ascend and int(values[-1]) - int(values[0]) == len(values) - 1
    return not (len(values) > 1 and step)


class Form(NamedTuple):
    """How one file is written: options with its delimiter, names and lines to skip; notes on it."""

    options: CsvOptions
    notes: list[str]


def _form(path: Path, options: CsvOptions) -> Form:
    """Return how a file is written, as its first lines say.

    Raises:
        DataPrepError: if the header is missing or malformed, or has a name twice.
        ValueError: if `rename` does not fit the names.
    """
    with _open(path, options) as (_, text):
        start = text.read(_START_CHARACTERS) + text.readline(BLOCK_CHARACTERS)
        whole = not text.read(1)
    lines = [line for line in _QUOTED.sub("Q", start).split("\n") if line.strip()] or [""]
    if not whole and len(lines) > 3:
        del lines[-2:]  # of which a quoted field may lack its end
    delimiter = "\t" if options.delimiter == "\\t" else options.delimiter
    delimiter = delimiter or _delimiter(lines[:50], options.decimal)
    options = dataclasses.replace(options, delimiter=delimiter)
    names = options.names
    if names is not None and len(names) == 1:
        names = names[0].split(",")
    marked, mark = _marked(start, delimiter)
    rows, header_lines = _first_rows(marked, mark)
    if not rows and names is None:
        why = "its first record is malformed: a quote does not end, or text follows its end"
        raise DataPrepError(f"{path} is empty" if not start.strip() else f"{path}: {why}")
    notes = []
    if rows and len(rows[0]) == 1 and (seen := _one_column(lines[:50])):
        notes.append(f"{path} {seen}.")
    if names is None and options.no_header:
        names = [f"f{place}" for place in range(len(rows[0]))]
    elif names is None:
        fields = [_restored(field, delimiter, mark).strip() for field in rows[0]]
        if NOT_DECODED.search("".join(fields)):
            raise DataPrepError(f"{path} is {not_encoded(options.encoding)}")
        names = [field or f"f{place}" for place, field in enumerate(fields)]
        shown = ", ".join(names[:9]) + ", ..." * (len(names) > 9)
        if len(names) > len({*names}):
            raise DataPrepError(
                f"{path}: several columns have the same name: {names}. Pass --no-header if this is "
                "a row, or replace the header: --skip-lines 1 and --names."
            )
        if _is_row(fields, rows[1:]) or "" in fields:
            what = "has empty names" if "" in fields else "looks like a row of values"
            notes.append(f"{path}: its header {what}: {shown}. Pass --no-header if it is a row.")
        options = dataclasses.replace(options, skip_lines=options.skip_lines + header_lines)
    rename = dict(options.rename or {})
    if unknown := sorted(rename.keys() - {*names}):
        raise ValueError(f"rename names the columns {unknown}; there are {list(names)}")
    names = [rename.get(name, name) for name in names]
    if len(names) > len({*names}):
        raise ValueError(f"names of columns must differ, got {names}")
    return Form(dataclasses.replace(options, names=names), notes)


def _first_rows(text: str, mark: str) -> tuple[list[list[str]], int]:
    """Return five rows of a text, or those before a malformed one; the lines of the first."""
    reader = csv.reader(io.StringIO(text), strict=True, delimiter=mark)
    rows: list[list[str]] = []
    lines = 0
    with contextlib.suppress(csv.Error):
        for row in reader:
            if row:  # not a blank line
                lines = lines or reader.line_num
                rows.append(row)
            if len(rows) == 5:
                break
    return rows, lines


# ---- text: records, tables -----------------------------------------------------------------------


def read_tables(
    path: Path, options: CsvOptions, rules: Mapping[str, Rule], bad: BadLines
) -> Iterator[pa.Table]:
    """Yield the rows of a CSV file, also packed; records that are malformed are added to `bad`.

    A record is malformed if it has another number of fields, is not of the encoding, opens a quote
    that does not end, has text after a quote that ends, or a value breaks the rule of its column.

    Args:
        path: the file.
        options: how it is written, with names and a delimiter.
        rules: of some columns, which get their types; the others are text.
        bad: the malformed lines so far.

    Raises:
        DataPrepError: at the end of a file with malformed lines, unless they are skipped; if the
            file is damaged, has another encoding, or a line longer than 8 MB.
    """
    delimiter = options.delimiter or ","
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
            block, mark = _marked(block, delimiter)
            records: list[Record] = []
            if (table := _parsed(block, options, mark)) is None:
                records, rest = _records(block, number, options, mark, at_end=not part)
                good = "".join(each.text for each in records if not each.reason)
                table = _parsed(good, options, mark)
            try:
                table = _typed(table, rules)
            except pa.ArrowInvalid:
                records = records or _records(block, number, options, mark, at_end=True)[0]
                wrong = _wrong_values(table, rules)
                for name, rule in rules.items():
                    if rule.advice and name not in bad.advice and wrong:
                        bad.advice[name] = rule.advice(name, table[name])
                places = [place for place, each in enumerate(records) if not each.reason]
                for row, reason in wrong.items():
                    records[places[row]] = records[places[row]]._replace(reason=reason)
                keep = pa.array([row not in wrong for row in range(table.num_rows)])
                table = _typed(table.filter(keep), rules)
            bad.add(each._replace(text=_restored(each.text, delimiter, mark)) for each in records)
            yield table
            number += block.count("\n") - rest.count("\n")
            rest = _restored(rest, delimiter, mark)
            bar.update(raw.tell() - bar.n)
    if bad.total and options.on_bad_lines == "error":
        remedy = bad.remedy() or " Correct them, or pass --on-bad-lines skip."
        raise DataPrepError(f"{bad}. Nothing was written.{remedy}")


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
    block: str, number: int, options: CsvOptions, mark: str, at_end: bool
) -> tuple[list[Record], str]:
    """Return the records of a block, and the last one, if it may go on in the next block."""
    names = options.names or ()
    patterns, start = _patterns(mark, len(names)), 0
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
        if NOT_DECODED.search(text):
            reason = not_encoded(options.encoding)
        if text != "\n":
            found.append(Record(number, text, reason))
        number, start = number + text.count("\n"), start + len(text)
    return found, ""


def _parsed(block: str, options: CsvOptions, mark: str) -> Any:
    """Return the fields of records as a table of strings, or None if one is malformed.

    An empty field without quotes is null.
    """
    names = list(options.names or ())
    patterns = _patterns(mark, len(names))
    if '"' in block and not patterns["records"].fullmatch(block):
        return None
    try:
        data = block.encode() or b"\n"
        table = pa_csv.read_csv(
            pa.BufferReader(data),
            pa_csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
            pa_csv.ParseOptions(delimiter=mark, newlines_in_values=True),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, TEXT),
                null_values=["", *options.null_values],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (UnicodeEncodeError, pa.ArrowInvalid):
        return None
    if mark != (delimiter := options.delimiter or ",") and '"' in block:
        text = _restored(mark, delimiter, mark)
        columns = [pc.replace_substring(column, mark, text) for column in table.columns]
        table = pa.table(columns, names)
    if options.strip:
        no_value = pa.array(["", *options.null_values])
        columns = [pc.utf8_trim(column, options.strip) for column in table.columns]
        columns = [pc.if_else(pc.is_in(x, no_value), NO_TEXT, x) for x in columns]
        table = pa.table(columns, names)
    return table


# ---- values: rules of columns ------------------------------------------------------------------


class Rule(NamedTuple):
    """What the values of a column must be: `words`.

    `convert` returns a column of text as its type, and raises `pa.ArrowInvalid` if a value does not
    fit, whatever the other values are. `advice` says what to pass for values of a column (name,
    text) that do not fit, or "".
    """

    convert: Callable[[pa.ChunkedArray], pa.ChunkedArray]
    words: str
    advice: Callable[[str, pa.ChunkedArray], str] | None = None


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
        files: CSV files with the same columns, also packed (gzip, bz2, xz, zst, lz4, zip of one
            file); the content decides, not the name.
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
        for note in made["notes"]:
            print(f"note: {note}", flush=True)
        return made

    settings = {"command": "csv", "version": 4, **dataclasses.asdict(chosen),
                "files": [fingerprint([path]) for path in paths]}  # fmt: skip
    return make_once(output, settings, write, inputs=paths, overwrite=overwrite)


def convert(paths: Sequence[Path], folder: Path, options: CsvOptions) -> dict[str, Any]:
    """Write CSV files as Parquet files into a folder, which exists.

    Returns:
        {"rows": n, "types": {column: type}, "nulls": {column: n}, "bad_lines": {file: {"total": n,
        "first": [text, ...]}}, "notes": [what may have been read wrongly, ...]}.

    Raises:
        ValueError, DataPrepError: as `csv_to_parquet`.
    """
    if not paths:
        raise DataPrepError("no CSV file is given. Pass the files, such as FOLDER/*.csv.")
    forms = [_form(path, options) for path in paths]
    notes = [note for form in forms for note in form.notes]
    names = list(forms[0].options.names or ())
    for path, form in zip(paths, forms, strict=True):
        if {*names} != {*(form.options.names or ())}:
            raise DataPrepError(
                f"{path} has the columns {form.options.names}, but {paths[0]} has {names}. Convert "
                "files with other columns into another folder, or pass --names if they have no "
                "header."
            )
    formats = dict(options.date_format or {})
    every = formats.pop(EVERY, "")
    kinds = {name: _type_of_format(date_format) for name, date_format in formats.items()}
    given = dict(options.types or {})
    kinds |= {name: pa.type_for_alias(_ALIASES.get(kind, kind)) for name, kind in given.items()}
    for option, columns in {"types": given, "date_format": formats}.items():
        if unknown := sorted(columns.keys() - {*names}):
            raise ValueError(f"{option} names the columns {unknown}; there are {names}")
    if every:
        formats = {x: every for x in given if pa.types.is_temporal(kinds[x])} | formats
    if ignored := [x for x in formats if not pa.types.is_temporal(kinds[x])]:
        raise ValueError(f"date_format is for dates, but types makes {ignored} something else")
    bad_lines: dict[str, Any] = {}
    looks: dict[str, str] = {}  # {column: advice}

    def rule(name: str, kind: pa.DataType) -> Rule:
        date_format = formats.get(name, "")
        words = f"{kind} written as {date_format}" if date_format else str(kind)
        form: Any = {"kind": kind, "forms": options.forms, "date_format": date_format}
        convert = functools.partial(converted, **form)
        return Rule(convert, words, functools.partial(advice, forms=options.forms))

    def tables(kept: Path | None = None) -> Iterator[pa.Table]:
        rules = {name: rule(name, kind) for name, kind in kinds.items()}
        for path, form in zip(paths, forms, strict=True):
            bad, rows = BadLines(str(path), kept, advice={"": " ".join(form.notes)}), 0
            for table in read_tables(path, form.options, rules, bad):
                rows += table.num_rows
                yield table
            if bad.total:
                bad_lines[str(path)] = {"total": bad.total, "first": bad.first}
                looks.update((name, text) for name, text in bad.advice.items() if name)
            if bad.total > 9 * max(rows, 1):
                raise DataPrepError(
                    f"{bad}. {rows:,} lines are right: too few to skip the others. Nothing was "
                    f"written.{bad.remedy() or ' Pass the options that fit the file.'}"
                )

    # Rows that break a rule decide about no type.
    left = {name: list(KINDS) for name in names if name not in kinds}
    dates = dict.fromkeys(left, bool(every))
    for table in tables() if left else ():
        for name, before in left.items():
            left[name] = fitting(before, table[name], options.forms)
            dates[name] = dates[name] and fits_dates(table[name], every)
            if before and not left[name] and not dates[name]:
                looks[name] = advice(name, table[name], options.forms)
    for name, fit in left.items():
        if not fit and dates[name]:
            formats[name], looks[name] = every, ""
        kinds[name] = _type_of_format(every) if name in formats else [*fit, TEXT][0]
    if every and not any(each == every for each in formats.values()):
        notes.append(f"no column has dates of the format {every}.")
    rows, nulls = 0, dict.fromkeys(names, 0)
    with ParquetSink(folder / "rows") as sink:
        for table in tables(folder / REJECTED_FILE):
            sink.write(table.select(names))
            rows += table.num_rows
            for name in names:
                nulls[name] += table[name].null_count
        told = [f"{text}." for text in looks.values() if text]
        if not rows:
            none = f"{paths[0]}: no rows to convert in this file, nor in others."
            raise DataPrepError(" ".join([none, *told]))
    for part in (folder / "rows").glob("*.parquet"):
        part.rename(folder / part.name)
    shutil.rmtree(folder / "rows")
    types = {name: str(kinds[name]) for name in names}
    return {
        "rows": rows,
        "types": types,
        "nulls": nulls,
        "bad_lines": bad_lines,
        "notes": notes + told,
    }


def _type_of_format(date_format: str) -> pa.DataType:
    """Return the type of dates of a format.

    Raises:
        ValueError: if the format is none.
    """
    now = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC).strftime(date_format)
    try:
        return dated(pa.chunked_array([[now]]), date_format).type
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"date_format must be a format of strptime, such as %d.%m.%Y, got {date_format!r}"
        ) from error
