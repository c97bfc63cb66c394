"""The rows of CSV files as tables of text, in blocks, with their line numbers.

Memory does not grow with the file: a block holds about 8 MB of text. A record may span lines if its
line breaks are quoted. Line ends of every kind are read as LF.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import dataclasses
import functools
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from tqdm import tqdm

from data_prep.criteo_raw import BadLines
from data_prep.output import DataPrepError

READ_BLOCK_BYTES = 1 << 23  # also the longest record
DELIMITERS = ",\t;|"
_GZIP_MAGIC = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How the fields of a CSV file are written.

    Args:
        delimiter: character between fields.
        quote: character around fields that contain delimiters or line breaks; "" if there is none.
        encoding: a codec of Python, such as "utf-8" or "latin-1".
        skip_lines: lines before the header or the first row, at least 0.
        header: whether the first record has the names of the columns.
    """

    delimiter: str = ","
    quote: str = '"'
    encoding: str = "utf-8"
    skip_lines: int = 0
    header: bool = True

    @functools.cached_property
    def record(self) -> re.Pattern[bytes]:
        """Matches one record with its line end, as Arrow's parser reads it."""
        if not self.quote:
            return re.compile(rb"[^\n]*+\n")
        d, q = (re.escape(mark.encode()) for mark in (self.delimiter, self.quote))
        field = rb"(?>Q[^Q]*+(?:QQ[^Q]*+)*+Q[^D\n]*+|(?!Q)[^D\n]*+)".replace(b"Q", q)
        field = field.replace(b"D", d)
        return re.compile(field + b"(?:" + d + field + b")*+\n")

    @functools.cached_property
    def records(self) -> re.Pattern[bytes]:
        """Matches as many whole records as there are."""
        return re.compile(b"(?>" + self.record.pattern + b")*+")

    def end_of_records(self, text: bytes) -> int:
        """Return the number of bytes of the whole records at the start of a text."""
        if self.quote and self.quote.encode() in text:
            found = self.records.match(text)
            return found.end() if found else 0
        return text.rfind(b"\n") + 1


@dataclasses.dataclass
class Rejects(BadLines):
    """The malformed lines of one file; `keep(file, line, reason, text)` is called with each."""

    keep: Callable[[str, int, str, str], Any] | None = None

    def reject(self, number: int, reason: str, text: bytes) -> None:
        """Count a record that begins in line `number`."""
        self.add(number, reason)
        if self.keep is not None:
            self.keep(self.file, number, reason, text.decode(errors="replace").rstrip("\n"))


class TextBlock:
    """Some rows of a file.

    Args:
        text: whole records, in UTF-8.
        first_line: number of their first line, from 1.
        dialect: how they are written.

    Attributes:
        table: the fields as strings; an empty field without quotes is null.
    """

    table: pa.Table

    def __init__(self, text: bytes, first_line: int, dialect: Dialect) -> None:
        self.text, self._first_line, self._record = text, first_line, dialect.record

    @functools.cached_property
    def records(self) -> list[tuple[int, bytes]]:
        """(line number, text) of each row of the table; blank lines are no rows."""
        found, line, at = [], self._first_line, 0
        while at < len(self.text) and (match := self._record.match(self.text, at)):
            if match.end() - at > 1:
                found.append((line, match.group()))
            line, at = line + match.group().count(b"\n"), match.end()
        return found

    def reject(self, reasons: dict[int, str], bad: Rejects) -> None:
        """Add rows, {row of the table: reason}, to `bad`, and forget them."""
        kept = []
        for row, record in enumerate(self.records):
            if row in reasons:
                bad.reject(record[0], reasons[row], record[1])
            else:
                kept.append(record)
        self.records = kept


def read_head(path: Path, dialect: Dialect, delimiter: str | None) -> tuple[Dialect, list[str]]:
    """Return the dialect with its delimiter, and the names of the columns.

    Without a header, columns are called f0, f1, ...; with one, those that have an empty name.

    Args:
        path: a CSV file, plain or gzip.
        dialect: how it is written; its delimiter is ignored.
        delimiter: character between fields; None takes the most frequent of , ; | and tab in the
            first record.

    Raises:
        DataPrepError: if the file is empty or its first record is malformed.
    """
    with _open(path, dialect) as (_, text):
        block = text.read(READ_BLOCK_BYTES).lstrip("\n")
    if delimiter is None:
        line = re.sub(r'"[^"]*"', "", block.partition("\n")[0])
        delimiter = max(DELIMITERS, key=line.count)
    dialect = dataclasses.replace(dialect, delimiter=delimiter)
    record = dialect.record.match((block + "\n").encode("utf-8", "surrogateescape"))
    if not block or record is None:
        what = "its first record does not end" if block else "it is empty"
        raise DataPrepError(f"{path}: {what}. Correct the file, or leave it out.")
    try:
        line = record.group().decode().rstrip("\n")
    except UnicodeDecodeError:
        raise DataPrepError(f"{path}: {_wrong_encoding(dialect)}") from None
    quoting: Any = {"quotechar": dialect.quote} if dialect.quote else {"quoting": csv.QUOTE_NONE}
    try:
        fields = next(csv.reader(io.StringIO(line, newline=""), delimiter=delimiter, **quoting))
    except csv.Error as error:
        raise DataPrepError(f"{path}: its first record is malformed ({error})") from error
    names = [field.strip() if dialect.header else "" for field in fields]
    return dialect, [name or f"f{place}" for place, name in enumerate(names)]


