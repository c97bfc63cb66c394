"""Models: whole networks over a Schema, as functional Keras models.

Each function returns an uncompiled `keras.Model` whose inputs match the loader's batches.
`summary`, `plot_model`, `.keras` files and `export` work on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras

from tutorlib.layers import (
    MLP,
    DenseFeatures,
    DotProductInteraction,
    FusedEmbedding,
    LinearFeatures,
    keras_inputs,
)
from tutorlib.layers.features import Columns, features_of
from tutorlib.layers.tables import Tensor


def DLRM(
    schema: Columns,
    embedding_dim: int = 8,
    bottom_hidden_units: Sequence[int] = (1024, 512, 256),
    top_hidden_units: Sequence[int] = (1024, 1024, 512, 256),
    *,
    batch_layout: str = "columns",
    name: str = "dlrm",
) -> keras.Model:
    """Return a DLRM: a bottom MLP over the numbers, dot products of all pairs, a top MLP.

    The pairs are those of the embeddings and the bottom MLP's output. As in the paper, `bottom` is
    next to the input and `top` comes after the interaction; this library's predecessor used the
    names the other way round.

    All embedding tables are one variable (`FusedEmbedding`). Both batch layouts have the same
    weights in the same order, so `set_weights(get_weights())` transfers them.

    Args:
        schema: Schema, or list of `Column`; labels are left out, and
            `embedding_dim` replaces the columns' own embedding widths.
        embedding_dim: width of every embedding and of the bottom MLP's output, at least 1.
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
        >>> from tutorlib import Column
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> DLRM(columns, 4, [8], [8], batch_layout="stacked").output_shape
        (None, 1)

    Source: Naumov et al., Deep Learning Recommendation Model, 2019, arXiv:1906.00091.
    """
    features = features_of(schema)
    for column in features.categorical:
        features = features.replace(column.name, embedding_dim=embedding_dim)
    inputs = keras_inputs(features, batch_layout=batch_layout)
    embeddings = FusedEmbedding(features, name=_apart("embeddings", inputs))
    if batch_layout == "stacked":
        ids = inputs["categorical"]
        numbers = [inputs["continuous"]] if "continuous" in inputs else []
    else:
        ids = {name: inputs[name] for name in features.categorical.names}
        numbers = [inputs[name] for name in features.continuous.names]
    x = embeddings(ids)  # [batch, n_cat, embedding_dim]
    dense = []
    if numbers:
        bottom = _concatenated(numbers, _apart("continuous", inputs))
        mlp = MLP(bottom_hidden_units, embedding_dim, name=_apart("bottom_mlp", inputs))
        dense = [mlp(bottom)]
        reshape = keras.layers.Reshape((1, embedding_dim), name=_apart("as_feature", inputs))
        x = _concatenated([reshape(dense[0]), x], _apart("features", inputs), axis=1)
    x = DotProductInteraction(name=_apart("interaction", inputs))(x)
    x = _concatenated([*dense, x], _apart("dense_and_pairs", inputs))
    x = MLP(top_hidden_units, name=_apart("top_mlp", inputs))(x)
    return keras.Model(inputs, _probability(x, inputs), name=name)


def WideAndDeep(
    schema: Columns,
    hidden_units: Sequence[int] = (256, 128, 64),
    *,
    combiner: str = "mean",
    multi_hot: str = "nnzs",
    name: str = "wide_and_deep",
) -> keras.Model:
    """Return a Wide & Deep network: `LinearFeatures` plus an MLP over embeddings.

    The wide side memorises single values, the deep side generalises; the sum of both is the logit.
    The wide side starts at zero.

    Args:
        schema: Schema, or list of `Column`; labels are left out.
        hidden_units: hidden widths of the deep side.
        combiner: how the deep side combines a list of ids: "mean", "sum" or "sqrtn".
        multi_hot: the loader's form of multi-hot columns: "nnzs" or "padded".
        name: of the model.

    Returns:
        A model with a float32 [batch, 1] probability as output, under any dtype policy.

    Raises:
        ValueError: if a categorical column has no cardinality.

    Example:
        >>> from tutorlib import Column
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> WideAndDeep(columns, [8]).output_shape
        (None, 1)

    Source: Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, arXiv:1606.07792.
    """
    features = features_of(schema)
    inputs = keras_inputs(features, multi_hot=multi_hot)
    wide = LinearFeatures(features, name=_apart("wide", inputs))(inputs)
    x = DenseFeatures(features, combiner, name=_apart("deep_features", inputs))(inputs)
    x = MLP(hidden_units, name=_apart("deep_mlp", inputs))(x)
    deep = keras.layers.Dense(1, dtype="float32", name=_apart("deep", inputs))(x)
    x = keras.layers.Add(dtype="float32", name=_apart("logit", inputs))([wide, deep])
    sigmoid = keras.layers.Activation(
        "sigmoid", dtype="float32", name=_apart("probability", inputs)
    )
    return keras.Model(inputs, sigmoid(x), name=name)


def movielens_network(
    schema: Columns, hidden_units: Sequence[int] = (128, 128, 128), *, name: str = "movielens"
) -> keras.Model:
    """Return the MovieLens network: concatenated embeddings, an MLP, a sigmoid.

    With the default embedding widths (`embedding_dim_for`), MovieLens gives the MLP 1040 inputs:
    512 for the film, 512 for the user, and 16 for the mean of the genres.

    Args:
        schema: Schema, or list of `Column`; labels are left out.
        hidden_units: hidden widths of the MLP.
        name: of the model.

    Returns:
        A model with a float32 [batch, 1] probability as output, under any dtype policy. Its
        multi-hot columns come as `g__values` and `g__nnzs`.

    Raises:
        ValueError: if a categorical column has no cardinality.

    Example:
        >>> from tutorlib import Column
        >>> columns = [Column("userId", "categorical", cardinality=100, embedding_dim=8),
        ...            Column("genres", "categorical", multi_hot=True, cardinality=21)]
        >>> movielens_network(columns).get_layer("features").output.shape
        (None, 24)

    Source: the MovieLens example of this library's predecessor.
    """
    features = features_of(schema)
    inputs = keras_inputs(features)
    x = DenseFeatures(features, combiner="mean", name=_apart("features", inputs))(inputs)
    x = MLP(hidden_units, name=_apart("mlp", inputs))(x)
    return keras.Model(inputs, _probability(x, inputs), name=name)


def _apart(name: str, inputs: Mapping[str, Tensor]) -> str:
    """Return a name for a layer that no input has: inputs have the names of the user's columns."""
    return _apart(f"{name}_", inputs) if name in inputs else name


def _probability(x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output layer, float32: 16 bits cannot tell probabilities near 1 apart."""
    name = _apart("probability", inputs)
    return keras.layers.Dense(1, activation="sigmoid", dtype="float32", name=name)(x)


def _concatenated(tensors: list[Tensor], name: str, axis: int = -1) -> Tensor:
    """Return the tensors side by side; Keras refuses to concatenate a single one."""
    return keras.layers.Concatenate(axis, name=name)(tensors) if len(tensors) > 1 else tensors[0]
