"""Buckets: lists of ids padded to few different lengths, so that XLA compiles few times.

XLA and JAX compile anew for every shape. The values of a multi-hot column have another length in
every batch, which would be a compilation a step. Does not belong here: the layers, which ignore
values behind the last row's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

# 64, 72, 80, ..., 128, 144, ...: eight lengths until each doubling.
LENGTHS = np.array([m << k for k in range(3, 36) for m in range(8, 16)], np.int64)


def bucket_length(size: int) -> int:
    """Return the length to which `size` values are padded: the next of 64, 72, 80, ..., 128, 144.

    There are eight such lengths until each doubling, so at most an eighth is added, and a training
    whose batches differ by a factor of two in their number of values compiles at most nine times.

    Example:
        >>> [bucket_length(size) for size in (1, 64, 65, 1000)]
        [64, 64, 72, 1024]
    """
    return int(LENGTHS[np.searchsorted(LENGTHS, size)])


def bucketed(inputs: Any, *others: Any) -> Any:
    """Return a batch with every `g__values` padded by id 0 to a `bucket_length`.

    The layers ignore what stands behind the values of the last row. For training under
    `jit_compile=True` or on JAX: map it over batches, before the compiled step.

    Args:
        inputs: dict of tensors or arrays, as the loader gives it.
        *others: labels and weights, which are passed through.

    Returns:
        The dict, or (dict, *others).

    Example:
        >>> batch = {"g__values": np.array([[3], [1]]), "g__nnzs": np.array([[2]])}
        >>> bucketed(batch)["g__values"].shape
        (64, 1)
        >>> dataset = loader.to_tf_dataset().map(bucketed)  # doctest: +SKIP
    """
    if not isinstance(inputs, Mapping):
        raise ValueError(f"bucketed needs a dict of columns, got {type(inputs).__name__}")
    padded = {
        name: _padded(values) if name.endswith("__values") else values
        for name, values in inputs.items()
    }
    return (padded, *others) if others else padded


def _padded(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        missing = bucket_length(len(values)) - len(values)
        return np.pad(values, [[0, missing], *[[0, 0]] * (values.ndim - 1)])
    size = ops.shape(values)[0]
    if isinstance(size, int):
        missing = bucket_length(size) - size
    else:  # in tf.data, where the length is a tensor
        lengths = ops.convert_to_tensor(LENGTHS)
        size = ops.cast(size, "int64")
        missing = ops.take(lengths, ops.searchsorted(lengths, size[None])[0]) - size
    filler = ops.zeros((missing, *values.shape[1:]), keras.backend.standardize_dtype(values.dtype))
    return ops.concatenate([values, filler], axis=0)
