"""Draw imgs/ from benchmarks/results/ and lesson 00, and fill the tables of pages.

Colours are mid-tones on a transparent background, so that a figure reads on a light and on a dark
page. The same JSON gives the same bytes, so that drawing again changes nothing in git.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ladder
from benchmarks import loader, measure
from benchmarks.ladder import trainings
from drawing import draw_epochs
from ladder import OURS, RANGE, THEIRS
from turns import rate_and_range, two_digits

SUMMARY = "draw imgs/ and fill the tables of pages from benchmarks/results/"
IMAGES, PAGE = measure.ROOT / "imgs", measure.ROOT / "benchmarks" / "README.md"
PEERS_PAGE, GPU_PAGE = (measure.ROOT / "docs" / f"{name}.md" for name in ("compare", "gpu"))
LIMIT, TEXT = "#b08d57", "#757f89"  # beside the colours of the ladder


READERS = (*loader.RIVALS, loader.COLUMNS, loader.STACKED, loader.ARROW)  # that are drawn
LIBRARIES = "tensorflow", "pyarrow"  # in captions
TABLE = {  # (benchmark, section): what its claims are called on the page; others are left out
    ("loader", "readers"): "reading, this project's files",
    ("loader", "plain"): "reading, PyArrow's default files",
    ("loader", "movielens"): "reading lists (MovieLens)",
    ("ladder", "plain"): "training a DLRM",
    ("ladder", "xla"): "training a DLRM, fused table, XLA",
    ("ladder", "bits16"): "training a DLRM, fused table, XLA, 16 bits",
    ("train", "movielens"): "training on lists (MovieLens)",
    ("train", "wide_and_deep"): "training Wide & Deep",
    ("large-tables", "adam"): "training 188.7 million parameters",
    ("peers", "own"): "reading, other libraries, this project's files",
    ("peers", "read"): "reading, other libraries, PyArrow's default files",
    ("peers", "train"): "training, other libraries",
    ("layers", "fused"): "26 columns of ids",
    ("layers", "steps of small batches"): "a step, tables of a million rows",
    ("etl", "clicks"): "preprocessing",
}
LOST = {  # readers of the first page's first claim, and how it names them
    ladder.LOADER: "with the loader",
    ladder.LINES: "with 25 lines of Arrow",
    ladder.TFRECORD: "with TFRecord",
}
LESSON = measure.ROOT / "notebooks" / "00_quickstart.ipynb"
REMEDIES = {"model.fit": "arrays in memory", "data.save": "saved batches", "Keras": "loader"}
RATE = r"(as it is|model alone) +([\d,]+) rows/s"
BLOCK = re.compile(r"(<!-- measured: begin -->\n).*?(<!-- measured: end -->)", re.DOTALL)
README = measure.ROOT / "README.md"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to a parser."""
    parser.add_argument(
        "--results", type=Path, default=measure.RESULTS, help="folder of the JSON files"
    )
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder to draw into")
    parser.add_argument("--page", type=Path, default=PAGE, help="page of all claims to fill")
    parser.add_argument("--peers-page", type=Path, default=PEERS_PAGE, help="comparison to fill")
    parser.add_argument("--gpu-page", type=Path, default=GPU_PAGE, help="page on GPUs to fill")
    parser.add_argument("--readme", type=Path, default=README, help="first page to fill")
    parser.add_argument("--only", choices=PICTURES, nargs="+", help="draw only these")


def run(arguments: argparse.Namespace) -> None:
    """Draw the figures whose reports exist, fill the page; say what to run for the others."""
    arguments.images.mkdir(parents=True, exist_ok=True)
    missing = []
    for name in arguments.only or PICTURES:
        benchmark, draw = PICTURES[name]
        path = arguments.images / f"{name}.svg"
        try:
            draw(newest(benchmark, arguments.results), path)
            print(f"drawn: {path}")
        except FileNotFoundError as error:
            missing.append(str(error))
    print(f"drawn: {draw_waiting(arguments.images / 'waiting.svg')}")
    pages = arguments.page, arguments.peers_page, arguments.gpu_page, arguments.readme
    makers = table, peers_table, gpu_table, ladder_table
    for path, make in zip(pages, makers, strict=True):
        path.write_text(filled(path, make(arguments.results)), encoding="utf-8")
        print(f"filled: {path}")
    if missing:
        raise SystemExit("\n".join(f"benchmarks: {message}" for message in missing))
    print("README says:", gpu_sentence(arguments.results))


def filled(path: Path, lines: str) -> str:
    """Return a page whose block of what was measured has these lines."""
    page = path.read_text(encoding="utf-8")
    return BLOCK.sub(lambda found: found[1] + lines + found[2], page)


