"""Samples per second of one model from several readers, beside the most that a reader can reach.

A click model, DLRM, trains on the rows of the lessons with the settings of the lessons
(`SETTINGS`), an epoch a turn, from five readers:

- TFRecord: one example a row, TensorFlow's make_batched_features_dataset;
- TFRecord, whole batches: one record a batch, not shuffled: copied instead of parsed;
- arrays in memory: what `fit(x=arrays, shuffle=True)` makes of them;
- 25 lines of Arrow: what a competent user writes over the same Parquet files;
- loader: `KerasSequenceLoader`.

"No reader" is the ceiling: the same model on the same batches, all held in memory. (A single batch
would stay in the processor's cache, which no training has.) A reader's share of it is the median of
its rates over the median of the ceiling's. The sections (--only)
are the panels of the picture: `plain`, an `Embedding` a column, as lesson 02 writes it; `xla`, one
fused table, compiled by XLA; `bits16`, the same in 16 bits. All readers of a panel train the same
model from the same first weights. Loss and AUROC are of later rows, after the first epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import (
    Benchmark,
    Epoch,
    GpuWatch,
    Way,
    claim,
    cores_awake,
    fit_epoch,
    rates,
    ratios,
    turns,
    two_digits,
)
from benchmarks.readers import (
    as_fit_shuffles,
    as_py_dataset,
    columns_of,
    held_batches,
    lines_of_numpy,
    matrices_of,
)

TFRECORD, BATCHES = "TFRecord", "TFRecord, whole batches"
ARRAYS, LINES, LOADER = "arrays in memory", "25 lines of Arrow", "loader"
CEILING = "no reader"
OURS, THEIRS, RANGE = "#2f9e75", "#7a8fa6", "#1c2530"  # as in all pictures
READERS = (TFRECORD, BATCHES, ARRAYS, LINES, LOADER, CEILING)
ON_CPU = "loader, batches made on the CPU"  # beside those that the GPU makes
Entry = Mapping[str, Any]  # what a report says of a training
GATHER = {"columns": columns_of, "stacked": matrices_of}  # by layout
TURN_S = 1.0  # seconds of a turn, at least, here and in the lessons: short epochs are repeated


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all trainings of the ladder have in common; the lessons' parameters have these values.

    Args:
        rows: training rows of an epoch, the first of the click log.
        valid_rows: validation rows.
        batch_size: rows per batch.
        embedding_dim: width of every embedding.
        bottom_units: hidden layer widths of the network over the counts.
        top_units: hidden layer widths of the network over the interactions.
        learning_rate: of Adam.
        shuffle_buffer: rows of the window in which TFRecord is shuffled.
        seed: of first weights and shuffling.
    """

    rows: int = 262_144
    valid_rows: int = 65_536
    batch_size: int = 4_096
    embedding_dim: int = 8
    bottom_units: Sequence[int] = (32,)
    top_units: Sequence[int] = (32,)
    learning_rate: float = 0.005
    shuffle_buffer: int = 10_000
    seed: int = 0


SETTINGS = Settings()


@dataclasses.dataclass(frozen=True)
class Panel:
    """A form of the model.

    Args:
        title: what a picture says of it.
        fused: whether it has one table for all columns, and batches are stacked.
        xla: whether XLA compiles its step.
        short: whether its layers compute in 16 bits.
    """

    title: str
    fused: bool = False
    xla: bool = False
    short: bool = False

    @property
    def layout(self) -> str:
        """The layout of its batches."""
        return "stacked" if self.fused else "columns"


PANELS = {
    "plain": Panel("A table a column"),
    "xla": Panel("One fused table, XLA", fused=True, xla=True),
    "bits16": Panel("One fused table, XLA, 16 bits", fused=True, xla=True, short=True),
}


