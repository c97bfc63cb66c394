"""ServedWorkflow: a fitted Workflow as a Keras layer over raw values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tutorlib.checks import check_choice
from tutorlib.ops import ColumnGroup, Op
from tutorlib.schema import BATCH_LAYOUTS, MULTI_HOT_FORMS, Schema
from tutorlib.serving.base import Functions, ServedColumn, ServedOp, require
from tutorlib.serving.registry import SERVED, refusal_of
from tutorlib.serving.tensors import (
    columns_batch,
    in_batch_dtype,
    lists_as_tensors,
    raw_specs,
    read_columns,
    stacked_batch,
)


class ServedWorkflow(keras.layers.Layer):
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
    in the dtype that the workflow was fitted on or a narrower one, vectors as [batch, k]. A column
    `g` of lists is a `tf.RaggedTensor`, or `g__values` [nnz] with `g__nnzs` [batch] or `g__offsets`
    [batch + 1]. A null is NaN in floating point; in any column `c` it may be marked by False in a
    bool tensor `c__valid`, of the shape of the column's values. It returns the batch of a
    `KerasSequenceLoader` with this workflow, in the same dtypes: float32 numbers, int32 or int64
    ids.

    Args:
        groups: column groups of the workflow, their ops fitted.
        types: {raw column: (NumPy name of a value or "string", whether a row holds a list)}.
        schema: columns to make.
        functions: {name: function of tensors} for the Python functions of LambdaOps; None if there
            are none.
        batch_layout: "columns" or "stacked", as the model was made: see `keras_inputs`.
        multi_hot: "nnzs", "offsets", "ragged" or "padded", as the model was made: see
            `keras_inputs`.
        nullable: raw columns that held nulls when the workflow was fitted.

    Raises:
        ValueError: if ops cannot be served, with the reason for each; in a call, if a column is
            missing or of another type.
        tf.errors.InvalidArgumentError: in a call, if columns differ in their number of rows, a null
            that is not NaN is left in the result, or an op refuses a value.

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
        groups: Sequence[ColumnGroup],
        types: Mapping[str, tuple[str, bool]],
        schema: Schema,
        *,
        functions: Functions | None = None,
        batch_layout: str = "columns",
        multi_hot: str = "nnzs",
        nullable: Iterable[str] = (),
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
        self.nullable = [name for name in nullable if name in self.types]
        self.built = True

    def __call__(self, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the model's inputs for a dict of raw values: tensors, arrays or lists."""
        return super().__call__(lists_as_tensors(self.types, inputs), *args, **kwargs)

    def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's inputs for a dict of raw tensors."""
        made = self.transform(inputs)
        columns = {c.name: in_batch_dtype(c, made[c.name]) for c in self.schema}
        if self.batch_layout == "stacked":
            return stacked_batch(columns, self.schema)
        return columns_batch(columns, self.schema, self.multi_hot)

    def transform(self, inputs: Mapping[str, Any]) -> dict[str, ServedColumn]:
        """Return the columns as `Workflow.transform` gives them, for a dict of raw tensors."""
        raw = read_columns(self.types, inputs)
        made: dict[str, ServedColumn] = {}
        for chain in self._chains.all:
            made.update(chain({name: raw[name] for name in chain.needed}))
        for name, column in made.items():
            if column.valid is not None:
                rule = f"column {name!r} comes out with a null. Put FillMissing into its group."
                require(tf.reduce_all(column.valid), rule)
        return made

    def get_config(self) -> dict[str, Any]:
        """Raise NotImplementedError: a config cannot hold what the ops have learned."""
        raise NotImplementedError(
            "a served workflow cannot be part of a .keras file. Save the Workflow with "
            "workflow.save(folder) next to the model, or both by export_serving(model, workflow, "
            "path)."
        )

    def raw_inputs(self, nullable: Iterable[str] | None = None) -> dict[str, tf.TensorSpec]:
        """Return {name: TensorSpec} of the raw tensors that a call takes, of any shape.

        Args:
            nullable: raw columns with nulls, for which a tensor `{name}__valid` is added; None for
                those that held nulls when the workflow was fitted.
        """
        return raw_specs(self.types, self.nullable if nullable is None else nullable)


class _Chain(tf.Module):
    """The ops of one group, for those of its columns that are among `outputs`."""

    def __init__(self, group: ColumnGroup, outputs: Sequence[str], functions: Functions) -> None:
        super().__init__()
        wanted = [name for name in group.output_names if name in outputs]
        ops: list[ServedOp[Any]] = []
        for op, names in reversed(list(_with_names(group))):
            kind = SERVED[type(op)]
            ops.append(kind(op, names, wanted, functions))
            wanted = list(dict.fromkeys(s for n in wanted for s in kind.sources(op, n, names)))
        self.ops, self.needed = ops[::-1], wanted

    def __call__(self, columns: dict[str, ServedColumn]) -> dict[str, ServedColumn]:
        for op in self.ops:
            columns = op(columns)
        return columns


def _with_names(group: ColumnGroup) -> Iterator[tuple[Op, list[str]]]:
    """Yield each op of a group with the names of the columns that go into it."""
    names = list(group.names)
    for op in group.ops:
        yield op, names
        names = op.output_names(names)


def _check_served(groups: Sequence[ColumnGroup], functions: Functions) -> None:
    found = [refusal_of(op, n, functions) for group in groups for op, n in _with_names(group)]
    reasons = [reason for reason in found if reason]
    if reasons:
        raise ValueError(f"these ops cannot be served: {'; '.join(reasons)}")
