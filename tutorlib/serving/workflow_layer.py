"""Serving: a fitted Workflow as a Keras layer over raw values, and a model saved behind one.

What is saved needs nothing but TensorFlow to be loaded. Belongs here: which columns go in and come
out, in what form and under what names. Does not belong here: what an op does (`serving_numbers.py`,
`serving_keys.py`).

Equal to `Workflow.for_serving().transform` to the last bit, with three exceptions: to TensorFlow,
numbers nearer to zero than 2**-126 (1.2e-38) are zero; a zero that `Clip` has limited at zero may
have the other sign, which NumPy chooses by type and CPU; and float32 logarithms of `LogOp` may
differ by one in the last bit. Of all 3.2 billion float32 numbers above -1, one did (8.472636), on a
CPU with AVX-512 and TensorFlow 2.21; of float64 numbers expect fewer than one in ten million.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.saved_model.experimental import TrackableResource

from tutorlib.layers import BATCH_LAYOUTS, MULTI_HOT_FORMS
from tutorlib.ops import ColumnGroup
from tutorlib.schema import Schema
from tutorlib.serving import keys, numbers  # noqa: F401, they enter their ops
from tutorlib.serving.base import Functions, ServedColumn, ServedOp, require, unserved
from tutorlib.storage import refuse_existing, written_whole


class ServedWorkflow(keras.layers.Layer):
    """A fitted Workflow as a layer: raw values of a batch in, what the model takes out.

    Made by `Workflow.to_keras`. It has no weights and cannot be trained; what the ops have learned
    lies in variables that a SavedModel keeps. It cannot be part of a `.keras` file: save the
    workflow beside the model, or use `export_serving`.

    Args:
        groups: of the workflow.
        types: {raw column: (NumPy name of a value or "string", whether a row holds a list)}.
        schema: of what comes out.
        functions: {name: function of tensors} of the workflow's LambdaOps.
        batch_layout: "columns" or "stacked": see `keras_inputs`.
        multi_hot: "nnzs", "offsets", "ragged" or "padded": see `keras_inputs`.

    Shapes: dict of tensors, [batch] or [batch, 1] in the type of the raw column or a narrower one
        that it holds. A column `g` of lists is a `tf.RaggedTensor` or comes as `g__values` [nnz]
        with `g__nnzs` [batch] or `g__offsets` [batch + 1]. A null is NaN in floating point; in any
        column `c` it is False in a bool tensor `c__valid` of the shape of its values, which may be
        left out if there is no null. -> the batch of a `KerasSequenceLoader` with this workflow, in
        the types that `Workflow.transform` gives.

    Raises:
        ValueError: if an op cannot be served (the message has all of them); in a call, if a column
            is missing or of another type.
        tf.errors.InvalidArgumentError: in a call, if columns differ in their rows, if a null is
            left in what comes out and is not NaN, or a value is one that an op refuses.
    """

    def __init__(
        self,
        groups: Sequence[ColumnGroup],
        types: Mapping[str, tuple[str, bool]],
        schema: Schema,
        *,
        functions: Functions | None = None,
        batch_layout: str = "columns",
        multi_hot: str = "nnzs",
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, trainable=False, **kwargs)
        if keras.config.backend() != "tensorflow":
            raise RuntimeError(
                f"serving needs Keras on TensorFlow, got {keras.config.backend()!r}. Set "
                "KERAS_BACKEND=tensorflow before Keras is imported."
            )
        _check_choice("batch_layout", batch_layout, BATCH_LAYOUTS)
        _check_choice("multi_hot", multi_hot, MULTI_HOT_FORMS)
        self.schema, self.batch_layout, self.multi_hot = schema, batch_layout, multi_hot
        lists = [column.name for column in schema if column.multi_hot]
        if batch_layout == "stacked" and lists:
            raise ValueError(f"batch_layout='stacked' takes one value per row, not lists: {lists}")
        functions = dict(functions or {})
        groups = [g for g in groups if any(name in schema for name in g.output_names)]
        _check_served(groups, functions)
        # In a tf.Module: Keras would take a plain list of them for layers.
        self._chains = tf.Module()
        self._chains.all = [_Chain(group, schema.names, functions) for group in groups]
        needed = dict.fromkeys(name for chain in self._chains.all for name in chain.needed)
        self.types = {name: types[name] for name in needed}
        self.built = True

    def __call__(self, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the model's inputs for a dict of raw values: tensors, arrays or lists."""
        return super().__call__(self._as_tensors(inputs), *args, **kwargs)

    def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's inputs for a dict of raw tensors."""
        raw = {name: self._raw_column(name, inputs) for name in self.types}
        _check_rows(raw)
        made: dict[str, ServedColumn] = {}
        for chain in self._chains.all:
            made.update(chain({name: raw[name] for name in chain.needed}))
        for name, column in made.items():
            if column.valid is not None:
                rule = f"column {name!r} comes out with a null. Put FillMissing into its group."
                require(tf.reduce_all(column.valid), rule)
        if self.batch_layout == "stacked":
            return self._stacked(made)
        batch = {}
        for name in self.schema.names:
            batch.update(self._batch_columns(name, made[name]))
        return batch

    def get_config(self) -> dict[str, Any]:
        """Refuse: what was learned has no place in a config.

        Raises:
            NotImplementedError: always, which is how Keras's own `Layer.get_config` says that a
                layer cannot be made again from a config; `Model.save` hands the message on.
        """
        raise NotImplementedError(
            "a served workflow cannot be part of a .keras file. Save the Workflow with "
            "workflow.save(folder) beside the model, or both by export_serving(model, workflow, "
            "path)."
        )

    def raw_inputs(self, nullable: Iterable[str] = ()) -> dict[str, tf.TensorSpec]:
        """Return {name: type} of the raw tensors that a call takes, of any shape that it takes.

        Args:
            nullable: columns with nulls, which get a `{name}__valid`.

        Raises:
            ValueError: if such a column is none of the raw ones.
        """
        nullable = list(nullable)
        unknown = [name for name in nullable if name not in self.types]
        if unknown:
            raise ValueError(
                f"nullable: {unknown} are no raw columns of the features; there are {[*self.types]}"
            )
        specs = {}
        for name, (dtype, lists) in self.types.items():
            parts = {f"{name}__values": dtype, f"{name}__nnzs": "int32"} if lists else {name: dtype}
            if name in nullable:
                parts[f"{name}__valid"] = "bool"
            for part, kind in parts.items():
                if part in specs:
                    raise ValueError(f"two raw tensors would be called {part!r}; rename a column")
                specs[part] = tf.TensorSpec(None, tf.as_dtype(kind), name=part)
        return specs

    # ------------------------------------------------------------------------------------- going in

    def _as_tensors(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(inputs, Mapping):
            raise TypeError(
                f"a served workflow takes a dict of columns, got {type(inputs).__name__}"
            )
        return {
            name: self._as_tensor(name, value) if isinstance(value, list) else value
            for name, value in inputs.items()
        }

    def _as_tensor(self, name: str, values: list[Any]) -> Any:
        """Return a list as a tensor of its raw column's type, one of lists as a RaggedTensor."""
        dtype, lists = self.types.get(name.removesuffix("__values"), (None, False))
        try:
            if lists and name in self.types:
                return tf.ragged.constant(values, dtype, ragged_rank=1)
            return tf.constant(values, dtype)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"raw column {name!r} cannot be made of this list: {error} A null is any value of "
                f"the column's type, with False at its place in {name}__valid."
            ) from error

    def _raw_column(self, name: str, inputs: Mapping[str, Any]) -> ServedColumn:
        """Return a raw column out of the tensors that it comes in."""
        dtype, lists = self.types[name]
        parts = (f"{name}__values", f"{name}__nnzs", f"{name}__offsets")
        values, nnzs, offsets = (inputs.get(part) for part in parts)
        splits = None
        if not lists:
            values = inputs.get(name)
        elif isinstance(inputs.get(name), tf.RaggedTensor):
            values, splits = inputs[name].values, tf.cast(inputs[name].row_splits, tf.int64)
        elif values is not None and nnzs is not None:
            splits = tf.concat([[0], tf.cumsum(_flat(tf.cast(nnzs, tf.int64)))], axis=0)
        elif values is not None and offsets is not None:
            splits = _flat(tf.cast(offsets, tf.int64))
        if values is None or (lists and splits is None):
            need = f"{parts[0]} with {parts[1]} or {parts[2]}, or a RaggedTensor" if lists else name
            raise ValueError(
                f"raw column {name!r} is missing: give {need}. The workflow takes "
                f"{[*self.types]}, got {sorted(inputs)}"
            )
        values = _one_a_row(name, values, dtype)
        valid = inputs.get(f"{name}__valid")
        if valid is not None:
            valid = _one_a_row(f"{name}__valid", valid, "bool")
            rule = f"{name}__valid must have the shape of the values of {name!r}"
            require(tf.size(valid) == tf.size(values), rule)
        return ServedColumn(values, None, splits).with_values(values, valid)

    # ----------------------------------------------------------------------------------- coming out

    def _batch_columns(self, name: str, column: ServedColumn) -> dict[str, Any]:
        """Return the tensors that one column becomes."""
        values, splits = column.values, column.splits
        if splits is None:
            return {name: values[:, None]}
        if self.multi_hot == "nnzs":
            nnzs = tf.cast(splits[1:] - splits[:-1], tf.int32)
            return {f"{name}__values": values[:, None], f"{name}__nnzs": nnzs[:, None]}
        if self.multi_hot == "offsets":
            return {f"{name}__values": values, f"{name}__offsets": tf.cast(splits, tf.int32)}
        ragged = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        return {name: ragged if self.multi_hot == "ragged" else ragged.to_tensor()}

    def _stacked(self, columns: Mapping[str, ServedColumn]) -> dict[str, tf.Tensor]:
        """Return the columns of each role as one matrix, in the order of the schema."""
        batch = {}
        for role in ("categorical", "continuous"):
            parts = [columns[name].values for name in self.schema.with_role(role).names]
            wide = any(part.dtype.size > 4 for part in parts)
            dtype = tf.float32 if role == "continuous" else tf.int64 if wide else tf.int32
            if parts:
                batch[role] = tf.stack([tf.cast(part, dtype) for part in parts], axis=1)
        return batch


