"""Callbacks: what `fit` reports and saves besides its loss.

Throughput, stalls, memory, validation on a loader, and checkpoints to resume from. A callback here
measures a training and never changes how it trains; `tutorlib.profiling` finds out why it is slow.
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
