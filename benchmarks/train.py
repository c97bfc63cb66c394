"""Samples per second of whole training runs, and the share of their time that waits for data.

Three models, each trained from the same rows in three ways:

- native: TFRecord, an example a row, read by TensorFlow's make_batched_features_dataset; a table
  of embeddings for each column;
- loader, columns: the same model on `KerasSequenceLoader`, so that only the reader differs;
- loader, stacked and fused: one tensor of ids and one of numbers a batch, the tables of all columns
  of one id in one variable.

All take turns, an epoch each, shuffled, with plain SGD, whose cost does not depend on the size of
the tables. Files are in the page cache. Waiting is measured by `StallReport`: seconds within the
call that takes the next batch. On a CPU the readers and the model share the cores, so that a slow
reader shows as slow steps too, not as waiting alone.

Then the native and the fused way of the first section train under TensorFlow's profiler, and the
report keeps when what went on in an epoch of each (`timelines.py`).

Sections (--only): dlrm, Criteo-shaped rows; movielens, ratings with a list of genres;
wide_and_deep, 10 numbers, 37 columns of one id, 3 of up to ten.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import measure
from benchmarks.data import FOLDER, Dataset, criteo_shape, movielens_shape
from benchmarks.measure import Claim

if TYPE_CHECKING:
    from benchmarks.train_runs import Training

SUMMARY = "samples/s of training and its wait for data, native against accelerated (6 minutes)"
TITLES = {"dlrm": "DLRM", "movielens": "MovieLens", "wide_and_deep": "Wide & Deep"}
NATIVE, COLUMNS, STACKED = "native", "loader, columns", "loader, stacked and fused"
WAYS = (NATIVE, COLUMNS, STACKED)
WIDTHS = ("scaled", "published")


def name_of(section: str, way: str) -> str:
    """Return the name of a candidate.

    Example:
        >>> name_of("dlrm", NATIVE)
        'DLRM: native'
    """
    return f"{TITLES[section]}: {way}"


CLAIMS = tuple(
    Claim(name_of(section, way), 1, other=name_of(section, NATIVE))
    for section in TITLES
    for way in (COLUMNS, STACKED)
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    parser.add_argument(
        "--rows", type=int, default=262_144, help="rows of an epoch (default: %(default)s)"
    )
    parser.add_argument(
        "--batch-size", type=int, default=8192, help="rows of a batch (default: %(default)s)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=tuple(TITLES), default=list(TITLES), metavar="SECTION",
        help=f"measure only these: {', '.join(TITLES)} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--widths", choices=WIDTHS, default=WIDTHS[0],
        help="of the networks: scaled down so that two CPU cores compute about as fast as they "
        "read TFRecord, or those of the published models, for a GPU (default: %(default)s)",
    )  # fmt: skip
    measure.add_options(parser, "train", repeat=5, repeated="epochs of each", folder=FOLDER)


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    if arguments.rows <= arguments.batch_size:
        raise SystemExit(
            f"benchmarks: an epoch needs more than one batch, got --rows {arguments.rows} and "
            f"--batch-size {arguments.batch_size}"
        )
    datasets, trainings = {}, {}
    for section in arguments.only:
        datasets[section] = DATASETS[section](arguments.data, arguments.rows)
        trainings |= of_section(section, datasets[section], arguments.batch_size, arguments.widths)
    timings = measure.turns(
        {name: training.epoch for name, training in trainings.items()}, repeat=arguments.repeat
    )
    result = report(
        timings,
        trainings,
        command=f"python -m benchmarks train --rows {arguments.rows} --batch-size "
        f"{arguments.batch_size} --repeat {arguments.repeat} --widths {arguments.widths} "
        f"--only {' '.join(arguments.only)}",
        facts={
            "batch_size": arguments.batch_size,
            "widths": arguments.widths,
            "optimizer": "sgd",
            "data": {data.name: data.facts() for data in datasets.values()},
            "sections": {section: [name_of(section, way) for way in WAYS] for section in datasets},
        },
    )
    traced = [name_of(arguments.only[0], way) for way in (NATIVE, STACKED)]
    result["timelines"] = timelines({name: trainings[name] for name in traced})
    print(table(result))
    print(f"written to {measure.save(result, arguments.out)}")


def _nhot_shape(folder: Path, rows: int) -> Dataset:
    from benchmarks.train_runs import nhot_shape  # draws with data_prep

    return nhot_shape(folder, rows)


DATASETS: dict[str, Callable[[Path, int], Dataset]] = {
    "dlrm": criteo_shape,
    "movielens": movielens_shape,
    "wide_and_deep": _nhot_shape,
}


def of_section(section: str, data: Dataset, batch_size: int, widths: str) -> dict[str, Training]:
    """Return {name: training} of one model in its three ways, untrained."""
    import tensorflow as tf

    from benchmarks import train_runs
    from tutorlib.loader import KerasSequenceLoader
    from tutorlib.tfrecords import native_dataset

    models = train_runs.MODELS[section](data.schema, widths)
    schema = models.schema  # with the widths of its embeddings
    native = native_dataset(data.examples(data.rows), batch_size, schema)
    batches = -(-data.rows // batch_size)  # TFRecord does not say
    sources = {
        NATIVE: native.apply(tf.data.experimental.assert_cardinality(batches)),
        COLUMNS: KerasSequenceLoader(data.source, batch_size, schema=schema),
        STACKED: KerasSequenceLoader(
            data.source, batch_size, schema=schema, batch_layout="stacked"
        ),
    }
    made = {NATIVE: models.by_column(), COLUMNS: models.by_column(), STACKED: models.fused()}
    return {name_of(section, way): train_runs.Training(made[way], sources[way]) for way in WAYS}


def report(
    timings: Sequence[measure.Timing],
    trainings: Mapping[str, Training],
    *,
    command: str,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what was measured as JSON values, for each candidate with its wait and its native one.

    `wait_shares` are the epochs of `elapsed_s`; `times_native` are quotients within a turn.
    """
    result = measure.report("train", timings, command=command, claims=CLAIMS, facts=facts)
    by_name = {timing.name: timing for timing in timings}
    for entry in result["candidates"]:
        name, repeat = entry["name"], len(entry["elapsed_s"])
        stalls = trainings[name].stalls[-repeat:]  # without the warm-up
        entry["wait_shares"] = [stall.share for stall in stalls]
        entry["wait_share"] = statistics.median(entry["wait_shares"])
        native = by_name[f"{name.split(':')[0]}: {NATIVE}"]
        quotients = zip(by_name[name].rates, native.rates, strict=True)
        entry["times_native"] = statistics.median(ours / theirs for ours, theirs in quotients)
        entry["losses"] = trainings[name].losses[-repeat:]
    return result


