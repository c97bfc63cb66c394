"""Tensors: a batch in host memory as what Keras takes, (inputs, labels) or with weights.

Does not belong here: which rows a batch has (`plan.py`), how they got there (`batching.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tutorlib.batching import HostBatch
from tutorlib.buffers import aligned
from tutorlib.fit_bridge import tensor_maker
from tutorlib.schema import Schema


class BatchMaker:
    """Turns a `HostBatch` into (inputs, labels) or (inputs, labels, weights) of tensors."""

    def __init__(self, schema: Schema, multi_hot: str, max_list_length: int | None = None) -> None:
        self._labels = schema.labels.names
        self._weights = schema.with_role("weight").names
        self._multi_hot, self._max_list_length = multi_hot, max_list_length
        self._tensor = tensor_maker()

    def __call__(self, host: HostBatch) -> Any:
        """Return the batch; no array is copied but lists that are to be padded."""
        inputs = {name: self._tensor(array) for name, array in host.scalars.items()}
        labels = {name: inputs.pop(name) for name in self._labels}
        weights = [inputs.pop(name) for name in self._weights]
        for name, lists in host.lists.items():
            inputs.update(self._list_inputs(name, lists))
        target = labels[self._labels[0]] if len(labels) == 1 else labels or None
        return (inputs, target, weights[0][:, 0]) if weights else (inputs, target)

    def _list_inputs(self, name: str, lists: Any) -> dict[str, Any]:
        offsets = lists.offsets
        if self._multi_hot == "nnzs":
            nnzs = aligned(np.diff(offsets).astype(np.int32))
            return {
                f"{name}__nnzs": self._tensor(nnzs[:, None]),
                f"{name}__values": self._tensor(lists.values[:, None]),
            }
        if self._multi_hot == "offsets":
            return {
                f"{name}__offsets": self._tensor(aligned(offsets)),
                f"{name}__values": self._tensor(lists.values),
            }
        if self._multi_hot == "ragged":
            import tensorflow as tf

            values = self._tensor(lists.values)
            splits = self._tensor(aligned(offsets))
            return {name: tf.RaggedTensor.from_row_splits(values, splits, validate=False)}
        lengths = np.diff(offsets)
        width = self._max_list_length or max(1, lengths.max(initial=0))
        padded = np.zeros((len(lists), width), lists.values.dtype)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = lists.values
        return {name: self._tensor(aligned(padded))}
