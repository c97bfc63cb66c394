"""The steps of `gpu-host`, in order of value: each a command, and how to read its output."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import train
from benchmarks.machine import ROOT

BACKENDS = ("tensorflow", "jax")
TESTS = {
    "batches": "tests/loader/test_gpu_batches.py",
    "callbacks": "tests/callbacks/test_callbacks.py",
    "device": "tests/memory/test_limits.py",
    "ops": "tests/ops/test_on_gpu.py",
    "parquet": "tests/parquet/test_gpu_decoder.py",
}
TEST_S = 100  # seconds after which a test writes where it is
LESSONS = {path.stem[:2]: path.stem for path in sorted(ROOT.glob("notebooks/0[2-6]_*.ipynb"))}

# The parts of benchmarks that run, as {step: options}; `train` is added below.
PARTS = {
    "loader-alone": "--only loader first",
    "loader-tfdata": "--only tfdata",
    "loader-raw": "--only raw",
    "loader-fit": "--only fit",
    "loader-movielens": "--only movielens",
    "layers-fused": "--only fused",
    "layers-bag": "--only bag",
    "layers-adam": "--only adam",
    "memory": "",
}
LARGE = "--rows 8388608 --slow-rows 524288"
SMALL = "--rows 8192 --slow-rows 4096 --batch-size 1024 --repeat 1"
SIZES = {
    "gpu": {
        "loader": LARGE,
        "train": f"{LARGE} --batch-size 65536 --repeat 3 --widths published --optimizer adam",
        "layers": "",
        "memory": "--sizes 1 5 20 --repeat 1",
        "criteo": "--rows 1400000",
        "movielens": "--ratings 1000000",
        "lesson": "--profile gpu",
    },
    "cpu": {
        "loader": SMALL,
        "train": f"{SMALL} --widths scaled --optimizer adam",
        "layers": "--batch-size 512 --table-rows 30000 --width 4 --repeat 1",
        "memory": "--budget-mib 160 --sizes 2 --batch-size 4096 --row-group-rows 16384 --repeat 1",
        "criteo": "--rows 400000",
        "movielens": "--ratings 40000",
        "lesson": "--profile small",
    },
}

ORDER = (  # patterns, those first whose figures matter most
    "environment", "tests-batches", "loader-alone",
    *(f"train-dlrm-{way}-float32" for way in ("native", "columns", "stacked")),
    "train-dlrm-stacked-mixed_float16", "train-dlrm-native-mixed_float16",
    "data-lessons", "lesson-04", "lesson-03",
    "train-movielens-native-*", "train-movielens-stacked-*",
    "train-wide_and_deep-native-*", "train-wide_and_deep-stacked-*",
    "lesson-05", "lesson-06", "lesson-02", "loader-tfdata", "train-*-columns-*",
    "train-*-prebatched-*", "train-*-raw-*", "train-*-cpu-native-float32", "loader-*", "layers-*",
    "memory", "tests-*", "*",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Settings:
    """Where the steps run."""

    device: str  # "gpu", or "cpu" for a rehearsal
    work: Path  # folder of logs and notebooks
    data: Path  # folder of the rows

    def command(self, words: str, *paths: Any, size: str) -> list[str]:
        """Return the command line of a Python program, with the options of its size."""
        return [sys.executable, *words.split(), *map(str, paths), *SIZES[self.device][size].split()]


@dataclasses.dataclass(frozen=True)
class Step:
    """Commands with a common time limit, and their result."""

    name: str
    commands: Sequence[Sequence[str]]  # command lines, run one after the other
    # Returns the result from their output, as JSON values; RuntimeError if there is none.
    read: Callable[[str], dict[str, Any]]
    limit_s: int = 200
    codes: tuple[int, ...] = (0,)  # exit codes of commands that are no failure; empty for any
    after: str = ""  # step that must be done before


def steps_of(settings: Settings) -> dict[str, Step]:
    """Return {name: step} of all steps, in order of value."""

    def rank(step: Step) -> int:
        return next(n for n, pattern in enumerate(ORDER) if fnmatch.fnmatchcase(step.name, pattern))

    return {step.name: step for step in sorted(_steps(settings), key=rank)}


def _steps(settings: Settings) -> Iterator[Step]:
    yield _environment(settings)
    yield from (_tests(name, settings) for name in TESTS)
    yield from (_benchmark(name, options, settings) for name, options in PARTS.items())
    for model in train.TITLES:
        for way in ("cpu-native", *train.GPU_WAYS):
            if way != "raw" or model == "dlrm":  # raw cells hold no lists
                yield from (_train(model, way, p, settings) for p in train.PRECISIONS)
    yield _lesson_data(settings)
    yield from (_lesson(number, settings) for number in LESSONS)


# ---- the environment ----------------------------------------------------------------------------


PROBES = {
    "tensorflow": """
