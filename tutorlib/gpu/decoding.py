"""Row groups decoded by a GPU, as CuPy arrays over the memory of cuDF's library.

Written for pylibcudf 26.10. It reads the files (with KvikIO, directly into GPU memory where the
system has GPUDirect Storage), decompresses and decodes them on the stream of the calling thread.
Most of a call is a cost of its own (H200: 3 ms of 1 column and row group, 14 ms of 16 row groups of
40 columns), so several row groups are read by one. Nothing is copied: the arrays are views of its
buffers. What a GPU cannot decode to the values that Arrow gives, such as dates, is refused, never
decoded on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tutorlib.columns import (
    Masked,
    Ragged,
    Strings,
    as_vectors,
    column_from_arrow,
    concat_columns,
    slice_rows,
    take,
    to_namespace,
)
from tutorlib.memory import LESS_MEMORY
from tutorlib.parquet.files import ParquetError, ParquetRows, StoredRows
from tutorlib.schema import column_type, element_type, is_number

CPU = "Read it with device='cpu', or cast it in the data"


def read_row_groups(
    places: Sequence[tuple[StoredRows, int]],
    fields: Sequence[pa.Field],
    constant: pa.Table,
    rows: slice | np.ndarray | None,
) -> dict[str, Any]:
    """Return columns of row groups, one after the other, as CuPy arrays and lists of them.

    Args:
        places: files, or rows in memory, which are copied over, each with the number of one of its
            row groups; at least one.
        fields: columns of the files, with the types to read them as.
        constant: columns that are not in the files, of as many rows as are taken.
        rows: numbers of the rows to take, among those that are stored in the row groups: a slice or
            int64 [n]; None for all.

    Raises:
        ParquetError: if a column has a type that a GPU cannot hold, or cannot be decoded, or a
            file is in an object store; it says what to do.
        MemoryError: if the GPU has not enough memory.
    """
    import cupy

    first, index = places[0]
    for field in fields:
        kind, _ = element_type(column_type(field.type)[0])
        if not (kind == "string" or is_number(kind)) or kind == "float16" or "." in field.name:
            raise ParquetError(
                f"{first.location(index)}, column {field.name!r}: a GPU cannot decode {field.type}"
                f". {CPU}."
            )
    names = [field.name for field in fields]
    files: list[tuple[ParquetRows, int]] = []
    tables: list[pa.Table] = []
    for stored, index in places:
        if not isinstance(stored, ParquetRows):
            tables += stored.tables(index, names, None)
        elif stored.is_local:
            files.append((stored, index))
        else:
            raise ParquetError(
                f"{stored.path}: a GPU reads files of this machine. Copy them here, or use "
                "device='cpu'."
            )
    columns: dict[str, Any] = {}
    if tables:
        table = pa.concat_tables(tables).cast(pa.schema(fields))
        columns = {name: to_namespace(column_from_arrow(table[name]), cupy) for name in names}
    elif fields:
        columns = _columns_of(files, fields)
    for name, column in columns.items():
        if isinstance(rows, slice):
            columns[name] = slice_rows(column, rows.start, rows.stop)
        elif rows is not None:
            columns[name] = take(column, cupy.asarray(rows))
    for name in constant.column_names:
        columns[name] = to_namespace(column_from_arrow(constant[name]), cupy)
    cupy.cuda.get_current_stream().synchronize()  # another thread may use them on its own stream
    return columns


def _columns_of(
    places: Sequence[tuple[ParquetRows, int]], fields: Sequence[pa.Field]
) -> dict[str, Any]:
    """Return all rows of columns, in one call of cuDF if it takes the files together.

    What fails is read again, one row group after the other. So an error names the row group, files
    that differ in a way that Arrow's types do not tell can be read, and less memory may be enough.
    """
    try:
        return _decoded(places, fields)
    except (ParquetError, MemoryError):
        if len(places) == 1:
            raise
    parts = [_decoded([place], fields) for place in places]
    return {name: concat_columns([part[name] for part in parts]) for name in parts[0]}


def _decoded(
    places: Sequence[tuple[ParquetRows, int]], fields: Sequence[pa.Field]
) -> dict[str, Any]:
    """Return all rows of columns by one call of cuDF; an error names the first place."""
    import pylibcudf

    names = [field.name for field in fields]
    # A file comes once for each run of its row groups: cuDF keeps the order that is given.
    files: list[ParquetRows] = []
    row_groups: list[list[int]] = []
    num_rows = 0
    for stored, index in places:
        if not files or stored is not files[-1]:
            stored.refuse_changed(index)
            files.append(stored)
            row_groups.append([])
        row_groups[-1].append(index)
        num_rows += stored.row_counts[index]
    place, parquet = files[0].location(row_groups[0][0]), pylibcudf.io.parquet
    try:
        source = pylibcudf.io.types.SourceInfo([stored.file.inner for stored in files])
        options = parquet.ParquetReaderOptions.builder(source)
        options = options.use_pandas_metadata(False).use_arrow_schema(False)
        options = options.column_names(names).build()
        options.set_row_groups(row_groups)
        table = parquet.read_parquet(options, _stream())
        for stored, indices in zip(files, row_groups, strict=True):
            stored.refuse_changed(indices[0])
        found = table.column_names(include_children=False)
        columns = dict(zip(found, map(_column, table.tbl.columns()), strict=True))
        if {len(column) for column in columns.values()} != {num_rows}:
            raise EOFError(f"not the {num_rows} rows of the footer")
        return {field.name: _cast(columns[field.name], field.type) for field in fields}
    except (
        RuntimeError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        OSError,
        EOFError,
        MemoryError,
    ) as error:
        words = "out of memory", "MemoryAllocation"  # from CUDA, where RMM does not allocate
        if isinstance(error, MemoryError) or any(word in str(error) for word in words):
            raise MemoryError(f"{error} (in {place}). {LESS_MEMORY}") from error
        raise ParquetError(
            f"{place}, one of the columns {names}: cuDF cannot read it "
            f"({type(error).__name__}: {error}). With device='cpu' the error names the column; if "
            "there is none, rewrite the file with ParquetSink."
        ) from error


def _cast(column: Any, kind: pa.DataType) -> Any:
    """Return a column in the type that all files share."""
    if isinstance(column, Masked):
        return Masked(_cast(column.values, kind), column.valid)
    if isinstance(column, Strings):
        return column
    if isinstance(column, Ragged):
        values = _cast(column.values, kind.value_type)
        lists = Ragged(values, column.offsets, column.valid)
        length = element_type(column_type(kind)[0])[1]
        return lists if length is None else as_vectors(lists, length)
    return column.astype(kind.to_pandas_dtype(), copy=False)


def _stream() -> Any:
    """Return the current stream of this thread as an RMM stream."""
    import cupy
    from rmm.pylibrmm.stream import Stream

    return Stream(cupy.cuda.get_current_stream())


def _column(column: Any) -> Any:
    """Return a column of pylibcudf as a column of a chunk, over the same memory."""
    import cupy
    from pylibcudf import TypeId

    kind, size = column.type().id(), column.size()
    if kind == TypeId.LIST:
        lists = column.list_view()  # in which a null list of Parquet has no values
        return Ragged(_column(lists.child()), _offsets(lists.offsets(), size), _valid(column))
    if kind == TypeId.STRING:
        data, offsets = column.data(), _offsets(column.child(0) if size else None, size)
        values: Any = Strings(_array(data, np.uint8, 0 if data is None else data.size), offsets)
    elif kind == TypeId.BOOL8:
        values = _array(column.data(), np.bool_, size)
    else:
        values = _array(column.data(), np.dtype(kind.name.lower()), size)
    valid = _valid(column)
    if valid is None:
        return values
    if isinstance(values, Strings) or values.dtype.kind != "f":
        return Masked(values, valid)
    return cupy.where(valid, values, values.dtype.type("nan"))


def _valid(column: Any) -> Any:
    """Return bool [n], False at a null; None if there is no null."""
    from pylibcudf import transform

    mask, size = column.null_mask(), column.size()
    if mask is None or not column.null_count():
        return None
    plain = transform.mask_to_bools(mask.ptr, 0, size, _stream())
    return _array(plain.data(), np.bool_, size)


def _offsets(column: Any, size: int) -> Any:
    """Return the offsets of lists or strings, int64 [size + 1]; libcudf's may be int32."""
    import cupy

    if not size:
        return cupy.zeros(1, dtype=np.int64)
    dtype = np.dtype(column.type().id().name.lower())
    return _array(column.data(), dtype, size + 1).astype(np.int64, copy=False)


def _array(memory: Any, dtype: Any, size: int) -> Any:
    """Return an array over memory of libcudf, which it keeps alive."""
    import cupy

    dtype = np.dtype(dtype)
    if not size:
        return cupy.empty(0, dtype=dtype)
    unowned = cupy.cuda.UnownedMemory(memory.ptr, size * dtype.itemsize, memory, 0)
    return cupy.ndarray((size,), dtype, cupy.cuda.MemoryPointer(unowned, 0))
