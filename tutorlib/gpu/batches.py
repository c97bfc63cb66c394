"""Batches made on a GPU: refuse, decode, gather, and hand over to Keras's backend.

Steps are few and large. One call decodes all row groups of a chunk, one task gathers all its
columns. What is found wrong is read again on the CPU, whose error names a place.

Written for pylibcudf 26.10. It reads the files (with KvikIO, directly into GPU memory where the
system has GPUDirect Storage), decompresses and decodes them on the stream of the calling thread.
Most of a call is a cost of its own (H200: 3 ms of 1 column and row group, 14 ms of 16 row groups of
40 columns), so the row groups of a chunk are read by one. Nothing is copied: the arrays are views
of its buffers. A GPU decodes numbers and lists of numbers without nulls, in whole row groups;
everything else is refused when the loader is made, or as soon as it is found.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import keras
import numpy as np
import pyarrow as pa

from tutorlib.arrays import one_array
from tutorlib.keras_bridge.backend import tensorflow_maker
from tutorlib.loader.layout import Layout, Lists
from tutorlib.loader.pipeline import Submit
from tutorlib.loader.plan import ChunkPlan
from tutorlib.memory import LESS_MEMORY
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.parquet.files import ParquetRows
from tutorlib.schema import element_type, is_list, is_number

Array = Any  # of CuPy
Tensor = Any  # of Keras's backend
Columns = dict[str, Array | Lists | None]  # None for a column with nulls

# ---- what a GPU does not read --------------------------------------------------------------------


def refuse_unreadable(
    source: ParquetSource, names: Sequence[str], vectors: Collection[str]
) -> None:
    """Raise ValueError for rows and columns that a GPU does not decode; it says what to do.

    Args:
        source: the files.
        names: columns to read.
        vectors: columns whose lists are vectors, by the schema.
    """
    stored = source.stored(0)[0]
    if not isinstance(stored, ParquetRows) or not source.is_local:
        raise ValueError(
            "device='gpu' reads Parquet files of this machine, not rows in memory or in an object "
            "store. Write or copy them to files here, or use device='cpu'"
        )
    for position in range(len(source)):
        other = source.stored(position)[0]
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
        kind = source.arrow_schema.field(name).type
        if name not in stored.schema.names:
            fault = "a key in the paths of the files. Write it into the files"
        elif length is not None or name in vectors:
            fault = f"a vector ({kind}). Write each of its numbers as a column"
        elif "." in name:
            fault = "a name with a dot. Rename it in the data"
        elif dtype == "string":
            fault = f"{kind}. Make ids of it (Workflow.transform_to_parquet)"
        elif not is_number(dtype) or dtype == "float16":
            fault = f"{kind}. Cast it in the data"
        else:
            continue
        raise ValueError(
            f"column {name!r}: device='gpu' decodes numbers and lists of numbers, but this is "
            f"{fault}, or use device='cpu'"
        )


# ---- the tasks of a chunk ------------------------------------------------------------------------


def begin_on_gpu(
    reader: Any,
    submit: Submit,
    chunk: ChunkPlan,
    parts: Sequence[object],
    order: Future[np.ndarray | None],
) -> list[Future[Columns] | Future[None]]:
    """Submit the tasks that make the parts of a chunk, and return them.

    Args:
        reader: `ChunkReader` of the pass.
        submit: of a pool that is first in, first out.
        chunk: the chunk.
        parts: `Part` of each segment, to be filled.
        order: gives the order of the chunk's rows, or None.
    """
    decoding = submit(_decode, reader, chunk)
    return [decoding, submit(_gather, reader, chunk, parts, order, decoding)]


def _decode(reader: Any, chunk: ChunkPlan) -> Columns:
    """Return all columns of the chunk's row groups, decoded in one call."""
    groups = [row_range.row_group for row_range in chunk.row_ranges]
    try:
        with reader.stopwatch.timing("read"):
            return decode(reader.source, groups, reader.columns)
    except ParquetError:
        _name_fault(reader, chunk)
        raise


