"""What each Keras backend does in its own way: tensors over our memory, integer widths."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np


def tensor_maker() -> Callable[[np.ndarray], Any]:
    """Return a function that makes a tensor of Keras's backend from a NumPy array without a copy.

    The array must start at a multiple of 64 bytes (`memory.aligned_empty`): otherwise TensorFlow's
    DLPack import aborts the process. The tensor keeps the array's memory alive.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return tensorflow_maker()
    if backend == "torch":
        import torch

        return lambda array: keras.ops.convert_to_tensor(torch.from_numpy(array))  # on its device
    return lambda array: array  # JAX takes it as it is


def tensorflow_maker(**options: Any) -> Callable[[Any], Any]:
    """Return a function that imports an array by DLPack; TensorFlow takes no empty ones."""
    from tensorflow.experimental import dlpack

    def make(array: Any) -> Any:
        if not array.size:
            return keras.ops.convert_to_tensor(np.empty(array.shape, array.dtype))
        return dlpack.from_dlpack(array.__dlpack__(**options))

    return make


def unstacking_maker(make: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Sequence[Any]]:
    """Return a function that makes n tensors from a NumPy array [n, ...] without a copy.

    Each part `array[i]` must be contiguous and start at a multiple of 64 bytes, as for
    `tensor_maker`. If all lie one after the other, TensorFlow makes them in one call: 0.9
    microseconds each instead of 2.6, most of them without the interpreter lock.

    Args:
        make: what `tensor_maker` returns.
    """
    if keras.backend.backend() != "tensorflow":
        return lambda array: list(map(make, array))
    import tensorflow as tf

    def to_tensorflow(array: np.ndarray) -> Sequence[Any]:
        # TensorFlow's Unpack shares the memory of parts that are all aligned; it copies others.
        if len(array) == 1 or array.nbytes % (64 * len(array)) or not array.flags.c_contiguous:
            return list(map(make, array))
        with tf.device("CPU:0"):  # else it would copy all parts to a GPU that TensorFlow sees
            return tf.raw_ops.Unpack(value=make(array), num=len(array))

    return to_tensorflow


def min_int_dtype_on_gpu() -> str:
    """Return the narrowest dtype of integers in batches on a GPU: "int32" or "int64".

    TensorFlow keeps int32 arguments of a function in host memory, even on a GPU: an int32 id would
    go to the host and back in every step. int64 stays on the GPU. Other backends treat both alike.
    """
    return "int64" if keras.backend.backend() == "tensorflow" else "int32"


def max_int_dtype() -> str:
    """Return the widest dtype of integers that tensors keep: JAX cuts int64 to int32 by default."""
    if keras.backend.backend() != "jax":
        return "int64"
    import jax

    return str(jax.dtypes.canonicalize_dtype("int64"))


def refuse_tracing() -> None:
    """Raise RuntimeError while TensorFlow traces a function: a batch would be a constant in it."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.inside_function():
        raise RuntimeError(
            "a tf.function takes the batches of a loader once, while it is traced, and repeats "
            "them in each call. Loop over the loader outside of it, or inside over "
            "loader.to_tf_dataset()"
        )
