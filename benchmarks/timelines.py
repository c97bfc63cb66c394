"""Timelines: the last steps of a trace, small enough for the report of a benchmark.

A trace takes tens of megabytes, with an event for each row that tf.data handles. The intervals of
each kind of work, as finely as a picture shows them, take some kilobytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tutorlib.profiling import Device, Intervals, Trace

FINEST = 1000  # gaps shorter than this fraction of the whole are closed


def as_json(trace: Trace, steps: int) -> dict[str, Any]:
    """Return the last steps of a trace as JSON values: work of its first device, and the waits.

    The timeline begins where the step before it ended, so that it includes the wait for the first
    batch. Intervals are strings, `"START-STOP START-STOP ..."` in ms from there, because as numbers
    each would take four lines of a report.
    """
    if len(trace.steps) <= steps:
        raise ValueError(
            f"a timeline of {steps} steps begins where the step before them ended, but "
            f"{trace.path} has {len(trace.steps)} steps: trace at least one more"
        )
    spans = list(trace.steps.values())[-steps - 1 :]
    start, stop = spans[0][1], spans[-1][1]

    def text(intervals: Intervals) -> str:
        shown = _coarse(intervals.within(start, stop), (stop - start) / FINEST)
        return " ".join(f"{begin - start:.2f}-{end - start:.2f}" for begin, end in shown)

    return {
        "steps": steps,
        "device": trace.device.name,
        "length_ms": round(stop - start, 2),
        "idle_share": trace.device.idle.within(start, stop).total_ms / (stop - start),
        "waiting": text(trace.waiting),
        "reading": text(trace.reading),
        "lanes": {name: text(intervals) for name, intervals in trace.device.lanes.items()},
    }


def as_trace(timeline: Mapping[str, Any]) -> Trace:
    """Return what `as_json` returned as a trace without steps and ops, to be drawn."""
    lanes = {name: _intervals(text) for name, text in timeline["lanes"].items()}
    busy = Intervals.union([span for lane in lanes.values() for span in lane])
    waiting = _intervals(timeline["waiting"])
    device = Device(timeline["device"], 0.0, timeline["length_ms"], busy, lanes, {}, waiting)
    return Trace(Path(), (device,), {}, _intervals(timeline["reading"]))


def _intervals(text: str) -> Intervals:
    pairs = (span.split("-") for span in text.split())
    return Intervals.union([(float(start), float(stop)) for start, stop in pairs])


def _coarse(intervals: Intervals, shortest: float) -> Intervals:
    """Return the intervals with gaps below `shortest` closed."""
    starts, stops = intervals.starts, intervals.stops
    ends = np.r_[starts[1:] - stops[:-1] >= shortest, True][: len(stops)]
    return Intervals(starts[np.roll(ends, 1)], stops[ends])
