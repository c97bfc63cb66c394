"""Packing: the rows of a chunk as fixed-width records, so that shuffling moves whole rows.

Gathering 40 columns in random order touches 40 distant cache lines a row. Here a chunk is first
packed row by row into a matrix of 4-byte cells (and one of 8-byte cells, where a column needs
them); a shuffled batch then gathers whole rows and transposes them back in blocks that stay in the
cache: two to three times as fast. Without the way back, the same matrix is the stacked batch.
Lists are gathered apart (`chunk.gather_rows`). Does not belong here: threads, files, tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tutorlib.chunk import Chunk, Masked, Ragged, Strings, concat_columns, gather_rows
from tutorlib.schema import Column, Schema

ALIGNMENT = 64  # bytes; DLPack consumers want it, and it is one cache line
PACK_ROWS = 4096  # rows packed at a time: the cells written stay in the second-level cache
GATHER_ROWS = 256  # rows gathered and transposed at a time: they stay in the first-level cache


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
        ValueError: for text, which a Workflow must turn into ids first.
    """
    if column.role in ("continuous", "weight"):
        return np.dtype(np.float32)
    if column.dtype == "string":
        raise ValueError(
            f"column {column.name!r} is text; turn it into ids with a Workflow (Categorify or "
            "HashBucket) and loader.map(workflow)"
        )
    dtype = np.dtype(column.dtype)
    if dtype.kind == "f":
        if column.role == "label":
            return np.dtype(np.float32)
        raise ValueError(f"column {column.name!r} is categorical but {dtype}; ids are integers")
    small = column.cardinality is not None and column.cardinality <= 2**31
    narrow = dtype.kind == "b" or dtype.itemsize < 4 or dtype == np.int32
    return np.dtype(np.int32 if small or narrow else np.int64)


@dataclasses.dataclass(frozen=True)
class _Block:
    """Columns whose cells have one width, packed into one matrix."""

    cell: np.dtype
    columns: tuple[Column, ...]

    def index(self, name: str) -> int:
        return [column.name for column in self.columns].index(name)


class Layout:
    """How the columns of a schema lie in packed rows and in batches.

    Args:
        schema: columns as they leave the workflow.
        stacked: whether a batch holds "categorical" and "continuous" as one matrix each.
        check_ids: whether ids outside [0, cardinality) are refused.

    Attributes:
        dtypes: {name: dtype in a batch}.
        ragged: multi-hot columns.
        row_bytes: packed bytes a row, without multi-hot columns.
    """

    def __init__(self, schema: Schema, *, stacked: bool, check_ids: bool) -> None:
        order = ("categorical", "continuous", "label", "weight")
        columns = [column for role in order for column in schema.with_role(role)]
        self.stacked, self.check_ids = stacked, check_ids
        self.dtypes = {column.name: batch_dtype(column) for column in columns}
        self.ragged = [column for column in columns if column.multi_hot]
        for column in self.ragged:
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
        for size in (4, 8):
            chosen = [c for c in self.scalars if self.dtypes[c.name].itemsize == size]
            if chosen:
                self.blocks.append(_Block(np.dtype(f"u{size}"), tuple(chosen)))
        self.row_bytes = sum(block.cell.itemsize * len(block.columns) for block in self.blocks)

    def cells(self, column: Column, values: Any) -> np.ndarray:
        """Return the values of one column as a batch holds them, checked.

        Raises:
            ValueError: for nulls, ids out of range or a kind that does not fit the schema; the
                message names the column, the rule, the value and the row within `values`.
        """
        dtype = self.dtypes[column.name]
        if isinstance(values, Masked):
            row = int(np.argmin(values.valid))
            raise ValueError(
                f"column {column.name!r}: null at row {row}. Fill it in a Workflow (FillMissing; "
                "Categorify gives nulls an id of their own) or in the data."
            )
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
        if column.cardinality is not None and self.check_ids and len(values):
            _check_ids(column, values)
        return values.astype(dtype, copy=False)


def _check_ids(column: Column, values: np.ndarray) -> None:
    unsigned = values.view(f"u{values.dtype.itemsize}")  # a negative id becomes a huge one
    if int(unsigned.max()) < column.cardinality:
        return
    row = int(np.argmax(unsigned >= column.cardinality))
    raise ValueError(
        f"column {column.name!r}: id {values[row]} is outside [0, {column.cardinality}) at row "
        f"{row}. Refit the Workflow, or give the right cardinality."
    )


