"""A pass that is ended from outside: Ctrl-C, break, exit, fork. No hang, no thread, no memory.

Faults in files and values are in test_faults.py.
"""

import gc
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from tests.support.leftovers import (
    PROMPT_S,
    come_to_an_end,
    open_files,
    passes_in_memory,
    reader_threads,
)
from tests.support.loaders import loader_with
from tutorlib.columns import Ragged
from tutorlib.parquet import ParquetSource

ROWS = 1000
FILES = {"row_group_rows": 100, "rows_per_file": 400}


@pytest.fixture(scope="module")
def columns():
    rows = np.arange(ROWS)
    lists = Ragged(np.repeat(rows, 2), 2 * np.arange(ROWS + 1))
    return {"row": rows, "tags": lists, "y": (rows % 2).astype("float32")}


loader_of = loader_with(
    20, label_names=["y"], cat_names=["row", "tags"], cont_names=[], buffer_size=60
)


def row_numbers(batches):
    rows = []
    for inputs, _ in batches:
        rows += inputs["row"].numpy()[:, 0].tolist()
        assert inputs["tags__values"].numpy()[::2, 0].tolist() == rows[-len(inputs["row"]) :]
    return rows


# ---- within one process --------------------------------------------------------------------------


def test_a_break_ends_the_pass_at_once(folder):
    loader = loader_of(folder)
    for _ in loader:
        break
    assert come_to_an_end(reader_threads)
    gc.collect()
    assert come_to_an_end(passes_in_memory)
    assert sorted(row_numbers(loader)) == list(range(ROWS))


def test_a_loader_that_is_dropped_leaves_nothing(folder):
    loader = loader_of(folder)
    dropped, source = weakref.ref(loader), weakref.ref(loader.source)
    batches = iter(loader)
    next(batches)
    assert reader_threads()
    del loader, batches
    assert come_to_an_end(reader_threads)
    gc.collect()
    assert come_to_an_end(passes_in_memory)
    assert dropped() is None
    assert source() is None


def test_a_loader_that_is_dropped_before_its_pass_gives_the_rest(folder):
    batches = iter(loader_of(folder))
    first = next(batches)
    gc.collect()
    assert sorted(row_numbers([first, *batches])) == list(range(ROWS))
    assert come_to_an_end(reader_threads)


def test_a_loader_that_is_dropped_closes_its_files(folder):
    gc.collect()  # what earlier tests left must not close its files meanwhile
    files = open_files()
    loader = loader_of(folder)  # row groups of 100 rows in slices of 50: they stay open
    batches = iter(loader)
    next(batches)
    assert come_to_an_end(lambda: open_files() == files)  # one is read ahead, and stays open
    del loader, batches
    gc.collect()
    assert come_to_an_end(lambda: open_files() != files)


def test_close_ends_a_pass_that_can_go_on_anew(folder):
    with loader_of(folder) as loader:
        batches = iter(loader)
        next(batches)
        loader.close()
        assert not reader_threads()
        assert list(batches) == []
        assert sorted(row_numbers(loader)) == list(range(ROWS))
        next(iter(loader))
    assert not reader_threads()


def test_close_ends_a_pass_that_waits_on_another_thread(folder):
    reading, go_on = threading.Event(), threading.Event()

    def wait(chunk):
        reading.set()
        assert go_on.wait(PROMPT_S)
        return chunk

    loader = loader_of(folder).map(wait)
    ended = []
    consumer = threading.Thread(target=lambda: ended.append(list(loader)))
    consumer.start()
    assert reading.wait(PROMPT_S)
    closing = threading.Thread(target=loader.close)
    closing.start()
    go_on.set()
    for thread in (closing, consumer):
        thread.join(PROMPT_S)
        assert not thread.is_alive()
    assert ended == [[]]
    assert not reader_threads()


def test_a_pass_that_is_closed_on_its_own_thread_does_not_wait_for_itself(folder):
    def end(chunk):
        pipeline.close()
        return chunk

    loader = loader_of(folder).map(end)
    pipeline = loader._new_pipeline()
    assert pipeline.next_batch() is None
    assert come_to_an_end(reader_threads)


@pytest.mark.parametrize("share", [lambda folder: folder, ParquetSource], ids=["files", "source"])
def test_passes_at_once_do_not_disturb_each_other(folder, share):
    """Two loaders, and two passes of one of them; on one source they share its open files."""
    data = share(folder)
    one, two = loader_of(data), loader_of(data, seed=3)
    passes = list(zip(one, two, one, strict=True))
    first, second, third = [row_numbers([batches[k] for batches in passes]) for k in range(3)]
    assert first == third == row_numbers(loader_of(data))
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second