def newest(benchmark: str, results: Path = measure.RESULTS) -> dict[str, Any]:
    """Return the newest report of a benchmark."""
    reports = [json.loads(path.read_text("utf-8")) for path in results.glob(f"{benchmark}-*.json")]
    if not reports:
        raise FileNotFoundError(
            f"no {benchmark}-*.json in {results}; run `python -m benchmarks {benchmark}` first"
        )
    return max(reports, key=lambda report: report["date"])


def answer(report: Mapping[str, Any], name: str) -> Any:
    """Return an answer of `gpu-check`, whichever of its parts gave it."""
    return next(part[name] for part in report["parts"].values() if name in part)


def gpu_sentence(results: Path = measure.RESULTS) -> str:
    """Return what the first page says of GPUs: what the newest `gpu-check` found on a card."""
    if not any(results.glob("gpu-check-*.json")):
        return "No GPU has run this code yet."
    report = newest("gpu-check", results)
    card = report["hardware"]["gpus"][0].partition(",")[0]
    shares = []
    rates = answer(report, "rows/s")
    for way in (name.removeprefix("gpu, ") for name in rates if name.startswith("gpu, ")):
        by_gpu, by_cpu = (statistics.median(rates[f"{device}, {way}"]) for device in ("gpu", "cpu"))
        shares.append(by_gpu / by_cpu)
    return (
        f"We tried: one {card} made batches at {min(shares):.0%} to {max(shares):.0%} of the "
        f"speed of its host's {report['hardware']['cores']} CPU cores."
    )


def gpu_table(results: Path = measure.RESULTS) -> str:
    """Return the rates that the newest `gpu-check` found on a card, as tables in Markdown.

    Of trainings, the last turn is shown that all of them had time for, with shares of the rate
    without a reader.
    """
    if not any(results.glob("gpu-check-*.json")):
        return "No GPU has run this code yet.\n"
    report = newest("gpu-check", results)
    lines = ["| million rows/s of the loader, Keras on JAX | made on the GPU | made on the CPU |"]
    lines += ["|---|---|---|"]
    rates = answer(report, "rows/s")
    for way in (name.removeprefix("gpu, ") for name in rates if name.startswith("gpu, ")):
        layout, _, size = way.partition(", ")
        cells = [_millions(rates[f"{device}, {way}"]) for device in ("gpu", "cpu")]
        lines.append(f"| {layout}, batches of {int(size):,} | {' | '.join(cells)} |")
    date, machine = report["date"][:10], measure.describe_hardware(report["hardware"])
    lines += ["", f"*{machine}, {date}: median of three turns (range).*", ""]
    trained = answer(report, "samples/s of a DLRM")
    lines += [
        "| million samples/s of a DLRM in `fit` | GPU's batches | CPU's batches | no reader |"
    ]
    lines += ["|---|---|---|---|"]
    for layout in ("columns", "stacked"):
        turns = [trained[f"{reader}, {layout}"] for reader in ("gpu", "cpu", "no reader")]
        gpu, cpu, most = (values[min(map(len, turns)) - 1] for values in turns)
        cells = [f"{rate / 1e6:.3g} ({rate / most:.2f})" for rate in (gpu, cpu)]
        lines.append(f"| {layout}, batches of 65,536 | {' | '.join(cells)} | {most / 1e6:.3g} |")
    return "\n".join([*lines, "", "*One turn (share of the rate without a reader).*", ""])


def _millions(values: Sequence[float]) -> str:
    least, middle, most = (f(values) / 1e6 for f in (min, statistics.median, max))
    return f"{middle:.3g} ({least:.3g} to {most:.3g})"


def table(results: Path = measure.RESULTS) -> str:
    """Return the claims of all reports that `TABLE` names, as a table in Markdown."""
    head = "| | measured | compared with | times as fast, or value (range) | target | |"
    lines, before = [head, "|---" * 6 + "|"], ("", "")
    for benchmark in dict.fromkeys(name for name, _ in TABLE):
        claims = newest(benchmark, results)["claims"] if any(results.glob(f"{benchmark}-*")) else []
        for said in claims:
            section, _, rest = said["claim"].partition(": ")
            way, _, other = rest.partition(" / ")
            if title := TABLE.get((benchmark, section)):
                shown = title * (title != before[0]), way * ((title, way) != before)
                before = title, way
                cells = [*shown, other, measure.measured(said), measure.target(said)]
                lines.append(f"| {' | '.join([*cells, measure.reached(said)])} |")
    return "\n".join([*lines, "", readers_table(results, "own")])


