"""Measuring: candidates take turns in one process; a report says on what, with what and when.

A single figure says little: machines differ, and one machine differs from minute to minute. So all
candidates take turns (A B C A B C ...), their ratios count, and the report keeps every value.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from tutorlib.storage import new_file

RESULTS = Path(__file__).resolve().parent / "results"
DATA = machine.ROOT / "build" / "benchmarks"
OF_ONE_MACHINE = (
    "command",
    "run",
    "data",
    "out",
    "environments",
    "install",
)  # not in a report's command


# ---- the command line ---------------------------------------------------------------------------


def add_numbers(parser: argparse.ArgumentParser, **numbers: tuple[float, str]) -> None:
    """Add numeric options: name=(default, help), with `-` for `_` in the name."""
    for name, (default, text) in numbers.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default,
            help=f"{text} (default: %(default)s)",
        )  # fmt: skip


def add_choices(parser: argparse.ArgumentParser, **choices: tuple[Sequence[str], str]) -> None:
    """Add options with a choice of words: name=(words, the default first; help)."""
    for name, (words, text) in choices.items():
        parser.add_argument(
            f"--{name}", choices=tuple(words), default=words[0],
            help=f"{text} (default: %(default)s)",
        )  # fmt: skip


def add_options(
    parser: argparse.ArgumentParser,
    name: str,
    *,
    repeat: int,
    repeated: str = "turns",
    sections: Iterable[str] = (),
    data: bool = True,
    device: bool = True,
) -> None:
    """Add the options that benchmarks share: `--repeat`, `--out`, and those asked for.

    Args:
        parser: parser of one benchmark.
        name: name of the benchmark.
        repeat: default of `--repeat`.
        repeated: what is repeated, for the help.
        sections: parts that can be measured alone; adds `--only` unless empty.
        data: whether to add `--data`, for benchmarks that read files.
        device: whether to add `--device`, for benchmarks that run on a GPU too.
    """
    add_numbers(parser, repeat=(repeat, repeated))
    if sections:
        parser.add_argument(
            "--only", nargs="+", choices=tuple(sections), default=list(sections),
            metavar="SECTION", help=f"measure only these: {', '.join(sections)} (default: all)",
        )  # fmt: skip
    if device:
        text = "cpu hides all GPUs; gpu makes batches and computes there"
        add_choices(parser, device=(("cpu", "gpu"), text))
    if data:
        parser.add_argument(
            "--data", type=Path, default=DATA,
            help="folder where rows are kept for the next run (default: build/benchmarks)",
        )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, help=f"JSON file (default: benchmarks/results/{name}-MACHINE.json)"
    )


def command_line(arguments: argparse.Namespace) -> str:
    """Return the command that repeats a run, without the paths of this machine."""
    words = ["python", "-m", "benchmarks", arguments.command]
    for name, value in vars(arguments).items():
        if name not in OF_ONE_MACHINE and value is not None:
            words.append(f"--{name.replace('_', '-')}")
            words += map(str, value if isinstance(value, list) else [value])
    return " ".join(words)


# ---- timing -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Timing:
    """The duration of every turn of one candidate."""

    name: str  # name of the candidate
    rows: int  # rows that it processed in one turn
    elapsed_s: tuple[float, ...]  # seconds of each turn, in order, without the warm-up
    warmup_s: tuple[float, ...] = ()  # seconds of each warm-up turn: they include compilation

    @property
    def rates(self) -> list[float]:
        """Rows per second of each turn."""
        return [self.rows / elapsed_s for elapsed_s in self.elapsed_s]

    @property
    def rows_per_s(self) -> float:
        """Median of `rates`."""
        return statistics.median(self.rates)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values: median, minimum and maximum rate, and all seconds."""
        return {
            "name": self.name,
            "rows": self.rows,
            "rows_per_s": self.rows_per_s,
            "min_rows_per_s": min(self.rates),
            "max_rows_per_s": max(self.rates),
            "elapsed_s": list(self.elapsed_s),
            **({"warmup_s": list(self.warmup_s)} if self.warmup_s else {}),
        }


