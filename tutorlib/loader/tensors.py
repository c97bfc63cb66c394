"""Tensors: a batch as what Keras takes, (inputs, labels) or with weights.

Does not belong here: which rows a batch has (`plan.py`), how they got there (`batching.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tutorlib.chunk import array_namespace
from tutorlib.keras_bridge import gpu_tensor_maker, tensor_maker
from tutorlib.loader.host_batches import HostBatch
from tutorlib.loader.list_lengths import ListLengths
from tutorlib.memory import DevicePool, aligned
from tutorlib.schema import Schema


class BatchMaker:
    """Turns a `HostBatch` into (inputs, labels) or (inputs, labels, weights) of tensors.

    Args:
        schema: of the batches.
        multi_hot: the form of lists: "nnzs", "offsets", "ragged" or "padded".
        max_list_length: what "padded" pads to; None for what `lengths` say of the longest list.
        lengths: how long the arrays of lists are.
        min_int_dtype: dtype of the numbers of values.
        pool: where the memory of a device's batches comes from; None for batches of the CPU.
    """

    def __init__(
        self,
        schema: Schema,
        multi_hot: str,
        max_list_length: int | None = None,
        lengths: ListLengths | None = None,
        *,
        min_int_dtype: str = "int32",
        pool: DevicePool | None = None,
    ) -> None:
        self._labels = schema.labels.names
        self._weights = schema.with_role("weight").names
        self._multi_hot, self._max_list_length = multi_hot, max_list_length
        self._lengths = lengths or ListLengths()
        self._integer = np.dtype(min_int_dtype)
        self._tensor, self._copy, self._finish = tensor_maker(), aligned, _nothing
        if pool is not None:
            self._copy, self._finish = pool.copy, pool.space.finish
            if pool.space.on_gpu:
                self._tensor = gpu_tensor_maker()

    def __call__(self, batch: HostBatch) -> Any:
        """Return the batch; no array is copied but lists that are to be padded."""
        lists = {name: self._arrays(name, lists) for name, lists in batch.lists.items()}
        self._finish()  # a consumer must not come before what is still being made
        inputs = {name: self._tensor(array) for name, array in batch.scalars.items()}
        labels = {name: inputs.pop(name) for name in self._labels}
        weights = [inputs.pop(name) for name in self._weights]
        for name, arrays in lists.items():
            tensors = {part: self._tensor(array) for part, array in arrays.items()}
            inputs.update(_ragged(name, tensors) if self._multi_hot == "ragged" else tensors)
        target = labels[self._labels[0]] if len(labels) == 1 else labels or None
        return (inputs, target, weights[0][:, 0]) if weights else (inputs, target)

    def _arrays(self, name: str, lists: Any) -> dict[str, Any]:
        values, offsets = lists.values, lists.offsets
        if self._multi_hot == "padded":
            return {name: self._copy(self._padded(lists))}
        if self._multi_hot == "nnzs":
            nnzs = array_namespace(offsets).diff(offsets).astype(self._integer)
            return {f"{name}__nnzs": self._copy(nnzs[:, None]), f"{name}__values": values[:, None]}
        return {f"{name}__offsets": self._copy(offsets), f"{name}__values": values}

    def _padded(self, lists: Any) -> Any:
        values, xp = lists.values, array_namespace(lists.offsets)
        lengths = xp.diff(lists.offsets)
        longest = max(1, int(lengths.max()) if len(lengths) else 0)
        width = self._max_list_length or self._lengths.width(longest)
        padded = xp.zeros((len(lists), width), values.dtype)
        padded[xp.arange(width) < lengths[:, None]] = values
        return padded


def _nothing() -> None:
    """Wait for nothing: on the CPU an array is there when it is returned."""


def _ragged(name: str, tensors: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    values, splits = tensors[f"{name}__values"], tensors[f"{name}__offsets"]
    return {name: tf.RaggedTensor.from_row_splits(values, splits, validate=False)}
