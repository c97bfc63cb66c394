"""What `gpu-host` measures, and in which order, a step at a time, each in a process of its own.

A step is a function of `Settings` that returns JSON values. A process of its own starts with an
empty GPU, and a step that brings its process down takes no other with it. Does not belong here:
the files of the steps, the time that is left, the rest of a run (`gpu_host.py`).
"""

from __future__ import annotations

import ast
import dataclasses
import faulthandler
import fnmatch
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from benchmarks import gpu_lessons, gpu_training, measure
from benchmarks.gpu_data import MODELS, ROOT, Settings
from benchmarks.gpu_lessons import LESSONS, passing_on
from benchmarks.gpu_training import LAYOUTS, PIPELINES, PRECISIONS, READERS

QUESTIONS = ("tensorflow_sees_gpu", "int32_arguments", "dlpack_alignment", "parquet_read")
QUESTIONS += ("shuffle", "dlrm_step")
TESTS = ROOT / "tests"
TEST_FILES = {
    "batches": TESTS / "loader" / "test_gpu_batches.py",
    "callbacks": TESTS / "callbacks" / "test_callbacks.py",
    "device": TESTS / "memory" / "test_limits.py",
    "ops": TESTS / "ops" / "test_on_gpu.py",
    "parquet": TESTS / "parquet" / "test_gpu_decoder.py",
}
TEST_S = 100  # seconds after which a test says where it is
ALL_NEED = {"keras", "tensorflow", "pyarrow", "numpy"}
NEED_CUDF = re.compile(r"loader-|(train|trace)-\w+-(columns|stacked)-")
RUNNER_NEEDS = {"papermill", "nbclient", "nbconvert", "nbformat", "ipykernel", "yaml", "tqdm"}


# ---- what there is -------------------------------------------------------------------------------


def environment(settings: Settings) -> dict[str, Any]:
    """Return hardware, versions, and what the GPU's part of the work would miss."""
    from tutorlib.memory import missing_for_gpu

    return {
        "hardware": measure.hardware(),
        "versions": measure.versions(),
        "missing_packages": missing({name for step in names(settings) for name in needs(step)}),
        "missing_for_gpu": missing_for_gpu(),
        "environment": {
            k: v for k, v in os.environ.items() if k.startswith(("TF_", "XLA_", "KERAS_"))
        },
    }


def missing(packages: Iterable[str]) -> list[str]:
    """Return those of some packages that cannot be imported here.

    Example:
        >>> missing(["json", "no_such_package"])
        ['no_such_package']
    """
    return sorted(name for name in packages if importlib.util.find_spec(name) is None)


def imports(code: str) -> set[str]:
    r"""Return the packages that code imports, unindented: those it cannot do without.

    Example:
        >>> sorted(imports("import os.path\nfrom keras import ops\nif os:\n    %matplotlib inline"))
        ['keras', 'os']
    """
    plain = re.sub(r"^( *)[%!].*", r"\1pass", code, flags=re.MULTILINE)  # a notebook's commands
    found = set()
    for line in ast.parse(plain).body:
        if isinstance(line, ast.Import):
            found |= {name.name.partition(".")[0] for name in line.names}
        elif isinstance(line, ast.ImportFrom):
            found.add(line.module.partition(".")[0])
    return found


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
    """Make the rows of a model by data_prep, and as TFRecord, and return their bytes.

    Other formats are made by the first step that reads them: they are measured last.
    """
    made = settings.dataset(model)
    made.examples(min(settings.slow_rows, made.rows))
    return made.facts()


def recon(question: str, settings: Settings) -> dict[str, Any]:
    """Return what the host answers to one question of the script."""
    command = [sys.executable, str(settings.recon), "--one", question]
    code, said = passing_on(command, folder=settings.work)
    answers = re.findall(r"^ANSWER (.*)$", said, re.MULTILINE)
    if not answers:
        raise RuntimeError(f"no answer, exit code {code}: {said[-2000:]}")
    return json.loads(answers[0])


