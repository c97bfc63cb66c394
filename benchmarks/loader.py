"""Rows per second into the training step: the loader compared with its alternatives.

Criteo-shaped rows (13 float32, 26 int32 ids, 1 label), the same in every format; MovieLens-shaped
rows for lists; all in the page cache. Candidates produce whole batches of tensors, except bare
Arrow, which only decodes: an upper bound for any reader of these files. Fast readers read every
file --copies times, by hard links or `repeat`: with few rows, the wait for the first batch, which a
loader makes of a chunk of a million rows, would be half of an epoch. Slow candidates read fewer
rows; the table says how many. TFRecord readers that handle single records are measured with CPU
idle states suppressed, as during training (`tutorlib.diagnose.cores_awake`); with idle states they
may be half as fast.

Sections (--only): loader, its layouts and bare Arrow; tfdata, over TFRecord; raw, over raw binary;
python, PyDataset and generator; plain, Parquet with int64, dictionary and Snappy; movielens;
batches, of fewer rows; threads, one reader thread; unchecked, files without page checksums; fit, in
training; first, the wait for the first batch. `peers` compares it with other libraries.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.data import Dataset, criteo_shape, linked, movielens_shape
from benchmarks.device import Device
from benchmarks.measure import Claim
from tutorlib.parquet import ParquetSource

SUMMARY = "rows/s of the loader, tf.data, Python readers and bare Arrow (7 minutes)"

COLUMNS = "loader, columns, shuffled"
UNSHUFFLED = "loader, columns, not shuffled"
STACKED = "loader, stacked, shuffled"
BASELINE = "make_batched_features_dataset, shuffled"
ASLEEP = "make_batched_features_dataset, cores asleep"
PARSE_BATCHES = "batch then parse_example, shuffled"
PREBATCHED = "prebatched TFRecord, not shuffled"
PLAIN_LOADER = "plain files: loader, columns, shuffled"
PLAIN_ARROW = "plain files: Arrow read_row_group, no batches"
MOVIELENS_LOADER = "MovieLens: loader, nnzs, shuffled"
MOVIELENS_ARROW = "MovieLens: Arrow read_row_group, no batches"
ARROW = "Arrow read_row_group, no batches"
SMALL = ", batches of {:,}"  # after the name of a loader with the default batch size
SMALL_ROWS = 1024  # per batch
ONE_THREAD = "one reader thread: "  # before it
UNCHECKED = "loader, columns, shuffled, no page checksums"
FIT = "fit, one weight, columns"
FIRST_BATCH = "loader, first batch of an epoch"
ONE_CHUNK = "read and shuffle the rows of one chunk"

CLAIMS = (
    Claim(COLUMNS, 6e6),
    Claim(STACKED, 9e6),
    Claim(COLUMNS, 100, other=BASELINE),
    Claim(COLUMNS, 20, other=PARSE_BATCHES),
    Claim(COLUMNS, 1, other=PREBATCHED),
    Claim(UNSHUFFLED, 1, other=PREBATCHED),
    Claim(COLUMNS, 0.5, other=ARROW),
    Claim(PLAIN_LOADER, 0.75, other=PLAIN_ARROW),
    Claim(MOVIELENS_LOADER, 0.35, other=MOVIELENS_ARROW),
    Claim(COLUMNS + SMALL.format(4096), 0.8, other=COLUMNS),
    Claim(COLUMNS + SMALL.format(1024), 0.6, other=COLUMNS),
    Claim(COLUMNS + SMALL.format(256), 0.3, other=COLUMNS),
    Claim(STACKED + SMALL.format(256), 0.7, other=STACKED),
    Claim(COLUMNS, 1.9, other=ONE_THREAD + COLUMNS),
    Claim(COLUMNS + SMALL.format(4096), 1.7, other=ONE_THREAD + COLUMNS + SMALL.format(4096)),
    Claim(COLUMNS + SMALL.format(256), 1.5, other=ONE_THREAD + COLUMNS + SMALL.format(256)),
    Claim(STACKED, 2, other=ONE_THREAD + STACKED),
    Claim(COLUMNS, 0.93, other=UNCHECKED),
    Claim(FIT, 0.85, other=COLUMNS),
    Claim(FIRST_BATCH, 1.5, other=ONE_CHUNK, of="elapsed_s"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    slow = "rows for readers of one example per row; the slowest get a quarter of them"
    measure.add_numbers(
        parser,
        rows=(2_097_152, "rows"),
        slow_rows=(262_144, slow),
        copies=(8, "times that fast readers read the rows"),
        batch_size=(65_536, "rows per batch"),
    )
    measure.add_options(parser, "loader", repeat=5, sections=SECTIONS)


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    device = Device(arguments.device)
    inputs = Inputs(
        criteo_shape(arguments.data, arguments.rows),
        movielens_shape(arguments.data, arguments.rows),
        min(arguments.slow_rows, arguments.rows),
        arguments.copies,
        arguments.batch_size,
        arguments.device,
    )
    sections = {name: SECTIONS[name](inputs) for name in arguments.only}
    found = {name: one for made in sections.values() for name, one in made.items()}
    device.count_loaders()
    timings = measure.turns(
        {name: candidate.work for name, candidate in found.items()},
        repeat=arguments.repeat,
        synchronise=device.synchronise,
        afterwards={name: c.afterwards for name, c in found.items() if c.afterwards},
    )
    made = (data for data in (inputs.criteo, inputs.movielens) if data.folder.exists())
    result = measure.report(
        "loader",
        timings,
        command=measure.command_line(arguments),
        baseline=BASELINE if BASELINE in found else None,
        claims=CLAIMS,
        details={
            "device": device.name,
            "batch_size": arguments.batch_size,
            "data": {data.name: data.describe() for data in made},
            "sections": {name: list(made) for name, made in sections.items()},
            "device_memory": device.memory(),
        },
    )
    for entry in result["candidates"]:
        batches: Any = found[entry["name"]].batches
        if hasattr(batches, "stats"):  # a loader
            entry |= {"stages": batches.stats(), "plan": batches.describe()}
    print(measure.table(result))
    measure.save(result, arguments.out)


@dataclasses.dataclass
class Inputs:
    """What is read, and how."""

    criteo: Dataset  # rows with many columns
    movielens: Dataset  # rows with few columns, one of them multi-hot
    slow_rows: int  # rows for the readers of one example per row
    copies: int  # times that fast readers read the rows
    batch_size: int
    device: str = "cpu"  # where the loader makes batches

    def files(self, folder: Path) -> list[str]:
        """Return the Parquet files of a folder `copies` times."""
        return ParquetSource(linked(folder, self.copies)).files

    def loader(self, source: Any = None, batch_size: int | None = None, **settings: Any) -> Any:
        """Return a loader of the Criteo-shaped rows `copies` times, or of another source.

        Small batches read them once: their epoch takes much longer than the wait for a chunk.
        """
        from tutorlib.loader import KerasSequenceLoader

        if source is None:
            once = batch_size is not None and batch_size <= SMALL_ROWS
            source = self.criteo.source if once else self.files(self.criteo.parquet)
        settings = {"schema": self.criteo.schema, "device": self.device, **settings}
        return KerasSequenceLoader(source, batch_size or self.batch_size, **settings)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something to measure."""

    work: Callable[[], int]  # processes one epoch and returns its rows
    batches: Iterable[Any] | None = None  # the batches that it iterates over, if there are any
    # stops what the work has left running; not measured
    afterwards: Callable[[], Any] | None = None


