"""What came of `gpu-host`, or has so far: one small JSON file, tables, and two figures.

Reads the files of the steps in a folder, all of one machine. The tables go to stdout, as Markdown:
the matrix of trainings, and the targets with what was reached. A rehearsal on a CPU is reported
beside its files and under that name; nothing of it counts as reached.

    python -m benchmarks gpu-report benchmarks/results/gpu-host-MACHINE

Does not belong here: measuring (`gpu_host.py`), parts of figures (`drawing.py`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure, train
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
from benchmarks.figures import IMAGES

SUMMARY = "one JSON file, tables and figures of what gpu-host has measured"
WAYS = {
    "cpu-native": "native, trained on the CPU",
    "native": "native",
    "prebatched": "native, prebatched",
    "raw": "raw binary, stacked and fused",
    "columns": "loader, columns",
    "stacked": "loader, stacked and fused",
}
COLOURS = {"raw": LIMIT, "columns": OURS, "stacked": OURS}
FULL, MIXED = "float32", "mixed_float16"
CHARACTERS = 400  # of an error
ENTRY = (
    "model", "pipeline", "precision", "backend", "device", "batch_size", "widths", "steps",
    "samples_per_s", "step_ms", "first_step_s", "loss", "valid_loss", "compared_steps", "tf32",
    "jit_compile", "idle_share", "gpu_memory",
)  # fmt: skip

TRACED = ("model", "precision", "backend", "batch_size", "idle_share")
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to a parser."""
    parser.add_argument("folder", type=Path, help="folder of the files that gpu-host has written")
    parser.add_argument(
        "--out", type=Path,
        help="JSON file (default: benchmarks/results/gpu-MACHINE.json; of a rehearsal, in "
        "FOLDER/report)",
    )  # fmt: skip
    parser.add_argument(
        "--images", type=Path,
        help="folder to draw into (default: imgs; of a rehearsal, FOLDER/report)",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=("svg", "png"), default="svg", help="(default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Write the JSON file and the figures, and print the tables."""
    result = merged(arguments.folder)
    out, images = places(result, arguments.folder, arguments.out, arguments.images)
    print(f"{headline(result)}\n\n{matrix_table(result)}\n\n{targets_table(result)}\n")
    for name, error in result["failed"].items():
        print(f"failed: {name}: {error}")
    print(f"written to {measure.save(result, out)}")
    for name, part, draw in (
        ("matrix", "matrix", draw_matrix),
        ("timelines", "timelines", draw_timelines),
    ):
        if result[part]:
            images.mkdir(parents=True, exist_ok=True)
            path = images / f"{result['benchmark']}_{name}.{arguments.format}"
            draw(result, path)
            print(f"drawn: {path}")


def places(
    result: Mapping[str, Any], folder: Path, out: Path | None, images: Path | None
) -> tuple[Path | None, Path]:
    """Return the JSON file, None for its usual place, and the folder of the figures.

    Raises:
        SystemExit: if a rehearsal is to be put among the results.
    """
    if result["device"] == "gpu":
        return out, images or IMAGES
    report = folder / "report"
    slug = measure.hardware_slug(result["hardware"])
    out, images = out or report / f"{result['benchmark']}-{slug}.json", images or report
    for place, kept in ((out, measure.RESULTS), (images, IMAGES)):
        if place.resolve().is_relative_to(kept):
            raise SystemExit(
                f"benchmarks: {folder} is a rehearsal on a CPU, which has no place in {kept}: "
                f"choose another than {place}"
            )
    return out, images


def merged(folder: Path) -> dict[str, Any]:
    """Return what the steps in a folder have measured, without what no table or figure needs.

    Raises:
        SystemExit: if there is no step, or steps of several machines or devices.
    """
    records = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    if not records:
        raise SystemExit(f"benchmarks: no step of gpu-host has left a file in {folder}")
    machines = {(measure.hardware_slug(r["hardware"]), r["device"]) for r in records}
    if len(machines) > 1:
        raise SystemExit(f"benchmarks: {folder} is of several machines: {sorted(machines)}")
    newest = max(records, key=lambda record: record["date"])
    done = {record["step"]: record["result"] for record in records if "result" in record}
    result = {
        "benchmark": "gpu" if newest["device"] == "gpu" else "rehearsal",
        **{key: newest[key] for key in ("date", "device", "hardware", "versions")},
        "commits": sorted({str(record["commit"]) for record in records}),
        "matrix": list(_matrix(done)),
        "readers": {
            name: {key: found[key] for key in ("rows", "rows_per_s", "elapsed_s")}
            for name, found in done.items()
            if name.startswith(("loader-", "reader-"))
        },
        "timelines": {
            WAYS[found["pipeline"]]: {
                **{key: found[key] for key in TRACED},
                **found["timeline"],
            }
            for name, found in done.items()
            if name.startswith("trace-") and found.get("timeline")
        },
        "tests": {name: found["counts"] for name, found in done.items() if "counts" in found},
        "lessons": {
            found["lesson"]: {key: found[key] for key in ("headline", "seconds")}
            for found in done.values()
            if "lesson" in found
        },
        "failed": {r["step"]: r["error"][-CHARACTERS:] for r in records if "error" in r},
    }
    return {**result, "targets": targets(result)}


def _matrix(done: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each training, with the ratio to the native one in float32 of the same model."""
    trained = {
        (found["model"], found["pipeline"], found["precision"]): found
        for name, found in done.items()
        if name.startswith("train-")
    }
    for model in train.TITLES:
        native = trained.get((model, "native", FULL))
        for precision in (FULL, MIXED):
            for way in WAYS:
                found = trained.get((model, way, precision))
                if found is None:
                    continue
                entry = {key: found[key] for key in ENTRY}
                traced = done.get(f"trace-{model}-{way}-{precision}", {})
                if entry["idle_share"] is None and "GPU" in (traced.get("traced") or ""):
                    entry["idle_share"] = traced["idle_share"]
                rates = found["samples_per_s"], native and native["samples_per_s"]
                yield {**entry, "times_native": _ratio(*rates)}


def targets(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is to be reached on a GPU, with what was: "reached", "not reached", or neither.

    On a CPU nothing counts as measured.
    """
    found = {(e["model"], e["pipeline"], e["precision"]): e for e in result["matrix"]}

    def rate_of(model: str, way: str, precision: str) -> float | None:
        return found.get((model, way, precision), {}).get("samples_per_s")

    def idle_of(precision: str) -> float | None:
        return found.get(("dlrm", "stacked", precision), {}).get("idle_share")

    loaders = [e["rows_per_s"] for n, e in result["readers"].items() if n.startswith("loader-")]
    fused = [rate_of("dlrm", "stacked", precision) for precision in (FULL, MIXED)]
    wanted: list[tuple[str, float | None, str, float]] = []
    for model, least in (("movielens", 9), ("dlrm", 3)):
        ours, theirs = (rate_of(model, way, FULL) for way in ("stacked", "native"))
        what = f"{train.TITLES[model]}, {FULL}: stacked and fused, times native"
        wanted.append((what, _ratio(ours, theirs), "least", least))
    for model in ("movielens", "dlrm"):
        mixed, full = (rate_of(model, "stacked", precision) for precision in (MIXED, FULL))
        what = f"{train.TITLES[model]}, stacked and fused: {MIXED}, times {FULL}"
        wanted.append((what, _ratio(mixed, full), "least", 2))
    fastest = max((rate for rate in fused if rate), default=None)
    wanted.append(("DLRM, stacked and fused: samples per second", fastest, "least", 4.5e6))
    wanted.append(("loader alone: rows per second", max(loaders, default=None), "least", 20e6))
    for precision in (FULL, MIXED):
        what = f"DLRM, stacked and fused, {precision}: idle share of the GPU"
        wanted.append((what, idle_of(precision), "most", 0.1))
    return [
        {"what": what, "value": value, "at": at, "bound": bound}
        | {"outcome": outcome(value, at, bound, result["device"])}
        for what, value, at, bound in wanted
    ]


def outcome(value: float | None, at: str, bound: float, device: str) -> str:
    """Return whether a target was reached.

    Example:
        >>> outcome(9.5, "least", 9, "gpu"), outcome(0.2, "most", 0.1, "gpu")
        ('reached', 'not reached')
        >>> outcome(None, "least", 9, "gpu"), outcome(9.5, "least", 9, "cpu")
        ('not measured', 'not measured')
    """
    if value is None or device != "gpu":
        return "not measured"
    return "reached" if (value >= bound if at == "least" else value <= bound) else "not reached"


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part and whole else None


# ---- tables --------------------------------------------------------------------------------------


def device_in_words(result: Mapping[str, Any]) -> str:
    """Return the device that all but "trained on the CPU" is about."""
    if result["device"] == "gpu":
        return result["hardware"]["gpus"][0].split(",")[0]
    return "a CPU (rehearsal)"


def headline(result: Mapping[str, Any]) -> str:
    """Return where, when and with what."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    machine = measure.describe_hardware(result["hardware"])
    return f"Trained on {device_in_words(result)}: {machine}. {result['date'][:10]}. {versions}."


def matrix_table(result: Mapping[str, Any]) -> str:
    """Return the trainings as a table in Markdown."""
    names = ("model", "way", "precision", "samples/s", "ms a step", "times native", "GPU idle")
    names += ("validation loss", "peak, backend", "peak, loader")
    rows = []
    for entry in result["matrix"]:
        precision = entry["precision"] + (" (TF32)" if entry["tf32"] is True else "")
        memory = entry["gpu_memory"] or {}
        peaks = [memory.get(name, {}).get("peak") for name in (entry["backend"], "rmm")]
        rows.append(
            [train.TITLES[entry["model"]], WAYS[entry["pipeline"]], precision]
            + [_cell(entry["samples_per_s"], ",.0f"), _cell(entry["step_ms"], ",.1f")]
            + [_cell(entry["times_native"], ",.3g"), _cell(entry["idle_share"], ".0%")]
            + [_cell(entry["valid_loss"], ".4f")]
            + [_cell(peak and peak / 2**30, ",.2f", " GiB") for peak in peaks]
        )
    steps = {entry["compared_steps"] for entry in result["matrix"]}
    said = f"validation loss: after {' or '.join(map(str, sorted(steps)))} steps" if steps else ""
    return f"{_markdown(names, rows)}\n\ntimes native: to native in float32; {said}"


def targets_table(result: Mapping[str, Any]) -> str:
    """Return the targets as a table in Markdown."""
    rows = [
        [t["what"], f"at {t['at']} {t['bound']:,.12g}", _cell(t["value"]), t["outcome"]]
        for t in result["targets"]
    ]
    return _markdown(("target on a GPU", "to be", "value", "outcome"), rows)


def _cell(value: float | None, form: str = "", unit: str = "") -> str:
    if value is None:
        return ""
    return f"{value:{form or (',.0f' if value >= 1000 else '.3g')}}{unit}"


def _markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---- figures -------------------------------------------------------------------------------------


def draw_matrix(result: Mapping[str, Any], path: Path) -> None:
    """Draw the samples per second of each training as bars, a panel for each model."""
    matrix = result["matrix"]
    panels = {
        model: [entry for entry in reversed(matrix) if entry["model"] == model]
        for model in train.TITLES
    }
    panels = {model: entries for model, entries in panels.items() if entries}
    heights = [len(entries) + 0.8 for entries in panels.values()]
    with page(path, 0.3 * sum(heights) + 1.1) as figure:
        all_axes = figure.subplots(len(panels), height_ratios=heights, squeeze=False)[:, 0]
        for axes, (model, entries) in zip(all_axes, panels.items(), strict=True):
            colours = [COLOURS.get(entry["pipeline"], THEIRS) for entry in entries]
            bars(axes, [_bar(entry) for entry in entries], colours, "rows_per_s", _label)
            title(axes, f"{train.TITLES[model]} on {device_in_words(result)}: samples/s")
        some = matrix[0]
        caption(
            figure,
            result,
            f"Batches of {some['batch_size']:,}, {some['widths']} widths, Adam; "
            f"{' and '.join(sorted({BACKENDS[e['backend']] for e in matrix}))}.\n"
            "native: TFRecord, an example a row. Factors are to native in float32"
            f"{', which the GPU multiplies as TF32' * any(e['tf32'] is True for e in matrix)}.",
        )


def _bar(entry: Mapping[str, Any]) -> dict[str, Any]:
    name = f"{WAYS[entry['pipeline']]}, {entry['precision'].removeprefix('mixed_')}"
    speed = entry["samples_per_s"]
    return {"name": name, "ratio": entry["times_native"], **ranged("rows_per_s", [speed], speed)}


def _label(bar: Mapping[str, Any]) -> str:
    return in_words(bar["rows_per_s"]) if bar["ratio"] is None else rate(bar)


def draw_timelines(result: Mapping[str, Any], path: Path) -> None:
    """Draw some steps of each training that was traced, one above the other."""
    from benchmarks.timelines import as_trace, height  # with it comes TensorFlow
    from tutorlib.profiling import draw_timeline

    traces = {name: as_trace(timeline) for name, timeline in result["timelines"].items()}
    heights = [height(trace) for trace in traces.values()]
    some = next(iter(result["timelines"].values()))
    with page(path, 0.45 * sum(heights) + 0.9 * len(traces) + 0.9) as figure:
        all_axes = figure.subplots(len(traces), height_ratios=heights, squeeze=False)[:, 0]
        for axes, (name, trace) in zip(all_axes, traces.items(), strict=True):
            draw_timeline(trace, None, axes=axes)
            kept, length = result["timelines"][name], trace.device.stop_ms
            shares = f"{trace.wait_share:.0%} waiting for data, {kept['idle_share']:.0%} idle"
            title(axes, f"{name}: {kept['steps']} steps in {length:,.0f} ms, {shares}")
        caption(
            figure,
            result,
            f"{train.TITLES[some['model']]} on {device_in_words(result)}, {some['precision']}, "
            f"batches of {some['batch_size']:,}, seen by {BACKENDS[some['backend']]}'s profiler, "
            "which takes time itself.\nEach has its own scale of time; a loader's threads leave no "
            "marks.",
            ("tensorflow",),
        )