def _gather(
    reader: Any,
    chunk: ChunkPlan,
    parts: Sequence[object],
    order: Future[np.ndarray | None],
    decoding: Future[Columns],
) -> None:
    """Make the arrays of all columns in all parts."""
    columns: Any = decoding.result()  # none has nulls if they are not refused
    layout = reader.layout
    gatherer = reader.gatherer
    place = reader.source.errors_at(chunk.row_ranges[0])
    with reader.stopwatch.timing("gather"), place:
        if refused(columns, layout):
            _name_fault(reader, chunk)
            raise ValueError("cuDF reads values that Arrow does not find. Use device='cpu'")
        places = _places(reader, chunk, order.result())
        for field in layout.fields:
            rows = len(columns[field.columns[0].name])
            matrix = gatherer.empty((rows, field.width), field.dtype)
            for number, column in enumerate(field.columns):
                matrix[:, number] = columns[column.name]
            gatherer.gather_rows(field, matrix, parts, places)
        for name in layout.ragged:
            lists = columns[name]
            values = lists.values.astype(layout.dtypes[name], copy=False)
            gatherer.gather_lists(name, Lists(values, lists.offsets), parts, places)
        gatherer.library.cuda.get_current_stream().synchronize()  # consumers have their own


def _places(reader: Any, chunk: ChunkPlan, order: np.ndarray | None) -> Array | None:
    """Return an order on the GPU, as places among all rows of the chunk's row groups."""
    places = []
    first = 0
    for row_range in chunk.row_ranges:
        places.append(np.arange(first + row_range.start, first + row_range.stop))
        stored, index = reader.source.stored(row_range.row_group)
        first += stored.row_counts[index]
    if first > chunk.num_rows:  # another rank or nobody has the rest of a row group
        rows = np.concatenate(places)
        order = rows if order is None else rows[order]
    return None if order is None else reader.gatherer.library.asarray(order)


def _name_fault(reader: Any, chunk: ChunkPlan) -> None:
    """Raise the error of a CPU for rows that a GPU refuses, if it has one: it names a place."""
    for column in reader.layout.columns:
        check = reader.layout.list_cells if column.multi_hot else reader.layout.cells
        for row_range in chunk.row_ranges:
            rows = reader.source.table(row_range.row_group, [column.name])
            with reader.source.errors_at(row_range):
                check(column, [one_array(rows[column.name])])


# ---- decoding ------------------------------------------------------------------------------------


def decode(source: ParquetSource, numbers: Sequence[int], names: Sequence[str]) -> Columns:
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
    place = source.location(numbers[0])
    parquet = pylibcudf.io.parquet
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
        columns: Columns = {}
        decoded = table.column_names(include_children=False)
        for name, column in zip(decoded, table.tbl.columns(), strict=True):
            if column.size() != num_rows:
                raise EOFError(f"not the {num_rows} rows of the footer")
            columns[name] = _column(column, source.arrow_schema.field(name).type)
        stream.synchronize()  # another thread may use them on its own stream
        return columns
    except (RuntimeError, ValueError, LookupError, OSError, EOFError, MemoryError) as error:
        in_cuda = "out of memory" in str(error) or "MemoryAllocation" in str(error)  # not in RMM
        if isinstance(error, MemoryError) or in_cuda:
            raise MemoryError(f"{error} (in {place}). {LESS_MEMORY}") from error
        raise ParquetError(
            f"{len(numbers)} row groups from {place} on: cuDF cannot read the columns {names} "
            f"({type(error).__name__}: {error}). Rewrite the files with ParquetSink, or use "
            "device='cpu'"
        ) from error


def refused(columns: Mapping[str, Array | Lists | None], layout: Layout) -> bool:
    """Return whether a batch does not take a value: a null, NaN, one out of bounds, a long list.

    The smallest and largest values come to the host in one copy for all columns of a dtype.
    """
    import cupy

    bounds: dict[np.dtype, list[tuple[float, float]]] = {}
    ends: dict[np.dtype, list[Array]] = {}

    def note(values: Array, low: float, high: float) -> None:
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


