"""Readers alone, the loader alone, trainings and their traces, on TensorFlow or on JAX.

Where Keras runs on JAX, tf.data reads on the CPU and Keras hands its batches to JAX. Does not
belong here: the names of the steps (`gpu_steps.py`), the rows (`gpu_data.py`).
"""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.data import Dataset
from benchmarks.gpu_data import Settings

PRECISIONS = ("float32", "mixed_float16")
PIPELINES = ("cpu-native", "native", "prebatched", "raw", "columns", "stacked")
LAYOUTS = ("columns", "stacked")
READERS = ("native", "prebatched", "raw", "raw_stacked")
TIMELINE_STEPS = 6


def reader(name: str, settings: Settings) -> dict[str, Any]:
    """Return rows/s of an epoch of one of TensorFlow's readers, which make batches on the CPU."""
    made = settings.dataset("dlrm")
    batches = _native(name, made.schema, settings, made)

    def epoch() -> int:
        return sum(int(labels.shape[0]) for _, labels in batches)

    [timing] = measure.turns({name: epoch}, repeat=settings.repeat, progress=False)
    return timing.to_dict()


def loader(layout: str, settings: Settings) -> dict[str, Any]:
    """Return rows/s of an epoch of the loader in one layout, and the seconds to its first batch."""
    from tutorlib.loader import KerasSequenceLoader

    machine = _Machine(settings)
    made = settings.dataset("dlrm")
    options = {"schema": made.schema, "batch_layout": layout, "device": settings.device}
    batches = KerasSequenceLoader(made.source, settings.batch_size, **options)
    started = time.perf_counter()
    batches.peek()
    machine.synchronise()
    first_s = time.perf_counter() - started

    def epoch() -> int:
        return sum(int(labels.shape[0]) for _, labels in batches)

    [timing] = measure.turns(
        {layout: epoch}, repeat=settings.repeat, synchronise=machine.synchronise, progress=False
    )
    again = time.perf_counter()
    batches.peek()
    machine.synchronise()
    return {
        **timing.to_dict(),
        "backend": machine.backend,
        "first_batch_s": first_s,
        "first_batch_again_s": time.perf_counter() - again,
        "stages": batches.stats(),
        "plan": batches.describe(),
        "gpu_memory": machine.memory(),
    }


def train(model: str, pipeline: str, precision: str, settings: Settings) -> dict[str, Any]:
    """Return samples/s, ms a step, loss and memory of training one model with one pipeline."""
    return _trained(model, pipeline, precision, settings)


def trace(model: str, pipeline: str, precision: str, settings: Settings) -> dict[str, Any]:
    """Return how busy the device is in training, by a profiler's trace, and keep that trace."""
    from tutorlib.profiling import read_trace

    folder = Path(settings.work) / "traces" / f"{model}-{pipeline}-{precision}"
    settings = dataclasses.replace(settings, steps=min(settings.steps, 10))
    result = _trained(model, pipeline, precision, settings, folder)
    if (result["backend"], result["device"]) == ("jax", "cpu"):
        return {**result, "traced": None, "why": "JAX's profiler shows no work of a CPU"}
    found = read_trace(folder)
    ops = [operation._asdict() for operation in found.device.top_ops(10)]
    shares = {"traced": found.device.name, "idle_share": found.device.idle_share}
    return {**result, **shares, "top_ops": ops, "timeline": timeline(found), "trace": folder.name}


def timeline(found: Any) -> dict[str, Any] | None:
    """Return the last steps of a trace, small enough for a report; None without two steps."""
    from benchmarks.timelines import as_json

    steps = min(TIMELINE_STEPS, len(found.steps) - 1)
    return as_json(found, steps) if steps > 0 else None


def _trained(
    model: str, pipeline: str, precision: str, settings: Settings, log_dir: Path | None = None
) -> dict[str, Any]:
    if pipeline == "cpu-native":
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow"}
    import keras

    from benchmarks.train_runs import MODELS as NETWORKS

    machine = _Machine(settings)
    keras.mixed_precision.set_dtype_policy(precision)
    keras.utils.set_random_seed(0)
    data = settings.dataset(model)
    networks = NETWORKS[model](data.schema, settings.widths)
    fused = pipeline in ("stacked", "raw")
    network = networks.fused() if fused else networks.by_column()
    has_lists = any(column.multi_hot for column in networks.schema)
    network.compile(
        keras.optimizers.Adam(0.001),
        "binary_crossentropy",
        # Lists of other lengths are another shape, unless the loader brings them to few.
        jit_compile=False if has_lists and pipeline not in LAYOUTS else "auto",
    )
    batches = _batches(pipeline, networks.schema, settings, data)
    settle, steps = settings.settle_steps, settings.steps
    if pipeline in LAYOUTS:
        steps = min(steps, len(batches) - settle)
    started = time.perf_counter()
    network.fit(batches, steps_per_epoch=1, verbose=0)
    machine.synchronise()
    first_s = time.perf_counter() - started
    network.fit(batches, steps_per_epoch=settings.warm_up_steps, verbose=0)
    machine.synchronise()
    clock: list[float] = []

    def start(batch: int, logs: Any = None) -> None:
        """Start the clock when the readers' buffers are full, and all so far is done."""
        if batch == settle - 1:
            machine.synchronise()
            clock.append(time.perf_counter())

    callbacks = machine.start_profiler(log_dir, settle + 1, settle + steps)
    callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=start))
    history = network.fit(
        batches, steps_per_epoch=settle + steps, callbacks=callbacks, verbose=0
    ).history
    machine.synchronise()
    elapsed_s = time.perf_counter() - clock[0]
    machine.stop_profiler(log_dir)
    return {
        "model": model,
        "pipeline": pipeline,
        "precision": precision,
        "backend": machine.backend,
        "device": "cpu" if pipeline == "cpu-native" else settings.device,
        "batch_size": settings.batch_size,
        "steps": steps,
        "samples_per_s": steps * settings.batch_size / elapsed_s,
        "step_ms": 1e3 * elapsed_s / steps,
        "first_step_s": first_s,
        "loss": history["loss"][0],
        "parameters": network.count_params(),
        "jit_compile": bool(network.jit_compile),
        "tf32": machine.tf32(),
        "gpu_memory": machine.memory(),
    }


