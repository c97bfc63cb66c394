"""`python -m tests.attack.attack SEED CASES TARGET...`: damage files, and read each in a process.

A case damages one file of a target at random and reads the target in a fork with limits on memory
and processor time. It is right if that works, or raises an error of the documented kind that names
a file. The seed and the number of the case decide everything. Prints a line per failure, and keeps
its files. Linux only, because of the limit on memory.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "attack"
# Address space is then little more than memory, and this process has one thread to fork from.
ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OPENBLAS_NUM_THREADS": "1",
}
SECONDS, MEMORY_BYTES = 20, 512 << 20  # of a case
# Arrow reserves a page's size before it reads the page: two sizes of 31 bits, of which it touches
# only what the file holds. More than that is a number that nobody has checked.
RESERVED_BYTES = 1 << 32

# ---- damage ------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    0, -1, 1, 2, 127, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63),
    10**400, 0.5, 1e-320, 1e308, float("nan"), float("-inf"), "", " ", "\0", "\ud800",
    "a" * 100_000, "../../etc/passwd", "int8", "float32", "string", "object", "nan", "1", None,
    True, [], {}, [None],
)  # fmt: skip
DEEP = "@deep@"  # becomes a list in a list in a list ...
FIELDS = (
    b"", b"0", b"-1", b"7", b"-99", b"abc", b"ABCDEF01", b"nan", b"inf", b"1e400", b"0.5",
    b"9" * 25, b"9223372036854775808", b"\0", b"\xff\xfe", b'"', b'""', b'"a', b'"a" b', b"a\nb",
    b"\r", b" 1", b"x" * 200_000, "é".encode(),
)  # fmt: skip


def edit_bytes(data: bytes, rng: Random) -> bytes:
    """Flip, overwrite, remove or repeat bytes; half of the edits hit the end, such as a footer."""
    start = rng.randrange(max(0, len(data) - 600) if rng.random() < 0.5 else 0, len(data) + 1)
    stop = min(len(data), start + rng.choice((1, 2, 8, 64, 1000)))
    part = data[start:stop]
    if not part:
        return data[:start] + b"\0"
    flipped = bytes([part[0] ^ 1 << rng.randrange(8)]) + part[1:]
    parts = (flipped, flipped, rng.randbytes(len(part)), b"\xff" * len(part), b"", 2 * part)
    return data[:start] + rng.choice(parts) + data[stop if rng.random() < 0.9 else len(data) :]


def edit_json(text: str, rng: Random) -> str:
    """Replace, remove, wrap or rename one value."""
    root = [json.loads(text)]
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            places.append((value, key))
            if isinstance(value[key], dict | list):
                visit(value[key])

    visit(root)
    container, key = rng.choice(places)
    kind, before = rng.choice(("replace", "replace", "remove", "wrap", "rename")), container[key]
    if kind == "remove" and container is not root:
        del container[key]
    elif kind == "rename" and isinstance(container, dict):
        container[str(rng.choice(VALUES))] = container.pop(key)
    elif kind == "wrap":
        container[key] = rng.choice(([before], {"a": before}))
    else:
        container[key] = rng.choice((*VALUES, DEEP))
    return json.dumps(root[0]).replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000)


def edit_lines(data: bytes, separator: bytes, rng: Random) -> bytes:
    """Change a field, the number of fields, or the number of lines."""
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    fields = lines[number].split(separator)
    place, kind = (
        rng.randrange(len(fields)),
        rng.choice(("field", "field", "fewer", "more", "twice")),
    )
    if kind == "twice":
        lines.insert(number, lines[number])
    elif kind == "fewer":
        del fields[place]
    else:
        fields[place : place + (kind == "field")] = [rng.choice(FIELDS)]
    if kind != "twice":
        lines[number] = separator.join(fields)
    return b"\n".join(lines)


def damage(folder: Path, rng: Random) -> str:
    """Change one file of a folder; return its name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    path = rng.choice(sorted(files))
    data, separators = path.read_bytes(), {".tsv": b"\t", ".csv": b","}
    if path.suffix == ".json" and rng.random() < 0.8:
        head, brace, rest = data.partition(b"{")  # a hash may come first
        data = head + edit_json((brace + rest).decode(), rng).encode("utf-8", "surrogatepass")
    elif path.suffix in separators and rng.random() < 0.8:
        data = edit_lines(data, separators[path.suffix], rng)
    else:
        data = edit_bytes(data, rng)
    path.write_bytes(data)
    return str(path.relative_to(folder))


