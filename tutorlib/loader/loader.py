"""KerasSequenceLoader: Parquet files to shuffled batches of tensors, for Keras `fit` or a loop."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tutorlib.checks import check_bytes
from tutorlib.chunk import Chunk
from tutorlib.keras_bridge import data_share
from tutorlib.loader.batch_format import BatchFormat
from tutorlib.loader.batches import Batches
from tutorlib.loader.cursor import EpochCursor, Positioned, check_state
from tutorlib.loader.folder_schema import schema_of_arguments
from tutorlib.loader.layout import Layout
from tutorlib.loader.life import LoaderLife, refuse_other_workers
from tutorlib.loader.pipeline import Pipeline, Stopwatch, refuse_second
from tutorlib.loader.plan import EpochPlan
from tutorlib.loader.planning import Planner
from tutorlib.loader.predictions import PredictingLoader
from tutorlib.loader.ranks import Ranked
from tutorlib.loader.scatter import Scatterer
from tutorlib.loader.settings import LoaderSettings, check_names, source_of
from tutorlib.loader.summary import Described
from tutorlib.loader.tensors import BatchMaker, tf_dataset
from tutorlib.loader.transform import online
from tutorlib.memory import BufferPool, DevicePool
from tutorlib.schema import ROLES, Schema


class KerasSequenceLoader(LoaderLife, Positioned, Described, Ranked, PredictingLoader):
    """Shuffled batches of tensors from Parquet files, prefetched on threads.

    `model.fit(loader)`, `evaluate` and `validation_data=loader` take it directly,
    `loader.predict(model)` gives predictions as a table, and `for inputs, labels in loader` is one
    epoch. Each row comes exactly once in an epoch. Seed and epoch alone decide the order.

    An epoch ends when its last batch is taken. Iterating again before that restarts the same epoch
    in the same order.

    Args:
        paths_or_source: Parquet or Arrow file, folder, glob pattern, a list of these; a
            `ParquetSource`; a part of `split_rows`; a pyarrow Table, a pandas or polars DataFrame.
            A folder's `_schema.json` gives what arguments leave out: roles, cardinalities.
        batch_size: rows per batch, at least 1.
        label_names: names of the label columns; None takes the labels of `schema`, if any.
        feature_columns: list of `tf.feature_column` objects that name the features. Features can
            be named by these, by `cat_names` and `cont_names`, or by `schema`. If nothing names
            them, integers, strings and lists of these are categorical, floating-point and boolean
            columns continuous; a warning names the columns that remain, and what to do.
        cat_names: names of the categorical columns (ids or lists of ids).
        cont_names: names of the continuous columns.
        engine: "parquet", the only one there is.
        shuffle: whether rows come in random order; False keeps the order of the files, unless
            this rank has several `canonical_ranks`.
        seed_fn: function that returns an epoch's seed, called once per epoch; replaces `seed`.
        buffer_size: size of a partition: a number of rows from 1 on, or a fraction of the memory
            below 1 (give rows if ranks run on machines with different memory, and if this rank has
            several `canonical_ranks`). None chooses chunks of about a million rows, fewer if rows
            are wide or the budget is tight.
        device: "cpu" or "gpu": where files are decoded and batches are made. "gpu" needs an NVIDIA
            GPU with cuDF and leaves batches in its memory, in the same order; for TensorFlow,
            integers are then int64. None uses the device of the `ParquetSource`, or "cpu".
        parts_per_chunk: number of partitions, at least 1, from distant parts of the data that are
            mixed in one chunk. None mixes as many row groups as a chunk holds, at least 8; or 1
            partition if `buffer_size` is given.
        reader_kwargs: {"threads": number of reader threads}; default is one per CPU core, at most
            four for a GPU; for remote files two per core, at most 32.
        global_size: number of ranks (training processes). None for those that `keras.distribution`
            has joined on JAX, else a single one.
        global_rank: number of this rank, from 0; give both or neither.
        drop_last: whether to leave out the last batch if it is not full.
        schema: `Schema` that names features, labels and weight, with their cardinalities.
        id_names: names of columns that say which row it is, of any Arrow type. They are no features
            (unless named as such) and do not reach the model: `predict` and `with_ids` give them.
            None takes the ids of `schema`, if any.
        weight_name: name of a column of sample weights, float32; None for no weights. With it,
            batches are (inputs, labels, weights) with weights of shape [batch].
        class_weight: {class: weight} of one integer label, as in Keras's `fit`, times the weights
            of `weight_name`. Classes that are not named weigh 1, with a warning.
        seed: seed of the order, 0 to 2**64 - 1.
        batch_layout: "columns" gives {name: [batch, 1]}, of vectors [batch, k]; "stacked" gives
            {"categorical": int [batch, n], "continuous": float32 [batch, n]}, with columns in the
            order of `schema`, a vector as k of them.
        multi_hot: form of a list column g: "nnzs" gives `g__values` [nnz, 1] and `g__nnzs`
            [batch, 1]; "offsets" gives `g__values` [nnz] and `g__offsets` [batch + 1]; "ragged"
            gives a tf.RaggedTensor g; "padded" gives g [batch, longest], padded with -1
            (no id), lists of floats with 0.
        check_ids: whether ids outside [0, cardinality) are refused, if the cardinality is known.
        filters: rows to keep: a `pyarrow.compute` expression or `[("day", "<", 6), ...]`; None
            keeps all. Row groups that the statistics of the files exclude are not read.
        memory_budget: bytes, or text such as "1.5GB" or "512MiB", that a pass over the loader may
            hold, in the GPU's memory if it works there. On a CPU the process grows by at most 1.1
            of it plus 32 MiB, which Arrow and Python keep. It bounds `buffer_size`, also the
            automatic one, and allows four threads and one open pass at most. Rows are planned with
            the mean bytes of their row group; lists so much longer that the plan cannot hold them
            are refused when they are read. `multi_hot="padded"` needs `max_list_length` with it.
            None sets no bound.
        limit_rows: use only this many rows from the start; None for all.
        nulls: "error" refuses nulls and NaN. "fill" replaces them by 0 in features; {name: value}
            replaces them in these features. They are always refused in labels and weights.
        max_list_length: longest list that is accepted, at least 1, and the width of
            `multi_hot="padded"`; None for any length.
        bucket_lists: whether list columns come in few different shapes, because XLA
            (`jit_compile=True`, Keras's default on a GPU) and JAX compile for each shape.
            `g__values` is padded after the last list to a length that the files' mean list length
            predicts, nearly always the same one: a tenth more values at batches of 4,096 rows, a
            third at 256. Layers ignore the padding. "padded" without `max_list_length` becomes 1,
            2, 3, 4, 6, 8, 12, ... wide. A last batch that is not full adds a shape: see
            `drop_last`.
        canonical_ranks: number of ranks whose order an epoch has, a multiple of `global_size`; None
            for `global_size`. The batches of all ranks, one after the other, then have the same
            rows in the same order on any number of ranks, and each of these can load the
            `state_dict` of one rank. Each canonical rank gives equally many rows of a batch:
            `batch_size` must be a multiple of `canonical_ranks / global_size`, and changes with it.
            A rank holds the chunks of all its canonical ranks; to keep the order with a
            `memory_budget`, change that by the same factor. Their rows take turns even with
            `shuffle=False`; `loader.predict` gives predictions in order.

    Attributes:
        source: the `ParquetSource`.
        id_names: names of the id columns.

    Raises:
        FileNotFoundError: if there is no Parquet file.
        ValueError: if an argument is out of range or contradicts another one, a column is missing
            or has a type that does not fit, or `memory_budget` is too small; says what would do.

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
        id_names: Iterable[str] | None = None,
        weight_name: str | None = None,
        class_weight: Mapping[int, float] | None = None,
        seed: int = 0,
        batch_layout: str = "columns",
        multi_hot: str = "nnzs",
        check_ids: bool = True,
        filters: Any = None,
        memory_budget: int | str | None = None,
        limit_rows: int | None = None,
        nulls: str | Mapping[str, float] = "error",
        max_list_length: int | None = None,
        bucket_lists: bool = False,
        canonical_ranks: int | None = None,
    ) -> None:
        check_names(
            label_names=label_names, cat_names=cat_names, cont_names=cont_names, id_names=id_names
        )
        id_names = None if id_names is None else list(id_names)
        self._share_found = None
        if global_size is None and global_rank is None:
            self._share_found = global_size, global_rank = data_share()
        self._settings = LoaderSettings(
            batch_size=batch_size, engine=engine, shuffle=shuffle, seed=seed, seed_fn=seed_fn,
            buffer_size=buffer_size, parts_per_chunk=parts_per_chunk, reader_kwargs=reader_kwargs,
            memory_budget=check_bytes("memory_budget", memory_budget), drop_last=drop_last,
            global_size=global_size, global_rank=global_rank, canonical_ranks=canonical_ranks,
            limit_rows=limit_rows, nulls=nulls, batch_layout=batch_layout, multi_hot=multi_hot,
            bucket_lists=bucket_lists, check_ids=check_ids, max_list_length=max_list_length,
            class_weight=class_weight,
        )  # fmt: skip
        self.source = source_of(paths_or_source, filters, device)
        self._file_schema = schema_of_arguments(
            self.source, schema, feature_columns, cat_names, cont_names, label_names, weight_name,
            id_names,
        )  # fmt: skip
        ids = self._file_schema.with_role("id").names
        self.id_names = ids if id_names is None else id_names
        self._named = any(x is not None for x in (schema, feature_columns, cat_names, cont_names))
        if not self.source.num_rows:
            passing = "" if filters is None else f" that pass filters={filters}"
            raise ValueError(f"there are no rows{passing} in {self.source.files}")
        self._transform: Callable[[Chunk], Chunk] | None = None
        self._workflow: Any = None  # that is mapped
        columns = (column for column in self._file_schema if column.role != "id")
        batch_schema = Schema(columns, self._file_schema.left_out)
        self._set_schema(batch_schema, batch_schema.names)
        self._begin()
        self._planner.any_plan()  # refuses settings for which there is no plan

    def _begin(self) -> None:
        self._cursor = EpochCursor(self._settings.seed, self._settings.seed_fn)
        self._stopwatch = Stopwatch()
        self._pool = self._new_pool(limit_bytes=0)
        self._open: weakref.WeakSet[Batches] = weakref.WeakSet()
        self._running: list[weakref.ref[Pipeline[Any]]] = []  # in order, also of dropped passes

    def _new_pool(self, limit_bytes: int) -> BufferPool | DevicePool:
        if self.source.memory is None:
            return BufferPool(limit_bytes)
        return DevicePool(self.source.memory, limit_bytes, self.source.save_memory)

    def _set_schema(self, schema: Schema, columns: Iterable[str]) -> None:
        """Set the schema of the batches and the columns to read for it, and plan with them."""
        self._format = BatchFormat(self._settings, self.source, schema)
        order = {c.name: ROLES.index(c.role) for c in schema}  # as they lie in a batch
        self._columns = sorted(columns, key=lambda name: order.get(name, 0))
        whole, min_int_dtype = self._transform is not None, self._format.min_int_dtype
        self._planner = Planner(
            self._settings, self.source, self._columns, schema, min_int_dtype, whole=whole
        )

    def map(self, workflow_or_function: Any) -> KerasSequenceLoader:
        """Transform every chunk on the reader threads as it is read; returns the loader.

        Args:
            workflow_or_function: a fitted `Workflow`: its features replace the loader's, but named
                ones that it does not take stay; its labels and weight are used if the loader names
                none. Or a function that takes a `Chunk` and returns a `Chunk` of as many rows, with
                the columns of the loader's schema in the same types.

        Raises:
            RuntimeError: if batches have been taken already, or something is mapped already.
            ValueError: if the workflow needs a column that the files do not have, or makes one that
                no batch can hold.

        Example:
            >>> loader.map(Workflow.load("data/criteo/workflow"))  # doctest: +SKIP
        """
        if self._transform is not None or self._stopwatch.sums():
            raise RuntimeError(
                "map() once, before the first batch is taken; chain the transformations in one "
                "Workflow"
            )
        if hasattr(workflow_or_function, "transform"):
            made = online(workflow_or_function, self.source, self._file_schema, self._named)
            self._transform, self._workflow = made.transform, workflow_or_function
            self._set_schema(made.schema, made.columns)
            _ = self.layout  # refuses columns that no batch can hold
        else:
            self._transform = workflow_or_function
            self._set_schema(self.schema, self._columns)
        return self

    @property
    def schema(self) -> Schema:
        """Schema of the batches."""
        return self._format.schema

    @property
    def layout(self) -> Layout:
        """How columns lie in a batch; raises ValueError for a column that no batch can hold."""
        return self._format.layout

    def __len__(self) -> int:
        return len(self._planner.any_plan())

    @property
    def num_rows(self) -> int:
        """Rows that this loader gives in an epoch: those of its rank, after `drop_last`."""
        return sum(self._planner.any_plan().batch_sizes)

    @property
    def plan(self) -> EpochPlan:
        """Plan of the current epoch: which rows each batch has."""
        return self._planner.plan(self.epoch, self._cursor.draw_seed())

    @property
    def batch_size(self) -> int:
        """Rows of a full batch."""
        return self._settings.batch_size

    @property
    def partial_batch_size(self) -> int | None:
        """Rows of the last batch if it is smaller than the others, else None."""
        sizes = self._planner.any_plan().batch_sizes
        return sizes[-1] if sizes and sizes[-1] < self.batch_size else None

    def batch_rows(self, batch: int) -> int:
        """Return the rows of batch number `batch` of an epoch."""
        return self._planner.any_plan().batch_sizes[batch]

    @property
    def shuffle(self) -> bool:
        """Whether rows come in random order."""
        return bool(self._settings.shuffle)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands, between any two batches, as a small dict of JSON values.

        It holds the epoch, its seed, the number of the next batch (of the pass that took a batch
        last), and the data and settings that decide the order.

        Example:
            >>> state = loader.state_dict()  # doctest: +SKIP
            >>> again = KerasSequenceLoader("data/train", batch_size=1024)  # doctest: +SKIP
            >>> again.load_state_dict(state)  # doctest: +SKIP
        """
        return {**self._cursor.state_dict(), **self._planner.identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where a loader of the same data and settings stood.

        Every pass over the current epoch then begins with the batch that was next; no chunk before
        that batch's is read. The epochs after it are whole.

        Args:
            state: what `state_dict()` returned, in this or another process.

        Raises:
            ValueError: if the data or a setting that decides the order has changed; says which.
        """
        check_state(state, self._planner.identity(), len(self))
        self.close()
        self._cursor.load_state_dict(state)

    def __iter__(self) -> Batches:
        return self._new_pass()

    def preview(self) -> Batches:
        """Return the batches of the current epoch; the next `iter()` begins with them again."""
        return self._new_pass(moves=False)

    def peek(self) -> Any:
        """Return the first batch of the current epoch; the next `iter()` begins with it again."""
        self._check_batches()
        batches = self.preview()
        try:
            return next(batches)
        finally:
            batches.close()

    def in_file_order(self, *, labels: bool = True) -> KerasSequenceLoader:
        """Return a loader of the same rows, of all ranks, unshuffled and without weights.

        Args:
            labels: whether its batches have labels; without them, labels may be null.
        """
        other = self._twin()
        other._settings = self._settings.in_file_order()
        unwanted = ("weight",) if labels else ("weight", "label")
        schema = Schema(column for column in self.schema if column.role not in unwanted)
        other._set_schema(schema, self._columns if self._transform else schema.names)
        other._begin()
        return other

    def as_numpy(self) -> Batches:
        """Return the batches of the current epoch as NumPy arrays, whatever Keras's backend is."""
        return self._new_pass(as_numpy=True)

    def _new_pass(self, *, moves: bool = True, as_numpy: bool = False) -> Batches:
        new_pipeline = functools.partial(self._new_pipeline, as_numpy)
        batches = Batches(self._cursor, new_pipeline, len(self), moves=moves)
        self._open.add(batches)
        return batches

    def _new_pipeline(self, as_numpy: bool = False) -> Pipeline[Any]:
        refuse_other_workers(self._settings.global_size)
        planner, pool = self._planner, self._pool
        planner.warn_once()
        source = self.source.for_a_pass(planner.open_row_groups, planner.step_bytes)
        pool.limit_bytes = planner.peak_bytes
        builder = self._format.builder(pool, planner.held_lists())
        step = planner.step_bytes if planner.reads_in_steps else None
        columns, names = self._columns, self.schema.names
        pipeline = Pipeline(
            self.plan,
            builder,
            Scatterer(source, columns, builder, self._stopwatch, self._transform, names, step),
            BatchMaker(self._format, pool, as_numpy=as_numpy),
            threads=planner.threads,
            stopwatch=self._stopwatch,
            at_end=source.close,
            first_batch=self.first_batch,
            convert_batches=planner.convert_batches,
        )
        self._running.append(weakref.ref(pipeline, self._running.remove))
        refuse_second(pipeline, self._running, self._settings.memory_budget)
        return pipeline

    def close(self) -> None:
        """Stop all threads of this loader and release their memory; it can be used again.

        A loop over its batches ends as after the last batch, even one that waits on another thread.
        """
        for batches in list(self._open):
            batches.close()
        for pipeline in [ref() for ref in self._running[:]]:
            if pipeline is not None:
                pipeline.close()
        old, self._pool = self._pool, self._new_pool(self._pool.limit_bytes)
        old.limit_bytes = 0  # memory that is still in use is freed when it comes back
        old.clear()

    def to_tf_dataset(self) -> Any:
        """Return a `tf.data.Dataset` for code that must have one; each pass is the next epoch.

        Slower than `fit(loader)`: `from_generator` copies every tensor through NumPy.

        Raises:
            ValueError: without labels, because a dataset cannot hold (inputs, None).
        """
        return tf_dataset(self)

    def _check_batches(self) -> None:
        if not len(self):
            raise ValueError(
                f"there is no batch: {self._planner.any_plan().num_rows} rows, batch_size="
                f"{self.batch_size}, drop_last={self._settings.drop_last}"
            )

    def check_for_fit(self) -> None:
        """Raise ValueError where Keras would report a wrong loss or fail without a clear reason.

        Of several processes that are joined, all must call it.
        """
        self._refuse_other_ranks()
        self._check_batches()
        self._format.check_for_fit()
        self._check_joined_batches()
