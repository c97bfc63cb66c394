"""Features: from the columns of a batch to one tensor, with a table for each categorical column.

Ids must already lie in [0, cardinality); a Workflow learns the vocabularies that make them so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from tutorlib.checks import check_choice
from tutorlib.layers.tables import COMBINERS, EmbeddingBag, list_batch_size, register
from tutorlib.schema import BATCH_LAYOUTS, MULTI_HOT_FORMS, Column, Schema, listed

INT32_IDS = 2**31  # ids of a larger table need int64


def features_of(columns: Any) -> Schema:
    """Return the feature columns of a Schema or list of `Column`; labels and weights are left out.

    Raises:
        ValueError: for anything else, such as `tf.feature_column` objects.
    """
    schema = columns
    if not isinstance(columns, Schema):
        columns = [columns] if isinstance(columns, Column) else list(columns)
        other = [type(column).__name__ for column in columns if not isinstance(column, Column)]
        if other:
            raise ValueError(
                f"columns must be a Schema or a list of Column, got {other}. Give "
                "tf.feature_column objects to KerasSequenceLoader(feature_columns=...), and pass "
                "loader.schema, which also knows which columns are lists."
            )
        schema = Schema(columns)
    return schema.features


def refuse_multi_hot(features: Schema, who: str) -> None:
    """Raise ValueError that names all multi-hot columns, if there are any."""
    names = [column.name for column in features if column.multi_hot]
    if names:
        raise ValueError(
            f"{who} takes one value per row, but the columns {names} are multi-hot. "
            "Use DenseFeatures for them."
        )


# ---- inputs of a functional model ---------------------------------------------------------------


def keras_inputs(
    columns: Any, *, batch_layout: str = "columns", multi_hot: str = "nnzs"
) -> dict[str, Any]:
    """Return a `keras.Input` for each tensor of a loader's batch, for a functional model.

    Ids are int32 where the cardinality fits and int64 otherwise; Keras casts what it is fed. If
    TensorFlow sees a GPU, all ids are int64: it keeps int32 tensors of GPU computations in host
    memory.

    Args:
        columns: Schema, or list of `Column`. Labels and weights are left out.
        batch_layout: the loader's: "columns" for one input per column, "stacked" for one input per
            role.
        multi_hot: the loader's form of multi-hot columns: "nnzs" or "padded".

    Returns:
        For "columns": {name: Input [batch, 1]}. A multi-hot column `g` gives, by form,
        {`g__values` [nnz, 1], `g__nnzs` [batch, 1]} or {`g` [batch, None]}. A column of vectors of
        k numbers gives {name: Input [batch, k]}. For "stacked": {"categorical": [batch, n_cat],
        "continuous": [batch, n_cont]} in the order of the schema, where a vector has k neighbouring
        columns, without a role that has no columns.
        Numbers are float32.

    Raises:
        ValueError: if a choice is unknown, `batch_layout` is "stacked" and a column is multi-hot,
            or it is "columns" and a name is empty or holds "/".

    Example:
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> inputs = keras_inputs(columns)
        >>> {name: tuple(x.shape) for name, x in inputs.items()}
        {'C1': (None, 1), 'I1': (None, 1)}
    """
    check_choice("batch_layout", batch_layout, BATCH_LAYOUTS)
    check_choice("multi_hot", multi_hot, MULTI_HOT_FORMS)
    features = features_of(columns)
    inputs: dict[str, Any] = {}
    if batch_layout == "columns":
        _refuse_names(features.names)
    else:
        refuse_multi_hot(features, "batch_layout='stacked'")
        for role in ("categorical", "continuous"):
            together = features.with_role(role)
            if len(together):
                dtypes = {_input_dtype(column) for column in together}
                dtype = "int64" if "int64" in dtypes else dtypes.pop()
                width = sum(column.length or 1 for column in together)
                inputs[role] = keras.Input((width,), name=role, dtype=dtype)
        return inputs
    for column in features:
        name, dtype = column.name, _input_dtype(column)
        if not column.multi_hot:
            inputs[name] = keras.Input((column.length or 1,), name=name, dtype=dtype)
        elif multi_hot == "nnzs":
            for key, kind in (
                (f"{name}__values", dtype),
                (f"{name}__nnzs", min_int_dtype_of_models()),
            ):
                inputs[key] = keras.Input((1,), name=key, dtype=kind)
        else:
            inputs[name] = keras.Input((None,), name=name, dtype=dtype)
    return inputs


def _refuse_names(names: list[str]) -> None:
    """Raise ValueError if Keras cannot train or save a model with inputs of these names."""
    wrong = [name for name in names if not name or "/" in name]
    if wrong:
        raise ValueError(
            f"the columns {wrong} cannot be inputs of a Keras model: a name is not empty and holds "
            "no '/'. Rename them in the Workflow, before other ops: [name] >> Rename({name: other})"
        )


def _input_dtype(column: Column) -> str:
    if column.role != "categorical":
        return "float32"
    narrow = (column.cardinality or INT32_IDS) < INT32_IDS
    return min_int_dtype_of_models() if narrow else "int64"


# ---- layers over columns ------------------------------------------------------------------------


class FeatureLayer(keras.layers.Layer):
    """Base of layers over a Schema: checks columns and shapes, and keeps the columns in its config.

    Args:
        schema: feature columns, in the layer's order.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Raises:
        ValueError: if there is no column, or a cardinality is not known.
    """

    def __init__(self, schema: Schema, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.schema = schema
        if not len(schema):
            raise ValueError(f"{type(self).__name__} needs at least one feature column, got none")
        unknown = [c.name for c in schema.categorical if c.cardinality is None]
        if unknown:
            raise ValueError(
                f"columns {unknown}: cardinality is not known. Take it from a fitted Workflow with "
                "Categorify or HashBucket, or set it in the schema. Labels, weights and ids are no "
                "features: name them (label_names, weight_name, id_names)."
            )

    def common_width(self, who: str) -> int:
        """Return the width of all columns; raise ValueError if they differ."""
        widths = {column.name: column.width for column in self.schema}
        if len(set(widths.values())) > 1:
            raise ValueError(
                f"{who} needs equal widths, got {widths}. Give each column the same embedding_dim, "
                "feed numbers another way, or use DenseFeatures with aggregation='concat'."
            )
        return self.schema.columns[0].width

    def batch_size(self, input_shape: Mapping[str, Any]) -> int | None:
        """Return the batch size of a dict of shapes; raise ValueError unless all columns fit."""
        if not isinstance(input_shape, Mapping):
            raise ValueError(f"the input must be a dict of columns, got one tensor {input_shape}")
        sizes = []
        for column in self.schema:
            name, length = column.name, column.length or 1
            if column.multi_hot:
                sizes.append(list_batch_size(list_inputs(input_shape, name)))
                continue
            if name not in input_shape:
                has = listed(sorted(input_shape))
                raise ValueError(f"column {name!r} is missing; the batch has {has}")
            shape = tuple(input_shape[name])
            if len(shape) != 2 or shape[1] != length:
                raise ValueError(f"column {name!r} must have shape [batch, {length}], got {shape}")
            sizes.append(shape[0])
        return sizes[0]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {"columns": [dataclasses.asdict(c) for c in self.schema]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the layer that `get_config` describes."""
        columns = Schema(Column(**fields) for fields in config["columns"])
        return cls(**{**config, "columns": columns})