class PackedChunk:
    """The rows of one chunk, packed; filled by several threads, then read by several.

    Args:
        layout: how the columns lie.
        num_rows: rows of the chunk.
    """

    def __init__(self, layout: Layout, num_rows: int) -> None:
        self.layout, self.num_rows = layout, num_rows
        self.blocks = [
            aligned_empty((num_rows, len(block.columns)), block.cell) for block in layout.blocks
        ]
        self.order: np.ndarray | None = None
        self._lists: dict[str, dict[int, Ragged]] = {c.name: {} for c in layout.ragged}
        self.lists: dict[str, Ragged] = {}

    def fill(self, first: int, chunk: Chunk) -> None:
        """Pack the rows of `chunk` into rows [first, first + chunk.num_rows)."""
        for block, matrix in zip(self.layout.blocks, self.blocks, strict=True):
            cells = [
                self.layout.cells(column, chunk[column.name]).view(block.cell)
                for column in block.columns
            ]
            for start in range(0, chunk.num_rows, PACK_ROWS):
                stop = min(start + PACK_ROWS, chunk.num_rows)
                target = matrix[first + start : first + stop]
                for index, values in enumerate(cells):
                    target[:, index] = values[start:stop]
        for column in self.layout.ragged:
            lists = chunk[column.name]
            if not isinstance(lists, Ragged):
                raise ValueError(
                    f"column {column.name!r}: the schema says multi-hot, but a row holds one value"
                )
            values = self.layout.cells(column, lists.values)
            self._lists[column.name][first] = Ragged(values, lists.offsets)

    def finish(self) -> None:
        """Join what the pieces left apart; call once, when all are filled."""
        for name, parts in self._lists.items():
            self.lists[name] = concat_columns([parts[first] for first in sorted(parts)])
            parts.clear()

    def rows(self, start: int, stop: int) -> np.ndarray | slice:
        """Return which rows stand at positions [start, stop) of the chunk's order."""
        return slice(start, stop) if self.order is None else self.order[start:stop]


@dataclasses.dataclass
class HostBatch:
    """A batch in host memory.

    Args:
        num_rows: rows.
        scalars: {name: [rows, 1]}, or for stacked batches {"categorical": [rows, n], ...}.
        lists: {name: `Ragged` of rows lists}.
    """

    num_rows: int
    scalars: dict[str, np.ndarray]
    lists: dict[str, Ragged]


def gather_batch(layout: Layout, parts: Sequence[tuple[PackedChunk, int, int]]) -> HostBatch:
    """Return the batch made of positions [start, stop) of each of the given chunks.

    The arrays are new, each column starts at a multiple of 64 bytes, and nothing else refers to
    them, so that a framework may keep them.
    """
    num_rows = sum(stop - start for _, start, stop in parts)
    picks = [(chunk, chunk.rows(start, stop)) for chunk, start, stop in parts]
    scalars: dict[str, np.ndarray] = {}
    for number, block in enumerate(layout.blocks):
        targets = _targets(layout, block, num_rows)
        first = 0
        for chunk, rows in picks:
            first = _copy_rows(chunk.blocks[number], rows, first, targets)
        for columns, _, matrix in targets:
            scalars.update(_named(layout, columns, matrix))
    lists = {
        column.name: concat_columns(
            [_pick_lists(chunk.lists[column.name], rows) for chunk, rows in picks]
        )
        for column in layout.ragged
    }
    return HostBatch(num_rows, scalars, lists)


_Target = tuple[Sequence[Column], slice, np.ndarray]  # columns, their cells, matrix [rows, columns]


def _targets(layout: Layout, block: _Block, num_rows: int) -> list[_Target]:
    """Return where the cells of a block go: column after column, or row after row if stacked."""
    groups: list[tuple[Sequence[Column], bool]] = [(block.columns, False)]
    if layout.stacked:
        by_role = {
            role: [c for c in block.columns if c.role == role]
            for role in ("categorical", "continuous", "label", "weight")
        }
        groups = [(c, role in ("categorical", "continuous")) for role, c in by_role.items() if c]
    targets, first = [], 0
    for columns, by_row in groups:
        width = len(columns)
        if by_row:
            matrix = aligned_empty((num_rows, width), block.cell)
        else:
            cells = ALIGNMENT // block.cell.itemsize
            padded = -(-num_rows // cells) * cells
            matrix = aligned_empty((width, padded), block.cell).T[:num_rows]
        targets.append((columns, slice(first, first + width), matrix))
        first += width
    return targets


def _copy_rows(source: np.ndarray, rows: Any, first: int, targets: Sequence[_Target]) -> int:
    """Copy rows of a packed matrix to rows from `first` on of the targets; return the next row."""
    if isinstance(rows, slice):
        count = rows.stop - rows.start
    else:
        count = len(rows)
        buffer = np.empty((GATHER_ROWS, source.shape[1]), source.dtype)
    for start in range(0, count, GATHER_ROWS):
        stop = min(start + GATHER_ROWS, count)
        if isinstance(rows, slice):
            cells = source[rows.start + start : rows.start + stop]
        else:
            cells = buffer[: stop - start]
            np.take(source, rows[start:stop], axis=0, out=cells, mode="clip")
        for _, span, matrix in targets:
            matrix[first + start : first + stop] = cells[:, span]
    return first + count


def _named(layout: Layout, columns: Sequence[Column], matrix: np.ndarray) -> dict[str, np.ndarray]:
    role = columns[0].role
    if layout.stacked and role in ("categorical", "continuous"):
        return {role: matrix.view(layout.dtypes[columns[0].name])}
    return {
        column.name: matrix[:, index].view(layout.dtypes[column.name])[:, None]
        for index, column in enumerate(columns)
    }


def _pick_lists(lists: Ragged, rows: np.ndarray | slice) -> Ragged:
    if isinstance(rows, slice):
        part = lists.slice(rows.start, rows.stop)
        return Ragged(aligned(part.values), part.offsets)
    positions, offsets = gather_rows(lists.offsets, rows)
    values = aligned_empty((len(positions),), lists.values.dtype)
    np.take(lists.values, positions, out=values, mode="clip")
    return Ragged(values, offsets)
