"""Find out whether the GPU works here, and how fast: ten minutes at most.

Parts (--only), in this order, each in a process of its own with a limit of time:

- machine: driver, card, what each library sees of it, free memory;
- gate: whether batches are right; if not, nothing is measured;
- calls: microseconds of the small calls that batches are made of, and of those that Keras adds;
- decoding: milliseconds in which eight row groups are decoded, by files, threads, KvikIO's threads;
- loader: rows/s and seconds of each stage, by layout, batch size and device;
- training: samples/s of a DLRM from batches of either device, from TFRecord and without a reader;
- cores: rows/s on fewer cores, to see where the GPU begins to pay;
- trace: bytes copied in ten steps.

Keras runs on JAX, or on TensorFlow where JAX has no such device (--backend). What a part prints
goes to NAME.txt in the folder --out, its numbers to NAME.json, each at once: a part that is cut off
has still answered. `gpu-check.json` has the numbers of all parts. With `--device cpu` the same runs
on the CPU at small sizes; what only a card has then says so.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import importlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import measure
from benchmarks.data import copied, criteo_shape, files_of, movielens_shape
from benchmarks.measure import ROOT, Failed
from benchmarks.readers import vectors
from other_readers import held_batches
from tutorlib.memory import aligned_empty, usable_cores
from tutorlib.parquet import ParquetSource

SUMMARY = "whether the GPU works with all of this, and how fast (at most ten minutes)"
LIBRARIES = (
    *measure.LIBRARIES, "jax", "torch", "cupy-cuda12x", "cupy-cuda13x", "cudf-cu12", "cudf-cu13",
    "rmm-cu12", "rmm-cu13",
)  # fmt: skip
SEEN = {  # library: a program that says what it sees
    "driver": "import os; os.system('nvidia-smi --query-gpu=name,driver_version,memory.free,"
    "memory.total,compute_cap --format=csv,noheader')",
    "cupy": "import cupy; r = cupy.cuda.runtime; print('CUDA', r.runtimeGetVersion(), 'driver',"
    "r.driverGetVersion(), 'bytes free, total', r.memGetInfo(), 'sum', cupy.arange(10).sum())",
    "cudf": "import cudf; print(cudf.Series([1, 2, 2]).value_counts().to_pandas().tolist())",
    "jax": "import jax; print(jax.devices())",
    "tensorflow": "import tensorflow as tf; print(tf.config.list_physical_devices())",
}
LAYOUTS, BATCHES = ("columns", "stacked"), (65_536, 4096)
NO_CARD, NO_JAX, NO_TENSORFLOW = "needs a card", "needs JAX", "left out: needs TensorFlow"
TESTS = {  # of tests/loader/test_gpu_batches.py, by backend
    "jax": "jax",
    "tensorflow": "let_go or many_rows or xla or copies_no_batch or does_not_grow",
}
SIZES: Mapping[str, dict[str, Any]] = {  # a pass reads the rows `copies` times
    "gpu": {
        "rows": 2_097_152, "group_rows": 131_072, "copies": 20, "widths": "published",
        "batch": 65_536, "side": 8192, "call_s": 0.2, "turn_s": 1.5, "epoch_s": 4.0,
    },
    "cpu": {
        "rows": 131_072, "group_rows": 8192, "copies": 2, "widths": "scaled",
        "batch": 1024, "side": 256, "call_s": 0.05, "turn_s": 0.4, "epoch_s": 0.4,
    },
}  # fmt: skip
Settings = argparse.Namespace  # options, and the sizes of the device


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--device", choices=tuple(SIZES), default="gpu")
    parser.add_argument("--backend", choices=tuple(TESTS), help="of Keras")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--data", type=Path, default=measure.DATA, help="folder of the rows")
    parser.add_argument("--here", choices=(*PARTS, "exit"), help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> None:
    """Run each part in a process of its own; print a table of what came of it."""
    if arguments.here:
        return run_here(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.backend = arguments.backend or backend_on(arguments.device)
    whole: dict[str, Any] = {
        "benchmark": "gpu-check",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hardware": measure.hardware(),
        "versions": measure.versions(LIBRARIES),
        "commit": measure.commit(),
        "device": arguments.device,
        "backend": arguments.backend,
        "parts": {},
    }
    failed = []
    for name in arguments.only:
        path, started = arguments.out / f"{name}.json", time.monotonic()
        path.unlink(missing_ok=True)
        ended = "not run: the gate failed"
        if "gate" not in failed:
            ended = f"{run_part(name, arguments)} after {time.monotonic() - started:.0f} s"
        print(f"\n{name}: {ended}", flush=True)
        answers = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        whole["parts"][name] = {"ended": ended, **answers}
        measure.save(whole, arguments.out / "gpu-check.json")
        for answer, value in answers.items():
            inner = value.items() if isinstance(value, dict) else ()
            lines = [f"{key}: {number}" for key, number in inner] or [value]
            print(f"    {answer}:", *lines, sep="\n        " if inner else " ")
        if ended.startswith(("failed", "cut off")):
            said = (arguments.out / f"{name}.txt").read_text(errors="replace")
            print(said.replace(f"{ROOT}{os.sep}", "")[-3000:], flush=True)
            failed += [name] * (name == "gate" or ended.startswith("failed"))
        if arguments.device == "gpu" and answers.get("missing", "nothing") != "nothing":
            raise SystemExit(
                f"\nNo GPU can be used here: {answers['missing']}. docs/gpu.md says what to "
                "install; --device cpu runs the same on the CPU."
            )
    print(f"\nwritten to {arguments.out}: send us this folder")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def run_here(arguments: argparse.Namespace) -> None:
    """Run one part in this process."""
    name, on_gpu = arguments.here, arguments.device == "gpu"
    if on_gpu and arguments.backend == "tensorflow" and name not in ("machine", "decoding"):
        from tutorlib.gpu import limit_tensorflow_memory

        limit_tensorflow_memory()
    settings = Settings(**vars(arguments), **SIZES[arguments.device])
    settings.devices = ["gpu", "cpu"] if on_gpu else ["cpu"]  # that are compared
    part: Any = exit_in_mid_epoch if name == "exit" else PARTS[name][1]
    part(settings, Report(arguments.out / f"{name}.json"))


def backend_on(device: str) -> str:
    """Return JAX, if it is there and computes on this device, or TensorFlow."""
    if device == "cpu":
        return "jax" if find_spec("jax") else "tensorflow"
    words = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    said = subprocess.run(words, capture_output=True, text=True).stdout
    return "jax" if "gpu" in said else "tensorflow"


def command(name: str, arguments: argparse.Namespace) -> list[str]:
    """Return the command that runs one part."""
    words = [sys.executable, "-m", "benchmarks", "gpu-check", "--here", name]
    for option in ("device", "backend", "out", "data"):
        words += [f"--{option}", str(getattr(arguments, option))]
    return words


def run_part(name: str, arguments: argparse.Namespace) -> str:
    """Run one part, what it prints into its file; return in words how it ended."""
    environment = {**os.environ, "KERAS_BACKEND": arguments.backend, "PYTHONUNBUFFERED": "1"}
    if arguments.device == "cpu":
        environment |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    if name in ("machine", "gate"):  # which start processes that need memory of the card, too
        environment |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        environment |= {"TF_MEMORY_ALLOCATION": "0.1"}
    options: dict[str, Any] = {"cwd": ROOT, "env": environment, "start_new_session": True}
    with (arguments.out / f"{name}.txt").open("w") as said:
        process = subprocess.Popen(command(name, arguments), stdout=said, stderr=said, **options)
        try:
            return "failed" if process.wait(PARTS[name][0]) else "done"
        except subprocess.TimeoutExpired:
            return "cut off at its limit"
        finally:  # also what it has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


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


def machine(settings: Settings, report: Report) -> None:
    """Say what is there and what is missing."""
    from tutorlib.gpu import missing_for_gpu

    report["versions"] = measure.versions(LIBRARIES)
    report["missing"] = missing_for_gpu() or "nothing"
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    looking = {n: subprocess.Popen([sys.executable, "-c", c], **options) for n, c in SEEN.items()}
    for name, process in looking.items():
        report[name] = process.communicate()[0].strip().rpartition("\n")[-1]


# ---- what the parts share -----------------------------------------------------------------------


def click_log(settings: Settings) -> Any:
    """Return the rows of Criteo's shape."""
    return criteo_shape(settings.data, settings.rows, row_group_rows=settings.group_rows)