def delivering(batches: Iterable[Any]) -> Candidate:
    """Return a candidate that iterates over batches."""
    return Candidate(functools.partial(consume, batches), batches)


def awake(batches: Iterable[Any]) -> Candidate:
    """Return a candidate that iterates over batches with the cores kept awake."""
    from tutorlib.diagnose import cores_awake

    def work() -> int:
        with cores_awake():
            return consume(batches)

    return Candidate(work, batches)


def consume(batches: Iterable[Any]) -> int:
    """Read an epoch and return its rows, and when it had ended.

    The rows of each tensor are compared with the label's in the first batch, and in each batch of
    another size than the one before: asking 40 tensors for their shape takes longer than making
    them. A dataset of tf.data is read in a compiled function, as `fit` reads it: a loop in Python
    waits longer for each of its batches.
    """
    import tensorflow as tf

    if not isinstance(batches, tf.data.Dataset):
        total = last = 0
        for inputs, label in batches:
            if (size := label.shape[0]) != last:
                last = _rows_of(inputs, label)
            total += size
        return measure.Ended(total)
    rows, iterator, next_rows = 0, iter(batches), _compiled_next_rows()
    with contextlib.suppress(tf.errors.OutOfRangeError):
        while True:
            rows += int(next_rows(iterator))
    return measure.Ended(rows)


