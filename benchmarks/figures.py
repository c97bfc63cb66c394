"""Draw imgs/ from benchmarks/results/: figures for README and lessons, with machine and date.

Colours are mid-tones on a transparent background, so that a figure reads on a light and on a dark
page. The same JSON gives the same bytes, so that drawing again changes nothing in git.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.costs import SIZES, START_S
from benchmarks.measure import RESULTS, ROOT, UNITS, describe_hardware, rates, ratios

SUMMARY = "draw imgs/ from benchmarks/results/"
IMAGES = ROOT / "imgs"
OURS, THEIRS, LIMIT, TEXT = "#2f9e75", "#7a8fa6", "#b08d57", "#757f89"  # as in the lessons
PEER = "#9a7fb0"  # another library
RANGE = "#1c2530"  # within a bar; beyond it a range is drawn like text
COLOURS = {  # by the beginning of a way's name; the first that fits counts
    OURS: ("loader", "tutorlib", "fit", "Fused", "EmbeddingBag", "RowSparse", "RowWise"),
    LIMIT: ("Arrow",),
    PEER: ("HF", "PyTorch", "Grain", "Mosaic", "Ray", "merlin"),
    THEIRS: ("",),
}


@dataclasses.dataclass(frozen=True)
class Bars:
    """A figure of bars: a row of panels for each section, the fastest way on top.

    Args:
        benchmark: whose newest report is drawn.
        sections: {section: title}.
        what: the caption's beginning; {names} are options of the report.
        value: (value of the ways, title) of a second column of panels.
        limit: option with the limit of that value, in MiB, that a broken line shows.
        ordered: whether the ways stay in the order of the report.
        log: whether a tenfold rate is one step further instead of ten.
        only: {way: what the figure calls it} of those to draw; all if empty.
    """

    benchmark: str
    sections: Mapping[str, str]
    what: str
    value: tuple[str, str] | None = None
    limit: str = ""
    ordered: bool = False
    log: bool = False
    only: Mapping[str, str] = dataclasses.field(default_factory=dict)


FIGURES: dict[str, Bars] = {
    "first_page": Bars(
        "peers",
        {"train": "Training one DLRM: rows per second"},
        "Narrow layers, all four compiled by XLA, batches of {train_batch_size:,}, files in the "
        "page cache.",
        only={
            "tf.data, make_batched_features_dataset": "TFRecord, one feature a column",
            "Keras arrays in memory": "Keras, arrays in memory",
            "tf.data, prebatched TFRecord, not shuffled": "TFRecord, whole batches, not shuffled",
            "loader, columns": "loader, from Parquet",
        },
    ),
    "loader_throughput": Bars(
        "loader",
        {"readers": "Rows per second into the training step"},
        "13 float32 + 26 ids + label, batches of {batch_size:,}, files in the page cache.",
    ),
    "loader_memory": Bars(
        "memory",
        {"series": "Rows per second", "special": "Special cases"},
        "Criteo-shaped data; memory_budget = {budget_mib} MiB, the broken line.",
        value=("peak_bytes", "Peak memory"),
        limit="budget_mib",
        ordered=True,
    ),
    "etl": Bars(
        "etl",
        {"clicks": "Fit and transform, rows per second"},
        "{rows:,} raw rows (13 counts, 26 strings) to training-ready Parquet.",
        value=("peak_bytes", "Peak memory"),
    ),
    "layers": Bars(
        "layers",
        {
            "fused": "26 columns of ids to one tensor, rows per second",
            "lists of 100,000 ids": "Lists of ids to their mean, table of 100,000 rows",
            "lists of 21 ids": "Lists of ids to their mean, table of 21 rows",
            "steps of small batches": "A step of the optimizer, batch 4,096",
            "steps of large batches": "A step of the optimizer, batch {batch_size:,}",
        },
        "Layers forward and backward, {batch_size:,} rows; embeddings {width} wide, tables of "
        "{table_rows:,} rows.",
    ),
    "train": Bars(
        "train",
        {
            "dlrm": "DLRM: samples per second",
            "movielens": "MovieLens: samples per second",
            "wide_and_deep": "Wide & Deep: samples per second",
        },
        "Epochs of {rows:,} rows in batches of {batch_size:,}, {optimizer}, {widths} widths; "
        "native: TFRecord,\nprebatched: one record per batch, not shuffled.",
        value=("wait_share", "Waiting for data"),
        ordered=True,
    ),
    "peers": Bars(
        "peers",
        {
            "read": "Reading: rows/s, batches of {batch_size:,} (log scale)",
            "train": "A DLRM: samples/s, batches of {train_batch_size:,} (log scale)",
        },
        "Criteo-shaped rows in the page cache, settings as documented.",
        log=True,
    ),
}
LIBRARIES = {
    "tensorflow": "TensorFlow",
    "pyarrow": "PyArrow",
    "polars": "Polars",
    "pandas": "pandas",
}  # in captions
GROWTH = {  # panels of the figure `growth`: value, (title with the unit, units in one of it)
    "first_batch_s": ("Seconds to the first batch", 1),
    "rows_per_s": ("Rows per second of an epoch", 1),
    "peak_bytes": ("Peak memory, MiB", 2**20),
    "read_bytes": ("Bytes read, MiB", 2**20),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to a parser."""
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder to draw into")
    names = [*FIGURES, "growth"]
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="FIGURE",
        help=f"some of {', '.join(names)} (default: all)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Draw the figures; exit with a message if a measurement is missing, after drawing the rest."""
    missing = []
    arguments.images.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        path = arguments.images / f"{name}.svg"
        try:
            if name == "growth":
                draw_growth(newest("growth", arguments.results), path)
            else:
                draw_bars(FIGURES[name], newest(FIGURES[name].benchmark, arguments.results), path)
        except FileNotFoundError as error:
            missing.append(str(error))
        else:
            print(f"drawn: {path}")
    if missing:
        raise SystemExit("\n".join(f"benchmarks: {message}" for message in missing))


