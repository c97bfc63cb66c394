"""What `gpu-host` measures, a step at a time, each in a process of its own.

A step is a function of `Settings` that returns JSON values. A process of its own starts with an
empty GPU, and a step that brings its process down takes no other with it.
Does not belong here: the order of the steps, their files, the rest of a run (`gpu_host.py`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.data import Dataset, criteo_shape, movielens_shape

ROOT = Path(__file__).resolve().parent.parent
PRECISIONS = ("float32", "mixed_float16")
MODELS = ("dlrm", "movielens", "wide_and_deep")
PIPELINES = ("cpu-native", "native", "prebatched", "columns", "stacked")
LAYOUTS = ("columns", "stacked")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much is measured, and where.

    Args:
        device: where batches of the loader are made, "gpu" or "cpu".
        rows: rows of each data set.
        slow_rows: rows of it as TFRecord with an example a row.
        batch_size: rows of a batch.
        warm_up_steps: steps before the clock starts: XLA compiles in them.
        steps: steps that are timed, at most.
        repeat: times that a reader goes through an epoch.
        widths: "published" or "scaled" widths of the models.
        data: folder of the data sets.
        work: folder for traces.
        recon: the questions to the host, a script; None leaves them out.
    """

    device: str
    rows: int = 8_388_608
    slow_rows: int = 524_288
    batch_size: int = 65_536
    warm_up_steps: int = 10
    steps: int = 60
    repeat: int = 5
    widths: str = "published"
    data: str = str(ROOT / "build" / "benchmarks")
    work: str = str(ROOT / "build" / "gpu-host")
    recon: str | None = None

    @classmethod
    def tiny(cls, **changes: Any) -> Settings:
        """Return settings of which every step takes seconds on a CPU: a rehearsal."""
        small = {"rows": 8_192, "slow_rows": 4_096, "batch_size": 1_024, "warm_up_steps": 1}
        small |= {"device": "cpu", "steps": 3, "repeat": 1, "widths": "scaled"}
        return cls(**small | changes)

    def dataset(self, model: str) -> Dataset:
        """Return the data that a model trains on."""
        if model == "wide_and_deep":
            from benchmarks.train_runs import nhot_shape

            return nhot_shape(Path(self.data), self.rows)
        shape = movielens_shape if model == "movielens" else criteo_shape
        return shape(Path(self.data), self.rows)


# ---- what there is -------------------------------------------------------------------------------


def environment(settings: Settings) -> dict[str, Any]:
    """Return hardware, versions, and what the GPU's part of the work would miss."""
    import tensorflow as tf

    from tutorlib.device import missing_for_gpu

    gpus = tf.config.list_physical_devices("GPU")
    return {
        "hardware": measure.hardware(),
        "versions": measure.versions(),
        "tensorflow_gpus": [gpu.name for gpu in gpus],
        "tensorflow_build": {k: str(v) for k, v in tf.sysconfig.get_build_info().items()},
        "missing_for_gpu": missing_for_gpu(),
        "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("TF_", "XLA_"))},
    }


def data(settings: Settings) -> dict[str, Any]:
    """Make the rows in every format that is measured, and return their bytes."""
    facts = {}
    for model in MODELS:
        made = settings.dataset(model)
        made.examples(min(settings.slow_rows, settings.rows))
        made.prebatched(settings.batch_size)
        facts[model] = made.facts()
    return facts


