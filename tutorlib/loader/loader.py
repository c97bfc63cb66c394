"""KerasSequenceLoader: Parquet files to shuffled batches of tensors, for Keras `fit` or a loop.

This is where the rooms meet: `parquet` reads, a `Workflow` transforms, `plan` says which row goes
where, `batching` copies it there, `pipeline` runs this on threads, `fit_bridge` serves Keras.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras

from tutorlib.checks import check_choice, check_integer, check_positive
from tutorlib.chunk import Chunk
from tutorlib.keras_bridge import LoaderAdapter, gpu_tensor_maker, min_int_dtype_on_gpu
from tutorlib.loader.device_batches import DeviceGroup
from tutorlib.loader.host_batches import Group
from tutorlib.loader.layout import Layout
from tutorlib.loader.list_lengths import list_lengths
from tutorlib.loader.pipeline import Pipeline, Stopwatch
from tutorlib.loader.plan import EpochPlan
from tutorlib.loader.resume import differences, matching
from tutorlib.loader.row_bytes import row_bytes, row_bytes_on_device
from tutorlib.loader.scatter import Scatterer
from tutorlib.loader.sizing import ChunkSize, RowBytes, chunk_size
from tutorlib.loader.tensors import BatchMaker
from tutorlib.loader.transform import online
from tutorlib.memory import (
    BufferPool,
    DevicePool,
    MemorySpace,
    host_memory_bytes,
    memory_space,
    thread_count,
)
from tutorlib.parquet import ParquetSource
from tutorlib.schema import BATCH_LAYOUTS, MULTI_HOT_FORMS, ROLES, Schema, resolve_schema

PLANNED_THREADS = 4  # for which a memory budget is divided


class KerasSequenceLoader(LoaderAdapter):
    """Batches of tensors from Parquet files, shuffled well and made ahead on threads.

    `model.fit(loader)`, `evaluate`, `predict` and `validation_data=loader` take it as it is, and
    `for inputs, labels in loader` is one epoch. Each row comes exactly once an epoch; the order is
    a function of (seed, epoch) alone, whatever the number of threads.

    An epoch ends when its last batch has been taken; iterating again before that begins the same
    epoch anew, in the same order.

    Args:
        paths_or_source: Parquet file, folder, glob pattern, list of these, or a `ParquetSource`.
        batch_size: rows of a batch.
        label_names: label columns.
        feature_columns: `tf.feature_column` objects that name the features, or
        cat_names: categorical columns (ids, or lists of ids), and
        cont_names: continuous columns, or neither, to infer both from the types, or
        schema: a `Schema` that names everything.
        engine: "parquet".
        shuffle: whether rows come in random order.
        seed_fn: called at the start of each epoch for its seed, instead of `seed`.
        buffer_size: rows of a partition: from 1 on a number of rows, below 1 a row_slice of the
            memory (where ranks run on machines of different memory, give rows). None chooses: a
            million rows a chunk, fewer if the budget says so or rows are wide.
        device: where files are decoded and batches are made: "cpu", or "gpu" (an NVIDIA GPU with
            cuDF), where they stay in its memory; None for where the source is read, else "cpu".
            The order of the rows is the same. For TensorFlow, integers are int64 on a GPU.
        parts_per_chunk: partitions, from distant spaces, that are mixed in a shuffled chunk; None
            for one each row group, but at least 8, or 1 if `buffer_size` is given.
        reader_kwargs: {"threads": number of reader threads}; by default one a processor, for a
            GPU four at most.
        global_size: ranks in all, for training in several processes.
        global_rank: number of this rank, from 0.
        drop_last: leave out the last batch where it is not full.
        weight_name: column of sample weights; batches are then (inputs, labels, weights).
        seed: for the order of the rows.
        batch_layout: "columns": {name: [batch, 1]}; "stacked": {"categorical": int [batch, n],
            "continuous": float32 [batch, n]}, columns in the order of `schema`.
        multi_hot: how a list column g comes: "nnzs": `g__values` [nnz, 1] and `g__nnzs` [batch, 1];
            "offsets": `g__values` [nnz] and `g__offsets` [batch + 1]; "ragged": a tf.RaggedTensor
            g; "padded": g [batch, longest], filled with 0.
        check_ids: refuse ids outside [0, cardinality), where the cardinality is known.
        filters: rows to take: a `pyarrow.compute` expression, or `[("day", "<", 6), ...]`. Row
            groups that statistics exclude are not read.
        memory_budget: bytes that the loader may hold, on a GPU of its memory. It bounds
            `buffer_size`, the automatic one too, and the threads, to four; None sets no bound.
        limit_rows: use only the first so many rows.
        nulls: "error" refuses nulls, and NaN in continuous columns; "fill" puts 0 in their space;
            {name: value} puts the value there in these columns.
        max_list_length: refuse longer lists; with `multi_hot="padded"`, what all are padded to.
        bucket_lists: bring lists to few shapes, for XLA (which Keras uses on TensorFlow unless
            `jit_compile=False`) and JAX compile for each. `g__values` is padded behind the last
            list, by what the files say of the lists' mean length: nearly always to one length, a
            tenth to a third more with batches of thousands to hundreds of rows. Layers ignore what
            is over. "padded" without `max_list_length` becomes 1, 2, 3, 4, 6, 8, 12, ... wide. A
            last batch that is not full is one shape more: see `drop_last`.

    Raises:
        FileNotFoundError: if no file is there.
        ValueError: if an argument is out of range or contradicts another; a column is missing or
            has a type that does not fit.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tutorlib.parquet import ParquetSink
        >>> path = tempfile.mkdtemp() + "/train.parquet"
        >>> with ParquetSink(path) as sink:
        ...     sink.write(Chunk({"C1": np.arange(10), "label": np.ones(10, "float32")}))
        >>> loader = KerasSequenceLoader(path, batch_size=4, label_names=["label"])
        >>> len(loader)
        3
        >>> inputs, labels = next(iter(loader))
        >>> inputs["C1"].shape, labels.shape
        (TensorShape([4, 1]), TensorShape([4, 1]))
    """

    def __init__(
        self,
        paths_or_source: Any,
        batch_size: int,
        label_names: Iterable[str] | None = None,
        feature_columns: Iterable[Any] | None = None,
        cat_names: Iterable[str] | None = None,
        cont_names: Iterable[str] | None = None,
        engine: str = "parquet",
        shuffle: bool = True,
        seed_fn: Callable[[], int] | None = None,
        buffer_size: float | None = None,
        device: str | None = None,
        parts_per_chunk: int | None = None,
        reader_kwargs: Mapping[str, Any] | None = None,
        global_size: int | None = None,
        global_rank: int | None = None,
        drop_last: bool = False,
        *,
        schema: Schema | None = None,
        weight_name: str | None = None,
        seed: int = 0,
        batch_layout: str = "columns",
        multi_hot: str = "nnzs",
        check_ids: bool = True,
        filters: Any = None,
        memory_budget: int | None = None,
        limit_rows: int | None = None,
        nulls: str | Mapping[str, float] = "error",
        max_list_length: int | None = None,
        bucket_lists: bool = False,
    ) -> None:
        check_choice("engine", engine, ("parquet",))
        check_choice("batch_layout", batch_layout, BATCH_LAYOUTS)
        check_choice("multi_hot", multi_hot, MULTI_HOT_FORMS)
        backend = keras.backend.backend()
        if multi_hot == "ragged" and backend != "tensorflow":
            raise ValueError(
                f"multi_hot='ragged' gives tensors of TensorFlow, but Keras runs on {backend!r}; "
                "use 'nnzs' or 'padded'"
            )
        if (global_size is None) != (global_rank is None):
            raise ValueError(
                "give both of global_size and global_rank, or neither; got "
                f"global_size={global_size}, global_rank={global_rank}"
            )
        check_positive(parts_per_chunk=parts_per_chunk, max_list_length=max_list_length)
        for name, names in (
            ("label_names", label_names), ("cat_names", cat_names), ("cont_names", cont_names)
        ):  # fmt: skip
            if isinstance(names, str):
                raise ValueError(f"{name} must be a list of names: [{names!r}], not {names!r}")
        if nulls is None or (isinstance(nulls, str) and nulls not in ("error", "fill")):
            raise ValueError(f"nulls must be 'error', 'fill' or {{column: value}}, got {nulls!r}")
        if buffer_size is not None and not buffer_size > 0:
            raise ValueError(f"buffer_size must be above 0, got {buffer_size}")
        if not isinstance(paths_or_source, ParquetSource):
            self.source = ParquetSource(paths_or_source, filters=filters)
        elif filters is not None:
            raise ValueError("give the filters to the ParquetSource, or paths in its place")
        else:
            self.source = paths_or_source
        if device is not None:
            self.source = self._read_at(memory_space(device))
        self.device = "cpu" if self.source.memory is None else "gpu"
        self._min_int_dtype = "int32" if self._space is None else min_int_dtype_on_gpu()
        if self._space is not None and self._space.on_gpu:
            gpu_tensor_maker()  # refuses a backend that cannot take batches from there
        self._multi_hot, self._max_list_length = multi_hot, max_list_length
        self._list_lengths = list_lengths(multi_hot, bucket_lists, self.source)
        self._layout_settings = {
            "stacked": batch_layout == "stacked",
            "check_ids": check_ids,
            "nulls": nulls,
            "max_list_length": max_list_length,
            "min_int_dtype": self._min_int_dtype,
        }
        self._seed, self._seed_fn = operator.index(seed), seed_fn
        self._buffer_size = buffer_size
        if memory_budget is not None and memory_budget < 1:
            raise ValueError(f"memory_budget must be at least 1 byte, got {memory_budget}")
        self._budget, self._parts = memory_budget, _index(parts_per_chunk)
        self._threads = _thread_count(reader_kwargs)
        if memory_budget is not None or (self._space is not None and reader_kwargs is None):
            self._threads = min(self._threads, PLANNED_THREADS)
        self._settings = {
            "batch_size": operator.index(batch_size),
            "shuffle": bool(shuffle),
            "rank": _index(global_rank) or 0,
            "world_size": 1 if global_size is None else operator.index(global_size),
            "drop_last": bool(drop_last),
            "limit_rows": _index(limit_rows),
        }
        self._transform: Callable[[Chunk], Chunk] | None = None
        self._file_schema = resolve_schema(
            self.source, schema, feature_columns, cat_names, cont_names, label_names, weight_name
        )
        if not self.source.num_rows:
            passing = "" if filters is None else f" that pass filters={filters}"
            raise ValueError(f"there are no rows{passing} in {self.source.files}")
        self._plans: dict[tuple[int, int], EpochPlan] = {}
        self._set_schema(self._file_schema, self._file_schema.names)
        self._begun: tuple[int, int, tuple[int, int] | None] | None = None  # the last pass
        self._drawn: tuple[int, int] | None = None  # (epoch, seed that seed_fn gave for it)
        self._epoch = 0
        self._first_batch = 0  # of the epoch, where it goes on from a saved state
        self._position = 0  # batch of the epoch that comes next
        self._stopwatch = Stopwatch()
        self._pool = self._new_pool(limit_bytes=0)
        self._open: weakref.WeakSet[Batches] = weakref.WeakSet()
        self._plan(0, self._seed)

    @property
    def _space(self) -> MemorySpace | None:
        """Where batches are made; None for the CPU's own path."""
        return self.source.memory

    def _read_at(self, space: MemorySpace | None) -> ParquetSource:
        return self.source if space is self.source.memory else self.source.at(space)

    def _new_pool(self, limit_bytes: int) -> BufferPool | DevicePool:
        if self._space is None:
            return BufferPool(limit_bytes)
        return DevicePool(self._space, limit_bytes, self.source.save_memory)

    def _set_schema(self, schema: Schema, columns: Iterable[str]) -> None:
        """Take the schema of the batches, and the columns to read for it."""
        if not schema.features.columns:
            raise ValueError(
                f"there are no feature columns; the files have {list(self.source.column_types)}"
            )
        order = {c.name: ROLES.index(c.role) for c in schema}  # as they lie in a batch
        self.schema, self._columns = schema, sorted(columns, key=lambda name: order.get(name, 0))
        self._layout: Layout | None = None
        self._forget_plans()

    def _forget_plans(self) -> None:
        """Plan anew: the bytes of a row have changed, or what reading it takes."""
        self._plans.clear()
        self._chunk_size: ChunkSize | None = None

    @property
    def layout(self) -> Layout:
        """How columns lie in batches; raises ValueError where one cannot."""
        if self._layout is None:
            self._layout = Layout(self.schema, **self._layout_settings)
        return self._layout

    def map(self, workflow_or_function: Any) -> KerasSequenceLoader:
        """Transform every chunk as it is read, on the reader threads; returns the loader.

        Args:
            workflow_or_function: a fitted `Workflow`, whose features become the loader's, in place
                of those chosen before; or a function of a `Chunk` that returns a `Chunk` of as many
                rows, with the columns of the loader's schema in the same types.

        Raises:
            RuntimeError: if batches have been taken already, or something is mapped already.
            ValueError: if the workflow needs a column that the files do not have.

        Example:
            >>> loader.map(Workflow.load("data/criteo/workflow"))  # doctest: +SKIP
        """
        if self._transform is not None or self._stopwatch.sums():
            raise RuntimeError(
                "map() once, before the first batch is taken; chain the "
                "transformations in one Workflow"
            )
        if not hasattr(workflow_or_function, "transform"):
            self._transform = workflow_or_function
            self._forget_plans()
            return self
        made = online(workflow_or_function, self.source, self._file_schema)
        self._set_schema(made.schema, made.columns)
        self._transform = made.transform
        return self

    # ---- the plan ---------------------------------------------------------------------------

    def _size(self) -> ChunkSize:
        """Rows of partitions and chunks: what `buffer_size` says, within the memory budget."""
        if self._chunk_size is None:
            self._chunk_size = self._chosen_size()
        return self._chunk_size

    def _chosen_size(self) -> ChunkSize:
        nbytes = self._row_bytes()
        buffer_rows = None if self._buffer_size is None else int(self._buffer_size)
        if self._buffer_size is not None and self._buffer_size < 1:
            memory = host_memory_bytes() if self._space is None else self._space.limit_bytes
            buffer_rows = max(1, int(self._buffer_size * memory / nbytes.batch))
        return chunk_size(
            [group.num_rows for group in self.source.row_groups],
            nbytes,
            batch_size=self._settings["batch_size"],
            # A budget is not divided by the threads there are: the order must not depend on them.
            threads=self._threads if self._budget is None else PLANNED_THREADS,
            shuffle=self._settings["shuffle"],
            buffer_rows=buffer_rows,
            parts_per_chunk=self._parts,
            budget_bytes=self._budget,
        )

    def _row_bytes(self) -> RowBytes:
        files = self.source, self._columns, self.schema
        if self._space is not None and self._budget is not None:
            return row_bytes_on_device(*files, min_int_dtype=self._min_int_dtype)
        # Without a budget a GPU's plan must be that of the CPU.
        stacked = self._layout_settings["stacked"]
        return row_bytes(*files, whole=self._transform is not None, stacked=stacked)

    def _plan(self, epoch: int, seed: int) -> EpochPlan:
        key = (epoch, seed)
        if key not in self._plans:
            self._plans.clear()
            counts = [group.num_rows for group in self.source.row_groups]
            self._plans[key] = EpochPlan(counts, seed=seed, epoch=epoch, **self._plan_settings())
        return self._plans[key]

    def _plan_settings(self) -> dict[str, Any]:
        size = self._size()
        parts = {"partition_rows": size.partition_rows, "parts_per_chunk": size.parts_per_chunk}
        return {**self._settings, **parts}

    def __len__(self) -> int:
        return len(self._any_plan())

    def _any_plan(self) -> EpochPlan:
        """The lengths are the same in every epoch: any plan tells them."""
        return next(iter(self._plans.values())) if self._plans else self._plan(0, self._seed)

    def batch_rows(self, batch: int) -> int:
        """Return the rows of batch number `batch` of an epoch."""
        return self._any_plan().batch_sizes[batch]

    @property
    def num_rows(self) -> int:
        """Rows that this loader gives in an epoch (of this rank, after `drop_last`)."""
        return sum(self._any_plan().batch_sizes)

    @property
    def batch_size(self) -> int:
        """Rows of a full batch."""
        return self._settings["batch_size"]

    @property
    def partial_batch_size(self) -> int | None:
        """Rows of the last batch if it is smaller than the others, else None."""
        sizes = self._any_plan().batch_sizes
        return sizes[-1] if sizes and sizes[-1] < self.batch_size else None

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next `iter()` gives, from 0."""
        return self._epoch

    @property
    def first_batch(self) -> int:
        """Number of the batch that the next `iter()` begins with: 0, but for a restored state."""
        return self._first_batch

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` give the given epoch, from its first batch on.

        Args:
            epoch: number of the epoch, from 0.

        Raises:
            ValueError: if it is below 0.
        """
        self._epoch, self._drawn = check_integer("epoch", epoch, at_least=0), None
        self._first_batch = self._position = 0

    def _remember_pass(self) -> None:
        self._begun = self._epoch, self._first_batch, self._drawn

    def forget_pass(self) -> None:
        """Let the pass that began last stand, as far as it went."""
        self._begun = None

    def undo_pass(self) -> None:
        """Go back to where the pass stood that began last, if it is not forgotten."""
        if self._begun is not None:
            epoch, batch, drawn = self._begun
            self.set_epoch(epoch)
            self._first_batch = self._position = batch
            self._drawn = drawn

    # ---- going on later ---------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, between any two batches, as a small dict of JSON values.

        It holds the epoch, its seed, how many of its batches were taken in the pass that took one
        last, and by what data and settings the order came about.

        Example:
            >>> state = loader.state_dict()  # doctest: +SKIP
            >>> again = KerasSequenceLoader("data/train", batch_size=1024)  # doctest: +SKIP
            >>> again.load_state_dict(state)  # doctest: +SKIP
        """
        return {
            "epoch": self._epoch,
            "batch": self._position,
            "seed": self._drawn[1] if self._drawn and self._drawn[0] == self._epoch else None,
            **self._identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a loader of the same data and settings was: with the rest, in order.

        The epoch in progress begins at the batch that was next, each time it is iterated over;
        nothing before that batch's chunk is read. The epochs after it are whole.

        Args:
            state: what `state_dict()` returned, also in another process.

        Raises:
            ValueError: if the data or a setting that decides the order has changed, saying which.
        """
        identity = self._identity()
        changed = differences(matching(state, identity), identity)
        if changed:
            raise ValueError(
                "the state is of other data or settings, so the rest of its order is not known "
                "here: " + "; ".join(changed)
            )
        epoch, batch = state["epoch"], state["batch"]
        if not 0 <= batch < max(1, len(self)):
            raise ValueError(f"the state is at batch {batch}, but an epoch has {len(self)}")
        self.close()
        self.set_epoch(epoch)
        self._first_batch = self._position = batch
        if state["seed"] is not None:
            self._drawn = epoch, state["seed"]

    def _identity(self) -> dict[str, Any]:
        """Everything that decides which rows the batches of an epoch have, as JSON values."""
        settings = self._plan_settings()
        if self._seed_fn is None:
            settings["seed"] = self._seed
        return {
            "version": 1,
            "data": self.source.fingerprint(),
            "settings": settings,
            "columns": self.schema.names,
        }

    # ---- batches ----------------------------------------------------------------------------

    def _check_batches(self) -> None:
        if not len(self):
            raise ValueError(
                f"there is no batch: {self._any_plan().num_rows} rows, batch_size="
                f"{self.batch_size}, drop_last={self._settings['drop_last']}"
            )

    def check_for_fit(self) -> None:
        """Raise ValueError where Keras would report a wrong loss, or fail without saying why."""
        self._check_batches()
        stacked = self._layout_settings["stacked"]
        scalars = [c.role if stacked else c.name for c in self.schema.features if not c.multi_hot]
        lists = [f"{c.name}__offsets" for c in self.schema.features if c.multi_hot]
        first = min(scalars + lists)
        if self._multi_hot == "offsets" and first.endswith("__offsets"):
            raise ValueError(
                f"Keras weighs the loss of a batch by the length of its first input, {first!r}, "
                "which has one entry more than the batch has rows. Use multi_hot='nnzs'."
            )

    def __iter__(self) -> Iterator[Any]:
        batches = Batches(self)
        self._open.add(batches)
        return batches

    def peek(self) -> Any:
        """Return the first batch of the current epoch; the next `iter()` begins with it again."""
        self._check_batches()
        batches = Batches(self, counts=False)
        try:
            return next(batches)
        finally:
            batches.close()

    def close(self) -> None:
        """Stop all threads of this loader and let go of their memory; it can be used again.

        A loop over its batches, also one that waits on another thread, ends as if there were none
        left.
        """
        for batches in list(self._open):
            batches.close()
        old, self._pool = self._pool, self._new_pool(self._pool.limit_bytes)
        old.limit_bytes = 0  # what is still held is not kept when it comes back
        old.clear()

    def __enter__(self) -> KerasSequenceLoader:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _seed_of_epoch(self) -> int:
        if self._drawn is None or self._drawn[0] != self._epoch:
            seed = self._seed if self._seed_fn is None else int(self._seed_fn())
            self._drawn = self._epoch, seed
        return self._drawn[1]

    def _pipeline(self) -> Pipeline:
        size = self._size()
        source = self.source.for_a_pass(2 * size.parts_per_chunk)  # two chunks
        self._pool.limit_bytes = size.peak_bytes
        scatter = Scatterer(
            source, self._columns, self.layout, self._pool, self._stopwatch,
            self._transform, self.schema.names,
        )  # fmt: skip
        maker = (self.schema, self._multi_hot, self._max_list_length, self._list_lengths)
        finish, group, on_device = BatchMaker(*maker), Group, {}
        if self._space is not None:
            finish = BatchMaker(*maker, min_int_dtype=self._min_int_dtype, pool=self._pool)
            group, on_device = DeviceGroup, {"working": self._space.work}
        return Pipeline(
            self._plan(self._epoch, self._seed_of_epoch()),
            self.layout,
            scatter,
            finish,
            threads=self._threads,
            stopwatch=self._stopwatch,
            pool=self._pool,
            at_end=source.close,
            new_group=functools.partial(group, lengths=self._list_lengths),
            first_batch=self._first_batch,
            **on_device,
        )

    def to_tf_dataset(self) -> Any:
        """Return a `tf.data.Dataset` for code that must have one; each pass is the next epoch.

        Slower than `fit(loader)`: every tensor is copied through NumPy by `from_generator`.

        Raises:
            ValueError: without labels, for a dataset cannot hold (inputs, None).
        """
        import tensorflow as tf

        if not self.schema.labels.columns:
            raise ValueError("a tf.data.Dataset needs label_names: it cannot hold (inputs, None)")

        def spec(tensor: Any, name: str = "") -> Any:
            if isinstance(tensor, tf.RaggedTensor):
                return tf.RaggedTensorSpec([None, None], tensor.dtype, ragged_rank=1)
            padded = name in self.schema and self.schema[name].multi_hot
            rest = [None] if padded else tensor.shape[1:]
            return tf.TensorSpec([None, *rest], tensor.dtype)

        inputs, *targets = self.peek()
        signature = (
            {name: spec(tensor, name) for name, tensor in inputs.items()},
            *(tf.nest.map_structure(spec, target) for target in targets),
        )
        dataset = tf.data.Dataset.from_generator(lambda: iter(self), output_signature=signature)
        if self._first_batch:
            return dataset  # its first pass is shorter than the others
        return dataset.apply(tf.data.experimental.assert_cardinality(len(self)))

    # ---- what it is and does ------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return the plan in numbers: rows, batches, chunks and the memory they need, in bytes.

        Nothing is read for it. `peak_bytes` is planned, not measured: the batches of two chunks,
        and what is being decoded. `budget_bytes` is None where no budget was given.
        """
        plan, size = self._any_plan(), self._size()
        rows = max((chunk.num_rows for chunk in plan.chunks), default=0)
        return {
            "files": len(self.source.files),
            "row_groups": len(self.source),
            "rows": self.num_rows,
            "batches": len(self),
            "batch_size": self.batch_size,
            "chunks": len(plan.chunks),
            "chunk_rows": rows,
            "chunk_bytes": int(rows * self._row_bytes().batch),
            "shuffle_window_rows": rows if self._settings["shuffle"] else 0,
            "threads": self._threads,
            "budget_bytes": self._budget,
            "peak_bytes": size.peak_bytes,
        }

    def stats(self) -> dict[str, float]:
        """Return what was done so far: rows, batches, and seconds by stage.

        `read_s`, `transform_s`, `scatter_s` and `convert_s` are sums over all threads; `wait_s` is
        the time that the consumer waited for a batch.
        """
        sums = self._stopwatch.sums()
        counts = {name: int(sums.pop(name, 0)) for name in ("rows", "batches")}
        stages = ("read", "transform", "scatter", "convert", "wait")
        return {**counts, **{f"{name}_s": sums.get(name, 0.0) for name in stages}}

    def __repr__(self) -> str:
        plan = self.describe()
        return (
            f"KerasSequenceLoader({plan['rows']:,} rows in {plan['batches']:,} batches of "
            f"{plan['batch_size']:,}; {plan['row_groups']:,} row groups of {plan['files']:,} files "
            f"in {plan['chunks']:,} chunks of up to {plan['chunk_rows']:,} rows; at most "
            f"{plan['peak_bytes'] / 2**20:,.0f} MiB)"
        )


class Batches(Iterator[Any]):
    """One pass over an epoch; its threads start with the first batch and end with the last."""

    def __init__(self, loader: KerasSequenceLoader, *, counts: bool = True) -> None:
        self._loader = loader
        self._counts = counts
        self._pipeline: Pipeline | None = None
        self._closed = False

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        if self._pipeline is None:
            self._pipeline = self._loader._pipeline()
            if self._counts:
                self._loader._remember_pass()
            self._epoch = self._loader.epoch
            self._next, self._stop = self._loader._first_batch, len(self._loader)
            self._end = weakref.finalize(self, self._pipeline.close)
        try:
            batch = self._pipeline.next_batch()
        except BaseException:
            self.close()
            raise
        self._next += 1
        if self._counts and self._loader.epoch == self._epoch:
            self._loader._position = self._next
        if self._next == self._stop:
            if self._counts and self._loader.epoch == self._epoch:
                self._loader.set_epoch(self._epoch + 1)
            self.close()
        return batch

    def close(self) -> None:
        """Stop the threads of this pass; it then gives no further batch."""
        self._closed = True
        if self._pipeline is not None:
            self._end.detach()
            self._pipeline.close()


def _index(number: Any) -> int | None:
    """Return a whole number as Python's, which JSON can hold; None for None."""
    return None if number is None else operator.index(number)


def _thread_count(reader_kwargs: Mapping[str, Any] | None) -> int:
    given = dict(reader_kwargs or {})
    threads = given.pop("threads", None)
    if given:
        raise ValueError(f"reader_kwargs understands only 'threads', got also {sorted(given)}")
    return thread_count(threads, "reader_kwargs['threads']")
