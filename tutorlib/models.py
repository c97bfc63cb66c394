"""Models: whole networks of a Schema, as functional Keras models.

Belongs here: how layers are put together. Does not belong here: the layers (`layers.py`), or
compiling and training. Each function takes a Schema and returns an uncompiled `keras.Model` whose
inputs match the loader's batches, so that `summary`, `plot_model`, `.keras` files and `export`
work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tutorlib.layers import MLP, DenseFeatures, DotProductInteraction, FusedEmbedding, keras_inputs
from tutorlib.schema import Column, Schema, as_schema


def DLRM(
    schema: Any,
    embedding_dim: int = 8,
    bottom_hidden_units: Sequence[int] = (1024, 512, 256),
    top_hidden_units: Sequence[int] = (1024, 1024, 512, 256),
    *,
    batch_layout: str = "columns",
    name: str = "dlrm",
) -> keras.Model:
    """Return a DLRM: an MLP over the numbers, all pairs of it and the embeddings, another MLP.

    The names are those of the paper: `bottom` is the dense side, next to the input, and `top` comes
    after the interaction. The predecessor of this library used them the other way round.

    The model has the same weights for both layouts, in the same order, so
    `set_weights(get_weights())` carries them over; all tables are one variable (`FusedEmbedding`).

    Args:
        schema: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out, and
            the columns' own embedding widths are replaced by `embedding_dim`.
        embedding_dim: width of every embedding and of the bottom MLP's output.
        bottom_hidden_units: hidden widths of the MLP over the continuous columns.
        top_hidden_units: hidden widths of the MLP over the interactions.
        batch_layout: "columns" (dict of [batch, 1]) or "stacked" ({"categorical", "continuous"}).
        name: of the model.

    Returns:
        A model with a float32 [batch, 1] probability as output, under any dtype policy.

    Raises:
        ValueError: if there are fewer than two features, no categorical column, a multi-hot one, or
            one without a cardinality.

    Example:
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> DLRM(columns, 4, [8], [8], batch_layout="stacked").output_shape
        (None, 1)

    Source: Naumov et al., Deep Learning Recommendation Model, 2019, arXiv:1906.00091.
    """
    features = _with_width(as_schema(schema).features, embedding_dim)
    embeddings = FusedEmbedding(features, name="embeddings")
    inputs = keras_inputs(features, batch_layout=batch_layout)
    ids, numbers = _ids_and_numbers(features, inputs, batch_layout)
    x = embeddings(ids)  # [batch, n_cat, embedding_dim]
    dense = []
    if numbers is not None:
        dense = [MLP(bottom_hidden_units, embedding_dim, name="bottom_mlp")(numbers)]
        row = keras.layers.Reshape((1, embedding_dim), name="as_feature")(dense[0])
        x = keras.layers.Concatenate(axis=1, name="features")([row, x])
    x = DotProductInteraction(name="interaction")(x)
    if dense:
        x = keras.layers.Concatenate(name="dense_and_pairs")([*dense, x])
    x = MLP(top_hidden_units, name="top_mlp")(x)
    return keras.Model(inputs, _probability(x), name=name)


def movielens_network(
    schema: Any, hidden_units: Sequence[int] = (128, 128, 128), *, name: str = "movielens"
) -> keras.Model:
    """Return the MovieLens network: embeddings side by side, dense layers, sigmoid.

    With the embedding widths of `embedding_dim_for`, MovieLens gives 512 (films) + 512 (users) + 16
    (genres, averaged) = 1040 inputs to the first dense layer.

    Args:
        schema: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out.
        hidden_units: widths of the hidden layers.
        name: of the model.

    Returns:
        A model with a float32 [batch, 1] probability as output, under any dtype policy; it takes
        multi-hot columns as `g__values` and `g__nnzs`.

    Raises:
        ValueError: if a categorical column has no cardinality.

    Example:
        >>> columns = [Column("userId", "categorical", cardinality=100, embedding_dim=8),
        ...            Column("genres", "categorical", multi_hot=True, cardinality=21)]
        >>> movielens_network(columns).get_layer("features").output.shape
        (None, 24)
    """
    features = as_schema(schema).features
    inputs = keras_inputs(features)
    x = DenseFeatures(features, combiner="mean", name="features")(inputs)
    x = MLP(hidden_units, name="mlp")(x)
    return keras.Model(inputs, _probability(x), name=name)


def _probability(x: Any) -> Any:
    """Return the output layer, float32: 16 bits cannot tell probabilities near 1 apart."""
    return keras.layers.Dense(1, activation="sigmoid", dtype="float32", name="probability")(x)


def _with_width(features: Schema, embedding_dim: int) -> Schema:
    """Return the columns with all embeddings of one width."""
    return Schema(
        Column(c.name, c.role, c.dtype, c.multi_hot, c.cardinality, embedding_dim)
        if c.role == "categorical"
        else c
        for c in features
    )


def _ids_and_numbers(
    features: Schema, inputs: dict[str, Any], batch_layout: str
) -> tuple[Any, Any]:
    """Return the embedding layer's input, and the numbers as [batch, n_cont] or None."""
    if batch_layout == "stacked":
        return inputs.get("categorical"), inputs.get("continuous")
    ids = {name: inputs[name] for name in features.categorical.names}
    numbers = [inputs[name] for name in features.continuous.names]
    if len(numbers) > 1:
        return ids, keras.layers.Concatenate(name="continuous")(numbers)
    return ids, numbers[0] if numbers else None
