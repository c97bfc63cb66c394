"""draw_timeline: a trace as a picture, with a row per device and kind of work."""

from __future__ import annotations

from typing import Any

from tutorlib.checks import check_positive
from tutorlib.profiling.intervals import Intervals
from tutorlib.profiling.trace import Trace

# Mid-tones: readable on white and on black. The figures of lessons and benchmarks have them too.
TEXT = "#757f89"
LOADER, NATIVE, WAITING, COPIES = "#2f9e75", "#7a8fa6", "#d0605e", "#b08d57"
COLOURS = {"ops": LOADER, "kernels": LOADER, "copies": COPIES}
FINEST = 2000  # gaps shorter than the picture's width divided by this are not drawn
NARROW = 1 / 15  # steps narrower than this share of the width have no number


def draw_timeline(
    trace: Trace,
    steps: int | None = 6,
    *,
    axes: Any = None,
    width: float = 9.0,
    span_ms: float | None = None,
) -> Any:
    """Return a matplotlib figure of when each device worked, and when the step waited for data.

    It has a row per device and kind of work, one for waiting for data, and one for tf.data's
    threads; dashed lines mark the steps. Mid-tones on a transparent background are readable on
    light and on dark pages. Gaps shorter than 1 / 2000 of the picture are drawn as work.

    Args:
        trace: from `read_trace`.
        steps: number of steps to draw, the last ones of the trace, at least 1 (before the first
            ones tf.data may have read ahead while the profiler started); None draws all.
        axes: matplotlib axes to draw into, such as those of `pyplot.subplots` in a notebook; None
            makes a new figure to be saved.
        width: width of a new figure, inches.
        span_ms: milliseconds that the axis shows, to compare traces on one scale; None shows the
            steps.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: if `steps` is below 1.

    Example:
        >>> draw_timeline(read_trace("logs")).savefig("timeline.svg")  # doctest: +SKIP
    """
    check_positive(steps=steps)
    rows = _rows(trace)
    if axes is None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, 0.45 * len(rows) + 0.9), layout="constrained")
        axes = figure.subplots()
        figure.patch.set_alpha(0)
    shown = dict(list(trace.steps.items())[-steps:]) if steps else trace.steps
    device = trace.device
    start = min((span[0] for span in shown.values()), default=device.start_ms)
    stop = max((span[1] for span in shown.values()), default=device.stop_ms)
    span = span_ms or stop - start
    for row, (_, intervals, colour) in enumerate(rows):
        bars = _coarse(intervals.within(start, stop), span / FINEST)
        lengths = [(begin - start, end - begin) for begin, end in bars]
        axes.broken_barh(lengths, (row - 0.35, 0.7), color=colour, linewidth=0)
    for number, (begin, end) in shown.items():
        axes.axvline(begin - start, color=TEXT, linewidth=0.8, linestyle=(0, (4, 3)))
        if end - begin > span * NARROW:
            axes.annotate(
                f" step {number}", (begin - start, 1), xycoords=("data", "axes fraction"),
                va="bottom", color=TEXT, fontsize=9,
            )  # fmt: skip
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, span)
    axes.set_xlabel("time, ms", color=TEXT)
    axes.tick_params(colors=TEXT, length=0)
    axes.spines[:].set_visible(False)
    axes.patch.set_alpha(0)
    return axes.figure


def _rows(trace: Trace) -> list[tuple[str, Intervals, str]]:
    """Return (name, intervals, colour) of each row, from the top."""
    rows = []
    for device in trace.devices:
        name = device.name.rsplit("/device:", maxsplit=1)[-1].split(" (")[0]  # "GPU:0", "CPU"
        for kind, intervals in device.lanes.items():
            rows.append((f"{name}, {kind}", intervals, COLOURS[kind]))
    rows.append(("waiting for data", trace.waiting, WAITING))
    rows.append(("tf.data's threads", trace.reading, NATIVE))
    return [row for row in rows if len(row[1])]


def _coarse(intervals: Intervals, shortest: float) -> Intervals:
    """Return the intervals without the gaps between them that are too short to see."""
    return Intervals.union([(start, stop + shortest) for start, stop in intervals])
