"""Find out whether the GPU works here, and how fast: 26 minutes at most.

Parts (--only), each in a process of its own with a limit of time:

- machine: driver, card, what each library sees of it, free memory;
- tests: the tests marked gpu;
- jax, tensorflow: the loader with batches made on the GPU beside batches made on the CPU, from the
  same files: whether they are the same, rows/s, where tensors are, memory after each of five
  epochs; with JAX also samples/s of a DLRM of the published widths. One of the two may be absent;
- xla, bits16: two panels of the benchmark `ladder` with the published widths: readers beside the
  same training on the same batches, held in memory, losses, how busy the card is;
- trace: bytes copied to and from the card in ten steps, and the share of time it computes.

What a part prints goes to NAME.txt in the folder --out, its numbers to NAME.json, at once: a part
that is cut off has still answered. `gpu-check.json` has the numbers of all parts. With `--device
cpu` everything runs on the CPU at small sizes, so that on a GPU only the GPU is new.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import gc
import itertools
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.data import copied, criteo_shape, files_of, movielens_shape
from benchmarks.ladder import split
from benchmarks.measure import ROOT, Epoch, Way
from benchmarks.readers import held_batches

SUMMARY = "whether the GPU works with all of this, and how fast (at most 26 minutes)"
LIBRARIES = (
    *measure.LIBRARIES, "jax", "torch", "cupy-cuda12x", "cupy-cuda13x", "cudf-cu12", "cudf-cu13",
    "rmm-cu12", "rmm-cu13",
)  # fmt: skip
EPOCHS = 5  # after each of which memory is read
LAYOUTS, SIZES = ("columns", "stacked"), (65_536, 4096)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--data", type=Path, default=measure.DATA, help="folder of the rows")
    parser.add_argument("--here", choices=PARTS, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> None:
    """Run each part in a process of its own; print a table of what came of it."""
    if arguments.here:
        report = Report(arguments.out / f"{arguments.here}.json")
        PARTS[arguments.here][1](arguments, report)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    whole: dict[str, Any] = {
        "benchmark": "gpu-check",
        "date": now.isoformat(timespec="seconds"),
        "hardware": measure.hardware(),
        "versions": measure.versions(LIBRARIES),
        "commit": measure.commit(),
        "device": arguments.device,
        "parts": {},
    }
    for name in arguments.only:
        limit_s, _ = PARTS[name]
        started = time.monotonic()
        ended = f"{run_part(name, limit_s, arguments)} after {time.monotonic() - started:.0f} s"
        print(f"\n{name}: {ended}", flush=True)
        path = arguments.out / f"{name}.json"
        answers = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        whole["parts"][name] = {"ended": ended, **answers}
        measure.save(whole, arguments.out / "gpu-check.json")
        for answer, value in answers.items():
            if isinstance(value, dict):
                print(f"    {answer}:")
                for key, inner in value.items():
                    print(f"        {key}: {inner}")
            else:
                print(f"    {answer}: {value}")
        if not ended.startswith("done"):
            print(tail(arguments.out / f"{name}.txt"), flush=True)
        if arguments.device == "gpu" and answers.get("missing", "nothing") != "nothing":
            raise SystemExit(
                f"\nNo GPU can be used here: {answers['missing']}. docs/gpu.md says what to "
                "install; --device cpu runs the same on the CPU."
            )
    print(f"\nwritten to {arguments.out}: send us this folder")


def run_part(name: str, limit_s: int, arguments: argparse.Namespace) -> str:
    """Run one part, what it prints into its file; return in words how it ended."""
    (arguments.out / f"{name}.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks", "gpu-check", "--here", name]
    for option in ("device", "out", "data"):
        command += [f"--{option}", str(getattr(arguments, option))]
    backend = "jax" if name in ("machine", "jax") else "tensorflow"
    hidden = (
        {} if arguments.device == "gpu" else {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    )
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONUNBUFFERED": "1", **hidden}
    with (arguments.out / f"{name}.txt").open("w") as said:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=said, stderr=said, start_new_session=True
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"cut off at its limit of {limit_s} s"
        finally:  # also what it has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return "failed" if status else "done"


def tail(path: Path, lines: int = 25) -> str:
    """Return the last lines of a file, indented, without paths of this machine."""
    text = path.read_text(errors="replace").replace(f"{ROOT}{os.sep}", "")
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


class Report(dict[str, Any]):
    """Numbers of a part, written to its file with each new one."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        print(f"{name}: {value}", flush=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self, indent=1) + "\n", encoding="utf-8")
        partial.replace(self._path)


