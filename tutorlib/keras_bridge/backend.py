"""What each Keras backend does in its own way: tensors over our memory, integer widths, waiting."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np


def tensor_maker() -> Callable[[np.ndarray], Any]:
    """Return a function that makes a tensor of Keras's backend from a NumPy array without a copy.

    The array must start at a multiple of 64 bytes (`memory.aligned_empty`): otherwise TensorFlow's
    DLPack import aborts the process. The tensor keeps the array's memory alive.

    Raises:
        ValueError: for a backend other than TensorFlow, JAX, PyTorch and NumPy.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return _tensorflow_maker()
    if backend == "torch":
        import torch

        return lambda array: keras.ops.convert_to_tensor(torch.from_numpy(array))  # on its device
    if backend not in ("jax", "numpy"):
        raise ValueError(f"tensors of the Keras backend {backend!r} are not supported")
    return lambda array: array


def _tensorflow_maker(**options: Any) -> Callable[[Any], Any]:
    """Return a function that imports an array by DLPack; TensorFlow takes no empty ones."""
    from tensorflow.experimental import dlpack

    def make(array: Any) -> Any:
        if not array.size:
            return keras.ops.convert_to_tensor(np.empty(array.shape, array.dtype))
        return dlpack.from_dlpack(array.__dlpack__(**options))

    return make


def unstacking_maker() -> Callable[[np.ndarray], Sequence[Any]]:
    """Return a function that makes n tensors from a NumPy array [n, ...] without a copy.

    Each part `array[i]` must be contiguous and start at a multiple of 64 bytes, as for
    `tensor_maker`. If all lie one after the other, TensorFlow makes them in one call: 0.9
    microseconds each instead of 2.6, most of them without the interpreter lock.
    """
    make = tensor_maker()
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


def eager_scope() -> contextlib.AbstractContextManager[None]:
    """Return a scope in which tensors have values, even while TensorFlow traces a function."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.init_scope()


_SEES_NO_GPU = (
    "device='gpu' makes batches that {} cannot take: it sees no GPU. Install {}, or leave "
    "device='cpu'."
)


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


def min_int_dtype_of_models() -> str:
    """Return the narrowest dtype of integer inputs of models on this machine: "int32" or "int64".

    A model that casts a GPU's int64 ids to int32 would copy them to the host and back.
    """
    if keras.backend.backend() != "tensorflow":
        return "int32"
    import tensorflow as tf

    return min_int_dtype_on_gpu() if tf.config.list_physical_devices("GPU") else "int32"


def gpu_tensor_maker() -> Callable[[Any], Any]:
    """Return a function that makes a tensor of Keras's backend from a CuPy array without a copy.

    DLPack is used without stream synchronisation: all work on the array must be done
    (`MemorySpace.finish`). The tensor keeps the array's memory alive; it must not be written again
    before the backend is done with it (`DevicePool`).

    Raises:
        ValueError: for a backend that has no GPU tensors or sees no GPU.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            raise ValueError(_SEES_NO_GPU.format("TensorFlow", "tensorflow[and-cuda]"))
        return _tensorflow_maker(stream=-1)
    if backend == "torch":
        import torch

        if not torch.cuda.is_available():
            raise ValueError(_SEES_NO_GPU.format("PyTorch", "a build of PyTorch for CUDA"))
        return lambda array: keras.ops.convert_to_tensor(torch.from_dlpack(array))
    if backend == "jax":
        import jax

        if jax.default_backend() != "gpu":
            raise ValueError(_SEES_NO_GPU.format("JAX", "jax[cuda13]"))
        return jax.dlpack.from_dlpack
    raise ValueError(f"device='gpu' needs a Keras backend with a GPU, not {backend!r}")


def wait_for_gpu() -> None:
    """Wait until Keras's backend has done all work that was queued on the first GPU.

    On TensorFlow and JAX it waits for the backend's own stream, not for the whole GPU: CUDA forbids
    that while a thread records a CUDA graph, as XLA does for steps that it compiles.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with eager_scope():  # memory may be released while a function is traced
            tf.test.experimental.sync_devices()
    elif backend == "torch":
        import torch

        torch.cuda.synchronize()
    elif backend == "jax":
        _jax_mark()().block_until_ready()


@functools.cache
def _jax_mark() -> Callable[[], Any]:
    """Return a computation that JAX does after all work that is queued before it."""
    import jax

    zero = jax.device_put(np.float32(0), jax.devices()[0])
    return functools.partial(jax.jit(lambda x: x + 1), zero)