def newest(benchmark: str, results: Path = RESULTS) -> dict[str, Any]:
    """Return the newest report of a benchmark."""
    reports = [json.loads(path.read_text("utf-8")) for path in results.glob(f"{benchmark}-*.json")]
    if not reports:
        raise FileNotFoundError(
            f"no {benchmark}-*.json in {results}; run `python -m benchmarks {benchmark}` first"
        )
    return max(reports, key=lambda report: report["date"])


def in_words(rate: float) -> str:
    """Return a rate as a reader would say it."""
    if rate < 1e6:
        return f"{rate / 1e3:.0f} thousand"
    return f"{rate / 1e6:.{1 if rate < 1e7 else 0}f} million"


def rate_and_ratio(entry: Mapping[str, Any]) -> str:
    """Return the rows per second of an entry and its ratio."""
    digits = 2 if entry["ratio"] < 1 else 1 if entry["ratio"] < 10 else 0
    return f"{in_words(entry['rows_per_s'])}  ({entry['ratio']:,.{digits}f}x)"


def draw_bars(bars: Bars, result: Mapping[str, Any], path: Path) -> None:
    """Draw rates, and one more value, of the ways of some sections."""
    drawn: dict[str, list[dict[str, Any]]] = {}
    bases = []
    for section in bars.sections:
        ways = [entry for entry in result["ways"] if entry["section"] == section]
        for entry in reversed(ways):
            if not bars.only or entry["name"] in bars.only:
                name, ratio = entry["name"], statistics.median(ratios(entry, ways[0]))
                entry = {**entry, "name": bars.only.get(name, name), "ratio": ratio}
                drawn.setdefault(section, []).append(entry)
        bases += drawn.get(section, [])[-1:]
    if not drawn:
        needed = f"python -m benchmarks {bars.benchmark} --only {' '.join(bars.sections)}"
        raise FileNotFoundError(f"{path.stem} needs a run of `{needed}` first")
    options, heights = result["options"], [len(entries) for entries in drawn.values()]
    with page(path, 0.36 * sum(heights) + 0.3 * len(heights) + 1.1) as figure:
        panels = figure.subplots(
            len(drawn), 1 + bool(bars.value), sharey="row", squeeze=False,
            height_ratios=heights, width_ratios=(5, 4)[: 1 + bool(bars.value)],
        )  # fmt: skip
        for (section, entries), row in zip(drawn.items(), panels, strict=True):
            if not bars.ordered:
                entries.sort(key=lambda entry: entry["rows_per_s"])
            title = bars.sections[section].format(**options)
            _panel(row[0], title, entries, [rates(e) for e in entries], bars.log)
            if bars.value:
                name, title = bars.value
                _panel(row[1], title, entries, [e["values"][name] for e in entries], unit=name)
            if bars.limit:
                row[1].axvline(options[bars.limit] * 2**20, color=TEXT, linestyle=(0, (4, 3)))
        turns = len(result["ways"][0]["elapsed_s"])
        first = ", ".join(dict.fromkeys(base["name"] for base in bases))
        what = f"{bars.what.format(**options)} Median and range of {turns} turns.\n"
        caption(figure, result, f"{what}Factors: medians of the turns' ratios to {first}.")


