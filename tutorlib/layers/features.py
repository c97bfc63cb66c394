"""Layers over columns: from the columns of a batch to one tensor.

`DenseFeatures` and `LinearFeatures` have a table for each categorical column, `FusedEmbedding` one
for all. Ids must already lie in [0, cardinality); a Workflow learns the vocabularies that make them
so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from tutorlib.checks import check_choice
from tutorlib.layers.tables import (
    COMBINERS,
    EmbeddingBag,
    Initializer,
    Shape,
    Tensor,
    add_table,
    compiled_by_xla,
    list_batch_size,
    register,
    take_rows,
)
from tutorlib.schema import BATCH_LAYOUTS, MULTI_HOT_FORMS, Column, Schema, listed

INT32_IDS = 2**31  # ids of a larger table need int64
Columns = Schema | Iterable[Column]


def features_of(columns: Columns) -> Schema:
    """Return the feature columns of a Schema or list of `Column`; labels and weights are left out.

    Raises:
        ValueError: for anything else, such as `tf.feature_column` objects.
    """
    if isinstance(columns, Schema):
        return columns.features
    columns = list(columns)
    for column in columns:
        if not isinstance(column, Column):
            raise ValueError(
                f"columns must be a Schema or a list of Column, got a {type(column).__name__}. "
                "Give tf.feature_column objects to KerasSequenceLoader(feature_columns=...), and "
                "pass loader.schema, which also knows which columns are lists."
            )
    return Schema(columns).features


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
    columns: Columns, *, batch_layout: str = "columns", multi_hot: str = "nnzs"
) -> dict[str, keras.KerasTensor]:
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
    inputs: dict[str, keras.KerasTensor] = {}

    def add(name: str, width: int | None, dtype: str) -> None:
        inputs[name] = keras.Input((width,), name=name, dtype=dtype)

    if batch_layout == "stacked":
        refuse_multi_hot(features, "batch_layout='stacked'")
        for role in ("categorical", "continuous"):
            of_role = features.with_role(role)
            if len(of_role):
                dtypes = {_input_dtype(column) for column in of_role}
                width = sum(column.length or 1 for column in of_role)
                add(role, width, max(dtypes, key=("float32", "int32", "int64").index))
        return inputs
    _refuse_names(features.names)
    for column in features:
        name = column.name
        dtype = _input_dtype(column)
        if not column.multi_hot:
            add(name, column.length or 1, dtype)
        elif multi_hot == "padded":
            add(name, None, dtype)
        else:
            add(f"{name}__values", 1, dtype)
            add(f"{name}__nnzs", 1, _narrow_int_dtype())
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
    return _narrow_int_dtype() if narrow else "int64"


def _narrow_int_dtype() -> str:
    """Return the narrowest dtype of integer inputs of models on this machine: "int32" or "int64".

    A model that casts a GPU's int64 ids to int32 would copy them to the host and back
    (`min_int_dtype_on_gpu`).
    """
    if keras.backend.backend() != "tensorflow":
        return "int32"
    import tensorflow as tf

    return "int64" if tf.config.list_physical_devices("GPU") else "int32"


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
        unknown = [column.name for column in schema.categorical if column.cardinality is None]
        if unknown:
            raise ValueError(
                f"columns {unknown}: cardinality is not known. Take it from a fitted Workflow with "
                "Categorify or HashBucket, or set it in the schema. Labels, weights and ids are no "
                "features: name them (label_names, weight_name, id_names)."
            )

    def batch_size(self, input_shape: Mapping[str, Shape]) -> int | None:
        """Return the batch size of a dict of shapes; raise ValueError unless all columns fit."""
        if not isinstance(input_shape, Mapping):
            raise ValueError(f"the input must be a dict of columns, got one tensor {input_shape}")
        sizes = []
        for column in self.schema:
            name = column.name
            length = column.length or 1
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

    def get_config(self) -> dict[str, object]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {"columns": list(map(dataclasses.asdict, self.schema))}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FeatureLayer:
        """Return the layer that `get_config` describes."""
        columns = Schema(Column(**fields) for fields in config["columns"])
        return cls(**{**config, "columns": columns})


def list_inputs(inputs: Mapping[str, Tensor], name: str) -> Tensor | dict[str, Tensor]:
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
        columns: Columns,
        combiner: str,
        table_width: int | None = None,
        table_initializer: Initializer = None,
        **kwargs: Any,
    ) -> None:
        features = sorted(features_of(columns), key=lambda column: column.name)
        super().__init__(Schema(features), **kwargs)
        check_choice("combiner", combiner, COMBINERS)
        self.combiner = combiner
        lists = [column.name for column in self.schema.continuous if column.multi_hot]
        if lists:
            raise ValueError(
                f"columns {lists} hold lists of numbers; continuous columns must hold one number "
                "per row, or k numbers with length=k."
            )
        self.tables: dict[str, EmbeddingBag] = {}
        for name, (cardinality, width) in self.schema.embedding_sizes().items():
            self.tables[name] = EmbeddingBag(
                cardinality,
                table_width or width,
                combiner=combiner,
                embeddings_initializer=table_initializer,
                name=f"table_{len(self.tables)}",
                dtype=self.dtype_policy,
            )

    def build(self, input_shape: Mapping[str, Shape]) -> None:
        """Check the shapes and create the tables."""
        self.batch_size(input_shape)
        for table in self.tables.values():
            table.build()

    def values_of(self, column: Column, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the embedding or the numbers of one column, [batch, width]."""
        if column.role != "categorical":
            return ops.cast(inputs[column.name], self.compute_dtype)
        table = self.tables[column.name]
        if column.multi_hot:
            return table(list_inputs(inputs, column.name))
        return table.rows(ops.squeeze(inputs[column.name], 1))