@functools.cache
def _compiled_next_rows() -> Callable[[Any], Any]:
    import tensorflow as tf

    def next_rows(iterator: Any) -> Any:
        inputs, label = iterator.get_next()
        rows = tf.shape(label)[0]
        others = [tf.shape(t)[0] for n, t in inputs.items() if not n.endswith("__values")]
        with tf.control_dependencies([tf.debugging.assert_equal(tf.stack(others), rows)]):
            return tf.identity(rows)

    return tf.function(next_rows)


def _rows_of(inputs: Mapping[str, Any], label: Any) -> int:
    rows: int = label.shape[0]
    for name, tensor in inputs.items():
        if tensor.shape[0] != rows and not name.endswith("__values"):
            raise ValueError(f"{name!r} has {tensor.shape[0]} rows, the label {rows}")
    return rows


def bare_arrow(files: list[str]) -> Candidate:
    """Return a candidate that decodes all row groups with PyArrow and does nothing else."""
    from benchmarks.readers import read_row_groups

    return Candidate(functools.partial(read_row_groups, ParquetSource(files)))


# ---- the sections: pipelines are built once, so that a turn measures an epoch -------------------


def of_loader(inputs: Inputs) -> dict[str, Candidate]:
    """Return the loader in its layouts, and bare Arrow on the same files."""
    stacked = functools.partial(inputs.loader, batch_layout="stacked")
    return {
        COLUMNS: delivering(inputs.loader()),
        UNSHUFFLED: delivering(inputs.loader(shuffle=False)),
        STACKED: delivering(stacked()),
        "loader, stacked, not shuffled": delivering(stacked(shuffle=False)),
        ARROW: bare_arrow(inputs.files(inputs.criteo.parquet)),
    }