# ---- the parts ----------------------------------------------------------------------------------


def machine(arguments: argparse.Namespace, report: Report) -> None:
    """Say what is there and what is missing."""
    from tutorlib.gpu import missing_for_gpu

    report["hardware"] = measure.hardware()
    report["versions"] = measure.versions(LIBRARIES)
    report["missing"] = missing_for_gpu() or "nothing"
    seen: dict[str, Callable[[], Any]] = {
        "driver": _driver, "cupy": _cupy, "cudf": _cudf, "jax": _jax, "tensorflow": _tensorflow,
    }  # fmt: skip
    for name, look in seen.items():
        try:
            report[name] = look()
        except Exception as error:  # each library fails in its own way; the next may work
            report[name] = f"{type(error).__name__}: {str(error)[:300]}"


def _driver() -> str:
    query = "--query-gpu=name,driver_version,memory.free,memory.total,compute_cap"
    done = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, timeout=60
    )
    return (done.stdout or done.stderr).strip()


def _cupy() -> dict[str, Any]:
    import cupy

    runtime = cupy.cuda.runtime
    free, total = runtime.memGetInfo()
    return {
        "CUDA runtime": runtime.runtimeGetVersion(),
        "CUDA of the driver": runtime.driverGetVersion(),
        "free_bytes": free,
        "total_bytes": total,
        "sum on the card": int(cupy.arange(10).sum()),
    }


def _cudf() -> Any:
    import cudf

    return cudf.DataFrame({"a": [1, 2, 2]}).groupby("a").size().sort_index().to_pandas().tolist()


def _jax() -> list[str]:
    import jax

    return [str(device) for device in jax.devices()]


def _tensorflow() -> dict[str, Any]:
    # In a process of its own: it would keep memory of the card.
    code = (
        "import json, tensorflow as tf; print(json.dumps({'gpus': [g.name for g in "
        "tf.config.list_physical_devices('GPU')], **dict(tf.sysconfig.get_build_info())}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    return (
        json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.splitlines()[-1]}
    )


def tests(arguments: argparse.Namespace, report: Report) -> None:
    """Run the tests that need a GPU."""
    files = ROOT.glob("tests/*/test_*gpu*.py")
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-rfE", "--tb=short"]
    command += ["-o", "filterwarnings=default", "-p", "no:cacheprovider", *map(str, files)]
    report["pytest exit status"] = subprocess.run(command, cwd=ROOT).returncode