class _Chain(tf.Module):
    """The ops of one group, for those of its columns that are wanted.

    Args:
        group: of the workflow.
        outputs: wanted columns, of this and other groups.
        functions: of the LambdaOps.
    """

    def __init__(self, group: ColumnGroup, outputs: Sequence[str], functions: Functions) -> None:
        super().__init__()
        wanted = [name for name in group.output_names if name in outputs]
        ops: list[ServedOp] = []
        for op, names in reversed(list(_with_names(group))):
            kind = ServedOp.registry[type(op)]
            ops.append(kind(op, names, wanted, functions))
            wanted = list(dict.fromkeys(s for n in wanted for s in kind.sources(op, n, names)))
        self.ops, self.needed = ops[::-1], wanted

    def __call__(self, columns: dict[str, ServedColumn]) -> dict[str, ServedColumn]:
        for op in self.ops:
            columns = op(columns)
        return columns


def _with_names(group: ColumnGroup) -> Iterable[tuple[Any, list[str]]]:
    """Yield each op of a group with the names of what goes into it."""
    names = list(group.names)
    for op in group.ops:
        yield op, names
        names = op.output_names(names)


def _check_served(groups: Sequence[ColumnGroup], functions: Functions) -> None:
    found = [unserved(op, n, functions) for group in groups for op, n in _with_names(group)]
    refused = [reason for reason in found if reason]
    if refused:
        raise ValueError(f"these ops cannot be served: {'; '.join(refused)}")


