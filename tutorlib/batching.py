"""Batching: rows of a piece straight into the batches that they are dealt to.

A shuffled batch is a random choice of rows of a chunk, which is far larger than the cache. Taking
its rows from there costs a cache miss a value. Here each piece is taken apart as soon as it is
decoded: column by column and block by block (`plan.BLOCK_ROWS`), so that the values being picked
are in the second-level cache, into the column's place in every group of batches at once. A group of
several small batches is then put in order the same way; a large batch is a group by itself. Does
not belong here: which row goes where (`plan.py`), threads, files, tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.chunk import Masked, Ragged, Strings, concat_columns, gather_rows
from tutorlib.plan import Share
from tutorlib.schema import Column, Schema

ALIGNMENT = 64  # bytes; DLPack consumers want it, and it is one cache line
TRANSPOSE_ROWS = 4096  # rows that become records at a time: they stay in the second-level cache


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array whose memory starts at a multiple of 64 bytes."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy of an array that starts at a multiple of 64 bytes and has its memory alone."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def batch_dtype(column: Column) -> np.dtype:
    """Return the dtype that a column has in a batch, a function of the schema alone.

    Ids are int32 where the cardinality is known to fit, else as wide as in the file (int32 or
    int64); continuous columns and weights are float32; labels are int32, int64 or float32.

    Raises:
        ValueError: for text, which a Workflow must turn into ids first, for ids that are floating
            point, and for types that no batch can hold (decimals, binary, ...).
    """
    if column.dtype == "string":
        raise ValueError(
            f"column {column.name!r} is text; turn it into ids with a Workflow (Categorify or "
            "HashBucket) and loader.map(workflow)"
        )
    try:
        dtype = np.dtype(column.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {column.name!r}: values of type {column.dtype} cannot be in a batch. Cast it, "
            "or leave it out by naming the columns (cat_names, cont_names)."
        ) from error
    if column.role in ("continuous", "weight"):
        return np.dtype(np.float32)
    if dtype.kind == "f":
        if column.role == "label":
            return np.dtype(np.float32)
        raise ValueError(f"column {column.name!r} is categorical but {dtype}; ids are integers")
    small = column.cardinality is not None and column.cardinality <= 2**31
    narrow = dtype.kind == "b" or dtype.itemsize < 4 or dtype == np.int32
    return np.dtype(np.int32 if small or narrow else np.int64)


@dataclasses.dataclass(frozen=True)
class _Block:
    """Columns whose values have one width, kept as one matrix: a column of it after the other."""

    cell: np.dtype
    columns: tuple[Column, ...]


class Layout:
    """How the columns of a schema lie in batches.

    Args:
        schema: columns as they leave the workflow.
        stacked: whether a batch holds "categorical" and "continuous" as one matrix each.
        check_ids: whether ids outside [0, cardinality) are refused.
        nulls: "error" refuses nulls, and NaN in continuous columns; "fill" puts 0 in their place;
            {name: value} puts the value there and refuses them in other columns. Labels and weights
            must have values in any case.
        max_list_length: longest list of a multi-hot column that is allowed; None for any.

    Attributes:
        dtypes: {name: dtype in a batch}.
        places: {name: (column, number of its block, index in the block)} of scalar columns.
        ragged: {name: multi-hot column}.
        row_bytes: bytes of a row in a batch, without multi-hot columns.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        stacked: bool = False,
        check_ids: bool = True,
        nulls: str | Mapping[str, float] = "error",
        max_list_length: int | None = None,
    ) -> None:
        order = ("categorical", "continuous", "label", "weight")
        columns = [column for role in order for column in schema.with_role(role)]
        self.stacked, self.check_ids = stacked, check_ids
        self.max_list_length = max_list_length
        self.dtypes = {column.name: batch_dtype(column) for column in columns}
        self._fills = _fills(schema, self.dtypes, nulls)
        self.ragged = {column.name: column for column in columns if column.multi_hot}
        made = [f"{name}__{part}" for name in self.ragged for part in ("values", "nnzs", "offsets")]
        for column in columns:
            if column.name in made:
                raise ValueError(f"column {column.name!r} has a name that a list column makes")
        for column in self.ragged.values():
            if column.role != "categorical":
                raise ValueError(
                    f"column {column.name!r}: a list must be categorical, not {column.role}"
                )
        self.scalars = [column for column in columns if not column.multi_hot]
        if stacked:
            ids = [c.name for c in self.scalars if c.role == "categorical"]
            widest = max(
                (self.dtypes[name] for name in ids),
                default=np.dtype(np.int32),
                key=lambda dtype: dtype.itemsize,
            )
            self.dtypes.update(dict.fromkeys(ids, widest))
        self.blocks = []
        self.places: dict[str, tuple[Column, int, int]] = {}
        for size in (4, 8):
            chosen = [c for c in self.scalars if self.dtypes[c.name].itemsize == size]
            if chosen:
                for index, column in enumerate(chosen):
                    self.places[column.name] = column, len(self.blocks), index
                self.blocks.append(_Block(np.dtype(f"u{size}"), tuple(chosen)))
        self.row_bytes = sum(block.cell.itemsize * len(block.columns) for block in self.blocks)

    def cells(
        self,
        column: Column,
        values: Any,
        *,
        first_row: int = 0,
        offsets: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the values of one column as a batch holds them, checked.

        Args:
            column: of the schema.
            values: its values.
            first_row: number of the row of `values[0]`, for messages.
            offsets: int64 [n + 1] if the values stand in lists.

        Raises:
            ValueError: for nulls, ids out of range or a kind that does not fit the schema; the
                message names the column, the rule, the value and the row.
        """
        dtype = self.dtypes[column.name]
        if isinstance(values, Masked):
            values = self._without_nulls(column, values, first_row, offsets)
        if isinstance(values, (Ragged, Strings)):
            kind = "lists" if isinstance(values, Ragged) else "text"
            raise ValueError(
                f"column {column.name!r}: holds {kind}, but the schema says {column.dtype}"
            )
        if values.dtype.kind == "b":
            values = values.astype(np.int32)
        if values.dtype.kind == "f" and dtype.kind == "i":
            raise ValueError(
                f"column {column.name!r}: holds {values.dtype}, but the schema says {column.dtype}"
            )
        if values.dtype.kind == "f" and len(values) and np.isnan(values.min()):
            values = self._without_nulls(
                column, Masked(values, ~np.isnan(values)), first_row, offsets
            )
        if column.cardinality is not None and self.check_ids and len(values):
            _check_ids(column, values, first_row, offsets)
        elif dtype.kind == "i" and len(values) and not np.can_cast(values.dtype, dtype):
            _check_fits(column, values, dtype)
        return values.astype(dtype, copy=False)

    def _without_nulls(
        self, column: Column, values: Masked, first_row: int, offsets: np.ndarray | None
    ) -> Any:
        if values.valid.all():
            return values.values
        fill = self._fills.get(column.name)
        if fill is not None and isinstance(values.values, np.ndarray):
            # The fill may be a number that only the batch's dtype can hold: 0.5 among integers.
            made, dtype = values.values, self.dtypes[column.name]
            if dtype.kind == "f" or np.can_cast(made.dtype, dtype):
                made = made.astype(dtype)
            return np.where(values.valid, made, made.dtype.type(fill))
        row = first_row + _row(np.argmin(values.valid), offsets)
        if column.role in ("label", "weight"):
            advice = f"a {column.role} must have a value: fill it, or leave the row out of the data"
        else:
            advice = (
                "pass nulls='fill', or fill it in a Workflow (FillMissing; Categorify gives nulls "
                "an id of their own) or in the data"
            )
        raise ValueError(f"column {column.name!r}: null or NaN at row {row}; {advice}")

    def list_cells(self, column: Column, lists: Any, *, first_row: int = 0) -> Ragged:
        """Return the lists of a multi-hot column as a batch holds them, checked.

        Raises:
            ValueError: as `cells`, and for a column that holds no lists, or a list that is longer
                than `max_list_length`.
        """
        if not isinstance(lists, Ragged):
            raise ValueError(
                f"column {column.name!r}: the schema says multi-hot, but a row holds one value"
            )
        if self.max_list_length is not None and len(lists):
            lengths = np.diff(lists.offsets)
            if lengths.max() > self.max_list_length:
                row = int(np.argmax(lengths > self.max_list_length))
                raise ValueError(
                    f"column {column.name!r}: a list of {lengths[row]} values at row "
                    f"{first_row + row}, but max_list_length={self.max_list_length}. Cut the lists "
                    "in the data, or allow longer ones."
                )
        values = self.cells(column, lists.values, first_row=first_row, offsets=lists.offsets)
        return Ragged(values, lists.offsets)


def _fills(
    schema: Schema, dtypes: Mapping[str, np.dtype], nulls: str | Mapping[str, float]
) -> dict[str, float]:
    """Return {name: value to put in the place of a null} of the columns that have one."""
    if isinstance(nulls, str):
        if nulls not in ("error", "fill"):
            raise ValueError(f"nulls must be 'error', 'fill' or {{column: value}}, got {nulls!r}")
        return dict.fromkeys(schema.features.names, 0) if nulls == "fill" else {}
    for name, value in nulls.items():
        if name not in schema.features:
            raise ValueError(
                f"nulls: {name!r} is not a feature; the features are {schema.features.names}"
            )
        if schema[name].role != "categorical":
            continue
        end = schema[name].cardinality or np.iinfo(dtypes[name]).max + 1
        if not 0 <= value < end or value != int(value):
            raise ValueError(
                f"nulls: {value!r} is no id of column {name!r}, whose ids are integers in "
                f"[0, {end})"
            )
    return dict(nulls)


def _row(place: int, offsets: np.ndarray | None) -> int:
    """Return the row of a value: its place, or that of the list which it stands in."""
    return int(place if offsets is None else np.searchsorted(offsets, place, side="right") - 1)


def _check_fits(column: Column, values: np.ndarray, dtype: np.dtype) -> None:
    limits = np.iinfo(dtype)
    least, most = int(values.min()), int(values.max())
    if least < limits.min or most > limits.max:
        raise ValueError(
            f"column {column.name!r}: values from {least} to {most} do not fit {dtype}. Give its "
            "cardinality, or hash it in a Workflow."
        )


def _check_ids(
    column: Column, values: np.ndarray, first_row: int, offsets: np.ndarray | None
) -> None:
    unsigned = values.view(f"u{values.dtype.itemsize}")  # a negative id becomes a huge one
    if int(unsigned.max()) < column.cardinality:
        return
    place = int(np.argmax(unsigned >= column.cardinality))
    raise ValueError(
        f"column {column.name!r}: id {values[place]} is outside [0, {column.cardinality}) at row "
        f"{first_row + _row(place, offsets)}. Refit the Workflow, or give the right cardinality."
    )


@dataclasses.dataclass
class HostBatch:
    """A whole batch in host memory.

    Args:
        num_rows: rows.
        scalars: {name: [rows, 1]}, or for stacked batches {"categorical": [rows, n], ...}.
        lists: {name: `Ragged` of rows lists}.
    """

    num_rows: int
    scalars: dict[str, np.ndarray]
    lists: dict[str, Ragged]


class Group:
    """The rows of some successive batches: filled by several threads, closed by one, then cut up.

    Args:
        layout: how the columns lie.
        num_rows: rows of all its batches.
    """

    def __init__(self, layout: Layout, num_rows: int) -> None:
        self.layout, self.num_rows = layout, num_rows
        self.matrices = _matrices(layout, num_rows)
        self._lists: dict[str, dict[int, Ragged]] = {name: {} for name in layout.ragged}
        self.lists: dict[str, Ragged] = {}

    def add_lists(self, name: str, first: int, lists: Ragged) -> None:
        """Keep the lists of rows [first, first + len(lists)) of a multi-hot column."""
        self._lists[name][first] = lists

    def close(self, sizes: Sequence[int], order: np.ndarray | None) -> None:
        """Put the rows in their final order; call it once, when all of them are there.

        Args:
            sizes: rows of each batch.
            order: int64 [num_rows], the order in which the rows make up the batches; None for as
                they are.
        """
        for name, parts in self._lists.items():
            lists = concat_columns([parts[first] for first in sorted(parts)])
            self.lists[name] = lists if order is None else lists.take(order)
            parts.clear()
        self._sizes = list(sizes)
        self._first_rows = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        self._width = _padded(max(sizes))  # cells from one batch to the next in each column
        if len(sizes) == 1:
            return
        rows = np.arange(self.num_rows)
        batch = np.repeat(np.arange(len(sizes)), sizes)
        places = rows + batch * self._width - np.repeat(self._first_rows[:-1], sizes)
        picks = np.zeros(len(sizes) * self._width, dtype=np.int64)
        picks[places] = rows if order is None else order
        ordered = _matrices(self.layout, len(picks))
        for target, source in zip(ordered, self.matrices, strict=True):
            for column, values in zip(target, source, strict=True):
                np.take(values, picks, out=column, mode="clip")
        self.matrices = ordered

    def batch(self, number: int) -> HostBatch:
        """Return one of the batches, counted from 0.

        Its arrays are parts of the group's, which live as long as one of them does; each column
        starts at a multiple of 64 bytes, and no two batches share any value.
        """
        rows, first = self._sizes[number], number * self._width
        scalars: dict[str, np.ndarray] = {}
        for block, matrix in zip(self.layout.blocks, self.matrices, strict=True):
            scalars.update(_named(self.layout, block, matrix[:, first : first + rows]))
        first = self._first_rows[number]
        lists = {}
        for name, column in self.lists.items():
            part = column.slice(first, first + rows)
            lists[name] = Ragged(aligned(part.values), part.offsets)
        return HostBatch(rows, scalars, lists)


def _padded(rows: int) -> int:
    """Return `rows`, or more, such that a column behind that many 4-byte cells starts aligned."""
    cells = ALIGNMENT // 4
    return -(-rows // cells) * cells


def _matrices(layout: Layout, num_rows: int) -> list[np.ndarray]:
    """Return memory for the columns of each block, all of them aligned."""
    cells = _padded(num_rows)
    return [aligned_empty((len(block.columns), cells), block.cell) for block in layout.blocks]


def _named(layout: Layout, block: _Block, matrix: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of a block by the names that a batch has them under."""
    named = {}
    stacked: dict[str, list[int]] = {}
    for index, column in enumerate(block.columns):
        if layout.stacked and column.role in ("categorical", "continuous"):
            stacked.setdefault(column.role, []).append(index)
        else:
            values = matrix[index].view(layout.dtypes[column.name])
            named[column.name] = values[:, None]
    for role, indices in stacked.items():
        dtype = layout.dtypes[block.columns[indices[0]].name]
        named[role] = _as_records(matrix[indices[0] : indices[-1] + 1], dtype)
    return named


def _as_records(columns: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return [rows, columns] of columns that lie one after the other."""
    num_rows = columns.shape[1]
    records = aligned_empty((num_rows, len(columns)), columns.dtype)
    for start in range(0, num_rows, TRANSPOSE_ROWS):
        rows = slice(start, start + TRANSPOSE_ROWS)
        for index, column in enumerate(columns):
            records[rows, index] = column[rows]
    return records.view(dtype)


@dataclasses.dataclass(frozen=True)
class Delivery:
    """Where one block of rows goes.

    Args:
        start: its first row within the chunk given to `deal_out`.
        order: int64 [rows], the order in which its rows are dealt out; None for as they are.
        shares: the group that each share goes to, and the share.
    """

    start: int
    order: np.ndarray | None
    shares: Sequence[tuple[Group, Share]]


def deal_out(
    layout: Layout,
    columns: Iterable[tuple[str, Any]],
    deliveries: Sequence[Delivery],
    *,
    first_row: int = 0,
) -> None:
    """Copy some rows to the groups of batches that they go to, column by column.

    Args:
        layout: how the columns lie.
        columns: (name, column) of each column of the layout, in any order; one is let go before
            the next is asked for, so that columns that are decoded only then can use the same
            memory, still in the cache, one after the other.
        deliveries: where the rows go.
        first_row: number of the first of the rows, for messages.

    Raises:
        ValueError: if a value does not fit (see `Layout.cells`).
    """
    for name, values in columns:
        if name in layout.places:
            column, number, index = layout.places[name]
            cells = layout.cells(column, values, first_row=first_row)
            cells = cells.view(layout.blocks[number].cell)
            for delivery in deliveries:
                _deal_column(cells, number, index, delivery)
        elif name in layout.ragged:
            lists = layout.list_cells(layout.ragged[name], values, first_row=first_row)
            for delivery in deliveries:
                for group, share in delivery.shares:
                    group.add_lists(name, share.first, _pick_lists(lists, delivery, share))
        del values


def _deal_column(values: np.ndarray, number: int, index: int, delivery: Delivery) -> None:
    block = values[delivery.start :]
    for group, share in delivery.shares:
        stop = share.first + share.stop - share.start
        target = group.matrices[number][index, share.first : stop]
        if delivery.order is None:
            target[:] = block[share.start : share.stop]
        else:
            np.take(block, delivery.order[share.start : share.stop], out=target, mode="clip")


def _pick_lists(lists: Ragged, delivery: Delivery, share: Share) -> Ragged:
    if delivery.order is None:
        return lists.slice(delivery.start + share.start, delivery.start + share.stop)
    rows = delivery.start + delivery.order[share.start : share.stop]
    positions, offsets = gather_rows(lists.offsets, rows)
    return Ragged(lists.values[positions], offsets)