import json, tensorflow as tf
gpus = [gpu.name for gpu in tf.config.list_physical_devices("GPU")]
product = tf.linalg.matmul(tf.ones((512, 512)), tf.ones((512, 512)))
right = bool(tf.reduce_all(product == 512).numpy())
found = {"version": tf.__version__, "gpus": gpus, "on_gpu": right and "GPU" in product.device}
found["build"] = {k: str(v) for k, v in tf.sysconfig.get_build_info().items()}
print("\\nANSWER tensorflow", json.dumps(found))
""",
    "jax": """
import json, jax, jax.numpy as jnp
right = bool((jnp.ones((512, 512)) @ jnp.ones((512, 512)) == 512).all())
found = {"version": jax.__version__, "devices": [str(device) for device in jax.devices()]}
print("\\nANSWER jax", json.dumps(found | {"on_gpu": right and jax.default_backend() == "gpu"}))
""",
    "loader": """
import json
from tutorlib.memory import missing_for_gpu
print("\\nANSWER loader", json.dumps({"missing_for_gpu": missing_for_gpu()}))
""",
}


def _environment(settings: Settings) -> Step:
    """Find out what computes on the GPU, each in its own process, and choose the backend."""

    def read(output: str) -> dict[str, Any]:
        answers = dict(re.findall(r"^ANSWER (\w+) (.*)$", output, re.MULTILINE))
        found = {
            name: json.loads(answers[name]) if name in answers else {"error": output[-1000:]}
            for name in PROBES
        }
        backend, why = BACKENDS[0], "a rehearsal on the CPU"
        if settings.device == "gpu":
            backend, why = backend_for({name: found[name] for name in BACKENDS})
        variables = {k: v for k, v in os.environ.items() if k.startswith(("TF_", "XLA_", "KERAS_"))}
        return {
            "backend": backend,
            "why": why,
            "missing_for_gpu": found["loader"].get("missing_for_gpu", found["loader"]),
            "found": found,
            "environment": variables,
        }

    commands = [[sys.executable, "-c", code] for code in PROBES.values()]
    return Step("environment", commands, read, codes=())


def backend_for(found: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Return (backend, why): the first backend that computes on the GPU."""
    without = ""
    for name, answer in found.items():
        if answer.get("on_gpu"):
            return name, f"{name} computes on the GPU{without}"
        without += f", {name} does not: {answer}"
    raise RuntimeError(f"nothing computes on the GPU{without}")


# ---- benchmarks ---------------------------------------------------------------------------------


def _benchmark(name: str, options: str, settings: Settings, device: str | None = None) -> Step:
    """Run a part of a benchmark; the result is its report."""
    benchmark, path = name.partition("-")[0], settings.work / "reports" / f"{name}.json"
    command = settings.command(f"-m benchmarks {benchmark} --out", path, size=benchmark)
    command += ["--device", device or settings.device, *options.split()]
    if benchmark != "layers":
        command += ["--data", str(settings.data)]
    return Step(name, [command], lambda _: json.loads(path.read_text("utf-8")))


