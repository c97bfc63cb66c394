"""BatchMaker: batches as the tensors that Keras takes, (inputs, labels) or with weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.chunk import Ragged, array_namespace, to_host
from tutorlib.keras_bridge import (
    eager_scope,
    gpu_tensor_maker,
    tensor_maker,
    unstacking_maker,
)
from tutorlib.loader.batch_format import BatchFormat
from tutorlib.loader.batch_group import ArrayBatches
from tutorlib.memory import BufferPool, DevicePool, aligned, aligned_empty
from tutorlib.schema import Schema


class BatchMaker:
    """Turns `ArrayBatches` into (inputs, labels) or (inputs, labels, weights) of tensors.

    Args:
        batch_format: what the batches look like.
        pool: gives the memory of the batches.
        as_numpy: whether batches are NumPy arrays instead of tensors.

    Raises:
        ValueError: for ragged tensors as NumPy arrays.
    """

    def __init__(
        self, batch_format: BatchFormat, pool: BufferPool | DevicePool, *, as_numpy: bool = False
    ) -> None:
        if as_numpy and batch_format.settings.multi_hot == "ragged":
            raise ValueError("multi_hot='ragged' gives tensors; for NumPy use 'nnzs' or 'padded'")
        self._labels = batch_format.schema.labels.names
        self._weights = batch_format.schema.with_role("weight").names
        self._multi_hot = batch_format.settings.multi_hot
        self._max_list_length = batch_format.settings.max_list_length
        self._lengths, self._class_weights = batch_format.lengths, batch_format.class_weights
        self._integer = np.dtype(batch_format.min_int_dtype)
        self._pool = None if isinstance(pool, BufferPool) else pool
        on_gpu = self._pool is not None and self._pool.space.on_gpu
        self._tensor: Callable[[Any], Any] = to_host
        if not as_numpy:
            self._tensor = gpu_tensor_maker() if on_gpu else tensor_maker()
        together = self._pool is None and not as_numpy
        self._tensors = unstacking_maker() if together else lambda a: list(map(self._tensor, a))

    def __call__(self, batches: ArrayBatches) -> Callable[[], list[Any]]:
        """Return a function that makes the batches, for the thread that will drop them.

        What lists and weights need is copied here. A tensor is several small pieces of memory,
        which a thread takes and frees in less than half the time if no other thread does either.
        """
        lists = [
            {name: self._arrays(name, column) for name, column in columns.items()}
            for columns in batches.lists
        ]
        weights = self._row_weights(batches.scalars)
        scalars = {n: a for n, a in batches.scalars.items() if n not in self._weights}
        make = functools.partial(self._batches, scalars, lists, weights)
        if self._pool is None:
            return make
        self._pool.space.finish()  # the consumer must not read what is still being written
        made = make()
        return lambda: made

    def _batches(
        self, scalars: Mapping[str, Any], lists: Sequence[Mapping[str, Any]], weights: Any
    ) -> list[Any]:
        """Return the batches, whose tensors share the memory of these arrays."""
        with eager_scope():
            return self._made(scalars, lists, weights)

    def _made(
        self, scalars: Mapping[str, Any], lists: Sequence[Mapping[str, Any]], weights: Any
    ) -> list[Any]:
        tensors = {name: self._tensors(array) for name, array in scalars.items()}
        labels = {name: tensors.pop(name) for name in self._labels}
        inputs = _by_batch(tensors, len(lists))
        for columns, parts in zip(inputs, lists, strict=True):
            for name, arrays in parts.items():
                made = {part: self._tensor(array) for part, array in arrays.items()}
                columns.update(_ragged(name, made) if self._multi_hot == "ragged" else made)
        targets: Iterable[Any] = [None] * len(lists)
        if labels:
            targets = labels.popitem()[1] if len(labels) == 1 else _by_batch(labels, len(lists))
        if weights is None:
            return list(zip(inputs, targets, strict=True))
        return list(zip(inputs, targets, self._tensors(weights), strict=True))

    def _row_weights(self, scalars: dict[str, Any]) -> Any:
        """Return the weight of each row, float32 [batches, rows], or None."""
        own = [scalars[name][:, :, 0] for name in self._weights]
        if self._class_weights is None:
            return own[0] if own else None
        labels = scalars[self._labels[0]]
        weights = self._class_weights(labels).reshape(labels.shape[:2])
        return self._copy(weights * own[0] if own else weights)

    def _arrays(self, name: str, lists: Ragged) -> dict[str, Any]:
        values, offsets = lists.values, lists.offsets
        if self._multi_hot == "padded":
            return {name: self._padded(lists)}
        if self._multi_hot == "nnzs":
            nnzs = array_namespace(offsets).diff(offsets).astype(self._integer)
            return {f"{name}__nnzs": self._copy(nnzs[:, None]), f"{name}__values": values[:, None]}
        return {f"{name}__offsets": self._copy(offsets), f"{name}__values": values}

    def _copy(self, array: Any) -> Any:
        """Return an aligned copy, which shares no memory with another tensor."""
        return aligned(array) if self._pool is None else self._pool.copy(array)

    def _padded(self, lists: Ragged) -> Any:
        values, xp = lists.values, array_namespace(lists.offsets)
        lengths = xp.diff(lists.offsets)
        longest = max(1, int(lengths.max()) if len(lengths) else 0)
        width = self._max_list_length or self._lengths.width(longest)
        padding = -1 if values.dtype.kind == "i" else 0  # no id; a weight of nothing
        if self._pool is not None:
            padded = xp.full((len(lists), width), padding, values.dtype)
        else:
            padded = aligned_empty((len(lists), width), values.dtype)
            padded[...] = padding
        padded[xp.arange(width) < lengths[:, None]] = values
        return padded if self._pool is None else self._pool.copy(padded)


def _by_batch(tensors: Mapping[str, Sequence[Any]], count: int) -> list[dict[str, Any]]:
    """Return {name: tensor} of each batch, given the tensors of all batches by name."""
    if not tensors:
        return [{} for _ in range(count)]
    return [dict(zip(tensors, row, strict=True)) for row in zip(*tensors.values(), strict=True)]


def _ragged(name: str, tensors: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    values, splits = tensors[f"{name}__values"], tensors[f"{name}__offsets"]
    return {name: tf.RaggedTensor.from_row_splits(values, splits, validate=False)}


def tf_dataset(loader: Any) -> Any:
    """Return a `tf.data.Dataset` of which each pass is the next epoch of a `KerasSequenceLoader`.

    Raises:
        ValueError: without labels, because a dataset cannot hold (inputs, None).
    """
    import tensorflow as tf

    if not loader.labelled:
        raise ValueError("a tf.data.Dataset needs label_names: it cannot hold (inputs, None)")
    signature = _dataset_signature(loader.peek(), loader.schema)
    dataset = tf.data.Dataset.from_generator(lambda: iter(loader), output_signature=signature)
    if loader.first_batch:
        return dataset  # its first pass is shorter than the others
    return dataset.apply(tf.data.experimental.assert_cardinality(len(loader)))


def _dataset_signature(batch: Any, schema: Schema) -> Any:
    """Return the `output_signature` with which a `tf.data.Dataset` takes batches like this one."""
    import tensorflow as tf

    def spec(tensor: Any, name: str = "") -> Any:
        if isinstance(tensor, tf.RaggedTensor):
            return tf.RaggedTensorSpec([None, None], tensor.dtype, ragged_rank=1)
        padded = name in schema and schema[name].multi_hot
        rest = [None] if padded else tensor.shape[1:]
        return tf.TensorSpec([None, *rest], tensor.dtype)

    inputs, *targets = batch
    return (
        {name: spec(tensor, name) for name, tensor in inputs.items()},
        *(tf.nest.map_structure(spec, target) for target in targets),
    )
