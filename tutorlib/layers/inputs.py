"""Inputs: `keras.Input`s that match a loader's batches.

Does not belong here: what the layers do with them.
"""

from __future__ import annotations

from typing import Any

import keras

from tutorlib.checks import check_choice
from tutorlib.keras_bridge import min_int_dtype_of_models
from tutorlib.layers.checks import refuse_multi_hot
from tutorlib.layers.columns import read_columns, vector_length
from tutorlib.schema import BATCH_LAYOUTS, MULTI_HOT_FORMS, Column, Schema

INT32_IDS = 2**31


def keras_inputs(
    columns: Any, *, batch_layout: str = "columns", multi_hot: str = "nnzs"
) -> dict[str, Any]:
    """Return `keras.Input`s that match a loader's batches, for a functional model.

    Ids are declared int32 where the cardinality fits and int64 otherwise; Keras casts what comes.
    TensorFlow keeps int32 of a GPU's computations in host memory, so all are int64 where it has a
    GPU.

    Args:
        columns: Schema, list of `Column`, or list of `tf.feature_column`; labels are left out.
        batch_layout: "columns" (one input per column) or "stacked" (two inputs), as the loader's.
        multi_hot: form of multi-hot columns, "nnzs", "offsets", "ragged" or "padded", as the
            loader's.

    Returns:
        With "columns": {name: Input [batch, 1]}, and for a multi-hot column `g` {`g__values` [nnz,
        1], `g__nnzs` [batch, 1]}, {`g__values` [nnz], `g__offsets` [batch + 1]}, or {`g` [batch,
        None]}; [batch, n] for a padded column of n numbers a row. With "stacked": {"categorical":
        [batch, n_cat], "continuous": [batch, n_cont]} in the order of the schema.

    Raises:
        ValueError: if a choice is unknown, or a multi-hot column shall be stacked.

    Example:
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> inputs = keras_inputs(columns)
        >>> {name: tuple(x.shape) for name, x in inputs.items()}
        {'C1': (None, 1), 'I1': (None, 1)}
    """
    features, _, weights = read_columns(columns)
    unnamed = [name for name in weights.values() if name not in features]
    more = [Column(name, "continuous", "float32", multi_hot=True) for name in unnamed]
    features = Schema([*features, *more])
    check_choice("batch_layout", batch_layout, BATCH_LAYOUTS)
    check_choice("multi_hot", multi_hot, MULTI_HOT_FORMS)
    if batch_layout == "stacked":
        return _stacked_inputs(features)
    inputs = {}
    for column in features:
        if column.multi_hot:
            inputs |= _multi_hot_inputs(column, multi_hot)
        else:
            inputs[column.name] = keras.Input((1,), name=column.name, dtype=_input_dtype(column))
    return inputs


def _stacked_inputs(features: Schema) -> dict[str, Any]:
    """Return the two inputs of a stacked batch; a role without columns has none."""
    refuse_multi_hot(features, "batch_layout='stacked'")
    inputs = {}
    if len(features.categorical):
        dtypes = {_input_dtype(column) for column in features.categorical}
        dtype = "int64" if "int64" in dtypes else "int32"
        inputs["categorical"] = keras.Input(
            (len(features.categorical),), name="categorical", dtype=dtype
        )
    if len(features.continuous):
        inputs["continuous"] = keras.Input(
            (len(features.continuous),), name="continuous", dtype="float32"
        )
    return inputs


def _multi_hot_inputs(column: Column, form: str) -> dict[str, Any]:
    """Return the inputs of one multi-hot column in the given form."""
    name, dtype = column.name, _input_dtype(column)
    values, nnzs, offsets = f"{name}__values", f"{name}__nnzs", f"{name}__offsets"
    if form == "nnzs":
        return {
            values: keras.Input((1,), name=values, dtype=dtype),
            nnzs: keras.Input((1,), name=nnzs, dtype=min_int_dtype_of_models()),
        }
    if form == "offsets":
        return {
            values: keras.Input((), name=values, dtype=dtype),
            offsets: keras.Input((), name=offsets, dtype=min_int_dtype_of_models()),
        }
    length = vector_length(column) if form == "padded" else None
    return {name: keras.Input((length,), name=name, dtype=dtype, ragged=form == "ragged")}


def _input_dtype(column: Column) -> str:
    if column.role != "categorical":
        return "float32"
    narrow = (column.cardinality or INT32_IDS) < INT32_IDS
    return min_int_dtype_of_models() if narrow else "int64"
