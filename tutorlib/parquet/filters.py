"""RowFilter: which rows of a row group pass a condition, from statistics where they suffice.

The work is done by `pyarrow.dataset`; this module sees to it that the counts are exact. Imported
only where a filter is asked for, for `pyarrow.dataset` takes a quarter of a second to import.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tutorlib.parquet.paths import DataFile


class RowFilter:
    """A condition on the columns of a row; a row for which it is null does not pass.

    The statistics of a Parquet file say nothing of NaN. So a condition on a floating column is
    always settled by reading that column, and only one on other columns by the statistics.

    Args:
        filters: `pyarrow.compute.Expression`, or a list of (column, operator, value), all of which
            must hold, or a list of such lists, one of which must.
        schema: columns that there are.

    Raises:
        ValueError: if the condition cannot be understood, names another column, or compares a
            column with a value of another type.

    Example:
        >>> schema = pa.schema([("day", pa.int64())])
        >>> str(RowFilter([("day", "<", 6), ("day", "!=", 2)], schema))
        '((day < 6) and (day != 2))'
        >>> RowFilter([("hour", "<", 6)], schema)
        Traceback (most recent call last):
        ValueError: filters (hour < 6): No match for FieldRef.Name(hour). There are ['day']
    """

    def __init__(self, filters: Any, schema: pa.Schema) -> None:
        try:
            self.expression = pq.filters_to_expression(filters)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"filters must be a pyarrow.compute.Expression or a list of (column, operator, "
                f"value), got {filters!r} ({error})"
            ) from error
        self.schema = schema
        try:
            schema.empty_table().filter(self.expression)
        except pa.ArrowException as error:
            said = str(error).splitlines()[0].partition(" in ")[0]
            raise ValueError(f"filters {self}: {said}. There are {schema.names}") from error
        self._by_statistics = self._needs_no_floating()

    def __str__(self) -> str:
        return str(self.expression)

    def __reduce__(self) -> Any:
        return RowFilter, (self.expression, self.schema)

    def _needs_no_floating(self) -> bool:
        others = pa.schema([f for f in self.schema if not pa.types.is_floating(f.type)])
        try:
            others.empty_table().filter(self.expression)
        except pa.ArrowException:
            return False
        return True

    def row_groups(self, file: DataFile, keys: Mapping[str, pa.Scalar]) -> dict[int, ds.Fragment]:
        """Return {index: row group} of those of a file in which a row may pass.

        Args:
            file: the file.
            keys: {name: value} of the columns that are the same in all its rows.
        """
        known = [pc.field(k) == v if v.is_valid else pc.field(k).is_null() for k, v in keys.items()]
        whole = ds.ParquetFileFormat().make_fragment(
            file.inner,
            file.filesystem,
            partition_expression=functools.reduce(lambda a, b: a & b, known, pc.scalar(True)),
        )
        possible = ds.FileSystemDataset([whole], self.schema, whole.format, file.filesystem)
        if not list(possible.get_fragments(self.expression)):
            return {}  # by its keys, without a look into the file
        condition = self.expression if self._by_statistics else None
        parts = whole.split_by_row_group(filter=condition, schema=self.schema)
        return {part.row_groups[0].id: part for part in parts}

    def count(self, row_group: ds.Fragment) -> int:
        """Return how many rows pass; nothing is read if the statistics show that all do."""
        if not self._by_statistics:
            return len(self.passing(row_group))
        rows = row_group.row_groups[0].num_rows
        scanner = row_group.scanner(schema=self.schema, filter=self.expression, use_threads=False)
        # Where keys alone settle it, pyarrow counts the whole file in place of the row group.
        return min(rows, scanner.count_rows())

    def passing(self, row_group: ds.Fragment) -> np.ndarray:
        """Return int64 [rows that pass], rising: their numbers in the row group.

        Only the columns asked about are read. The answers for a few row groups are remembered, in
        1 bit a row.
        """
        bits, rows = _passing_bits(self, row_group)
        return np.flatnonzero(np.unpackbits(bits, count=rows))


@functools.lru_cache(maxsize=16)
def _passing_bits(row_filter: RowFilter, row_group: ds.Fragment) -> tuple[np.ndarray, int]:
    table = row_group.to_table(
        columns={"passes": row_filter.expression}, schema=row_filter.schema, use_threads=False
    )
    passes = pc.fill_null(table["passes"], False).to_numpy()
    return np.packbits(passes), len(passes)
