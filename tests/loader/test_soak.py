"""A day in the life: thousands of epochs leave memory, threads and open files as they were."""

import concurrent.futures
import gc
import multiprocessing
import re
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.leftovers import come_to_an_end, open_files, passes_in_memory
from tutorlib.columns import Chunk, Ragged
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSink

EPOCHS, WARM_UP = 2000, 400
ROWS, BATCH = 8192, 2048  # an epoch takes 230 kB: what is kept of 1,600 makes 360 MB
GROWTH = 16 * 2**20  # bytes; measured: up to 7 MiB, that do not become more in 8,000 epochs


def write_data(folder):
    rows = np.arange(ROWS)
    chunk = Chunk(
        {
            "row": rows,
            "x": rows / 8,
            "tags": Ragged(np.repeat(rows, 2), 2 * np.arange(ROWS + 1)),
            "y": (rows % 2).astype("float32"),
        }
    )
    with ParquetSink(folder, row_group_rows=4096, rows_per_file=4096) as sink:
        sink.write(chunk)


def in_use():
    """What this process holds once the threads of passes that were dropped have ended."""
    assert come_to_an_end(lambda: [t for t in threading.enumerate() if "tutorlib" in t.name])
    gc.collect()
    # TensorFlow keeps an empty list (72 bytes) for each thread that has run one of its ops.
    objects = [each for each in gc.get_objects() if type(each) is not list or each]
    status = Path("/proc/self/status").read_text()
    return {
        "bytes": int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024,
        "arrow_bytes": pa.total_allocated_bytes(),
        "objects": len(objects),
        "passes": len(passes_in_memory()),
        "threads": threading.active_count(),
        "files": open_files(),
    }


def live(folder):
    """Use one loader for all epochs; returns what was in use after the warm-up and in the end."""
    unlucky = False

    def fail_on_unlucky_days(chunk):
        if unlucky:
            raise LookupError("an unlucky day")
        return chunk

    loader = KerasSequenceLoader(
        folder,
        BATCH,
        ["y"],
        cat_names=["row", "tags"],
        cont_names=["x"],
        buffer_size=2100,  # row groups of 4,096 rows: in two slices
        parts_per_chunk=2,
        reader_kwargs={"threads": 2},
    ).map(fail_on_unlucky_days)
    wholes = np.zeros(ROWS, int)
    for epoch in range(EPOCHS):
        if epoch == WARM_UP:
            loader.source.close()
            before = in_use()
        unlucky = epoch % 100 == 99
        taken = []
        try:
            for batch, (inputs, _) in enumerate(loader):
                taken.append(inputs["row"].numpy()[:, 0])
                if epoch % 10 == 3 and batch == epoch // 10 % 4:
                    break
                if epoch % 10 == 5 and batch == 1:
                    loader.load_state_dict(loader.state_dict())
                    break
        except LookupError:
            assert unlucky
        else:
            assert not unlucky
        if len(taken) == 4:
            np.add.at(wholes, np.concatenate(taken), 1)
    loader.source.close()
    assert (wholes == wholes[0]).all()
    assert wholes[0] > EPOCHS / 2
    return before, in_use()


@pytest.mark.timeout(300)
def test_2000_epochs_leave_memory_threads_and_files_as_they_were(tmp_path):
    write_data(tmp_path / "data")
    spawn = multiprocessing.get_context("spawn")  # in a process that has done nothing else
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        before, after = pool.submit(live, tmp_path / "data").result()
    for name in ("arrow_bytes", "passes", "threads", "files"):
        assert after[name] == before[name], name
    assert after["objects"] - before["objects"] < (EPOCHS - WARM_UP) / 4
    assert after["bytes"] - before["bytes"] < GROWTH
