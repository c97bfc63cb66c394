"""DeviceReader: row groups of Parquet files as columns in the memory of a device.

It yields the same columns and errors as `ParquetFiles.columns`. On a GPU, cuDF decodes what it can
(`cudf_decoder.py`); Arrow decodes the rest and remote files on the CPU, and they are copied over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tutorlib.columns import column_from_arrow, copied, slice_rows, take, to_namespace
from tutorlib.memory import GpuSpace, MemorySpace
from tutorlib.parquet.files import ParquetFiles
from tutorlib.parquet.types import ParquetError, RowGroup


class DeviceReader:
    """Reads columns of row groups into a memory space.

    A row group that is read in slices is decoded once and kept until its last slice has been read.
    After `save_memory`, each slice is decoded by itself, in small steps.

    Args:
        stored: the files.
        space: memory space of the columns.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> from tutorlib.parquet.paths import find_files
        >>> from tutorlib.memory import HostSpace
        >>> path = tempfile.mkdtemp() + "/a.parquet"
        >>> pq.write_table(pa.table({"x": [1, 2, 3]}), path)
        >>> reader = DeviceReader(ParquetFiles(find_files(path)), HostSpace())
        >>> dict(reader.columns(RowGroup(0, 0, 3), ["x"], 1, 3))
        {'x': array([2, 3])}
    """

    def __init__(self, stored: ParquetFiles, space: MemorySpace) -> None:
        self.stored, self.space = stored, space
        self._saves_memory = False
        self._decoder: Any = None
        if isinstance(space, GpuSpace):
            from tutorlib.parquet.cudf_decoder import CudfDecoder

            self._decoder = CudfDecoder(space)

    def __reduce__(self) -> Any:
        return DeviceReader, (self.stored, self.space)

    def save_memory(self) -> None:
        """Free the row groups that are kept for later slices, and need less memory from now on."""
        self._saves_memory = True
        self.stored.streams.close()

    def column(self, array: Any) -> Any:
        """Return a column of the memory space, from an Arrow array or from a column of it."""
        if not hasattr(array, "type"):
            return array
        return to_namespace(column_from_arrow(array), self.space.xp)

    def take(self, column: Any, rows: np.ndarray) -> Any:
        """Return the given rows of a column."""
        return take(column, self.space.array(rows))

    def columns(
        self, group: RowGroup, names: Sequence[str], first: int, last: int
    ) -> Iterator[tuple[str, Any]]:
        """Yield (name, stored rows [first, last)) as columns of the memory space.

        Raises:
            ParquetError: if a column cannot be decoded, or the file has changed.
            MemoryError: if the device has not enough memory.
        """
        with self.space.work():
            columns = self._rows(group, list(names), first, last)
        for name in names:
            yield name, columns.pop(name)

    def _rows(self, group: RowGroup, names: list[str], first: int, last: int) -> dict[str, Any]:
        rows = self.stored.num_rows(group)
        if not names or last - first == rows or self._saves_memory:
            return self._decoded(group, names, first, last)
        key = (group.file, group.index, *names)
        return self.stored.streams.read(key, first, last, rows, lambda: self._opened(group, names))

    def _opened(self, group: RowGroup, names: list[str]) -> _DecodedRowGroup:
        return _DecodedRowGroup(
            self._decoded(group, names, 0, self.stored.num_rows(group)), self.space
        )

    def _decoded(self, group: RowGroup, names: list[str], first: int, last: int) -> dict[str, Any]:
        local = self.stored.files[group.file].is_local
        takes = self._decoder.takes if self._decoder and local else lambda field: False
        own = [name for name in names if name not in self.stored.shared.promoted]
        fast = [name for name in own if takes(self.stored.schema.field(name))]
        columns = self._decoded_on_device(group, fast, first, last) if fast else {}
        slow = [name for name in names if name not in columns]
        for name, array in self.stored.columns(group, slow, first, last):
            try:
                columns[name] = self.column(array)
            except TypeError as error:
                location = self.stored.location(group)
                raise ParquetError(f"{location}, column {name!r}: {error}") from error
        self.space.finish()  # the next slice may be read on another stream
        return columns

    def _decoded_on_device(
        self, group: RowGroup, names: list[str], first: int, last: int
    ) -> dict[str, Any]:
        self.stored.refuse_change(group)
        footer = self.stored.footers[group.file]
        before = sum(footer.row_group(index).num_rows for index in range(group.index))
        path = self.stored.files[group.file].inner
        whole = last - first == self.stored.num_rows(group)
        where = {"row_group": group.index} if whole else {"rows": (before + first, before + last)}

        def decode(some: list[str]) -> dict[str, Any]:
            in_steps = self._saves_memory
            columns = self._decoder.decode(path, some, in_steps=in_steps, **where)
            rows = {len(column) for column in columns.values()}
            if rows != {last - first} or list(columns) != some:
                raise EOFError(f"{rows} rows of {list(columns)}, but {last - first} are expected")
            return columns

        try:
            return decode(names)
        except (*self._decoder.errors, EOFError) as error:
            self.stored.refuse_change(group)
            lost = "Fatal CUDA error" in str(error)  # after it, nothing can be decoded
            at_fault = names if len(names) == 1 or lost else self._undecodable(decode, names)
            column = f", column {at_fault[0]!r}" if len(at_fault) == 1 else ""
            raise ParquetError(
                f"{self.stored.location(group)}{column}: cuDF cannot read it "
                f"({type(error).__name__}: {error}). If device='cpu' can, rewrite the file with "
                "ParquetSink."
            ) from error

    def _undecodable(self, decode: Any, names: list[str]) -> list[str]:
        """Return the first column that fails when it is decoded alone, if there is one."""
        for name in names:
            try:
                decode([name])
            except (*self._decoder.errors, EOFError):
                return [name]
        return []


class _DecodedRowGroup:
    """The decoded rows of a row group, as a `RowStream`.

    A slice is a copy: the row group is freed after its last slice, when the device may still work.
    """

    def __init__(self, columns: dict[str, Any], space: MemorySpace) -> None:
        self._columns, self._space = columns, space

    def read(self, start: int, stop: int) -> dict[str, Any]:
        """Return rows [start, stop) of every column."""
        slices = {
            name: copied(slice_rows(column, start, stop)) for name, column in self._columns.items()
        }
        self._space.finish()
        return slices

    def close(self) -> None:
        """Free the rows."""
        self._columns = {}
