"""KerasSequenceLoader: Parquet files to shuffled batches of tensors, for Keras `fit` or a loop.

The file follows the data: arguments, plan, pass (read, gather, convert), position, predictions,
what Keras asks, and what the loader says of itself.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import keras
import pyarrow as pa

from tutorlib.keras_bridge.adapter import LoaderAdapter
from tutorlib.keras_bridge.backend import (
    batch_parts,
    data_share,
    max_int_dtype,
    min_int_dtype_on_gpu,
    process_count,
)
from tutorlib.loader.batches import Batches, BatchMaker, EpochCursor
from tutorlib.loader.chunks import ChunkReader
from tutorlib.loader.layout import Layout, MultiHot
from tutorlib.loader.pipeline import Pipeline, Stopwatch
from tutorlib.loader.plan import EpochPlan
from tutorlib.loader.roles import online, schema_of_arguments
from tutorlib.loader.settings import ChunkSize, LoaderSettings, bytes_of_row, size_of_chunks
from tutorlib.memory import BufferPool, resolve_device
from tutorlib.parquet import ParquetSource
from tutorlib.schema import ROLES, Schema, listed

FEW_ROW_GROUPS = 4  # fewer of them in a chunk are worth a warning
WARNS_LOOP = 5  # stacklevel: past this module and batches.py to who takes the first batch


class KerasSequenceLoader(LoaderAdapter):
    """Shuffled batches of tensors from Parquet files, prefetched on threads.

    `model.fit(loader)`, `evaluate` and `validation_data=loader` take it directly,
    `loader.predict(model)` gives predictions as a table, and `for inputs, labels in loader` is one
    epoch. Each row comes exactly once in an epoch. Seed and epoch alone decide the order.

    An epoch ends when its last batch is taken. Iterating again before that restarts the same epoch
    in the same order. Loop over it outside of a `tf.function`, which would keep the batches of the
    call that traces it; inside of one, loop over `to_tf_dataset()`.

    Args:
        paths_or_source: Parquet file, folder, glob pattern, a list of these; a
            `ParquetSource`; a part of `split_rows`; a pyarrow Table, a pandas or polars DataFrame.
            A folder's `_schema.json` gives what arguments leave out: roles, cardinalities.
        batch_size: rows per batch, at least 1.
        label_names: names of the label columns; None takes the labels of `schema`, if any; [] takes
            none.
        feature_columns: list of `tf.feature_column` objects that name the features. Features can
            be named by these, by `cat_names` and `cont_names`, or by `schema`. If nothing names
            them, integers, strings and lists of these are categorical, floating-point and boolean
            columns continuous; a warning names the columns that remain, and what to do.
        cat_names: names of the categorical columns (ids or lists of ids).
        cont_names: names of the continuous columns.
        engine: "parquet", the only one there is.
        shuffle: whether rows come in random order; False keeps the order of the files. Which rows a
            batch has is random, but within the batch they lie in the order of their chunk: do not
            split a batch by position.
        buffer_size: size of a partition: a number of rows from 1 on, or a fraction of the memory
            below 1 for all chunks that exist (give rows if ranks run on machines with different
            memory). None chooses chunks of about a million rows, fewer if rows are wide or the
            budget is tight.
        device: "cpu" or "gpu": where files are decoded and batches are made. "gpu" needs an NVIDIA
            GPU with cuDF and leaves batches in its memory, in the same order; for TensorFlow,
            integers are then int64. It reads numbers and lists of numbers without nulls, in whole
            row groups; docs/gpu.md says what is refused. It is the first GPU that CUDA shows
            (CUDA_VISIBLE_DEVICES); `tutorlib/gpu/memory.py` says who takes how much of its memory.
            None means "cpu".
        parts_per_chunk: number of partitions, at least 1, from distant parts of the data that are
            mixed in one chunk. None mixes as many row groups as a chunk holds, or slices of 8 if it
            holds fewer than 4; or 1 partition if `buffer_size` is given. The first of many chunks
            has half as many, so that the first batch comes sooner.
        global_size: number of ranks (training processes). None for those that `keras.distribution`
            has joined on JAX, else a single one.
        global_rank: number of this rank, from 0; give both or neither.
        drop_last: whether to leave out the last batch if it is not full.
        threads: number of reader threads, at least 1. None starts one per CPU core, at most four
            for a GPU; for remote files two per core, at most 32.
        schema: `Schema` that names features, labels and weight, with their cardinalities.
        id_names: names of columns that say which row it is, of any Arrow type. They are no features
            (unless named as such) and do not reach the model: `predict` gives them.
            None takes the ids of `schema`, if any.
        weight_name: name of a column of sample weights, float32; None for no weights. With it,
            batches are (inputs, labels, weights) with weights of shape [batch].
        seed: seed of the order, 0 to 2**64 - 1.
        batch_layout: "columns" gives {name: [batch, 1]}, of vectors [batch, k]; "stacked" gives
            {"categorical": int [batch, n], "continuous": float32 [batch, n]}, with columns in the
            order of `schema`, a vector as k of them.
        multi_hot: form of list columns: "nnzs", "padded", or a `MultiHot`, which says what they
            are, and bounds the lengths of lists.
        filters: rows to keep: a `pyarrow.compute` expression or `[("day", "<", 6), ...]`; None
            keeps all. Row groups that the statistics of the files exclude are not read.
        memory_budget: bytes, or text such as "1.5GB" or "512MiB", for the three chunks of a pass
            that exist at most, what is decoded for them, and footers, in the GPU's memory if it
            works there. None sets no bound. It bounds `buffer_size`, also the automatic one, and
            allows four threads at most. On a CPU, a process grows by at most 1.5 times this plus
            64 MiB in a pass over numbers. Lists count with the mean length that footers tell:
            docs/promises.md says what takes more. `loader/settings.py` has the formula.
        nulls: "error" refuses nulls and NaN. "fill" replaces them by 0 in features. They are always
            refused in labels and weights.

    Attributes:
        source: the `ParquetSource`.
        device: where batches are made, "cpu" or "gpu".
        schema: `Schema` of the batches.

    Raises:
        FileNotFoundError: if there is no Parquet file.
        ValueError: if an argument is out of range or contradicts another one, a column is missing
            or has a type that does not fit, or `memory_budget` is too small; says what would do.

    Example:
        >>> rows = pa.table({"C1": range(10), "label": [1.0] * 10})
        >>> loader = KerasSequenceLoader(rows, batch_size=4, label_names=["label"])
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
        *,
        buffer_size: float | None = None,
        device: str | None = None,
        parts_per_chunk: int | None = None,
        global_size: int | None = None,
        global_rank: int | None = None,
        drop_last: bool = False,
        threads: int | None = None,
        schema: Schema | None = None,
        id_names: Iterable[str] | None = None,
        weight_name: str | None = None,
        seed: int = 0,
        batch_layout: str = "columns",
        multi_hot: str | MultiHot = "nnzs",
        filters: Any = None,
        memory_budget: int | str | None = None,
        nulls: str = "error",
    ) -> None:
        names = {"label_names": label_names, "cat_names": cat_names, "cont_names": cont_names}
        for argument, given in {**names, "id_names": id_names}.items():
            if isinstance(given, str):
                raise ValueError(f"{argument} must be a list of names: [{given!r}], not {given!r}")
        if weight_name is not None and not isinstance(weight_name, str):
            raise ValueError(f"weight_name must be the name of one column, got {weight_name!r}")
        id_names = None if id_names is None else list(id_names)
        if global_size is None and global_rank is None:
            global_size, global_rank = data_share()
        self._settings = LoaderSettings(
            batch_size=batch_size, engine=engine, shuffle=shuffle, seed=seed,
            buffer_size=buffer_size, parts_per_chunk=parts_per_chunk, threads=threads,
            memory_budget=memory_budget, drop_last=drop_last, global_size=global_size,
            global_rank=global_rank, batch_layout=batch_layout,
            multi_hot=multi_hot if isinstance(multi_hot, MultiHot) else MultiHot(multi_hot),
            nulls=nulls,
        )  # fmt: skip
        self.device = resolve_device(device)
        if self.device == "gpu" and nulls != "error":
            raise ValueError(
                f"nulls={nulls!r}: device='gpu' takes no nulls. Fill them in the data "
                "(Workflow.transform_to_parquet with FillMissing), or use device='cpu'"
            )
        if not isinstance(paths_or_source, ParquetSource):
            self.source = ParquetSource(paths_or_source, filters=filters)
        elif filters is not None:
            raise ValueError("filters have no effect on a ParquetSource: pass them to the source")
        else:
            self.source = paths_or_source
        self._file_schema = schema_of_arguments(
            self.source, schema, feature_columns, cat_names, cont_names, label_names, weight_name,
            id_names,
        )  # fmt: skip
        ids = self._file_schema.with_role("id").names
        self._id_names = ids if id_names is None else id_names
        self._named = any(x is not None for x in (schema, feature_columns, cat_names, cont_names))
        self._unlabelled = label_names is not None and not self._file_schema.labels.columns
        if not self.source.num_rows:
            passing = "" if filters is None else f" that pass filters={filters}"
            raise ValueError(f"there are no rows{passing} in {self.source.files}")
        self._transform: Callable[[pa.Table], pa.Table] | None = None
        self._workflow: Any = None  # that is mapped
        self._made_by = "the Workflow"
        self._workflow_hash: str | None = None
        self._warned = False
        columns = (column for column in self._file_schema if column.role != "id")
        batch_schema = Schema(columns, self._file_schema.left_out)
        self._set_schema(batch_schema, batch_schema.names)
        if self.device == "gpu":
            from tutorlib.gpu.batches import gpu_tensor_maker, refuse_unreadable

            gpu_tensor_maker()  # refuses a backend that sees no GPU
            vectors = [column.name for column in batch_schema if column.length is not None]
            refuse_unreadable(self.source, self._columns, vectors)
        self._begin()
        self._any_plan()  # refuses settings for which there is no plan

    def _set_schema(self, schema: Schema, columns: Iterable[str]) -> None:
        """Set the schema of the batches and the columns to read for it."""
        if not schema.features.columns:
            given = f"they have {listed(self.source.column_types)}"
            raise ValueError(
                f"there are no feature columns in the files: {schema.left_out or given}"
            )
        self.schema = schema
        self._labelled = bool(schema.labels.columns)
        order = {c.name: ROLES.index(c.role) for c in schema}  # as they lie in a batch
        self._columns = sorted(columns, key=lambda name: order.get(name, 0))
        self._latest: EpochPlan | None = None
        for name in ("_layout", "_size"):
            self.__dict__.pop(name, None)

    def _begin(self) -> None:
        """Set what passes change."""
        self._cursor = EpochCursor()
        self._stopwatch = Stopwatch()
        self._pool = BufferPool(limit_bytes=0)
        self._open: weakref.WeakSet[Batches] = weakref.WeakSet()
        self._running: list[weakref.ref[Pipeline]] = []  # in order, also of dropped passes

    def map(self, workflow_or_function: Any) -> KerasSequenceLoader:
        """Transform all rows on the reader threads as they are read; returns the loader.

        Args:
            workflow_or_function: a fitted `Workflow`: its features replace the loader's, which may
                name the same columns; its labels and weight are used if the loader names
                none, except with `label_names=[]`. The Workflow stays as it is. Or a function that
                takes a `pyarrow.Table` and returns one of as many rows, with the columns of the
                loader's schema in the same types.

        Raises:
            TypeError: for a function that takes anything but one table.
            RuntimeError: if batches have been taken already, or something is mapped already.
            ValueError: if the workflow needs a column that the files do not have, or makes one that
                no batch can hold; if the loader names other features than the workflow takes; with
                device="gpu".

        Example:
            >>> loader.map(Workflow.load("data/criteo/workflow"))  # doctest: +SKIP
        """
        if self.device == "gpu":
            raise ValueError(
                "map() works on a CPU: write the transformed rows first "
                "(Workflow.transform_to_parquet) and read these with device='gpu', or use "
                "device='cpu'"
            )
        if self._transform is not None or self._stopwatch.sums():
            raise RuntimeError(
                "map() once, before the first batch is taken; chain the transformations in one "
                "Workflow"
            )
        if hasattr(workflow_or_function, "transform"):
            schema, columns, self._transform = online(
                workflow_or_function, self.source, self._file_schema, named=self._named,
                unlabelled=self._unlabelled,
            )  # fmt: skip
            self._workflow = workflow_or_function
            self._set_schema(schema, columns)
            _ = self._layout  # refuses columns that no batch can hold
        else:
            function = workflow_or_function
            name = getattr(function, "__qualname__", type(function).__name__)
            with contextlib.suppress(ValueError):  # functions in C may have no signature
                try:
                    inspect.signature(function).bind("table")
                except TypeError as error:
                    raise TypeError(
                        f"map() takes a Workflow, or a function of one pyarrow.Table, got {name}: "
                        f"{error}"
                    ) from error
            self._transform = function
            self._made_by = f"function {name}"
            self._set_schema(self.schema, self._columns)
        return self

    # ---- what a batch looks like ----

    @functools.cached_property
    def _layout(self) -> Layout:
        """How columns lie in a batch; raises ValueError for a column that no batch can hold."""
        return Layout(
            self.schema,
            stacked=self._settings.stacked,
            nulls=self._settings.nulls,
            multi_hot=self._settings.multi_hot,
            min_int_dtype="int32" if self.device == "cpu" else min_int_dtype_on_gpu(),
            max_int_dtype=max_int_dtype(),
        )

    # ---- the plan: which rows each batch has ----

    @functools.cached_property
    def _size(self) -> ChunkSize:
        """Rows of partitions and chunks: what `buffer_size` says, within the memory budget."""
        try:
            layout = self._layout
        except ValueError:  # strings, before a workflow is mapped
            layout = None
        row = bytes_of_row(
            self.source,
            self._columns,
            self.schema,
            layout,
            self._settings,
            transformed=self._transform is not None,
        )
        counts = self._row_counts()
        return size_of_chunks(counts, row, self._settings, on_gpu=self.device == "gpu")

    def _row_counts(self) -> list[int]:
        return [group.num_rows for group in self.source.row_groups]

    def _plan(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch; the latest one is kept."""
        latest = self._latest
        if latest is None or latest.epoch != epoch:
            settings = self._settings
            counts = self._row_counts()
            self._latest = latest = EpochPlan(
                counts,
                batch_size=settings.batch_size,
                shuffle=bool(settings.shuffle),
                seed=settings.seed,
                epoch=epoch,
                partition_rows=self._size.partition_rows,
                parts_per_chunk=self._size.parts_per_chunk,
                rank=settings.global_rank or 0,
                world_size=settings.global_size or 1,
                drop_last=bool(settings.drop_last),
            )
            if self.device == "gpu" and latest.sliced:
                raise ValueError(
                    f"device='gpu' decodes whole row groups, but one of {max(counts):,} rows is "
                    f"larger than a partition of {self._size.partition_rows:,} rows. Write the "
                    "files with smaller ones (ParquetSink(row_group_rows=...)), give "
                    f"buffer_size={max(counts)}, or use device='cpu'"
                )
        return latest

    def _any_plan(self) -> EpochPlan:
        """Return the plan of some epoch: all have the same number of rows and batches."""
        return self._plan(0) if self._latest is None else self._latest

    @property
    def _current_plan(self) -> EpochPlan:
        """Plan of the current epoch: which rows each batch has."""
        return self._plan(self.epoch)

    def __len__(self) -> int:
        return len(self._any_plan())

    @property
    def batch_size(self) -> int:
        """Rows of a full batch."""
        return self._settings.batch_size

    @property
    def partial_batch_size(self) -> int | None:
        """Rows of the last batch if it is smaller than the others, else None."""
        sizes = self._any_plan().batch_sizes
        return int(sizes[-1]) if len(sizes) and sizes[-1] < self.batch_size else None

    @property
    def _shuffle(self) -> bool:
        """Whether rows come in random order."""
        return bool(self._settings.shuffle)

    # ---- a pass: threads read and gather chunks, the consumer makes tensors ----

    def __iter__(self) -> Batches:
        return self._new_pass(self._cursor)

    def _preview(self) -> Batches:
        """Return the batches of the current epoch; the next `iter()` begins with them again."""
        return self._new_pass(copy.copy(self._cursor))

    def peek(self) -> Any:
        """Return the first batch of the current epoch; the next `iter()` begins with it again."""
        self._check_batches()
        batches = self._preview()
        try:
            return next(batches)
        finally:
            batches.close()

    def as_numpy(self) -> Batches:
        """Return the batches of the current epoch as NumPy arrays, whatever Keras's backend is.

        Raises:
            ValueError: with device="gpu", whose batches are in the GPU's memory.
        """
        if self.device == "gpu":
            raise ValueError("as_numpy() gives arrays of the host: make the loader on device='cpu'")
        return self._new_pass(self._cursor, as_numpy=True)

    def _new_pass(self, cursor: EpochCursor, *, as_numpy: bool = False) -> Batches:
        batches = Batches(cursor, functools.partial(self._begin_pass, as_numpy), len(self))
        self._open.add(batches)
        return batches

    def _begin_pass(self, as_numpy: bool, owner: Batches) -> tuple[Pipeline, Iterator[Any]]:
        """Return the pipeline of reader threads, and the batches that are made of its chunks."""
        settings = self._settings
        source = self.source
        plan = self._current_plan
        self._warn_once()
        on_gpu = self.device == "gpu"
        threads = settings.reader_threads(on_device=on_gpu, remote=not source.is_local)
        self._pool.limit_bytes = self._size.batch_bytes
        pool: Any = self._pool
        if on_gpu:
            from tutorlib.gpu.batches import memory

            pool = memory
        maker = BatchMaker(self._layout, self._stopwatch, pool, as_numpy=as_numpy)
        reader = ChunkReader(
            source,
            self._columns,
            self._layout,
            pool,
            settings.memory_budget is not None,
            self._stopwatch,
            self._transform,
            threads,
            self._made_by,
            on_gpu=on_gpu,
            hand_over=maker.hand_over,
        )
        first_batch = self.first_batch
        chunks = plan.chunks_from(first_batch)
        pipeline = Pipeline(
            len(chunks),
            lambda submit, k: reader.begin(submit, plan, chunks[k], first_batch),
            threads=threads,
            stopwatch=self._stopwatch,
            at_end=reader.close,
            owner=owner,
        )
        self._running.append(weakref.ref(pipeline, self._running.remove))
        return pipeline, maker.batches(pipeline, reader.gatherer, plan.batch_sizes.tolist())

    def close(self) -> None:
        """Stop all threads of this loader and give its memory back; it can be used again.

        Between epochs a loader keeps the memory of its batches, since new pages cost a fifth of
        the time to read lists.

        A loop over its batches ends as after the last batch, even one that waits on another thread.
        """
        for batches in list(self._open):
            batches.close()
        for pipeline in [ref() for ref in self._running[:]]:
            if pipeline is not None:
                pipeline.close()
        self._pool.clear()
        if self.device == "gpu":
            from tutorlib.gpu.batches import memory

            memory.free_dropped(keep=0)
        pa.default_memory_pool().release_unused()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def to_tf_dataset(self) -> Any:
        """Return a `tf.data.Dataset` for code that must have one; each pass is the next epoch.

        Slower than `fit(loader)`: `from_generator` copies every tensor through NumPy. It does not
        know the model: of a functional one with a dict of inputs, the names must be those of the
        features, or Keras fills the inputs by place, which `fit(loader)` refuses.

        Raises:
            ValueError: without labels, because a dataset cannot hold (inputs, None).
        """
        import tensorflow as tf

        if not self._labelled:
            raise ValueError("a tf.data.Dataset needs label_names: it cannot hold (inputs, None)")

        def spec(tensor: Any, name: str = "") -> Any:
            rest = [None] if name in self._layout.ragged else tensor.shape[1:]
            return tf.TensorSpec([None, *rest], tensor.dtype)

        inputs, *targets = self.peek()
        signature = (
            {name: spec(tensor, name) for name, tensor in inputs.items()},
            *(tf.nest.map_structure(spec, target) for target in targets),
        )
        return tf.data.Dataset.from_generator(lambda: iter(self), output_signature=signature)

    # ---- the position, saved and restored ----

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next `iter()` gives, from 0."""
        return self._cursor.position.epoch

    @property
    def first_batch(self) -> int:
        """Number of the batch that the next `iter()` begins with; 0 unless a state was restored."""
        return self._cursor.position.first_batch

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` give the epoch of this number, from 0, from its first batch on."""
        self._cursor.set_epoch(epoch)

    def _identity(self) -> dict[str, Any]:
        """Return everything that decides which rows each batch has, as JSON values."""
        settings = self._settings
        if self._workflow is not None and self._workflow_hash is None:  # made once: it may be large
            with contextlib.suppress(ValueError):  # an op of the user's may have none
                self._workflow_hash = self._workflow.fingerprint
        fingerprint = {
            "data": self.source.fingerprint(),
            "workflow": self._workflow_hash,
            "columns": self.schema.names,
            "batch_size": settings.batch_size,
            "shuffle": bool(settings.shuffle),
            "drop_last": bool(settings.drop_last),
            "world_size": settings.global_size or 1,
            "partition_rows": self._size.partition_rows,
            "parts_per_chunk": self._size.parts_per_chunk,
        }
        return {"seed": settings.seed, "fingerprint": fingerprint}

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands, between any two batches, as a small dict of JSON values.

        It holds the numbers of the epoch and of the next batch (of the pass that took a batch
        last), the seed, and a fingerprint of the data and settings that decide the order. All
        ranks, which make equal steps, have the same.

        Example:
            >>> state = loader.state_dict()  # doctest: +SKIP
            >>> again = KerasSequenceLoader("data/train", batch_size=1024)  # doctest: +SKIP
            >>> again.load_state_dict(state)  # doctest: +SKIP
        """
        return {**self._cursor.state_dict(), **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where a loader of the same data, settings and number of ranks stood.

        Every pass over the current epoch then begins with the batch that was next; no chunk before
        that batch's is read. The epochs after it are whole.

        Args:
            state: what `state_dict()` returned, in this or another process.

        Raises:
            ValueError: if the data or a setting that decides the order has changed; says which.
        """
        position = self._cursor.position_of(state, self._identity(), len(self))
        self.close()
        self._cursor.position = position

    # ---- predictions ----

    def predict(
        self,
        model: keras.Model,
        *,
        name: str = "prediction",
        verbose: str | int = "auto",
    ) -> pa.Table:
        """Return the predictions for all rows, in the order of the files, next to their ids.

        The rows are those of the files after `filters`, each once, even if this loader shuffles,
        drops its last batch or is one of several ranks. They go through the mapped workflow or
        function. The loader itself stays where it is. Labels are not read, so they may be null,
        unless a Workflow makes them: take them out of new files then. A label among `id_names`
        stands beside its prediction.

        Args:
            model: Keras model that takes the batches of this loader.
            name: name of the column of predictions, and the prefix of all their names.
            verbose: 0 prints nothing, 1 a progress bar, 2 a line; "auto" chooses as Keras does.

        Returns:
            `pyarrow.Table` with the columns `id_names` and the predictions: a column `prediction`
            of numbers for an output [batch] or [batch, 1], of fixed-size lists for [batch, k].
            Several outputs have a column each, `prediction_{output}`.

        Raises:
            ValueError: if two columns of the table have the same name, or an output does not have a
                value for each row.

        Example:
            >>> loader = KerasSequenceLoader(
            ...     "data/test", 4096, schema=schema, id_names=["user_id", "item_id"]
            ... )  # doctest: +SKIP
            >>> loader.predict(model).sort_by("prediction")  # doctest: +SKIP
        """
        from tutorlib.loader.predict import predictions

        loader = object.__new__(type(self))  # of the rows of all ranks
        loader.__dict__.update(vars(self))
        loader._settings = dataclasses.replace(
            self._settings, shuffle=False, drop_last=False, global_size=None, global_rank=None
        )
        schema = self.schema.features
        loader._set_schema(schema, self._columns if self._transform else schema.names)
        loader._begin()
        return predictions(loader, model, name, verbose)

    # ---- what Keras asks ----

    def _check_batches(self) -> None:
        if not len(self):
            raise ValueError(
                f"there is no batch: {self.source.num_rows} rows, batch_size={self.batch_size}, "
                f"drop_last={self._settings.drop_last}"
            )

    def _check_for_fit(self) -> None:
        """Raise ValueError where Keras would report a wrong loss or fail without a clear reason."""
        self._check_batches()
        settings = self._settings
        form = self._settings.multi_hot
        parts = batch_parts()
        ranks = 1
        if process_count() > 1:  # Keras joins their batches
            if settings.global_size is None:
                raise ValueError(
                    "the loader was made before the processes were joined, so each of them gives "
                    "every row: make it after jax.distributed.initialize() and set_distribution()"
                )
            ranks = settings.global_size
            lists = list(self._layout.ragged)
            if lists and (form.form != "padded" or form.max_length is None):
                raise ValueError(
                    f"columns {lists}: Keras can join the batches of several processes only if "
                    "their lists have the same width. Use multi_hot=MultiHot('padded', "
                    "max_length=...)"
                )
        if settings.batch_size % parts:
            raise ValueError(
                f"batch_size={settings.batch_size} must be a multiple of {parts}, the devices of "
                "this process that share a batch"
            )
        if self.source.num_rows % (ranks * parts) and not settings.drop_last:
            raise ValueError(
                f"the last batches of {self.source.num_rows} rows do not have equally many on each "
                f"of {ranks * parts} devices, as Keras needs. Use drop_last=True"
            )

    # ---- what the loader says of itself ----

    def describe(self) -> dict[str, Any]:
        """Return the plan in numbers: rows, batches, chunks, threads, and memory in bytes.

        Nothing is read for it. `peak_bytes` is planned, not measured. `batch_worth` says how many
        random rows a batch is worth if the files are sorted: about as many as the row groups that
        a chunk mixes, `batch_size` if it mixes all; 1 without shuffling.
        """
        plan = self._any_plan()
        settings = self._settings
        source = self.source
        rows = max((chunk.num_rows for chunk in plan.chunks), default=0)
        mixed = plan.row_groups_per_chunk() if settings.shuffle else 1
        worth = 1.0
        if settings.shuffle and mixed:  # the variance of the mean of some of the row groups
            share = rows / source.num_rows  # of all rows, in a chunk
            worth = 1 / (1 / settings.batch_size + (1 - share) / mixed)
        return {
            "files": len(source.files),
            "row_groups": len(source),
            "rows": plan.num_rows,
            "batches": len(plan),
            "batch_size": settings.batch_size,
            "chunks": len(plan.chunks),
            "chunk_rows": rows,
            "row_groups_per_chunk": plan.row_groups_per_chunk(),
            "batch_worth": round(worth),
            "threads": settings.reader_threads(
                on_device=self.device == "gpu", remote=not source.is_local
            ),
            "budget_bytes": settings.memory_budget,
            "peak_bytes": self._size.peak_bytes,
        }

    def stats(self) -> dict[str, float]:
        """Return what was done so far: rows, batches, and seconds by stage.

        `read_s`, `transform_s` and `gather_s` are sums over all threads; `convert_s`, arrays to
        tensors, is time of the consumer's, and `wait_s` the time that it waited for chunks.
        """
        sums = self._stopwatch.sums()
        counts = {name: int(sums.pop(name, 0)) for name in ("rows", "batches")}
        stages = ("read", "transform", "gather", "convert", "wait")
        return {**counts, **{f"{name}_s": sums.get(name, 0.0) for name in stages}}

    def __repr__(self) -> str:
        plan = self.describe()
        return (
            f"{type(self).__name__}({plan['rows']:,} rows in {plan['batches']:,} batches of "
            f"{plan['batch_size']:,}; {plan['row_groups']:,} row groups of {plan['files']:,} files "
            f"in {plan['chunks']:,} chunks of up to {plan['chunk_rows']:,} rows; at most "
            f"{plan['peak_bytes'] / 2**20:,.0f} MiB)"
        )

    def _warn_once(self) -> None:
        """Warn of columns left out by inference, and of files that allow for no good shuffle."""
        if self._warned:
            return
        self._warned = True
        warn = functools.partial(warnings.warn, stacklevel=WARNS_LOOP)
        if self.schema.left_out:
            warn(
                f"these columns are not among the features: {self.schema.left_out}. Name the "
                "features (cat_names, cont_names) to choose them yourself, without this warning."
            )
        settings = self._settings
        plan = self._any_plan()
        count = len(self.source)
        if not settings.shuffle:
            return
        if len(plan) == 1:
            warn(
                "shuffle=True does not shuffle: an epoch is one batch, and rows of a batch come in "
                "the order of the files, row group by row group. Give a smaller batch_size, or "
                "shuffle=False"
            )
        mixed = plan.row_groups_per_chunk()
        ranks = settings.global_size or 1
        least = FEW_ROW_GROUPS  # or as few as the user asks for, if the files have more
        if settings.buffer_size is not None and count > 1:
            least = 1
        if settings.parts_per_chunk is not None and count > 1:
            least = min(FEW_ROW_GROUPS, settings.parts_per_chunk)
        if len(plan.chunks) > 1 and mixed < least:
            larger = f"a larger buffer_size ({self.source.num_rows:,} rows are all)"
            if settings.memory_budget is not None:
                larger = "a larger memory_budget"
            warn(
                "the shuffle is poor: rows are shuffled chunk by chunk, and a chunk has rows of "
                f"about {mixed} row groups (the files have {count}), so rows near each other "
                f"in the files stay near. Give {larger}, or write the "
                f"data in random order, in at least {2 * FEW_ROW_GROUPS * ranks} row groups "
                "(Workflow.transform_to_parquet(..., row_group_rows=..., shuffle_seed=0); for "
                "sorted rows, of the parts that split_rows(..., seed=0) gives)."
            )