def test_loaders_on_threads_of_their_own_do_not_disturb_each_other(folder):
    source = ParquetSource(folder)
    want = [row_numbers(loader_of(source, seed=seed)) for seed in range(4)]
    have = {}

    def consume(seed):
        loader = loader_of(source, seed=seed)
        have[seed] = row_numbers(loader)

    threads = [threading.Thread(target=consume, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PROMPT_S)
    assert [have.get(seed) for seed in range(4)] == want


# ---- processes of their own ----------------------------------------------------------------------

BEGIN = """
import os, signal, sys, threading, time
import keras
from tutorlib.loader import KerasSequenceLoader

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent does with it

def reader_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("tutorlib-reader")]

def reader_threads_in_the_end():
    deadline = time.monotonic() + 20  # what is dropped stops by itself
    while reader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return reader_threads()

def slowly(chunk):
    time.sleep(0.3)
    return chunk

loader = KerasSequenceLoader(
    sys.argv[1], 20, ["y"], cat_names=["row", "tags"], cont_names=[], buffer_size=60
)
"""


def start(root, folder, script):
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + script, str(folder)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(process):
    """Wait for a process; returns its exit status, output and error output."""
    try:
        output, errors = process.communicate(timeout=PROMPT_S)
    finally:
        process.kill()
    return process.returncode, output, errors


WAITING = """
for batch in loader.map(slowly):
    print("ready", flush=True)
"""

COMPUTING = """
try:
    for batch in loader:
        print("ready", flush=True)
        time.sleep(100)
finally:
    print(reader_threads_in_the_end())
"""

FITTING = """
class Pause(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("ready", flush=True)
        time.sleep(100)

inputs = {
    name: keras.Input((1,), name=name, dtype="int32")
    for name in ("row", "tags__values", "tags__nnzs")
}
model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Embedding(1000, 1)(inputs["row"])))
model.compile("sgd", "mse")
try:
    model.fit(loader, verbose=0, callbacks=[Pause()])
except KeyboardInterrupt:
    loader.close()
    print(reader_threads_in_the_end())
    raise
"""


@pytest.mark.parametrize(
    ("script", "last_words"),
    [(WAITING, ""), (COMPUTING, "[]\n"), (FITTING, "[]\n")],
    ids=["waiting for a batch", "computing", "in fit"],
)
def test_ctrl_c_ends_the_process_at_once(root, folder, script, last_words):
    process = start(root, folder, script)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    status, output, errors = end_of(process)
    assert time.monotonic() - started < PROMPT_S
    assert status == -signal.SIGINT
    assert output.endswith(last_words)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in errors


@pytest.mark.parametrize(
    ("end", "want"),
    [("pass", 0), ("raise LookupError('of the script')", 1)],
    ids=["end of the script", "an error"],
)
def test_a_process_that_ends_amid_an_epoch_ends_quietly(root, folder, end, want):
    script = f"batches = iter(loader.map(slowly))\nnext(batches)\n{end}"
    status, _, errors = end_of(start(root, folder, script))
    assert status == want
    assert errors.count("Traceback") == errors.count("LookupError: of the script")
    assert "Fatal" not in errors
    assert "Exception ignored" not in errors


FORKING = """
def rows_of(batches):
    return sorted(row for inputs, _ in batches for row in inputs["row"].numpy()[:, 0].tolist())

batches = iter(loader)
taken = [next(batches)]
for moment in range(10):
    taken.append(next(batches))
    time.sleep(moment / 2000)  # the fork may come while any thread holds any lock
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            next(batches)
            os._exit(2)
        except RuntimeError as error:
            if "began before the process was forked" not in str(error):
                os._exit(3)
        loader.close()
        if rows_of(loader) != list(range(1000)):
            os._exit(4)
        os._exit(0)  # as multiprocessing does; a fork of TensorFlow cannot end in another way
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
print(rows_of([*taken, *batches]) == list(range(1000)))
"""


def test_a_fork_begins_anew_and_leaves_its_parents_pass_unharmed(root, folder):
    status, output, errors = end_of(start(root, folder, FORKING))
    assert (status, output.split()) == (0, [*["0"] * 10, "True"]), errors
