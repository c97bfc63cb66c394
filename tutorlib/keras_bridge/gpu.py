"""What each Keras backend does on a GPU in its own way: tensors over its memory, waiting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tutorlib.keras_bridge.backend import eager_scope, tensorflow_maker

_SEES_NO_GPU = (
    "device='gpu' makes batches that {} cannot take: it sees no GPU. Install {}, or leave "
    "device='cpu'."
)


def gpu_tensor_maker() -> Callable[[Any], Any]:
    """Return a function that makes a tensor of Keras's backend from a CuPy array without a copy.

    DLPack is used without stream synchronisation: all work on the array must be done
    (readers synchronize their stream when they have gathered a column). The tensor keeps the array's
    memory alive; it must not be written again before the backend is done with it.

    Raises:
        ValueError: for a backend that has no GPU tensors or sees no GPU.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            raise ValueError(_SEES_NO_GPU.format("TensorFlow", "tensorflow[and-cuda]"))
        return tensorflow_maker(stream=-1)
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