class ClickLog:
    """The rows of the ladder, in the format of each reader; a format is written when first asked.

    Args:
        folder: with `train` and `valid`, as `data_prep criteo` writes them.
        settings: rows, batch size, width, seed.
        device: "cpu" or "gpu", where the loader makes its batches.

    Attributes:
        steps: full batches of an epoch.
        rows: rows of these.
    """

    def __init__(self, folder: Path, settings: Settings = SETTINGS, device: str = "cpu") -> None:
        from benchmarks.networks import with_width
        from tutorlib import ParquetSource, Schema

        self.folder, self.settings, self.device = Path(folder), settings, device
        loaded = Schema.load(self.folder / "train" / "_schema.json")
        self.schema = with_width(loaded, settings.embedding_dim)
        rows = min(settings.rows, ParquetSource(self.folder / "train").num_rows)
        self.steps = rows // settings.batch_size
        self.rows = self.steps * settings.batch_size

    def loader(self, layout: str, part: str = "train", device: str = "", **options: Any) -> Any:
        """Return the loader of the first rows of a part, in `columns` or `stacked`."""
        from tutorlib import KerasSequenceLoader, ParquetSource

        limit = self.rows if part == "train" else self.settings.valid_rows
        return KerasSequenceLoader(
            ParquetSource(self.folder / part).head(limit), self.settings.batch_size,
            schema=self.schema, batch_layout=layout, device=device or self.device,
            seed=self.settings.seed, **options,
        )  # fmt: skip

    def examples(self) -> Path:
        """Return the folder of the rows as TFRecord, one example a row."""
        import tfrecords

        return self._written("train", tfrecords.write_examples)

    def whole_batches(self, layout: str) -> Any:
        """Return an epoch of batches from TFRecord with one record a batch, in its layout."""
        import tensorflow as tf

        import tfrecords
        from tutorlib import Chunk, Column, Schema
        from tutorlib.columns import Ragged

        size = self.settings.batch_size
        write = functools.partial(tfrecords.write_prebatched, batch_size=size)
        if layout == "columns":
            path = self._written(f"batches-{size}", write)
            return tfrecords.prebatched_dataset(path, self.schema).take(self.steps)
        # Stacked, a record has three long columns: the rows of a matrix, one after the other.
        kinds = {"categorical": "int32", "continuous": "float32"}
        [label] = self.schema.labels
        columns = [Column(role, role, kind, multi_hot=True) for role, kind in kinds.items()]
        path = self.folder / "tfrecords" / f"stacked-{self.rows}-{size}"
        if not (path / tfrecords.METADATA_FILE).is_file():
            matrices, labels = self.arrays("stacked")
            fields = {
                role: Ragged(x.ravel(), np.arange(len(x) + 1) * x.shape[1])
                for role, x in matrices.items()
            }
            write(Chunk({**fields, label.name: labels[:, 0]}), path, overwrite=True)
        records = tfrecords.prebatched_dataset(path, Schema([*columns, label]))

        def as_matrices(parts: Any, labels: Any) -> Any:
            inputs = {
                role: tf.reshape(parts[f"{role}__values"], (size, len(self.schema.with_role(role))))
                for role in kinds
            }
            return inputs, labels

        return records.map(as_matrices, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def _written(self, name: str, write: Callable[..., Any]) -> Path:
        import tfrecords
        from tutorlib import ParquetSource

        path, source = self.folder / "tfrecords" / name, ParquetSource(self.folder / "train")
        made = (path / tfrecords.METADATA_FILE).is_file()
        if not made or tfrecords.read_metadata(path)["rows"] < self.rows:
            options = {"columns": self.schema.names, "overwrite": True}
            write(source, path, limit_rows=self.rows, **options)
        return path

    def files(self) -> list[str]:
        """Return the Parquet files of the training rows."""
        return sorted(map(str, (self.folder / "train").glob("*.parquet")))

    def arrays(self, layout: str) -> Any:
        """Return the rows as (inputs, label) in memory, in `columns` or `stacked`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = pa.concat_tables([pq.read_table(file) for file in self.files()]).slice(0, self.rows)
        inputs = GATHER[layout](rows, np.arange(len(rows)), self.schema)
        return inputs, inputs.pop(self.schema.labels.names[0])


def batches_of(reader: str, log: ClickLog, layout: str) -> Any:
    """Return what `fit` is given to train on the rows once."""
    import tensorflow as tf

    import tfrecords

    size = log.settings.batch_size
    if reader == TFRECORD:
        options = {"shuffle_buffer": log.settings.shuffle_buffer, "seed": log.settings.seed}
        batches = tfrecords.native_dataset(log.examples(), size, log.schema, **options)
        return stacked(batches.take(log.steps), log, layout)
    if reader == BATCHES:
        known = tf.data.experimental.assert_cardinality(log.steps)
        return log.whole_batches(layout).apply(known)
    if reader == ARRAYS:
        return as_fit_shuffles(log.arrays(layout), size)
    if reader == LINES:
        lines = lines_of_numpy(
            log.files(), size, log.schema, GATHER[layout], log.settings.seed, log.rows
        )
        return as_py_dataset(lines, log.steps)
    if reader == CEILING:
        return held_batches(log.loader(layout))
    return log.loader(layout, device="cpu" if reader == ON_CPU else "")


def stacked(batches: Any, log: ClickLog, layout: str) -> Any:
    """Return an epoch of batches of columns in a layout: `stacked` has a matrix of each role."""
    import tensorflow as tf

    epoch = batches.apply(tf.data.experimental.assert_cardinality(log.steps))
    if layout == "columns":
        return epoch
    roles = {"categorical": tf.int32, "continuous": tf.float32}

    def stack(columns: Any, label: Any) -> Any:
        names = {role: log.schema.with_role(role).names for role in roles}
        return {
            role: tf.cast(tf.concat([columns[name] for name in names[role]], 1), dtype)
            for role, dtype in roles.items()
        }, tf.cast(label, tf.int32)

    return epoch.map(stack, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def model_of(panel: Panel, log: ClickLog) -> Any:
    """Return the compiled model of a panel; its first weights are the same at each call."""
    import keras

    from benchmarks.networks import dlrm_by_column
    from tutorlib import DLRM

    settings = log.settings
    keras.utils.set_random_seed(settings.seed)
    with policy(short_policy() if panel.short else "float32"):
        if panel.fused:
            sizes = settings.embedding_dim, settings.bottom_units, settings.top_units
            model = DLRM(log.schema.features, *sizes, batch_layout="stacked")
        else:
            model = dlrm_by_column(log.schema, settings.bottom_units, settings.top_units)
    adam = keras.optimizers.Adam(settings.learning_rate)
    model.compile(adam, "binary_crossentropy", jit_compile=panel.xla)
    model.optimizer.build(model.trainable_variables)
    return model


def short_policy() -> str:
    """Return the policy of 16 bits for this machine's device: bfloat16 on a CPU."""
    import tensorflow as tf

    return "mixed_float16" if tf.config.list_physical_devices("GPU") else "mixed_bfloat16"


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Set Keras's dtype policy in the block."""
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def quality(model: Any, batches: Any) -> dict[str, float]:
    """Return loss and AUROC of what a model predicts for batches of (inputs, label)."""
    import keras

    pairs = [(model(inputs, training=False), label) for inputs, label in batches]
    predicted, clicked = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    loss = np.mean(keras.losses.binary_crossentropy(clicked, predicted))
    return {"loss": float(loss), "AUROC": float(keras.metrics.AUC()(clicked, predicted))}


# ---- the trainings of a panel --------------------------------------------------------------------


def ways_of(panel: Panel, log: ClickLog, readers: Sequence[str] = READERS) -> list[Way]:
    """Return the trainings of a panel, with the cores kept awake.

    They share one model, so that its step compiles once. In its first turn, which warms up, each
    begins with the first weights and takes an epoch; then its loss and AUROC are measured. Later
    turns repeat epochs until they have taken `TURN_S`, and their mean counts: TensorFlow's threads
    make a single epoch of many small ops up to a third faster or slower than the next.
    """
    import tensorflow as tf

    model = model_of(panel, log)
    variables = [*model.variables, *model.optimizer.variables]
    start = [np.array(variable) for variable in variables]
    on_gpu = log.device == "gpu"

    def epoch(batches: Any, facts: dict[str, Any], has_reader: bool) -> Epoch:
        first = not facts
        if first:
            for variable, value in zip(variables, start, strict=True):
                variable.assign(value)
        watch, epochs, seconds = GpuWatch(), 0, 0.0
        with cores_awake(), watch if on_gpu else contextlib.nullcontext():
            while not epochs or (seconds < TURN_S and not first):
                done = fit_epoch(model, batches, synchronise=tf.test.experimental.sync_devices)
                epochs, seconds = epochs + 1, seconds + (done.elapsed_s or 0)
        if first:
            facts["parameters"] = model.count_params()
            if has_reader:
                valid = log.loader(panel.layout, "valid", shuffle=False)
                facts |= quality(model, valid)
        values = {"busy_share": watch.busy_share} if on_gpu else {}
        return Epoch(done.rows, seconds / epochs, values)

    ways = []
    for name in readers:
        facts: dict[str, Any] = {}
        batches = batches_of(name, log, panel.layout)
        ways.append(
            Way(name, functools.partial(epoch, batches, facts, name != CEILING), facts=facts)
        )
    return ways


def climb(panel: str, log: ClickLog, readers: Sequence[str], repeat: int) -> list[dict[str, Any]]:
    """Measure trainings of a panel in turns, for a lesson; return what a report says of each."""
    ways = ways_of(PANELS[panel], log, readers)
    return turns(ways, repeat=repeat, most=repeat, say=lambda _: None)


def section(name: str) -> Callable[[argparse.Namespace], list[Way]]:
    """Return the function that makes the trainings of a panel for the benchmark."""

    def ways(arguments: argparse.Namespace) -> list[Way]:
        from data_prep.criteo import prepared_rows

        settings = dataclasses.replace(
            SETTINGS, rows=arguments.rows, batch_size=arguments.batch_size
        )
        if arguments.widths == "published":
            settings = dataclasses.replace(
                settings,
                bottom_units=(1024, 512, 256),
                top_units=(1024, 1024, 512, 256),
                learning_rate=0.001,
            )
        log = ClickLog(prepared_rows(arguments.data), settings, arguments.device)
        readers = list(arguments.readers)
        if arguments.device == "gpu" and LOADER in readers:
            readers.insert(readers.index(LOADER), ON_CPU)
        return ways_of(PANELS[name], log, readers)

    return ways


def split(entries: Sequence[Entry]) -> tuple[Entry, list[Entry]]:
    """Return the training without a reader, and the others."""
    [ceiling] = [entry for entry in entries if entry["name"] == CEILING]
    return ceiling, [entry for entry in entries if entry is not ceiling]


def claims(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the loader's share of the ceiling in each panel, and its factors of the others."""
    for name in PANELS:
        entries = [entry for entry in result["ways"] if entry["section"] == name]
        by_name = {entry["name"]: entry for entry in entries}
        if LOADER not in by_name:
            continue
        for other in by_name.values():
            if other["name"] != LOADER:
                least = 0.97 if other["name"] == CEILING else 1
                values = ratios(by_name[LOADER], other)
                yield claim(f"{name}: {LOADER} / {other['name']}", values, at_least=least)


LADDER = Benchmark(
    "ladder",
    "samples/s of one click model from each reader, beside the ceiling (6 minutes)",
    {name: section(name) for name in PANELS},
    {
        "rows": (SETTINGS.rows, "rows of an epoch, the first of the lessons' click log"),
        "batch_size": (SETTINGS.batch_size, "rows per batch"),
        "widths": (
            ("scaled", "published"),
            "of the network: scaled down so that two CPU cores compute about as fast as they read "
            "TFRecord, or those of the published model, for a GPU",
        ),
        "readers": (list(READERS), "readers to train from"),
    },
    claims,
    device=True,
)


# ---- the picture ---------------------------------------------------------------------------------

HEAD = ("", "of ceiling (turns)", "loss", "AUROC")
PLACES = (0.53, 0.76, 0.99)  # right ends of these columns


def share(entry: Entry, ceiling: Entry) -> float:
    """Return a training's share of the ceiling: the median of its rates over that of the other."""
    return statistics.median(rates(entry)) / statistics.median(rates(ceiling))


def share_and_range(entry: Entry, ceiling: Entry) -> str:
    """Return that share as text, with those of its slowest and fastest turn."""
    limit, of_turns = statistics.median(rates(ceiling)), rates(entry)
    slowest, fastest = 100 * min(of_turns) / limit, 100 * max(of_turns) / limit
    return f"{share(entry, ceiling):.0%} ({slowest:.0f}-{fastest:.0f})"


def rate_and_range(entry: Entry) -> str:
    """Return the median of an entry's rates as text, with the slowest and the fastest turn."""
    of_turns = rates(entry)
    middle, slowest, fastest = (
        two_digits(value) for value in (statistics.median(of_turns), min(of_turns), max(of_turns))
    )
    return f"{middle} ({slowest} to {fastest})"


def table(shown: Sequence[Entry], ceiling: Entry) -> list[tuple[str, ...]]:
    """Return of each training, as text, what `HEAD` says."""
    rows: list[tuple[str, ...]] = []
    for entry in shown:
        said = share_and_range(entry, ceiling)
        rows.append((entry["name"], said, f"{entry['loss']:.3f}", f"{entry['AUROC']:.3f}"))
    return rows


def draw(panels: Mapping[str, Sequence[Entry]], figure: Any, text: str = "black") -> Any:
    """Draw the ladder: bars, a line and a band at the ceiling, beside each bar its numbers.

    Bars and line are medians of the turns; lines on bars and the band are the turns' ranges.

    Args:
        panels: {name of `PANELS`: entries of its trainings}, drawn from the top.
        figure: an empty matplotlib figure, which gets 8 inches wide.
        text: colour of all text.

    Returns:
        The figure.
    """
    most = max(max(rates(entry)) for each in panels.values() for entry in each)
    heights = [len(entries) for entries in panels.values()]
    inches = 0.25 * sum(heights) + 0.5 * len(heights) + 0.5
    figure.set_size_inches(8, inches)
    figure.subplots_adjust(0.24, 0.52 / inches, 0.99, 1 - 0.25 / inches, 0.02, 0.3)
    axes = figure.subplots(
        len(panels), 2, sharex="col", squeeze=False, height_ratios=heights, width_ratios=(3, 2)
    )
    for (panel, beside), (name, entries) in zip(axes, panels.items(), strict=True):
        ceiling, shown = split(entries)
        for y, entry in enumerate(shown):
            values, ours = [rate / 1e3 for rate in rates(entry)], entry["name"].startswith(LOADER)
            middle = statistics.median(values)
            panel.barh(y, middle, 0.62, color=OURS if ours else THEIRS)
            panel.plot([min(values), middle], [y, y], color=RANGE, linewidth=1.5)
            panel.plot([middle, max(values)], [y, y], color=text, linewidth=1.5)
        beside.set_axis_off()
        beside.set_xlim(0, 1)
        for y, row in enumerate([HEAD, *table(shown, ceiling)], start=-1):
            weight = "bold" if row[0].startswith(LOADER) else "normal"
            for place, said in zip(PLACES, row[1:], strict=True):
                look = {"color": text, "weight": weight, "size": 9.5, "va": "center", "ha": "right"}
                beside.text(place, y, said, **look)
        panel.axvline(statistics.median(rates(ceiling)) / 1e3, color=text, linestyle="--")
        slowest, fastest = min(rates(ceiling)) / 1e3, max(rates(ceiling)) / 1e3
        panel.axvspan(slowest, fastest, color=text, alpha=0.15, linewidth=0, zorder=0)
        thousands = {**ceiling, "rows": ceiling["rows"] / 1e3}
        title = f"{PANELS[name].title}: ceiling {rate_and_range(thousands)}"
        panel.set_title(title, loc="left", size=10.5, weight="bold", color=text)
        panel.set_yticks(range(len(shown)), [entry["name"] for entry in shown], color=text)
        for side in (panel, beside):
            side.set_ylim(len(shown) - 0.5, -1.4)
        panel.set_xlim(0, 1.04 * most / 1e3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(text)
        panel.tick_params(colors=text)
    panel.set_xlabel(f"thousand samples/s of training; dashed: {CEILING}, the ceiling", color=text)
    return figure