def list_inputs(inputs: Mapping[str, Any], name: str) -> Any:
    """Return what `EmbeddingBag` takes for one column, from a batch or a dict of shapes."""
    if f"{name}__nnzs" in inputs and f"{name}__values" in inputs:
        return {"values": inputs[f"{name}__values"], "nnzs": inputs[f"{name}__nnzs"]}
    if name in inputs:
        return inputs[name]
    raise ValueError(
        f"column {name!r} is multi-hot and needs {name}__values with {name}__nnzs, "
        f"or {name}; the batch has {listed(sorted(inputs))}"
    )


class _TableFeatures(FeatureLayer):
    """Base of layers with a table for each categorical column; columns are in name order.

    `table_width` is the width of all tables (None for each column's own), `table_initializer` their
    initializer, as in `EmbeddingTable`.
    """

    def __init__(
        self,
        columns: Any,
        combiner: str,
        table_width: int | None = None,
        table_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(Schema(sorted(features_of(columns), key=lambda c: c.name)), **kwargs)
        check_choice("combiner", combiner, COMBINERS)
        self.combiner = combiner
        lists = [c.name for c in self.schema.continuous if c.multi_hot]
        if lists:
            raise ValueError(
                f"columns {lists} hold lists of numbers; continuous columns must hold one number "
                "per row, or k numbers with length=k."
            )
        sizes = self.schema.embedding_sizes()
        self.tables = {
            name: EmbeddingBag(
                cardinality,
                table_width or width,
                combiner=combiner,
                embeddings_initializer=table_initializer,
                name=f"table_{number}",
                dtype=self.dtype_policy,
            )
            for number, (name, (cardinality, width)) in enumerate(sizes.items())
        }

    def build(self, input_shape: Mapping[str, Any]) -> None:
        """Check the shapes and create the tables."""
        self.batch_size(input_shape)
        for table in self.tables.values():
            table.build()

    def values_of(self, column: Column, inputs: Mapping[str, Any]) -> Any:
        """Return the embedding or the numbers of one column, [batch, width]."""
        if column.role != "categorical":
            return ops.cast(inputs[column.name], self.compute_dtype)
        table = self.tables[column.name]
        if column.multi_hot:
            return table(list_inputs(inputs, column.name))
        return table.rows(ops.squeeze(inputs[column.name], 1))


@register
class DenseFeatures(_TableFeatures):
    """Concatenates or stacks all columns: ids and lists of ids as embeddings, numbers as they are.

    Columns are ordered by name. Each categorical column has a table of its own, `tables[column]`,
    whose variable is called `table_0/embedding_weights`, `table_1/...` in this order;
    `FusedEmbedding` needs one gather where this needs one per column.

    A column of vectors, with `length=k`, is k numbers.

    Args:
        columns: Schema, or list of `Column`; labels are left out.
        combiner: how a list of ids becomes one vector: "mean", "sum" or "sqrtn".
        aggregation: "concat", or "stack", which needs equal widths.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: dict of [batch, 1] tensors, vectors as [batch, k], multi-hot columns in any form of
        `keras_inputs` -> [batch, sum of widths] for "concat", [batch, columns, width] for "stack".
        An empty list gives zeros. The id 0 is padding in lists of the form "padded" alone.

    Raises:
        ValueError: if a choice is unknown, a cardinality is not known, a continuous column holds
            lists of unknown length, widths differ under "stack", or a batch lacks a column or holds
            one of another shape.

    Example:
        >>> import numpy as np
        >>> user = Column("user", "categorical", cardinality=9, embedding_dim=4)
        >>> tags = Column("tags", "categorical", multi_hot=True, cardinality=5, embedding_dim=2)
        >>> batch = {"user": np.array([[1], [2]]), "tags__values": np.array([[1], [2], [3]]),
        ...          "tags__nnzs": np.array([[0], [3]])}
        >>> DenseFeatures([user, tags])(batch).shape.as_list()
        [2, 6]
    """

    def __init__(
        self, columns: Any, combiner: str = "mean", aggregation: str = "concat", **kwargs: Any
    ) -> None:
        super().__init__(columns, combiner, **kwargs)
        check_choice("aggregation", aggregation, ("concat", "stack"))
        if aggregation == "stack":
            self.common_width("aggregation='stack'")
        self.aggregation = aggregation

    def call(self, inputs: Mapping[str, Any]) -> Any:
        """Return all columns as one tensor."""
        parts = [self.values_of(column, inputs) for column in self.schema]
        return (ops.stack if self.aggregation == "stack" else ops.concatenate)(parts, axis=1)

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> tuple[int | None, ...]:
        """Return (batch, sum of widths) or (batch, columns, width)."""
        batch, widths = self.batch_size(input_shape), [c.width for c in self.schema]
        if self.aggregation == "stack":
            return (batch, len(widths), widths[0])
        return (batch, sum(widths))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {"combiner": self.combiner, "aggregation": self.aggregation}


@register
class ScalarDenseFeatures(DenseFeatures):
    """`DenseFeatures` for columns with one value or one vector per row.

    Args:
        columns: Schema, or list of `Column`; labels are left out.
        aggregation: "concat", or "stack", which needs equal widths.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: dict of [batch, 1] tensors -> [batch, sum of widths] for "concat", [batch, columns,
        width] for "stack", columns ordered by name.

    Raises:
        ValueError: if a column is multi-hot, and as `DenseFeatures` does.

    Example:
        >>> import numpy as np
        >>> columns = [Column(name, "categorical", cardinality=9, embedding_dim=4) for name in "ab"]
        >>> layer = ScalarDenseFeatures(columns, aggregation="stack")
        >>> layer({"a": np.array([[1]]), "b": np.array([[8]])}).shape.as_list()
        [1, 2, 4]
    """

    def __init__(self, columns: Any, aggregation: str = "concat", **kwargs: Any) -> None:
        features = features_of(columns)
        refuse_multi_hot(features, "ScalarDenseFeatures")
        super().__init__(features, aggregation=aggregation, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this layer."""
        config = super().get_config()
        del config["combiner"]
        return config


@register
class LinearFeatures(_TableFeatures):
    """The wide side of a network: one weight for each id and each number, and a bias, summed.

    All start at zero, unlike embeddings: a linear model needs no random start, an id that training
    never saw adds nothing, and a wide and deep network starts as its deep side alone. On the ads of
    lesson 04 a uniform start was no better (AUROC 0.773 instead of 0.774, mean of two seeds). A
    list of ids counts as the sum of its weights, an empty one as zero.

    Args:
        columns: Schema, or list of `Column`; labels are left out.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: dict of columns as in `DenseFeatures` -> [batch, 1].

    Raises:
        ValueError: if a cardinality is not known, or a batch lacks a column.

    Example:
        >>> import numpy as np
        >>> layer = LinearFeatures([Column("C1", "categorical", cardinality=9)])
        >>> layer({"C1": np.array([[3], [4]])}).shape.as_list()
        [2, 1]

    References:
        Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, arXiv:1606.07792.
    """

    def __init__(self, columns: Any, **kwargs: Any) -> None:
        super().__init__(columns, "sum", table_width=1, table_initializer="zeros", **kwargs)

    def build(self, input_shape: Mapping[str, Any]) -> None:
        """Check the shapes and create tables, numeric kernel and bias."""
        super().build(input_shape)
        size = sum(column.width for column in self.schema.continuous)
        if size:
            self.numeric_kernel = self.add_weight(
                name="numeric_kernel", shape=(size, 1), initializer="zeros"
            )
        self.bias = self.add_weight(name="bias", shape=(1,), initializer="zeros")

    def call(self, inputs: Mapping[str, Any]) -> Any:
        """Return the weighted sum of all columns, [batch, 1]."""
        total = self.bias
        for column in self.schema.categorical:
            total = total + self.values_of(column, inputs)
        numbers = [self.values_of(column, inputs) for column in self.schema.continuous]
        if numbers:
            total = total + ops.matmul(ops.concatenate(numbers, axis=1), self.numeric_kernel)
        return total

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> tuple[int | None, int]:
        """Return (batch, 1)."""
        return (self.batch_size(input_shape), 1)


def min_int_dtype_of_models() -> str:
    """Return the narrowest dtype of integer inputs of models on this machine: "int32" or "int64".

    A model that casts a GPU's int64 ids to int32 would copy them to the host and back
    (`min_int_dtype_on_gpu`).
    """
    if keras.backend.backend() != "tensorflow":
        return "int32"
    import tensorflow as tf

    return "int64" if tf.config.list_physical_devices("GPU") else "int32"