def _check_choice(argument: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{argument} must be one of {choices}, got {value!r}")


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tensor, [-1])


def _one_a_row(name: str, values: Any, dtype: str) -> tf.Tensor:
    """Return a raw tensor as [n], in the type that the workflow was fitted on."""
    values = tf.convert_to_tensor(values)
    got = values.dtype.name
    fits = got == dtype or ("string" not in (got, dtype) and np.can_cast(got, dtype, "safe"))
    if not fits or (got == "bool") != (dtype == "bool"):
        raise ValueError(
            f"raw column {name!r}: the workflow was fitted on {dtype}, got {got}. Cast it before."
        )
    rule = f"raw column {name!r} must have the shape [batch] or [batch, 1]"
    require(tf.reduce_prod(tf.shape(values)[1:]) == 1, rule)
    return tf.cast(_flat(values), dtype)


def _check_rows(raw: Mapping[str, ServedColumn]) -> None:
    """Check, when the graph runs, that all columns have as many rows, and their parts fit."""
    first = None
    for name, column in raw.items():
        values, splits = column.values, column.splits
        rows = tf.size(values) if splits is None else tf.size(splits) - 1
        first = (name, rows) if first is None else first
        require(rows == first[1], f"raw columns {first[0]!r} and {name!r} differ in their rows")
        if splits is not None:
            rule = f"raw column {name!r}: the lengths of its lists must add up to its values"
            require((splits[0] == 0) & (splits[-1] == tf.size(values, tf.int64)), rule)
            rule = f"raw column {name!r}: no list can have a negative length"
            require(tf.reduce_all(splits[1:] >= splits[:-1]), rule)


