"""Optimizers: embedding tables whose step costs as much as the rows of the batch, not the table.

Keras' own optimizers go over every row of a table and of its moments in every step. These take the
rows that the batch names, of tables only; any Keras optimizer takes all other variables. Does not
belong here: sparse gradients themselves, which the layers give (`layers/rows.py`).

Measured by `python -m benchmarks layers`, on two CPU cores and 26 tables of together a million rows
of 16 numbers: the step of Adam takes 26 ms in place of 94 with batches of 4,096, which name 3 % of
the rows, and 322 in place of 440 with 65,536, which name 22 %; under XLA 16 in place of 72, and no
less than Keras' 115. What is saved grows with the tables and shrinks with the batch.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import keras

from tutorlib.layers.rows import compiled_by_xla

# The names of the variables of this library's tables and of keras.layers.Embedding end so.
TABLE_NAMES = ("embedding_weights", "embeddings")


class RowOptimizer(keras.optimizers.Optimizer, abc.ABC):
    """What the row-sparse optimizers share: telling tables from the rest, and the rest.

    Args:
        dense: Keras optimizer, or its name, for all variables that are no tables. Its learning rate
            is the one of the whole: what a callback sets and what `learning_rate` shows. Its
            clipping, weight decay and moving average do not concern the tables.
        table_scale: the tables' learning rate is this times the other.
        name: of the optimizer.

    Raises:
        RuntimeError: if Keras does not run on TensorFlow, where alone gradients are sparse.
        ValueError: if `dense` accumulates gradients or scales the loss, or `table_scale` is not
            above 0.
    """

    def __init__(
        self, dense: Any = "adam", table_scale: float = 1.0, name: str | None = None
    ) -> None:
        if keras.config.backend() != "tensorflow":
            raise RuntimeError(
                f"{type(self).__name__} needs Keras on TensorFlow, got "
                f"{keras.config.backend()!r}, whose gradients of tables are dense. Use "
                "keras.optimizers there."
            )
        if not table_scale > 0:
            raise ValueError(f"table_scale must be above 0, got {table_scale}")
        super().__init__(learning_rate=0.0, name=name)
        self.dense, self.table_scale = keras.optimizers.get(dense), float(table_scale)
        scaling = isinstance(self.dense, keras.optimizers.LossScaleOptimizer)
        if scaling or self.dense.loss_scale_factor or self.dense.gradient_accumulation_steps:
            raise ValueError(
                "dense must neither accumulate gradients nor scale the loss, for that would leave "
                f"the tables out; got {self.dense.get_config()}. To scale the loss, put a "
                f"LossScaleOptimizer around {type(self).__name__}."
            )

    @abc.abstractmethod
    def add_slot(self, table: Any) -> Any:
        """Return a new variable with the state of each row of a table."""

    @abc.abstractmethod
    def update_rows(self, table: Any, slot: Any, ids: Any, gradients: Any, rate: Any) -> None:
        """Update rows of a table.

        Args:
            table: `tf.Variable` [rows, width].
            slot: `tf.Variable` that `add_slot` gave.
            ids: the rows, each one once; under XLA, ids behind the last row are to be left alone.
            gradients: [ids, width].
            rate: learning rate of the tables, a scalar.
        """

    def build(self, variables: Sequence[Any]) -> None:
        """Create the state of all variables; raises ValueError if there is no table."""
        if self.built:
            return
        tables = [v for v in variables if is_table(v)]
        if not tables:
            raise ValueError(
                f"{type(self).__name__} found no embedding table: no matrix whose name ends in one "
                f"of {TABLE_NAMES} among {[v.path for v in variables]}"
            )
        super().build(variables)
        self._slots = [self.add_slot(v) if is_table(v) else None for v in variables]
        self.dense.build([v for v in variables if not is_table(v)])

    @property
    def variables(self) -> list[Any]:
        """All state: of the tables, and of the optimizer of the rest."""
        return [*super().variables, *self.dense.variables]

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the variables that are no tables."""
        return self.dense.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.dense.learning_rate = value

    @property
    def iterations(self) -> Any:
        """Steps that were taken."""
        return self.dense.iterations

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Update all variables by their gradients."""
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(list(trainable_variables))
        pairs = list(zip(grads, trainable_variables, strict=True))
        tables = [pair for pair in pairs if is_table(pair[1])]
        others = [pair for pair in pairs if not is_table(pair[1])]
        if tables:
            super().apply(*map(list, zip(*tables, strict=True)))
        if others:
            self.dense.apply(*map(list, zip(*others, strict=True)))  # counts the step
        else:
            self.dense.iterations.assign_add(1)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update the rows of a table that a gradient names."""
        import tensorflow as tf

        if not isinstance(gradient, tf.IndexedSlices):  # the table was not read row by row
            gradient = tf.IndexedSlices(gradient, tf.range(tf.shape(gradient)[0]))
        ids, gradients = sums_by_row(gradient, variable.shape)
        rate = tf.cast(learning_rate, variable.dtype) * self.table_scale
        slot = self._slots[self._get_variable_index(variable)].value
        self.update_rows(variable, slot, ids, tf.cast(gradients, variable.dtype), rate)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Let the optimizer of the rest put its moving averages in place."""
        self.dense.finalize_variable_values([v for v in var_list if not is_table(v)])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this optimizer again."""
        dense = keras.optimizers.serialize(self.dense)
        return {"name": self.name, "dense": dense, "table_scale": self.table_scale}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Return the optimizer that `get_config` describes."""
        dense = keras.optimizers.deserialize(config["dense"], custom_objects=custom_objects)
        return cls(**{**config, "dense": dense})


def is_table(variable: Any) -> bool:
    """Return whether a model's variable is an embedding table, by its name and shape."""
    return variable.name.endswith(TABLE_NAMES) and len(variable.shape) == 2


