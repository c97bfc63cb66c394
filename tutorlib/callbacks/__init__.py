"""Callbacks: what Keras training reports and saves besides its loss; a file for each.

Belongs here: throughput, waiting for data, memory, validation inside `fit`, going on after an
interruption. Does not belong here: anything that changes how a model trains, or finding out why a
run is slow (`profiling`).
"""

from tutorlib.callbacks.loader_checkpoint import LoaderCheckpoint
from tutorlib.callbacks.memory import MemoryLogger
from tutorlib.callbacks.stalls import Stall, StallReport
from tutorlib.callbacks.throughput import Throughput, ThroughputLogger
from tutorlib.callbacks.validation import KerasSequenceValidater

__all__ = [
    "KerasSequenceValidater",
    "LoaderCheckpoint",
    "MemoryLogger",
    "Stall",
    "StallReport",
    "Throughput",
    "ThroughputLogger",
]
