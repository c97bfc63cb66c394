"""Readers alone, the loader alone, trainings and their traces, on TensorFlow or on JAX.

Where Keras runs on JAX, tf.data reads on the CPU and Keras hands its batches to JAX. Does not
belong here: the names of the steps (`gpu_steps.py`), the rows (`gpu_data.py`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
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
SLOW = ("cpu-native", "native")  # read rows one by one, so that a step takes a second
SLOW_REPEAT = 2
TIMELINE_STEPS = 6
VALID_BATCHES = 4


def reader(name: str, settings: Settings) -> dict[str, Any]:
    """Return rows/s of an epoch of one of TensorFlow's readers, which make batches on the CPU.

    Where rows are read one by one, the cores are kept awake, as they are beside a training.
    """
    from tutorlib.profiling import cores_awake

    made = settings.dataset("dlrm")
    batches = _native(name, made.schema, settings, made)
    one_by_one = name in SLOW

    def epoch() -> int:
        with cores_awake() if one_by_one else contextlib.nullcontext():
            return sum(int(labels.shape[0]) for _, labels in batches)

    repeat = min(SLOW_REPEAT, settings.repeat) if one_by_one else settings.repeat
    [timing] = measure.turns({name: epoch}, repeat=repeat, progress=False)
    return timing.to_dict()


def loader(layout: str, settings: Settings) -> dict[str, Any]:
    """Return rows/s of an epoch of the loader in one layout, and the seconds to its first batch."""
    from tutorlib.loader import KerasSequenceLoader

    machine = _Machine(settings)
    made = settings.dataset("dlrm")
    options = {"schema": made.schema, "batch_layout": layout, "device": settings.device}
    batches = KerasSequenceLoader(made.source, settings.batch_size, **options)
    machine.watch_loaders()
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
    """Return samples/s, ms a step, losses, memory and idle share of one model with one pipeline.

    The idle share is of a GPU, by a short trace after all else; None without a GPU's events, and
    where rows are read one by one: a trace has events for each, and takes four seconds a step.
    """
    training = _Training(model, pipeline, precision, settings)
    result = {**training.facts(), **training.measured(), "idle_share": None}
    if pipeline in SLOW or not training.can_be_traced:
        return result
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = training.traced(Path(folder), settings.traced_steps)
    except (ValueError, OSError, RuntimeError) as error:  # what was measured holds all the same
        return {**result, "untraced": f"{type(error).__name__}: {error}"}
    return {**result, "idle_share": idle_share(found) if found.on_gpu else None}


def trace(model: str, pipeline: str, precision: str, settings: Settings) -> dict[str, Any]:
    """Return how busy the device is in training, by a profiler's trace, and keep that trace.

    Raises:
        RuntimeError: if a GPU trains, and the trace has no events of it.
    """
    training = _Training(model, pipeline, precision, settings)
    if not training.can_be_traced:
        return {**training.facts(), "traced": None, "why": "JAX's profiler shows no work of a CPU"}
    training.fit(1 + settings.slow_settle_steps)
    folder = Path(settings.work) / "traces" / f"{model}-{pipeline}-{precision}"
    found = training.traced(folder, settings.traced_steps)
    if training.device == "gpu" and not found.on_gpu:
        raise RuntimeError(
            f"{found.path} has no events of the GPU: the profiler could not load CUPTI, or was not "
            "allowed to use it (TF_CPP_MAX_VLOG_LEVEL=1 says which)"
        )
    ops = [operation._asdict() for operation in found.device.top_ops(10)]
    shares = {"traced": found.device.name, "idle_share": idle_share(found)}
    shares["waiting_share"] = found.wait_share
    kept = {"top_ops": ops, "timeline": timeline(found), "trace": folder.name}
    return {**training.facts(), **shares, **kept}


def idle_share(found: Any) -> float:
    """Return the share of the last steps of a trace in which its device did nothing.

    Not of the first ones: while the profiler starts, readers fill their buffers.
    """
    spans = list(found.steps.values())[-TIMELINE_STEPS:]
    if not spans:
        return found.device.idle_share
    start, stop = spans[0][0], spans[-1][1]
    return found.device.idle.within(start, stop).total_ms / (stop - start)


def timeline(found: Any) -> dict[str, Any] | None:
    """Return the last steps of a trace, small enough for a report; None without two steps."""
    from benchmarks.timelines import as_json

    steps = min(TIMELINE_STEPS, len(found.steps) - 1)
    return {"steps": steps, **as_json(found, steps)} if steps > 0 else None


class _Training:
    """A model on the batches of one pipeline, compiled and not trained yet.

    Args:
        model: "dlrm", "movielens" or "wide_and_deep".
        pipeline: one of `PIPELINES`.
        precision: Keras's policy.
        settings: how much, and where.
    """

    def __init__(self, model: str, pipeline: str, precision: str, settings: Settings) -> None:
        self.of = {"model": model, "pipeline": pipeline, "precision": precision}
        self.pipeline, self.precision, self.settings = pipeline, precision, settings
        self.device = "cpu" if pipeline == "cpu-native" else settings.device
        if pipeline == "cpu-native":
            os.environ |= {"CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow"}
        import keras

        from benchmarks.train_runs import MODELS as NETWORKS

        self.machine = _Machine(settings)
        keras.mixed_precision.set_dtype_policy(precision)
        keras.utils.set_random_seed(0)
        self.data = settings.dataset(model)
        networks = NETWORKS[model](self.data.schema, settings.widths)
        self.schema = networks.schema
        self.layout = "stacked" if pipeline in ("stacked", "raw") else "columns"
        self.network = networks.fused() if self.layout == "stacked" else networks.by_column()
        has_lists = any(column.multi_hot for column in self.schema)
        self.network.compile(
            keras.optimizers.Adam(0.001),
            "binary_crossentropy",
            # Lists of other lengths are another shape, unless the loader brings them to few.
            jit_compile=False if has_lists and pipeline not in LAYOUTS else "auto",
        )
        self.batches = _batches(pipeline, self.schema, settings, self.data)
        slow = pipeline in SLOW
        self.settle = settings.slow_settle_steps if slow else settings.settle_steps
        if pipeline in LAYOUTS:
            self.machine.watch_loaders()

    def fit(self, steps: int, *callbacks: Any) -> float:
        """Train some steps from the begin of an epoch, wait for them, and return their loss."""
        options = {"steps_per_epoch": steps, "callbacks": list(callbacks), "verbose": 0}
        history = self.network.fit(self.batches, **options).history
        self.machine.synchronise()
        return history["loss"][0]

    def facts(self) -> dict[str, Any]:
        """Return what is trained, where and how."""
        on_gpu_in_float32 = self.device == "gpu" and self.precision == "float32"
        return {
            **self.of,
            "backend": self.machine.backend,
            "device": self.device,
            "batch_size": self.settings.batch_size,
            "widths": self.settings.widths,
            "parameters": self.network.count_params(),
            "jit_compile": bool(self.network.jit_compile),
            "tf32": self.machine.tf32() if on_gpu_in_float32 else None,
        }

    def measured(self) -> dict[str, Any]:
        """Train; return how fast, the losses, and the memory that it took.

        `valid_loss` is after `Settings.compared_steps` steps, whatever the pipeline; `loss` is of
        the steps that are timed, which are others in each.
        """
        import keras

        slow, settings = self.pipeline in SLOW, self.settings
        steps = self._at_most(settings.slow_steps if slow else settings.steps)
        started = time.perf_counter()
        self.fit(1)
        first_s = time.perf_counter() - started
        self.fit(self.settle if slow else settings.compared_steps - 1)
        valid_loss = None if slow else self._valid_loss()
        clock: list[float] = []

        def start(batch: int, logs: Any = None) -> None:
            """Start the clock when the readers' buffers are full, and all so far is done."""
            if batch == self.settle - 1:
                self.machine.synchronise()
                clock.append(time.perf_counter())

        watch = keras.callbacks.LambdaCallback(on_train_batch_end=start)
        loss = self.fit(self.settle + steps, watch)
        elapsed_s = time.perf_counter() - clock[0]
        memory = self.machine.memory()
        return {
            "steps": steps,
            "samples_per_s": steps * settings.batch_size / elapsed_s,
            "step_ms": 1e3 * elapsed_s / steps,
            "first_step_s": first_s,
            "loss": loss,
            "valid_loss": self._valid_loss() if slow else valid_loss,
            "compared_steps": settings.compared_steps,
            "gpu_memory": memory,
        }

    @property
    def can_be_traced(self) -> bool:
        """Whether a trace says anything: JAX's profiler shows no work of a CPU."""
        return (self.machine.backend, self.device) != ("jax", "cpu")

    def traced(self, folder: Path, steps: int) -> Any:
        """Train some steps under the profiler and return the `Trace`."""
        from tutorlib.profiling import read_trace

        last = self.settle + self._at_most(steps)
        self.fit(last, *self.machine.start_profiler(folder, self.settle + 1, last))
        self.machine.stop_profiler()
        return read_trace(folder)

    def _at_most(self, steps: int) -> int:
        """Return no more steps than an epoch of a loader has after those in which it settles."""
        return min(steps, len(self.batches) - self.settle) if self.pipeline in LAYOUTS else steps

    def _valid_loss(self) -> float:
        """Return the loss on a few batches for validation, the same ones for every pipeline."""
        from tutorlib.loader import KerasSequenceLoader

        size = self.settings.batch_size
        batches = KerasSequenceLoader(
            self.data.valid, size, schema=self.schema, batch_layout=self.layout, shuffle=False,
            limit_rows=VALID_BATCHES * size, bucket_lists=True,
        )  # fmt: skip
        return float(self.network.evaluate(batches, verbose=0))


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

        from tutorlib.memory import limit_tensorflow_memory

        self.backend = keras.backend.backend()
        self._device, self._watched = settings.device, False
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

    def watch_loaders(self) -> None:
        """Count from now on what loaders take of the GPU; the first one has been made."""
        if self._device == "gpu":
            import rmm.statistics

            rmm.statistics.enable_statistics()  # around the resource that the loader has chosen
            self._watched = True

    def memory(self) -> dict[str, Any] | None:
        """Return {"tensorflow" or "jax" and "rmm", the loader: {"current", "peak"}} in bytes.

        What their arrays take on the GPU; what they and CUDA hold in reserve is not in it.
        """
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
        found = {self.backend: own}
        if self._watched:
            import rmm.statistics

            loaders = rmm.statistics.get_statistics()
            found["rmm"] = {"current": loaders.current_bytes, "peak": loaders.peak_bytes}
        return found

    def start_profiler(self, log_dir: Path, first: int, last: int) -> list[Any]:
        """Start a trace into a folder, or have it started; return callbacks for `fit`."""
        if self.backend == "tensorflow":
            from tutorlib.profiling import ProfileSteps

            return [ProfileSteps(log_dir, first, last)]
        import jax

        jax.profiler.start_trace(str(log_dir))
        return []

    def stop_profiler(self) -> None:
        """End the trace."""
        if self.backend == "jax":
            import jax

            jax.profiler.stop_trace()