def _batches(pipeline: str, schema: Any, settings: Settings, data: Dataset) -> Any:
    """Return full batches without end, or a loader."""
    from tutorlib.loader import KerasSequenceLoader

    size = settings.batch_size
    if pipeline in LAYOUTS:
        return KerasSequenceLoader(
            data.source, size, schema=schema, batch_layout=pipeline, drop_last=True,
            device=settings.device, bucket_lists=True,
        )  # fmt: skip
    names = {"cpu-native": "native", "raw": "raw_stacked"}
    batches = _native(names.get(pipeline, pipeline), schema, settings, data)
    whole = settings.slow_rows if names.get(pipeline, pipeline) == "native" else data.rows
    return batches.take(min(whole, data.rows) // size).repeat().prefetch(2)  # the rest is smaller


def _native(name: str, schema: Any, settings: Settings, data: Dataset) -> Any:
    """Return the `tf.data.Dataset` of a reader, an epoch of it."""
    from tutorlib import tfrecords

    size = settings.batch_size
    if name == "native":
        return tfrecords.native_dataset(data.examples(_slow(settings, data)), size, schema)
    if name == "prebatched":
        return tfrecords.prebatched_dataset(data.prebatched(size), schema)
    if name == "raw":
        return tfrecords.raw_batches(data.raw("columns", size), schema)
    return tfrecords.raw_stacked(data.raw("stacked", size), size, schema, shuffle=False)


def _slow(settings: Settings, data: Dataset) -> int:
    return min(settings.slow_rows, data.rows)


class _Machine:
    """What is asked of Keras's backend: to have done its work, its memory, a trace.

    Args:
        settings: on a GPU, TensorFlow gives a part of its memory to the loader.
    """

    def __init__(self, settings: Settings) -> None:
        import keras

        from tutorlib.device import limit_tensorflow_memory

        self.backend = keras.backend.backend()
        if self.backend == "tensorflow":
            limit_tensorflow_memory()

    def synchronise(self) -> None:
        """Wait until all that was asked for is done."""
        if self.backend == "tensorflow":
            import tensorflow as tf

            tf.test.experimental.sync_devices()
        else:
            import jax

            jax.block_until_ready(jax.live_arrays())

    def tf32(self) -> bool | str:
        """Return whether float32 is multiplied as TF32, or what JAX calls its precision."""
        if self.backend == "tensorflow":
            import tensorflow as tf

            return tf.config.experimental.tensor_float_32_execution_enabled()
        import jax

        return str(jax.config.jax_default_matmul_precision or "default")

    def memory(self) -> dict[str, Any] | None:
        """Return the backend's bytes on the GPU, now and at most, and those of the whole device."""
        if self.backend == "tensorflow":
            import tensorflow as tf

            if not tf.config.list_logical_devices("GPU"):
                return None
            own = tf.config.experimental.get_memory_info("GPU:0")
        else:
            import jax

            if jax.default_backend() != "gpu":
                return None
            stats = jax.devices()[0].memory_stats()
            own = {"current": stats["bytes_in_use"], "peak": stats["peak_bytes_in_use"]}
        import cupy

        free, total = cupy.cuda.Device(0).mem_info
        return {self.backend: own, "used": total - free, "total": total}

    def start_profiler(self, log_dir: Path | None, first: int, last: int) -> list[Any]:
        """Start a trace into a folder, or have it started; return callbacks for `fit`."""
        if log_dir is None:
            return []
        if self.backend == "tensorflow":
            from tutorlib.profiling import ProfileSteps

            return [ProfileSteps(log_dir, first, last)]
        import jax

        jax.profiler.start_trace(str(log_dir))
        return []

    def stop_profiler(self, log_dir: Path | None) -> None:
        """End the trace."""
        if log_dir is not None and self.backend == "jax":
            import jax

            jax.profiler.stop_trace()
