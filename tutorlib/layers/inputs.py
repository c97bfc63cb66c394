"""Inputs: `keras.Input`s that match a loader's batches, and lists padded to few lengths for XLA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from tutorlib.checks import check_choice
from tutorlib.keras_bridge.backend import min_int_dtype_of_models
from tutorlib.layers.columns import read_columns, refuse_multi_hot
from tutorlib.layers.rows import INT32_IDS
from tutorlib.loader.list_lengths import LENGTHS, bucket_length
from tutorlib.schema import BATCH_LAYOUTS, MULTI_HOT_FORMS, Column, Schema


def keras_inputs(
    columns: Any, *, batch_layout: str = "columns", multi_hot: str = "nnzs"
) -> dict[str, Any]:
    """Return a `keras.Input` for each tensor of a loader's batch, for a functional model.

    Ids are int32 where the cardinality fits and int64 otherwise; Keras casts what it is fed. If
    TensorFlow sees a GPU, all ids are int64: it keeps int32 tensors of GPU computations in host
    memory.

    Args:
        columns: Schema, list of `Column`, or list of `tf.feature_column`. Labels and weights are
            left out.
        batch_layout: the loader's: "columns" for one input per column, "stacked" for one input per
            role.
        multi_hot: the loader's form of multi-hot columns: "nnzs", "offsets", "ragged" or "padded".

    Returns:
        For "columns": {name: Input [batch, 1]}. A multi-hot column `g` gives, by form,
        {`g__values` [nnz, 1], `g__nnzs` [batch, 1]}, {`g__values` [nnz], `g__offsets` [batch + 1]},
        or {`g` [batch, None]}. A column of vectors of k numbers gives {name: Input [batch, k]}. For
        "stacked": {"categorical": [batch, n_cat], "continuous": [batch, n_cont]} in the order of
        the schema, where a vector has k neighbouring columns, without a role that has no columns.
        Numbers are float32.

    Raises:
        ValueError: if a choice is unknown, or `batch_layout` is "stacked" and a column is
            multi-hot.

    Example:
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> inputs = keras_inputs(columns)
        >>> {name: tuple(x.shape) for name, x in inputs.items()}
        {'C1': (None, 1), 'I1': (None, 1)}
    """
    check_choice("batch_layout", batch_layout, BATCH_LAYOUTS)
    check_choice("multi_hot", multi_hot, MULTI_HOT_FORMS)
    features, _, weights = read_columns(columns)
    legacy_weights = [
        Column(name, "continuous", "float32", multi_hot=True)
        for name in weights.values()
        if name not in features
    ]
    features = Schema([*features, *legacy_weights])
    if batch_layout == "stacked":
        return _stacked_inputs(features)
    inputs: dict[str, Any] = {}
    for column in features:
        if column.multi_hot:
            inputs |= _multi_hot_inputs(column, multi_hot)
        else:
            inputs[column.name] = keras.Input(
                (column.length or 1,), name=column.name, dtype=_input_dtype(column)
            )
    return inputs


def _stacked_inputs(features: Schema) -> dict[str, Any]:
    """Return the inputs of a stacked batch, one per role that has columns."""
    refuse_multi_hot(features, "batch_layout='stacked'")
    inputs = {}
    for role in ("categorical", "continuous"):
        columns = features.with_role(role)
        if len(columns):
            dtypes = {_input_dtype(column) for column in columns}
            dtype = "int64" if "int64" in dtypes else dtypes.pop()
            width = sum(column.length or 1 for column in columns)
            inputs[role] = keras.Input((width,), name=role, dtype=dtype)
    return inputs


def _multi_hot_inputs(column: Column, form: str) -> dict[str, Any]:
    """Return the inputs of one multi-hot column in the given form."""
    name, dtype = column.name, _input_dtype(column)
    if form in ("nnzs", "offsets"):
        shape = (1,) if form == "nnzs" else ()
        dtypes = {f"{name}__values": dtype, f"{name}__{form}": min_int_dtype_of_models()}
        return {key: keras.Input(shape, name=key, dtype=dtypes[key]) for key in dtypes}
    return {name: keras.Input((None,), name=name, dtype=dtype, ragged=form == "ragged")}


def _input_dtype(column: Column) -> str:
    if column.role != "categorical":
        return "float32"
    narrow = (column.cardinality or INT32_IDS) < INT32_IDS
    return min_int_dtype_of_models() if narrow else "int64"


def bucketed(inputs: Any, *others: Any) -> Any:
    """Return a batch in which every `g__values` is padded to a `bucket_length`.

    XLA and JAX compile a step again for every new shape, and the number of values differs from
    batch to batch. Map this function over batches of other readers. It copies every array; a
    `KerasSequenceLoader` with `bucket_lists=True` gives the same batches without a copy.

    Padding repeats the batch's last value: any other might be an id that the batch does not hold,
    and `RowSparseAdam` updates each row that a batch names. The layers ignore the padding.

    Args:
        inputs: dict of tensors or arrays, as the loader gives it.
        *others: labels and weights, which are passed through.

    Returns:
        The dict, or a tuple of it and the others. `g__values` has 64, 72, 80, ..., 128, 144, ...
        values, at most an eighth more than before once there are 64; an empty one is padded with
        zeros.

    Raises:
        ValueError: if `inputs` is not a dict.

    Example:
        >>> batch = {"g__values": np.array([[3], [1]]), "g__nnzs": np.array([[2]])}
        >>> bucketed(batch)["g__values"].shape
        (64, 1)
        >>> dataset = parsed_batches("data/records").map(bucketed)  # doctest: +SKIP
    """
    if not isinstance(inputs, Mapping):
        raise ValueError(f"bucketed needs a dict of columns, got {type(inputs).__name__}")
    padded = {
        name: _padded(values) if name.endswith("__values") else values
        for name, values in inputs.items()
    }
    return (padded, *others) if others else padded


def _padded(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        surplus = bucket_length(len(values)) - len(values)
        widths = [[0, surplus], *[[0, 0]] * (values.ndim - 1)]
        return np.pad(values, widths, mode="edge" if len(values) else "constant")
    size = ops.shape(values)[0]
    if isinstance(size, int):
        surplus = bucket_length(size) - size
    else:  # in tf.data, where the length is a tensor
        lengths = ops.convert_to_tensor(LENGTHS)
        size = ops.cast(size, "int64")
        surplus = ops.take(lengths, ops.searchsorted(lengths, size[None])[0]) - size
    dtype = keras.backend.standardize_dtype(values.dtype)
    last = ops.sum(values[-1:], axis=0, keepdims=True)  # 0 if there is no value
    return ops.concatenate([values, ops.repeat(ops.cast(last, dtype), surplus, axis=0)], axis=0)
