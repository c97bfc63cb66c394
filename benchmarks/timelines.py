"""Timelines: the last steps of a trace, small enough for the report of a benchmark.

A trace takes tens of megabytes, with an event for each row that tf.data handles. The intervals of
each kind of work, as finely as a picture shows them, take some kilobytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from notebooks.traces import READ, WAIT, Intervals, Trace

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
            f"the trace has {len(trace.steps)} steps: trace at least one more"
        )
    spans = list(trace.steps.values())[-steps - 1 :]
    start, stop = spans[0][1], spans[-1][1]

    def text(intervals: Intervals) -> str:
        shown = intervals.within(start, stop)
        shown = Intervals((begin, end + (stop - start) / FINEST) for begin, end in shown)
        return " ".join(f"{begin - start:.2f}-{end - start:.2f}" for begin, end in shown)

    return {
        "steps": steps,
        "device": trace.name,
        "length_ms": round(stop - start, 2),
        "idle_share": trace.idle.within(start, stop).total_ms / (stop - start),
        "waiting": text(trace.waiting),
        "reading": text(trace.reading),
        "lanes": {n: text(lane) for n, lane in trace.lanes.items() if n not in (WAIT, READ)},
    }


def as_trace(timeline: Mapping[str, Any]) -> Trace:
    """Return what `as_json` returned as a trace of one step without ops, to be drawn."""
    lanes = timeline["lanes"] | {WAIT: timeline["waiting"], READ: timeline["reading"]}
    steps = {0: (0.0, timeline["length_ms"])}
    return Trace(timeline["device"], steps, {n: _intervals(text) for n, text in lanes.items()}, [])


def _intervals(text: str) -> Intervals:
    return Intervals([float(time) for time in span.split("-")] for span in text.split())