def text_blocks(
    path: Path, dialect: Dialect, names: list[str], bad: Rejects
) -> Iterator[TextBlock]:
    """Yield the rows of a file; records that are malformed are added to `bad`.

    A record is malformed if it has another number of fields, is not valid in the encoding, is
    longer than 8 MB, or opens a quote that does not end.

    Raises:
        DataPrepError: if a gzip file is damaged, or the file has another encoding.
    """
    bar = tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=path.name, disable=None)
    with bar, _open(path, dialect) as (raw, text):
        header = dialect.header
        for line, records in _whole_records(text, dialect, bad):
            if header:
                at = len(records) - len(records.lstrip(b"\n"))
                found = dialect.record.match(records, at)
                at = found.end() if found else at
                line, records, header = line + records.count(b"\n", 0, at), records[at:], not found
            if records.strip(b"\n"):
                block = TextBlock(records, line, dialect)
                _parse(block, dialect, names, bad)
                yield block
            bar.update(raw.tell() - bar.n)


@contextlib.contextmanager
def _open(path: Path, dialect: Dialect) -> Iterator[tuple[BinaryIO, TextIO]]:
    """Yield (raw file, whose position is the progress; its text after `skip_lines`)."""
    utf8 = codecs.lookup(dialect.encoding).name in ("utf-8", "utf-8-sig")
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2).startswith(_GZIP_MAGIC)
            text = io.TextIOWrapper(
                gzip.GzipFile(fileobj=raw) if packed else raw,
                encoding="utf-8-sig" if utf8 else dialect.encoding,
                errors="surrogateescape" if utf8 else "strict",  # escaped bytes: malformed lines
            )
            for _ in range(dialect.skip_lines):
                text.readline(READ_BLOCK_BYTES)
            yield raw, text
    except UnicodeError as error:
        raise DataPrepError(f"{path}: {_wrong_encoding(dialect)} ({error})") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataPrepError(
            f"{path} cannot be unpacked ({error}): it is truncated or damaged. Fetch it again."
        ) from error


def _wrong_encoding(dialect: Dialect) -> str:
    return f"not encoded in {dialect.encoding}. Pass its --encoding, such as latin-1"


def _whole_records(text: TextIO, dialect: Dialect, bad: Rejects) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the first line, text of whole records)."""
    line, rest, more = 1 + dialect.skip_lines, b"", True
    while more:
        data = text.read(READ_BLOCK_BYTES)
        more = bool(data)
        rest += data.encode("utf-8", "surrogateescape")
        if not more and rest:
            rest += b"\n"
        while rest:
            end = dialect.end_of_records(rest)
            if end:
                yield line, rest[:end]
            elif more and len(rest) <= READ_BLOCK_BYTES:
                break
            elif end := rest.find(b"\n") + 1:
                bad.reject(line, "a quote that opens does not end", rest[:end])
            else:
                bad.reject(line, f"longer than {READ_BLOCK_BYTES:,} bytes", rest[:200])
                while (part := text.readline(READ_BLOCK_BYTES)) and not part.endswith("\n"):
                    pass
                rest, end = b"\n", 1
            line, rest = line + rest.count(b"\n", 0, end), rest[end:]


def _parse(block: TextBlock, dialect: Dialect, names: list[str], bad: Rejects) -> None:
    """Set the table of a block, without its malformed records."""
    try:
        block.text.decode()
    except UnicodeDecodeError:
        wrong = {row: _wrong_encoding(dialect) for row, (_, text) in enumerate(block.records)
                 if not _is_utf8(text)}  # fmt: skip
        block.reject(wrong, bad)
        block.text = b"".join(text for _, text in block.records)
    reasons: dict[int, str] = {}

    def note(row: pa_csv.InvalidRow) -> str:
        reasons[row.number - 1] = f"{row.actual_columns} fields instead of {row.expected_columns}"
        return "skip"

    options = pa_csv.ReadOptions(
        column_names=names, block_size=len(block.text) + 1, use_threads=False
    )
    block.table = pa_csv.read_csv(
        pa.BufferReader(block.text or b"\n"),
        read_options=options,
        parse_options=pa_csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote or False,
            newlines_in_values=True,
            invalid_row_handler=note,
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    if reasons:
        block.reject(reasons, bad)


def _is_utf8(text: bytes) -> bool:
    with contextlib.suppress(UnicodeDecodeError):
        text.decode()
        return True
    return False


def without(block: TextBlock, reasons: dict[int, str], bad: Rejects) -> None:
    """Remove rows, {row: reason}, from a block; add them to `bad`."""
    keep = np.ones(block.table.num_rows, bool)
    keep[list(reasons)] = False
    block.reject(reasons, bad)
    block.table = block.table.filter(pa.array(keep))