def recon(question: str, settings: Settings) -> dict[str, Any]:
    """Return what the host answers to one question of the script."""
    command = [sys.executable, str(settings.recon), "--one", question]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=settings.work)
    answers = re.findall(r"^ANSWER (.*)$", done.stdout, re.MULTILINE)
    if not answers:
        raise RuntimeError(f"no answer, exit code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(answers[0])


def gpu_tests(settings: Settings) -> dict[str, Any]:
    """Run the tests that are marked `gpu`; without a GPU, see that they are skipped."""
    files = sorted(str(path) for path in (ROOT / "tests").glob("test_gpu_*.py"))
    options = [
        "-o",
        "addopts=",
        "-q",
        "--noconftest",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-m",
        "gpu",
    ]
    command = [sys.executable, "-m", "pytest", *options, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    lines = done.stdout.strip().splitlines()
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", lines[-1] if lines else "")}
    if done.returncode not in (0, 1) or not counts:
        said = done.stdout[-2000:] + done.stderr[-2000:]
        raise RuntimeError(f"pytest: exit code {done.returncode}: {said}")
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"counts": counts, "failed": failed, "output": done.stdout[-8000:]}


# ---- the loader alone ----------------------------------------------------------------------------


def loader(layout: str, settings: Settings) -> dict[str, Any]:
    """Return rows/s of an epoch of the loader in one layout, and the seconds to its first batch."""
    import tensorflow as tf

    from tutorlib.loader import KerasSequenceLoader

    _share_the_gpu()
    made = settings.dataset("dlrm")
    options = {"schema": made.schema, "batch_layout": layout, "device": settings.device}
    batches = KerasSequenceLoader(made.source, settings.batch_size, **options)
    synchronise = tf.test.experimental.sync_devices
    started = time.perf_counter()
    batches.peek()
    synchronise()
    first_s = time.perf_counter() - started

    def epoch() -> int:
        return sum(int(labels.shape[0]) for _, labels in batches)

    [timing] = measure.turns(
        {layout: epoch}, repeat=settings.repeat, synchronise=synchronise, progress=False
    )
    again = time.perf_counter()
    batches.peek()
    synchronise()
    return {
        **timing.to_dict(),
        "first_batch_s": first_s,
        "first_batch_again_s": time.perf_counter() - again,
        "stages": batches.stats(),
        "plan": batches.describe(),
        "gpu_memory": _gpu_memory(),
    }


# ---- training ------------------------------------------------------------------------------------


def train(model: str, pipeline: str, precision: str, settings: Settings) -> dict[str, Any]:
    """Return samples/s, ms a step, loss and memory of training one model with one pipeline."""
    return _trained(model, pipeline, precision, settings)


def trace(model: str, pipeline: str, precision: str, settings: Settings) -> dict[str, Any]:
    """Return how busy the device is in training, by a profiler's trace, and keep that trace."""
    import tensorflow as tf

    from tutorlib.profiling import read_trace

    folder = Path(settings.work) / "traces" / f"{model}-{pipeline}-{precision}"
    steps = min(settings.steps, 10)

    def profiled(fit: Callable[[], None]) -> None:
        tf.profiler.experimental.start(str(folder))
        fit()
        tf.profiler.experimental.stop()

    result = _trained(
        model, pipeline, precision, dataclasses.replace(settings, steps=steps), profiled
    )
    device = read_trace(folder).device
    ops = [operation._asdict() for operation in device.top_ops(10)]
    shares = {"traced": device.name, "idle_share": device.idle_share}
    return {**result, **shares, "top_ops": ops, "trace": str(folder.relative_to(settings.work))}


def _trained(
    model: str,
    pipeline: str,
    precision: str,
    settings: Settings,
    around: Callable[[Callable[[], None]], None] = lambda fit: fit(),
) -> dict[str, Any]:
    if pipeline == "cpu-native":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import keras
    import tensorflow as tf

    from benchmarks.train_runs import MODELS as NETWORKS

    _share_the_gpu()
    keras.mixed_precision.set_dtype_policy(precision)
    keras.utils.set_random_seed(0)
    networks = NETWORKS[model](settings.dataset(model).schema, settings.widths)
    network = networks.fused() if pipeline == "stacked" else networks.by_column()
    has_lists = any(column.multi_hot for column in networks.schema)
    network.compile(
        keras.optimizers.Adam(0.001),
        "binary_crossentropy",
        jit_compile=False if has_lists else "auto",  # lists differ in length, batch by batch
    )
    batches, per_epoch = _batches(pipeline, networks.schema, settings, settings.dataset(model))
    steps = min(settings.steps, per_epoch)
    synchronise = tf.test.experimental.sync_devices
    started = time.perf_counter()
    network.fit(batches, steps_per_epoch=1, verbose=0)
    synchronise()
    first_s = time.perf_counter() - started
    network.fit(batches, steps_per_epoch=settings.warm_up_steps, verbose=0)
    synchronise()
    seconds, losses = [], []

    def fit() -> None:
        begun = time.perf_counter()
        history = network.fit(batches, steps_per_epoch=steps, verbose=0).history
        synchronise()
        seconds.append(time.perf_counter() - begun)
        losses.append(history["loss"][0])

    around(fit)
    return {
        "model": model,
        "pipeline": pipeline,
        "precision": precision,
        "device": "cpu" if pipeline == "cpu-native" else settings.device,
        "batch_size": settings.batch_size,
        "steps": steps,
        "samples_per_s": steps * settings.batch_size / seconds[0],
        "step_ms": 1e3 * seconds[0] / steps,
        "first_step_s": first_s,
        "loss": losses[0],
        "parameters": network.count_params(),
        "jit_compile": bool(network.jit_compile),
        "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "gpu_memory": _gpu_memory(),
    }


def _batches(pipeline: str, schema: Any, settings: Settings, data: Dataset) -> tuple[Any, int]:
    """Return full batches without end, or with that many an epoch."""
    from tutorlib.loader import KerasSequenceLoader
    from tutorlib.tfrecords import native_dataset, prebatched_dataset

    size = settings.batch_size
    if pipeline == "prebatched":
        batches = prebatched_dataset(data.prebatched(size), schema).take(settings.rows // size)
        return batches.repeat().prefetch(2), settings.steps  # the last one may be smaller: left out
    if pipeline in ("native", "cpu-native"):
        examples = data.examples(min(settings.slow_rows, settings.rows))
        return native_dataset(examples, size, schema, drop_last=True).repeat(), settings.steps
    made = KerasSequenceLoader(
        data.source, size, schema=schema, batch_layout=_layout(pipeline), drop_last=True,
        device=settings.device,
    )  # fmt: skip
    return made, len(made)


def _layout(pipeline: str) -> str:
    return pipeline if pipeline in LAYOUTS else "columns"


def _share_the_gpu() -> None:
    from tutorlib.device import limit_tensorflow_memory

    limit_tensorflow_memory()


def _gpu_memory() -> dict[str, int] | None:
    """Return TensorFlow's bytes on the GPU, now and at most, and those of the whole device."""
    import tensorflow as tf

    if not tf.config.list_logical_devices("GPU"):
        return None
    import cupy

    free, total = cupy.cuda.Device(0).mem_info
    tensorflow = tf.config.experimental.get_memory_info("GPU:0")
    return {"tensorflow": tensorflow, "used": total - free, "total": total}


# ---- a step by its name --------------------------------------------------------------------------

QUESTIONS = ("tensorflow_sees_gpu", "int32_arguments", "dlpack_alignment", "parquet_read")
QUESTIONS += ("shuffle", "dlrm_step")


def names(settings: Settings) -> Iterator[str]:
    """Yield the names of all steps, those first whose figures matter most.

    Example:
        >>> list(names(Settings("cpu")))[:3]
        ['environment', 'data', 'tests']
    """
    yield "environment"
    if settings.recon:
        yield from (f"recon-{question}" for question in QUESTIONS)
    yield from ("data", "tests")
    yield from (f"loader-{layout}" for layout in LAYOUTS)
    for model in MODELS:
        for precision in PRECISIONS:
            for pipeline in PIPELINES:
                if pipeline != "cpu-native" or precision == "float32":
                    yield f"train-{model}-{pipeline}-{precision}"
    for pipeline in ("native", "stacked"):
        yield f"trace-dlrm-{pipeline}-mixed_float16"


def step(name: str) -> Callable[[Settings], dict[str, Any]]:
    """Return what a step does.

    Raises:
        ValueError: for a name that is no step's.
    """
    kind, *words = name.split("-", 1)
    plain = {"environment": environment, "data": data, "tests": gpu_tests}
    if name in plain:
        return plain[name]
    rest = words[0] if words else ""
    if kind == "recon" and rest in QUESTIONS:
        return lambda settings: recon(rest, settings)
    if kind == "loader" and rest in LAYOUTS:
        return lambda settings: loader(rest, settings)
    found = re.fullmatch(rf"({'|'.join(MODELS)})-({'|'.join(PIPELINES)})-(\w+)", rest)
    if kind in ("train", "trace") and found and found[3] in PRECISIONS:
        measured = train if kind == "train" else trace
        return lambda settings: measured(*found.groups(), settings)
    steps = ", ".join(names(Settings("gpu", recon="-")))
    raise ValueError(f"{name!r} is no step; the steps are {steps}")


def main() -> None:
    """Do one step: its name and its settings, as JSON, are the arguments; prints what it gives."""
    name, settings = sys.argv[1], Settings(**json.loads(sys.argv[2]))
    result = step(name)(settings)
    print(f"\nRESULT {json.dumps(result)}")


if __name__ == "__main__":
    main()
