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
its rates over the median of the ceiling's. The panels of the picture are forms of the model:
`plain`, an `Embedding` a column, as lesson 02 writes it; `xla`, one fused table, compiled by XLA;
`bits16`, the same in 16 bits. All readers of a panel train the same model from the same first
weights. Loss and AUROC are of later rows, after the first epoch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from other_readers import (
    as_py_dataset,
    columns_of,
    held_batches,
    lines_of_numpy,
    matrices_of,
)
from turns import cores_awake, fit_epoch, measure_rates, rate_and_range

if TYPE_CHECKING:  # this module starts no TensorFlow: the benchmarks import it for its settings
    import keras

    from tutorlib import Schema

TFRECORD, BATCHES = "TFRecord", "TFRecord, whole batches"
ARRAYS, LINES, LOADER = "arrays in memory", "25 lines of Arrow", "loader"
CEILING = "no reader"
READERS = (TFRECORD, BATCHES, ARRAYS, LINES, LOADER, CEILING)
ON_CPU = "loader, batches made on the CPU"  # beside those that the GPU makes
OURS, THEIRS, RANGE = "#2f9e75", "#7a8fa6", "#1c2530"  # as in all pictures
Training = Mapping[str, Any]  # of a reader: rates, a list of a rate a turn; loss and AUROC
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
    from tutorlib.keras_bridge.adapter import array_batches

    size = log.settings.batch_size
    if reader == TFRECORD:
        options = {"shuffle_buffer": log.settings.shuffle_buffer, "seed": log.settings.seed}
        batches = tfrecords.native_dataset(log.examples(), size, log.schema, **options)
        return stacked(batches.take(log.steps), log, layout)
    if reader == BATCHES:
        known = tf.data.experimental.assert_cardinality(log.steps)
        return log.whole_batches(layout).apply(known)
    if reader == ARRAYS:
        return array_batches(log.arrays(layout), size)
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


def dlrm_by_column(schema: Schema, bottom: Sequence[int], top: Sequence[int]) -> keras.Model:
    """Return a DLRM as one writes it in plain Keras: an `Embedding` per column."""
    import keras

    from tutorlib import MLP, DotProductInteraction, keras_inputs

    inputs = keras_inputs(schema)
    numbers = keras.layers.Concatenate()([inputs[name] for name in schema.continuous.names])
    dense = MLP(bottom, 8)(numbers)
    vectors = [keras.layers.Reshape((1, 8))(dense)]
    for column in schema.categorical:
        table = keras.layers.Embedding(column.cardinality, column.width)
        vectors.append(table(inputs[column.name]))
    pairs = DotProductInteraction()(keras.layers.Concatenate(axis=1)(vectors))
    x = MLP(top)(keras.layers.Concatenate()([dense, pairs]))
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))


def with_width(schema: Schema, width: int) -> Schema:
    """Return the columns with all embeddings of one width."""
    for column in schema.categorical:
        schema = schema.replace(column.name, embedding_dim=width)
    return schema


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


def climb(
    panel: str, log: ClickLog, readers: Sequence[str] = READERS, turns: int = 3
) -> Mapping[str, Training]:
    """Train a panel's model from each reader in turns.

    They share one model, so that its step compiles once. From each reader it first trains an epoch
    that begins with the first weights; then its loss and AUROC are measured. Later epochs are
    timed, and repeated until a turn has taken `TURN_S`: TensorFlow's threads make a single epoch of
    many small ops up to a third faster or slower than the next.

    Returns:
        {reader: its training}, rates in samples per second.
    """
    form = PANELS[panel]
    model = model_of(form, log)
    begin_anew = first_weights(model)
    fed = {reader: batches_of(reader, log, form.layout) for reader in readers}
    trainings: dict[str, dict[str, Any]] = {}
    for reader, batches in fed.items():
        begin_anew()
        with cores_awake():
            fit_epoch(model, batches)
        later = log.loader(form.layout, "valid", shuffle=False)
        trainings[reader] = {} if reader == CEILING else quality(model, later)
    timed = {reader: (model, batches) for reader, batches in fed.items()}
    for reader, rates in measure_rates(timed, turns, TURN_S, warm_up=0).items():
        trainings[reader]["rates"] = list(rates)
    return trainings


def first_weights(model: Any) -> Callable[[], None]:
    """Return a function that gives a model and its optimizer the values that they have now."""
    variables = [*model.variables, *model.optimizer.variables]
    values = [np.array(variable) for variable in variables]

    def begin_anew() -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    return begin_anew


