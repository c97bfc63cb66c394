"""Raw tensors in, batches out: the tensors in which columns enter and leave a served graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tutorlib.inference import element_type, is_time
from tutorlib.loader.layout import batch_dtype
from tutorlib.schema import Column, Schema
from tutorlib.serving.base import ServedColumn, require

Types = Mapping[str, tuple[str, bool]]  # {column: (NumPy name or "string", whether it holds lists)}


def raw_specs(types: Types, nullable: Iterable[str]) -> dict[str, tf.TensorSpec]:
    """Return {name: TensorSpec} of the raw tensors of some columns: [None, k] or of any shape.

    Raises:
        ValueError: if a nullable column is not a raw column, or two tensors have the same name.
    """
    nullable = list(nullable)
    unknown = [name for name in nullable if name not in types]
    if unknown:
        raise ValueError(f"nullable: {unknown} are not raw columns; the layer takes {[*types]}")
    specs: dict[str, tf.TensorSpec] = {}
    for name, (type_name, lists) in types.items():
        dtype, length = element_type(type_name)
        parts = {f"{name}__values": dtype, f"{name}__nnzs": "int32"} if lists else {name: dtype}
        if name in nullable:
            parts[f"{name}__valid"] = "bool"
        for part, kind in parts.items():
            if part in specs:
                raise ValueError(f"two raw tensors would be called {part!r}; rename a column")
            shape = None if length is None else [None, length]
            specs[part] = tf.TensorSpec(shape, tf.as_dtype(tensor_dtype(kind)), name=part)
    return specs


def tensor_dtype(dtype: str) -> str:
    """Return the dtype of a raw tensor: int64 for dates and durations, in the column's unit."""
    return "int64" if is_time(dtype) else dtype


def lists_as_tensors(types: Types, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with Python lists as tensors, lists of lists as RaggedTensors.

    NumPy's dates become the integers that they count.
    """
    if not isinstance(inputs, Mapping):
        raise TypeError(f"a served workflow takes a dict of columns, got {type(inputs).__name__}")
    tensors = {}
    for name, value in inputs.items():
        if isinstance(value, list):
            value = _as_tensor(types, name, value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "mM" and name in types:
            value = value.astype(types[name][0]).view(np.int64)
        tensors[name] = value
    return tensors


def _as_tensor(types: Types, name: str, values: list[Any]) -> Any:
    kind, lists = types.get(name.removesuffix("__values"), ("", False))
    dtype = tensor_dtype(element_type(kind)[0]) if kind else None
    try:
        if lists and name in types:
            return tf.ragged.constant(values, dtype, ragged_rank=1)
        return tf.constant(values, dtype)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"raw column {name!r} cannot be made of this list: {error} For a null, give any value "
            f"of the column's type, and False in its place in {name}__valid."
        ) from error


def read_columns(types: Types, inputs: Mapping[str, Any]) -> dict[str, ServedColumn]:
    """Return the raw columns that the inputs hold.

    ValueError if one is missing or of another type; when the graph runs, InvalidArgumentError if
    shapes or list lengths do not fit.
    """
    columns = {name: _read_column(types, name, inputs) for name in types}
    _require_equal_rows(columns)
    return columns


def _read_column(types: Types, name: str, inputs: Mapping[str, Any]) -> ServedColumn:
    (dtype, length), lists = element_type(types[name][0]), types[name][1]
    values, splits = _list_parts(name, inputs) if lists else (inputs.get(name), None)
    if values is None or (lists and splits is None):
        as_lists = f"{name}__values with {name}__nnzs or {name}__offsets, or a RaggedTensor"
        need = as_lists if lists else name
        raise ValueError(
            f"raw column {name!r} is missing: give {need}. The workflow takes {[*types]}, got "
            f"{sorted(inputs)}"
        )
    values = _flat_in_dtype(name, values, tensor_dtype(dtype), length or 1)
    if length is not None:  # in the graph, vectors are lists
        splits = tf.range(tf.size(values, tf.int64) // length + 1) * length
    valid = inputs.get(f"{name}__valid")
    if valid is not None:
        valid = _flat_in_dtype(f"{name}__valid", valid, "bool", length or 1)
        rule = f"{name}__valid must have the shape of the values of {name!r}"
        require(tf.size(valid) == tf.size(values), rule)
    column = ServedColumn(values, None, splits).with_values(values, valid)
    return dataclasses.replace(column, dtype=dtype) if is_time(dtype) else column


def _list_parts(name: str, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return (values, row splits) of a column of lists in any of its forms; None where missing."""
    if isinstance(inputs.get(name), tf.RaggedTensor):
        return inputs[name].values, tf.cast(inputs[name].row_splits, tf.int64)
    values, nnzs, offsets = (inputs.get(f"{name}__{k}") for k in ("values", "nnzs", "offsets"))
    if nnzs is not None:
        return values, tf.concat([[0], tf.cumsum(_flat(tf.cast(nnzs, tf.int64)))], axis=0)
    return values, None if offsets is None else _flat(tf.cast(offsets, tf.int64))


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tensor, [-1])