def _train(model: str, way: str, precision: str, settings: Settings) -> Step:
    """Train a model in one way, in its own process, which has its memory to itself.

    Of the readers of single rows only one is traced, because that takes four seconds a step.
    """
    traced = way
    if way.endswith("native") and (model, way, precision) != ("dlrm", "native", "mixed_float16"):
        traced = ""
    options = f"--only {model} --ways {way.removeprefix('cpu-')} --precision {precision}"
    name, device = f"train-{model}-{way}-{precision}", "cpu" if way == "cpu-native" else None
    return _benchmark(name, f"{options} --traced {traced}", settings, device)


# ---- tests --------------------------------------------------------------------------------------


def _tests(name: str, settings: Settings) -> Step:
    """Run the tests of a file that are marked `gpu`; without a GPU only collect them."""
    shown = "-rfEs" if settings.device == "gpu" else "--collect-only"
    words = f"-m pytest -o addopts= -o faulthandler_timeout={TEST_S} -q --noconftest -m gpu "
    words += f"-p no:cacheprovider {shown} {TESTS[name]}"
    return Step(f"tests-{name}", [[sys.executable, *words.split()]], read_tests, codes=(0, 1))


def read_tests(output: str) -> dict[str, Any]:
    r"""Return what pytest says of the tests at the end, whatever follows it."""
    lines = re.findall(
        r"^\d+.*(?:passed|failed|error|skipped|collected).* in [\d.]+s", output, re.M
    )
    counts = {
        word: int(n) for n, word in re.findall(r"(\d+)\S* (?:tests )?(\w+)", (lines or [""])[-1])
    }
    if not counts.get("passed") and "collected" not in counts:
        raise RuntimeError(f"no test has passed: {output[-4000:]}")
    failed = re.findall(r"^(?:FAILED|ERROR) .*$", output, re.MULTILINE)
    return {"counts": counts, "failed": failed, "output": output[-8000:]}


# ---- lessons ------------------------------------------------------------------------------------


def _lesson_data(settings: Settings) -> Step:
    """Make the data of the lessons; data_prep leaves alone what it has finished."""
    commands = []
    for kind in ("criteo", "movielens"):
        folder = settings.data / "lessons" / kind
        draw = settings.command(
            f"-m data_prep synthetic {kind} --output", folder / "raw", size=kind
        )
        prepare = [sys.executable, "-m", "data_prep", kind, "--from", str(folder / "raw")]
        commands += [draw, [*prepare, "--output", str(folder)]]
    return Step("data-lessons", commands, lambda output: {"output": output[-2000:]})


def _lesson(number: str, settings: Settings) -> Step:
    """Run a lesson by papermill; the result is its headline and seconds."""
    name = LESSONS[number]
    values = {
        "DATA_DIR": settings.data / "lessons",
        "LOG_DIR": settings.work / "lesson-logs" / name,
        "MODEL_DIR": settings.work / "models",
        "TENSORBOARD": "false",
    }
    output = settings.work / "lessons"
    command = settings.command(f"notebooks/run.py {number} --output", output, size="lesson")
    for parameter in sorted(parameters_of(name) & values.keys()):
        command += ["-p", f"{parameter}={values[parameter]}"]

    def read(output: str) -> dict[str, Any]:
        found = re.search(rf"^{name} +([\d.]+)  (.*)$", output, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"no headline: {output[-2500:]}")
        return {"lesson": name, "headline": found[2], "seconds": float(found[1])}

    return Step(f"lesson-{number}", [command], read, 400, after="data-lessons")


def parameters_of(name: str) -> set[str]:
    """Return the names in the cell of a lesson that is tagged `parameters`."""
    content = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    [cell] = [c for c in content["cells"] if "parameters" in c["metadata"].get("tags", ())]
    return set(re.findall(r"^([A-Z_]+) =", "".join(cell["source"]), re.MULTILINE))