def sums_by_row(gradient: Any, shape: Sequence[int]) -> tuple[Any, Any]:
    """Return the rows that a gradient names, each one once, and their summed gradients.

    Args:
        gradient: `tf.IndexedSlices`, whose rows may stand several times.
        shape: (rows, width) of the table.

    Returns:
        ids [n], gradients [n, width]. Under XLA, which needs to know the size beforehand, n is
        that of the gradient or the table, and ids that are over stand behind the last row.
    """
    import tensorflow as tf

    ids = tf.reshape(gradient.indices, (-1,))
    values = tf.reshape(gradient.values, (-1, shape[1]))
    if compiled_by_xla():
        return _sums_under_xla(ids, values, shape[0])
    unique, places = tf.unique(ids)
    return unique, tf.math.unsorted_segment_sum(values, places, tf.size(unique))


def _sums_under_xla(ids: Any, values: Any, rows: int) -> tuple[Any, Any]:
    """Return what `sums_by_row` does, without `tf.unique` or sorting, which XLA is slow at.

    The gradient of a row comes together where the row stands last in the batch; or, in a batch with
    more ids than the table has rows, at the number of the row.
    """
    import tensorflow as tf

    size = ids.shape[0] or tf.size(ids)
    if isinstance(size, int) and size >= rows:
        named = tf.math.unsorted_segment_sum(tf.ones_like(ids), ids, rows) > 0
        numbers = tf.range(rows, dtype=ids.dtype)
        return tf.where(named, numbers, rows), tf.math.unsorted_segment_sum(values, ids, rows)
    places = tf.range(size)
    last = tf.gather(tf.math.unsorted_segment_max(places, ids, rows), ids)
    sums = tf.math.unsorted_segment_sum(values, last, size)
    return tf.where(last == places, ids, tf.cast(rows, ids.dtype)), sums