def gpu_tests(name: str, settings: Settings) -> dict[str, Any]:
    """Run the tests of a file that are marked `gpu`.

    Raises:
        RuntimeError: if pytest cannot run them, or none passes: all were skipped, say.
    """
    code, said = _pytest(name, "-rfEs")
    counts = counts_of(said)
    if code not in (0, 1) or not counts.get("passed"):
        raise RuntimeError(f"no test has passed, pytest's exit code is {code}: {said[-4000:]}")
    failed = re.findall(r"^(?:FAILED|ERROR) .*$", said, re.MULTILINE)
    return {"counts": counts, "failed": failed, "output": said[-8000:]}


def counts_of(said: str) -> dict[str, int]:
    r"""Return what pytest says last about the tests, whatever else is said after that.

    Example:
        >>> counts_of("..s\n2 passed, 1 skipped, 9 deselected in 3.21s\nI0000 1 device\n")
        {'passed': 2, 'skipped': 1, 'deselected': 9}
    """
    lines = re.findall(r"^\d+ \w+(?:, \d+ \w+)* in [\d.]+s", said, re.MULTILINE)
    return {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", (lines or [""])[-1])}


def collected_tests(name: str, settings: Settings) -> dict[str, Any]:
    """Only collect the tests of a file that are marked `gpu`: without a GPU none can run."""
    code, said = _pytest(name, "--collect-only")
    collected = [line for line in said.splitlines() if "::" in line]
    if code or not collected:
        raise RuntimeError(f"pytest: exit code {code}: {said[-4000:]}")
    return {"collected": len(collected), "run": 0}


def _pytest(name: str, option: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "--noconftest", option]
    command += ["-o", f"faulthandler_timeout={TEST_S}", "-p", "no:cacheprovider", "-m", "gpu"]
    return passing_on([*command, str(TEST_FILES[name].relative_to(ROOT))])


# ---- a step by its name --------------------------------------------------------------------------


ORDER = (  # patterns: those first whose figures matter most
    "environment", "backend", "recon-*", "data-dlrm", "*-batches", "loader-*",
    *(f"train-dlrm-{way}-float32" for way in ("native", "columns", "stacked")),
    "train-dlrm-stacked-mixed_float16", "trace-*", "data-lessons", "lesson-04", "lesson-03",
    "data-movielens", "train-movielens-native-*", "train-movielens-stacked-*",
    "data-wide_and_deep", "train-wide_and_deep-native-*", "train-wide_and_deep-stacked-*",
    "lesson-05", "lesson-06", "lesson-02", "reader-native", "train-*-columns-*",
    "train-dlrm-native-mixed_float16", "train-*-prebatched-*", "train-dlrm-raw-*",
    "train-*-cpu-native-float32", "reader-*", "tests-*", "collected-*",
    "train-*-cpu-native-mixed_float16",
)  # fmt: skip


def names(settings: Settings) -> list[str]:
    """Return the names of all steps in their order.

    Example:
        >>> names(Settings("cpu"))[:4]
        ['environment', 'backend', 'data-dlrm', 'collected-batches']
    """

    def place(name: str) -> int:
        return next(n for n, pattern in enumerate(ORDER) if fnmatch.fnmatchcase(name, pattern))

    return sorted(_names(settings), key=place)


def _names(settings: Settings) -> Iterator[str]:
    yield from ("environment", "backend")
    if settings.recon:
        yield from (f"recon-{question}" for question in QUESTIONS)
    yield from (f"data-{model}" for model in (*MODELS, "lessons"))
    tests = "tests" if settings.device == "gpu" else "collected"
    yield from (f"{tests}-{name}" for name in sorted(TEST_FILES))
    yield from (f"loader-{layout}" for layout in LAYOUTS)
    yield from (f"reader-{name}" for name in READERS)
    for model in MODELS:
        ways = [way for way in PIPELINES if way != "raw" or model == "dlrm"]  # lists have no cells
        yield from (f"train-{model}-{way}-{precision}" for way in ways for precision in PRECISIONS)
    yield from (f"trace-dlrm-{way}-mixed_float16" for way in ("native", "stacked"))
    yield from (f"lesson-{number}" for number in LESSONS)


def _needs_of_tests(name: str) -> set[str]:
    return ALL_NEED | {"pytest"} | imports(TEST_FILES[name].read_text(encoding="utf-8")) - {"tests"}


def _needs_of_lesson(number: str) -> set[str]:
    return ALL_NEED | RUNNER_NEEDS | imports(gpu_lessons.code(LESSONS[number]))


def _needs_nothing(name: str) -> set[str]:
    return set()


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the steps of a kind have in common.

    Args:
        limit_s: seconds that one may take.
        work: does it, given its settings; with `of`, given what its name ends with before them.
        of: what the name of a step of this kind may end with, after a hyphen.
        needs: that end -> packages without which it cannot be done.
    """

    limit_s: int
    work: Callable[..., dict[str, Any]]
    of: Iterable[str] = ()
    needs: Callable[[str], set[str]] = lambda rest: ALL_NEED


KINDS = {
    "environment": Kind(150, environment, needs=_needs_nothing),
    "backend": Kind(150, backend, needs=_needs_nothing),
    "recon": Kind(150, recon, QUESTIONS, _needs_nothing),
    "data": Kind(200, data, MODELS),
    "tests": Kind(200, gpu_tests, TEST_FILES, _needs_of_tests),
    "collected": Kind(200, collected_tests, TEST_FILES, _needs_of_tests),
    "loader": Kind(150, gpu_training.loader, LAYOUTS),
    "reader": Kind(150, gpu_training.reader, READERS),
    "train": Kind(150, gpu_training.train),
    "trace": Kind(150, gpu_training.trace),
    "lesson": Kind(400, gpu_lessons.lesson, LESSONS, _needs_of_lesson),
}


def kind_of(name: str) -> Kind:
    """Return the kind of a step: what comes before the first hyphen says it."""
    return KINDS[name.partition("-")[0]]


def needs(name: str) -> set[str]:
    """Return the packages without which a step cannot be done."""
    return kind_of(name).needs(name.partition("-")[2])


def step(name: str) -> Callable[[Settings], dict[str, Any]]:
    """Return what a step does.

    Raises:
        ValueError: for a name that is no step's.
    """
    kind, _, rest = name.partition("-")
    known = KINDS.get(kind)
    if name in ("environment", "backend"):
        return known.work
    if name == "data-lessons":
        return gpu_lessons.data
    if known and rest in known.of:
        return lambda settings: known.work(rest, settings)
    found = re.fullmatch(rf"({'|'.join(MODELS)})-({'|'.join(PIPELINES)})-(\w+)", rest)
    if kind in ("train", "trace") and found and found[3] in PRECISIONS:
        return lambda settings: known.work(*found.groups(), settings)
    steps = ", ".join(names(Settings("gpu", recon="-")))
    raise ValueError(f"{name!r} is no step; the steps are {steps}")


def main() -> None:
    """Do one step, and print what it gives.

    The arguments are its name, its settings as JSON, and the seconds that it has: shortly before
    they are over it says on stderr where it is.
    """
    if os.getpgrp() == os.getpid():
        threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    name, settings, limit_s = sys.argv[1], Settings(**json.loads(sys.argv[2])), float(sys.argv[3])
    faulthandler.dump_traceback_later(max(limit_s - 10, 0.8 * limit_s))
    result = done(name, settings)
    print(f"\nRESULT {json.dumps(result)}", flush=True)
    os._exit(0)  # taking down what holds a GPU may hang, and nobody needs it


def done(name: str, settings: Settings) -> dict[str, Any]:
    """Do a step and return what it gives.

    Raises:
        RuntimeError: at once, if something is missing that it needs.
    """
    work, lacking = step(name), missing(needs(name))
    if lacking:
        raise RuntimeError(f"not tried, for these packages are missing: {', '.join(lacking)}")
    if settings.device == "gpu" and NEED_CUDF.match(name):
        from tutorlib.memory import missing_for_gpu

        if why := missing_for_gpu():
            raise RuntimeError(f"not tried: {why}")
    return work(settings)


def _end_with(parent: int) -> None:
    """End with the process that has started this one, and end what this one has started.

    Else a step would go on when the run is killed, and the next run measure beside it.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
