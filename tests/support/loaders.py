"""Loaders with common settings; what they must not leave behind: threads, memory of batches."""

import gc
import itertools
import json
import os
import threading
import time

from tutorlib.loader import KerasSequenceLoader
from tutorlib.loader.batches import Batches
from tutorlib.loader.chunks import Part
from tutorlib.loader.pipeline import Pipeline

PROMPT_S = 30  # far less than a hang, far more than a slow machine needs


def loader_with(batch_size=64, **settings):
    """Return a function that makes a loader with these settings, unless it is given others."""

    def loader_of(source, batch_size=batch_size, **changes):
        return KerasSequenceLoader(source, batch_size, **{**settings, **changes})

    return loader_of


def after(loader, count):
    """Take some batches; return the state as another process would get it."""
    assert len(list(itertools.islice(loader, count))) == count
    return json.loads(json.dumps(loader.state_dict()))


def reader_threads():
    """Names of the loaders' threads that run, once what nobody holds is gone."""

    def running():
        names = [thread.name for thread in threading.enumerate()]
        return [name for name in names if name.startswith("tutorlib-reader")]

    if running():
        gc.collect()  # a second, beside TensorFlow
    return running()


def come_to_an_end(left):
    """Whether `left()` becomes empty: what is dropped stops by itself, and nobody waits for it."""
    deadline = time.monotonic() + PROMPT_S
    while left():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def passes_in_memory():
    """Passes, and the parts of their chunks, that something still holds."""
    kinds = (Batches, Pipeline, Part)
    return [held for held in gc.get_objects() if type(held) in kinds]


def open_files():
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))