@keras.saving.register_keras_serializable(package="tutorlib")
class RowSparseAdam(RowOptimizer):
    """Adam that leaves the rows alone which a batch does not name, called lazy Adam elsewhere.

    Keras' Adam moves every row in every step, also those without a gradient, by what is left of
    their moments. Here a row that is not named keeps its value and its moments; they do not fade
    either. Where each step names every row, both are the same, but for this: of a row that stands
    in a batch several times, Keras 3.15 on TensorFlow adds up the squares of the parts of its
    gradient, where Adam's second moment is of the square of their sum, as it is here. The bias
    correction counts the steps of the whole.

    Tables are matrices whose name ends in `embedding_weights` (this library's layers) or
    `embeddings` (`keras.layers.Embedding`). The latter are read as a whole in every step, which
    costs a copy: 8 ms for a million rows of 16 numbers.

    Args:
        dense: Keras optimizer, or its name, for all other variables; its learning rate is the one
            of the whole.
        table_scale: the tables' learning rate is this times the other.
        beta_1: how much of the first moment of a row is kept when it is named.
        beta_2: of the second.
        epsilon: added to the square root of the second.
        name: of the optimizer.

    Raises:
        RuntimeError: if Keras does not run on TensorFlow.
        ValueError: if `dense` accumulates gradients or scales the loss, or the model has no table.

    Example:
        >>> from tutorlib import DLRM, Column
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> model = DLRM(columns, 4, [8], [8])
        >>> optimizer = RowSparseAdam(keras.optimizers.Adam(0.01))
        >>> model.compile(optimizer, "binary_crossentropy")
        >>> round(float(model.optimizer.learning_rate), 3)
        0.01

    References:
        Kingma and Ba, Adam, 2014, arXiv:1412.6980, with the moments of named rows only.
    """

    def __init__(
        self,
        dense: Any = "adam",
        table_scale: float = 1.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str | None = "row_sparse_adam",
    ) -> None:
        super().__init__(dense, table_scale, name)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def add_slot(self, table: Any) -> Any:
        """Return both moments of each row, [rows, 2 width]: one gather, one scatter for both."""
        rows, width = table.shape
        name = f"{table.path.replace('/', '_')}_moments"
        return self.add_variable((rows, 2 * width), dtype=table.dtype, name=name)

    def update_rows(self, table: Any, slot: Any, ids: Any, gradients: Any, rate: Any) -> None:
        """Update moments and rows."""
        import tensorflow as tf

        step = tf.cast(self.iterations.value + 1, table.dtype)
        powers = [tf.cast(beta, table.dtype) ** step for beta in (self.beta_1, self.beta_2)]
        first, second = tf.split(tf.gather(slot, ids), 2, axis=1)
        first += (gradients - first) * (1 - self.beta_1)
        second += (tf.square(gradients) - second) * (1 - self.beta_2)
        slot.scatter_update(tf.IndexedSlices(tf.concat([first, second], axis=1), ids))
        alpha = rate * tf.sqrt(1 - powers[1]) / (1 - powers[0])
        change = first * alpha / (tf.sqrt(second) + self.epsilon)
        table.scatter_sub(tf.IndexedSlices(change, ids))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this optimizer again."""
        betas = {"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}
        return super().get_config() | betas


@keras.saving.register_keras_serializable(package="tutorlib")
class RowWiseAdagrad(RowOptimizer):
    """Adagrad with one number of state for each row of a table.

    It grows by the mean square of the row's gradient. State is 1 / width of the table, where Adam's
    is twice the table; with 16 numbers a row that is 0.06 against 2. Rows that are not named have
    no gradient, so nothing is approximated by leaving them alone.

    Tables are told as by `RowSparseAdam`.

    Args:
        dense: Keras optimizer, or its name, for all other variables; its learning rate is the one
            of the whole.
        table_scale: the tables' learning rate is this times the other. Adagrad likes ten times that
            of Adam.
        initial_accumulator_value: of the state.
        epsilon: added to the state before the square root.
        name: of the optimizer.

    Raises:
        RuntimeError: if Keras does not run on TensorFlow.
        ValueError: if `dense` accumulates gradients or scales the loss, the model has no table, or
            `initial_accumulator_value` is below 0.

    Example:
        >>> optimizer = RowWiseAdagrad(keras.optimizers.Adam(0.001), table_scale=10)
        >>> optimizer.get_config()["table_scale"]
        10.0

    References:
        Duchi et al., Adaptive Subgradient Methods, 2011, with one number a row as Naumov et al.,
        Deep Learning Recommendation Model, 2019, arXiv:1906.00091, use it.
    """

    def __init__(
        self,
        dense: Any = "adam",
        table_scale: float = 1.0,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        name: str | None = "row_wise_adagrad",
    ) -> None:
        super().__init__(dense, table_scale, name)
        if initial_accumulator_value < 0:
            raise ValueError(
                f"initial_accumulator_value must be at least 0, got {initial_accumulator_value}"
            )
        self.initial_accumulator_value, self.epsilon = initial_accumulator_value, epsilon

    def add_slot(self, table: Any) -> Any:
        """Return the state of each row, [rows]."""
        return self.add_variable(
            (table.shape[0],),
            initializer=keras.initializers.Constant(self.initial_accumulator_value),
            dtype=table.dtype,
            name=f"{table.path.replace('/', '_')}_accumulator",
        )

    def update_rows(self, table: Any, slot: Any, ids: Any, gradients: Any, rate: Any) -> None:
        """Update state and rows."""
        import tensorflow as tf

        state = tf.gather(slot, ids) + tf.reduce_mean(tf.square(gradients), axis=1)
        slot.scatter_update(tf.IndexedSlices(state, ids))
        change = rate * gradients / tf.sqrt(state + self.epsilon)[:, None]
        table.scatter_sub(tf.IndexedSlices(change, ids))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this optimizer again."""
        value = self.initial_accumulator_value
        return super().get_config() | {
            "initial_accumulator_value": value,
            "epsilon": self.epsilon,
        }