def times(trainings: Mapping[str, Training], reader: str, other: str) -> float:
    """Return how many times as fast one training is as another: the median of the turns' ratios."""
    rates = trainings[reader]["rates"], trainings[other]["rates"]
    return statistics.median(ours / theirs for ours, theirs in zip(*rates, strict=True))


def share(trainings: Mapping[str, Training], reader: str) -> float:
    """Return a training's share of the ceiling: the median of its rates over that of the other."""
    return statistics.median(trainings[reader]["rates"]) / ceiling_of(trainings)


def ceiling_of(trainings: Mapping[str, Training]) -> float:
    """Return the median rate of the training without a reader."""
    return statistics.median(trainings[CEILING]["rates"])


# ---- the picture ---------------------------------------------------------------------------------

HEAD = ("", "of ceiling (turns)", "loss", "AUROC")
PLACES = (0.53, 0.76, 0.99)  # right ends of these columns


def share_and_range(trainings: Mapping[str, Training], reader: str) -> str:
    """Return that share as text, with those of its slowest and fastest turn."""
    limit, of_turns = ceiling_of(trainings), trainings[reader]["rates"]
    slowest, fastest = 100 * min(of_turns) / limit, 100 * max(of_turns) / limit
    return f"{share(trainings, reader):.0%} ({slowest:.0f}-{fastest:.0f})"


def draw(panels: Mapping[str, Mapping[str, Training]], figure: Any, text: str = "black") -> Any:
    """Draw the ladder: bars, a line and a band at the ceiling, beside each bar its numbers.

    Bars and line are medians of the turns; lines on bars and the band are the turns' ranges.

    Args:
        panels: {name of `PANELS`: its trainings}, drawn from the top.
        figure: an empty matplotlib figure, which gets 8 inches wide.
        text: colour of all text.

    Returns:
        The figure.
    """
    most = max(max(each["rates"]) for trainings in panels.values() for each in trainings.values())
    heights = [len(trainings) for trainings in panels.values()]
    inches = 0.25 * sum(heights) + 0.5 * len(heights) + 0.5
    figure.set_size_inches(8, inches)
    figure.subplots_adjust(0.24, 0.52 / inches, 0.99, 1 - 0.25 / inches, 0.02, 0.3)
    axes = figure.subplots(
        len(panels), 2, sharex="col", squeeze=False, height_ratios=heights, width_ratios=(3, 2)
    )
    for (panel, beside), (name, trainings) in zip(axes, panels.items(), strict=True):
        readers = [reader for reader in trainings if reader != CEILING]
        table: list[tuple[str, ...]] = [HEAD]
        for y, reader in enumerate(readers):
            training = trainings[reader]
            rates = [rate / 1e3 for rate in training["rates"]]
            middle = statistics.median(rates)
            panel.barh(y, middle, 0.62, color=OURS if reader.startswith(LOADER) else THEIRS)
            panel.plot([min(rates), middle], [y, y], color=RANGE, linewidth=1.5)
            panel.plot([middle, max(rates)], [y, y], color=text, linewidth=1.5)
            measures = (f"{training[measure]:.3f}" for measure in HEAD[2:])
            table.append((reader, share_and_range(trainings, reader), *measures))
        beside.set_axis_off()
        beside.set_xlim(0, 1)
        for y, row in enumerate(table, start=-1):
            weight = "bold" if row[0].startswith(LOADER) else "normal"
            for place, said in zip(PLACES, row[1:], strict=True):
                look = {"color": text, "weight": weight, "size": 9.5, "va": "center", "ha": "right"}
                beside.text(place, y, said, **look)
        limits = [rate / 1e3 for rate in trainings[CEILING]["rates"]]
        panel.axvline(statistics.median(limits), color=text, linestyle="--")
        panel.axvspan(min(limits), max(limits), color=text, alpha=0.15, linewidth=0, zorder=0)
        title = f"{PANELS[name].title}: ceiling {rate_and_range(limits)}"
        panel.set_title(title, loc="left", size=10.5, weight="bold", color=text)
        panel.set_yticks(range(len(readers)), readers, color=text)
        for side in (panel, beside):
            side.set_ylim(len(readers) - 0.5, -1.4)
        panel.set_xlim(0, 1.04 * most / 1e3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(text)
        panel.tick_params(colors=text)
    panel.set_xlabel(f"thousand samples/s of training; dashed: {CEILING}, the ceiling", color=text)
    return figure
