"""What `gpu-host` measures, a step at a time, each in a process of its own.

A step is a function of `Settings` that returns JSON values. A process of its own starts with an
empty GPU, and a step that brings its process down takes no other with it. Does not belong here: the
order of the steps, their files, the rest of a run (`gpu_host.py`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks import gpu_lessons, gpu_training, measure
from benchmarks.gpu_data import MODELS, ROOT, Settings
from benchmarks.gpu_lessons import LESSONS
from benchmarks.gpu_training import LAYOUTS, PIPELINES, PRECISIONS, READERS

QUESTIONS = ("tensorflow_sees_gpu", "int32_arguments", "dlpack_alignment", "parquet_read")
QUESTIONS += ("shuffle", "dlrm_step")
TEST_FILES = sorted((ROOT / "tests").glob("test_gpu_*.py"))
NEEDED = ("tensorflow", "keras", "jax", "cupy", "pylibcudf", "rmm", "pyarrow", "pandas", "pytest")
NEEDED += ("matplotlib", "yaml", "tqdm", "papermill", "nbconvert", "ipykernel", "tensorboard")
NAMES_OF_TESTS = tuple(path.stem.removeprefix("test_gpu_") for path in TEST_FILES)


# ---- what there is -------------------------------------------------------------------------------


def environment(settings: Settings) -> dict[str, Any]:
    """Return hardware, versions, and what the GPU's part of the work would miss."""
    from tutorlib.device import missing_for_gpu

    return {
        "hardware": measure.hardware(),
        "versions": measure.versions(),
        "missing_packages": [name for name in NEEDED if importlib.util.find_spec(name) is None],
        "missing_for_gpu": missing_for_gpu(),
        "environment": {
            k: v for k, v in os.environ.items() if k.startswith(("TF_", "XLA_", "KERAS_"))
        },
    }


def backend(settings: Settings) -> dict[str, Any]:
    """Choose the backend of Keras that all is measured with, and say why."""
    found = {name: _asked(code) for name, code in DOES_ARITHMETIC.items()}
    if settings.device == "cpu":
        chosen, why = settings.backend, "a rehearsal on the CPU, with what was asked for"
    else:
        chosen, why = backend_for(found)
    return {"backend": chosen, "why": why, "found": found}


def backend_for(found: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Return (backend, why): TensorFlow, if it does arithmetic on the GPU; else JAX, if that does.

    Raises:
        RuntimeError: if neither does.

    Example:
        >>> backend_for({"tensorflow": {"on_gpu": False}, "jax": {"on_gpu": True}})
        ('jax', "jax does arithmetic on the GPU, tensorflow does not: {'on_gpu': False}")
    """
    without = ""
    for name, answer in found.items():
        if answer.get("on_gpu"):
            return name, f"{name} does arithmetic on the GPU{without}"
        without += f", {name} does not: {answer}"
    raise RuntimeError(f"nothing does arithmetic on the GPU{without}")


DOES_ARITHMETIC = {
    "tensorflow": """
import json, tensorflow as tf
gpus = [gpu.name for gpu in tf.config.list_physical_devices("GPU")]
product = tf.linalg.matmul(tf.ones((512, 512)), tf.ones((512, 512)))
right = bool(tf.reduce_all(product == 512).numpy())
facts = {"version": tf.__version__, "gpus": gpus, "on_gpu": right and "GPU" in product.device}
facts["build"] = {k: str(v) for k, v in tf.sysconfig.get_build_info().items()}
print("ANSWER", json.dumps(facts))
""",
    "jax": """
import json, jax, jax.numpy as jnp
right = bool((jnp.ones((512, 512)) @ jnp.ones((512, 512)) == 512).all())
facts = {"version": jax.__version__, "devices": [str(device) for device in jax.devices()]}
print("ANSWER", json.dumps(facts | {"on_gpu": right and jax.default_backend() == "gpu"}))
""",
}


def _asked(code: str) -> dict[str, Any]:
    """Return what some code answers in a process of its own, or how it ended."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    answers = re.findall(r"^ANSWER (.*)$", done.stdout, re.MULTILINE)
    if not answers:
        return {"exit_code": done.returncode, "error": done.stderr[-1000:]}
    return json.loads(answers[0])


def data(model: str, settings: Settings) -> dict[str, Any]:
    """Make the rows of a model by data_prep, in every format measured, and return their bytes."""
    made = settings.dataset(model)
    made.examples(min(settings.slow_rows, made.rows))
    made.prebatched(settings.batch_size)
    if model == "dlrm":  # the one without lists, which have no place in raw cells
        for form in ("columns", "stacked"):
            made.raw(form, settings.batch_size)
    return made.facts()


def recon(question: str, settings: Settings) -> dict[str, Any]:
    """Return what the host answers to one question of the script."""
    command = [sys.executable, str(settings.recon), "--one", question]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=settings.work)
    answers = re.findall(r"^ANSWER (.*)$", done.stdout, re.MULTILINE)
    if not answers:
        raise RuntimeError(f"no answer, exit code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(answers[0])


def gpu_tests(name: str, settings: Settings) -> dict[str, Any]:
    """Run the tests of a file that are marked `gpu`."""
    done, lines = _pytest(name, "-rfE")
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", lines[-1] if lines else "")}
    if done.returncode not in (0, 1) or not counts:
        said = done.stdout[-2000:] + done.stderr[-2000:]
        raise RuntimeError(f"pytest: exit code {done.returncode}: {said}")
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"counts": counts, "failed": failed, "output": done.stdout[-8000:]}


