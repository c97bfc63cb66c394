"""Draw imgs/ from benchmarks/results/: figures for README and lessons, with machine and date.

Colours are mid-tones on a transparent background, so that a figure reads on a light and on a dark
page. The same JSON gives the same bytes, so that drawing again changes nothing in git.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import growth, layers, peers, train
from benchmarks.machine import ROOT, describe_hardware
from benchmarks.measure import RESULTS, add_choices

SUMMARY = "draw imgs/ from benchmarks/results/"
IMAGES = ROOT / "imgs"
USUAL = (layers.SEPARATE, layers.LOOKUP, layers.DENSE)  # what layers are compared with
SHOWN = ("loader", "tfdata", "raw", "python")  # sections that read the same rows
RANGE = "#1c2530"  # within a bar; beyond it a range is drawn like text
# The colours of notebooks/traces.py.
TEXT = "#757f89"
OURS, THEIRS, LIMIT = "#2f9e75", "#7a8fa6", "#b08d57"
PEER = "#9a7fb0"  # another library
Entry = Mapping[str, Any]  # candidate of a report
TITLES = {"tensorflow": "TensorFlow", "pyarrow": "PyArrow", "polars": "Polars", "pandas": "pandas"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to a parser."""
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder to draw into")
    add_choices(parser, format=(("svg", "png"), "file format"))
    parser.add_argument(
        "--only", nargs="+", choices=tuple(DRAWN), default=list(DRAWN), metavar="FIGURE",
        help=f"some of {', '.join(DRAWN)} (default: all)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Draw the figures; exit with a message if a measurement is missing, after drawing the rest."""
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
    """Return the newest report of a benchmark that has the key `part`."""
    reports = [json.loads(path.read_text("utf-8")) for path in results.glob(f"{benchmark}-*.json")]
    found = [report for report in reports if part in report]
    if not found:
        raise FileNotFoundError(
            f"no {benchmark}-*.json with {part} in {results}; run `python -m benchmarks "
            f"{benchmark}` first"
        )
    return max(found, key=lambda report: report["date"])


# ---- parts of figures ---------------------------------------------------------------------------


def rate(entry: Entry) -> str:
    """Return the rows per second of an entry and its ratio."""
    if entry["ratio"] is None:
        return in_words(entry["rows_per_s"])
    digits = 2 if entry["ratio"] < 1 else 1 if entry["ratio"] < 10 else 0
    return f"{in_words(entry['rows_per_s'])}  ({entry['ratio']:,.{digits}f}x)"


def in_words(rate: float) -> str:
    """Return a rate as a reader would say it."""
    if rate < 1e6:
        return f"{rate / 1e3:.0f} thousand"
    return f"{rate / 1e6:.{1 if rate < 1e7 else 0}f} million"


def ranged(key: str, values: Sequence[float], value: float) -> dict[str, float]:
    """Return a value and the range of the values it stands for, as a `Panel` takes them."""
    return {key: value, f"min_{key}": min(values), f"max_{key}": max(values)}


@dataclasses.dataclass(frozen=True)
class Panel:
    """A title above horizontal bars."""

    title: str
    # bars from the bottom: each has `name`, `colour`, and `key` with its range, see `ranged`
    entries: Sequence[Entry]
    key: str = "rows_per_s"  # value to draw
    label: str = ""  # format string for the text behind a bar; empty for the rate and its ratio
    mark: float = 0.0  # position of a broken vertical line; 0 for none
    limit: float = 0.0  # end of the axis; 0 for one that leaves room for the labels
    log: bool = False  # whether a tenfold value is one step further instead of ten

    def draw(self, axes: Any) -> None:
        """Draw it into matplotlib axes."""
        if self.mark:
            axes.axvline(self.mark, color=TEXT, linewidth=1, linestyle=(0, (4, 3)))
        for y, entry in enumerate(self.entries):
            value, colour = entry[self.key], entry["colour"]
            least, most = entry[f"min_{self.key}"], entry[f"max_{self.key}"]
            axes.barh(y, value, color=colour, height=0.62)
            axes.plot([value, most], [y, y], color=TEXT, linewidth=1.5)
            axes.plot([least, value], [y, y], color=RANGE, linewidth=1.5)
            axes.annotate(
                self.label.format(**entry) or rate(entry), (max(most, self.mark), y), (5, 0),
                textcoords="offset points", va="center",
                weight="bold" if colour == OURS else "normal",
            )  # fmt: skip
        names = [entry["name"] for entry in self.entries]
        axes.set_yticks(range(len(names)), names, color=TEXT)
        axes.set_ylim(-0.6, len(names) - 0.4)
        most = max(entry[f"max_{self.key}"] for entry in self.entries)
        axes.set_xlim(0, self.limit or 1.5 * most)
        if self.log:
            axes.set_xscale("log")
            axes.set_xlim(min(entry[f"min_{self.key}"] for entry in self.entries) / 2, 50 * most)
        axes.set_xticks([])
        axes.tick_params(length=0, which="both")
        axes.spines[:].set_visible(False)
        axes.set_title(self.title, loc="left", weight="bold")


def draw_panels(
    path: Path,
    result: Mapping[str, Any],
    rows: Sequence[Sequence[Panel]],
    height: float,
    what: str,
    libraries: Sequence[str] = ("tensorflow", "pyarrow"),
) -> None:
    """Draw rows of one or two panels, whose bars have the same names, and a caption.

    `height` is in inches; the caption says `what` was measured, and the versions of `libraries`.
    """
    heights = [len(row[0].entries) for row in rows]
    with page(path, height) as figure:
        axes = figure.subplots(
            len(rows), len(rows[0]), sharey="row", squeeze=False,
            height_ratios=heights, width_ratios=(5, 4)[: len(rows[0])],
        )  # fmt: skip
        for panel, each in zip(itertools.chain(*rows), axes.flat, strict=True):
            panel.draw(each)
        caption(figure, result, what, libraries)


@contextlib.contextmanager
def page(path: Path, height: float) -> Iterator[Any]:
    """Yield an empty matplotlib figure, `height` inches high, and write it to `path`."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "tutorlib", "font.size": 11, "text.color": TEXT}):
        figure = Figure(figsize=(9, height), layout="constrained")
        yield figure
        dateless = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, transparent=True, metadata=dateless, dpi=160)


def caption(figure: Any, result: Mapping[str, Any], what: str, libraries: Sequence[str]) -> None:
    """Write below a figure what was measured, on what, with what and when."""
    date = datetime.datetime.fromisoformat(result["date"]).date()
    versions = result["versions"]
    said = ", ".join(f"{TITLES[name]} {versions[name]}" for name in libraries if name in versions)
    text = f"{what}\n{describe_hardware(result['hardware'])}. {said}. {date}"
    figure.supxlabel(text, fontsize=9, x=0.01, ha="left", linespacing=1.5)


# ---- the figures --------------------------------------------------------------------------------


def draw_loader_throughput(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows per second of each candidate as bars, the range of the turns as a line."""
    shown = {name for section in SHOWN for name in result["sections"].get(section, ())}
    colours = {"loader": OURS, "Arrow": LIMIT}
    entries = [
        entry | {"colour": colours.get(re.split("[ ,]", entry["name"])[0], THEIRS)}
        for entry in sorted(result["candidates"], key=lambda entry: entry["rows_per_s"])
        if entry["name"] in shown
    ]
    columns = result["data"]["criteo-shape"]["columns"]
    draw_panels(
        path,
        result,
        [[Panel("Rows per second into the training step", entries)]],
        0.4 * len(entries) + 1.5,
        f"{columns['continuous']} float32 + {columns['categorical']} ids + label, batches of "
        f"{result['batch_size']:,}, files in the page cache. Median and range of "
        f"{len(entries[0]['elapsed_s'])} turns.\nFactors are relative to {result['baseline']}.",
    )


def draw_loader_memory(result: Mapping[str, Any], path: Path) -> None:
    """Draw peak memory as a share of the budget, and rows per second, for data of each size."""
    budget = result["budget_bytes"]
    entries = []
    for entry in reversed(result["candidates"]):
        shares = [process["peak_bytes"] / budget for process in entry["processes"]]
        more = {"colour": OURS if entry["in_series"] else THEIRS, "ratio": None}
        entries.append(entry | ranged("share", shares, max(shares)) | more)
    peak = Panel("Peak memory (line: the budget)", entries, "share", "{share:.0%}", mark=1)
    draw_panels(
        path,
        result,
        [[peak, Panel("Rows per second", entries)]],
        0.4 * len(entries) + 1.6,
        f"Criteo-shaped data, sizes in multiples of memory_budget = {budget / 2**20:,.0f} MiB, and "
        f"two special cases; batches of {result['batch_size']:,}.\nMemory: maximum of "
        f"{_processes(entries)}; rows per second: median and range.",
    )


def draw_etl(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows per second of fit and transform by each library, and the memory it took."""
    entries = []
    for entry in reversed(result["candidates"]):
        peaks = [max(process["peak_bytes"]) / 1e6 for process in entry["processes"]]
        colour = OURS if entry["name"] == "tutorlib" else THEIRS
        entries.append(entry | ranged("peak", peaks, max(peaks)) | {"colour": colour})
    speed = Panel("Fit and transform, rows per second", entries)
    draw_panels(
        path,
        result,
        [[speed, Panel("Peak memory", entries, "peak", "{peak:,.0f} MB")]],
        0.4 * len(entries) + 1.6,
        f"{entries[0]['rows']:,} raw rows (13 counts, 26 strings) to training-ready Parquet. "
        f"Median and range of {_processes(entries)}.\nFactors are relative to "
        f"{result['baseline']}. Memory: maximum above that after the imports.",
        ("polars", "pandas", "pyarrow"),
    )


def _processes(entries: Sequence[Entry]) -> str:
    number = len(entries[0]["processes"])
    return f"{number} fresh process" + "es" * (number > 1)


def draw_layers(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows per second of each layer and optimizer next to what it is compared with."""
    panels = layer_panels(result)
    number = sum(map(len, panels.values()))
    draw_panels(
        path,
        result,
        [[Panel(heading, entries)] for heading, entries in panels.items()],
        0.3 * number + 0.4 * len(panels) + 0.8,
        f"Rows per second: layers forward and backward, {result['batch_size']:,} rows; "
        f"embeddings {result['width']} wide, {result['table_rows']:,} rows in the tables of 26 "
        f"columns.\nMedian and range of {len(result['candidates'][0]['elapsed_s'])} turns. "
        "Factors are relative to the equivalent in Keras or TensorFlow.",
        ("tensorflow",),
    )


def layer_panels(result: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return {title: entries}, slowest first; what all names of a panel share is in its title.

    `ratio` of an entry is relative to the usual way in its panel.
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
            theirs = entry["name"].startswith((*USUAL, layers.LEGACY))
            entry["colour"] = THEIRS if theirs else OURS
        entries.sort(key=lambda entry: entry["rows_per_s"])
    return panels


def draw_train(result: Mapping[str, Any], path: Path) -> None:
    """Draw the samples per second of each training, and the share that it waited for data."""
    by_name = {entry["name"]: entry for entry in result["candidates"]}
    rows = []
    for section, names in result["sections"].items():
        heading, entries = train.TITLES[section], []
        for name in reversed(names):
            entry = by_name[name]
            waits = ranged("wait", entry["wait_shares"], entry["wait_share"])
            way = name.removeprefix(f"{heading}: ")
            more = {"colour": OURS if way.startswith("loader") else THEIRS}
            more |= {"name": way, "ratio": entry["times_native"]}
            entries.append(entry | waits | more)
        speed = Panel(f"{heading}: samples per second", entries)
        rows.append([speed, Panel("Waiting for data", entries, "wait", "{wait:.0%}", limit=1.25)])
    draw_panels(
        path,
        result,
        rows,
        0.25 * len(rows) + 0.43 * sum(len(row[0].entries) for row in rows) + 0.9,
        f"Epochs of {result['candidates'][0]['rows']:,} rows, shuffled, in batches of "
        f"{result['batch_size']:,}, {result['optimizer']}, {result['widths']} widths; native: "
        "TFRecord, prebatched:\none record per batch, not shuffled. "
        f"Median and range of {len(result['candidates'][0]['elapsed_s'])} epochs.",
    )


def draw_peers(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows per second of each reader and of each training as bars."""
    rows = []
    for section, names in result["sections"].items():
        entries = []
        for entry in sorted(result["candidates"], key=lambda entry: entry["rows_per_s"]):
            if entry["name"] in names:
                name = entry["name"].removeprefix(peers.TRAIN)
                colour = {"loader": OURS, "tf": THEIRS}.get(re.split("[., ]", name)[0], PEER)
                entries.append(entry | {"name": name, "colour": colour})
        title, key = peers.PANELS[section]
        rows.append([Panel(f"{title}, batches of {result[key]:,} (log scale)", entries, log=True)])
    draw_panels(
        path,
        result,
        rows,
        0.3 * len(rows) + 0.3 * len(result["candidates"]) + 1.4,
        "Criteo-shaped rows in the page cache, recommended settings. Median and range of "
        f"{len(result['candidates'][0]['elapsed_s'])} turns.\nFactors: relative to "
        f"{peers.NATIVE}.\n{peers.versions_of(result)}.",
    )


def draw_timelines(result: Mapping[str, Any], path: Path) -> None:
    """Draw an epoch of the native training above one of the accelerated, on one time scale."""
    from benchmarks.timelines import as_trace
    from notebooks.traces import draw_timeline

    elapsed_s = {entry["name"]: entry["elapsed_s"] for entry in result["candidates"]}
    untraced = [f"{1e3 * statistics.median(elapsed_s[n]):,.0f}" for n in result["timelines"]]
    traces = {name: as_trace(timeline) for name, timeline in result["timelines"].items()}
    heights = [sum(bool(list(lane)) for lane in trace.lanes.values()) for trace in traces.values()]
    with page(path, 0.45 * sum(heights) + 0.5 * len(traces) + 1.2) as figure:
        all_axes = figure.subplots(len(traces), sharex=True, height_ratios=heights, squeeze=False)
        for axes, (name, trace) in zip(all_axes[:, 0], traces.items(), strict=True):
            draw_timeline(trace, 1, axes)
            length, share = trace.length_ms, trace.wait_share
            title = f"{name}: {length:,.0f} ms, {share:.0%} of it waiting for data"
            axes.set_title(title, loc="left", weight="bold")
            axes.label_outer()
            axes.set_xlim(0, max(each.stop_ms for each in traces.values()))
        what = (
            f"An epoch each of {result['candidates'][0]['rows']:,} rows in batches of "
            f"{result['batch_size']:,}, {result['widths']} widths, seen by TensorFlow's profiler; "
            "it does not show the loader's threads.\nThe profiler takes time itself: without it "
            f"these epochs took {' and '.join(untraced)} ms."
        )
        caption(figure, result, what, ("tensorflow",))


def draw_growth(result: Mapping[str, Any], path: Path) -> None:
    """Draw start-up, rate, memory and bytes read over the size of each series, all as logarithms.

    A cost in proportion to the size is a line of slope 1; vertical lines are the processes' range.
    """
    colours = (OURS, "#9c6b98", LIMIT, THEIRS)
    looks = dict(zip(growth.SIZES, zip(colours, "os^D", strict=True), strict=True))
    with page(path, 6.4) as figure:
        panels = figure.subplots(2, 2, sharex=True)
        for axes, (key, (title, unit)) in zip(panels.flat, GROWTH.items(), strict=True):
            for series, (colour, marker) in looks.items():
                found = [e for e in result["candidates"] if e["series"] == series]
                if not found:
                    continue
                sizes = [entry["size"] for entry in found]
                values = [[each / unit for each in growth_values(e, key)] for e in found]
                medians = [statistics.median(each) for each in values]
                axes.vlines(sizes, [*map(min, values)], [*map(max, values)], color=colour)
                label = series.replace("_", " ")
                axes.plot(sizes, medians, color=colour, marker=marker, markersize=5, label=label)
            if key == "first_batch_s":
                axes.axhline(growth.START_S, color=TEXT, linewidth=1, linestyle=(0, (4, 3)))
            axes.set(xscale="log", yscale="log")
            axes.set_title(title, loc="left", weight="bold")
            axes.tick_params(which="both", color=TEXT, labelcolor=TEXT, labelsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            axes.spines[["left", "bottom"]].set_color(TEXT)
        for axes in panels[1]:
            axes.set_xlabel("rows, columns, row groups or files", color=TEXT)
        figure.legend(
            *panels.flat[0].get_legend_handles_labels(), loc="outside upper left", ncols=4,
            frameon=False, labelcolor=TEXT,
        )  # fmt: skip
        what = (
            "Cost of a loader when one size grows and the others stay. Rows are Criteo-shaped; a "
            f"row group of that series has {growth.ROW_GROUP_ROWS:,} rows,\na file "
            f"{growth.FILE_ROWS:,}. Files in the page cache. Broken line: the limit of "
            f"{growth.START_S:.0f} s. Median and range of {_processes(result['candidates'])}."
        )
        caption(figure, result, what, ("tensorflow", "pyarrow"))


GROWTH = {  # what a panel of `draw_growth` shows: (title with the unit, units in one of it)
    "first_batch_s": ("Seconds to the first batch", 1),
    "rows_per_s": ("Rows per second of an epoch", 1),
    "peak_bytes": ("Peak memory, MiB", 2**20),
    "read_bytes": ("Bytes read, MiB", 2**20),
}


def growth_values(entry: Entry, key: str) -> list[float]:
    """Return what each process of a case of the benchmark `growth` measured, above 0."""
    if key == "rows_per_s":
        return [entry["rows"] / seconds for seconds in entry["elapsed_s"]]
    return [
        max(process[key], 1) if key.endswith("bytes") else process[key]
        for process in entry["processes"]
    ]


DRAWN = {  # figure: (benchmark, part of its report, function)
    "loader_throughput": ("loader", "candidates", draw_loader_throughput),
    "loader_memory": ("memory", "candidates", draw_loader_memory),
    "etl": ("etl", "candidates", draw_etl),
    "layers": ("layers", "candidates", draw_layers),
    "train": ("train", "candidates", draw_train),
    "growth": ("growth", "growth", draw_growth),
    "timelines": ("train", "timelines", draw_timelines),
    "peers": ("peers", "candidates", draw_peers),
}
