"""Draw imgs/ from benchmarks/results/: figures for README and lessons, with machine and date.

Colours are mid-tones on a transparent background, so that a figure reads on a light and on a dark
page; the same JSON gives the same bytes, so that drawing anew changes nothing in git.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, describe_hardware

SUMMARY = "draw imgs/ from benchmarks/results/"
IMAGES = RESULTS.parent.parent / "imgs"
TEXT = "#808a94"  # contrast about 3.5 on white and 5 on GitHub's dark page
OURS, THEIRS, LIMIT = "#2f9e75", "#7a8fa6", "#b08d57"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to a parser."""
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder to draw into")
    parser.add_argument(
        "--format", choices=("svg", "png"), default="svg", help="(default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Draw every figure; exit with a message where its measurement is missing."""
    try:
        result = newest("loader", arguments.results)
    except FileNotFoundError as error:
        raise SystemExit(f"benchmarks: {error}") from error
    arguments.images.mkdir(parents=True, exist_ok=True)
    path = arguments.images / f"loader_throughput.{arguments.format}"
    draw_loader_throughput(result, path)
    print(f"drawn: {path}")


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
    import matplotlib
    from matplotlib.figure import Figure

    entries = sorted(result["candidates"], key=lambda entry: entry["rows_per_s"])
    style = {"svg.hashsalt": "tutorlib", "font.size": 11, "text.color": TEXT}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9, 0.46 * len(entries) + 1.5), layout="constrained")
        axes = figure.subplots()
        _bars(axes, entries, result["baseline"])
        axes.set_title("Rows per second into the training step", loc="left", weight="bold")
        figure.supxlabel(caption(result), fontsize=8.5, x=0.01, ha="left", linespacing=1.5)
        dateless = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, transparent=True, metadata=dateless, dpi=160)


def _bars(axes: Any, entries: list[dict[str, Any]], baseline: str) -> None:
    for position, entry in enumerate(entries):
        rate, ours = entry["rows_per_s"], entry["name"].startswith("loader")
        colour = OURS if ours else LIMIT if entry["name"].startswith("Arrow") else THEIRS
        axes.barh(position, rate, color=colour, height=0.62)
        least, most = entry["min_rows_per_s"], entry["max_rows_per_s"]
        axes.plot([least, most], [position, position], color=TEXT, linewidth=1.2)
        label = f"{in_words(rate)}  ({entry['ratio']:,.{1 if entry['ratio'] < 10 else 0}f}x)"
        axes.annotate(
            label, (most, position), (5, 0), textcoords="offset points", va="center",
            weight="bold" if ours or entry["name"] == baseline else "normal",
        )  # fmt: skip
    axes.set_yticks(range(len(entries)), [entry["name"] for entry in entries], color=TEXT)
    axes.set_xlim(0, 1.45 * max(entry["max_rows_per_s"] for entry in entries))
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def in_words(rate: float) -> str:
    """Return a rate as a reader would say it.

    Example:
        >>> in_words(52_300), in_words(6_120_000), in_words(23_500_000)
        ('52 thousand', '6.1 million', '24 million')
    """
    if rate < 1e6:
        return f"{rate / 1e3:.0f} thousand"
    return f"{rate / 1e6:.{1 if rate < 1e7 else 0}f} million"


def caption(result: Mapping[str, Any]) -> str:
    """Return what was measured, on what and when, in two lines."""
    date = datetime.datetime.fromisoformat(result["date"]).date()
    columns = result["columns"]
    versions = result["versions"]
    return (
        f"{columns['continuous']} float32 + {columns['categorical']} ids + label, batches of "
        f"{result['batch_size']:,}, files in the page cache. Median of "
        f"{len(result['candidates'][0]['elapsed_s'])} turns; factors are to "
        f"make_batched_features_dataset.\n{describe_hardware(result['hardware'])}. "
        f"TensorFlow {versions['tensorflow']}, PyArrow {versions['pyarrow']}. {date}"
    )
