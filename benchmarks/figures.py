"""Draw imgs/ from benchmarks/results/: figures for README and lessons, with machine and date.

Does not belong here: what figures have in common, such as bars and captions (`drawing.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import layers, train
from benchmarks.drawing import (
    LIMIT,
    OURS,
    THEIRS,
    bars,
    caption,
    in_words,
    page,
    ranged,
    rate,
    title,
)
from benchmarks.measure import RESULTS

SUMMARY = "draw imgs/ from benchmarks/results/"
IMAGES = RESULTS.parent.parent / "imgs"
USUAL = (layers.SEPARATE, layers.LOOKUP, layers.DENSE)  # what layers are compared with
SHOWN = ("loader", "tfdata", "raw", "python", "peers")  # sections with the same rows


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
        benchmark, part, draw = DRAWN[name]
        try:
            result = newest(benchmark, arguments.results, part)
        except FileNotFoundError as error:
            missing.append(str(error))
            continue
        arguments.images.mkdir(parents=True, exist_ok=True)
        path = arguments.images / f"{name}.{arguments.format}"
        draw(result, path)
        print(f"drawn: {path}")
    if missing:
        raise SystemExit("\n".join(f"benchmarks: {message}" for message in missing))


def newest(benchmark: str, results: Path = RESULTS, part: str = "candidates") -> dict[str, Any]:
    """Return the report of a benchmark with the latest date, of those that have some part.

    Raises:
        FileNotFoundError: if there is none.
    """
    reports = [json.loads(path.read_text("utf-8")) for path in results.glob(f"{benchmark}-*.json")]
    found = [report for report in reports if part in report]
    if not found:
        raise FileNotFoundError(
            f"no {benchmark}-*.json with {part} in {results}; run `python -m benchmarks "
            f"{benchmark}` first"
        )
    return max(found, key=lambda report: report["date"])


def draw_loader_throughput(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows per second of each candidate as bars, the range of the turns as a line."""
    shown = {name for section in SHOWN for name in result["sections"].get(section, ())}
    entries = [entry for entry in result["candidates"] if entry["name"] in shown]
    entries.sort(key=lambda entry: entry["rows_per_s"])
    with page(path, 0.4 * len(entries) + 1.5) as figure:
        axes = figure.subplots()
        bars(axes, entries, [_colour(entry) for entry in entries], "rows_per_s", rate)
        title(axes, "Rows per second into the training step")
        columns = result["data"]["criteo-shape"]["columns"]
        caption(
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
        entries.append(entry | ranged("share", shares, max(shares)))
    colours = [OURS if entry["in_series"] else THEIRS for entry in entries]
    with page(path, 0.4 * len(entries) + 1.6) as figure:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(5, 4))
        bars(left, entries, colours, "share", lambda entry: f"{entry['share']:.0%}", mark=1)
        title(left, "Peak memory (line: the budget)")
        bars(right, entries, colours, "rows_per_s", lambda entry: in_words(entry["rows_per_s"]))
        title(right, "Rows per second")
        caption(
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
        entries.append(entry | ranged("peak", peaks, max(peaks)))
    colours = [OURS if entry["name"].startswith("tutorlib") else THEIRS for entry in entries]
    with page(path, 0.4 * len(entries) + 1.6) as figure:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(5, 4))
        bars(left, entries, colours, "rows_per_s", rate)
        title(left, "Fit and transform, rows per second")
        bars(right, entries, colours, "peak", lambda entry: f"{entry['peak']:,.0f} MB")
        title(right, "Peak memory")
        caption(
            figure,
            result,
            f"{entries[0]['rows']:,} raw rows (13 counts, 26 texts) to training-ready Parquet. "
            f"Median and range of {_processes(entries)}.\nFactors are to "
            f"{result['baseline']}. Memory: the most, above the started interpreter.",
            ("polars", "pandas", "pyarrow"),
        )