def loader_of(
    data: Any, size: int, layout: str, device: str, copies: int = 1, **options: Any
) -> Any:
    """Return a loader of the rows, `copies` times, with batches made on a device."""
    from tutorlib import KerasSequenceLoader

    options |= {"schema": data.schema, "batch_layout": layout, "device": device}
    return KerasSequenceLoader(files_of(copied(data.parquet, copies)), size, **options)


def of_backend(settings: Settings, in_jax: str, in_tensorflow: str) -> Any:
    """Return a function of the backend's library, by the name that it has there."""
    module, _, name = (in_jax if settings.backend == "jax" else in_tensorflow).rpartition(".")
    return getattr(importlib.import_module(module), name)


def arrays_on(device: str) -> Any:
    """Return the library whose arrays are on a device."""
    if device == "cpu":
        return np
    import cupy

    return cupy


def wait(settings: Settings) -> None:
    """Wait for all work of the device. On the CPU, what is measured waits for itself."""
    if settings.device == "gpu":
        from tutorlib.gpu.batches import wait_for_gpu

        arrays_on("gpu").cuda.get_current_stream().synchronize()
        wait_for_gpu()


@contextlib.contextmanager
def repeating(call: Callable[[], Any], threads: int) -> Iterator[None]:
    """Call a function again and again on threads while the block runs."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            call()

    with ThreadPoolExecutor(max(1, threads)) as pool:
        running = [pool.submit(repeat) for _ in range(threads)]
        try:
            yield
        finally:
            stop.set()
    for one in running:
        one.result()


# ---- gate ---------------------------------------------------------------------------------------


def gate(settings: Settings, report: Report) -> None:
    """Check that batches are right; fail if one check finds a fault or cannot be done."""
    wrong = []

    def check(name: str, function: Callable[..., str], *of: Any) -> None:
        try:
            report[name] = function(settings, *of)
        except Exception as error:  # the other checks say more about it
            words = str(error).replace(f"{ROOT}{os.sep}", "")
            report[name] = f"{type(error).__name__}: {words[:300]}"
            wrong.append(name)

    for shape, layouts in ((criteo_shape, LAYOUTS), (movielens_shape, LAYOUTS[:1])):
        rows, group_rows = settings.rows // 4, settings.group_rows // 4
        data = shape(settings.data, rows, row_group_rows=group_rows)
        for layout, size in itertools.product(layouts, BATCHES):
            check(f"same batches: {data.name}, {layout}, {size}", same_batches, data, layout, size)
    for layout in LAYOUTS:
        check(f"whole when dropped at once: {layout}", whole_when_dropped, layout)
    check("exit", exits)
    check("pytest", tests)
    if wrong:
        raise SystemExit(f"wrong: {'; '.join(wrong)}")


def same_batches(settings: Settings, data: Any, layout: str, size: int) -> str:
    """Compare the batches of each device with NumPy's, but for the width of integers."""
    import keras

    options = {"buffer_size": data.rows // 8, "parts_per_chunk": 2}  # several chunks
    for device in settings.devices:
        ours = loader_of(data, size, layout, device, **options)
        theirs = loader_of(data, size, layout, "cpu", **options).as_numpy()
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            keras.tree.assert_same_structure(one, other)
            for tensor, want in zip(*map(keras.tree.flatten, (one, other)), strict=True):
                array = keras.ops.convert_to_numpy(tensor)
                if array.dtype.kind != want.dtype.kind or not np.array_equal(array, want):
                    raise Failed(f"{device}, batch {number}: {array.dtype}{array.shape}")
    return "yes"


def whole_when_dropped(settings: Settings, layout: str) -> str:
    """Check the sums of batches that are dropped before the device, kept busy, has read them.

    Meanwhile a thread takes memory and overwrites it. Values are added up as whole numbers of
    1/1024, modulo 2**32, so that their order is no matter.
    """
    import keras

    data, library, ops, sums = click_log(settings), arrays_on(settings.device), keras.ops, []
    integer = "int32" if settings.backend == "jax" else "int64"  # TensorFlow's int32 is on the CPU
    compiled = of_backend(settings, "jax.jit", "tensorflow.function")
    keep_busy = compiled(lambda x: ops.sum(x @ x @ x))
    add_up = compiled(lambda batch: sum(ops.sum(ops.cast(1024 * x, integer)) for x in batch))
    matrix = ops.ones((settings.side, settings.side))

    def overwrite() -> None:
        for power in range(14, 26):
            int(library.full(2**power, 0xFF, "uint8")[-1])  # waits for it

    options = {"buffer_size": settings.group_rows, "threads": 4}
    loader = loader_of(data, settings.group_rows // 2, layout, settings.device, **options)
    with repeating(overwrite, threads=1):
        for batch in itertools.chain(loader, loader):
            keep_busy(matrix)
            sums.append(add_up(keras.tree.flatten(batch)))
            del batch
        found = sum(map(int, sums))
    expected = 0
    for column in pa.concat_tables(map(pq.read_table, files_of(data.parquet))).columns:
        expected += 2 * int(np.sum((1024 * column.to_numpy()).astype("int32"), dtype="int64"))
    if (found - expected) % 2**32:
        raise Failed(f"two passes add up to {found % 2**32}, not to {expected % 2**32}")
    return f"yes, {len(sums)} batches"


def exits(settings: Settings) -> str:
    """Check that three processes that end in the middle of an epoch end without an error."""
    running = [subprocess.Popen(command("exit", settings), cwd=ROOT) for _ in range(3)]
    if any(statuses := [process.wait() for process in running]):
        raise Failed(f"in mid-epoch, with the statuses {statuses}")
    return "in mid-epoch, three times, without an error"


_open: list[Any] = []  # when the program ends


def exit_in_mid_epoch(settings: Settings, report: Report) -> None:
    """Take two batches of many, and return."""
    batches = iter(loader_of(click_log(settings), BATCHES[1], LAYOUTS[0], settings.device))
    _open.extend([batches, next(batches), next(batches)])


def tests(settings: Settings) -> str:
    """Run the tests of batches on a GPU that matter most under this backend."""
    if not find_spec("tensorflow"):
        return NO_TENSORFLOW
    words = [sys.executable, "-m", "pytest", "-v", "-rs", "-m", "gpu"]
    words += ["-k", TESTS[settings.backend]]
    words += ["-o", "filterwarnings=default", "-p", "no:cacheprovider", "--tb=short"]
    words.append("tests/loader/test_gpu_batches.py")
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}  # those of JAX are processes
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    if done.returncode:
        raise Failed(f"exit status {done.returncode}")
    return done.stdout.splitlines()[-1].strip("= ")


# ---- calls --------------------------------------------------------------------------------------


def calls(settings: Settings, report: Report) -> None:
    """Time single calls, idle and beside four threads that decode a row group each."""
    report["each call"] = "microseconds until it has returned, until the device has done it"
    data, library = click_log(settings), arrays_on(settings.device)
    loader = loader_of(data, settings.batch, LAYOUTS[0], settings.device)  # sets the memory up
    plan = loader._current_plan
    rows = plan.chunks[0].num_rows
    order, column = library.asarray(plan.order(0)), library.arange(rows, dtype=np.int32)
    timed: dict[str, tuple[Callable[[], Any], float]] = {  # a call, and what it is divided by
        "min and max of a column": (lambda: (column.min(), column.max()), 1),
        "take of a column": (lambda: column.take(order), 1),
        "order() of a chunk, ns a row": (lambda: plan.order(0), rows / 1000),
    }
    if settings.device == "gpu":
        pool = library.cuda.MemoryPool()
        timed["allocation, RMM"] = lambda: library.empty(settings.batch, np.int32), 1
        timed["allocation, CuPy's pool"] = lambda: pool.malloc(4 * settings.batch), 1
    else:
        report["allocation, RMM and CuPy's pool"] = NO_CARD
    if settings.backend == "jax":
        timed |= calls_of_jax(settings, rows)
    else:
        report["calls of JAX"] = NO_JAX
    source = ParquetSource(files_of(data.parquet))
    decoding = functools.partial(decode, settings.device, source, [0])
    for threads in (0, 4):
        with repeating(decoding, threads):
            for name, (call, count) in timed.items():
                took = seconds_of(call, settings.call_s, functools.partial(wait, settings))
                place = f"beside {threads} threads that decode" if threads else "idle"
                each = [round(1e6 * seconds / count, 1) for seconds in took]
                report[name] = {**report.get(name, {}), place: each}


def seconds_of(
    call: Callable[[], Any], least_s: float, wait: Callable[[], Any] = measure.nothing
) -> list[float]:
    """Return the mean seconds of a call until it returned, and until the device was done."""
    call()
    wait()
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < least_s:
        call()
        done += 1
    returned = time.perf_counter()
    wait()
    return [(moment - started) / done for moment in (returned, time.perf_counter())]


def calls_of_jax(settings: Settings, rows: int) -> dict[str, tuple[Callable[[], Any], float]]:
    """Return the calls that JAX, and Keras on JAX, do for batches of 40 columns."""
    import jax
    import keras

    from tutorlib.keras_bridge.backend import cut_batch

    host = aligned_empty((settings.batch, 1), np.int32)
    host[:] = 1
    ours = arrays_on(settings.device).asarray(host)
    hosts, parts = [host] * 40, [np.ones((rows // settings.batch, 1, *host.shape), np.int32)] * 40
    wholes, tensors = jax.device_put(parts), jax.device_put(hosts)
    return {
        "from_dlpack of one array": (lambda: jax.dlpack.from_dlpack(ours), 1),
        "device_put of one NumPy array": (lambda: jax.device_put(host), 1),
        "device_put of one JAX array": (lambda: jax.device_put(tensors[0]), 1),
        "device_put of a list of 40 of a batch, each": (lambda: jax.device_put(hosts), 40),
        "device_put of a list of 40 of a part, each": (lambda: jax.device_put(parts), 40),
        "compiled cut of 40 columns": (lambda: cut_batch(wholes, 1, settings.batch), 1),
        "Keras, each NumPy array": (lambda: keras.tree.map_structure(jax.device_put, hosts), 40),
        "Keras, each JAX array": (lambda: keras.tree.map_structure(jax.device_put, tensors), 40),
    }


# ---- decoding -----------------------------------------------------------------------------------


def decode(device: str, source: ParquetSource, numbers: Sequence[int]) -> Any:
    """Return all columns of some row groups, as the loader decodes them on a device."""
    names = list(source.column_types)
    if device == "cpu":
        return [source.table(number, names) for number in numbers]
    from tutorlib.gpu import batches

    columns = batches.decode(source, numbers, names)
    arrays_on("gpu").cuda.get_current_stream().synchronize()
    return columns


def eight_groups(settings: Settings) -> list[str]:
    """Return eight copies of a file of eight row groups."""
    from tutorlib import ParquetSink

    data, rows = click_log(settings), 8 * settings.group_rows
    path = data.folder / "eight-row-groups"
    if not path.exists():
        table = pa.concat_tables(map(pq.read_table, files_of(data.parquet))).slice(0, rows)
        with ParquetSink(path, row_group_rows=rows // 8, rows_per_file=rows) as sink:
            sink.write(table)
    return files_of(copied(path, 8))


def decoding(settings: Settings, report: Report) -> None:
    """Time the call that decodes eight row groups, in a process for each setting of KvikIO."""
    report["rows of a call"] = 8 * settings.group_rows
    for kvikio in (1, 4, 8, 16) if settings.device == "gpu" else (NO_CARD,):
        work = settings, eight_groups(settings), kvikio
        times = measure.in_fresh_process(decoding_times, work)
        report[f"ms of a call, KVIKIO_NTHREADS: {kvikio}"] = times


def decoding_times(work: tuple[Settings, Sequence[str], Any]) -> dict[str, float]:
    """Return milliseconds of a call, by the files of its row groups and the threads that call."""
    settings, files, kvikio = work
    source, times = ParquetSource(files), {}
    if settings.device == "gpu":
        os.environ["KVIKIO_NTHREADS"] = str(kvikio)  # read when cuDF is imported
        import rmm

        rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
    for count, threads in itertools.product((1, 2, 4, 8), (1, 2)):
        numbers = [8 * file + group for file in range(count) for group in range(8 // count)]
        call = functools.partial(decode, settings.device, source, numbers)
        with repeating(call, threads - 1):
            took = seconds_of(call, settings.call_s)[0]
        times[f"{count} files, {threads} threads"] = round(1000 * took, 2)
    return times


# ---- loader, cores ------------------------------------------------------------------------------


def loader(settings: Settings, report: Report) -> None:
    """Read with all layouts, batch sizes and devices in turns."""
    read_in_turns(settings, report, list(itertools.product(LAYOUTS, BATCHES)), turns=3)


def cores(settings: Settings, report: Report) -> None:
    """Read on some of the cores that this process may use."""
    available = sorted(os.sched_getaffinity(0))
    for count in (count for count in (2, 4, 8, 16) if count <= usable_cores()):
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), available[:count])
        pa.set_cpu_count(count)
        forms = list(zip(LAYOUTS, BATCHES, strict=True))
        read_in_turns(settings, report, forms, turns=1, place=f", {count} cores")


def read_in_turns(
    settings: Settings, report: Report, forms: Sequence[Any], turns: int, place: str = ""
) -> None:
    """Report the rows/s of each turn, and the seconds that its stages took."""
    readers = {}
    for (layout, size), device in itertools.product(forms, settings.devices):
        reader = loader_of(click_log(settings), size, layout, device, settings.copies)
        readers[f"{device}, {layout}, {size}"] = reader
    rates: dict[str, list[int]] = {name: [] for name in readers}
    stages: dict[str, Any] = {}
    for turn, (name, reader) in itertools.product(range(1 + turns), readers.items()):
        rate, seconds = reading(reader, settings, settings.turn_s / (1 if turn else 3))
        if turn:  # the first warms up
            rates[name].append(round(rate))
            stages[f"{name}, turn {turn}"] = seconds
            report[f"rows/s{place}"], report[f"seconds by stage{place}"] = rates, stages


def reading(loader: Any, settings: Settings, least_s: float) -> tuple[float, dict[str, float]]:
    """Read for some seconds; return rows/s, and seconds by stage and until the first batch."""
    rows, before = 0, loader.stats()
    stages: dict[str, float] = {}
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    started = time.perf_counter()
    for _, label in batches:
        rows += label.shape[0]
        now = time.perf_counter() - started
        stages.setdefault("first_batch_s", now)
        if now >= least_s:
            break
    wait(settings)
    stages["elapsed_s"] = time.perf_counter() - started
    stages |= {n: s - before[n] for n, s in loader.stats().items() if n.endswith("_s")}
    del batches  # ends the pass
    return rows / stages["elapsed_s"], {name: round(s, 4) for name, s in stages.items()}


# ---- training, trace ----------------------------------------------------------------------------


def training(settings: Settings, report: Report) -> None:
    """Train a DLRM of each layout from all readers in turns; say the share of no reader's rate."""
    data, size = click_log(settings), settings.batch
    most = settings.copies * data.rows // size  # steps of a pass
    rates: dict[str, list[int]] = {}
    first_s, epochs = {}, {}
    watched = settings.device == "gpu" and shutil.which("nvidia-smi") is not None
    for layout in LAYOUTS:
        readers = {d: loader_of(data, size, layout, d, settings.copies) for d in settings.devices}
        held = list(itertools.islice(readers[settings.device], 32))
        readers["no reader"] = held_batches(held * (1 + most // 32))
        if find_spec("tensorflow"):
            readers["TFRecord"] = tfrecords_of(settings, data, layout)
        else:
            report["TFRecord"] = NO_TENSORFLOW
        fit, steps = trainer(settings, data, layout), {}
        report[f"seconds with compilation: {layout}"] = fit(readers["no reader"], 2)["elapsed_s"]
        for name, batches in readers.items():  # the warm-up
            if name != "no reader":
                started = time.perf_counter()
                next(iter(batches))
                first_s[f"{name}, {layout}"] = round(time.perf_counter() - started, 4)
                report["seconds until the first batch"] = first_s
            some = 4 if name == "TFRecord" else min(most, 128)
            fit(batches, 4)
            per_s = some / fit(batches, some)["elapsed_s"]
            steps[name] = min(most, 1 + int(1.1 * settings.epoch_s * per_s))
        for turn, (name, batches) in itertools.product(range(2), readers.items()):
            answers, way = fit(batches, steps[name], watched), f"{name}, {layout}"
            rates.setdefault(way, []).append(round(steps[name] * size / answers["elapsed_s"]))
            epochs[f"{way}, turn {1 + turn}"] = answers
            report["samples/s of a DLRM"], report["epochs"] = rates, epochs
        medians = {name: statistics.median(rates[f"{name}, {layout}"]) for name in readers}
        shares = {name: round(rate / medians["no reader"], 3) for name, rate in medians.items()}
        report[f"share of the rate without a reader: {layout}"] = shares


def trainer(settings: Settings, data: Any, layout: str) -> Callable[..., dict[str, float]]:
    """Return a function that trains a DLRM for some steps and returns what that took."""
    import keras

    from benchmarks.networks import NETWORKS

    network = NETWORKS["dlrm"](data.schema, settings.widths)
    keras.utils.set_random_seed(0)
    model = network.by_column() if layout == "columns" else network.fused()
    model.compile("sgd", "binary_crossentropy")

    def fit(batches: Any, steps: int, watched: bool = False) -> dict[str, float]:
        moments = []

        def note(*_: Any) -> None:
            wait(settings)
            moments.append(time.perf_counter())

        clock = keras.callbacks.LambdaCallback(on_epoch_begin=note, on_epoch_end=note)
        with measure.GpuWatch() if watched else contextlib.nullcontext() as watch:
            options = {"steps_per_epoch": steps, "callbacks": [clock], "verbose": 0}
            [loss] = model.fit(batches, **options).history["loss"]
        elapsed_s = round(moments[1] - moments[0], 4)
        answers = {"elapsed_s": elapsed_s, "steps": steps, "loss": loss}
        return answers | ({"busy_share": watch.busy_share} if watch else {})

    return fit


def tfrecords_of(settings: Settings, data: Any, layout: str) -> Any:
    """Return endless batches of TFRecord with an example a row, as TensorFlow reads them."""
    import tensorflow as tf

    import tfrecords

    if settings.backend == "jax":
        tf.config.set_visible_devices([], "GPU")  # it reads, and must not take memory of the card
    rows = data.rows // 8
    if layout == "stacked":
        return vectors(data.vectors(rows), settings.batch, data.schema).repeat()
    return tfrecords.native_dataset(data.examples(rows), settings.batch, data.schema).repeat()


def trace(settings: Settings, report: Report) -> None:
    """Trace ten steps with batches of each device; say what was copied to and from the card."""
    from tests.support.gpu import copied_bytes

    profiler = of_backend(
        settings, "jax.profiler.trace", "tensorflow.profiler.experimental.Profile"
    )
    data = click_log(settings)
    fit = trainer(settings, data, LAYOUTS[0])
    for device in settings.devices:
        batches = loader_of(data, settings.batch, LAYOUTS[0], device)
        fit(batches, 10)
        folder = settings.out / f"trace-{device}"
        shutil.rmtree(folder, ignore_errors=True)
        with profiler(str(folder)):
            answers = fit(batches, 10)
        report[f"ten steps, batches of the {device}"] = answers | copied_bytes(folder)


PARTS: Mapping[str, tuple[int, Callable[[Settings, Report], None]]] = {  # limit in seconds
    "machine": (30, machine),
    "gate": (120, gate),
    "calls": (40, calls),
    "decoding": (45, decoding),
    "loader": (85, loader),
    "training": (175, training),
    "cores": (55, cores),
    "trace": (45, trace),
}
