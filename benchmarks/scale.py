"""Trainings that are divided: over 1, 2 and 4 processes, and their tables over 1, 2 and 4 devices.

Every case runs in processes of its own, on Keras's JAX backend, in turns. All processes of a case
are on this machine and share its cores, so more of them are not faster here: what counts is that
they compute the same, what each holds, and what it costs to join them.

Sections (--only): processes, joined on 127.0.0.1, each with a rank's part of every global batch
(DataParallel); tables, a process whose devices are parts of the CPU, with the tables and the
optimizer's slots split by rows (ModelParallel).

Each process trains an epoch, which compiles, and then one that counts. In the section processes,
all ranks then read an epoch, at the same time, without training. Bytes per device are those that
the arrays of the model and the optimizer hold after training.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import machine, measure

SUMMARY = "trainings divided over processes, and tables over devices (4 minutes)"
SECTIONS = ("processes", "tables")
LOSS_TOLERANCE = 1e-5  # largest difference to the losses of one process or device
SHARE_TOLERANCE = 1.04  # largest share of a device of n, times n: 0.26 of 4
WIDTH = 16
UNITS = [64]
READ_EPOCHS = 16
TIMEOUT_S = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    measure.add_numbers(
        parser,
        rows=(65_536, "rows of an epoch"),
        batch_size=(4096, "rows of a step, over all processes"),
        table_rows=(400_000, "least rows of all tables together, for the section tables"),
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1, 2, 4], metavar="N",
        help="processes, and devices, the largest a multiple of the others (default: 1 2 4)",
    )  # fmt: skip
    measure.add_options(
        parser, "scale", repeat=3, repeated="runs of each case", sections=SECTIONS, device=False
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    from benchmarks.data import criteo_shape

    data = criteo_shape(arguments.data, arguments.rows)
    sizes = sorted(arguments.sizes)
    common = {
        "files": list(map(str, data.source.files)), "schema": data.schema.to_json(),
        "batch_size": arguments.batch_size, "largest": sizes[-1],
        "table_rows": arguments.table_rows,
    }  # fmt: skip
    cases = [(section, size) for section in arguments.only for size in sizes]
    runs: dict[tuple[str, int], list[list[dict[str, Any]]]] = {case: [] for case in cases}
    for turn in range(arguments.repeat):
        for section, size in cases:
            ranks = launch({**common, "section": section, "size": size})
            runs[section, size].append(ranks)
            measured = f"{ranks[0]['steps'] / epoch_s(ranks):>8.1f} steps/s"
            measure.show_turn(turn, arguments.repeat, name_of(section, size), measured)
    details = {"batch_size": arguments.batch_size, "data": {data.name: data.describe()}}
    result = report(runs, arguments.batch_size, measure.command_line(arguments), details)
    print(table(result))
    measure.save(result, arguments.out)


def name_of(section: str, size: int) -> str:
    """Return the name of a candidate.

    Example:
        >>> name_of("processes", 1), name_of("tables", 4)
        ('1 process', 'tables on 4 devices')
    """
    if section == "tables":
        return f"tables on {size} device{'s' * (size > 1)}"
    return f"{size} process{'es' * (size > 1)}"


# ---- the processes of a case --------------------------------------------------------------------


def launch(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run the processes of a case together; return what each measured, by rank.

    Raises:
        SystemExit: if one of them fails, or takes longer than `TIMEOUT_S`; the others are ended.
    """
    processes = task["size"] if task["section"] == "processes" else 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with contextlib.ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(processes)]
        started = []
        for rank, output in enumerate(outputs):
            environment = os.environ | {
                "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "",
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={task['size'] // processes}",
                "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"127.0.0.1:{port}",
                "KERAS_DISTRIBUTION_NUM_PROCESSES": str(processes),
                "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
            }  # fmt: skip
            command = [sys.executable, "-m", "benchmarks.scale", json.dumps(task)]
            to: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
            started.append(subprocess.Popen(command, env=environment, cwd=machine.ROOT, **to))
        _await(started)
        for output in outputs:
            output.seek(0)
        said = [output.read() for output in outputs]
    failed = [text for text, process in zip(said, started, strict=True) if process.returncode]
    if failed:
        raise SystemExit(f"benchmarks: a process failed:\n{failed[0][-3000:]}")
    return [json.loads(text.splitlines()[-1]) for text in said]


def _await(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have ended; end the others if one fails, or after `TIMEOUT_S`."""
    until = time.monotonic() + TIMEOUT_S
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes) or time.monotonic() > until:
            for process in processes:
                process.kill()
        time.sleep(0.05)


def work(task: Mapping[str, Any]) -> dict[str, Any]:
    """Train, and read, in one process of a case; return what it measured."""
    sys.modules.setdefault("tensorflow", None)  # type: ignore[arg-type]  # Keras would import it
    import keras

    if task["section"] == "processes":
        keras.distribution.initialize()
    from tutorlib.loader import KerasSequenceLoader
    from tutorlib.schema import Schema

    schema = Schema.from_json(task["schema"])
    size, parallel = task["size"], task["section"] == "processes"
    keras.utils.set_random_seed(0)
    if parallel:
        distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
    else:
        schema = enlarged(schema, task["table_rows"], task["largest"])
        distribution = split_tables(schema, size)
    keras.distribution.set_distribution(distribution)
    ranks = {"canonical_ranks": task["largest"]} if parallel else {}
    loader = KerasSequenceLoader(
        task["files"], task["batch_size"] // (size if parallel else 1), schema=schema,
        batch_layout="stacked", drop_last=True, **ranks,
    )  # fmt: skip
    model = make_model(schema)
    model.compile(keras.optimizers.Adam(0.001), "binary_crossentropy")
    losses, began, ended = [], [], []
    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: began.append(time.perf_counter()),
        on_train_batch_end=lambda step, logs: losses.append(float(logs["loss"])),  # waits for it
        on_epoch_end=lambda epoch, logs: ended.append(time.perf_counter()),
    )
    model.fit(loader, epochs=2, callbacks=[clock], verbose=0)
    return {
        "steps": len(loader),
        "rows": loader.num_rows,
        "epoch_s": ended[-1] - began[-1],
        "losses": losses,
        "bytes_by_device": bytes_by_device([*model.variables, *model.optimizer.variables]),
        **({"read_rows_per_s": read(loader)} if parallel else {}),
    }


def make_model(schema: Any) -> Any:
    """Return a narrow DLRM over stacked batches; its tables are one variable."""
    from tutorlib.models import DLRM

    return DLRM(schema, WIDTH, UNITS, UNITS, batch_layout="stacked")


def enlarged(schema: Any, table_rows: int, multiple: int) -> Any:
    """Return a schema whose last table is so large that all have `table_rows` rows, or more.

    Their sum is a multiple of `multiple`, because JAX splits rows into equal parts only.
    """
    last = schema.categorical.columns[-1]
    rows = sum(column.cardinality for column in schema.categorical)
    missing = max(table_rows - rows, 0)
    missing += -(rows + missing) % multiple
    return schema.replace(last.name, cardinality=last.cardinality + missing)


def split_tables(schema: Any, devices: int) -> Any:
    """Return a Keras distribution that splits the tables by rows over so many devices."""
    import keras

    from tutorlib.layers import plan_tables

    mesh = keras.distribution.DeviceMesh((devices,), ["batch"])
    plan = plan_tables(lambda: make_model(schema), mesh, "adam", split_above=1)
    return plan.distribution()


def bytes_by_device(variables: Iterable[Any]) -> dict[str, int]:
    """Return the bytes of Keras variables that each device of this process holds."""
    held: collections.Counter[str] = collections.Counter()
    for variable in variables:
        for shard in variable.value.addressable_shards:
            held[str(shard.device)] += shard.data.nbytes
    return dict(held)


def read(loader: Any) -> float:
    """Return the rows per second of a rank that reads without training."""
    started = time.perf_counter()
    rows = sum(len(labels) for _ in range(READ_EPOCHS) for _, labels in loader)
    return rows / (time.perf_counter() - started)


# ---- the report ---------------------------------------------------------------------------------


def epoch_s(ranks: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds of a run's epoch: those of its slowest rank."""
    return max(rank["epoch_s"] for rank in ranks)


def report(
    runs: Mapping[tuple[str, int], Sequence[Sequence[Mapping[str, Any]]]],
    batch_size: int,
    command: str,
    details: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what was measured as JSON values.

    Each candidate has `section` and `size`; the median of `steps_per_s`; `bytes_per_device`, of the
    device that holds most; `loss_difference`, the largest to the first size in any step; for
    processes `read_rows_per_s`, the median over ranks and turns; and `processes`, those of each
    process of each turn. `bounds` says what must hold.
    """
    timings = [
        measure.Timing(
            name_of(*case), turns[0][0]["steps"] * batch_size, tuple(map(epoch_s, turns))
        )
        for case, turns in runs.items()
    ]
    result = measure.report("scale", timings, command=command, details=details)
    first = {section: turns for (section, _), turns in reversed(list(runs.items()))}
    for entry, ((section, size), turns) in zip(result["candidates"], runs.items(), strict=True):
        everyone = [rank for turn in turns for rank in turn]
        losses = first[section][0][0]["losses"]
        entry |= {"section": section, "size": size}
        entry["steps_per_s"] = entry["rows_per_s"] / batch_size
        entry["bytes_per_device"] = max(max(r["bytes_by_device"].values()) for r in everyone)
        differences = [np.abs(np.subtract(rank["losses"], losses)).max() for rank in everyone]
        entry["loss_difference"] = float(np.max(differences))  # NaN stays NaN
        if "read_rows_per_s" in everyone[0]:
            rates = [rank["read_rows_per_s"] for rank in everyone]
            entry["read_rows_per_s"] = statistics.median(rates)
            entry["read_range"] = [min(rates), max(rates)]
        kept = [{k: v for k, v in rank.items() if k != "losses"} for rank in everyone]
        entry["processes"] = kept
    result["bounds"] = list(bounds(result["candidates"]))
    return result


def bounds(entries: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yield what must hold of each case: the same losses, and tables that are divided."""
    whole = {entry["section"]: entry for entry in reversed(entries)}
    for entry in entries:
        other, difference = whole[entry["section"]], entry["loss_difference"]
        said = f"{entry['name']}: losses within {difference:.1e} of those of {other['name']}"
        yield {
            "text": f"{said}; required: {LOSS_TOLERANCE:g}",
            "holds": difference <= LOSS_TOLERANCE,
        }
        if entry["section"] == "tables":
            share = entry["bytes_per_device"] / other["bytes_per_device"]
            most = SHARE_TOLERANCE * other["size"] / entry["size"]
            said = f"{entry['name']}: each holds {share:.3f} of the bytes of {other['name']}"
            yield {"text": f"{said}; required: at most {most:.3f}", "holds": share <= most}


def table(result: Mapping[str, Any]) -> str:
    """Return a report as text."""
    shown = [{**e, "mib": e["bytes_per_device"] / 2**20} for e in result["candidates"]]
    columns = {
        "steps/s": "{steps_per_s:,.1f}",
        "rows/s": "{rows_per_s:,.0f}",
        "minimum": "{min_rows_per_s:,.0f}",
        "maximum": "{max_rows_per_s:,.0f}",
        "read rows/s, a rank": "{read_rows_per_s:,.0f}",
        "MiB per device": "{mib:,.1f}",
    }
    notes = [measure.met(bound["holds"], bound["text"]) for bound in result["bounds"]]
    return measure.table({**result, "candidates": shown}, columns, notes)


if __name__ == "__main__":
    print(json.dumps(work(json.loads(sys.argv[1]))))
