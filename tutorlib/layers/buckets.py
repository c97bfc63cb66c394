"""Buckets: batches with lists of ids brought to few different shapes, whatever they come from.

The loader does it by itself where `bucket_lists=True`. Does not belong here: which lengths
(`lengths.py`), the layers, which ignore values behind the last row's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from tutorlib.loader.list_lengths import LENGTHS, bucket_length


def bucketed(inputs: Any, *others: Any) -> Any:
    """Return a batch with every `g__values` padded to a `bucket_length`.

    For training under XLA or on JAX, which compile anew for every shape: map it over batches that
    come from elsewhere, before the compiled step. Every array is copied; a `KerasSequenceLoader`
    with `bucket_lists=True` gives the same without a copy.

    The batch's last value is repeated, for any other would be an id that the batch may not hold,
    and `RowSparseAdam` moves each row that a batch names. The layers ignore what stands behind the
    values of the last row.

    Args:
        inputs: dict of tensors or arrays, as the loader gives it.
        *others: labels and weights, which are passed through.

    Returns:
        The dict, or (dict, *others).

    Raises:
        ValueError: if `inputs` is no dict.

    Example:
        >>> batch = {"g__values": np.array([[3], [1]]), "g__nnzs": np.array([[2]])}
        >>> bucketed(batch)["g__values"].shape
        (64, 1)
        >>> dataset = parsed_batches("data/records").map(bucketed)  # doctest: +SKIP
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
        missing = [[0, bucket_length(len(values)) - len(values)], *[[0, 0]] * (values.ndim - 1)]
        return np.pad(values, missing, mode="edge" if len(values) else "constant")
    size = ops.shape(values)[0]
    if isinstance(size, int):
        missing = bucket_length(size) - size
    else:  # in tf.data, where the length is a tensor
        lengths = ops.convert_to_tensor(LENGTHS)
        size = ops.cast(size, "int64")
        missing = ops.take(lengths, ops.searchsorted(lengths, size[None])[0]) - size
    dtype = keras.backend.standardize_dtype(values.dtype)
    last = ops.sum(values[-1:], axis=0, keepdims=True)  # 0 where there is no value
    return ops.concatenate([values, ops.repeat(ops.cast(last, dtype), missing, axis=0)], axis=0)
