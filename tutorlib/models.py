"""Models: whole networks of a Schema, as functional Keras models.

Belongs here: how layers are put together. Does not belong here: the layers (`layers/`), or
compiling and training. Each function takes a Schema and returns an uncompiled `keras.Model` whose
inputs match the loader's batches, so that `summary`, `plot_model`, `.keras` files and `export`
work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tutorlib.checks import check_choice
from tutorlib.layers import (
    MLP,
    Cross,
    DenseFeatures,
    DotProductInteraction,
    FactorizationMachine,
    FusedEmbedding,
    LinearFeatures,
    NumberEmbedding,
    keras_inputs,
)
from tutorlib.schema import Column, Schema, as_schema

STRUCTURES = ("stacked", "parallel")


def DLRM(
    schema: Any,
    embedding_dim: int = 8,
    bottom_hidden_units: Sequence[int] = (1024, 512, 256),
    top_hidden_units: Sequence[int] = (1024, 1024, 512, 256),
    *,
    batch_layout: str = "columns",
    pad_to: int = 1,
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
        pad_to: see `DotProductInteraction`.
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
    x = DotProductInteraction(pad_to=pad_to, name="interaction")(x)
    if dense:
        x = keras.layers.Concatenate(name="dense_and_pairs")([*dense, x])
    x = MLP(top_hidden_units, name="top_mlp")(x)
    return keras.Model(inputs, _probability(x), name=name)


def WideAndDeep(
    schema: Any,
    hidden_units: Sequence[int] = (256, 128, 64),
    *,
    wide_schema: Any = None,
    combiner: str = "mean",
    multi_hot: str = "nnzs",
    name: str = "wide_and_deep",
) -> keras.Model:
    """Return a Wide & Deep network: a weight for every id and number, and an MLP over embeddings.

    The wide side remembers what each value meant, the deep side generalises. Their sum is the
    logit. The wide side starts at zero.

    Args:
        schema: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out.
        hidden_units: hidden widths of the deep side.
        wide_schema: columns of the wide side, in the paper the crossed ones; None for `schema`.
        combiner: how the deep side makes one vector of a list of ids.
        multi_hot: form of multi-hot columns, as `keras_inputs` names them.
        name: of the model.

    Returns:
        A model with a float32 [batch, 1] probability as output, under any dtype policy.

    Raises:
        ValueError: if a categorical column has no cardinality, or the two schemas differ in one.

    Example:
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> WideAndDeep(columns, [8]).output_shape
        (None, 1)

    Source: Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, arXiv:1606.07792.
    """
    deep = as_schema(schema).features
    wide = deep if wide_schema is None else as_schema(wide_schema).features
    differing = [c.name for c in wide if c.name in deep and deep[c.name] != c]
    if differing:
        raise ValueError(f"schema and wide_schema describe the columns {differing} differently")
    both = Schema([*deep, *(column for column in wide if column.name not in deep)])
    inputs = keras_inputs(both, multi_hot=multi_hot)
    x = DenseFeatures(deep, combiner, name="deep_features")(inputs)
    x = MLP(hidden_units, name="deep_mlp")(x)
    return _sum_of_logits(inputs, [LinearFeatures(wide, name="wide")(inputs), _logit(x)], name)


def DeepFM(
    schema: Any,
    embedding_dim: int = 16,
    hidden_units: Sequence[int] = (256, 128, 64),
    *,
    batch_layout: str = "columns",
    name: str = "deepfm",
) -> keras.Model:
    """Return a DeepFM: weights, all pairs of features and an MLP, over the same embeddings.

    A number is a feature whose vector is scaled by it. Nothing has to be crossed by hand, for the
    factorization machine takes all pairs.

    Args:
        schema: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out, and
            the columns' own embedding widths are replaced by `embedding_dim`.
        embedding_dim: width of every feature's vector.
        hidden_units: hidden widths of the deep side.
        batch_layout: "columns" (dict of [batch, 1]) or "stacked" ({"categorical", "continuous"}).
        name: of the model.

    Returns:
        A model with a float32 [batch, 1] probability as output, under any dtype policy.

    Raises:
        ValueError: if there are fewer than two features, no categorical column, a multi-hot one, or
            one without a cardinality.

    Example:
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> DeepFM(columns, 4, [8]).output_shape
        (None, 1)

    Source: Guo et al., DeepFM, 2017, arXiv:1703.04247.
    """
    features = _with_width(as_schema(schema).features, embedding_dim)
    single = FusedEmbedding(
        _with_width(features, 1), "concat", embeddings_initializer="zeros", name="weights_of_ids"
    )
    inputs = keras_inputs(features, batch_layout=batch_layout)
    ids, numbers = _ids_and_numbers(features, inputs, batch_layout)
    x = FusedEmbedding(features, name="embeddings")(ids)
    logits = [keras.ops.sum(single(ids), axis=1, keepdims=True)]
    if numbers is not None:
        scaled = NumberEmbedding(embedding_dim, name="numbers")(numbers)
        x = keras.layers.Concatenate(axis=1, name="features")([x, scaled])
        logits.append(_logit(numbers, "weights_of_numbers"))
    logits.append(FactorizationMachine(name="pairs")(x))
    x = MLP(hidden_units, name="deep_mlp")(keras.layers.Flatten(name="flat")(x))
    return _sum_of_logits(inputs, [*logits, _logit(x)], name)


def DCNv2(
    schema: Any,
    cross_layers: int = 3,
    hidden_units: Sequence[int] = (256, 128),
    *,
    projection_dim: int | None = None,
    structure: str = "stacked",
    batch_layout: str = "columns",
    name: str = "dcn_v2",
) -> keras.Model:
    """Return a DCN v2: cross layers over embeddings and numbers, with an MLP behind or beside them.

    Args:
        schema: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out, and
            embeddings have the columns' own widths.
        cross_layers: how many; n of them give products of up to n + 1 inputs.
        hidden_units: hidden widths of the MLP.
        projection_dim: rank of the cross layers' matrices, or None for full ones.
        structure: "stacked" (the MLP takes what the cross layers give) or "parallel" (both take the
            inputs).
        batch_layout: "columns" (dict of [batch, 1]) or "stacked" ({"categorical", "continuous"}).
        name: of the model.

    Returns:
        A model with a float32 [batch, 1] probability as output, under any dtype policy.

    Raises:
        ValueError: if `structure` is unknown, if there is no categorical column, a multi-hot one,
            or one without a cardinality.

    Example:
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> DCNv2(columns, 2, [8], structure="parallel").output_shape
        (None, 1)

    Source: Wang et al., DCN V2, 2020, arXiv:2008.13535.
    """
    check_choice("structure", structure, STRUCTURES)
    features = as_schema(schema).features
    embeddings = FusedEmbedding(features, "concat", name="embeddings")
    inputs = keras_inputs(features, batch_layout=batch_layout)
    ids, numbers = _ids_and_numbers(features, inputs, batch_layout)
    x = embeddings(ids)  # [batch, sum of widths]
    if numbers is not None:
        x = keras.layers.Concatenate(name="features")([numbers, x])
    crossed = Cross(cross_layers, projection_dim, name="cross")(x)
    mlp = MLP(hidden_units, name="deep_mlp")
    if structure == "stacked":
        return keras.Model(inputs, _probability(mlp(crossed)), name=name)
    x = keras.layers.Concatenate(name="both")([crossed, mlp(x)])
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

    Source: the tutorial's own, after the predecessor's MovieLens example.
    """
    features = as_schema(schema).features
    inputs = keras_inputs(features)
    x = DenseFeatures(features, combiner="mean", name="features")(inputs)
    x = MLP(hidden_units, name="mlp")(x)
    return keras.Model(inputs, _probability(x), name=name)


def _probability(x: Any) -> Any:
    """Return the output layer, float32: 16 bits cannot tell probabilities near 1 apart."""
    return keras.layers.Dense(1, activation="sigmoid", dtype="float32", name="probability")(x)


def _logit(x: Any, name: str = "deep") -> Any:
    """Return one number a row, float32."""
    return keras.layers.Dense(1, dtype="float32", name=name)(x)


def _sum_of_logits(inputs: dict[str, Any], logits: list[Any], name: str) -> keras.Model:
    """Return the model whose output is the sigmoid of a sum, float32."""
    x = keras.layers.Add(dtype="float32", name="logit")(logits)
    x = keras.layers.Activation("sigmoid", dtype="float32", name="probability")(x)
    return keras.Model(inputs, x, name=name)


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