# ---------------------------------------------------------------------------------------- exporting


def export_serving(
    model: keras.Model,
    workflow: Any,
    path: str | os.PathLike[str],
    *,
    nullable: Iterable[str] = (),
    functions: Functions | None = None,
    batch_layout: str = "columns",
    multi_hot: str = "nnzs",
    overwrite: bool = False,
) -> Path:
    """Write a SavedModel that takes raw rows: the workflow, then the model.

    `tf.saved_model.load(path).signatures["serving_default"](**raw)["predictions"]` predicts in a
    process that has TensorFlow and nothing of this library; so does TensorFlow Serving. The
    signature takes a tensor a raw column, [batch] or [batch, 1], in the column's type; a column `g`
    of lists is `g__values` [nnz] and `g__nnzs` [batch]. Raw columns that no feature of the model is
    made of, labels among them, are not asked for.

    Args:
        model: takes what the workflow makes; a dict that it gives back becomes that of the
            signature, with its names.
        workflow: a fitted `Workflow`.
        path: folder to be; appears whole or not at all.
        nullable: raw columns that may hold nulls. A signature has no optional tensors, so each of
            these gets a further one, `{name}__valid`: bool, False at a null. Floating point needs
            none, NaN is its null. Texts do, if the empty text shall not be taken for one.
        functions: {name: function of tensors} of the workflow's LambdaOps.
        batch_layout: as the model was made: see `keras_inputs`.
        multi_hot: as the model was made: see `keras_inputs`.
        overwrite: whether a folder that is there may be replaced.

    Returns:
        The folder.

    Raises:
        FileExistsError: if the folder is there and `overwrite` is False.
        ValueError: if an op cannot be served, or the model takes what the workflow does not make.

    Example:
        >>> export_serving(model, workflow, "build/served", nullable=["I1"])  # doctest: +SKIP
    """
    refuse_existing(path, overwrite)
    wanted = _taken_by(model)
    layer = workflow.to_keras(
        columns=None if wanted is None else _columns_of(workflow.output_schema, wanted),
        functions=functions,
        batch_layout=batch_layout,
        multi_hot=multi_hot,
    )

    def predict(raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        features = layer(raw)
        if wanted is not None:
            _check_taken(wanted, features)
            features = {name: features[name] for name in wanted}
        predictions = model(features, training=False)
        return predictions if isinstance(predictions, dict) else {"predictions": predictions}

    archive = keras.export.ExportArchive()
    archive.track(layer)
    for table in _lookup_tables(model):
        archive.track(table)
    archive.add_endpoint("serve", predict, [layer.raw_inputs(nullable)])
    with written_whole(path) as building:
        archive.write_out(str(building), verbose=False)
    return Path(path)


def _lookup_tables(model: keras.layers.Layer) -> Iterable[Any]:
    """Return what a model looks up in; Keras finds the variables in the graph by itself.

    `archive.track(model)` would call a model that is a subclass with float32 for every input, to
    see what it holds, and fails where it takes texts (Keras 3.15, `_default_save_signature`).
    """
    parts = (tf.train.TrackableView(part).descendants() for part in model._flatten_layers())
    found = {id(part): part for descendants in parts for part in descendants}
    return [part for part in found.values() if isinstance(part, TrackableResource)]


def _taken_by(model: keras.Model) -> list[str] | None:
    """Return the names of a model's inputs; None if it takes whatever comes."""
    inputs = model.input if getattr(model, "inputs", None) else None  # a subclass has none
    return list(inputs) if isinstance(inputs, dict) else None


def _columns_of(schema: Schema, names: Sequence[str]) -> list[str] | None:
    """Return the workflow's columns that a model's inputs are made of."""
    roles = [role for role in ("categorical", "continuous") if role in names]
    taken = {name.removesuffix(f"__{part}") for name in names for part in ("", *_PARTS)}
    return [c.name for c in schema.features if c.name in taken or c.role in roles] or None


_PARTS = ("values", "nnzs", "offsets")


def _check_taken(wanted: Sequence[str], features: Mapping[str, Any]) -> None:
    missing = [name for name in wanted if name not in features]
    if missing:
        raise ValueError(
            f"the model takes {missing}, which the workflow does not make; it makes "
            f"{sorted(features)}. Are batch_layout and multi_hot those of the model?"
        )