def draw_layers(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows per second of each layer and optimizer beside those it is compared with."""
    panels = layer_panels(result)
    heights = [len(entries) for entries in panels.values()]
    with page(path, 0.3 * sum(heights) + 0.4 * len(panels) + 0.8) as figure:
        all_axes = figure.subplots(len(panels), height_ratios=heights, squeeze=False)[:, 0]
        for axes, (name, entries) in zip(all_axes, panels.items(), strict=True):
            entries.sort(key=lambda entry: entry["rows_per_s"])
            theirs = [entry["name"].startswith((*USUAL, layers.LEGACY)) for entry in entries]
            colours = [THEIRS if each else OURS for each in theirs]
            bars(axes, entries, colours, "rows_per_s", rate)
            title(axes, name)
        caption(
            figure,
            result,
            f"Rows per second: layers forward and backward, {result['batch_size']:,} rows; "
            f"embeddings {result['width']} wide, {result['table_rows']:,} rows in the tables of 26 "
            f"columns.\nMedian and range of {len(result['candidates'][0]['elapsed_s'])} turns. "
            "Factors are to what Keras or TensorFlow have for it.",
            ("tensorflow",),
        )


def layer_panels(result: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return {title: entries}; what all names of a panel have in common is in its title alone.

    `ratio` of an entry is to the usual way in its panel.
    """
    panels: dict[str, list[dict[str, Any]]] = {}
    batches = {f", batch {rows:,}" for rows in (layers.SMALL_BATCH, result["batch_size"])}
    tables = {f", {layers.LARGE}", f", {layers.SMALL}"}
    for entry in result["candidates"]:
        name = entry["name"].removesuffix(layers.XLA)
        common = next((end for end in batches | tables if name.endswith(end)), "")
        subject = "Lists of ids to their mean, table of" if common in tables else "Optimizer,"
        heading = subject + common[1:] if common else "26 columns of ids to one tensor"
        short = entry["name"].replace(common, "")
        panels.setdefault(heading, []).append(entry | {"name": short})
    for entries in panels.values():
        [usual] = [e["rows_per_s"] for e in entries if e["name"] in USUAL]
        for entry in entries:
            entry["ratio"] = entry["rows_per_s"] / usual
    return panels


def draw_train(result: Mapping[str, Any], path: Path) -> None:
    """Draw the samples per second of each training, and the share that it waited for data."""
    by_name = {entry["name"]: entry for entry in result["candidates"]}
    sections = result["sections"]
    with page(path, 1.55 * len(sections) + 0.9) as figure:
        all_axes = figure.subplots(
            len(sections), 2, sharey="row", width_ratios=(5, 4), squeeze=False
        )
        for (left, right), (section, names) in zip(all_axes, sections.items(), strict=True):
            entries = []
            for name, way in zip(reversed(names), reversed(train.WAYS), strict=True):
                entry = by_name[name]
                waits = ranged("wait", entry["wait_shares"], entry["wait_share"])
                entries.append(entry | waits | {"name": way, "ratio": entry["times_native"]})
            colours = [THEIRS if entry["name"] == train.NATIVE else OURS for entry in entries]
            bars(left, entries, colours, "rows_per_s", rate)
            title(left, f"{train.TITLES[section]}: samples per second")
            bars(right, entries, colours, "wait", lambda entry: f"{entry['wait']:.0%}")
            right.set_xlim(0, 1.25)  # of 1
            title(right, "Waiting for data")
        caption(
            figure,
            result,
            f"Epochs of {result['candidates'][0]['rows']:,} rows, shuffled, in batches of "
            f"{result['batch_size']:,}, {result['optimizer']}, {result['widths']} widths; native: "
            f"TFRecord.\nMedian and range of {len(result['candidates'][0]['elapsed_s'])} epochs.",
        )


def draw_timelines(result: Mapping[str, Any], path: Path) -> None:
    """Draw an epoch of the native training above one of the accelerated, on one scale of time."""
    from benchmarks.timelines import as_trace, height  # with it comes TensorFlow
    from tutorlib.profiling import draw_timeline

    traces = {name: as_trace(timeline) for name, timeline in result["timelines"].items()}
    elapsed_s = {entry["name"]: entry["elapsed_s"] for entry in result["candidates"]}
    untraced = [f"{1e3 * statistics.median(elapsed_s[name]):,.0f}" for name in traces]
    heights = [height(trace) for trace in traces.values()]
    with page(path, 0.45 * sum(heights) + 0.5 * len(traces) + 1.2) as figure:
        all_axes = figure.subplots(len(traces), sharex=True, height_ratios=heights)
        for axes, (name, trace) in zip(all_axes, traces.items(), strict=True):
            draw_timeline(trace, None, axes=axes)
            axes.label_outer()
            length = trace.device.stop_ms - trace.device.start_ms
            title(axes, f"{name}: {length:,.0f} ms, {trace.wait_share:.0%} of it waiting for data")
        axes.set_xlim(0, max(t.device.stop_ms - t.device.start_ms for t in traces.values()))
        caption(
            figure,
            result,
            f"An epoch each of {result['candidates'][0]['rows']:,} rows in batches of "
            f"{result['batch_size']:,}, {result['widths']} widths, seen by TensorFlow's profiler; "
            "the loader's threads leave no marks in it.\nIt takes time itself: without it these "
            f"epochs took {' and '.join(untraced)} ms.",
            ("tensorflow",),
        )


DRAWN = {  # figure: (benchmark, part of its report, function)
    "loader_throughput": ("loader", "candidates", draw_loader_throughput),
    "loader_memory": ("memory", "candidates", draw_loader_memory),
    "etl": ("etl", "candidates", draw_etl),
    "layers": ("layers", "candidates", draw_layers),
    "train": ("train", "candidates", draw_train),
    "timelines": ("train", "timelines", draw_timelines),
}


def _colour(entry: Mapping[str, Any]) -> str:
    if entry["name"].startswith("loader"):
        return OURS
    return LIMIT if entry["name"].startswith("Arrow") else THEIRS


def _processes(entries: Sequence[Mapping[str, Any]]) -> str:
    number = len(entries[0]["processes"])
    return f"{number} fresh process" + "es" * (number > 1)
