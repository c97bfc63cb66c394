"""The device that a benchmark computes on, as Keras's backend (TensorFlow or JAX) sees it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tutorlib.memory import limit_tensorflow_memory, missing_for_gpu


class Device:
    """The CPU or the first GPU: waits for it, reads its memory, traces its work.

    Make it before TensorFlow, JAX or CuPy look for a GPU: "cpu" hides all GPUs from this process,
    "gpu" limits TensorFlow to its part of the memory (`limit_tensorflow_memory`).

    Args:
        name: "cpu" or "gpu".
        loader: whether a loader will make batches on it, which needs cuDF on a GPU.
    """

    def __init__(self, name: str, *, loader: bool = True) -> None:
        if name == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        elif loader and (missing := missing_for_gpu()):
            raise SystemExit(f"benchmarks: --device gpu needs a GPU, cuDF and CuPy, but {missing}")
        import keras

        self.name, self.backend = name, keras.backend.backend()
        self._counts_loaders = False
        if name == "gpu" and not self._limit_backend():
            raise SystemExit(f"benchmarks: --device gpu, but {self.backend} finds no GPU")

    def _limit_backend(self) -> bool:
        """Give the backend its part of the GPU; return whether it sees one."""
        if self.backend == "tensorflow":
            return limit_tensorflow_memory() is not None
        import jax

        return jax.default_backend() == "gpu"

    def synchronise(self) -> None:
        """Wait until the device has finished all work."""
        if self.backend == "tensorflow":
            import tensorflow as tf

            tf.test.experimental.sync_devices()
        else:
            import jax

            jax.block_until_ready(jax.live_arrays())

    def tf32(self) -> bool | str:
        """Return whether float32 matrices are multiplied as TF32; JAX's own word for it there."""
        if self.backend == "tensorflow":
            import tensorflow as tf

            return tf.config.experimental.tensor_float_32_execution_enabled()
        import jax

        return str(jax.config.read("jax_default_matmul_precision") or "default")

    def count_loaders(self) -> None:
        """Start to count the GPU memory of loaders; call it after the first loader was made."""
        if self.name == "gpu":
            import rmm.statistics

            rmm.statistics.enable_statistics()  # wraps the memory resource that the loader chose
            self._counts_loaders = True

    def memory(self) -> dict[str, dict[str, int]] | None:
        """Return the GPU memory of all arrays of this process, in bytes; None on the CPU.

        Returns:
            {"tensorflow" or "jax": {"current", "peak"}}, and the same for "rmm", the loaders, after
            `count_loaders`. Memory that they and CUDA hold in reserve is not included.
        """
        if self.name == "cpu":
            return None
        if self.backend == "tensorflow":
            import tensorflow as tf

            own = tf.config.experimental.get_memory_info("GPU:0")
        else:
            import jax

            stats = jax.devices()[0].memory_stats()
            own = {"current": stats["bytes_in_use"], "peak": stats["peak_bytes_in_use"]}
        found = {self.backend: own}
        if self._counts_loaders:
            import rmm.statistics

            loaders = rmm.statistics.get_statistics()
            found["rmm"] = {"current": loaders.current_bytes, "peak": loaders.peak_bytes}
        return found

    @property
    def can_trace(self) -> bool:
        """Whether a trace shows work: JAX's profiler shows none of a CPU."""
        return (self.backend, self.name) != ("jax", "cpu")

    @contextlib.contextmanager
    def profiler(self, log_dir: Path, first: int, last: int) -> Iterator[list[Any]]:
        """Trace a `fit` inside the `with` block.

        Yields:
            The callbacks that `fit` needs for it.
        """
        if self.backend == "tensorflow":
            from tutorlib.diagnose import ProfileSteps

            yield [ProfileSteps(log_dir, first, last)]
        else:
            import jax

            with jax.profiler.trace(str(log_dir)):
                yield []
