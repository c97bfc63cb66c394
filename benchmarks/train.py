"""Samples per second of whole training runs, and the share of time spent waiting for data.

Each network trains on the same rows in several ways (--ways):

- native: TFRecord, one example per row, read by TensorFlow's make_batched_features_dataset; one
  embedding table per column;
- columns: the same network on `KerasSequenceLoader`, so that only the reader differs;
- stacked: the loader's stacked batches, one tensor of ids and one of numbers, and one variable that
  holds the tables of all columns of one id;
- xla: the same compiled by XLA, as Keras does on a GPU; all batches have one shape (`drop_last`,
  `bucket_lists`). On a CPU the other ways are not compiled;
- prebatched: the network of native on TFRecord with one record per batch, not shuffled: the most
  that TFRecord can do, since a record is copied instead of parsed, but batches stay as written;
- raw: the network of stacked on raw binary cells, not shuffled; DLRM only.

All ways take turns, one epoch each. Files are in the page cache. On a CPU, `StallReport` measures
the wait: seconds inside the call that takes the next batch. There, reader and model use the same
cores, so a slow reader also makes the steps slower. On a GPU, single steps are not timed; the
report has the GPU's memory instead, and its idle share from a trace.

Before its turns, each way trains 16 steps, after which all ways are compared by their loss on the
same validation rows. After the turns, the ways of --traced train under TensorFlow's profiler, and
the report keeps a timeline of them (`timelines.py`).

Sections (--only): dlrm, Criteo-shaped rows; movielens, ratings with a list of genres;
wide_and_deep, 10 numbers, 37 columns of one id, 3 of up to ten ids.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import measure
from benchmarks.data import Dataset, criteo_shape, movielens_shape, nhot_shape
from benchmarks.device import Device
from benchmarks.measure import Claim

if TYPE_CHECKING:
    from notebooks.traces import Trace

SUMMARY = "samples/s of training and its wait for data, native and with the loader (6 minutes)"
TITLES = {"dlrm": "DLRM", "movielens": "MovieLens", "wide_and_deep": "Wide & Deep"}
DATASETS: dict[str, Callable[[Path, int], Dataset]] = {
    "dlrm": criteo_shape,
    "movielens": movielens_shape,
    "wide_and_deep": nhot_shape,
}
NATIVE, PREBATCHED = "native", "native, prebatched"
COLUMNS, STACKED = "loader, columns", "loader, stacked and fused"
COMPILED = f"{STACKED}, XLA"
WAYS = {
    "native": NATIVE,
    "columns": COLUMNS,
    "stacked": STACKED,
    "xla": COMPILED,
    "prebatched": PREBATCHED,
    "raw": "raw binary, stacked and fused",
}
LOADERS = ("columns", "stacked", "xla")
DEFAULT_WAYS = ("native", "prebatched", *LOADERS)
FUSED = ("stacked", "xla", "raw")
GPU_WAYS = tuple(way for way in WAYS if way != "xla")  # there, XLA compiles all of them
WIDTHS = ("scaled", "published")
PRECISIONS = ("float32", "mixed_float16")
OPTIMIZERS = ("sgd", "adam")
COMPARED_STEPS = 16
VALID_BATCHES = 4
TRACED_STEPS = 16  # on a GPU; the first half of them is not in the trace


def name_of(section: str, way: str) -> str:
    """Return the name of a candidate."""
    return f"{TITLES[section]}: {way}"


CLAIMS = tuple(
    Claim(name_of(section, way), 1, other=name_of(section, NATIVE))
    for section in TITLES
    for way in (COLUMNS, STACKED, COMPILED)
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark to a parser."""
    measure.add_numbers(
        parser, rows=(262_144, "rows of an epoch"), batch_size=(8192, "rows per batch")
    )
    parser.add_argument(
        "--slow-rows", type=int, help="rows of an epoch of native (default: as --rows)"
    )
    parser.add_argument(
        "--ways", nargs="+", choices=tuple(WAYS), default=list(DEFAULT_WAYS), metavar="WAY",
        help=f"some of {', '.join(WAYS)} (default: {' '.join(DEFAULT_WAYS)})",
    )  # fmt: skip
    parser.add_argument(
        "--traced", nargs="*", choices=tuple(WAYS), default=["native", "stacked"], metavar="WAY",
        help="ways of the first section to trace, or none (default: native stacked)",
    )  # fmt: skip
    widths = "of the networks: scaled down so that two CPU cores compute about as fast as they "
    widths += "read TFRecord, or those of the published models, for a GPU"
    optimizer = "sgd, whose cost does not depend on the size of the tables, or adam"
    measure.add_choices(
        parser,
        widths=(WIDTHS, widths),
        optimizer=(OPTIMIZERS, optimizer),
        precision=(PRECISIONS, "Keras's dtype policy"),
    )
    measure.add_options(parser, "train", repeat=5, repeated="epochs of each way", sections=TITLES)


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the table and write the JSON file."""
    if arguments.rows <= arguments.batch_size:
        raise SystemExit(
            f"benchmarks: an epoch needs more than one batch, got --rows {arguments.rows} and "
            f"--batch-size {arguments.batch_size}"
        )
    device = Device(arguments.device, loader=bool(set(LOADERS) & set(arguments.ways)))
    datasets = {name: DATASETS[name](arguments.data, arguments.rows) for name in arguments.only}
    trainings: dict[str, Training] = {}
    for section, data in datasets.items():
        trainings |= of_section(section, data, arguments, device)
    if not trainings:
        raise SystemExit("benchmarks: raw cells hold no lists; --ways raw is for --only dlrm")
    timings = measure.turns(
        {name: training.epoch for name, training in trainings.items()},
        repeat=arguments.repeat,
        synchronise=device.synchronise,
    )
    details = {
        "device": device.name,
        "backend": device.backend,
        **{name: getattr(arguments, name) for name in ("batch_size", "widths", "optimizer")},
        "precision": arguments.precision,
        "data": {data.name: data.describe() for data in datasets.values()},
        "sections": {
            section: [name for name in trainings if name.startswith(f"{TITLES[section]}: ")]
            for section in datasets
        },
        "device_memory": device.memory(),
    }
    result = report(timings, trainings, measure.command_line(arguments), details)
    traced = [name_of(arguments.only[0], WAYS[way]) for way in arguments.traced]
    add_timelines(result, {name: trainings[name] for name in traced if name in trainings})
    print(table(result))
    measure.save(result, arguments.out)


# ---- one training -------------------------------------------------------------------------------


class Training:
    """A network and its data, trained epoch by epoch.

    Attributes:
        stalls: list of `Stall`, one for each epoch where waits are measured.
        losses: training loss of each epoch.
        compared_steps: steps of training before the turns, at most `COMPARED_STEPS`.
        valid_loss: validation loss after them.
    """

    def __init__(
        self, model: Any, batches: Any, valid: Any, device: Device, optimizer: str, jit_compile: Any
    ) -> None:
        from tutorlib.callbacks import StallReport

        self._model, self._device, self._steps = model, device, len(batches)
        model.compile(optimizer, "binary_crossentropy", jit_compile=jit_compile)
        self.compared_steps = 2 * min(COMPARED_STEPS // 2, self._steps)
        self.valid_loss = self._compare(batches, valid)
        # On a GPU a callback would make each step wait for the loss of the one before.
        timed = (device.backend, device.name) == ("tensorflow", "cpu")
        self._report = StallReport(batches) if timed else None
        self._batches = batches if self._report is None else self._report.data
        self.losses: list[float] = []

    @property
    def stalls(self) -> list[Any]:
        """The waits of each epoch, where they are measured."""
        return [] if self._report is None else self._report.stalls

    def _compare(self, batches: Any, valid: Any) -> float:
        """Train the first steps; return the validation loss after them."""
        steps = self.compared_steps // 2
        self._model.fit(batches, epochs=2, steps_per_epoch=steps, verbose=0)
        return float(self._model.evaluate(valid, verbose=0))

    def epoch(self) -> int:
        """Train one epoch; return its rows, as the loss metric counted them."""
        callbacks = [] if self._report is None else [self._report]
        ended, loss = measure.fit_epoch(
            self._model, self._batches, callbacks=callbacks, synchronise=self._device.synchronise
        )
        self.losses.append(loss)
        return ended

    def trace(self, log_dir: Path) -> tuple[Trace, int]:
        """Train under the profiler; return the trace, and how many of its last steps to keep.

        On a CPU they are a whole epoch, the second of two; on a GPU some steps of one epoch. The
        steps before are traced too: while the profiler starts, readers fill their buffers.
        """
        from notebooks.traces import read_trace

        if not self._device.can_trace:
            raise RuntimeError("JAX's profiler shows no work of a CPU")
        steps = min(self._steps, TRACED_STEPS) if self._device.name == "gpu" else self._steps
        epochs = 1 if self._device.name == "gpu" else 2
        first, last = steps // 2 + 1, epochs * steps
        with self._device.profiler(log_dir, first, last) as callbacks:
            self._model.fit(
                self._batches, epochs=epochs, steps_per_epoch=steps if epochs == 1 else None,
                callbacks=callbacks, verbose=0,
            )  # fmt: skip
            self._device.synchronise()
        trace = read_trace(log_dir)
        if self._device.name == "gpu" and not trace.on_gpu:
            raise RuntimeError(
                "the trace has no events of the GPU: the profiler could not load CUPTI, or has no "
                "permission to use it (TF_CPP_MAX_VLOG_LEVEL=1 says which)"
            )
        return trace, steps if epochs == 2 else last - first

    def describe(self) -> dict[str, Any]:
        """Return how the network is computed, as JSON values."""
        float32_on_gpu = (self._device.name, self._model.compute_dtype) == ("gpu", "float32")
        return {
            "parameters": self._model.count_params(),
            "jit_compile": bool(self._model.jit_compile),
            "tf32": self._device.tf32() if float32_on_gpu else None,
            "compared_steps": self.compared_steps,
            "valid_loss": self.valid_loss,
        }


def of_section(
    section: str,
    data: Dataset,
    arguments: argparse.Namespace,
    device: Device,
    *,
    all_compiled: bool = False,
) -> dict[str, Training]:
    """Return {name: training} of one network in its ways; raw cells only for rows without lists.

    XLA compiles all of them with `all_compiled`, on a GPU and on JAX, except lists of any length.
    """
    import keras

    from benchmarks.networks import NETWORKS
    from tutorlib.loader import KerasSequenceLoader

    keras.mixed_precision.set_dtype_policy(arguments.precision)
    network = NETWORKS[section](data.schema, arguments.widths)
    has_lists = any(column.multi_hot for column in data.schema)
    all_compiled = all_compiled or device.name == "gpu" or device.backend == "jax"
    valid = data.valid(VALID_BATCHES * arguments.batch_size)
    made = {}
    for way in arguments.ways:
        if way == "raw" and has_lists:
            continue
        compiled = all_compiled or way == "xla"
        keras.utils.set_random_seed(0)
        layout = "stacked" if way in FUSED else "columns"
        valid_batches = KerasSequenceLoader(
            valid.source, arguments.batch_size, schema=network.schema, batch_layout=layout,
            shuffle=False, bucket_lists=compiled, drop_last=way == "xla",
        )  # fmt: skip
        batches = _batches(way, data, network.schema, arguments, compiled)
        if way in LOADERS:
            device.count_loaders()
        # Lists have too many shapes, unless a loader buckets them.
        jit_compile = compiled and (way in LOADERS or not has_lists)
        made[name_of(section, WAYS[way])] = Training(
            network.fused() if way in FUSED else network.by_column(),
            batches, valid_batches, device, arguments.optimizer, jit_compile,
        )  # fmt: skip
    return made


def _batches(
    way: str, data: Dataset, schema: Any, arguments: argparse.Namespace, bucket_lists: bool
) -> Any:
    """Return the batches of one way, an epoch of known length."""
    import tensorflow as tf

    import tfrecords
    from tutorlib.loader import KerasSequenceLoader

    size = arguments.batch_size
    if way in LOADERS:
        return KerasSequenceLoader(
            data.source, size, schema=schema, batch_layout="stacked" if way in FUSED else "columns",
            bucket_lists=bucket_lists, drop_last=way == "xla", device=arguments.device,
        )  # fmt: skip
    if way == "prebatched":
        return tfrecords.prebatched_dataset(data.prebatched(size), schema)
    if way == "raw":
        return tfrecords.raw_stacked(data.raw_rows(), size, schema, shuffle=False)
    rows = min(arguments.slow_rows or data.rows, data.rows)
    native = tfrecords.native_dataset(data.examples(rows), size, schema)
    return native.apply(tf.data.experimental.assert_cardinality(-(-rows // size)))


# ---- the report ---------------------------------------------------------------------------------


def report(
    timings: Sequence[measure.Timing],
    trainings: Mapping[str, Training],
    command: str,
    details: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what was measured as JSON values.

    Each candidate has its `losses`, and where they were measured its `wait_shares`, for the epochs
    of `elapsed_s`. `times_native` is the median quotient of its rate and that of native in a turn,
    `times_prebatched` the same for native, prebatched, where that was measured.
    """
    result = measure.report("train", timings, command=command, claims=CLAIMS, details=details)
    by_name = {timing.name: timing for timing in timings}
    for entry in result["candidates"]:
        name, repeat = entry["name"], len(entry["elapsed_s"])
        training = trainings[name]
        if training.stalls:
            entry["wait_shares"] = [stall.share for stall in training.stalls[-repeat:]]
            entry["wait_share"] = statistics.median(entry["wait_shares"])
        for key, way in (("times_native", NATIVE), ("times_prebatched", PREBATCHED)):
            if (other := by_name.get(f"{name.split(':')[0]}: {way}")) is not None:
                quotients = zip(by_name[name].rates, other.rates, strict=True)
                entry[key] = statistics.median(ours / theirs for ours, theirs in quotients)
        entry["losses"] = training.losses[-repeat:]
        entry |= training.describe()
    return result


