"""export_serving: a fitted Workflow and a model as one SavedModel."""

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

from tutorlib.schema import Schema
from tutorlib.serving.base import Functions
from tutorlib.storage import new_folder, refuse_existing


def export_serving(
    model: keras.Model,
    workflow: Any,
    path: str | os.PathLike[str],
    *,
    nullable: Iterable[str] | None = None,
    functions: Functions | None = None,
    batch_layout: str = "columns",
    multi_hot: str = "nnzs",
    overwrite: bool = False,
) -> Path:
    """Write a SavedModel that takes raw rows and applies the workflow, then the model.

    `tf.saved_model.load(path).signatures["serving_default"](**raw)["predictions"]` predicts where
    there is TensorFlow and nothing of this library, as in TensorFlow Serving. The
    signature takes one tensor for each raw column, [batch] or [batch, 1], in the column's dtype; a
    column `g` of lists is `g__values` [nnz] and `g__nnzs` int32 [batch]. Raw columns that none of
    the model's features is made of, such as labels, are not part of it.

    Args:
        model: takes the workflow's output. If it returns a dict, the signature does too.
        workflow: a fitted `Workflow`.
        path: folder to write; it appears complete or not at all.
        nullable: raw columns that may hold nulls; None for those that held nulls when the workflow
            was fitted. Each has a second tensor, `{name}__valid`: bool, False at a null.
            Floating-point columns need none, their null is NaN.
        functions: {name: function of tensors} for the Python functions of LambdaOps.
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
        functions=functions,
        batch_layout=batch_layout,
        multi_hot=multi_hot,
    )

    specs = layer.raw_inputs(nullable)
    _check_names(specs)

    def predict(raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        features = layer(raw)
        if wanted is not None:
            _check_made(wanted, features)
            features = {name: features[name] for name in wanted}
        predictions = model(features, training=False)
        return predictions if isinstance(predictions, dict) else {"predictions": predictions}

    archive = keras.export.ExportArchive()
    archive.track(layer)
    for table in _lookup_tables(model):
        archive.track(table)
    archive.add_endpoint("serve", predict, [specs])
    with new_folder(path) as building:
        archive.write_out(str(building), verbose=False)
    return Path(path)


def _check_names(names: Iterable[str]) -> None:
    """Raise ValueError for names that TensorFlow would change or refuse in a signature."""
    wrong = [
        name for name in names
        if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name)
        or name == "self"
    ]  # fmt: skip
    if wrong:
        raise ValueError(
            f"raw tensors {wrong} cannot be arguments of a signature: their names must begin with "
            "a letter, have ASCII letters, digits and underscores alone, and be no word of Python. "
            "Rename the columns in the data and fit the workflow again."
        )


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
    parts = ("__values", "__nnzs", "__offsets")
    taken = {name.removesuffix(part) for name in names for part in ("", *parts)}
    return [c.name for c in schema.features if c.name in taken or c.role in roles] or None


def _check_made(wanted: Sequence[str], features: Mapping[str, Any]) -> None:
    missing = [name for name in wanted if name not in features]
    if missing:
        raise ValueError(
            f"the model takes {missing}, which the workflow does not make; it makes "
            f"{sorted(features)}. Are batch_layout and multi_hot those of the model?"
        )
