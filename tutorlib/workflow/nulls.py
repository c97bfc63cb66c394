"""Columns with nulls: what held nulls in fitting may hold nulls in serving."""

from __future__ import annotations

from collections.abc import Iterable

from tutorlib.columns import Chunk, Masked, flat_values
from tutorlib.memory import working_in
from tutorlib.parquet import ParquetSource
from tutorlib.schema import element_type
from tutorlib.workflow.inputs import RowSource, read_range, row_ranges_in


def with_nulls_in(chunk: Chunk) -> list[str]:
    """Return the columns that hold a null that is not NaN."""
    columns = {name: flat_values(column) for name, column in chunk.items()}
    return [n for n, c in columns.items() if isinstance(c, Masked) and not bool(c.valid.all())]


def columns_with_nulls(source: RowSource, names: Iterable[str]) -> set[str]:
    """Return those of the named columns that hold a null that is not NaN.

    The footers of Parquet files answer for nearly all columns; others are read until one is found.
    Rows that a filter drops may count too.
    """
    types = {name: element_type(source.column_types[name][0])[0] for name in names}
    unsure = [name for name, dtype in types.items() if not dtype.startswith("float")]
    found: set[str] = set()
    if isinstance(source, ParquetSource):
        counts = {name: source.null_count(name) for name in unsure}
        # The null count of a list column also counts lists that are empty.
        found = {n for n, count in counts.items() if count and not source.column_types[n][1]}
        unsure = [n for n, count in counts.items() if count != 0 and n not in found]
    for row_range in row_ranges_in(source):
        if not unsure:
            break
        with working_in(source):
            found.update(with_nulls_in(read_range(source, row_range, unsure)))
        unsure = [name for name in unsure if name not in found]
    return found
