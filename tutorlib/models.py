"""Models: whole networks over a Schema, as functional Keras models.

Each function returns an uncompiled `keras.Model` whose inputs match the loader's batches.
`summary`, `plot_model`, `.keras` files and `export` work on all of them.
"""

from __future__ import annotations

import dataclasses
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
from tutorlib.schema import Schema, as_schema

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
    """Return a DLRM: a bottom MLP over the numbers, dot products of all pairs, a top MLP.

    The pairs are those of the embeddings and the bottom MLP's output. As in the paper, `bottom` is
    next to the input and `top` comes after the interaction; this library's predecessor used the
    names the other way round.

    All embedding tables are one variable (`FusedEmbedding`). Both batch layouts have the same
    weights in the same order, so `set_weights(get_weights())` transfers them.

    Args:
        schema: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out, and
            `embedding_dim` replaces the columns' own embedding widths.
        embedding_dim: width of every embedding and of the bottom MLP's output, at least 1.
        bottom_hidden_units: hidden widths of the MLP over the continuous columns.
        top_hidden_units: hidden widths of the MLP over the interactions.
        batch_layout: "columns" (dict of [batch, 1]) or "stacked" ({"categorical", "continuous"}).
        pad_to: the interactions are padded with zeros to a multiple of this width, at least 1; see
            `DotProductInteraction`.
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
    x = DotProductInteraction(pad_to=pad_to, name="interaction")(x)  # [batch, pairs]
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
    """Return a Wide & Deep network: `LinearFeatures` plus an MLP over embeddings.

    The wide side memorises single values and crosses, the deep side generalises; the sum of both is
    the logit. The wide side starts at zero.

    Args:
        schema: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out.
        hidden_units: hidden widths of the deep side.
        wide_schema: columns of the wide side, in the paper the crossed ones; None for `schema`.
        combiner: how the deep side combines a list of ids: "mean", "sum" or "sqrtn".
        multi_hot: the loader's form of multi-hot columns: "nnzs", "offsets", "ragged" or "padded".
        name: of the model.

    Returns:
        A model with a float32 [batch, 1] probability as output, under any dtype policy.

    Raises:
        ValueError: if a categorical column has no cardinality, or a column differs between the two
            schemas.

    Example:
        >>> from tutorlib import Column
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> WideAndDeep(columns, [8]).output_shape
        (None, 1)

    Source: Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, arXiv:1606.07792.
    """
    deep = as_schema(schema).features
    wide = deep if wide_schema is None else as_schema(wide_schema).features
    differing = [c.name for c in wide if c.name in deep and deep[c.name] != c]
    if differing:
        raise ValueError(
            f"schema and wide_schema describe the columns {differing} differently. Take both from "
            "one schema, e.g. with Schema.select."
        )
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
    """Return a DeepFM: a linear part, a factorization machine and an MLP, over shared embeddings.

    A number is a feature too: a trained vector, scaled by the number. The factorization machine
    takes all pairs of features, so none has to be crossed by hand.

    Args:
        schema: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out, and
            `embedding_dim` replaces the columns' own embedding widths.
        embedding_dim: width of every feature's vector, at least 1.
        hidden_units: hidden widths of the deep side.
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
    """Return a DCN v2: cross layers over embeddings and numbers, and an MLP in series or parallel.

    Args:
        schema: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out, and
            embeddings have the columns' own widths.
        cross_layers: number of cross layers, at least 1; n of them give products of up to n + 1
            inputs.
        hidden_units: hidden widths of the MLP.
        projection_dim: rank of the cross layers' matrices, at least 1; None for full matrices.
        structure: "stacked" (the MLP takes the output of the cross layers) or "parallel" (both
            take the features).
        batch_layout: "columns" (dict of [batch, 1]) or "stacked" ({"categorical", "continuous"}).
        name: of the model.

    Returns:
        A model with a float32 [batch, 1] probability as output, under any dtype policy.

    Raises:
        ValueError: if `structure` is unknown, if there is no categorical column, a multi-hot one,
            or one without a cardinality.

    Example:
        >>> from tutorlib import Column
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
    """Return the MovieLens network: concatenated embeddings, an MLP, a sigmoid.

    With the default embedding widths (`embedding_dim_for`), MovieLens gives the MLP 1040 inputs:
    512 for the film, 512 for the user, and 16 for the mean of the genres.

    Args:
        schema: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out.
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
    features = as_schema(schema).features
    inputs = keras_inputs(features)
    x = DenseFeatures(features, combiner="mean", name="features")(inputs)
    x = MLP(hidden_units, name="mlp")(x)
    return keras.Model(inputs, _probability(x), name=name)


def _probability(x: Any) -> Any:
    """Return the output layer, float32: 16 bits cannot tell probabilities near 1 apart."""
    return keras.layers.Dense(1, activation="sigmoid", dtype="float32", name="probability")(x)


def _logit(x: Any, name: str = "deep") -> Any:
    """Return one linear output per row, float32 [batch, 1]."""
    return keras.layers.Dense(1, dtype="float32", name=name)(x)


def _sum_of_logits(inputs: dict[str, Any], logits: list[Any], name: str) -> keras.Model:
    """Return the model whose output is the sigmoid of a sum, float32."""
    x = keras.layers.Add(dtype="float32", name="logit")(logits)
    x = keras.layers.Activation("sigmoid", dtype="float32", name="probability")(x)
    return keras.Model(inputs, x, name=name)


def _with_width(features: Schema, embedding_dim: int) -> Schema:
    """Return the columns with all embeddings of one width."""
    return Schema(
        dataclasses.replace(c, embedding_dim=embedding_dim) if c.role == "categorical" else c
        for c in features
    )


def _ids_and_numbers(
    features: Schema, inputs: dict[str, Any], batch_layout: str
) -> tuple[Any, Any]:
    """Return the input of the embedding layer, and the numbers [batch, n_cont] or None."""
    if batch_layout == "stacked":
        return inputs.get("categorical"), inputs.get("continuous")
    ids = {name: inputs[name] for name in features.categorical.names}
    numbers = [inputs[name] for name in features.continuous.names]
    if len(numbers) > 1:
        return ids, keras.layers.Concatenate(name="continuous")(numbers)
    return ids, numbers[0] if numbers else None
