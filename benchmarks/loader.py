"""How many rows per second reach the training step: the loader, and everything one could use.

Criteo-shaped rows (13 float32, 26 int32 ids, 1 label), the same in every format, and for the
multi-hot form MovieLens-shaped ones, all in the page cache. Every candidate delivers whole batches
of tensors that are looked at, but for those that say so: bare Arrow only decodes, which is what
the disk format allows. Slow candidates go through fewer rows; how many stands in the table.
Readers of TFRecord that handle one record at a time are measured with the cores kept awake, as
beside a training (`tutorlib.profiling.cores_awake`): by themselves they may be half as fast.

Sections (--only): loader, its layouts and bare Arrow; tfdata, over TFRecord; raw, over raw binary;
python, PyDataset and generator; plain, Parquet as most people have it; movielens; fit, in training;
first, the wait for the first batch; peers, other libraries where they are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import measure, peers
from benchmarks.data import FOLDER, Dataset, criteo_shape, movielens_shape
from benchmarks.measure import Claim

SUMMARY = "rows/s of the loader against tf.data, other libraries and bare Arrow (about 3 minutes)"

COLUMNS = "loader, columns, shuffled"
STACKED = "loader, stacked, shuffled"
BASELINE = "make_batched_features_dataset, shuffled"
ASLEEP = "make_batched_features_dataset, cores asleep"
PARSE_BATCHES = "batch then parse_example, shuffled"
PREBATCHED = "prebatched TFRecord, not shuffled"
PLAIN_LOADER = "plain files: loader, columns, shuffled"
PLAIN_ARROW = "plain files: Arrow read_row_group, no batches"
MOVIELENS_LOADER = "MovieLens: loader, nnzs, shuffled"
MOVIELENS_ARROW = "MovieLens: Arrow read_row_group, no batches"
FIT = "fit, one weight, columns"
FIRST_BATCH = "loader, first batch of an epoch"
ONE_CHUNK = "read and shuffle the rows of one chunk"

CLAIMS = (
    Claim(COLUMNS, 6e6),
    Claim(STACKED, 9e6),
    Claim(COLUMNS, 100, other=BASELINE),
    Claim(COLUMNS, 20, other=PARSE_BATCHES),
    Claim(COLUMNS, 5, other="merlin-dataloader, shuffled"),
    Claim(COLUMNS, 1, other=PREBATCHED),
    Claim(PLAIN_LOADER, 0.75, other=PLAIN_ARROW),
    Claim(MOVIELENS_LOADER, 0.6, other=MOVIELENS_ARROW),
    Claim(FIT, 0.85, other=COLUMNS),
    Claim(FIRST_BATCH, 1.5, other=ONE_CHUNK, of="elapsed_s"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    parser.add_argument("--rows", type=int, default=2_097_152, help="rows (default: %(default)s)")
    parser.add_argument(
        "--slow-rows", type=int, default=262_144,
        help="rows for the readers of one example a row; the slowest get a quarter of it "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=int, default=65_536, help="rows of a batch (default: %(default)s)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=tuple(SECTIONS), default=list(SECTIONS), metavar="SECTION",
        help=f"measure only these: {', '.join(SECTIONS)} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--peer-python", action="append", default=[], metavar="LIBRARY=PATH", type=_peer_python,
        help=f"Python that has one of {', '.join(peers.TITLES)}; may be given for each "
        "(default: this one, if it has it)",
    )  # fmt: skip
    measure.add_options(parser, "loader", repeat=5, repeated="turns", folder=FOLDER)


def _peer_python(text: str) -> tuple[str, str]:
    library, _, path = text.partition("=")
    if library not in peers.TITLES or not Path(path).is_file():
        raise argparse.ArgumentTypeError(
            f"{text!r} must be LIBRARY=PATH, a library of {', '.join(peers.TITLES)} and the path "
            "of a Python interpreter that is there"
        )
    return library, path


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    import tensorflow as tf

    inputs = Inputs(
        criteo_shape(arguments.data, arguments.rows),
        movielens_shape(arguments.data, arguments.rows),
        min(arguments.slow_rows, arguments.rows),
        arguments.batch_size,
        dict(arguments.peer_python),
    )
    with contextlib.ExitStack() as open_peers:
        found: dict[str, Candidate] = {}
        sections, skipped, peer_versions = {}, [], {}
        for section in arguments.only:
            if section == "peers":
                made, skipped, peer_versions = start_peers(inputs, open_peers)
            else:
                made = SECTIONS[section](inputs)
            sections[section] = list(made)
            found |= made
        if not found:
            raise SystemExit("benchmarks: nothing to measure.\n" + "\n".join(skipped))
        timings = measure.turns(
            {name: candidate.work for name, candidate in found.items()},
            repeat=arguments.repeat,
            synchronise=tf.test.experimental.sync_devices,
            afterwards={name: c.afterwards for name, c in found.items() if c.afterwards},
        )
    result = measure.report(
        "loader",
        timings,
        command=f"python -m benchmarks loader --rows {arguments.rows} --slow-rows "
        f"{inputs.slow_rows} --batch-size {arguments.batch_size} --repeat {arguments.repeat} "
        f"--only {' '.join(arguments.only)}",
        baseline=BASELINE if BASELINE in found else None,
        claims=CLAIMS,
        facts={
            "batch_size": arguments.batch_size,
            "data": inputs.facts(),
            "sections": sections,
            "peer_versions": peer_versions,
            "not_measured": skipped,
        },
    )
    print(measure.table(result))
    print("\n".join(skipped))
    print(f"written to {measure.save(result, arguments.out)}")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What is read, and how.

    Args:
        criteo: many columns.
        movielens: few columns, one multi-hot.
        slow_rows: rows for the readers of one example a row.
        batch_size: rows of a batch.
        peer_pythons: {library: its interpreter} for those that this one does not have.
    """

    criteo: Dataset
    movielens: Dataset
    slow_rows: int
    batch_size: int
    peer_pythons: Mapping[str, str]

    def facts(self) -> dict[str, Any]:
        """Return rows, columns and bytes of what has been made."""
        made = (data for data in (self.criteo, self.movielens) if data.folder.exists())
        return {data.name: data.facts() for data in made}

    def loader(self, source: Any = None, **settings: Any) -> Any:
        """Return a loader of the Criteo-shaped rows."""
        from tutorlib.loader import KerasSequenceLoader

        source = self.criteo.source if source is None else source
        settings = {"schema": self.criteo.schema, **settings}
        return KerasSequenceLoader(source, self.batch_size, **settings)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something to measure.

    Args:
        work: goes through an epoch and returns its rows.
        batches: what it goes through, if these are batches.
        afterwards: ends what the work leaves running; not measured.
    """

    work: Callable[[], int]
    batches: Iterable[Any] | None = None
    afterwards: Callable[[], Any] | None = None


def delivering(batches: Iterable[Any]) -> Candidate:
    """Return a candidate that delivers batches."""
    return Candidate(functools.partial(consume, batches), batches)


def beside_training(candidate: Candidate) -> Candidate:
    """Return a candidate whose processors are kept awake, as a training does."""
    from tutorlib.profiling import cores_awake

    def work() -> int:
        with cores_awake():
            return candidate.work()

    return dataclasses.replace(candidate, work=work)


def consume(batches: Iterable[Any]) -> int:
    """Go through batches, look at the shape of each tensor, return the rows.

    Raises:
        ValueError: if a tensor of a batch, other than the values of lists, has not as many rows as
            its label.
    """
    rows = 0
    for inputs, label in batches:
        batch_rows = label.shape[0]
        for name, tensor in inputs.items():
            if tensor.shape[0] != batch_rows and not name.endswith("__values"):
                raise ValueError(f"{name!r} has {tensor.shape[0]} rows, the label {batch_rows}")
        rows += batch_rows
    return rows


# ---- the sections: every pipeline is built here, once, so that a turn measures an epoch ----------


def of_loader(inputs: Inputs) -> dict[str, Candidate]:
    """Return the loader in its layouts, and bare Arrow on the same files."""
    from benchmarks import readers

    return {
        COLUMNS: delivering(inputs.loader()),
        "loader, columns, not shuffled": delivering(inputs.loader(shuffle=False)),
        STACKED: delivering(inputs.loader(batch_layout="stacked")),
        "loader, stacked, not shuffled": delivering(
            inputs.loader(batch_layout="stacked", shuffle=False)
        ),
        "Arrow read_row_group, no batches": Candidate(
            functools.partial(readers.read_row_groups, inputs.criteo.source)
        ),
    }


def of_tfdata(inputs: Inputs) -> dict[str, Candidate]:
    """Return tf.data over TFRecord, from what most people have to what they could have."""
    from benchmarks import readers
    from tutorlib import tfrecords

    data, size, schema = inputs.criteo, inputs.batch_size, inputs.criteo.schema
    examples = data.examples(inputs.slow_rows)
    few_examples = data.examples(max(1, inputs.slow_rows // 4))
    by_record = {
        "parse_single_example, shuffled": readers.parsed_examples(few_examples, size, schema),
        BASELINE: tfrecords.native_dataset(examples, size, schema),
        PARSE_BATCHES: tfrecords.parsed_batches(examples, size, schema),
    }
    return {name: beside_training(delivering(pipeline)) for name, pipeline in by_record.items()} | {
        ASLEEP: delivering(by_record[BASELINE]),
        PREBATCHED: delivering(tfrecords.prebatched_dataset(data.prebatched(size), schema)),
    }


def of_raw(inputs: Inputs) -> dict[str, Candidate]:
    """Return tf.data over raw binary of fixed-size records."""
    from benchmarks import readers

    size, schema = inputs.batch_size, inputs.criteo.schema
    pipelines = {
        "raw binary, columns, not shuffled": ("columns", readers.raw_columns),
        "raw binary, columns, shuffled in a window": ("rows", readers.raw_rows),
        "raw binary, stacked, not shuffled": ("stacked", readers.raw_stacked),
    }
    return {
        name: delivering(pipeline(inputs.criteo.raw(form, size), size, schema))
        for name, (form, pipeline) in pipelines.items()
    }


def of_python(inputs: Inputs) -> dict[str, Candidate]:
    """Return the ways to feed Keras from Python, with our reader behind them."""
    from benchmarks import readers

    settings = (inputs.criteo.source, inputs.batch_size, inputs.criteo.schema)
    return {
        "PyDataset, same reader, shuffled": delivering(
            readers.AsFitDoes(readers.RowGroups(*settings))
        ),
        "generator, same reader, shuffled": delivering(readers.generator(*settings)),
    }


def of_plain(inputs: Inputs) -> dict[str, Candidate]:
    """Return the loader and bare Arrow on files of int64 with dictionary and snappy."""
    from benchmarks import readers

    source = inputs.criteo.plain
    return {
        PLAIN_LOADER: delivering(inputs.loader(source)),
        PLAIN_ARROW: Candidate(functools.partial(readers.read_row_groups, source)),
    }


def of_movielens(inputs: Inputs) -> dict[str, Candidate]:
    """Return the loader and bare Arrow on rows with a multi-hot column."""
    from benchmarks import readers

    data = inputs.movielens
    return {
        MOVIELENS_LOADER: delivering(inputs.loader(data.source, schema=data.schema)),
        MOVIELENS_ARROW: Candidate(functools.partial(readers.read_row_groups, data.source)),
    }


def of_fit(inputs: Inputs) -> dict[str, Candidate]:
    """Return epochs of `fit` with a trivial model, and the loaders alone."""
    from benchmarks.trivial_model import compiled

    def fitting(name: str, **settings: Any) -> Candidate:
        model, loader = compiled(name), inputs.loader(**settings)

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
    """Return the wait for the first batch, and how long its chunk takes; rows/s mean nothing."""
    from benchmarks import readers

    loader = inputs.loader()
    chunk_rows = loader.describe()["chunk_rows"]

    def first_batch() -> int:
        next(iter(loader))
        return chunk_rows

    return {
        FIRST_BATCH: Candidate(first_batch, afterwards=loader.close),
        ONE_CHUNK: Candidate(
            functools.partial(readers.read_and_shuffle, inputs.criteo.source, chunk_rows)
        ),
    }


def start_peers(
    inputs: Inputs, open_peers: contextlib.ExitStack
) -> tuple[dict[str, Candidate], list[str], dict[str, str]]:
    """Return other libraries' readers, a line for each library that is not here, and versions."""
    made, skipped, versions = {}, [], {}
    for library, title in peers.TITLES.items():
        python = inputs.peer_pythons.get(library)
        if python is None and not peers.is_here(library):
            skipped.append(f"not measured: {peers.how_to_have(library)}")
            continue
        peer, epochs = peers.start(
            library, python, inputs.criteo, inputs.slow_rows // 4, inputs.batch_size
        )
        open_peers.callback(peer.close)
        versions[title] = peer.version
        made |= {name: Candidate(epoch) for name, epoch in epochs.items()}
    return made, skipped, versions


SECTIONS: dict[str, Callable[[Inputs], dict[str, Candidate]] | None] = {
    "loader": of_loader,
    "tfdata": of_tfdata,
    "raw": of_raw,
    "python": of_python,
    "plain": of_plain,
    "movielens": of_movielens,
    "fit": of_fit,
    "first": of_first,
    "peers": None,  # have to be started, and ended: `start_peers`
}
