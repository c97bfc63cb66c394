"""What a loader must not leave behind: its threads, and what holds the memory of its batches."""

import gc
import os
import threading
import time

from tutorlib.loader.batches import ChunkWork
from tutorlib.loader.cursor import Batches
from tutorlib.loader.pipeline import Pipeline

PROMPT_S = 30  # far less than a hang, far more than a slow machine needs


def reader_threads():
    """Names of the loaders' threads that run, once what nobody holds is gone."""
    gc.collect()
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("tutorlib-reader")]


def come_to_an_end(left):
    """Whether `left()` becomes empty: what is dropped stops by itself, and nobody waits for it."""
    deadline = time.monotonic() + PROMPT_S
    while left() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not left()


def passes_in_memory():
    """Passes, and the chunks of their batches, that something still holds."""
    kinds = (Batches, Pipeline, ChunkWork)
    return [held for held in gc.get_objects() if type(held) in kinds]


def open_files():
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))
