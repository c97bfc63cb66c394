"""BatchFormat: what the batches of a loader look like."""

from __future__ import annotations

import functools
from typing import Any

from tutorlib.keras_bridge.backend import min_int_dtype_on_gpu
from tutorlib.loader.batch_group import BatchBuilder
from tutorlib.loader.class_weights import ClassWeights
from tutorlib.loader.device_batches import DeviceBuilder
from tutorlib.loader.held_lists import HeldLists
from tutorlib.loader.host_batches import HostBuilder
from tutorlib.loader.layout import Layout
from tutorlib.loader.list_lengths import list_lengths
from tutorlib.loader.settings import LoaderSettings
from tutorlib.memory import BufferPool, DevicePool
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Schema


class BatchFormat:
    """The columns of a batch, their order in memory, and their form as tensors.

    Args:
        settings: settings of the loader.
        source: the files; batches are made in the memory in which it has columns.
        schema: schema of the batches.

    Attributes:
        settings: settings of the loader.
        schema: schema of the batches.
        min_int_dtype: "int32" or "int64": integers of a batch have at least this width.
        lengths: gives the lengths of the arrays of lists.
        class_weights: gives the weights of rows by class; None for no such weights.

    Raises:
        ValueError: if there is no feature, or `class_weight` does not fit the labels.
    """

    def __init__(self, settings: LoaderSettings, source: ParquetSource, schema: Schema) -> None:
        if not schema.features.columns:
            raise ValueError(
                f"there are no feature columns; the files have {list(source.column_types)}"
            )
        self.settings, self.schema = settings, schema
        self.min_int_dtype = "int32" if source.memory is None else min_int_dtype_on_gpu()
        self.lengths = list_lengths(settings.multi_hot, settings.bucket_lists, source)
        self.class_weights: ClassWeights | None = None
        if settings.class_weight is not None:
            vectors = [column.name for column in schema.labels if column.length is not None]
            if vectors:
                raise ValueError(
                    f"class_weight needs a label with one value a row, but {vectors} are vectors; "
                    "weigh the rows with a column instead (weight_name=...)"
                )
            self.class_weights = ClassWeights(settings.class_weight, schema.labels.names)

    @functools.cached_property
    def layout(self) -> Layout:
        """How columns lie in a batch; raises ValueError for a column that no batch can hold."""
        settings = self.settings
        return Layout(
            self.schema,
            stacked=settings.stacked,
            check_ids=settings.check_ids,
            nulls=settings.nulls,
            max_list_length=settings.max_list_length,
            multi_hot=settings.multi_hot,
            min_int_dtype=self.min_int_dtype,
        )

    def builder(
        self, pool: BufferPool | DevicePool, held: HeldLists | None = None
    ) -> BatchBuilder[Any, Any]:
        """Return what makes batches as arrays, in the memory of a pool."""
        if isinstance(pool, BufferPool):
            return HostBuilder(self.layout, pool, self.lengths, held)
        return DeviceBuilder(self.layout, pool, self.lengths)

    def check_for_fit(self) -> None:
        """Raise ValueError if Keras would report a wrong loss for these batches."""
        features = self.schema.features
        scalars = [c.role if self.settings.stacked else c.name for c in features if not c.multi_hot]
        lists = [f"{c.name}__offsets" for c in features if c.multi_hot]
        first = min(scalars + lists)
        if self.settings.multi_hot == "offsets" and first.endswith("__offsets"):
            raise ValueError(
                f"Keras weighs the loss of a batch by the length of its first input, {first!r}, "
                "which has one entry more than the batch has rows. Use multi_hot='nnzs'."
            )
