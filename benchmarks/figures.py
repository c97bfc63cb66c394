"""Draw imgs/ from benchmarks/results/: figures for README and lessons, with machine and date.

Colours are mid-tones on a transparent background, so that a figure reads on a light and on a dark
page; the same JSON gives the same bytes, so that drawing anew changes nothing in git.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, describe_hardware

SUMMARY = "draw imgs/ from benchmarks/results/"
IMAGES = RESULTS.parent.parent / "imgs"
TEXT = "#808a94"  # contrast about 3.5 on white and 5 on GitHub's dark page
SHOWN = ("loader", "tfdata", "raw", "python", "peers")  # sections with the same rows
TITLES = {"tensorflow": "TensorFlow", "pyarrow": "PyArrow", "polars": "Polars", "pandas": "pandas"}
OURS, THEIRS, LIMIT = "#2f9e75", "#7a8fa6", "#b08d57"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to a parser."""
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder to draw into")
    parser.add_argument(
        "--format", choices=("svg", "png"), default="svg", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=tuple(DRAWN), default=list(DRAWN), metavar="FIGURE",
        help=f"some of {', '.join(DRAWN)} (default: all)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Draw the figures whose measurement is there; exit with a message if one is missing."""
    missing = []
    for name in arguments.only:
        benchmark, draw = DRAWN[name]
        try:
            result = newest(benchmark, arguments.results)
        except FileNotFoundError as error:
            missing.append(str(error))
            continue
        arguments.images.mkdir(parents=True, exist_ok=True)
        path = arguments.images / f"{name}.{arguments.format}"
        draw(result, path)
        print(f"drawn: {path}")
    if missing:
        raise SystemExit("\n".join(f"benchmarks: {message}" for message in missing))


def newest(benchmark: str, results: Path = RESULTS) -> dict[str, Any]:
    """Return the report of a benchmark with the latest date.

    Raises:
        FileNotFoundError: if there is none.
    """
    found = [json.loads(path.read_text("utf-8")) for path in results.glob(f"{benchmark}-*.json")]
    if not found:
        raise FileNotFoundError(
            f"no {benchmark}-*.json in {results}; run `python -m benchmarks {benchmark}` first"
        )
    return max(found, key=lambda result: result["date"])


def draw_loader_throughput(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows per second of each candidate as bars, the range of the turns as a line."""
    shown = {name for section in SHOWN for name in result["sections"].get(section, ())}
    entries = [entry for entry in result["candidates"] if entry["name"] in shown]
    entries.sort(key=lambda entry: entry["rows_per_s"])
    with _figure(path, 0.4 * len(entries) + 1.5) as figure:
        axes = figure.subplots()
        _bars(axes, entries, [_colour(entry) for entry in entries], "rows_per_s", _rate)
        axes.set_title("Rows per second into the training step", loc="left", weight="bold")
        columns = result["data"]["criteo-shape"]["columns"]
        _caption(
            figure,
            result,
            f"{columns['continuous']} float32 + {columns['categorical']} ids + label, batches of "
            f"{result['batch_size']:,}, files in the page cache. Median and range of "
            f"{len(entries[0]['elapsed_s'])} turns.\nFactors are to {result['baseline']}.",
        )


def draw_loader_memory(result: Mapping[str, Any], path: Path) -> None:
    """Draw peak memory as a share of the budget, and rows per second, for data of each size."""
    budget = result["budget_bytes"]
    entries = []
    for entry in reversed(result["candidates"]):
        shares = [process["peak_bytes"] / budget for process in entry["processes"]]
        extremes = {"share": max(shares), "min_share": min(shares), "max_share": max(shares)}
        entries.append({**entry, **extremes})
    colours = [OURS if entry["in_series"] else THEIRS for entry in entries]
    with _figure(path, 0.4 * len(entries) + 1.6) as figure:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(5, 4))
        _bars(left, entries, colours, "share", lambda entry: f"{entry['share']:.0%}")
        left.axvline(1, color=TEXT, linewidth=1, linestyle=(0, (4, 3)))
        left.set_title("Peak memory (line: the budget)", loc="left", weight="bold")
        _bars(right, entries, colours, "rows_per_s", lambda entry: in_words(entry["rows_per_s"]))
        right.set_title("Rows per second", loc="left", weight="bold")
        _caption(
            figure,
            result,
            f"Criteo-shaped data of so many times memory_budget = {budget / 2**20:,.0f} MiB, and "
            f"two special cases; batches of {result['batch_size']:,}.\nMemory: the most of "
            f"{_processes(entries)}; rows per second: median and range.",
        )


def draw_etl(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows per second of fit and transform by each library, and the memory it took."""
    entries = []
    for entry in reversed(result["candidates"]):
        peaks = [max(process["peak_bytes"]) / 1e6 for process in entry["processes"]]
        extremes = {"peak": max(peaks), "min_peak": min(peaks), "max_peak": max(peaks)}
        entries.append({**entry, **extremes})
    colours = [OURS if entry["name"].startswith("tutorlib") else THEIRS for entry in entries]
    with _figure(path, 0.4 * len(entries) + 1.6) as figure:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(5, 4))
        _bars(left, entries, colours, "rows_per_s", _rate)
        left.set_title("Fit and transform, rows per second", loc="left", weight="bold")
        _bars(right, entries, colours, "peak", lambda entry: f"{entry['peak']:,.0f} MB")
        right.set_title("Peak memory", loc="left", weight="bold")
        _caption(
            figure,
            result,
            f"{entries[0]['rows']:,} raw rows (13 counts, 26 texts) to training-ready Parquet. "
            f"Median and range of {_processes(entries)}.\nFactors are to "
            f"{result['baseline']}. Memory: the most, above the started interpreter.",
            ("polars", "pandas", "pyarrow"),
        )


DRAWN = {
    "loader_throughput": ("loader", draw_loader_throughput),
    "loader_memory": ("memory", draw_loader_memory),
    "etl": ("etl", draw_etl),
}


@contextlib.contextmanager
def _figure(path: Path, height: float) -> Iterator[Any]:
    """Yield an empty figure that is written to `path` afterwards."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "tutorlib", "font.size": 11, "text.color": TEXT}):
        figure = Figure(figsize=(9, height), layout="constrained")
        yield figure
        dateless = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, transparent=True, metadata=dateless, dpi=160)


def _bars(
    axes: Any,
    entries: list[dict[str, Any]],
    colours: list[str],
    key: str,
    label: Callable[[dict[str, Any]], str],
) -> None:
    """Draw `entry[key]` as bars from below, with a line from the least to the most."""
    for position, (entry, colour) in enumerate(zip(entries, colours, strict=True)):
        axes.barh(position, entry[key], color=colour, height=0.62)
        least, most = entry[f"min_{key}"], entry[f"max_{key}"]
        axes.plot([least, most], [position, position], color=TEXT, linewidth=1.2)
        axes.annotate(
            label(entry), (most, position), (5, 0), textcoords="offset points", va="center",
            weight="bold" if colour == OURS else "normal",
        )  # fmt: skip
    axes.set_yticks(range(len(entries)), [entry["name"] for entry in entries], color=TEXT)
    axes.set_ylim(-0.6, len(entries) - 0.4)
    axes.set_xlim(0, 1.5 * max(entry[f"max_{key}"] for entry in entries))
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _colour(entry: Mapping[str, Any]) -> str:
    if entry["name"].startswith("loader"):
        return OURS
    return LIMIT if entry["name"].startswith("Arrow") else THEIRS


def _rate(entry: Mapping[str, Any]) -> str:
    digits = 2 if entry["ratio"] < 1 else 1 if entry["ratio"] < 10 else 0
    return f"{in_words(entry['rows_per_s'])}  ({entry['ratio']:,.{digits}f}x)"


def _processes(entries: Sequence[Mapping[str, Any]]) -> str:
    number = len(entries[0]["processes"])
    return f"{number} fresh process" + "es" * (number > 1)


def in_words(rate: float) -> str:
    """Return a rate as a reader would say it.

    Example:
        >>> in_words(52_300), in_words(6_120_000), in_words(23_500_000)
        ('52 thousand', '6.1 million', '24 million')
    """
    if rate < 1e6:
        return f"{rate / 1e3:.0f} thousand"
    return f"{rate / 1e6:.{1 if rate < 1e7 else 0}f} million"


def _caption(
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
    figure.supxlabel(text, fontsize=8.5, x=0.01, ha="left", linespacing=1.5)