def _flat_in_dtype(name: str, values: Any, dtype: str, width: int) -> tf.Tensor:
    """Return a raw tensor, [n, width] or [n], flat in the dtype that the workflow was fitted on."""
    values = tf.convert_to_tensor(values)
    got = values.dtype.name
    fits = got == dtype or ("string" not in (got, dtype) and np.can_cast(got, dtype, "safe"))
    if not fits or (got == "bool") != (dtype == "bool"):
        raise ValueError(
            f"raw column {name!r}: the workflow was fitted on {dtype}, got {got}. Cast it before."
        )
    shapes = "[batch] or [batch, 1]" if width == 1 else f"[batch, {width}]"
    rule = f"raw column {name!r} must have the shape {shapes}"
    require(tf.reduce_prod(tf.shape(values)[1:]) == width, rule)
    return tf.cast(_flat(values), dtype)


def _require_equal_rows(columns: Mapping[str, ServedColumn]) -> None:
    """Require as many rows of each column, and lists that fit their values."""
    first = None
    for name, column in columns.items():
        values, splits = column.values, column.splits
        rows = tf.size(values) if splits is None else tf.size(splits) - 1
        first = (name, rows) if first is None else first
        rule = f"raw columns {first[0]!r} and {name!r} must have the same number of rows"
        require(rows == first[1], rule)
        if splits is not None:
            rule = f"raw column {name!r}: the lengths of its lists must add up to its values"
            require((splits[0] == 0) & (splits[-1] == tf.size(values, tf.int64)), rule)
            rule = f"raw column {name!r}: no list can have a negative length"
            require(tf.reduce_all(splits[1:] >= splits[:-1]), rule)


def in_batch_dtype(column: Column, made: ServedColumn) -> ServedColumn:
    """Return a column in the dtype that it has in a loader's batch; strings stay.

    When the graph runs, InvalidArgumentError for a value that this dtype cannot hold.
    """
    values = made.values
    if values.dtype == tf.string:
        return made
    cast = tf.cast(values, tf.as_dtype(batch_dtype(column)))
    if not np.can_cast(values.dtype.as_numpy_dtype, cast.dtype.as_numpy_dtype):
        if cast.dtype.is_floating:
            fits = tf.math.is_finite(cast) | ~tf.math.is_finite(tf.cast(values, tf.float64))
        else:
            fits = (tf.cast(cast, values.dtype) == values) & ((cast < 0) == (values < 0))
        rule = f"column {column.name!r}: a value is too large for {cast.dtype.name}, its dtype in a"
        require(tf.reduce_all(fits), f"{rule} batch. Scale it (LogOp, Normalize) or Clip it.")
    return ServedColumn(cast, None, made.splits)


def columns_batch(
    columns: Mapping[str, ServedColumn], schema: Schema, multi_hot: str
) -> dict[str, Any]:
    """Return a batch with `batch_layout="columns"`: [batch, k], lists in the form `multi_hot`."""
    batch: dict[str, Any] = {}
    for name, column in columns.items():
        values, splits = column.values, column.splits
        if not schema[name].multi_hot or splits is None:
            batch[name] = tf.reshape(values, [-1, schema[name].length or 1])
        elif multi_hot == "nnzs":
            nnzs = tf.cast(splits[1:] - splits[:-1], tf.int32)
            batch |= {f"{name}__values": values[:, None], f"{name}__nnzs": nnzs[:, None]}
        elif multi_hot == "offsets":
            batch |= {f"{name}__values": values, f"{name}__offsets": tf.cast(splits, tf.int32)}
        else:
            ragged = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
            padding = -1 if values.dtype.is_integer else 0  # as in the loader
            padded = multi_hot == "padded"
            batch[name] = ragged.to_tensor(tf.cast(padding, values.dtype)) if padded else ragged
    return batch


def stacked_batch(columns: Mapping[str, ServedColumn], schema: Schema) -> dict[str, tf.Tensor]:
    """Return a batch with `batch_layout="stacked"`: a matrix [batch, columns] for each role."""
    batch = {}
    for role in ("categorical", "continuous"):
        parts: Sequence[tf.Tensor] = [
            tf.reshape(columns[column.name].values, [-1, column.length or 1])
            for column in schema.with_role(role)
        ]
        if parts:
            dtype = max((part.dtype for part in parts), key=lambda dtype: dtype.size)
            batch[role] = tf.concat([tf.cast(part, dtype) for part in parts], axis=1)
    return batch