def _panel(
    axes: Any,
    title: str,
    entries: Sequence[Mapping[str, Any]],
    values: Sequence[Sequence[float]],
    log: bool = False,
    unit: str = "",
) -> None:
    """Draw a bar for the median of each entry's values, a line for their range, and the number."""
    for y, (entry, of_turns) in enumerate(zip(entries, values, strict=True)):
        starts = COLOURS.items()
        colour = next(c for c, names in starts if entry["name"].startswith(names))
        median, lowest, highest = statistics.median(of_turns), min(of_turns), max(of_turns)
        axes.barh(y, median, color=colour, height=0.62)
        axes.plot([median, highest], [y, y], color=TEXT, linewidth=1.5)
        axes.plot([lowest, median], [y, y], color=RANGE, linewidth=1.5)
        said = next((text(median) for end, text in UNITS.items() if end and unit.endswith(end)), "")
        axes.annotate(
            said or rate_and_ratio(entry), (highest, y), (5, 0), textcoords="offset points",
            va="center", weight="bold" if colour == OURS else "normal",
        )  # fmt: skip
    axes.set_yticks(range(len(entries)), [entry["name"] for entry in entries], color=TEXT)
    axes.set_ylim(-0.6, len(entries) - 0.4)
    axes.set_xlim(0, 1.5 * max(map(max, values)))
    if log:
        axes.set_xscale("log")
        axes.set_xlim(min(map(min, values)) / 2, 50 * max(map(max, values)))
    axes.set_xticks([])
    axes.tick_params(length=0, which="both")
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", weight="bold")


def draw_growth(result: Mapping[str, Any], path: Path) -> None:
    """Draw start-up, rate, memory and bytes read over the size of each series, all as logarithms.

    A cost in proportion to the size is a line of slope 1; vertical lines are the processes' range.
    """
    looks = dict(zip(SIZES, zip((OURS, PEER, LIMIT, THEIRS), "os^D", strict=True), strict=True))
    with page(path, 6.4) as figure:
        panels = figure.subplots(2, 2, sharex=True)
        for axes, (key, (title, unit)) in zip(panels.flat, GROWTH.items(), strict=True):
            for series, (colour, marker) in looks.items():
                entries = [e for e in result["ways"] if e["section"] == series]
                sizes = [entry["size"] for entry in entries]
                values = [
                    [
                        max(each / unit, 1e-6)
                        for each in (rates(e) if key == "rows_per_s" else e["values"][key])
                    ]
                    for e in entries
                ]
                axes.vlines(sizes, [*map(min, values)], [*map(max, values)], color=colour)
                label, medians = series.replace("_", " "), [*map(statistics.median, values)]
                axes.plot(sizes, medians, color=colour, marker=marker, markersize=5, label=label)
            if key == "first_batch_s":
                axes.axhline(START_S, color=TEXT, linewidth=1, linestyle=(0, (4, 3)))
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
        what = "Cost of a loader when one size grows and the others stay. Files in the page cache."
        caption(figure, result, f"{what} Broken line: the limit of {START_S:.0f} s.")


@contextlib.contextmanager
def page(path: Path, height: float) -> Iterator[Any]:
    """Yield an empty matplotlib figure, `height` inches high, and write it to `path` as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "tutorlib", "font.size": 11, "text.color": TEXT}):
        figure = Figure(figsize=(9, height), layout="constrained")
        yield figure
        figure.savefig(path, transparent=True, metadata={"Date": None})


def caption(figure: Any, result: Mapping[str, Any], what: str) -> None:
    """Write below a figure what was measured, on what, with what and when."""
    shown = {n: v for n, v in result["versions"].items() if n in LIBRARIES}
    versions = ", ".join(f"{LIBRARIES[name]} {version}" for name, version in shown.items())
    text = f"{what}\n{describe_hardware(result['hardware'])}. {versions}. {result['date'][:10]}"
    figure.supxlabel(text, fontsize=9, x=0.01, ha="left", linespacing=1.5)