def timelines(trainings: Mapping[str, Training]) -> dict[str, Any]:
    """Return {name: when what went on in an epoch}, as JSON values."""
    found = {}
    for name, training in trainings.items():
        with tempfile.TemporaryDirectory() as log_dir:
            found[name] = training.timeline(Path(log_dir))
    return found


def table(result: Mapping[str, Any]) -> str:
    """Return a report as text."""
    lines = [
        f"{result['candidates'][0]['rows']:,} rows an epoch in batches of "
        f"{result['batch_size']:,}, {result['widths']} widths",
        f"{'':<42}{'samples/s':>11}{'least':>11}{'most':>11}{'times native':>14}{'waiting':>9}",
    ]
    for entry in result["candidates"]:
        rates = (entry["rows_per_s"], entry["min_rows_per_s"], entry["max_rows_per_s"])
        cells = "".join(f"{rate:>11,.0f}" for rate in rates)
        lines.append(
            f"{entry['name']:<42}{cells}{entry['times_native']:>14.2f}{entry['wait_share']:>9.0%}"
        )
    lines += ["waiting: share of an epoch within the call that takes the next batch", ""]
    lines += [measure.claim_line(claim) for claim in result["claims"]]
    return "\n".join([*lines, "", measure.describe_hardware(result["hardware"])])