def add_timelines(result: dict[str, Any], trainings: Mapping[str, Training]) -> None:
    """Train under the profiler, and add `timelines`, by name, and idle shares to a report.

    A failure goes to `untraced`, because what was measured before it counts.
    """
    from benchmarks.timelines import as_json

    result["timelines"], result["untraced"] = {}, {}
    entries = {entry["name"]: entry for entry in result["candidates"]}
    for name, training in trainings.items():
        try:
            with tempfile.TemporaryDirectory() as log_dir:
                trace, steps = training.trace(Path(log_dir))
            entries[name]["top_ops"] = [op._asdict() for op in trace.ops[:10]]
            timeline = as_json(trace, steps) if trace.steps else {}  # JAX marks no steps
            if timeline:
                result["timelines"][name] = timeline
            if trace.on_gpu:
                idle_share = timeline.get("idle_share", trace.idle_share)
                entries[name]["idle_share"] = idle_share
        except (ValueError, OSError, RuntimeError) as error:
            result["untraced"][name] = f"{type(error).__name__}: {error}"


def table(result: Mapping[str, Any]) -> str:
    """Return a report as text."""
    columns = {
        **measure.RATES,
        "times native": "{times_native:.2f}",
        "times prebatched": "{times_prebatched:.2f}",
        "waiting": "{wait_share:.0%}",
        "valid loss": "{valid_loss:.4f}",
        "rows": "{rows:,}",
    }
    steps = result["candidates"][0]["compared_steps"]
    notes = [
        "waiting: share of an epoch inside the call that takes the next batch",
        f"valid loss: after {steps} steps of {result['batch_size']:,} rows",
        *(f"not traced: {name}: {why}" for name, why in result["untraced"].items()),
    ]
    return measure.table(result, columns, notes)
