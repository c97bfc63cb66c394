"""The models that `train` measures, each with a table a column and fused, and a training of one.

Does not belong here: measuring (`train.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa

from benchmarks.data import ROW_GROUP_ROWS, SCALE, Dataset
from benchmarks.timelines import as_json
from tutorlib.callbacks import Stall, StallReport
from tutorlib.chunk import Chunk
from tutorlib.layers import (
    MLP,
    DenseFeatures,
    DotProductInteraction,
    FusedEmbedding,
    LinearFeatures,
    keras_inputs,
)
from tutorlib.layers.tables import embedding_initializer
from tutorlib.models import DLRM, WideAndDeep, movielens_network
from tutorlib.profiling import ProfileSteps, read_trace
from tutorlib.schema import Schema


class Training:
    """A model and its data, trained epoch by epoch.

    Args:
        model: not compiled yet.
        data: `KerasSequenceLoader` or `tf.data.Dataset`, with labels.
    """

    def __init__(self, model: keras.Model, data: Any) -> None:
        self._model, self._batches, self._report = model, len(data), StallReport(data)
        # No XLA, which would compile anew for every length of the lists.
        model.compile(keras.optimizers.SGD(0.01), "binary_crossentropy", jit_compile=False)
        self.stalls: list[Stall] = []
        self.losses: list[float] = []

    def epoch(self) -> int:
        """Train an epoch and return its rows, as the loss metric has counted them."""
        history = self._model.fit(self._report.data, callbacks=[self._report], verbose=0)
        self.stalls.append(self._report.stalls[-1])
        self.losses.append(history.history["loss"][0])
        [loss] = [metric for metric in self._model.metrics if metric.name == "loss"]
        return int(loss.count)

    def timeline(self, log_dir: Path) -> dict[str, Any]:
        """Train two epochs and return when what went on in the second one (`timelines.as_json`).

        The profiler starts within the first: while it does, readers fill their buffers.

        Args:
            log_dir: folder for the trace.
        """
        steps = self._batches
        profile = ProfileSteps(log_dir, steps // 2 + 1, 2 * steps)
        self._model.fit(self._report.data, epochs=2, callbacks=[profile], verbose=0)
        return as_json(read_trace(log_dir), steps)


@dataclasses.dataclass(frozen=True)
class Models:
    """Two forms of one network.

    Args:
        schema: its columns, with the widths of their embeddings.
        by_column: returns the network with a table for each column, for batches of columns.
        fused: returns it with fused tables, for stacked batches.
    """

    schema: Schema
    by_column: Callable[[], keras.Model]
    fused: Callable[[], keras.Model]


def dlrm(schema: Schema, widths: str) -> Models:
    """Return the networks over 13 numbers and 26 columns of ids."""
    bottom, top = ([32], [32]) if widths == "scaled" else ([1024, 512, 256], [1024, 1024, 512, 256])
    schema = with_width(schema, 8)
    return Models(
        schema,
        lambda: dlrm_by_column(schema, bottom, top),
        lambda: DLRM(schema, 8, bottom, top, batch_layout="stacked"),
    )


def dlrm_by_column(schema: Schema, bottom: Sequence[int], top: Sequence[int]) -> keras.Model:
    """Return a DLRM as one writes it in plain Keras: an `Embedding` for each column."""
    inputs = keras_inputs(schema)
    numbers = keras.layers.Concatenate()([inputs[name] for name in schema.continuous.names])
    dense = MLP(bottom, 8)(numbers)
    vectors = [keras.layers.Reshape((1, 8))(dense)]
    for column in schema.categorical:
        start = embedding_initializer(column.width)  # as the fused tables begin
        table = keras.layers.Embedding(column.cardinality, column.width, start)
        vectors.append(table(inputs[column.name]))
    pairs = DotProductInteraction()(keras.layers.Concatenate(axis=1)(vectors))
    x = MLP(top)(keras.layers.Concatenate()([dense, pairs]))
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))


def movielens(schema: Schema, widths: str) -> Models:
    """Return the networks over user, film and genres; the published embeddings are 512 wide."""
    if widths == "scaled":
        schema = with_width(schema, 16)
    units = [128, 128, 128]

    def fused() -> keras.Model:
        inputs = stacked_inputs(schema)
        x = MLP(units)(fused_features(schema, inputs))
        return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))

    return Models(schema, lambda: movielens_network(schema, units), fused)


def wide_and_deep(schema: Schema, widths: str) -> Models:
    """Return the networks over numbers, ids and lists of ids."""
    units = [64, 32] if widths == "scaled" else [1024, 1024, 1024]
    schema = with_width(schema, 16)

    def fused() -> keras.Model:
        inputs = stacked_inputs(schema)
        deep = keras.layers.Dense(1)(MLP(units)(fused_features(schema, inputs)))
        x = keras.layers.Add()([deep, *fused_weights(schema, inputs)])
        return keras.Model(inputs, keras.layers.Activation("sigmoid")(x))

    return Models(schema, lambda: WideAndDeep(schema, units), fused)


MODELS = {"dlrm": dlrm, "movielens": movielens, "wide_and_deep": wide_and_deep}


def with_width(schema: Schema, width: int) -> Schema:
    """Return the columns with all embeddings of one width."""
    for column in schema.categorical:
        schema = schema.replace(column.name, embedding_dim=width)
    return schema


def stacked_inputs(schema: Schema) -> dict[str, Any]:
    """Return the inputs that match stacked batches; lists stand beside the two matrices."""
    scalars, lists = scalars_and_lists(schema)
    return keras_inputs(scalars, batch_layout="stacked") | keras_inputs(lists)


def scalars_and_lists(schema: Schema) -> tuple[Schema, Schema]:
    """Return the feature columns of one value a row, and those of lists."""
    features = schema.features
    return tuple(Schema(c for c in features if c.multi_hot is lists) for lists in (False, True))


def fused_features(schema: Schema, inputs: dict[str, Any]) -> Any:
    """Return all features side by side: one gather for the ids, numbers, the mean of each list."""
    scalars, lists = scalars_and_lists(schema)
    parts = [FusedEmbedding(scalars, "concat")(inputs["categorical"]), DenseFeatures(lists)(inputs)]
    if len(scalars.continuous):
        parts.append(inputs["continuous"])
    return keras.layers.Concatenate()(parts)


def fused_weights(schema: Schema, inputs: dict[str, Any]) -> list[Any]:
    """Return the wide side as parts [batch, 1] to be added: ids, lists, numbers."""
    scalars, lists = scalars_and_lists(schema)
    ids = FusedEmbedding(with_width(scalars, 1), "concat", "zeros")(inputs["categorical"])
    numbers = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return [
        keras.ops.sum(ids, axis=1, keepdims=True),
        LinearFeatures(lists)(inputs),
        numbers(inputs["continuous"]),
    ]


def nhot_shape(folder: Path, rows: int) -> Dataset:
    """Return rows as `data_prep synthetic nhot` draws them."""
    from data_prep.synthetic_nhot import BLOCK_ROWS, block_to_arrow, draw_block, schema_of

    schema = schema_of(SCALE)
    sizes = {column.name: column.cardinality for column in schema.categorical}

    def make(count: int, rng: np.random.Generator) -> Chunk:
        seed = int(rng.integers(2**62))
        blocks = [
            block_to_arrow(draw_block(seed, 0, number, sizes))
            for number in range(-(-count // BLOCK_ROWS))
        ]
        return Chunk.from_arrow(pa.concat_tables(blocks).slice(0, count))

    return Dataset(folder, "nhot-shape", schema, rows, make, ROW_GROUP_ROWS)