@dataclasses.dataclass(frozen=True)
class Claim:
    """A bound that a measurement should meet."""

    name: str  # name of the candidate
    bound: float  # minimum rate in rows/s; with `other`, the minimum ratio of the two rates
    other: str | None = None  # candidate to compare with, turn by turn; None for none
    # "rows_per_s", or "elapsed_s", where `bound` is the maximum ratio of the two durations
    of: str = "rows_per_s"

    def check(self, timings: Mapping[str, Timing]) -> dict[str, Any] | None:
        """Return the values of all turns, their median and whether it holds; None if not measured.

        With `other`, a value is the quotient of the two candidates in one turn, so that whatever
        slows the machine down for a while cancels out.
        """
        if self.name not in timings or (self.other is not None and self.other not in timings):
            return None
        values = self._values(timings[self.name])
        if self.other is not None:
            others = self._values(timings[self.other])
            values = [a / b for a, b in zip(values, others, strict=True)]
        median = statistics.median(values)
        holds = median >= self.bound if self.of == "rows_per_s" else median <= self.bound
        return {**dataclasses.asdict(self), "median": median, "values": values, "holds": holds}

    def _values(self, timing: Timing) -> list[float]:
        return timing.rates if self.of == "rows_per_s" else list(timing.elapsed_s)


class Ended(int):
    """Rows of an epoch, and when its last batch or step had ended, by `time.perf_counter`.

    What a function does after that is not measured: TensorFlow ends an iterator of tf.data only
    when its autotuning wakes, after 10, 30, 70, ... 5110 milliseconds, as late as twice the time
    that the epoch took.
    """

    at: float

    def __new__(cls, rows: int) -> Ended:
        """Take the time now."""
        made = super().__new__(cls, rows)
        made.at = time.perf_counter()
        return made


def fit_epoch(
    model: Any,
    *arguments: Any,
    callbacks: Sequence[Any] = (),
    synchronise: Callable[[], Any] = lambda: None,
    **options: Any,
) -> tuple[Ended, float]:
    """Train one epoch with `model.fit`; return its rows, as the loss metric counted them, and loss.

    Args:
        model: compiled.
        arguments: of `fit`: the data.
        callbacks: for the epoch.
        synchronise: called at the end of the epoch, to wait for the device.
        options: of `fit`.
    """
    import keras

    ended = [Ended(0)]

    def end(epoch: int, logs: Any) -> None:
        synchronise()
        [loss] = [metric for metric in model.metrics if metric.name == "loss"]
        ended[0] = Ended(int(loss.count))

    clock = keras.callbacks.LambdaCallback(on_epoch_end=end)
    history = model.fit(*arguments, callbacks=[*callbacks, clock], verbose=0, **options).history
    return ended[0], history["loss"][0]


def turns(
    candidates: Mapping[str, Callable[[], int]],
    *,
    repeat: int = 5,
    warmup: int = 1,
    synchronise: Callable[[], Any] = lambda: None,
    beforehand: Mapping[str, Callable[[], Any]] | None = None,
    afterwards: Mapping[str, Callable[[], Any]] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    progress: bool = True,
) -> list[Timing]:
    """Time the candidates turn by turn: A B C, A B C, ...

    Args:
        candidates: {name: function without arguments that does the work and returns the rows}; it
            is measured until it returns or, if it returns `Ended`, until the time of that.
        repeat: turns that count, at least 1.
        warmup: turns before them that do not count, at least 0.
        synchronise: called before each reading of the clock, to wait for the device.
        beforehand: {name: function}, called before the candidate's time is taken, to start what it
            needs running.
        afterwards: {name: function}, called after the candidate's time was taken, to stop what it
            has left running.
        clock: monotonic clock, in seconds.
        progress: print a line on stderr for each turn.

    Returns:
        A `Timing` for each candidate, in order.
    """
    if repeat < 1 or warmup < 0:
        raise ValueError(f"need repeat >= 1 and warmup >= 0, got {repeat=}, {warmup=}")
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    rows: dict[str, int] = {}
    for turn in range(-warmup, repeat):
        for name, candidate in candidates.items():
            if beforehand is not None and name in beforehand:
                beforehand[name]()
            synchronise()
            started = clock()
            done = candidate()
            synchronise()
            elapsed_s = (done.at if isinstance(done, Ended) else clock()) - started
            if afterwards is not None and name in afterwards:
                afterwards[name]()
            if done < 1 or rows.setdefault(name, int(done)) != done:
                raise ValueError(
                    f"candidate {name!r} processed {done} rows in turn {turn + 1}, before it "
                    f"{rows.get(name)}; every turn must process the same rows, at least one"
                )
            seconds[name].append(elapsed_s)
            if progress:
                show_turn(turn, repeat, name, f"{done / elapsed_s:>14,.0f} rows/s")
    return [
        Timing(name, rows[name], tuple(values[warmup:]), tuple(values[:warmup]))
        for name, values in seconds.items()
    ]