def _column(column: Any, kind: pa.DataType) -> Array | Lists | None:
    """Return a column of pylibcudf in the type that all files share; None if it has nulls."""
    import cupy

    if column.null_count():
        return None
    size = column.size()
    if not is_list(kind):
        return _array(column, size).astype(kind.to_pandas_dtype(), copy=False)
    lists = column.list_view()
    values = _column(lists.child(), kind.value_type)
    offsets = cupy.zeros(1, dtype=np.int64)
    if size:
        offsets = _array(lists.offsets(), size + 1).astype(np.int64, copy=False)
    return None if values is None else Lists(values, offsets)


def _array(column: Any, size: int) -> Array:
    """Return an array over the memory of a column of numbers, which it keeps alive."""
    import cupy

    name = column.type().id().name.lower()
    dtype = np.dtype("bool" if name == "bool8" else name)
    memory = column.data()
    if memory is None or not size:
        return cupy.zeros(size, dtype=dtype)
    unowned = cupy.cuda.UnownedMemory(memory.ptr, size * dtype.itemsize, memory, 0)
    return cupy.ndarray((size,), dtype, cupy.cuda.MemoryPointer(unowned, 0))


# ---- tensors -------------------------------------------------------------------------------------


_SEES_NO_GPU = (
    "device='gpu' makes batches that {} cannot take: it sees no GPU. Install {}, or use "
    "device='cpu'."
)


def gpu_tensor_maker() -> Callable[[Array], Tensor]:
    """Return a function that makes a tensor of Keras's backend from a CuPy array without a copy.

    For TensorFlow, DLPack is used without stream synchronisation: its stream does not wait for
    CuPy's, so all work on the array must be done before the tensor is used (`batch_keeper`). The
    tensor keeps the array's memory alive; it must not be written again before the backend is done
    with it. TensorFlow and JAX refuse arrays with gaps between their rows.

    Raises:
        ValueError: for a backend other than TensorFlow and JAX, or one that sees no GPU.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            raise ValueError(_SEES_NO_GPU.format("TensorFlow", "tensorflow[and-cuda]"))
        return tensorflow_maker(stream=-1)
    if backend == "jax":
        import jax

        if jax.default_backend() != "gpu":
            raise ValueError(_SEES_NO_GPU.format("JAX", "jax[cuda12]"))
        return jax.dlpack.from_dlpack
    raise ValueError(
        f"device='gpu' makes batches for Keras on TensorFlow and JAX, not on {backend!r}. Use "
        "device='cpu'"
    )


_latest: list[
    list[Tensor]
] = []  # batches of the pass that ended last: steps may still work on them


def batch_keeper() -> Callable[[list[Tensor]], None]:
    """Return a function to call with each list of batches before the first of them is used.

    It waits until CuPy has made them, and keeps them, in a list of its own, while the backend's
    steps may be working on them. Steps are queued: the backend drops a tensor before the GPU has
    read it, and a reader would then write to its memory.
    """
    keeping = _keeping()
    next(keeping)
    return keeping.send


def _keeping() -> Generator[None, list[Tensor]]:
    import cupy

    held: list[list[Tensor]] = []
    try:
        while True:
            held.append([*(yield)])  # the caller takes the batches out of its list
            cupy.cuda.get_current_stream().synchronize()
            if len(held) > 3:  # Keras on JAX takes a batch ahead: its step may not be queued yet
                wait_for_gpu()
                del held[:-2]
    finally:
        if sys is not None and not sys.is_finalizing():  # at the end of the program it may be None
            wait_for_gpu()
        _latest[:] = held[-2:]


def wait_for_gpu() -> None:
    """Wait until Keras's backend has done all work that was queued on the first GPU.

    It waits for the backend's own stream, not for the whole GPU: CUDA forbids that while a thread
    records a CUDA graph, as XLA does for steps that it compiles.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.init_scope():  # memory may be released while a function is traced
            tf.test.experimental.sync_devices()
    elif backend == "jax":
        import jax

        with jax.ensure_compile_time_eval():  # as above
            _jax_mark()().block_until_ready()


@functools.cache
def _jax_mark() -> Callable[[], Tensor]:
    """Return a computation that JAX does after all work that is queued before it."""
    import jax

    zero = jax.device_put(np.float32(0), jax.devices()[0])
    return functools.partial(jax.jit(lambda x: x + 1), zero)
