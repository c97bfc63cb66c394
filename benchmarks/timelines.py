"""Timelines: the last steps of a trace, small enough to be kept in the report of a benchmark.

A trace takes tens of megabytes, an event for each row that tf.data handles; when each kind of work
went on, as finely as it can be seen in a picture, takes some kilobytes. Does not belong here:
taking a trace (`train_runs.py`), drawing it (`figures.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tutorlib.profiling import Device, Intervals, Trace

FINEST = 1000  # gaps shorter than the whole over this are closed


def as_json(trace: Trace, steps: int) -> dict[str, Any]:
    """Return the last steps of a trace as JSON values: what its first device did, and the waits.

    They begin where the step before them ended, so that the wait for an epoch's first batch is in.
    Intervals are texts, `"START-STOP START-STOP ..."` in ms from there: as numbers, each would take
    four lines of a report.

    Args:
        trace: from `read_trace`.
        steps: how many; the trace has at least one more.

    Raises:
        ValueError: if it has not.
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
        "device": trace.device.name,
        "length_ms": round(stop - start, 2),
        "waiting": text(trace.waiting),
        "reading": text(trace.reading),
        "lanes": {name: text(intervals) for name, intervals in trace.device.lanes.items()},
    }


def as_trace(timeline: Mapping[str, Any]) -> Trace:
    """Return what `as_json` kept as a trace without steps and ops, to be drawn.

    Example:
        >>> kept = {"device": "CPU", "length_ms": 8.0, "waiting": "0.50-4.50"}
        >>> trace = as_trace(kept | {"reading": "", "lanes": {"ops": "4.00-6.00 7.00-8.00"}})
        >>> trace.wait_share, trace.device.busy_share
        (0.5, 0.375)
    """
    lanes = {name: _intervals(text) for name, text in timeline["lanes"].items()}
    busy = Intervals.union([span for lane in lanes.values() for span in lane])
    waiting = _intervals(timeline["waiting"])
    device = Device(timeline["device"], 0.0, timeline["length_ms"], busy, lanes, {}, waiting)
    return Trace(Path(), (device,), {}, _intervals(timeline["reading"]))


def height(trace: Trace) -> int:
    """Return how many rows `draw_timeline` gives a trace."""
    return len(trace.device.lanes) + len(list(filter(len, (trace.waiting, trace.reading))))


def _intervals(text: str) -> Intervals:
    return Intervals.union([tuple(map(float, span.split("-"))) for span in text.split()])


def _coarse(intervals: Intervals, shortest: float) -> Intervals:
    """Return the intervals with shorter gaps closed."""
    starts, stops = intervals.starts, intervals.stops
    ends = np.r_[starts[1:] - stops[:-1] >= shortest, True][: len(stops)]
    return Intervals(starts[np.roll(ends, 1)], stops[ends])
