"""What each Keras backend does in its own way: tensors over our memory, integers, processes.

Only JAX tells Keras of other processes; on other backends, each process is one of its own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

Tensor = Any  # of TensorFlow, JAX or PyTorch, which have no type in common
# (inputs, labels) or (inputs, labels, weights): tensors, dicts of them, None for no labels.
Batch = tuple[Any, ...]


def tensor_maker() -> Callable[[np.ndarray], Tensor]:
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


def tensorflow_maker(**options: int) -> Callable[[Any], Tensor]:
    """Return a function that imports an array by DLPack; TensorFlow takes no empty ones.

    Args:
        options: of `__dlpack__`, such as the stream of CUDA of an array of CuPy.
    """
    from tensorflow.experimental import dlpack

    def make(array: Any) -> Tensor:  # an array of NumPy or CuPy
        if not array.size:
            return keras.ops.convert_to_tensor(np.empty(array.shape, array.dtype))
        return dlpack.from_dlpack(array.__dlpack__(**options))

    return make


def unstacking_maker(
    make: Callable[[np.ndarray], Tensor],
) -> Callable[[np.ndarray], Sequence[Tensor]]:
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

    def to_tensorflow(array: np.ndarray) -> Sequence[Tensor]:
        # TensorFlow's Unpack shares the memory of parts that are all aligned; it copies others.
        if len(array) == 1 or array.nbytes % (64 * len(array)) or not array.flags.c_contiguous:
            return list(map(make, array))
        with tf.device("CPU:0"):  # else it would copy all parts to a GPU that TensorFlow sees
            return tf.raw_ops.Unpack(value=make(array), num=len(array))

    return to_tensorflow


# ---- batches that JAX cuts on a GPU --------------------------------------------------------------


def cuts_batches(*, on_gpu: bool) -> bool:
    """Return whether JAX is given many batches at once, and cuts each of them out on the GPU.

    To take a column costs JAX 70 us there (H200), that of many batches as much as that of one. With
    `keras.distribution`, Keras splits arrays of the host over the devices itself.

    Args:
        on_gpu: whether batches are made on the GPU, not on the host.
    """
    if keras.backend.backend() != "jax":
        return False
    import jax

    return on_gpu or (jax.default_backend() != "cpu" and keras.distribution.distribution() is None)


def device_arrays(arrays: list[np.ndarray]) -> list[Tensor]:
    """Return arrays of the host as arrays of JAX on its first device; the copies go on for a while.

    JAX holds the memory of the host meanwhile.
    """
    import jax

    return jax.device_put(arrays)


def cut_batch(arrays: Sequence[Tensor], number: int, rows: int) -> list[Tensor]:
    """Return one of the batches: the rows [rows, ...] of each field, by one compiled call.

    Args:
        arrays: [batches, fields, at least `rows`, ...], of which each shape is compiled once.
        number: of the batch, from 0.
        rows: rows of the batch.
    """
    return _compiled_cut()(arrays, _on_device(number), rows)


@functools.cache
def _on_device(number: int) -> Tensor:
    import jax

    with jax.ensure_compile_time_eval():  # kept, also if a function is traced
        return jax.device_put(np.int32(number))  # else each call would copy it


@functools.cache
def _compiled_cut() -> Callable[[Sequence[Tensor], Tensor, int], list[Tensor]]:
    import jax

    def cut(arrays: Sequence[Tensor], number: Tensor, rows: int) -> list[Tensor]:
        fields = []
        for array in arrays:
            batch = jax.lax.dynamic_index_in_dim(array, number, keepdims=False)
            fields += [batch[field, :rows] for field in range(len(batch))]
        return fields

    return jax.jit(cut, static_argnums=2)


# ---- integers, and functions that are traced -----------------------------------------------------


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


# ---- processes that `keras.distribution` has joined ----------------------------------------------


def process_count() -> int:
    """Return the number of processes that are joined; 1 for a process of its own."""
    if keras.backend.backend() != "jax":
        return 1
    import jax

    # Asking JAX for its processes starts its devices; then no other process could join.
    return jax.process_count() if jax.distributed.is_initialized() else 1


def process_index() -> int:
    """Return the number of this process, from 0."""
    if process_count() == 1:
        return 0
    import jax

    return jax.process_index()


def data_share() -> tuple[int, int] | tuple[None, None]:
    """Return (number of shares of the data, the share of this process); None for one process.

    Each process has a share of its own, but those that hold one replica of a model together, under
    `keras.distribution.ModelParallel`, need the same rows.
    """
    if process_count() == 1:
        return None, None
    distribution = keras.distribution.distribution()
    if distribution is None:
        return process_count(), process_index()
    shares = min(distribution.num_model_replicas, distribution.num_processes)
    return shares, distribution.data_shard_id


def batch_parts() -> int:
    """Return into how many equal parts the devices of this process split its batch, at least 1."""
    distribution = keras.distribution.distribution()
    if distribution is None or keras.backend.backend() != "jax":
        return 1
    return max(1, distribution.num_model_replicas // distribution.num_processes)