@register
class DenseFeatures(_TableFeatures):
    """Concatenates all columns: ids and lists of ids as embeddings, numbers as they are.

    Columns are ordered by name. Each categorical column has a table of its own, `tables[column]`,
    whose variable is called `table_0/embedding_weights`, `table_1/...` in this order;
    `FusedEmbedding` needs one gather where this needs one per column.

    A column of vectors, with `length=k`, is k numbers.

    Args:
        columns: Schema, or list of `Column`; labels are left out.
        combiner: how a list of ids becomes one vector: "mean", "sum" or "sqrtn".
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: dict of [batch, 1] tensors, vectors as [batch, k], multi-hot columns in any form of
        `keras_inputs` -> [batch, sum of widths]. An empty list gives zeros. The id 0 is padding in
        lists of the form "padded" alone.

    Raises:
        ValueError: if `combiner` or a cardinality is not known, a continuous column holds lists of
            unknown length, or a batch lacks a column or holds one of another shape.

    Example:
        >>> import numpy as np
        >>> user = Column("user", "categorical", cardinality=9, embedding_dim=4)
        >>> tags = Column("tags", "categorical", multi_hot=True, cardinality=5, embedding_dim=2)
        >>> batch = {"user": np.array([[1], [2]]), "tags__values": np.array([[1], [2], [3]]),
        ...          "tags__nnzs": np.array([[0], [3]])}
        >>> DenseFeatures([user, tags])(batch).shape.as_list()
        [2, 6]
    """

    def __init__(self, columns: Columns, combiner: str = "mean", **kwargs: Any) -> None:
        super().__init__(columns, combiner, **kwargs)

    def call(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return all columns side by side, [batch, sum of widths]."""
        return ops.concatenate([self.values_of(column, inputs) for column in self.schema], axis=1)

    def compute_output_shape(self, input_shape: Mapping[str, Shape]) -> Shape:
        """Return (batch, sum of widths)."""
        return (self.batch_size(input_shape), sum(column.width for column in self.schema))

    def get_config(self) -> dict[str, object]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {"combiner": self.combiner}


@register
class ScalarDenseFeatures(DenseFeatures):
    """`DenseFeatures` for columns with one value or one vector per row.

    Args:
        columns: Schema, or list of `Column`; labels are left out.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: dict of [batch, 1] tensors, vectors as [batch, k] -> [batch, sum of widths], columns
        ordered by name.

    Raises:
        ValueError: if a column is multi-hot, and as `DenseFeatures` does.

    Example:
        >>> import numpy as np
        >>> columns = [Column(name, "categorical", cardinality=9, embedding_dim=4) for name in "ab"]
        >>> layer = ScalarDenseFeatures(columns)
        >>> layer({"a": np.array([[1]]), "b": np.array([[8]])}).shape.as_list()
        [1, 8]
    """

    def __init__(self, columns: Columns, **kwargs: Any) -> None:
        features = features_of(columns)
        refuse_multi_hot(features, "ScalarDenseFeatures")
        super().__init__(features, **kwargs)

    def get_config(self) -> dict[str, object]:
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

    def __init__(self, columns: Columns, **kwargs: Any) -> None:
        super().__init__(columns, "sum", table_width=1, table_initializer="zeros", **kwargs)

    def build(self, input_shape: Mapping[str, Shape]) -> None:
        """Check the shapes and create tables, numeric kernel and bias."""
        super().build(input_shape)
        size = sum(column.width for column in self.schema.continuous)
        if size:
            self.numeric_kernel = self.add_weight(
                name="numeric_kernel", shape=(size, 1), initializer="zeros"
            )
        self.bias = self.add_weight(name="bias", shape=(1,), initializer="zeros")

    def call(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of all columns, [batch, 1]."""
        total = self.bias
        for column in self.schema.categorical:
            total = total + self.values_of(column, inputs)
        numbers = [self.values_of(column, inputs) for column in self.schema.continuous]
        if numbers:
            total = total + ops.matmul(ops.concatenate(numbers, axis=1), self.numeric_kernel)
        return total

    def compute_output_shape(self, input_shape: Mapping[str, Shape]) -> Shape:
        """Return (batch, 1)."""
        return (self.batch_size(input_shape), 1)


@register
class FusedEmbedding(FeatureLayer):
    """Embeddings of many columns from one table: one gather instead of, say, 26.

    The tables are stacked, and each column's ids are shifted by the rows of the tables above its
    own. An id outside its column's range never reads another column's row: it has the effect that
    it has in a table of its own (an error on a CPU, zeros on a GPU with TensorFlow, NaN with JAX,
    the nearest row under XLA with TensorFlow).

    Args:
        columns: Schema, or list of `Column`. Only the categorical ones are used, in the given
            order, which must be that of a stacked batch. They need equal widths.
        aggregation: "stack" or "concat".
        embeddings_initializer: as in `EmbeddingTable`.
        **kwargs: arguments of every Keras layer, such as `name` and `dtype`.

    Shapes: int [batch, columns], or a dict of int [batch, 1] -> [batch, columns, width] for
        "stack", [batch, columns * width] for "concat".

    Raises:
        ValueError: if a column is multi-hot, a cardinality is not known, or widths differ.

    Example:
        >>> import numpy as np
        >>> columns = [Column(name, "categorical", cardinality=9, embedding_dim=4) for name in "ab"]
        >>> layer = FusedEmbedding(columns)
        >>> layer(np.array([[1, 8], [0, 0]])).shape.as_list(), layer.table("b").shape.as_list()
        ([2, 2, 4], [9, 4])
    """

    def __init__(
        self,
        columns: Columns,
        aggregation: str = "stack",
        embeddings_initializer: Initializer = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(features_of(columns).categorical, **kwargs)
        refuse_multi_hot(self.schema, "FusedEmbedding")
        check_choice("aggregation", aggregation, ("concat", "stack"))
        widths = {column.name: column.width for column in self.schema}
        if len(set(widths.values())) > 1:
            raise ValueError(
                f"FusedEmbedding needs equal widths, got {widths}. Give each column the same "
                "embedding_dim, or use DenseFeatures."
            )
        self.aggregation = aggregation
        self.width = self.schema.columns[0].width
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        ends = [0]  # first row of each table, and the end of the last
        for rows, _ in self.schema.embedding_sizes().values():
            ends.append(ends[-1] + rows)
        self.starts = np.array(ends, np.int64)

    def build(self, input_shape: Shape | Mapping[str, Shape]) -> None:
        """Check the shapes and create the table."""
        self._batch_size(input_shape)
        self.embedding_weights = add_table(
            self, int(self.starts[-1]), self.width, self.embeddings_initializer
        )

    def call(self, inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return the embeddings of all columns, stacked or side by side."""
        rows = take_rows(self.embedding_weights, self._row_numbers(inputs))
        vectors = ops.cast(rows, self.compute_dtype)  # [batch, columns, width]
        if self.aggregation == "stack":
            return vectors
        return ops.reshape(vectors, (-1, len(self.schema) * self.width))

    def _row_numbers(self, inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return the rows that ids select, [batch, columns]; none is of another column."""
        if isinstance(inputs, Mapping):
            # Concatenating rows and transposing is faster than concatenating columns.
            columns = [ops.reshape(inputs[name], (1, -1)) for name in self.schema.names]
            inputs = ops.transpose(ops.concatenate(columns, axis=0))
        rows = int(self.starts[-1])
        wide = keras.backend.standardize_dtype(inputs.dtype) == "int64"
        dtype = "int64" if wide or rows >= INT32_IDS else "int32"
        ids = ops.cast(inputs, dtype)
        starts = ops.convert_to_tensor(self.starts[:-1], dtype)
        last = ops.convert_to_tensor(np.diff(self.starts) - 1, dtype)
        nearest = ops.clip(ids, 0, last)
        if compiled_by_xla():
            return nearest + starts
        # The row behind the table is out of range for every backend's gather.
        return ops.where(ops.equal(ids, nearest), ids + starts, rows)

    def table(self, name: str) -> Tensor:
        """Return the rows that belong to one column, [cardinality, width]."""
        index = self.schema.names.index(name)
        return self.embedding_weights[int(self.starts[index]) : int(self.starts[index + 1])]

    def _batch_size(self, input_shape: Shape | Mapping[str, Shape]) -> int | None:
        if isinstance(input_shape, Mapping):
            return self.batch_size(input_shape)
        if len(input_shape) != 2 or input_shape[1] != len(self.schema):
            raise ValueError(
                f"a stacked batch must have shape [batch, {len(self.schema)}], one id for each of "
                f"{self.schema.names}, got {tuple(input_shape)}"
            )
        return input_shape[0]

    def compute_output_shape(self, input_shape: Shape | Mapping[str, Shape]) -> Shape:
        """Return (batch, columns, width) or (batch, columns * width)."""
        batch = self._batch_size(input_shape)
        if self.aggregation == "stack":
            return (batch, len(self.schema), self.width)
        return (batch, len(self.schema) * self.width)

    def get_config(self) -> dict[str, object]:
        """Return the arguments that recreate this layer."""
        return super().get_config() | {
            "aggregation": self.aggregation,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }
