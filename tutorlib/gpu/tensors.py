"""What each Keras backend does on a GPU in its own way: tensors over its memory, waiting."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator
from typing import Any

import keras
import numpy as np

from tutorlib.keras_bridge.backend import tensorflow_maker

_SEES_NO_GPU = (
    "device='gpu' makes batches that {} cannot take: it sees no GPU. Install {}, or use "
    "device='cpu'."
)


def gpu_tensor_maker() -> Callable[[Any], Any]:
    """Return a function that makes a tensor of Keras's backend from a CuPy array without a copy.

    For TensorFlow, DLPack is used without stream synchronisation: its stream does not wait for
    CuPy's, so all work on the array must be done before the tensor is used (`batch_keeper`). The
    tensor keeps the array's memory alive; it must not be written again before the backend is done
    with it. TensorFlow and JAX refuse arrays with gaps between their rows.

    Raises:
        ValueError: for a backend other than TensorFlow and JAX, or one that sees no GPU.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            raise ValueError(_SEES_NO_GPU.format("TensorFlow", "tensorflow[and-cuda]"))
        return tensorflow_maker(stream=-1)
    if backend == "jax":
        import jax

        if jax.default_backend() != "gpu":
            raise ValueError(_SEES_NO_GPU.format("JAX", "jax[cuda12]"))
        return jax.dlpack.from_dlpack
    raise ValueError(
        f"device='gpu' makes batches for Keras on TensorFlow and JAX, not on {backend!r}. Use "
        "device='cpu'"
    )


_latest: list[Any] = []  # batches of the pass that ended last: steps may still work on them


def batch_keeper() -> Callable[[Any], None]:
    """Return a function to call with each list of batches before the first of them is used.

    It waits until CuPy has made them, and keeps them, in a list of its own, while the backend's
    steps may be working on them. Steps are queued: the backend drops a tensor before the GPU has
    read it, and a reader would then write to its memory.
    """
    keeping = _keeping()
    next(keeping)
    return keeping.send


def _keeping() -> Generator[None, Any]:
    import cupy

    held: list[Any] = []
    try:
        while True:
            held.append([*(yield)])  # the caller takes the batches out of its list
            cupy.cuda.get_current_stream().synchronize()
            if len(held) > 3:  # Keras on JAX takes a batch ahead: its step may not be queued yet
                wait_for_gpu()
                del held[:-2]
    finally:
        if sys is not None and not sys.is_finalizing():  # at the end of the program it may be None
            wait_for_gpu()
        _latest[:] = held[-2:]


def wait_for_gpu() -> None:
    """Wait until Keras's backend has done all work that was queued on the first GPU.

    It waits for the backend's own stream, not for the whole GPU: CUDA forbids that while a thread
    records a CUDA graph, as XLA does for steps that it compiles.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.init_scope():  # memory may be released while a function is traced
            tf.test.experimental.sync_devices()
    elif backend == "jax":
        import jax

        with jax.ensure_compile_time_eval():  # as above
            _jax_mark()().block_until_ready()


@functools.cache
def _jax_mark() -> Callable[[], Any]:
    """Return a computation that JAX does after all work that is queued before it."""
    import jax

    zero = jax.device_put(np.float32(0), jax.devices()[0])
    return functools.partial(jax.jit(lambda x: x + 1), zero)
