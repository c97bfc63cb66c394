"""Ctrl-C at any moment: no hang, no thread left, and the next pass is whole.

Python raises KeyboardInterrupt on the main thread between any two steps of it, and drops objects on
whatever thread happens to run. Neither may leave a lock held that another thread waits for.
"""

import gc
import itertools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.support.leftovers import PROMPT_S, come_to_an_end, reader_threads
from tests.support.loaders import loader_with

ROWS = 20_000
FILES = {"row_group_rows": 2000}
loader_of = loader_with(20, label_names=["y"], cat_names=["row"], cont_names=[], buffer_size=60)


@pytest.fixture(scope="module")
def columns():
    return {"row": np.arange(ROWS), "y": np.zeros(ROWS, "float32")}


def rows_of(batches):
    return sorted(row for inputs, _ in batches for row in inputs["row"].numpy()[:, 0].tolist())


STORM = """
import faulthandler, os, random, signal, sys, threading, time
from tutorlib.loader import KerasSequenceLoader

faulthandler.dump_traceback_later(90, exit=True)
left = 0  # interrupts that may be raised; the rest of this script is not to be hit

def interrupt(number, frame):
    global left
    if left:
        left -= 1
        raise KeyboardInterrupt

def send():
    moments, main = random.Random(7), threading.main_thread().ident
    while interrupted < 300:
        time.sleep(moments.expovariate(500))
        signal.pthread_kill(main, signal.SIGINT)

def reader_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("tutorlib-reader")]

loader = KerasSequenceLoader(
    sys.argv[1], 1, ["y"], cat_names=["row"], cont_names=[], buffer_size=6000
)
list(loader)
interrupted = 0
signal.signal(signal.SIGINT, interrupt)
threading.Thread(target=send, daemon=True).start()
while interrupted < 300:
    try:
        left = 1 + interrupted % 2  # the second one finds the loader closing
        while True:
            for batch in loader:
                pass
            left = left or 1  # Python drops an interrupt that comes inside a __del__
    except KeyboardInterrupt:
        pass
    interrupted += 1
left = 0
loader.close()
deadline = time.monotonic() + 20
while reader_threads() and time.monotonic() < deadline:
    time.sleep(0.01)
rows = sorted(row for inputs, _ in loader for row in inputs["row"].numpy()[:, 0].tolist())
print(reader_threads(), rows == list(range(20_000)))
"""


def test_300_interrupts_of_a_loop_of_fast_batches_end_and_leave_no_thread(root, folder):
    ended = subprocess.run(
        [sys.executable, "-c", STORM, str(folder)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=4 * PROMPT_S,
    )
    assert (ended.returncode, ended.stdout) == (0, "[] True\n"), ended.stderr[-3000:]


class Interrupting:
    """Raises KeyboardInterrupt at one bytecode of a pass and its pipeline, on this thread."""

    FILES = ("batches.py", "cursor.py", "pipeline.py")

    def __init__(self, at):
        self.left = at

    def __call__(self, frame, event, _):
        if os.path.basename(frame.f_code.co_filename) not in self.FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def interrupted_at(loader, bytecode):
    """Whether taking and dropping a pass was interrupted at a bytecode; False if it has fewer."""
    sys.settrace(Interrupting(bytecode))
    try:
        for number, _ in enumerate(loader):
            if number == 4:
                break
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.timeout(300)
def test_an_interrupt_at_any_bytecode_leaves_no_thread_and_the_loader_whole(folder):
    loader = loader_of(folder, limit_rows=200, reader_kwargs={"threads": 2})
    bytecode = 1
    while interrupted_at(loader, bytecode):
        loader.close()
        bytecode += 1
    assert bytecode > 200
    loader.close()
    assert come_to_an_end(reader_threads)
    assert rows_of(loader) == list(range(200))


@pytest.mark.parametrize("by", ["its last reference", "the collector"])
def test_a_pass_that_is_dropped_stops_without_waiting(folder, by):
    """Whoever drops it may hold a lock that a thread of the pass waits for; here it does."""
    lock, waiting, calls = threading.Lock(), threading.Event(), itertools.count()

    def wait(chunk):
        if next(calls):
            waiting.set()
            with lock:
                pass
        return chunk

    loader = loader_of(folder, 25, buffer_size=50, reader_kwargs={"threads": 1}).map(wait)
    with lock:
        held = [iter(loader)]
        next(held[0])
        assert waiting.wait(PROMPT_S)
        if by == "the collector":
            held.append(held)
        del held
        gc.collect()
    assert come_to_an_end(reader_threads)
