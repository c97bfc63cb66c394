"""CSV files to training-ready Parquet: streamed, with types that hold for the whole of all files.

A first pass over the text finds the type of each column (`csv_types`), a second one converts
(`csv_lines` reads both times). So an integer column that becomes float or text in its last row does
not fail half way.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_prep.csv_lines import Dialect, Rejects, TextBlock, read_head, text_blocks, without
from data_prep.csv_types import TEXT, ColumnType, converted, type_named
from data_prep.output import DataPrepError, fingerprint, finished_metadata, new_output
from tutorlib.checks import check_choice, check_integer
from tutorlib.parquet import ParquetSink
from tutorlib.storage import refuse_overlap, remove

REJECTED_FILE = "_rejected.csv"  # readers of data folders skip names that start with "_"


def csv_to_parquet(
    files: Sequence[str | Path],
    output: str | Path,
    *,
    names: Sequence[str] | None = None,
    header: bool = True,
    types: Mapping[str, str] | None = None,
    null_values: Sequence[str] = (),
    strip: str = "",
    delimiter: str | None = None,
    quote: str = '"',
    encoding: str = "utf-8",
    skip_lines: int = 0,
    on_bad_lines: str = "error",
    row_group_rows: int = 131_072,
    rows_per_file: int = 4_194_304,
    overwrite: bool = False,
) -> dict[str, Any]:
    r"""Write the rows of CSV files, in their order, as Parquet files in a folder.

    A line is malformed if it has another number of fields than the header, a value that is not of
    the type given for its column, bytes that the encoding does not have, a quote that does not end,
    or more than 8 MB. Memory: about 300 MB, whatever the size of the files.

    Args:
        files: CSV files with the same columns, plain or gzip (recognised by content).
        output: folder for `part_*.parquet`; complete or absent, even after a kill.
        names: names of the columns of files that have no header.
        header: whether files begin with the names of the columns. Without it and without `names`,
            columns are called f0, f1, ...
        types: {column: type}, such as "int64", "float32", "string", "bool" or "timestamp[us]". The
            types of other columns are inferred from all values (`csv_types`).
        null_values: texts that mean a missing value in every column, besides the empty field. In
            columns that are not text, NA, NaN, null, NULL and the like are missing values too.
        strip: characters that are removed from both ends of every value, such as " ".
        delimiter: character between fields; None takes the most frequent of , ; | and tab in the
            first line.
        quote: character around fields with delimiters or line breaks; "" if there is none.
        encoding: encoding of the files, a codec of Python.
        skip_lines: lines before the header or the first row, at least 0.
        on_bad_lines: "error" refuses a file with malformed lines after reading it to its end;
            "skip" leaves them out and keeps them in `_rejected.csv`: file, line, reason, text.
        row_group_rows: rows of a row group.
        rows_per_file: rows of a Parquet file.
        overwrite: replace an output made with other settings.

    Returns:
        {"rows": n, "types": {column: type}, "nulls": {column: n}, "bad_lines": {file: {"total": n,
        "first": [text, ...]}}, "notes": [text, ...]}. The notes name each column that is text
        because of a value after narrower ones.

    Raises:
        ValueError: if a setting is out of range.
        DataPrepError: if a file does not exist, has other columns than the first or malformed
            lines, or the output exists with other settings.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.csv").write_text("id,price\n1,2\n2,3.5\n")
        >>> csv_to_parquet([folder / "a.csv"], folder / "out")["types"]
        {'id': 'int64', 'price': 'double'}
    """
    check_choice("on_bad_lines", on_bad_lines, ("error", "skip"))
    check_integer("skip_lines", skip_lines, at_least=0)
    for name, mark in (("delimiter", delimiter), ("quote", quote or None)):
        if mark is not None and not (len(mark) == 1 and mark.isascii() and mark not in "\r\n"):
            raise ValueError(f"{name} must be one ASCII character, got {mark!r}")
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ValueError(f"encoding must be a codec of Python, got {encoding!r}") from None
    paths = _checked_files(files)
    kinds = {column: type_named(name) for column, name in (types or {}).items()}
    given = {"names": names and list(names), "types": {n: str(k) for n, k in kinds.items()},
             "null_values": sorted(null_values), "strip": strip, "delimiter": delimiter,
             "quote": quote, "encoding": encoding, "skip_lines": skip_lines, "header": header,
             "on_bad_lines": on_bad_lines, "row_group_rows": row_group_rows,
             "rows_per_file": rows_per_file}  # fmt: skip
    settings = {"command": "csv", "version": 1, **given, "files": [fingerprint([p]) for p in paths]}
    finished = finished_metadata(output, settings, overwrite=overwrite)
    if finished is not None:
        return finished
    refuse_overlap(output, paths)
    dialect = Dialect(",", quote, encoding, skip_lines, header and names is None)
    source = _Source(paths, dialect, delimiter, names, null_values, strip)
    if unknown := sorted(kinds.keys() - set(source.names)):
        raise ValueError(f"types names the columns {unknown}; there are {source.names}")
    with new_output(output, settings) as staging:
        source.skip = on_bad_lines == "skip"
        notes = _infer(source, kinds) if kinds.keys() < set(source.names) else []
        with (
            _reject_file(staging.path / REJECTED_FILE) as source.keep,
            ParquetSink(
                staging.path / "rows", row_group_rows=row_group_rows, rows_per_file=rows_per_file
            ) as sink,
        ):
            nulls = dict.fromkeys(source.names, 0)
            for table in _typed(source, kinds):
                sink.write(table)
                for name in source.names:
                    nulls[name] += table[name].null_count
        for part in sorted((staging.path / "rows").glob("*.parquet")):
            part.rename(staging.path / part.name)
        remove(staging.path / "rows")
        staging.metadata.update(
            {"rows": sink.num_rows, "types": {name: str(kinds[name]) for name in source.names},
             "nulls": nulls, "bad_lines": source.bad_lines, "notes": notes}
        )  # fmt: skip
    return staging.metadata


def _checked_files(files: Sequence[str | Path]) -> list[Path]:
    """Return the paths; DataPrepError unless each is a file and is given once."""
    if not files:
        raise DataPrepError("no CSV file is given. Pass the files, such as FOLDER/*.csv.")
    paths = [Path(path) for path in files]
    for path in paths:
        if path.is_dir():
            raise DataPrepError(f"{path} is a folder. Pass its files: {path}/*.csv")
        if not path.is_file():
            raise DataPrepError(f"{path}: no such file")
    for place, path in enumerate(paths):
        if any(path.samefile(other) for other in paths[:place]):
            raise DataPrepError(f"{path} is given twice. Pass each file once.")
    return paths


class _Source:
    """The rows of all files as text, with what every column needs: nulls, and `strip`."""

    def __init__(
        self,
        paths: Sequence[Path],
        dialect: Dialect,
        delimiter: str | None,
        names: Sequence[str] | None,
        null_values: Sequence[str],
        strip: str,
    ) -> None:
        self.skip = False
        self.keep: Any = None
        self.bad_lines: dict[str, dict[str, Any]] = {}
        self._null_values = pa.array(null_values, TEXT)
        self._strip = strip
        self._files: list[tuple[Path, Dialect, list[str]]] = []
        for path in paths:
            found, columns = read_head(path, dialect, delimiter)
            columns = list(names) if names is not None else columns
            if len(set(columns)) < len(columns):
                twice = sorted({name for name in columns if columns.count(name) > 1})
                raise DataPrepError(
                    f"{path}: several columns are called {twice}. Rename them, or skip the header "
                    "(--skip-lines 1) and pass --names."
                )
            self._files.append((path, found, columns))
            if set(columns) != set(first := self._files[0][2]):
                raise DataPrepError(
                    f"{path} has the columns {columns}, but {paths[0]} has {first}. Convert files "
                    "with other columns into another folder, or pass --names if they have no "
                    "header."
                )
        self.first, self.names = paths[0], self._files[0][2]

    def blocks(self) -> Iterator[tuple[Path, TextBlock, Rejects]]:
        """Yield blocks with their file and its malformed lines.

        Raises:
            DataPrepError: at the end of a file with malformed lines, unless `skip`.
        """
        for path, dialect, columns in self._files:
            bad = Rejects(str(path), keep=self.keep)
            for block in text_blocks(path, dialect, columns, bad):
                ready = {name: self._ready(block.table[name]) for name in self.names}
                block.table = pa.table(ready)
                yield path, block, bad
            if bad.total and not self.skip:
                raise DataPrepError(
                    f"{bad}. Nothing was written. Correct them, or pass --on-bad-lines skip."
                )
            if bad.total and self.keep is not None:
                self.bad_lines[str(path)] = {"total": bad.total, "first": bad.first}

    def _ready(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        if self._strip:
            column = pc.utf8_trim(column, self._strip)
            column = pc.if_else(pc.equal(column, ""), pa.scalar(None, TEXT), column)
        if len(self._null_values):
            no_value = pc.is_in(column, self._null_values)
            column = pc.if_else(no_value, pa.scalar(None, TEXT), column)
        return column


def _infer(source: _Source, kinds: dict[str, pa.DataType]) -> list[str]:
    """Add the types of the other columns to `kinds`; return notes about those that became text."""
    notes, given = [], dict(kinds)
    columns = {name: ColumnType() for name in source.names if name not in kinds}
    for path, block, bad in source.blocks():
        if reasons := _misfits(block, given):
            without(block, reasons, bad)
        for name, column in columns.items():
            row = column.add(block.table[name])
            if row is not None:
                notes.append(
                    f"{name} is text because of {block.table[name][row].as_py()[:40]!r} at "
                    f"{path}:{block.records[row][0]}. If this is a missing value, pass it in "
                    "--null-values; to refuse such lines, pass --types."
                )
    kinds.update({name: column.kind for name, column in columns.items()})
    return notes


def _typed(source: _Source, kinds: Mapping[str, pa.DataType]) -> Iterator[pa.Table]:
    """Yield the rows with their types; those that do not fit are malformed."""
    rows = 0
    for _, block, bad in source.blocks():
        try:
            table = _table(block, kinds)
        except pa.ArrowInvalid:
            without(block, _misfits(block, kinds), bad)
            table = _table(block, kinds)
        rows += table.num_rows
        yield table
    if not rows:
        raise DataPrepError(f"{source.first}: no rows to convert in this file, nor in others.")


def _table(block: TextBlock, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    table = block.table
    return pa.table({name: converted(table[name], kinds[name]) for name in table.column_names})


def _misfits(block: TextBlock, kinds: Mapping[str, pa.DataType]) -> dict[int, str]:
    """Return {row: reason} of values that are not of the type of their column."""
    found: dict[int, str] = {}
    for name, kind in kinds.items():
        try:
            converted(block.table[name], kind)
        except pa.ArrowInvalid:
            for row in range(block.table.num_rows):
                value = block.table[name].slice(row, 1)
                try:
                    converted(value, kind)
                except pa.ArrowInvalid:
                    text = value[0].as_py()[:40]
                    found.setdefault(row, f"{name} is {text!r}, must be {kind}")
    return found


@contextlib.contextmanager
def _reject_file(path: Path) -> Iterator[Any]:
    """Give a function that writes a malformed line to a CSV file; without lines there is none."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "line", "reason", "text"])
        yield lambda *line: writer.writerow(line)
        lines = file.tell() > len("file,line,reason,text\r\n")
    if not lines:
        os.unlink(path)


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
