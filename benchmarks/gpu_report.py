"""Summarise what `gpu-host` has measured so far: one JSON file, and tables in Markdown.

Reads the files of the steps in a folder, all of one machine. The tables are the trainings, and the
targets with the values reached. A rehearsal on a CPU is reported in that folder and called a
rehearsal; none of its values counts.

    python -m benchmarks gpu-report benchmarks/results/gpu-host-MACHINE
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, measure, train

SUMMARY = "one JSON file and tables of what gpu-host has measured"
WAYS = {"cpu-native": "native, trained on the CPU", **train.WAYS}
FULL, MIXED = train.PRECISIONS
ERROR_CHARACTERS = 400
OF_REPORT = ("backend", "batch_size", "widths", "precision", "device_memory")
OF_CANDIDATE = (
    "rows_per_s", "min_rows_per_s", "max_rows_per_s", "rows", "elapsed_s", "warmup_s", "losses",
    "valid_loss", "compared_steps", "parameters", "tf32", "jit_compile", "idle_share",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to a parser."""
    parser.add_argument("folder", type=Path, help="folder of the files that gpu-host has written")
    parser.add_argument(
        "--out", type=Path,
        help="JSON file (default: benchmarks/results/gpu-MACHINE.json; of a rehearsal, in "
        "FOLDER/report)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Write the JSON file and print the tables."""
    result = merged(arguments.folder)
    print(f"{headline(result)}\n\n{trainings_table(result)}\n\n{targets_table(result)}\n")
    for name, error in result["failed"].items():
        print(f"failed: {name}: {error}")
    measure.save(result, target(result, arguments.folder, arguments.out))


def target(result: Mapping[str, Any], folder: Path, out: Path | None) -> Path | None:
    """Return the JSON file, None for the default; a rehearsal is kept out of the results."""
    if result["device"] == "gpu":
        return out
    slug = machine.hardware_slug(result["hardware"])
    out = out or folder / "report" / f"{result['benchmark']}-{slug}.json"
    if out.resolve().is_relative_to(measure.RESULTS):
        raise SystemExit(
            f"benchmarks: {folder} is a rehearsal on a CPU and must not be written to "
            f"{measure.RESULTS}; got {out}, choose another path"
        )
    return out


def merged(folder: Path) -> dict[str, Any]:
    """Return what the steps in a folder have measured, as far as a table needs it."""
    records = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    if not records:
        raise SystemExit(f"benchmarks: no step of gpu-host has left a file in {folder}")
    machines = {(machine.hardware_slug(r["hardware"]), r["device"]) for r in records}
    if len(machines) > 1:
        raise SystemExit(f"benchmarks: {folder} is of several machines: {sorted(machines)}")
    newest = max(records, key=lambda record: record["date"])
    done = {record["step"]: record["result"] for record in records if "result" in record}
    result = {
        "benchmark": "gpu" if newest["device"] == "gpu" else "rehearsal",
        **{key: newest[key] for key in ("date", "device", "hardware", "versions")},
        "commits": sorted({str(record["commit"]) for record in records}),
        "trainings": list(_trainings(done)),
        "readers": {
            entry["name"]: {key: entry[key] for key in ("rows", "rows_per_s", "elapsed_s")}
            for name, report in done.items()
            if name.startswith("loader-")
            for entry in report["candidates"]
        },
        "tests": {name: found["counts"] for name, found in done.items() if "counts" in found},
        "lessons": {
            found["lesson"]: {key: found[key] for key in ("headline", "seconds")}
            for found in done.values()
            if "lesson" in found
        },
        "failed": {r["step"]: r["error"][-ERROR_CHARACTERS:] for r in records if "error" in r},
    }
    return {**result, "targets": targets(result)}


def _trainings(done: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each training, with the ratio to native in float32 of the same model."""
    for model in train.TITLES:
        native = done.get(f"train-{model}-native-{FULL}")
        for precision in train.PRECISIONS:
            for way in WAYS:
                step = f"train-{model}-{way}-{precision}"
                if step not in done:
                    continue
                [entry] = done[step]["candidates"]
                found = {"step": step, "model": model, "way": way}
                found |= {key: done[step][key] for key in OF_REPORT}
                found |= {key: entry.get(key) for key in OF_CANDIDATE}
                theirs = native and native["candidates"][0]["rows_per_s"]
                yield {**found, "times_native": _ratio(entry["rows_per_s"], theirs)}


def targets(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the targets for a GPU: {"what", "value", "at", "bound", "outcome"} each."""
    found = {(e["model"], e["way"], e["precision"]): e for e in result["trainings"]}

    def value(model: str, way: str, precision: str, key: str = "rows_per_s") -> float | None:
        return found.get((model, way, precision), {}).get(key)

    def of_fused(model: str, precision: str, way: str, other: str) -> float | None:
        return _ratio(value(model, "stacked", precision), value(model, way, other))

    loaders = [e["rows_per_s"] for n, e in result["readers"].items() if n.startswith("loader, ")]
    fused = [value("dlrm", "stacked", precision) or 0 for precision in train.PRECISIONS]
    movielens, dlrm = (f"{train.TITLES[name]}, stacked and fused" for name in ("movielens", "dlrm"))
    wanted = [
        (f"{movielens}, {FULL}: times native", of_fused("movielens", FULL, "native", FULL), 9),
        (f"{dlrm}, {FULL}: times native", of_fused("dlrm", FULL, "native", FULL), 3),
        (f"{movielens}: {MIXED}, times {FULL}", of_fused("movielens", MIXED, "stacked", FULL), 2),
        (f"{dlrm}: {MIXED}, times {FULL}", of_fused("dlrm", MIXED, "stacked", FULL), 2),
        (f"{dlrm}: samples per second", max(fused) or None, 4.5e6),
        ("loader alone: rows per second", max(loaders, default=None), 20e6),
    ]
    listed = [(what, value, "least", bound) for what, value, bound in wanted]
    for precision in train.PRECISIONS:
        idle = value("dlrm", "stacked", precision, "idle_share")
        listed.append((f"{dlrm}, {precision}: idle share of the GPU", idle, "most", 0.1))
    return [
        {"what": what, "value": value, "at": at, "bound": bound}
        | {"outcome": outcome(value, at, bound, result["device"])}
        for what, value, at, bound in listed
    ]


def outcome(value: float | None, at: str, bound: float, device: str) -> str:
    """Return whether a target was reached."""
    if value is None or device != "gpu":
        return "not measured"
    return "reached" if (value >= bound if at == "least" else value <= bound) else "not reached"


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value and other else None


# ---- tables --------------------------------------------------------------------------------------


def device_in_words(result: Mapping[str, Any]) -> str:
    """Return the name of the device, which all ways but "trained on the CPU" use."""
    if result["device"] == "gpu":
        return result["hardware"]["gpus"][0].split(",")[0]
    return "a CPU (rehearsal)"


def headline(result: Mapping[str, Any]) -> str:
    """Return on what, with what and when the trainings ran."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    hardware = machine.describe_hardware(result["hardware"])
    return f"Trained on {device_in_words(result)}: {hardware}. {result['date'][:10]}. {versions}."


def trainings_table(result: Mapping[str, Any]) -> str:
    """Return the trainings as a table in Markdown."""
    names = ("model", "way", "precision", "samples/s", "ms per step", "times native", "GPU idle")
    rows = []
    for entry in result["trainings"]:
        memory = entry["device_memory"] or {}
        peaks = [memory.get(name, {}).get("peak") for name in (entry["backend"], "rmm")]
        rows.append(
            [
                train.TITLES[entry["model"]],
                WAYS[entry["way"]],
                entry["precision"] + (" (TF32)" if entry["tf32"] is True else ""),
                _cell(entry["rows_per_s"], ",.0f"),
                _cell(1e3 * entry["batch_size"] / entry["rows_per_s"], ",.1f"),
                _cell(entry["times_native"], ",.3g"),
                _cell(entry["idle_share"], ".0%"),
                _cell(entry["valid_loss"], ".4f"),
                *(_cell(peak and peak / 2**30, ",.2f", " GiB") for peak in peaks),
            ]
        )
    losses = f"validation loss: after {train.COMPARED_STEPS} steps"
    headings = (*names, "validation loss", "peak, backend", "peak, loader")
    return f"{_markdown(headings, rows)}\n\ntimes native: to native in float32; {losses}"


def targets_table(result: Mapping[str, Any]) -> str:
    """Return the targets as a table in Markdown."""
    rows = [
        [t["what"], f"at {t['at']} {t['bound']:,.12g}", _cell(t["value"]), t["outcome"]]
        for t in result["targets"]
    ]
    return _markdown(("target on a GPU", "required", "value", "outcome"), rows)


def _cell(value: float | None, form: str = "", unit: str = "") -> str:
    if value is None:
        return ""
    return f"{value:{form or (',.0f' if value >= 1000 else '.3g')}}{unit}"


def _markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [names, ["---"] * len(names), *rows])