# ---- targets: how each is made and read --------------------------------------------------------


def rows() -> pa.Table:
    """Return rows of several types, with nulls, lists and strings."""
    rng, number = np.random.default_rng(0), 300
    ids, some = rng.integers(0, 50, number), rng.random(number) < 0.1
    lists = [rng.integers(0, 9, count).tolist() for count in rng.integers(0, 5, number)]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "x": pa.array(rng.normal(size=number), pa.float32(), mask=some),
            "text": pa.array([None if id % 7 == 0 else f"t{id}" for id in ids.tolist()]),
            "tags": pa.array(lists, pa.list_(pa.int32())),
            "label": pa.array(rng.integers(0, 2, number), pa.float32()),
        }
    )


def make_parquet(folder: Path) -> None:
    from tutorlib.parquet import ParquetSink

    with ParquetSink(folder / "rows.parquet", row_group_rows=64) as sink:
        sink.write(rows())


def read_parquet(folder: Path) -> None:
    from tutorlib.parquet import ParquetSource

    source = ParquetSource(folder)
    source.fingerprint()
    if source.num_rows != 300 or None in map(source.null_count, source.column_types):
        raise AssertionError("rows are lost in silence")
    for position in range(len(source)):
        for chunk in source.steps(position, [*source.column_types], 70):
            chunk.to_arrow()


def make_workflow(folder: Path) -> None:
    from tutorlib.ops import Categorify, FillMissing, Normalize
    from tutorlib.workflow import Workflow

    numbers = ["x"] >> FillMissing(0.0) >> Normalize()
    workflow = Workflow(["id", "text", "tags"] >> Categorify(), numbers, ["label"])
    workflow.fit(rows(), progress=False).save(folder / "workflow")


def read_workflow(folder: Path) -> None:
    from tutorlib.workflow import Workflow

    Workflow.load(folder / "workflow").transform(rows())


def make_criteo(folder: Path) -> None:
    from data_prep.synthetic_criteo import write_criteo

    write_criteo(folder / "raw", rows=200, days=2, scale=0.001)


def read_criteo(folder: Path) -> None:
    from data_prep import criteo, output

    output.read_settings(folder / "raw")
    criteo.raw_to_parquet(folder / "raw", folder / "parquet")


def loader_and_model(folder: Path) -> Any:
    import keras

    from tutorlib.loader import KerasSequenceLoader
    from tutorlib.schema import Column, Schema

    inputs = [Column("id", "categorical"), Column("x", "continuous", "float32")]
    schema = Schema([*inputs, Column("label", "label", "float32")])
    pq.write_table(rows().select(["id", "label"]).append_column("x", rows()["label"]),
                   folder / "rows.parquet", row_group_size=50)  # fmt: skip
    x = keras.Input((1,), name="x")
    model = keras.Model({"x": x}, keras.layers.Dense(1)(x))
    model.compile("adam", "mse", run_eagerly=True)
    return KerasSequenceLoader(folder / "rows.parquet", 8, schema=schema), model


def make_checkpoint(folder: Path) -> None:
    from tutorlib.callbacks import LoaderCheckpoint

    loader, model = loader_and_model(folder)
    checkpoint = LoaderCheckpoint(folder / "checkpoints", loader, every_n_batches=3, keep=1)
    model.fit(loader, epochs=1, verbose=0, callbacks=[checkpoint])
    (folder / "rows.parquet").unlink()


