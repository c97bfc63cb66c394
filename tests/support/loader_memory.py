"""Peak memory of a loader: files with drawn layouts, read in a fresh process that measures itself.

The process first reads a small file of the same columns, so that TensorFlow and Arrow have what
they keep. Then the kernel's record of the peak is reset. What counts is the increase of the
resident memory up to its peak, without the pages of mapped files.
"""

import dataclasses
import gc
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WARM_ROWS = 500
MB = 1_000_000


@dataclasses.dataclass(frozen=True)
class Layout:
    """Columns, row groups and settings of a loader.

    Args:
        rows: rows of each row group.
        columns: {name: kind}: "int8", "int32", "int64" or "float32"; ("list", law, mean), the
            mean being a number or one for each row group; ("string", bytes, distinct), the number
            of distinct values being None if all differ.
        budget: `memory_budget` in bytes.
        batch_size: rows per batch.
        passes: number of passes that take batches in turns.
        options: further arguments of the loader.
        mapped: "hash" maps strings to ids by a Workflow, "function" copies every column of numbers
            in a function, None maps nothing.
        parquet: further arguments of `pyarrow.parquet.ParquetWriter`.
        epochs: number of epochs.
        batches: batches to take of each pass; None for all.
    """

    rows: tuple[int, ...]
    columns: dict
    budget: int
    batch_size: int = 1000
    passes: int = 1
    options: dict = dataclasses.field(default_factory=dict)
    mapped: str | None = None
    parquet: dict = dataclasses.field(default_factory=dict)
    epochs: int = 1
    batches: int | None = None


def _lists(random, law, mean, rows):
    if law == "fixed":
        lengths = np.full(rows, round(mean))
    elif law == "pareto":
        lengths = (random.pareto(1.5, rows) * mean / 2).astype(np.int64)
    elif law == "sorted":
        lengths = np.sort(random.integers(0, 2 * mean + 1, rows))
    elif law == "late":  # a tenth of the rows, at the end, has nearly all values
        lengths = np.ones(rows, np.int64)
        lengths[-(rows // 10) :] = 10 * mean - 9
    else:
        lengths = random.integers(0, 2 * mean + 1, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = random.integers(1, 1000, offsets[-1])
    return pa.LargeListArray.from_arrays(offsets, values)


def _strings(random, nbytes, distinct, rows):
    count = rows if distinct is None else distinct
    texts = random.integers(97, 123, (count, nbytes), dtype=np.uint8)
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int64) * nbytes)
    array = pa.LargeStringArray.from_buffers(count, offsets, pa.py_buffer(texts))
    return array if distinct is None else array.take(pa.array(random.integers(0, count, rows)))


def _column(random, kind, group, rows):
    if isinstance(kind, str):
        if kind == "float32":
            return pa.array(random.random(rows, dtype=np.float32))
        return pa.array(random.integers(0, 100, rows, dtype=kind))
    if kind[0] == "list":
        mean = kind[2][group] if isinstance(kind[2], (list, tuple)) else kind[2]
        return _lists(random, kind[1], mean, rows)
    return _strings(random, kind[1], kind[2], rows)


def write(layout, folder, seed=0):
    """Write data.parquet and warm.parquet, of few rows."""
    random = np.random.default_rng(seed)
    distinct = [n for n, kind in layout.columns.items() if kind[0] == "string" and not kind[2]]
    dictionary = [name for name in layout.columns if name not in distinct]
    settings = {"use_dictionary": dictionary, **layout.parquet}
    for name, counts in (("warm.parquet", (WARM_ROWS,)), ("data.parquet", layout.rows)):
        writer = None
        for group, rows in enumerate(counts):
            table = pa.table(
                {n: _column(random, kind, group, rows) for n, kind in layout.columns.items()}
            )
            writer = writer or pq.ParquetWriter(Path(folder) / name, table.schema, **settings)
            writer.write_table(table, row_group_size=max(1, rows))
        writer.close()


def measure(layout, folder, seed=0):
    """Write the files, read them in a fresh process and return what it says as a dict.

    Returns:
        {"peak": bytes, "peaks": bytes after each epoch, "opened": bytes after opening, "planned":
        bytes, "arrow": most bytes that Arrow held, "seconds": of all epochs} or {"refused":
        message, "peak": bytes}.
    """
    write(layout, folder, seed)
    task = json.dumps({"folder": str(folder), **dataclasses.asdict(layout)})
    made = subprocess.run(
        [sys.executable, __file__, task], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise RuntimeError(f"{layout}: {made.stderr}")
    return json.loads(made.stdout.splitlines()[-1])


# ---- the fresh process --------------------------------------------------------------------------


def _status(name):
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\s+(\d+) kB", text, re.M)[1]) * 1024


def _loader(path, layout, budget):
    from tutorlib.columns import Chunk
    from tutorlib.loader import KerasSequenceLoader, MultiHot
    from tutorlib.ops import HashBucket
    from tutorlib.workflow import Workflow

    options = dict(layout.options)
    if "multi_hot" in options:
        options["multi_hot"] = MultiHot(**options["multi_hot"])
    loader = KerasSequenceLoader(path, layout.batch_size, memory_budget=budget, **options)
    if layout.mapped == "hash":
        strings = [n for n, kind in layout.columns.items() if kind[0] == "string"]
        workflow = Workflow(strings >> HashBucket(1000)).fit(str(path.parent / "warm.parquet"))
        loader.map(workflow)
    if layout.mapped == "function":
        loader.map(lambda chunk: Chunk({name: _copied(chunk[name]) for name in chunk}))
    return loader


def _copied(column):
    return column + 0 if isinstance(column, np.ndarray) else column


def _consume(loader, layout):
    passes = [iter(loader) for _ in range(layout.passes)]
    taken = 0
    while passes and taken != layout.batches:
        for batches in passes:
            if next(batches, None) is None:
                passes = []
                break
        taken += 1
    for batches in passes:
        batches.close()


def _filters(options):
    if "filters" in options:
        return {**options, "filters": [tuple(f) for f in options["filters"]]}
    return options


def main(task):
    folder = Path(task.pop("folder"))
    layout = Layout(**{**task, "options": _filters(task["options"])})
    small = dataclasses.replace(layout, passes=1)
    loader = _loader(folder / "warm.parquet", small, None)
    for _ in range(2):
        _consume(loader, small)
    loader.close()
    del loader
    gc.collect()
    before, mapped = _status("VmRSS"), _status("RssFile")
    Path("/proc/self/clear_refs").write_text("5")

    def growth():
        return _status("VmHWM") - before - max(0, _status("RssFile") - mapped)

    peaks, began = [], time.perf_counter()
    try:
        loader = _loader(folder / "data.parquet", layout, layout.budget)
        opened = growth()
        planned = loader.describe()["peak_bytes"]
        for _ in range(layout.epochs):
            _consume(loader, layout)
            peaks.append(growth())
    except (ValueError, RuntimeError, MemoryError) as error:
        print(json.dumps({"refused": str(error), "peak": growth(), "peaks": peaks}))
        return
    plan = loader.describe()
    print(
        json.dumps(
            {
                "peak": peaks[-1], "peaks": peaks, "opened": opened, "planned": planned,
                "arrow": pa.default_memory_pool().max_memory(),
                "seconds": time.perf_counter() - began,
                "chunk_rows": plan["chunk_rows"], "threads": plan["threads"],
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
