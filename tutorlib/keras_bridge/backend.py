"""What Keras's backends do in their own ways: tensors over memory of ours, widths, waiting.

Does not belong here: how `fit` takes batches (`fit_bridge.py`), what is in one (`tensors.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np


def tensor_maker() -> Callable[[np.ndarray], Any]:
    """Return the function that makes a tensor of Keras's backend from a NumPy array, uncopied.

    The array must start at a multiple of 64 bytes (`buffers.aligned_empty`): TensorFlow's DLPack
    import stops the process otherwise. The tensor keeps the array's memory alive.

    Raises:
        ValueError: for a backend without tensors of its own making here.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from tensorflow.experimental import dlpack

        def to_tensorflow(array: np.ndarray) -> Any:
            if not array.size:
                return keras.ops.convert_to_tensor(array)
            return dlpack.from_dlpack(array.__dlpack__())

        return to_tensorflow
    if backend == "torch":
        import torch

        def to_torch(array: np.ndarray) -> Any:
            return keras.ops.convert_to_tensor(torch.from_numpy(array))  # on Keras's device

        return to_torch
    if backend in ("jax", "numpy"):
        return lambda array: array
    raise ValueError(f"no way to make tensors for the Keras backend {backend!r}")


_SEES_NO_GPU = (
    "device='gpu' makes batches that {} cannot take: it sees no GPU. Install {}, or leave "
    "device='cpu'."
)

# TensorFlow keeps int32 arguments of a function in host memory, on a GPU too: an id that is int32
# there would go to the host and back in every step. int64 stays. Other backends make no difference.
_MIN_INT_DTYPES = {"tensorflow": "int64"}


def min_int_dtype_on_gpu() -> str:
    """Return the dtype that integers of a batch have at least, if it is made on a GPU."""
    return _MIN_INT_DTYPES.get(keras.backend.backend(), "int32")


def min_int_dtype_of_models() -> str:
    """Return the dtype that integer inputs of a model have at least, here and now.

    A model that cast what it is given back to int32 would have it copied to the host and back.
    """
    if keras.backend.backend() != "tensorflow":
        return "int32"
    import tensorflow as tf

    return min_int_dtype_on_gpu() if tf.config.list_physical_devices("GPU") else "int32"


def gpu_tensor_maker() -> Callable[[Any], Any]:
    """Return the function that makes a tensor of Keras's backend from a CuPy array, uncopied.

    By DLPack, without a word to any stream: whatever makes the array must have ended
    (`MemorySpace.finish`). The tensor keeps the array, and the array its memory, which may not be
    written to again before the backend is done with it (`DevicePool`).

    Raises:
        ValueError: for a backend without tensors on a GPU, or that sees none.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf
        from tensorflow.experimental import dlpack

        if not tf.config.list_physical_devices("GPU"):
            raise ValueError(_SEES_NO_GPU.format("TensorFlow", "tensorflow[and-cuda]"))

        def to_tensorflow(array: Any) -> Any:
            if not array.size:
                return keras.ops.convert_to_tensor(array.get())
            return dlpack.from_dlpack(array.__dlpack__(stream=-1))

        return to_tensorflow
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
    """Wait until Keras's backend has done all that it was asked for on the first GPU.

    The backend's own stream is waited for, not the GPU, but for PyTorch: while a thread records a
    CUDA graph, as XLA does for steps that it compiles, CUDA lets nobody wait for the whole GPU.
    What was asked for before, by any thread, comes first there.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.init_scope():  # whoever lets go of memory may be tracing a function
            tf.test.experimental.sync_devices()
    elif backend == "torch":
        import torch

        torch.cuda.synchronize()
    elif backend == "jax":
        _jax_mark()().block_until_ready()


@functools.cache
def _jax_mark() -> Callable[[], Any]:
    """Return a computation that JAX does after all that it was asked for before."""
    import jax

    zero = jax.device_put(np.float32(0), jax.devices()[0])
    return functools.partial(jax.jit(lambda x: x + 1), zero)