def of_loader(arguments: argparse.Namespace, report: Report) -> None:
    """Read with the loader on both devices under the backend that is chosen."""
    import keras

    report["backend"] = backend = keras.backend.backend()
    if backend == "tensorflow" and arguments.device == "gpu":
        from tutorlib.gpu import limit_tensorflow_memory

        report["memory given to TensorFlow, bytes"] = limit_tensorflow_memory()
    rows = 2_097_152 if arguments.device == "gpu" else 65_536
    click, few = criteo_shape(arguments.data, rows), criteo_shape(arguments.data, rows // 8)
    rating = movielens_shape(arguments.data, rows // 8)
    for shape, layouts in ((few, LAYOUTS), (rating, LAYOUTS[:1])):
        for layout, size in itertools.product(layouts, SIZES):
            made = [_loader(shape, size, layout, device) for device in (arguments.device, "cpu")]
            report[f"same batches: {shape.name}, {layout}, {size}"] = _difference(*made) or "yes"
    batch = next(iter(_loader(click, SIZES[0], "columns", arguments.device)))
    report["tensors"] = sorted({_place(tensor) for tensor in keras.tree.flatten(batch)})
    del batch
    report["rows/s"] = _rates(arguments, click)
    report["bytes in use after each epoch"] = list(_memory(arguments, click))
    if backend == "jax":
        report["samples/s of a DLRM"] = _trainings(arguments, click)


def _loader(data: Any, size: int, layout: str, device: str, copies: int = 1) -> Any:
    from tutorlib import KerasSequenceLoader

    files = files_of(copied(data.parquet, copies))
    return KerasSequenceLoader(files, size, schema=data.schema, batch_layout=layout, device=device)


def _place(tensor: Any) -> str:
    return f"{tensor.device}, {tensor.dtype}"


def _difference(ours: Iterable[Any], theirs: Iterable[Any]) -> str | None:
    """Return in words where batches differ, but for the width of integers; None if nowhere."""
    import keras

    for number, (one, other) in enumerate(itertools.zip_longest(ours, theirs)):
        if one is None or other is None:
            return f"one ends before batch {number}"
        keras.tree.assert_same_structure(one, other)
        for a, b in zip(*map(keras.tree.flatten, (one, other)), strict=True):
            a, b = map(keras.ops.convert_to_numpy, (a, b))
            if a.shape != b.shape or a.dtype.kind != b.dtype.kind or not np.array_equal(a, b):
                return f"batch {number}: {a.dtype}{a.shape} and {b.dtype}{b.shape}"
    return None


def _epoch(batches: Iterable[Any]) -> int:
    return sum(len(label) for _, label in batches)


def _synchronise(device: str) -> Callable[[], Any]:
    from tutorlib.gpu.batches import wait_for_gpu

    return wait_for_gpu if device == "gpu" else measure.nothing


def _rates(arguments: argparse.Namespace, data: Any) -> dict[str, list[float]]:
    """Return {way: rows/s of three turns}, on the device and on the CPU in turns."""
    ways = []
    for layout, size in itertools.product(LAYOUTS, SIZES):
        copies = 8 if (arguments.device, size) == ("gpu", SIZES[0]) else 1
        for device in dict.fromkeys((arguments.device, "cpu")):
            loader = _loader(data, size, layout, device, copies)
            ways.append(Way(f"{device}, {layout}, {size}", functools.partial(_epoch, loader)))
    entries = measure.turns(ways, repeat=3, synchronise=_synchronise(arguments.device))
    return {entry["name"]: [round(rate) for rate in measure.rates(entry)] for entry in entries}


def _memory(arguments: argparse.Namespace, data: Any) -> Iterator[int]:
    """Yield the bytes in use after each epoch: on the card, or of this process."""
    loader = _loader(data, SIZES[0], "columns", arguments.device)
    for _ in range(EPOCHS):
        _epoch(loader)
        gc.collect()
        if arguments.device == "gpu":
            import cupy

            free, total = cupy.cuda.runtime.memGetInfo()
            yield total - free
        else:
            yield resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _trainings(arguments: argparse.Namespace, data: Any) -> dict[str, Any]:
    """Return {way: samples/s of three turns} of `fit` under JAX, and the first epochs' losses."""
    import keras

    from benchmarks.networks import NETWORKS

    on_gpu = arguments.device == "gpu"
    network = NETWORKS["dlrm"](data.schema, "published" if on_gpu else "scaled")
    size, copies = (SIZES if on_gpu else (1024,))[0], 4 if on_gpu else 1
    steps = copies * data.rows // size
    answers: dict[str, Any] = {}
    ways = []
    for layout, make in (("columns", network.by_column), ("stacked", network.fused)):
        for device in (*dict.fromkeys((arguments.device, "cpu")), "no reader"):
            reads = arguments.device if device == "no reader" else device
            batches: Any = _loader(data, size, layout, reads, copies)
            if device == "no reader":
                batches = held_batches(itertools.islice(batches, steps))
            keras.utils.set_random_seed(0)
            model = make()
            model.compile("sgd", "binary_crossentropy")
            name = f"{device}, {layout}"
            started = time.monotonic()
            loss = model.fit(batches, verbose=0).history["loss"][0]
            answers[f"loss: {name}"] = loss
            print(f"{name}: first epoch {time.monotonic() - started:.1f} s", flush=True)
            ways.append(Way(name, _fit(model, batches, steps * size)))
    entries = measure.turns(ways, repeat=3, warmup=0, synchronise=_synchronise(arguments.device))
    return answers | {e["name"]: [round(rate) for rate in measure.rates(e)] for e in entries}


def _fit(model: Any, batches: Any, rows: int) -> Callable[[], Epoch]:
    def epoch() -> Epoch:
        model.fit(batches, verbose=0)
        return Epoch(rows)

    return epoch


def ladder(panel: str) -> Callable[[argparse.Namespace, Report], None]:
    """Return the part that runs a panel of the benchmark `ladder`."""

    def part(arguments: argparse.Namespace, report: Report) -> None:
        sizes = ["--rows", "1000000", "--batch-size", "65536", "--widths", "published"]
        sizes += ["--repeat", "3", "--most", "3"]
        if arguments.device == "cpu":
            sizes = ["--rows", "8192", "--batch-size", "1024", "--repeat", "1", "--most", "1"]
        out = arguments.out / f"ladder-{panel}.json"
        command = [sys.executable, "-m", "benchmarks", "ladder", "--only", panel, *sizes]
        command += ["--device", arguments.device, "--data", str(arguments.data), "--out", str(out)]
        subprocess.run(command, cwd=ROOT, check=True)
        entries = json.loads(out.read_text("utf-8"))["ways"]
        ceiling, _shown = split(entries)
        for entry in entries:
            report[entry["name"]] = of_training(entry, ceiling)

    return part


def of_training(entry: Mapping[str, Any], ceiling: Mapping[str, Any]) -> dict[str, Any]:
    """Return what counts of a training: its rate, its share of the ceiling, its loss."""
    said: dict[str, Any] = {"samples/s": [round(rate) for rate in measure.rates(entry)]}
    said["share of the ceiling"] = statistics.median(measure.ratios(entry, ceiling))
    said |= {name: entry[name] for name in ("loss", "AUROC") if name in entry}
    if busy := entry["values"].get("busy_share"):
        said["GPU busy"] = statistics.median(busy)
    return said


def trace(arguments: argparse.Namespace, report: Report) -> None:
    """Trace ten steps of a training; say what was copied and how long the card computed."""
    import keras
    import tensorflow as tf

    from benchmarks.networks import NETWORKS
    from tests.support.gpu import copied_bytes

    on_gpu = arguments.device == "gpu"
    if on_gpu:
        from tutorlib.gpu import limit_tensorflow_memory

        limit_tensorflow_memory()
    size = SIZES[0] if on_gpu else 1024
    data = criteo_shape(arguments.data, 2_097_152 if on_gpu else 65_536)
    network = NETWORKS["dlrm"](data.schema, "published" if on_gpu else "scaled")
    for device in dict.fromkeys((arguments.device, "cpu")):
        keras.utils.set_random_seed(0)
        model = network.fused()
        model.compile("sgd", "binary_crossentropy", jit_compile=True)
        batches = _loader(data, size, "stacked", device)
        model.fit(batches, verbose=0)
        folder = arguments.out / f"trace-{device}"
        tf.profiler.experimental.start(str(folder))
        model.fit(batches, steps_per_epoch=10, verbose=0)
        tf.profiler.experimental.stop()
        report[f"batches of the {device}: bytes copied in ten steps"] = copied_bytes(folder)


PARTS: Mapping[str, tuple[int, Callable[[argparse.Namespace, Report], None]]] = {
    "machine": (120, machine),
    "tests": (300, tests),
    "jax": (240, of_loader),
    "tensorflow": (180, of_loader),
    "xla": (300, ladder("xla")),
    "bits16": (300, ladder("bits16")),
    "trace": (90, trace),
}
