"""Parts of figures: a transparent page, bars with their range, a caption with machine and date.

Colours are mid-tones on a transparent background, so that a figure reads on a light and on a dark
page; the same JSON gives the same bytes, so that drawing anew changes nothing in git. Does not
belong here: what a figure shows (`figures.py`).
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import describe_hardware

TEXT = "#757f89"  # contrast 4.1 on white and 4.6 on GitHub's dark page
RANGE = "#1c2530"  # within a bar; beyond it a range is drawn like text
OURS, THEIRS, LIMIT = "#2f9e75", "#7a8fa6", "#b08d57"
TITLES = {"tensorflow": "TensorFlow", "pyarrow": "PyArrow", "polars": "Polars", "pandas": "pandas"}


@contextlib.contextmanager
def page(path: Path, height: float) -> Iterator[Any]:
    """Yield an empty matplotlib figure, `height` inches high, that is written to `path`."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "tutorlib", "font.size": 11, "text.color": TEXT}):
        figure = Figure(figsize=(9, height), layout="constrained")
        yield figure
        dateless = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, transparent=True, metadata=dateless, dpi=160)


def ranged(key: str, values: Sequence[float], value: float) -> dict[str, float]:
    """Return a value and the range of those that it stands for, as `bars` takes them.

    Example:
        >>> ranged("peak", [3, 1, 2], 2)
        {'peak': 2, 'min_peak': 1, 'max_peak': 3}
    """
    return {key: value, f"min_{key}": min(values), f"max_{key}": max(values)}


def bars(
    axes: Any,
    entries: Sequence[Mapping[str, Any]],
    colours: Sequence[str],
    key: str,
    label: Callable[[Mapping[str, Any]], str],
    *,
    mark: float = 0.0,
) -> None:
    """Draw `entry[key]` as bars from below, with a line from the least to the most.

    Args:
        axes: matplotlib axes.
        entries: each with `name`, and `key` as `ranged` gives it.
        colours: of the bars.
        key: what is drawn.
        label: entry -> what stands behind its bar.
        mark: where a broken line goes down through all bars; labels stand behind it.
    """
    if mark:
        axes.axvline(mark, color=TEXT, linewidth=1, linestyle=(0, (4, 3)))
    for position, (entry, colour) in enumerate(zip(entries, colours, strict=True)):
        value, least, most = entry[key], entry[f"min_{key}"], entry[f"max_{key}"]
        axes.barh(position, value, color=colour, height=0.62)
        axes.plot([value, most], [position, position], color=TEXT, linewidth=1.5)
        axes.plot([least, value], [position, position], color=RANGE, linewidth=1.5)
        axes.annotate(
            label(entry), (max(most, mark), position), (5, 0), textcoords="offset points",
            va="center", weight="bold" if colour == OURS else "normal",
        )  # fmt: skip
    axes.set_yticks(range(len(entries)), [entry["name"] for entry in entries], color=TEXT)
    axes.set_ylim(-0.6, len(entries) - 0.4)
    axes.set_xlim(0, 1.5 * max(entry[f"max_{key}"] for entry in entries))
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def title(axes: Any, text: str) -> None:
    """Write a title above the left end."""
    axes.set_title(text, loc="left", weight="bold")


def caption(
    figure: Any,
    result: Mapping[str, Any],
    what: str,
    libraries: Sequence[str] = ("tensorflow", "pyarrow"),
) -> None:
    """Write below a figure what was measured, on what, with what and when."""
    date = datetime.datetime.fromisoformat(result["date"]).date()
    versions = result["versions"]
    said = ", ".join(f"{TITLES[name]} {versions[name]}" for name in libraries if name in versions)
    text = f"{what}\n{describe_hardware(result['hardware'])}. {said}. {date}"
    figure.supxlabel(text, fontsize=9, x=0.01, ha="left", linespacing=1.5)


def rate(entry: Mapping[str, Any]) -> str:
    """Return the rows per second of an entry and its ratio.

    Example:
        >>> rate({"rows_per_s": 6_120_000, "ratio": 12.34}), rate({"rows_per_s": 9e5, "ratio": 0.5})
        ('6.1 million  (12x)', '900 thousand  (0.50x)')
    """
    digits = 2 if entry["ratio"] < 1 else 1 if entry["ratio"] < 10 else 0
    return f"{in_words(entry['rows_per_s'])}  ({entry['ratio']:,.{digits}f}x)"


def in_words(rate: float) -> str:
    """Return a rate as a reader would say it.

    Example:
        >>> in_words(52_300), in_words(6_120_000), in_words(23_500_000)
        ('52 thousand', '6.1 million', '24 million')
    """
    if rate < 1e6:
        return f"{rate / 1e3:.0f} thousand"
    return f"{rate / 1e6:.{1 if rate < 1e7 else 0}f} million"
