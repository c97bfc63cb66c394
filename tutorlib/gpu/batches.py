"""Batches made on a GPU: refuse, decode, gather, make tensors, and free memory when it is right.

Calls cost more than the work they do, so they are few. One decodes all row groups of a chunk. All
columns of a dtype are gathered into one array, a call for each; four calls find their bounds.
What is found wrong is read again on the CPU, whose error names a place.

Written for pylibcudf 26.10. It reads the files (with KvikIO, directly into GPU memory where the
system has GPUDirect Storage), decompresses and decodes them on the stream of the calling thread.
Most of a call is a cost of its own (H200: 3 ms of 1 column and row group, 14 ms of 16 row groups of
40 columns), so the row groups of a chunk are read by one. Nothing is copied: the arrays are views
of its buffers. A GPU decodes numbers and lists of numbers without nulls, in whole row groups;
everything else is refused when the loader is made, or as soon as it is found.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import keras
import numpy as np
import pyarrow as pa

from tutorlib.arrays import one_array
from tutorlib.keras_bridge.backend import tensorflow_maker
from tutorlib.loader.layout import Field, Layout, Lists
from tutorlib.loader.plan import ChunkPlan, EpochPlan, RowRange
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


# ---- a chunk ------------------------------------------------------------------------------------


def decoded_rows(source: ParquetSource, plan: EpochPlan, chunk: ChunkPlan) -> np.ndarray:
    """Return where the rows of a chunk, in its order, are among all that are decoded for it."""
    firsts = {}
    first = 0
    for row_range in _in_order_of_files(chunk):
        firsts[row_range.row_group] = first
        stored, index = source.stored(row_range.row_group)
        first += stored.row_counts[index]
    rows = []
    for row_range in chunk.row_ranges:
        begin = firsts[row_range.row_group]
        rows.append(np.arange(begin + row_range.start, begin + row_range.stop))
    order = plan.order(chunk.index)
    return np.concatenate(rows) if order is None else np.concatenate(rows)[order]


def make_parts(
    reader: Any, chunk: ChunkPlan, parts: Sequence[Any], order: Future[np.ndarray]
) -> None:
    """Make the arrays of all columns in all parts of a chunk.

    Args:
        reader: `ChunkReader` of the pass.
        chunk: the chunk.
        parts: `Part` of each segment, to be filled.
        order: gives the `decoded_rows`.
    """
    import cupy

    layout = reader.layout
    numbers = [row_range.row_group for row_range in _in_order_of_files(chunk)]
    try:
        with reader.stopwatch.timing("read"):
            columns = decode(reader.source, numbers, reader.columns)
    except ParquetError:
        _name_fault(reader, chunk)
        raise
    rows = order.result()
    with reader.stopwatch.timing("gather"), reader.source.errors_at(chunk.row_ranges[0]):
        reader.pool.free_dropped()
        is_fit = _has_kinds(columns, layout)
        if is_fit:
            ends = _Ends()
            slots = _slots(parts, rows, reader.pool.aligned_rows)
            for fields in _groups(layout):
                _gather_group(fields, columns, slots, parts, ends, reader)
            places = cupy.asarray(rows) if layout.ragged else None
            for name, column in layout.ragged.items():
                lists: Any = columns[name]
                ends.note(lists.values, layout.bounds(column))
                if layout.multi_hot.max_length is not None:
                    ends.note(cupy.diff(lists.offsets), (0, layout.multi_hot.max_length))
                values = lists.values.astype(layout.dtypes[name], copy=False)
                reader.gatherer.gather_lists(name, Lists(values, lists.offsets), parts, places)
            is_fit = ends.are_within()
        if not is_fit:
            _name_fault(reader, chunk)
            raise ValueError("cuDF reads values that Arrow does not find. Use device='cpu'")
        cupy.cuda.get_current_stream().synchronize()  # consumers have streams of their own


def _in_order_of_files(chunk: ChunkPlan) -> list[RowRange]:
    """Return the row ranges so that each file comes once: cuDF reads its footer for each time."""
    return sorted(chunk.row_ranges, key=lambda row_range: row_range.row_group)


def _groups(layout: Layout) -> list[list[Field]]:
    """Return the fields by dtype and width; the weights, which lose an axis, by themselves."""
    together: dict[Any, list[Field]] = {}
    for field in layout.fields:
        key = field.dtype, field.width, field.name in layout.weights
        together.setdefault(key, []).append(field)
    return list(together.values())


def _slots(parts: Sequence[Any], rows: np.ndarray, aligned_rows: int) -> Array:
    """Return the row of each place of all batches and pieces, int64 [slots, stride].

    A slot is a batch or a piece of one. Places behind its rows repeat a row, so that they change
    no bounds.
    """
    import cupy

    stride = -(-max(part.rows for part in parts) // aligned_rows) * aligned_rows
    slots = np.full((sum(part.segment.batches or 1 for part in parts), stride), rows[0])
    first = 0
    for part in parts:
        count = part.segment.batches or 1
        chosen = rows[part.segment.start : part.segment.stop]
        slots[first : first + count, : part.rows] = chosen.reshape(count, part.rows)
        first += count
    return cupy.asarray(slots)


def _gather_group(
    fields: Sequence[Field],
    columns: Mapping[str, Any],
    slots: Array,
    parts: Sequence[Any],
    ends: _Ends,
    reader: Any,
) -> None:
    """Gather fields of a dtype and width into one array [slots, fields, stride, width]."""
    import cupy

    dtype, width = fields[0].dtype, fields[0].width
    layout = reader.layout
    gathered = reader.pool.empty((len(slots), len(fields), slots.shape[1], width), dtype)
    bounds = []
    has_changed = []
    for number, field in enumerate(fields):
        for place, column in enumerate(field.columns):
            values = columns[column.name]
            bounds.append(layout.bounds(column))
            has_changed.append(not np.can_cast(values.dtype, dtype))
            if has_changed[-1]:  # the cast may change a value
                ends.note(values, bounds[-1])
            values = values.astype(dtype, copy=False)
            cupy.take(values, slots, out=gathered[:, number, :, place])
    if not all(has_changed):  # first along the rows of a slot, for which CUB has a kernel
        ends.note(gathered[..., 0] if width == 1 else gathered, *bounds, axes=(2, 0))
    names = tuple(field.name for field in fields)
    first = 0
    for part in parts:
        count = part.segment.batches or 1
        part.scalars[names] = gathered[first : first + count]
        first += count


def _has_kinds(columns: Mapping[str, Any], layout: Layout) -> bool:
    """Return whether no column has nulls, or fractions where a batch has integers."""
    for column in layout.columns:
        values = columns[column.name]
        values = values.values if isinstance(values, Lists) else values
        if values is None or (values.dtype.kind, layout.dtypes[column.name].kind) == ("f", "i"):
            return False
    return True


class _Ends:
    """The smallest and largest values of columns, which come to the host in a copy a dtype."""

    def __init__(self) -> None:
        self._bounds: dict[np.dtype, list[tuple[float, float]]] = {}
        self._least: dict[np.dtype, list[Array]] = {}
        self._most: dict[np.dtype, list[Array]] = {}

    def note(
        self,
        values: Array,
        *bounds: tuple[float, float],
        axes: tuple[int | None, ...] = (None,),
    ) -> None:
        """Find the ends of the values of each column, that must be within its bounds.

        Args:
            values: of one column, or an array of several.
            *bounds: (smallest, largest) of each column.
            axes: axes of `values` that are not of the columns, one after the other; None for all.
        """
        if not values.size:
            return
        least = most = values
        for axis in axes:
            least = least.min(axis=axis)
            most = most.max(axis=axis)
        self._bounds.setdefault(values.dtype, []).extend(bounds)
        self._least.setdefault(values.dtype, []).append(least.reshape(-1))
        self._most.setdefault(values.dtype, []).append(most.reshape(-1))

    def are_within(self) -> bool:
        """Return whether all values are within their bounds; a NaN is within none."""
        import cupy

        for dtype, bounds in self._bounds.items():
            ends = cupy.concatenate(self._least[dtype] + self._most[dtype]).get()
            for (low, high), least, most in zip(
                bounds, ends[: len(bounds)], ends[len(bounds) :], strict=True
            ):
                if not (low <= least and most <= high):
                    return False
        return True


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
        numbers: of the row groups, at least one, those of a file one after the other.
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
        return columns
    except Exception as error:  # pylibcudf raises many kinds
        text = str(error)
        in_cuda = "out of memory" in text or "MemoryAllocation" in text  # not in RMM
        if "cudaError" in text and not in_cuda:  # of this process, whatever is read; RMM hides it
            error.add_note(f"found while {place} was read, but the GPU failed before or beside it")
            raise
        if isinstance(error, MemoryError) or in_cuda:
            raise MemoryError(f"{error} (in {place}). {LESS_MEMORY}") from error
        raise ParquetError(
            f"{len(numbers)} row groups from {place} on: cuDF cannot read the columns {names} "
            f"({type(error).__name__}: {error}). Rewrite the files with ParquetSink, or use "
            "device='cpu'"
        ) from error


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

    The backend's stream does not wait for CuPy's, so all work on the array must be done before: a
    wait would be for what all readers have queued. The tensor keeps the array's memory alive.
    TensorFlow and JAX refuse arrays with gaps between their rows.

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
        return lambda array: jax.dlpack.from_dlpack(_Finished(array))
    raise ValueError(
        f"device='gpu' makes batches for Keras on TensorFlow and JAX, not on {backend!r}. Use "
        "device='cpu'"
    )


class _Finished:
    """An array of CuPy whose values are there already: JAX's stream waits for nobody's work."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**{**options, "stream": -1})