def collected_tests(name: str, settings: Settings) -> dict[str, Any]:
    """Only collect the tests of a file that are marked `gpu`: without a GPU none can run."""
    done, lines = _pytest(name, "--collect-only")
    collected = [line for line in lines if "::" in line]
    if done.returncode or not collected:
        said = done.stdout[-2000:] + done.stderr[-2000:]
        raise RuntimeError(f"pytest: exit code {done.returncode}: {said}")
    return {"collected": len(collected), "run": 0}


def _pytest(name: str, option: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "--noconftest", option]
    command += ["-p", "no:cacheprovider", "-m", "gpu", f"tests/test_gpu_{name}.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done, done.stdout.strip().splitlines()


# ---- a step by its name --------------------------------------------------------------------------


def names(settings: Settings) -> Iterator[str]:
    """Yield the names of all steps, those first whose figures matter most.

    Example:
        >>> list(names(Settings("cpu")))[:3]
        ['environment', 'backend', 'data-dlrm']
    """
    yield from ("environment", "backend")
    if settings.recon:
        yield from (f"recon-{question}" for question in QUESTIONS)
    yield "data-dlrm"
    tests = "tests" if settings.device == "gpu" else "collected"
    yield from (f"{tests}-{name}" for name in NAMES_OF_TESTS)
    yield from (f"loader-{layout}" for layout in LAYOUTS)
    yield from (f"reader-{name}" for name in READERS)
    for model in MODELS:
        if model != "dlrm":
            yield f"data-{model}"
        for precision in PRECISIONS:
            for pipeline in PIPELINES:
                if pipeline == "cpu-native" and precision != "float32":
                    continue
                if pipeline != "raw" or model == "dlrm":
                    yield f"train-{model}-{pipeline}-{precision}"
        if model == "dlrm":
            yield from (f"trace-dlrm-{p}-mixed_float16" for p in ("native", "stacked"))
    yield "data-lessons"
    yield from (f"lesson-{number}" for number in LESSONS)


def step(name: str) -> Callable[[Settings], dict[str, Any]]:
    """Return what a step does.

    Raises:
        ValueError: for a name that is no step's.
    """
    plain = {"environment": environment, "backend": backend, "data-lessons": gpu_lessons.data}
    if name in plain:
        return plain[name]
    kind, _, rest = name.partition("-")
    known: dict[str, tuple[Any, Callable[..., dict[str, Any]]]] = {
        "recon": (QUESTIONS, recon),
        "data": (MODELS, data),
        "tests": (NAMES_OF_TESTS, gpu_tests),
        "collected": (NAMES_OF_TESTS, collected_tests),
        "loader": (LAYOUTS, gpu_training.loader),
        "reader": (READERS, gpu_training.reader),
        "lesson": (LESSONS, gpu_lessons.lesson),
    }
    if kind in known and rest in known[kind][0]:
        return lambda settings: known[kind][1](rest, settings)
    found = re.fullmatch(rf"({'|'.join(MODELS)})-({'|'.join(PIPELINES)})-(\w+)", rest)
    if kind in ("train", "trace") and found and found[3] in PRECISIONS:
        measured = gpu_training.train if kind == "train" else gpu_training.trace
        return lambda settings: measured(*found.groups(), settings)
    steps = ", ".join(names(Settings("gpu", recon="-")))
    raise ValueError(f"{name!r} is no step; the steps are {steps}")


def main() -> None:
    """Do one step: its name and its settings, as JSON, are the arguments; prints what it gives."""
    if os.getpgrp() == os.getpid():
        threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    name, settings = sys.argv[1], Settings(**json.loads(sys.argv[2]))
    result = step(name)(settings)
    print(f"\nRESULT {json.dumps(result)}")


def _end_with(parent: int) -> None:
    """End with the process that has started this one, and end what this one has started.

    Else a step would go on when the run is killed, and the next run measure beside it.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
