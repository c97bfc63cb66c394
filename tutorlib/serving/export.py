"""A fitted Workflow as a Keras layer, and with a model as one SavedModel.

`WorkflowLayer` turns raw values into model inputs; `export_serving` saves it with a model. A saved
graph needs TensorFlow alone.
"""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.saved_model.experimental import TrackableResource

from tutorlib.checks import check_choice
from tutorlib.ops import ColumnGroup
from tutorlib.output import new_folder, refuse_existing
from tutorlib.schema import BATCH_LAYOUTS, MULTI_HOT_FORMS, Schema, listed
from tutorlib.serving import tensors
from tutorlib.serving.ops import SERVED, ServedOp
from tutorlib.serving.tensors import ServedColumn

SIGNATURE_NAME = re.compile("(?!self$)[A-Za-z][A-Za-z0-9_]*")  # TensorFlow changes others


class WorkflowLayer(keras.layers.Layer):
    """A fitted Workflow as a layer: raw values of a batch in, inputs of the model out.

    `Workflow.to_keras` makes it. A SavedModel keeps what the ops have learned; a `.keras` file
    cannot hold it: save the workflow next to the model, or use `export_serving`.

    It computes what `Workflow.transform` does, bit for bit, with three exceptions:

    * TensorFlow takes numbers nearer to zero than 2**-126 (1.2e-38) for zero;
    * a zero that `Clip` has limited at zero may have the other sign, which NumPy chooses by dtype
      and CPU;
    * float32 results of `LogOp` may differ in the last bit: for one of all 3.2 billion float32
      numbers above -1 (8.472636; AVX-512, TensorFlow 2.21), for fewer than one in ten million
      float64 numbers.

    A call takes a dict of tensors, arrays or lists, one entry a raw column, [batch] or [batch, 1],
    in the dtype that the workflow was fitted on or a narrower one, vectors as [batch, k]; dates and
    times as int64, in the unit of the data that it was fitted on. A column `g` of lists is
    `g__values` [nnz] with `g__nnzs` [batch]. A null is NaN in floating point; in any column `c` it
    may be marked by False in a bool tensor `c__valid`, of the shape of the column's values. It
    returns the batch of a `KerasSequenceLoader` with this workflow, in the same dtypes: float32
    numbers, int32 or int64 ids.

    Args:
        workflow: a fitted `Workflow`.
        columns: names of the output columns; None for all features, without labels and weights.
        batch_layout: "columns" or "stacked", as the model was made: see `keras_inputs`.
        multi_hot: "nnzs" or "padded", as the model was made: see `keras_inputs`.

    Raises:
        ValueError: before `fit`, or if an op cannot be served, with the reason; in a call, if a
            column is missing or of another type.
        tf.errors.InvalidArgumentError: in a call, if columns differ in their number of rows, a null
            or NaN is left in the result, or an op refuses a value.

    Example:
        >>> import numpy as np
        >>> from tutorlib.columns import Chunk
        >>> from tutorlib.ops import Categorify
        >>> from tutorlib.workflow import Workflow
        >>> workflow = Workflow(["C1"] >> Categorify()).fit(Chunk({"C1": np.array([7, 5, 7])}))
        >>> workflow.to_keras()({"C1": [5, 6]})["C1"].numpy().tolist()
        [[4], [2]]
    """

    def __init__(
        self,
        workflow: Any,
        columns: Iterable[str] | None = None,
        *,
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
        check_choice("batch_layout", batch_layout, BATCH_LAYOUTS)
        check_choice("multi_hot", multi_hot, MULTI_HOT_FORMS)
        schema = workflow.output_schema
        self.schema = schema.features if columns is None else schema.select(columns)
        self.batch_layout, self.multi_hot = batch_layout, multi_hot
        lists = [column.name for column in self.schema if column.multi_hot]
        if batch_layout == "stacked" and lists:
            raise ValueError(f"batch_layout='stacked' takes one value per row, not lists: {lists}")
        # In a tf.Module: Keras would take a plain list of them for layers.
        self._chains = tf.Module()
        self._chains.all = [
            _Chain(group, self.schema.names)
            for group in workflow.groups
            if not set(self.schema.names).isdisjoint(group.output_names)
        ]
        needed = dict.fromkeys(name for chain in self._chains.all for name in chain.needed)
        self.types = {name: workflow.input_types[name] for name in needed}
        self.built = True

    def __call__(self, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the model's inputs for a dict of raw values: tensors, arrays or lists."""
        arrays = {}
        for name, value in inputs.items():
            if isinstance(value, list):  # Keras would look for tensors in it
                value = tf.constant(value)
            arrays[name] = value
        return super().__call__(arrays, *args, **kwargs)

    def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's inputs for a dict of raw tensors."""
        made = self.transform(inputs)
        for column in self.schema:  # no null reaches the model: a ReLU may make 0 of NaN
            rule = f"column {column.name!r} comes out with a null. Put FillMissing into its group."
            tensors.require(~tf.reduce_any(made[column.name].missing()), rule)
        columns = {c.name: tensors.in_batch_dtype(c, made[c.name]) for c in self.schema}
        if self.batch_layout == "stacked":
            return tensors.stacked_batch(columns, self.schema)
        return tensors.columns_batch(columns, self.schema, self.multi_hot)

    def transform(self, inputs: Mapping[str, Any]) -> dict[str, ServedColumn]:
        """Return the columns as `Workflow.transform` gives them, for a dict of raw tensors."""
        raw = tensors.read_columns(self.types, inputs)
        made: dict[str, ServedColumn] = {}
        for chain in self._chains.all:
            made.update(chain({name: raw[name] for name in chain.needed}))
        return made

    def get_config(self) -> dict[str, Any]:
        """Raise NotImplementedError: a config cannot hold what the ops have learned."""
        raise NotImplementedError(
            "a served workflow cannot be part of a .keras file. Save the Workflow with "
            "workflow.save(folder) next to the model, or both by export_serving(model, workflow, "
            "path)."
        )

    def raw_inputs(self, nullable: Iterable[str] = ()) -> dict[str, tf.TensorSpec]:
        """Return {name: TensorSpec} of the raw tensors that a call takes, of any shape.

        Args:
            nullable: raw columns with nulls, for which a tensor `{name}__valid` is added.
        """
        return tensors.raw_specs(self.types, nullable)


class _Chain(tf.Module):
    """The ops of one group, for those of its columns that are among `outputs`."""

    def __init__(self, group: ColumnGroup, outputs: Sequence[str]) -> None:
        super().__init__()
        wanted = [name for name in group.output_names if name in outputs]
        served: list[ServedOp] = []
        for op, names in reversed(list(group.steps())):
            try:
                if type(op) not in SERVED:
                    raise ValueError("has no TensorFlow version in tutorlib.serving.SERVED")
                served.append(SERVED[type(op)](op, names, wanted))
            except ValueError as error:
                what = f"{type(op).__name__} of the columns {names}"
                raise ValueError(f"an op cannot be served: {what} {error}") from error
            wanted = list(dict.fromkeys(map(served[-1].source, wanted)))
        self.ops, self.needed = served[::-1], wanted

    def __call__(self, columns: dict[str, ServedColumn]) -> dict[str, ServedColumn]:
        for op in self.ops:
            columns = op(columns)
        return columns


def export_serving(
    model: keras.Model,
    workflow: Any,
    path: str | os.PathLike[str],
    *,
    nullable: Iterable[str] = (),
    batch_layout: str = "columns",
    multi_hot: str = "nnzs",
    overwrite: bool = False,
) -> Path:
    """Write a SavedModel that takes raw rows and applies the workflow, then the model.

    `tf.saved_model.load(path).signatures["serving_default"](**raw)["predictions"]` predicts where
    there is TensorFlow and nothing of this library, as in TensorFlow Serving. The
    signature takes one tensor for each raw column, [batch] or [batch, 1], in the column's dtype; a
    column `g` of lists is `g__values` [nnz] and `g__nnzs` int32 [batch]. Dates and durations are
    int64, counted in the unit of the data that the workflow was fitted on: days since 1970-01-01
    for date32, microseconds for timestamp[us]. Raw columns that none of the model's features is
    made of, such as labels, are not part of it.

    A null of floating point is NaN. Each other column `c` of `nullable` has a second tensor
    `c__valid`, bool of the shape of its values, False at a null, whatever stands there. A signature
    has no optional tensors: a request gives all of them, True where nothing is missing. A request
    with a null that no op fills is refused (InvalidArgumentError), as a loader refuses it.

    Making the graph takes about 0.2 s a column: two minutes for 700.

    Lists may be longer than the loader's `max_length`: cut them in the request, as in the data.

    TensorFlow Serving's own batching of requests (`--enable_batching`) joins tensors of equal first
    dimension, so it cannot join `g__values` with `g__nnzs`: leave it off for models with lists.

    Args:
        model: takes the workflow's output. If it returns a dict, the signature does too.
        workflow: a fitted `Workflow`.
        path: folder to write; it appears complete or not at all.
        nullable: raw columns that may hold nulls in requests; none by default.
        batch_layout: as the model was made: see `keras_inputs`.
        multi_hot: as the model was made: see `keras_inputs`.
        overwrite: whether an existing folder is replaced.

    Returns:
        The folder.

    Raises:
        FileExistsError: if the folder exists and `overwrite` is False.
        ValueError: if an op cannot be served, the model has inputs that the workflow does not make,
            or a raw column has a name that a signature cannot have: an argument's name, of ASCII
            letters, digits and underscores, which begins with a letter.

    Example:
        >>> export_serving(model, workflow, "build/served", nullable=["I1"])  # doctest: +SKIP
    """
    refuse_existing(path, overwrite)
    wanted = _inputs_of(model)
    layer = workflow.to_keras(
        columns=None if wanted is None else _columns_of(workflow.output_schema, wanted),
        batch_layout=batch_layout,
        multi_hot=multi_hot,
    )

    specs = layer.raw_inputs(nullable)
    wrong = [n for n in specs if not SIGNATURE_NAME.fullmatch(n) or keyword.iskeyword(n)]
    if wrong:
        raise ValueError(
            f"raw tensors {listed(wrong)} cannot be arguments of a signature, whose names begin "
            "with a letter, have ASCII letters, digits and underscores alone, and are no words of "
            "Python. Rename the columns in the data and fit the workflow again."
        )

    def predict(raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        features = layer(raw)
        if wanted is not None:
            if missing := [name for name in wanted if name not in features]:
                raise ValueError(
                    f"the model takes {missing}, which the workflow does not make; it makes "
                    f"{sorted(features)}. Are batch_layout and multi_hot those of the model?"
                )
            features = {name: features[name] for name in wanted}
        predictions = model(features, training=False)
        return predictions if isinstance(predictions, dict) else {"predictions": predictions}

    archive = keras.export.ExportArchive()
    archive.track(layer)
    for table in _lookup_tables(model):
        archive.track(table)
    archive.add_endpoint("serve", predict, [specs])
    with new_folder(path, overwrite=overwrite) as building:
        archive.write_out(str(building), verbose=False)
    return Path(path).expanduser()


def _lookup_tables(model: keras.Model) -> list[Any]:
    """Return the lookup tables of a model, which Keras does not find in the graph by itself.

    `archive.track(model)` would find them, but fails for a model that takes strings (Keras 3.15).
    """
    parts = (tf.train.TrackableView(part).descendants() for part in model._flatten_layers())
    found = {id(part): part for descendants in parts for part in descendants}
    return [part for part in found.values() if isinstance(part, TrackableResource)]


def _inputs_of(model: keras.Model) -> list[str] | None:
    """Return the names of a model's inputs; None for a subclassed model, which declares none."""
    inputs = model.input if getattr(model, "inputs", None) else None
    return list(inputs) if isinstance(inputs, dict) else None


def _columns_of(schema: Schema, names: Sequence[str]) -> list[str] | None:
    """Return the workflow's columns that inputs of these names are made of; None for all."""
    roles = [role for role in ("categorical", "continuous") if role in names]
    parts = ("__values", "__nnzs")
    taken = {name.removesuffix(part) for name in names for part in ("", *parts)}
    return [c.name for c in schema.features if c.name in taken or c.role in roles] or None
