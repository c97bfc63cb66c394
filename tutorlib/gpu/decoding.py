"""Row groups decoded by a GPU, as CuPy arrays over the memory of cuDF's library.

Written for pylibcudf 26.10. It reads the files (with KvikIO, directly into GPU memory where the
system has GPUDirect Storage), decompresses and decodes them on the stream of the calling thread.
Most of a call is a cost of its own (H200: 3 ms of 1 column and row group, 14 ms of 16 row groups of
40 columns), so the row groups of a chunk are read by one. Nothing is copied: the arrays are views
of its buffers. A GPU decodes numbers and lists of numbers without nulls, in whole row groups;
everything else is refused when the loader is made, or as soon as it is found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tutorlib.loader.layout import Layout, Lists
from tutorlib.memory import LESS_MEMORY
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.parquet.files import ParquetRows
from tutorlib.schema import element_type, is_list, is_number


def refuse_unreadable(
    source: ParquetSource, names: Sequence[str], vectors: Collection[str]
) -> None:
    """Raise ValueError for rows and columns that a GPU does not decode; it says what to do.

    Args:
        source: the files.
        names: columns to read.
        vectors: columns whose lists are vectors, by the schema.
    """
    stored, _ = source.stored(0)
    if not isinstance(stored, ParquetRows) or not source.is_local:
        raise ValueError(
            "device='gpu' reads Parquet files of this machine, not rows in memory or in an object "
            "store. Write or copy them to files here, or use device='cpu'"
        )
    for position in range(len(source)):
        other, _ = source.stored(position)
        same = other.schema is stored.schema or other.schema.names == stored.schema.names
        if not same or other.schema.types != stored.schema.types:
            raise ValueError(
                f"device='gpu' reads files whose columns have the same types, but {other.path} has "
                f"others than {stored.path}. Write them again with ParquetSink, or use device='cpu'"
            )
    if not all(map(source.has_first_rows, range(len(source)))):
        raise ValueError(
            "device='gpu' decodes whole row groups, but of some only a part is chosen (filters, "
            "split_rows). Write these rows to files of their own "
            "(Workflow.transform_to_parquet), or use device='cpu'"
        )
    for name in names:
        dtype, length = element_type(source.column_types[name][0])
        kind, remedy = str(source.arrow_schema.field(name).type), "Cast it in the data"
        if name not in stored.schema.names:
            kind, remedy = "a key in the paths of the files", "Write it into the files"
        elif length is not None or name in vectors:
            kind, remedy = f"a vector ({kind})", "Write each of its numbers as a column"
        elif "." in name:
            kind, remedy = "a name with a dot", "Rename it in the data"
        elif is_number(dtype) and dtype != "float16":
            continue
        elif dtype == "string":
            remedy = "Make ids of it (Workflow.transform_to_parquet)"
        raise ValueError(
            f"column {name!r}: device='gpu' decodes numbers and lists of numbers, but this is "
            f"{kind}. {remedy}, or use device='cpu'"
        )


def decode(source: ParquetSource, numbers: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """Return columns of whole row groups, one after the other, on the GPU.

    Args:
        source: the files, of which nothing is refused.
        numbers: of the row groups, at least one.
        names: columns.

    Returns:
        {name: array, `Lists`, or None for a column with nulls}.

    Raises:
        ParquetError: if cuDF cannot decode them together; the first row group is named.
        MemoryError: if the GPU has not enough memory.
    """
    import cupy
    import pylibcudf
    from rmm.pylibrmm.stream import Stream

    # A file comes once for each run of its row groups: cuDF keeps the order that is given.
    files: list[Any] = []
    row_groups: list[list[int]] = []
    num_rows = 0
    stored: Any
    for number in numbers:
        stored, index = source.stored(number)
        if not files or stored is not files[-1]:
            stored.refuse_changed(index)
            files.append(stored)
            row_groups.append([])
        row_groups[-1].append(index)
        num_rows += stored.row_counts[index]
    place, parquet = source.location(numbers[0]), pylibcudf.io.parquet
    stream = cupy.cuda.get_current_stream()
    try:
        info = pylibcudf.io.types.SourceInfo([stored.path for stored in files])
        options = parquet.ParquetReaderOptions.builder(info)
        options = options.use_pandas_metadata(False).use_arrow_schema(False)
        options = options.column_names(names).build()
        options.set_row_groups(row_groups)
        table = parquet.read_parquet(options, Stream(stream))
        for stored, indices in zip(files, row_groups, strict=True):
            stored.refuse_changed(indices[0])
        found = table.column_names(include_children=False)
        decoded = dict(zip(found, table.tbl.columns(), strict=True))
        if {column.size() for column in decoded.values()} != {num_rows}:
            raise EOFError(f"not the {num_rows} rows of the footer")
        columns = {}
        for name in names:
            columns[name] = _column(decoded[name], source.arrow_schema.field(name).type)
        stream.synchronize()  # another thread may use them on its own stream
        return columns
    except (RuntimeError, ValueError, LookupError, OSError, EOFError, MemoryError) as error:
        words = "out of memory", "MemoryAllocation"  # from CUDA, where RMM does not allocate
        if isinstance(error, MemoryError) or any(word in str(error) for word in words):
            raise MemoryError(f"{error} (in {place}). {LESS_MEMORY}") from error
        raise ParquetError(
            f"{len(numbers)} row groups from {place} on: cuDF cannot read the columns {names} "
            f"({type(error).__name__}: {error}). Rewrite the files with ParquetSink, or use "
            "device='cpu'"
        ) from error


def refused(columns: Mapping[str, Any], layout: Layout) -> bool:
    """Return whether a batch does not take a value: a null, NaN, one out of bounds, a long list.

    The smallest and largest values come to the host in one copy for all columns of a dtype.
    """
    import cupy

    bounds: dict[Any, list[tuple[float, float]]] = {}
    ends: dict[Any, list[Any]] = {}

    def note(values: Any, low: float, high: float) -> None:
        if values.size:
            bounds.setdefault(values.dtype, []).append((low, high))
            ends.setdefault(values.dtype, []).extend([values.min(), values.max()])

    for column in layout.columns:
        values = columns[column.name]
        if isinstance(values, Lists):
            if layout.multi_hot.max_length is not None:
                note(cupy.diff(values.offsets), 0, layout.multi_hot.max_length)
            values = values.values
        if values is None or (values.dtype.kind, layout.dtypes[column.name].kind) == ("f", "i"):
            return True
        note(values, *layout.bounds(column))
    for dtype, of_columns in ends.items():
        pairs = cupy.stack(of_columns).get().reshape(-1, 2)
        for (low, high), (least, most) in zip(bounds[dtype], pairs, strict=True):
            if not (low <= least and most <= high):  # a NaN is within no bounds
                return True
    return False


def _column(column: Any, kind: pa.DataType) -> Any:
    """Return a column of pylibcudf in the type that all files share; None if it has nulls."""
    import cupy

    if column.null_count():
        return None
    size = column.size()
    if not is_list(kind):
        return _array(column, size).astype(kind.to_pandas_dtype(), copy=False)
    lists = column.list_view()
    values, offsets = _column(lists.child(), kind.value_type), cupy.zeros(1, dtype=np.int64)
    if size:
        offsets = _array(lists.offsets(), size + 1).astype(np.int64, copy=False)
    return None if values is None else Lists(values, offsets)


def _array(column: Any, size: int) -> Any:
    """Return an array over the memory of a column of numbers, which it keeps alive."""
    import cupy

    name = column.type().id().name.lower()
    dtype, memory = np.dtype("bool" if name == "bool8" else name), column.data()
    if memory is None or not size:
        return cupy.zeros(size, dtype=dtype)
    unowned = cupy.cuda.UnownedMemory(memory.ptr, size * dtype.itemsize, memory, 0)
    return cupy.ndarray((size,), dtype, cupy.cuda.MemoryPointer(unowned, 0))