def readers_table(results: Path = measure.RESULTS, section: str = "read") -> str:
    """Return what each reader of a section of `peers` gives, and takes, as a table in Markdown."""
    ways = newest("peers", results)["ways"] if any(results.glob("peers-*")) else []
    title = TABLE["peers", section].removeprefix("reading, other libraries, ")
    lines = [f"| reader of {title} | million rows/s (range) | a batch is worth, rows | peak MiB |"]
    lines += ["|---" * 4 + "|"]
    for entry in (entry for entry in ways if entry["section"] == section):
        rate = rate_and_range([each / 1e6 for each in measure.rates(entry)])
        worth, peak = entry["values"]["worth_rows"][0], entry["values"]["peak_bytes"][0] / 2**20
        cells = [rate, two_digits(worth), two_digits(peak)]
        lines.append(f"| {entry['name']} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def peers_table(results: Path = measure.RESULTS) -> str:
    """Return the readers of PyArrow's default files, and what of them ran in another command."""
    if not any(results.glob("peers-*.json")):
        return readers_table(results)
    report = newest("peers", results)
    said = f"*{measure.describe_hardware(report['hardware'])}, {report['date'][:10]}.*"
    other = newest("loader", results) if any(results.glob("loader-*")) else {"claims": []}
    for claimed in other["claims"]:
        if claimed["claim"] == f"plain: {loader.COLUMNS} / {loader.LINES}":
            said += (
                " *25 lines of Arrow ran in another command, in turns with the loader, which was "
                f"{measure.measured(claimed)} times as fast "
                f"({measure.describe_hardware(other['hardware'])}, {other['date'][:10]}).*"
            )
    return "\n".join([readers_table(results), said, "", f"*{_versions(report)}.*", ""])


def _versions(report: Mapping[str, Any]) -> str:
    """Return the versions of the libraries that read; of a name, that of the first reader."""
    found: dict[str, str] = {}
    for entry in report["ways"]:
        if entry["section"] == "read":
            found = entry.get("versions", {}) | found
    return ", ".join(f"{name} {version}" for name, version in sorted(found.items()))


def ladder_table(results: Path = measure.RESULTS) -> str:
    """Return the first page's table: what each reader reaches, in every panel of the ladder."""
    if not any(results.glob("ladder-*.json")):
        return ""
    report = newest("ladder", results)
    panels = {name: trainings(report, name) for name in ladder.PANELS}
    panels = {name: trained for name, trained in panels.items() if trained}
    claims = []
    for reader, words in LOST.items():
        shares = [ladder.share(trained, reader) for trained in panels.values()]
        claims.append(f"{1 - max(shares):.0%} to {1 - min(shares):.0%} {words}")
    asked = "How much of its speed does training lose to reading?"
    lines = [f"**{asked} {', '.join(claims)} (medians).**", ""]
    titles = [ladder.PANELS[name].title for name in panels]
    lines += [f"| reader | {' | '.join(titles)} |", "|---" * (1 + len(panels)) + "|"]
    for reader in ladder.READERS[:-1]:
        cells = [_narrow(ladder.share_and_range(trained, reader)) for trained in panels.values()]
        lines.append(f"| {reader} | {' | '.join(cells)} |")
    limits = [trained[ladder.CEILING]["rates"] for trained in panels.values()]
    cells = [_narrow(rate_and_range([rate / 1e3 for rate in rates])) for rates in limits]
    lines.append(f"| {ladder.CEILING}, thousand samples/s | {' | '.join(cells)} |")
    machine = measure.describe_hardware(report["hardware"])
    said = (
        "*Share of the speed without any reader: median, range. Where ranges overlap, the order "
        f"may be chance. {machine}, {report['date'][:10]}.*"
    )
    return "\n".join([*lines, "", said, ""])


def _narrow(value_and_range: str) -> str:
    """Return a cell whose range stands below its value, small: a telephone shows all columns."""
    return re.sub(r" \((.*)\)", r"<br><sub>\1</sub>", value_and_range)


def draw_waiting(path: Path, lesson: Path = LESSON) -> Path:
    """Draw the first page's picture, what lesson 00's page says of its dataset, as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    cells = [cell for cell in json.loads(lesson.read_text("utf-8"))["cells"] if "outputs" in cell]
    code = "".join("".join(cell["source"]) for cell in cells)
    rows = int(re.search(r"ROWS = ([\d_]+)", code)[1])  # type: ignore[index]
    outputs = itertools.chain.from_iterable(cell["outputs"] for cell in cells)
    printed = ("".join(output.get("text", "")) for output in outputs)
    said = next(text for text in printed if "model alone" in text)
    rates = {name: rate.replace(",", "") for name, rate in re.findall(RATE, said)}
    as_it_is, alone = (rows / float(rates[name]) for name in ("as it is", "model alone"))
    epochs = {"tf.data, row by row": as_it_is}
    for gain, advice in re.findall(r"\d\. ([\d.]+) times as fast .*?: (.*)", said):
        for begin, name in REMEDIES.items():
            if advice.startswith(begin):
                epochs[name] = as_it_is / float(gain)
    [waits] = re.findall(r"(\d+)% of it waiting", said)
    with matplotlib.rc_context({"svg.hashsalt": "tutorlib"}):
        figure = draw_epochs(epochs, int(waits) / 100, alone, Figure(), TEXT)
        figure.savefig(path, transparent=True, metadata={"Date": None})
    return path


def draw_ladder(report: Mapping[str, Any], path: Path) -> None:
    """Draw the ladder of a report as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    panels = {name: trainings(report, name) for name in ladder.PANELS}
    shown = {name: trained for name, trained in panels.items() if trained}
    with matplotlib.rc_context({"svg.hashsalt": "tutorlib"}):
        figure = ladder.draw(shown, Figure(), TEXT)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def rate_and_ratio(entry: Mapping[str, Any]) -> str:
    """Return the rows per second of an entry as a reader would say it, and its ratio."""
    rate, ratio = entry["rows_per_s"], entry["ratio"]
    said = f"{rate / 1e6:.{int(rate < 1e7)}f} M" if rate >= 1e6 else f"{rate / 1e3:.0f} k"
    return f"{said} ({ratio:,.{2 if ratio < 1 else 1 if ratio < 10 else 0}f}x)"


def draw_readers(report: Mapping[str, Any], path: Path) -> None:
    """Draw how fast readers read, and what their batches are worth, as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    ways = [entry for entry in report["ways"] if entry["section"] == "readers"]
    shown = sorted(
        (entry for entry in reversed(ways) if entry["name"] in READERS),
        key=lambda entry: entry["rows_per_s"],
    )
    if not shown:
        raise FileNotFoundError("run `python -m benchmarks loader --only readers` first")
    with matplotlib.rc_context({"svg.hashsalt": "tutorlib", "font.size": 11, "text.color": TEXT}):
        height = 0.36 * len(shown) + 1.9
        figure = Figure(figsize=(5.2, height), layout="constrained")  # the width of a telephone
        left, right = figure.subplots(1, 2, sharey="row", width_ratios=(5, 2))
        _panel(left, "Rows/s", shown, [*map(measure.rates, shown)])
        values = [entry.get("values", {}).get("worth_rows", []) for entry in shown]
        _panel(right, "Worth of\na batch", shown, values, "worth_rows")
        shaky = sum(measure.unsteady(measure.rates(entry)) for entry in shown)
        what = (
            "13 numbers, 26 ids and a label a row, sorted by time; this project's files, in the "
            f"page cache; batches of {report['options']['batch_size']:,}. Worth of a batch: so "
            "many random rows tell as much about the time. Median of the turns, and its bounds "
            "(90 %)"
        )
        what += f"; {shaky} are wider than {measure.STEADY:.0%}." if shaky else "."
        libraries = ", ".join(f"{n} {report['versions'][n]}" for n in LIBRARIES)
        machine = measure.describe_hardware(report["hardware"])
        text = f"{what} Factors: medians of the turns' ratios to {ways[0]['name']}. {machine}, "
        text = textwrap.fill(f"{text}{libraries}, {report['date'][:10]}", 66)
        figure.supxlabel(text, fontsize=10, x=0.01, ha="left", linespacing=1.5)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def _panel(
    axes: Any,
    title: str,
    entries: Sequence[Mapping[str, Any]],
    values: Sequence[Sequence[float]],
    unit: str = "",
) -> None:
    """Draw for each entry its number, and if it is a rate, a bar and a line for its bounds."""
    for y, (entry, of_turns) in enumerate(zip(entries, values, strict=True)):
        if not of_turns:
            continue
        ours = entry["name"].startswith("loader")
        limit = entry["name"] == loader.ARROW
        median, (lowest, highest) = statistics.median(of_turns), measure.bounds(of_turns)
        if not unit:
            axes.barh(y, median, color=OURS if ours else LIMIT if limit else THEIRS, height=0.62)
            axes.plot([median, highest], [y, y], color=TEXT, linewidth=1.5)
            axes.plot([lowest, median], [y, y], color=RANGE, linewidth=1.5)
        said = next((say(median) for end, say in measure.UNITS.items() if unit.endswith(end)), "")
        said = said if unit else rate_and_ratio(entry)
        look = {"va": "center", "weight": "bold" if ours else "normal"}
        axes.annotate(said, (0 if unit else highest, y), (5, 0), textcoords="offset points", **look)
    names = [textwrap.fill(entry["name"], 23) for entry in entries]
    axes.set_yticks(range(len(entries)), names, color=TEXT, linespacing=1)
    axes.set_ylim(-0.6, len(entries) - 0.4)
    most = max(max(of_turns, default=0) for of_turns in values)
    axes.set_xlim(0, 2 * most)
    axes.set_xticks([])
    axes.tick_params(length=0, which="both")
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", weight="bold", size=11)


PICTURES = {"readers": ("loader", draw_readers), "ladder": ("ladder", draw_ladder)}
