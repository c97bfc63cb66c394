"""How many rows per second reach the training step: the loader, tf.data, and bare Arrow.

Criteo-shaped rows (13 float32, 26 int32 ids, 1 label), the same in every format, files in the page
cache. Every candidate delivers whole batches of tensors that are looked at, but bare Arrow, which
only decodes and so is what the disk format allows. The slow candidates go through fewer rows; how
many stands in the table.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from tutorlib.chunk import Chunk
from tutorlib.parquet import ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema

SUMMARY = "rows/s of the loader against tf.data and bare Arrow (about 2 minutes)"
BASELINE = "make_batched_features_dataset, shuffled"
SCALE = 0.01  # of the real cardinalities, as in the lessons
ROW_GROUP_ROWS = 131_072
ROOT = Path(__file__).resolve().parent.parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    parser.add_argument("--rows", type=int, default=1_048_576, help="rows (default: %(default)s)")
    parser.add_argument(
        "--slow-rows", type=int, default=524_288,
        help="rows for the candidates that read one example a row (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=int, default=65_536, help="rows of a batch (default: %(default)s)"
    )
    parser.add_argument("--repeat", type=int, default=5, help="turns (default: %(default)s)")
    parser.add_argument(
        "--data", type=Path, default=ROOT / "build" / "benchmarks",
        help="folder where the rows are kept for the next run (default: build/benchmarks)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, help="JSON file (default: benchmarks/results/loader-MACHINE.json)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    import tensorflow as tf

    slow_rows = min(arguments.slow_rows, arguments.rows)
    data = Data(arguments.data, arguments.rows, slow_rows, arguments.batch_size)
    timings = measure.turns(
        candidates(data), repeat=arguments.repeat, synchronise=tf.test.experimental.sync_devices
    )
    command = (
        f"python -m benchmarks loader --rows {arguments.rows} --slow-rows {slow_rows} "
        f"--batch-size {arguments.batch_size} --repeat {arguments.repeat}"
    )
    result = measure.report(
        "loader", timings, command=command, baseline=BASELINE, facts=data.facts()
    )
    print(measure.table(result))
    print(f"written to {measure.save(result, arguments.out)}")


class Data:
    """The same rows as Parquet and in both forms of TFRecord, made once and kept.

    Args:
        folder: where they are kept.
        rows: rows in all.
        slow_rows: how many of them, from the first on, are also written one example a row.
        batch_size: rows of a batch, also of a prebatched record.
    """

    def __init__(self, folder: Path, rows: int, slow_rows: int, batch_size: int) -> None:
        from tutorlib import tfrecords

        self.batch_size = batch_size
        self.schema = criteo_schema()
        base = folder / f"criteo-shape-{rows}-rows"
        parquet = base / "parquet"
        if not parquet.exists():
            write_criteo_shape(parquet, rows)
        self.source = ParquetSource(parquet)
        self.examples = base / f"examples-{slow_rows}"
        if not self.examples.exists():
            tfrecords.write_examples(self.source, self.examples, limit_rows=slow_rows)
        self.prebatched = base / f"prebatched-{batch_size}"
        if not self.prebatched.exists():
            tfrecords.write_prebatched(self.source, self.prebatched, batch_size=batch_size)

    def facts(self) -> dict[str, Any]:
        """Return rows, batch size, and for each format its rows and bytes on disk."""
        from tutorlib.tfrecords import read_facts

        formats = {
            "parquet": {
                "rows": self.source.num_rows,
                "nbytes": sum(os.path.getsize(path) for path in self.source.files),
            }
        }
        for name, folder in (("examples", self.examples), ("prebatched", self.prebatched)):
            facts = read_facts(folder)
            formats[name] = {"rows": facts["rows"], "nbytes": facts["nbytes"]}
        return {
            "rows": self.source.num_rows,
            "batch_size": self.batch_size,
            "columns": {role: len(self.schema.with_role(role)) for role in COLUMN_ROLES},
            "formats": formats,
        }


COLUMN_ROLES = ("continuous", "categorical", "label")


def criteo_schema() -> Schema:
    """Return 13 continuous columns, 26 categorical ones with scaled cardinalities, and the label.

    Example:
        >>> schema = criteo_schema()
        >>> len(schema.continuous), len(schema.categorical), schema["C1"].cardinality
        (13, 26, 75995)
    """
    from data_prep.synthetic_criteo import CATEGORICAL_NAMES, INTEGER_NAMES, column_sizes

    return Schema(
        [
            Column("label", "label", "int32"),
            *(Column(name, "continuous", "float32") for name in INTEGER_NAMES),
            *(
                Column(name, "categorical", "int32", cardinality=size)
                for name, size in zip(CATEGORICAL_NAMES, column_sizes(SCALE), strict=True)
            ),
        ]
    )


def write_criteo_shape(folder: Path, rows: int, seed: int = 0) -> None:
    """Write random rows as the ETL would: log counts as float32, frequent ids first as int32."""
    schema, rng = criteo_schema(), np.random.default_rng(seed)
    with ParquetSink(folder, row_group_rows=ROW_GROUP_ROWS, rows_per_file=524_288) as sink:
        for start in range(0, rows, ROW_GROUP_ROWS):
            count = min(ROW_GROUP_ROWS, rows - start)
            columns = {column.name: _values(column, count, rng) for column in schema}
            sink.write(Chunk(columns))


def _values(column: Column, rows: int, rng: np.random.Generator) -> np.ndarray:
    if column.role == "label":
        return rng.integers(0, 2, rows, dtype=np.int32)
    if column.role == "continuous":
        return np.log1p(np.floor(rng.lognormal(2.0, 1.5, rows))).astype(np.float32)
    return (column.cardinality * rng.random(rows) ** 4).astype(np.int32)


def candidates(data: Data) -> dict[str, Callable[[], int]]:
    """Return {name: function that goes through one epoch and returns its rows}.

    Every pipeline is built here, once, so that a turn measures an epoch and not the building.
    """
    from tutorlib import tfrecords
    from tutorlib.loader import KerasSequenceLoader

    size, schema = data.batch_size, data.schema

    def loader(**settings: Any) -> KerasSequenceLoader:
        return KerasSequenceLoader(data.source, size, schema=schema, **settings)

    pipelines = {
        "loader, columns, shuffled": loader(),
        "loader, columns, not shuffled": loader(shuffle=False),
        "loader, stacked, shuffled": loader(batch_layout="stacked"),
        BASELINE: tfrecords.native_dataset(data.examples, size, schema),
        "batch then parse_example, shuffled": tfrecords.parsed_batches(data.examples, size, schema),
        "prebatched TFRecord, not shuffled": tfrecords.prebatched_dataset(data.prebatched, schema),
    }
    return {
        **{name: functools.partial(consume, pipeline) for name, pipeline in pipelines.items()},
        "Arrow read_row_group, no batches": functools.partial(read_row_groups, data.source),
    }


def consume(batches: Iterable[Any]) -> int:
    """Go through batches, look at the shape of each tensor, return the rows.

    Raises:
        ValueError: if a tensor of a batch has not as many rows as its label.
    """
    rows = 0
    for inputs, label in batches:
        batch_rows = label.shape[0]
        for name, tensor in inputs.items():
            if tensor.shape[0] != batch_rows:
                raise ValueError(f"{name!r} has {tensor.shape[0]} rows, the label {batch_rows}")
        rows += batch_rows
    return rows


def read_row_groups(source: ParquetSource) -> int:
    """Decode all row groups on as many threads as the loader has; nothing else is done."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return sum(table.num_rows for table in pool.map(source.read_table, range(len(source))))