# ---- memory of batches ---------------------------------------------------------------------------


class BatchMemory:
    """Memory of batches on the GPU, freed when no step can still read it.

    Steps are queued: whoever drops the last tensor over some memory may do so before the GPU has
    read it. So dropped memory is set aside. `free_dropped` lets the backend note how far its queue
    is, and frees what was dropped before the note of an earlier call, when the GPU has come to it.
    It is called before each chunk, by a reader thread: training does not wait for it, and the GPU
    has the steps of a chunk to do meanwhile.

    Attributes:
        library: of the arrays, as an array library for the code that fills them: CuPy.
        aligned_rows: rows of a batch begin aligned at each multiple of so many.
    """

    aligned_rows = 64  # of 4 bytes at least; RMM aligns to 256 bytes

    @property
    def library(self) -> Any:
        """CuPy."""
        import cupy

        return cupy

    def __init__(self) -> None:
        self._dropped: deque[Any] = deque()
        self._noted: deque[tuple[Callable[[], object], list[Any]]] = deque()
        self._lock = threading.Lock()  # not taken when memory is dropped, which may be at any time

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array of CuPy, which begins at a multiple of 256 bytes."""
        import cupy

        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        owner = _Owner(cupy.cuda.alloc(max(1, nbytes)), self._dropped)
        memory = cupy.cuda.UnownedMemory(owner.memory.ptr, nbytes, owner, 0)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    def free_dropped(self, keep: int = 1) -> None:
        """Free what was dropped before the latest `keep` calls, and note what was dropped since."""
        with self._lock:
            dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
            try:
                self._noted.append((_mark(), dropped))
            except BaseException:
                self._dropped.extend(dropped)
                raise
            while len(self._noted) > keep:
                self._noted[0][0]()
                self._noted.popleft()


class _Owner:
    """Owns some memory; the last array or tensor over it sets the memory aside."""

    def __init__(self, memory: Any, dropped: deque[Any]) -> None:
        self.memory = memory
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.append(self.memory)


memory = BatchMemory()  # of all loaders: they share the GPU's queue


def _mark() -> Callable[[], object]:
    """Return a wait for all that the backend has queued on the first GPU; it may wait for more.

    JAX queues a small computation, and its end is waited for. TensorFlow can only wait for all that
    is queued when the wait begins. Neither waits for the whole GPU: CUDA forbids that while a
    thread records a CUDA graph, as XLA does for steps that it compiles.
    """
    if keras.backend.backend() == "tensorflow":
        return _wait_for_tensorflow
    import jax

    with jax.ensure_compile_time_eval():  # memory may be freed while a function is traced
        return _jax_mark()().block_until_ready


def _wait_for_tensorflow() -> None:
    import tensorflow as tf

    with tf.init_scope():  # as above
        tf.test.experimental.sync_devices()


def wait_for_gpu() -> None:
    """Wait until Keras's backend has done all work that was queued on the first GPU."""
    _mark()()


@functools.cache
def _jax_mark() -> Callable[[], Tensor]:
    """Return a computation that JAX does after all work that is queued before it."""
    import jax

    zero = jax.device_put(np.float32(0), jax.devices()[0])
    return functools.partial(jax.jit(lambda x: x + 1), zero)