def show_turn(turn: int, repeat: int, name: str, measured: str) -> None:
    """Print the progress of a benchmark on stderr; turns below 0 are the warm-up."""
    label = f"turn {turn + 1}/{repeat}" if turn >= 0 else "warm-up"
    print(f"{label:>10}  {name:<50}{measured}", file=sys.stderr, flush=True)


# ---- reports ------------------------------------------------------------------------------------


def report(
    benchmark: str,
    timings: Sequence[Timing],
    *,
    command: str,
    baseline: str | None = None,
    claims: Sequence[Claim] = (),
    details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what was measured, on what, with what and when, as JSON values.

    Args:
        benchmark: name of the benchmark.
        timings: what `turns` returned.
        command: command line that repeats the measurement.
        baseline: candidate to which ratios refer; None for the first.
        claims: bounds to check; those about candidates that were not measured are left out.
        details: whatever else belongs to the figures: rows, bytes, batch size.
    """
    by_name = {timing.name: timing for timing in timings}
    baseline = timings[0].name if baseline is None else baseline
    return {
        "benchmark": benchmark,
        "date": now(),
        "command": command,
        "hardware": machine.hardware(),
        "versions": machine.versions(),
        "commit": machine.commit(),
        **(details or {}),
        "baseline": baseline,
        "candidates": [
            {**timing.to_dict(), "ratio": timing.rows_per_s / by_name[baseline].rows_per_s}
            for timing in timings
        ],
        "claims": [found for claim in claims if (found := claim.check(by_name)) is not None],
    }


def now() -> str:
    """Return the date and time in UTC, in ISO format, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def save(result: Mapping[str, Any], path: str | os.PathLike[str] | None = None) -> Path:
    """Write a report as JSON, whole or not at all; return and print the path.

    Without `path` it is `benchmarks/results/NAME-MACHINE.json`, which replaces the previous run of
    that benchmark on such a machine.
    """
    slug = machine.hardware_slug(result["hardware"])
    target = Path(path) if path is not None else RESULTS / f"{result['benchmark']}-{slug}.json"
    with new_file(target) as partial:
        partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {target}")
    return target


RATES = {"rows/s": "{rows_per_s:,.0f}", "minimum": "{min_rows_per_s:,.0f}"}
RATES |= {"maximum": "{max_rows_per_s:,.0f}"}
RATIO = {"ratio": "{ratio:.3g}", "rows": "{rows:,}"}


def table(
    result: Mapping[str, Any], columns: Mapping[str, str] = RATES | RATIO, notes: Sequence[str] = ()
) -> str:
    """Return a report as text: a line for each candidate, notes, the claims, and the machine.

    Args:
        result: what `report` returned.
        columns: {heading: format string}; empty where a candidate lacks the value.
        notes: lines below the table.
    """

    def cell(template: str, entry: Mapping[str, Any]) -> str:
        try:
            return template.format(**entry)
        except KeyError:
            return ""

    rows = [["", *columns]]
    for entry in result["candidates"]:
        rows.append([entry["name"], *(cell(template, entry) for template in columns.values())])
    widths = [max(len(cell) for cell in column) + 2 for column in zip(*rows, strict=True)]
    lines = [
        "".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    names = [f"{row[0]:<{widths[0]}}" for row in rows]
    return "\n".join(
        [
            *map("".join, zip(names, lines, strict=True)),
            f"ratio: to {result['baseline']}",
            *notes,
            "",
            *map(claim_line, result["claims"]),
            machine.describe_hardware(result["hardware"]),
        ]
    )


def claim_line(claim: Mapping[str, Any]) -> str:
    """Return a checked claim as one line."""
    what = "rate" if claim["of"] == "rows_per_s" else "time"
    least, most = min(claim["values"]), max(claim["values"])
    if claim["other"] is None:
        value = f"{claim['median']:,.0f} ({least:,.0f} to {most:,.0f}) rows/s"
    else:
        value = f"{claim['median']:,.3g} ({least:,.3g} to {most:,.3g})"
        value += f" times the {what} of {claim['other']}"
    bound = f"at {'least' if what == 'rate' else 'most'} {claim['bound']:,.12g}"
    return met(claim["holds"], f"{claim['name']}: {value}; required: {bound}")


def met(holds: bool, text: str) -> str:
    """Return a line of text that begins with "met" or "not met"."""
    return f"{'met' if holds else 'not met':<9}{text}"
