"""SourceSizes: bytes of the decoded rows of a source and of its open row groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pyarrow as pa

from tutorlib.parquet.files import ParquetFiles
from tutorlib.parquet.sizes import decoded_bytes, number_width
from tutorlib.parquet.types import RowGroup

REMEMBERED = 16  # row groups whose answers of the filter are kept


@dataclasses.dataclass(frozen=True)
class SourceSizes:
    """Sizes of a source, estimated from the footers of its files.

    Args:
        stored: the files.
        row_groups: row groups of the source, in order.
        column_types: {name: (NumPy name of one value or "string", whether a row holds a list)}.
        keys: {name: value} of the columns that are constant in each file.
    """

    stored: ParquetFiles
    row_groups: Sequence[RowGroup]
    column_types: Mapping[str, tuple[str, bool]]
    keys: Sequence[Mapping[str, pa.Scalar]]

    def nbytes_per_row(self, columns: Sequence[str] | None = None) -> float:
        """Return the mean bytes of a decoded row of the given columns, from the footers.

        Numbers count with their width. Strings count with their uncompressed bytes in the file, or
        with the mean length of the smallest and the largest string if that is more, as it is where
        the file uses a dictionary. The offsets of lists and strings do not count.

        Args:
            columns: names; None for all.
        """
        nbytes, rest = 0.0, dict[str, int]()
        for name in self.column_types if columns is None else columns:
            kind, is_list = self.column_types[name]
            if not is_list and number_width(kind):
                nbytes += number_width(kind)
            elif name in self.keys[0]:
                nbytes += max(len(str(keys[name])) for keys in self.keys)
            else:
                rest[name] = number_width(kind)
        if not rest:
            return nbytes
        rows = sum(map(self.stored.num_rows, self.row_groups))
        leaves = (leaf for group in self.row_groups for leaf in self.stored.leaves(group, rest))
        return nbytes + decoded_bytes(leaves, rest) / max(1, rows)

    def stream_nbytes(self, columns: Sequence[str] | None = None) -> int:
        """Return about how many bytes a row group holds while it is open between two slices.

        It is a page and the bytes read ahead for each column: 1.4 MB a column with the usual pages
        of 1 MiB, and never more than the row group.

        Args:
            columns: names; None for all.
        """
        names = self.column_types if columns is None else columns
        largest = max(self.row_groups, key=self.stored.num_rows, default=None)
        return 0 if largest is None else self.stored.stream_nbytes(largest, names)

    def row_group_values(self, column: str) -> list[float]:
        """Return the mean number of values of a row of a list column, for each row group."""
        return [
            sum(leaf.num_values for _, leaf in self.stored.leaves(group, [column]))
            / self.stored.num_rows(group)
            for group in self.row_groups
        ]

    def row_group_nbytes(self, column: str) -> list[float]:
        """Return the mean decoded bytes of a row of a column, for each row group."""
        return [self.stored.row_nbytes(group, [column]) for group in self.row_groups]

    @property
    def filter_nbytes(self) -> int:
        """Bytes of the answers of the filter that are remembered; 0 if all rows pass."""
        partial = [rows for g in self.row_groups if g.num_rows < (rows := self.stored.num_rows(g))]
        return min(len(partial), REMEMBERED) * (max(partial, default=0) // 8 + 1)

    def measured_stream_nbytes(self, columns: Sequence[str], step_bytes: int) -> int:
        """Return how many bytes the largest row group holds while it is read in steps.

        Reads headers of pages, for footers do not tell how large pages are.

        Args:
            columns: names.
            step_bytes: bytes that are decoded at a time.
        """
        largest = max(self.row_groups, key=self.stored.nbytes)
        stored = [name for name in columns if name not in self.keys[0]]
        return self.stored.measured_stream_nbytes(largest, stored, step_bytes)
