"""Which rows of its row groups a source has: those that pass a filter, or that were drawn."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from tutorlib.memory import map_on_threads
from tutorlib.parquet.files import ParquetFiles
from tutorlib.parquet.filters import STEP_ROWS, PassingRows, RowFilter
from tutorlib.parquet.footers import opening_threads
from tutorlib.parquet.source_sizes import REMEMBERED
from tutorlib.parquet.types import RowGroup


class RowChoice(abc.ABC):
    """The chosen rows of row groups, in 1 bit a row; those of the latest are remembered.

    Attributes:
        identity: text that is equal only if the same rows of the same files are chosen.
    """

    identity: str

    def __init__(self) -> None:
        self._remembered: dict[tuple[int, int], PassingRows] = {}

    @abc.abstractmethod
    def counts(self, groups: Sequence[RowGroup]) -> list[tuple[RowGroup, int]]:
        """Return how many rows are chosen of each row group; those without any may be left out."""

    @abc.abstractmethod
    def _find(self, group: RowGroup) -> PassingRows:
        """Return which rows of a row group are chosen."""

    def passing(self, group: RowGroup) -> PassingRows:
        """Return which rows of a row group are chosen."""
        place = group.file, group.index
        passing = self._remembered.get(place)
        if passing is None:
            passing = self._find(group)
            with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # of other threads
                if len(self._remembered) >= REMEMBERED:
                    del self._remembered[next(iter(self._remembered))]
            self._remembered[place] = passing
        return passing


class RowNumbers(Protocol):
    """A function that chooses rows by their numbers in a source; can be pickled."""

    @property
    def identity(self) -> str:
        """Text that two such functions share only if they choose the same rows."""

    def __call__(self, first: int, rows: int) -> range | np.ndarray:
        """Return which of the rows first, ..., first + rows - 1 are chosen, as numbers from 0."""


class ChosenRows(RowChoice):
    """The rows that are chosen by their numbers in a source.

    Args:
        stored: the files.
        groups: the row groups of the source, in order.
        within: the choice of which the source consists; None for all rows.
        choose: chooses the rows.
    """

    def __init__(
        self,
        stored: ParquetFiles,
        groups: Sequence[RowGroup],
        within: RowChoice | None,
        choose: RowNumbers,
    ) -> None:
        super().__init__()
        self._stored, self._within, self._choose = stored, within, choose
        firsts = np.cumsum([0, *(group.num_rows for group in groups)]).tolist()
        self._numbers = {(g.file, g.index): (n, g.num_rows) for n, g in zip(firsts, groups)}  # noqa: B905
        self.identity = f"{within.identity}; {choose.identity}" if within else choose.identity

    def counts(self, groups: Sequence[RowGroup]) -> list[tuple[RowGroup, int]]:
        """Return how many rows are chosen of each row group."""
        numbers = (self._numbers[group.file, group.index] for group in groups)
        return [(g, len(self._choose(*rows))) for g, rows in zip(groups, numbers, strict=True)]

    def _find(self, group: RowGroup) -> PassingRows:
        first, count = self._numbers[group.file, group.index]
        rows, stored = np.asarray(self._choose(first, count)), self._stored.num_rows(group)
        if self._within is not None and count < stored:
            rows = self._within.passing(group).rows(0, count)[rows]
        return PassingRows.of(rows, stored)


class FilteredRowGroups(RowChoice):
    """The rows that pass a filter.

    Args:
        stored: the files.
        keys: {name: value} of the columns that are constant in each file.
        row_filter: the filter.
    """

    def __init__(
        self,
        stored: ParquetFiles,
        keys: Sequence[Mapping[str, pa.Scalar]],
        row_filter: RowFilter,
    ) -> None:
        super().__init__()
        self._stored, self._keys, self.row_filter = stored, keys, row_filter
        self.identity = row_filter.identity

    def counts(self, groups: Sequence[RowGroup]) -> list[tuple[RowGroup, int]]:
        """Return how many rows pass of each row group for which the statistics allow any.

        Row groups are read unless the statistics show that all rows pass.
        """
        first_of_file = {group.file: group for group in reversed(groups)}
        threads = opening_threads(self._stored.files)
        found = map_on_threads(self._possible, first_of_file.values(), threads)
        by_file = dict(zip(first_of_file, found, strict=True))

        def count(group: RowGroup) -> int:
            if by_file[group.file][group.index] and self._has_no_nulls(group):
                return group.num_rows
            return len(self.passing(group))

        possible = [group for group in groups if group.index in by_file[group.file]]
        return list(zip(possible, map_on_threads(count, possible, threads), strict=True))

    def _possible(self, group: RowGroup) -> dict[int, bool]:
        with self._stored.errors_at(group):
            file = self._stored.files[group.file]
            return self.row_filter.row_groups(file, self._keys[group.file])

    def _has_no_nulls(self, group: RowGroup) -> bool:
        """Return whether the statistics say that the columns of the filter have no nulls."""
        keys, names = self._keys[group.file], self.row_filter.names
        statistics = [leaf.statistics for _, leaf in self._stored.leaves(group, names)]
        return all(keys[name].is_valid for name in names if name in keys) and all(
            known is not None and known.has_null_count and not known.null_count
            for known in statistics
        )

    def _find(self, group: RowGroup) -> PassingRows:
        """Return which rows of a row group pass; reads the columns that the filter uses."""
        return self.row_filter.passing(self._columns(group))

    def _columns(self, group: RowGroup) -> Iterator[pa.Table]:
        """Yield the columns that the filter uses, `STEP_ROWS` rows at a time."""
        keys, rows = self._keys[group.file], self._stored.num_rows(group)
        names = self.row_filter.names
        stored = [name for name in names if name not in keys]
        tables: Iterable[pa.Table] = self._stored.tables(group, stored, 0, rows, STEP_ROWS)
        if not stored:
            tables = (pa.table({}) for _ in range(0, rows, STEP_ROWS))
        for first, table in zip(range(0, rows, STEP_ROWS), tables, strict=True):
            count = min(STEP_ROWS, rows - first)
            yield pa.table({n: pa.repeat(keys[n], count) if n in keys else table[n] for n in names})


def passing_tables(
    tables: Generator[pa.Table],
    passing: PassingRows,
    first: int,
    step_rows: int,
    step_bytes: int,
) -> Generator[pa.Table]:
    """Yield the rows that pass of tables of a row group, about `step_rows` at a time.

    Args:
        tables: stored rows, in order; closed at the end.
        passing: which rows pass.
        first: number of the first stored row.
        step_rows: a table that is yielded has half as many rows at least, but for the last,
        step_bytes: or half as many bytes.
    """
    kept: list[pa.Table] = []
    with contextlib.closing(tables):
        for table in tables:
            rows = passing.between(first, first + table.num_rows)
            kept.append(table.take(pa.array(rows - first)))
            first += table.num_rows
            nbytes = sum(part.nbytes for part in kept)
            if sum(part.num_rows for part in kept) >= step_rows / 2 or nbytes >= step_bytes / 2:
                yield pa.concat_tables(kept)
                kept = []
    if any(part.num_rows for part in kept):
        yield pa.concat_tables(kept)
