"""BatchMaker: arrays to the tensors that Keras takes, (inputs, labels) or with weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.columns import Ragged, array_namespace, to_host
from tutorlib.keras_bridge.backend import eager_scope, tensor_maker, unstacking_maker
from tutorlib.loader.chunks import Part
from tutorlib.loader.layout import Layout
from tutorlib.loader.settings import PAD
from tutorlib.memory import aligned_empty
from tutorlib.schema import Schema


class BatchMaker:
    """Turns a `Part` into a list of (inputs, labels) or (inputs, labels, weights) of tensors.

    The consumer's thread makes them: a tensor is several small pieces of memory, which a thread
    takes and frees in less than half the time if no other thread does either.

    Args:
        layout: how the columns lie in a batch.
        schema: schema of the batches.
        on_gpu: whether the arrays are CuPy's.
        min_int_dtype: "int32" or "int64": list lengths have this width.
        as_numpy: whether batches are NumPy arrays instead of tensors.

    Raises:
        ValueError: for ragged tensors as NumPy arrays.
    """

    def __init__(
        self,
        layout: Layout,
        schema: Schema,
        *,
        on_gpu: bool,
        min_int_dtype: str,
        as_numpy: bool = False,
    ) -> None:
        self._multi_hot, self._integer = layout.multi_hot, np.dtype(min_int_dtype)
        if as_numpy and self._multi_hot.form == "ragged":
            raise ValueError("multi_hot='ragged' gives tensors; for NumPy use 'nnzs' or 'padded'")
        self._fields, self._lists = [field.name for field in layout.fields], [*layout.ragged]
        self._labels, self._weights = schema.labels.names, schema.with_role("weight").names
        self._tensor: Callable[[Any], Any] = to_host if as_numpy else tensor_maker()
        if on_gpu and not as_numpy:
            from tutorlib.gpu.tensors import gpu_tensor_maker

            self._tensor = gpu_tensor_maker()
        together = not (as_numpy or on_gpu)
        self._tensors = unstacking_maker() if together else lambda a: list(map(self._tensor, a))

    def __call__(self, part: Part) -> list[Any]:
        """Return the batches of a part, whose tensors share its memory."""
        with eager_scope():
            count = part.segment.batches
            tensors = {}
            for name in self._fields:  # in this order, whichever thread was the first
                array = part.scalars[name]
                rows = array[:, :, 0] if name in self._weights else array
                tensors[name] = self._tensors(rows)
            weights = [tensors.pop(name) for name in self._weights]
            labels = {name: tensors.pop(name) for name in self._labels}
            inputs = _by_batch(tensors, count)
            for name in self._lists:
                for batch, one in zip(inputs, part.lists[name], strict=True):
                    batch.update(self._list_tensors(name, one))
            targets: Iterable[Any] = [None] * count
            if labels:
                targets = labels.popitem()[1] if len(labels) == 1 else _by_batch(labels, count)
            return list(zip(inputs, targets, *weights, strict=True))

    def _list_tensors(self, name: str, lists: Ragged) -> dict[str, Any]:
        values, offsets = lists.values, lists.offsets
        form = self._multi_hot.form
        if form == "padded":
            return {name: self._tensor(self._padded(lists))}
        if form == "nnzs":
            nnzs = array_namespace(offsets).diff(offsets).astype(self._integer)
            made = {f"{name}__nnzs": self._copy(nnzs[:, None]), f"{name}__values": values[:, None]}
        else:
            made = {f"{name}__offsets": self._copy(offsets), f"{name}__values": values}
        tensors = {part: self._tensor(array) for part, array in made.items()}
        if form != "ragged":
            return tensors
        import tensorflow as tf

        values, splits = tensors[f"{name}__values"], tensors[f"{name}__offsets"]
        return {name: tf.RaggedTensor.from_row_splits(values, splits, validate=False)}

    def _copy(self, array: Any) -> Any:
        """Return an aligned copy, which shares no memory with another tensor."""
        if not isinstance(array, np.ndarray):
            return array.copy()
        copy = aligned_empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def _padded(self, lists: Ragged) -> Any:
        xp = array_namespace(lists.offsets)
        lengths = xp.diff(lists.offsets)
        width = self._multi_hot.width(int(lengths.max()) if len(lengths) else 0)
        shape, dtype = (len(lists), width), lists.values.dtype
        padded = aligned_empty(shape, dtype) if xp is np else xp.empty(shape, dtype)
        padded[...] = PAD
        padded[xp.arange(width) < lengths[:, None]] = lists.values[: int(lists.offsets[-1])]
        return padded


def _by_batch(tensors: Mapping[str, Sequence[Any]], count: int) -> list[dict[str, Any]]:
    """Return {name: tensor} of each batch, given the tensors of all batches by name."""
    if not tensors:
        return [{} for _ in range(count)]
    return [dict(zip(tensors, row, strict=True)) for row in zip(*tensors.values(), strict=True)]


def tf_dataset(loader: Any) -> Any:
    """Return a `tf.data.Dataset` of which each pass is the next epoch of a `KerasSequenceLoader`.

    Raises:
        ValueError: without labels, because a dataset cannot hold (inputs, None).
    """
    import tensorflow as tf

    if not loader.labelled:
        raise ValueError("a tf.data.Dataset needs label_names: it cannot hold (inputs, None)")

    def spec(tensor: Any, name: str = "") -> Any:
        if isinstance(tensor, tf.RaggedTensor):
            return tf.RaggedTensorSpec([None, None], tensor.dtype, ragged_rank=1)
        padded = name in loader.schema and loader.schema[name].multi_hot
        rest = [None] if padded else tensor.shape[1:]
        return tf.TensorSpec([None, *rest], tensor.dtype)

    inputs, *targets = loader.peek()
    signature = (
        {name: spec(tensor, name) for name, tensor in inputs.items()},
        *(tf.nest.map_structure(spec, target) for target in targets),
    )
    dataset = tf.data.Dataset.from_generator(lambda: iter(loader), output_signature=signature)
    if loader.first_batch:
        return dataset  # its first pass is shorter than the others
    return dataset.apply(tf.data.experimental.assert_cardinality(len(loader)))
