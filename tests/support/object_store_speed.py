"""Speed of a loader that reads from an object store, relative to the same files on this machine.

`python -m tests.support.object_store_speed --delay-ms 20` writes 4 million rows of 40 columns to a
temporary folder, serves them by `object_store`, and reads an epoch from the folder, from the store,
and from the store when it answers each request after the delay, in turns.

The server, in Python, uses the same cores as the loader. The quotient of the two epochs from the
store says what the delay costs; that of store and folder also has the server's share of the cores.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.support.object_store import object_store
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSink

IDS, NUMBERS = [f"C{n}" for n in range(26)], [f"I{n}" for n in range(13)]
STEP_ROWS = 2**18


def write(folder, rows, row_group_rows):
    """Write Criteo-shaped rows."""
    rng = np.random.default_rng(0)
    with ParquetSink(folder, row_group_rows=row_group_rows, rows_per_file=2**19) as sink:
        for _ in range(0, rows, STEP_ROWS):
            columns = {n: rng.zipf(1.2, STEP_ROWS).clip(0, 10**6).astype("int32") for n in IDS}
            columns |= {n: rng.random(STEP_ROWS, dtype="float32").round(3) for n in NUMBERS}
            sink.write(Chunk({**columns, "label": rng.random(STEP_ROWS, dtype="float32").round()}))


def epoch_s(path, threads):
    """Return the seconds that a new loader takes for an epoch, opening included."""
    options = {} if threads is None else {"reader_kwargs": {"threads": threads}}
    started = time.perf_counter()
    loader = KerasSequenceLoader(
        path, 16_384, cat_names=IDS, cont_names=NUMBERS, label_names=["label"], **options
    )
    for _ in loader:
        pass
    return time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument("--rows", type=int, default=2**22)
    parser.add_argument("--row-group-rows", type=int, default=131_072)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "bucket" / "train"
        folder.parent.mkdir()
        write(folder, given.rows, given.row_group_rows)
        times = {"folder": [], "store": [], "delayed": []}
        with object_store(Path(name)) as store:
            os.environ.update(store.environment)
            epoch_s(folder, None)  # imports, and fills the page cache
            for _ in range(given.turns):
                times["folder"].append(epoch_s(folder, None))
                for where, delay_ms in (("store", 0), ("delayed", given.delay_ms)):
                    store.requests(delay_ms=delay_ms)
                    times[where].append(epoch_s("s3://bucket/train", given.threads))
                    requests = len(store.requests())
    for where, seconds in times.items():
        rates = sorted(given.rows / s / 1e6 for s in seconds)
        middle, spread = statistics.median(rates), f"{rates[0]:.2f} to {rates[-1]:.2f}"
        print(f"{where}: {middle:.2f} million rows/s ({spread})")
    for one, other in (("store", "folder"), ("delayed", "folder"), ("delayed", "store")):
        ratios = sorted(b / a for a, b in zip(times[one], times[other], strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{one} / {other}: {statistics.median(ratios):.2f} ({spread})")
    groups = given.rows / given.row_group_rows
    print(f"{requests} requests an epoch of {groups:.0f} row groups, {given.delay_ms} ms each")


if __name__ == "__main__":
    main()
