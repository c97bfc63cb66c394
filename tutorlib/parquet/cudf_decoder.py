"""CudfDecoder: columns of Parquet files decoded by a GPU, as CuPy arrays over cuDF's memory.

Written for pylibcudf 26.10, the library below cuDF. libcudf reads the file (with KvikIO, directly
into GPU memory where the system has GPUDirect Storage), decompresses and decodes it on the stream
of the calling thread. Nothing is copied: the arrays are views of the columns' buffers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tutorlib.columns import Masked, Ragged, Strings, concat_columns
from tutorlib.memory import GpuSpace

STEP_BYTES = 64 * 2**20  # decoded in a step to save memory; decompressing takes as much again


class CudfDecoder:
    """Decodes columns of a Parquet file on the GPU.

    Args:
        space: the GPU's memory.

    Attributes:
        errors: exception types that libcudf raises for a file that it cannot read.
    """

    errors = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, OSError)

    def __init__(self, space: GpuSpace) -> None:
        import pylibcudf

        self._space, self._xp, self._plc = space, space.xp, pylibcudf

    def takes(self, field: Any) -> bool:
        """Return whether cuDF decodes a column to the same values as Arrow.

        It does for integers, float32, float64, booleans, strings, and lists of these; times, for
        example, have other widths.

        Args:
            field: `pyarrow.Field`.
        """
        import pyarrow as pa

        kind = field.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind = kind.value_type
        return "." not in field.name and (  # for cuDF, a dot separates a column and its field
            pa.types.is_integer(kind)
            or pa.types.is_float32(kind)
            or pa.types.is_float64(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
        )

    def decode(
        self,
        path: str,
        names: list[str],
        *,
        row_group: int | None = None,
        rows: tuple[int, int] | None = None,
        in_steps: bool = False,
    ) -> dict[str, Any]:
        """Return columns of one row group, or of some rows of the file.

        Args:
            path: path of a local file.
            names: columns.
            row_group: number of the row group in the file; None takes `rows`.
            rows: (first, end) over the whole file.
            in_steps: decode `STEP_BYTES` at a time and concatenate: slower, with less memory.

        Raises:
            MemoryError: if the GPU has not enough memory.
            Exception: one of `errors`, if the file cannot be read.
        """
        try:
            return self._decoded(path, names, row_group, rows, in_steps)
        except RuntimeError as error:  # from CUDA itself, where RMM does not allocate
            if "out of memory" in str(error) or "MemoryAllocation" in str(error):
                raise MemoryError(str(error)) from error
            raise

    def _decoded(
        self,
        path: str,
        names: list[str],
        row_group: int | None,
        rows: tuple[int, int] | None,
        in_steps: bool,
    ) -> dict[str, Any]:
        parquet, source = self._plc.io.parquet, self._plc.io.types.SourceInfo([str(path)])
        builder = parquet.ParquetReaderOptions.builder(source)
        options = builder.use_pandas_metadata(False).use_arrow_schema(False)
        options = options.column_names(names).build()
        if rows is None:
            options.set_row_groups([[row_group]])
        else:  # libcudf numbers rows over the file
            options.set_skip_rows(rows[0])
            options.set_num_rows(rows[1] - rows[0])
        stream = self._stream()
        if not in_steps:
            return self._columns(parquet.read_parquet(options, stream))
        reader = parquet.ChunkedParquetReader(
            options, stream, chunk_read_limit=STEP_BYTES, pass_read_limit=STEP_BYTES
        )
        steps = []
        while reader.has_next():
            steps.append(self._columns(reader.read_chunk()))
        return {name: concat_columns([step[name] for step in steps]) for name in names}

    def _stream(self) -> Any:
        """Return the stream of this thread as an RMM stream."""
        from rmm.pylibrmm.stream import Stream

        return Stream(self._space.stream())

    def _columns(self, table: Any) -> dict[str, Any]:
        names = table.column_names(include_children=False)
        return dict(zip(names, map(self._column, table.tbl.columns()), strict=True))

    def _column(self, column: Any) -> Any:
        """Return a column of pylibcudf as a column of a chunk, over the same memory."""
        kind, size = column.type().id(), column.size()
        if kind == self._plc.TypeId.LIST:
            lists = column.list_view()  # in which a null list of Parquet has no values
            offsets = self._offsets(lists.offsets(), size)
            return Ragged(self._column(lists.child()), offsets, self._valid(column))
        if kind == self._plc.TypeId.STRING:
            offsets = self._offsets(column.child(0) if size else None, size)
            data = column.data()
            values: Any = Strings(
                self._array(data, np.uint8, 0 if data is None else data.size), offsets
            )
        elif kind == self._plc.TypeId.BOOL8:
            values = self._array(column.data(), np.bool_, size)
        else:
            values = self._array(column.data(), np.dtype(kind.name.lower()), size)
        valid = self._valid(column)
        if valid is None:
            return values
        if isinstance(values, Strings) or values.dtype.kind != "f":
            return Masked(values, valid)
        return self._xp.where(valid, values, values.dtype.type("nan"))

    def _valid(self, column: Any) -> Any:
        """Return bool [n], False at a null; None if there is no null."""
        mask, size = column.null_mask(), column.size()
        if mask is None or not column.null_count():
            return None
        plain = self._plc.transform.mask_to_bools(mask.ptr, 0, size, self._stream())
        return self._array(plain.data(), np.bool_, size)

    def _offsets(self, column: Any, size: int) -> Any:
        """Return the offsets of lists or strings, int64 [size + 1]; libcudf's may be int32."""
        if not size:
            return self._xp.zeros(1, dtype=np.int64)
        dtype = np.dtype(column.type().id().name.lower())
        return self._array(column.data(), dtype, size + 1).astype(np.int64, copy=False)

    def _array(self, memory: Any, dtype: Any, size: int) -> Any:
        """Return an array over memory of libcudf, which it keeps alive."""
        dtype = np.dtype(dtype)
        if not size:
            return self._xp.empty(0, dtype=dtype)
        cuda = self._xp.cuda
        unowned = cuda.UnownedMemory(memory.ptr, size * dtype.itemsize, memory, 0)
        return self._xp.ndarray((size,), dtype, cuda.MemoryPointer(unowned, 0))