def of_tfdata(inputs: Inputs) -> dict[str, Candidate]:
    """Return tf.data over TFRecord, from what most people have to what they could have."""
    import tensorflow as tf

    import tfrecords

    data, size, schema = inputs.criteo, inputs.batch_size, inputs.criteo.schema
    examples = data.examples(inputs.slow_rows)
    few_examples = data.examples(max(1, inputs.slow_rows // 4))
    parsed = tfrecords.parsed_examples(few_examples, size, schema, parallel_calls=tf.data.AUTOTUNE)
    native = tfrecords.native_dataset(examples, size, schema)
    prebatched = tfrecords.prebatched_dataset(data.prebatched(size), schema)
    return {
        "parse_single_example, shuffled": awake(parsed),
        BASELINE: awake(native),
        PARSE_BATCHES: awake(tfrecords.parsed_batches(examples, size, schema)),
        ASLEEP: delivering(native),
        PREBATCHED: delivering(prebatched.repeat(inputs.copies)),
    }


def of_raw(inputs: Inputs) -> dict[str, Candidate]:
    """Return tf.data over raw binary of fixed-size records."""
    import tfrecords

    data, size, schema = inputs.criteo, inputs.batch_size, inputs.criteo.schema
    rows = data.raw_rows()
    columns = tfrecords.raw_batches(data.raw_batches(size), schema)
    stacked = tfrecords.raw_stacked(rows, size, schema, shuffle=False)
    pipelines = {
        "columns, not shuffled": columns.repeat(inputs.copies),
        "columns, shuffled in a window": tfrecords.raw_columns(rows, size, schema),
        "stacked, not shuffled": stacked.repeat(inputs.copies),
    }
    return {f"raw binary, {name}": delivering(made) for name, made in pipelines.items()}


def of_python(inputs: Inputs) -> dict[str, Candidate]:
    """Return the ways to feed Keras from Python, on top of the same Parquet reader."""
    from benchmarks import readers

    given = (inputs.criteo.source, inputs.batch_size, inputs.criteo.schema)
    row_groups = readers.AsFitTakes(readers.RowGroups(*given))
    return {
        "PyDataset, same reader, shuffled": delivering(row_groups),
        "generator, same reader, shuffled": delivering(readers.generator(*given)),
    }


def of_plain(inputs: Inputs) -> dict[str, Candidate]:
    """Return the loader and bare Arrow on files of int64 with dictionary and snappy."""
    files = inputs.files(inputs.criteo.plain)
    return {PLAIN_LOADER: delivering(inputs.loader(files)), PLAIN_ARROW: bare_arrow(files)}


def of_movielens(inputs: Inputs) -> dict[str, Candidate]:
    """Return the loader and bare Arrow on rows with a multi-hot column."""
    files, schema = inputs.files(inputs.movielens.parquet), inputs.movielens.schema
    return {
        MOVIELENS_LOADER: delivering(inputs.loader(files, schema=schema)),
        MOVIELENS_ARROW: bare_arrow(files),
    }


def of_batches(inputs: Inputs) -> dict[str, Candidate]:
    """Return the loader with batches of fewer rows, and with the default ones."""
    layouts = {COLUMNS: "columns", STACKED: "stacked"}
    return {
        name + (SMALL.format(size) if size else ""): delivering(
            inputs.loader(batch_size=size, batch_layout=layout)
        )
        for name, layout in layouts.items()
        for size in (None, 4096, 1024, 256)
    }


def of_threads(inputs: Inputs) -> dict[str, Candidate]:
    """Return the loader with one reader thread, and with the default threads."""
    layouts = {COLUMNS: "columns", STACKED: "stacked"}
    sizes = {COLUMNS: (None, 4096, 256), STACKED: (None,)}
    made = {}
    for name, layout in layouts.items():
        for size in sizes[name]:
            whole = name + (SMALL.format(size) if size else "")
            settings: dict[str, Any] = {"batch_size": size, "batch_layout": layout}
            made[whole] = delivering(inputs.loader(**settings))
            alone = inputs.loader(**settings, reader_kwargs={"threads": 1})
            made[ONE_THREAD + whole] = delivering(alone)
    return made


def of_unchecked(inputs: Inputs) -> dict[str, Candidate]:
    """Return the loader on files without page checksums, and on those with them."""
    unchecked = inputs.loader(inputs.files(inputs.criteo.unchecked))
    return {COLUMNS: delivering(inputs.loader()), UNCHECKED: delivering(unchecked)}


def of_fit(inputs: Inputs) -> dict[str, Candidate]:
    """Return epochs of `fit` with a trivial model, and the loaders alone."""
    from benchmarks.readers import one_weight_model

    def fitting(name: str, **settings: Any) -> Candidate:
        model, loader = one_weight_model(name), inputs.loader(**settings)

        def epoch() -> int:
            model.fit(loader, verbose=0)
            return loader.num_rows

        return Candidate(epoch)

    return {
        COLUMNS: delivering(inputs.loader()),
        FIT: fitting("I1"),
        STACKED: delivering(inputs.loader(batch_layout="stacked")),
        "fit, one weight, stacked": fitting("continuous", batch_layout="stacked"),
    }


def of_first(inputs: Inputs) -> dict[str, Candidate]:
    """Return the wait for the first batch, and the time of its chunk; their rows/s mean nothing."""
    from benchmarks.readers import read_and_shuffle

    loader = inputs.loader()
    chunk_rows = loader.describe()["chunk_rows"]
    source = ParquetSource(inputs.files(inputs.criteo.parquet))

    def first_batch() -> int:
        next(iter(loader))
        return chunk_rows

    return {
        FIRST_BATCH: Candidate(first_batch, afterwards=loader.close),
        ONE_CHUNK: Candidate(functools.partial(read_and_shuffle, source, chunk_rows)),
    }


SECTIONS: dict[str, Callable[[Inputs], dict[str, Candidate]]] = {
    "loader": of_loader,
    "tfdata": of_tfdata,
    "raw": of_raw,
    "python": of_python,
    "plain": of_plain,
    "movielens": of_movielens,
    "batches": of_batches,
    "threads": of_threads,
    "unchecked": of_unchecked,
    "fit": of_fit,
    "first": of_first,
}