def read_checkpoint(folder: Path) -> None:
    from tutorlib.callbacks import LoaderCheckpoint

    loader, model = loader_and_model(folder)
    with loader:
        LoaderCheckpoint(folder / "checkpoints", loader).restore(model)
        model.train_on_batch(*next(iter(loader)))


TARGETS = ("parquet", "workflow", "criteo", "checkpoint")


# ---- cases -------------------------------------------------------------------------------------


def run_limited(work: Callable[[], Any], seconds: float, memory_bytes: int) -> dict[str, Any]:
    """Return how `work()` ended in a fork of this process, which must have one thread.

    Returns:
        {"ended": "works", "raised", or in words how the process was killed; "kinds": of the error,
        "message", "memory": whether it took more than `memory_bytes`}.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            limit = taken + memory_bytes + RESERVED_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            outcome = outcome_of(work)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
            outcome["memory"] |= grown * 1024 > memory_bytes
            os.write(writing, json.dumps(outcome).encode())
        finally:
            os._exit(1)
    os.close(writing)
    answer = b""
    while select.select([reading], [], [], 3 * seconds)[0] and (part := os.read(reading, 1 << 16)):
        answer += part
    os.close(reading)
    if not answer:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if answer:
        return json.loads(answer)
    return {"ended": f"hangs or crashes (status {status})", "memory": False}


def outcome_of(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        work()
    except BaseException as error:
        chain, each = [], error
        while each is not None:
            chain.append(each)
            each = each.__cause__ or each.__context__
        return {
            "ended": "raised",
            "kinds": [kind.__name__ for kind in type(error).__mro__],
            "message": "\n".join([str(error), *getattr(error, "__notes__", [])])[:8000],
            "memory": any(isinstance(each, MemoryError) for each in chain),
            "traceback": traceback.format_exc()[-3000:],
        }
    return {"ended": "works", "memory": False}


def fault(outcome: dict[str, Any], names: Iterable[str]) -> str:
    """Return what is wrong with an outcome, "" if nothing is; an error must name one of `names`."""
    if outcome["memory"]:
        return "memory beyond the limit"
    if outcome["ended"] != "raised":
        return "" if outcome["ended"] == "works" else outcome["ended"]
    if not {"ValueError", "TypeError", "OSError", "DataPrepError"} & {*outcome["kinds"]}:
        return f"raw {outcome['kinds'][0]}"
    named = any(name in outcome["message"] for name in names)
    return "" if named else f"{outcome['kinds'][0]} that names no file"


def main(seed: str, cases: int, names: list[str]) -> int:
    """Attack the targets; return the number of failures."""
    failures = 0
    for name in names:
        if name == "checkpoint":
            importlib.import_module("tensorflow")  # once, in place of in every process
        make, read = globals()[f"make_{name}"], globals()[f"read_{name}"]
        with tempfile.TemporaryDirectory(prefix="attack-") as place:
            pristine, case = Path(place, "pristine"), Path(place, "case")
            pristine.mkdir()
            made = run_limited(functools.partial(make, pristine), 120, 1 << 33)
            assert made["ended"] == "works", made
            for number in range(-1, cases):  # case -1 is not damaged, and must work
                shutil.copytree(pristine, case)
                what = damage(case, Random(f"{seed}/{name}/{number}")) if number >= 0 else "nothing"
                known = [path.name for path in (case, *case.rglob("*"))]
                outcome = run_limited(functools.partial(read, case), SECONDS, MEMORY_BYTES)
                wrong = fault(outcome, known) or (outcome["ended"] != "works") * (number < 0)
                if wrong:
                    failures += 1
                    shutil.copytree(case, KEPT / f"{seed}-{name}-{number}", dirs_exist_ok=True)
                    print(f"{name} {number}: {wrong}, damaged: {what}", outcome.get("traceback"))
                shutil.rmtree(case)
        print(f"{name}: {cases} cases", flush=True)
    return failures


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        command = [sys.executable, "-m", "tests.attack.attack", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | ENVIRONMENT)
    sys.exit(min(1, main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])))
