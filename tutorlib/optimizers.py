"""Optimizers whose step on an embedding table costs as much as the rows of the batch.

Keras's own optimizers update every row of a table and of its moments in every step. These update
only the rows that the batch names, and leave all other variables to any Keras optimizer.

Measured by `python -m benchmarks layers` on two CPU cores, with 26 tables of a million rows of 16
numbers in all, against Keras's Adam: at batches of 4,096, which name 3 % of the rows, a step of
RowSparseAdam takes 11 ms instead of 74, and 15 instead of 51 under XLA; at 65,536, which name 22 %,
it takes 155 ms instead of 271, but under XLA 105, where that of Keras takes 76. The savings grow
with the tables and shrink with the batch. They are made for tables of this library, such
as `EmbeddingTable`: `keras.layers.Embedding` copies its whole table in every step.
"""

from __future__ import annotations

import abc
import functools
import inspect
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from tutorlib.layers.split_tables import is_table
from tutorlib.layers.tables import compiled_by_xla, gather_rows

register = keras.saving.register_keras_serializable(package="tutorlib")


class RowOptimizer(keras.optimizers.Optimizer, abc.ABC):
    """Base of the row-sparse optimizers: finds the tables, and updates only the rows in a batch.

    A subclass says what state a table has and how it changes a row.

    Args:
        dense: Keras optimizer, or its name, for all variables that are not tables. Its learning
            rate is the one that callbacks set and `learning_rate` shows. Its `clipnorm`,
            `clipvalue`, weight decay and moving average do not apply to the tables.
        table_scale: the tables' learning rate is this times that of `dense`; above 0.
        tables: built layers, all of whose trained matrices are tables, or variables; None for the
            tables of this library's layers.
        name: of the optimizer.

    Raises:
        RuntimeError: if Keras does not run on TensorFlow, the only backend with sparse gradients.
        ValueError: if `dense` accumulates gradients, scales the loss or clips by `global_clipnorm`,
            `table_scale` is not above 0, or a layer in `tables` has no matrix.
    """

    def __init__(
        self,
        dense: Any = "adam",
        table_scale: float = 1.0,
        tables: Iterable[Any] | None = None,
        name: str | None = None,
    ) -> None:
        if keras.config.backend() != "tensorflow":
            raise RuntimeError(
                f"{type(self).__name__} needs Keras on TensorFlow, got "
                f"{keras.config.backend()!r}, where gradients of tables are dense. Use "
                "keras.optimizers there."
            )
        if not table_scale > 0:
            raise ValueError(f"table_scale must be above 0, got {table_scale}")
        super().__init__(learning_rate=0.0, name=name)
        self.dense, self.table_scale = keras.optimizers.get(dense), float(table_scale)
        scaling = isinstance(self.dense, keras.optimizers.LossScaleOptimizer)
        if scaling or self.dense.loss_scale_factor or self.dense.gradient_accumulation_steps:
            raise ValueError(
                "dense must neither accumulate gradients nor scale the loss, because the tables "
                f"would be left out; got {self.dense.get_config()}. To scale the loss, put a "
                f"LossScaleOptimizer around {type(self).__name__}."
            )
        if self.dense.global_clipnorm:
            raise ValueError(
                "dense must not clip by global_clipnorm, because its norm would leave out the "
                f"gradients of the tables; got {self.dense.global_clipnorm}. Use clipnorm or "
                "clipvalue, which apply to each variable that is not a table."
            )
        self.tables = None if tables is None else [p for t in tables for p in _table_paths(t)]

    @abc.abstractmethod
    def add_state(self, table: Any) -> Any:
        """Return a new variable with the state of each row of a table, [rows, ...]."""

    @abc.abstractmethod
    def row_update(self, state: Any, gradients: Any, rate: Any) -> tuple[Any, Any]:
        """Return the new state of some rows, and what to subtract from them.

        Args:
            state: [n, ...], these rows of the variable that `add_state` made.
            gradients: [n, width], in the table's dtype.
            rate: learning rate of the tables, a scalar.
        """

    def build(self, variables: Sequence[Any]) -> None:
        """Create the state of all variables.

        Raises:
            ValueError: if one of `tables` is not among them, or the only tables are those of other
                libraries, which `tables` does not name.
        """
        if self.built:
            return
        paths = [variable.path for variable in variables]
        if self.tables is None:
            are_tables = [hasattr(variable, "is_embedding_table") for variable in variables]
        else:
            are_tables = [path in self.tables for path in paths]
        missing = [path for path in self.tables or () if path not in paths]
        if missing or not any(are_tables):
            wanted = f"embedding table {missing}" if missing else "embedding table"
            found = f"{type(self).__name__} found no {wanted} among {paths}"
            if missing or any(map(is_table, variables)):
                raise ValueError(
                    f"{found}. Name layers or variables of this model in `tables`, as is needed "
                    "for layers of others, such as keras.layers.Embedding, or use "
                    f"{self.dense.name!r} alone."
                )
            warnings.warn(
                f"{found}, so {self.dense.name!r} updates them all, as it should if the tables "
                "are frozen.",
                stacklevel=2,
            )
        super().build(variables)
        self._states = [
            self.add_state(variable) if has_state else None
            for variable, has_state in zip(variables, are_tables, strict=True)
        ]
        self.dense.build([v for v in variables if self._state_of(v) is None])

    def _state_of(self, variable: Any) -> Any:
        """Return the state of a table, or None for a variable that is no table."""
        return self._states[self._get_variable_index(variable)]

    @property
    def variables(self) -> list[Any]:
        """All state: of the tables, and of the dense optimizer."""
        return [*super().variables, *self.dense.variables]

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the variables that are not tables."""
        return self.dense.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.dense.learning_rate = value

    @property
    def iterations(self) -> Any:
        """Number of steps taken."""
        return self.dense.iterations

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Update all variables that have a gradient.

        Raises:
            ValueError: if no variable has one.
        """
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(list(trainable_variables))
        pairs = list(zip(grads, trainable_variables, strict=True))
        given = [pair for pair in pairs if pair[0] is not None]
        if given and len(given) < len(pairs):
            missing = [variable.path for gradient, variable in pairs if gradient is None]
            warnings.warn(
                f"Variables {missing} have no gradient and are not updated: the loss does not "
                "depend on them.",
                stacklevel=2,
            )
            pairs = given
        tables = [pair for pair in pairs if self._state_of(pair[1]) is not None]
        others = [pair for pair in pairs if self._state_of(pair[1]) is None]
        if tables:
            super().apply(*map(list, zip(*tables, strict=True)))
        if others:
            self.dense.apply(*map(list, zip(*others, strict=True)))  # counts the step
        else:
            self.dense.iterations.assign_add(1)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update the rows of a table that a gradient names."""
        import tensorflow as tf

        if not isinstance(gradient, tf.IndexedSlices):  # something read the table as a whole
            gradient = tf.IndexedSlices(gradient, tf.range(tf.shape(gradient)[0]))
        ids, gradients = sums_by_row(gradient, variable.shape)
        rate = tf.cast(learning_rate, variable.dtype) * self.table_scale
        state = self._state_of(variable).value
        new_state, change = self.row_update(
            gather_rows(state, ids), tf.cast(gradients, variable.dtype), rate
        )
        state.scatter_update(tf.IndexedSlices(new_state, ids))
        if compiled_by_xla() or tf.config.list_logical_devices("GPU"):
            variable.scatter_sub(tf.IndexedSlices(change, ids))
        else:  # the same bits in half the time, as each id occurs once
            rows = gather_rows(variable, ids) - change
            variable.scatter_update(tf.IndexedSlices(rows, ids))

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Let the dense optimizer write its moving averages to its variables."""
        self.dense.finalize_variable_values([v for v in var_list if self._state_of(v) is None])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this optimizer."""
        dense = keras.optimizers.serialize(self.dense)
        return {
            "name": self.name,
            "dense": dense,
            "table_scale": self.table_scale,
            "tables": self.tables,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Return the optimizer that `get_config` describes."""
        dense = keras.optimizers.deserialize(config["dense"], custom_objects=custom_objects)
        return cls(**{**config, "dense": dense})


def _table_paths(table: Any) -> list[str]:
    """Return the paths of a layer's tables or of a variable; a path, as in a config, stays."""
    if isinstance(table, str):
        return [table]
    if not isinstance(table, keras.layers.Layer):
        return [table.path]
    paths = [weight.path for weight in table.trainable_weights if len(weight.shape) == 2]
    if not paths:
        raise ValueError(
            f"tables: layer {table.name!r} has no trained matrix. Build it first, as by making a "
            "model of it; leave it out if it is frozen."
        )
    return paths


if keras.config.backend() == "tensorflow":
    # Keras puts a LossScaleOptimizer around the optimizer of a mixed_float16 model, and offers no
    # way to choose another. Its check makes a matrix as large as the table of each sparse gradient.
    _keras_check_finite = inspect.unwrap(keras.optimizers.LossScaleOptimizer.check_finite)

    @functools.wraps(_keras_check_finite)
    def _check_finite(self: Any, grads: Sequence[Any]) -> Any:
        if isinstance(self.inner_optimizer, RowOptimizer):  # all others are checked as before
            import tensorflow as tf

            grads = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
        return _keras_check_finite(self, grads)

    keras.optimizers.LossScaleOptimizer.check_finite = _check_finite


def sums_by_row(gradient: Any, shape: Sequence[int]) -> tuple[Any, Any]:
    """Return the rows that a `tf.IndexedSlices` names, each once, and their summed gradients.

    They are ids [n] and gradients [n, width]. XLA needs a fixed n, so there n is the smaller of the
    gradient's length and the table's; surplus ids equal `rows`, and a scatter ignores them.
    """
    import tensorflow as tf

    ids = tf.reshape(gradient.indices, (-1,))
    values = tf.reshape(gradient.values, (-1, shape[1]))
    if compiled_by_xla():
        return _sums_under_xla(ids, values, shape[0])
    unique, positions = tf.unique(ids)
    size, total = tf.size(unique), tf.size(ids)
    if values.dtype not in (tf.float32, tf.float64) or tf.config.list_logical_devices("GPU"):
        return unique, tf.math.unsorted_segment_sum(values, positions, size)
    # On a CPU, the same bits in a quarter of the time: multiply the values by a sparse matrix with
    # a one at (position of the id, number of the value).
    ones = tf.stack([positions, tf.range(total)], axis=1)
    matrix = tf.SparseTensor(
        tf.cast(ones, tf.int64), tf.ones((total,), values.dtype), (size, total)
    )
    return unique, tf.sparse.sparse_dense_matmul(matrix, values)


def _sums_under_xla(ids: Any, values: Any, rows: int) -> tuple[Any, Any]:
    """Return what `sums_by_row` does, without `tf.unique` and sorting, which are slow under XLA.

    A row's sum goes to the position of its last occurrence in the batch; or, if the batch has at
    least as many ids as the table has rows, to the row's own number.
    """
    import tensorflow as tf

    size = ids.shape[0] or tf.size(ids)
    if isinstance(size, int) and size >= rows:
        named = tf.math.unsorted_segment_sum(tf.ones_like(ids), ids, rows) > 0
        numbers = tf.range(rows, dtype=ids.dtype)
        return tf.where(named, numbers, rows), tf.math.unsorted_segment_sum(values, ids, rows)
    positions = tf.range(size)
    last = tf.gather(tf.math.unsorted_segment_max(positions, ids, rows), ids)
    sums = tf.math.unsorted_segment_sum(values, last, size)
    return tf.where(last == positions, ids, tf.cast(rows, ids.dtype)), sums


@register
class RowSparseAdam(RowOptimizer):
    """Adam that updates only the table rows in the batch, elsewhere called lazy Adam.

    Keras's Adam moves every row in every step, even rows without a gradient, by their remaining
    moments. Here the value and the moments of a row stay as they are until a batch names it again.
    The bias correction counts all steps.

    If every step names every row once, this equals Keras's Adam. If a row occurs several times in a
    batch, Keras 3.15 on TensorFlow adds the squares of its partial gradients to the second moment;
    Adam's definition, followed here, is the square of their sum.

    `keras.layers.Embedding` reads its table as a whole in every step, which costs a copy: 8 ms for
    a million rows of 16 numbers.

    Args:
        dense: Keras optimizer, or its name, for all other variables; its learning rate is also the
            tables'.
        table_scale: multiplies the learning rate of the tables; above 0.
        beta_1: decay of a row's first moment per step that names it.
        beta_2: decay of a row's second moment per step that names it.
        epsilon: added to the square root of the second moment.
        tables: built layers or variables whose rows are updated so, such as
            `[model.get_layer("embedding")]`; None for the tables of this library's layers. A table
            that is not among them is updated by `dense`.
        name: of the optimizer.

    Raises:
        RuntimeError: if Keras does not run on TensorFlow.
        ValueError: if `dense` accumulates gradients, scales the loss or clips by `global_clipnorm`,
            or a table is not found (see `tables`).

    Example:
        >>> from tutorlib import DLRM, Column
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> model = DLRM(columns, 4, [8], [8])
        >>> optimizer = RowSparseAdam(keras.optimizers.Adam(0.01))
        >>> model.compile(optimizer, "binary_crossentropy")
        >>> round(float(model.optimizer.learning_rate), 3)
        0.01

    Source: Kingma and Ba, Adam, 2014, arXiv:1412.6980, applied to the rows of a batch.
    """

    def __init__(
        self,
        dense: Any = "adam",
        table_scale: float = 1.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        tables: Iterable[Any] | None = None,
        name: str | None = "row_sparse_adam",
    ) -> None:
        super().__init__(dense, table_scale, tables, name)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def add_state(self, table: Any) -> Any:
        """Return both moments of each row, [rows, 2 width], so one gather reads both."""
        rows, width = table.shape
        name = f"{table.path.replace('/', '_')}_moments"
        return self.add_variable((rows, 2 * width), dtype=table.dtype, name=name)

    def row_update(self, state: Any, gradients: Any, rate: Any) -> tuple[Any, Any]:
        """Return the new moments of some rows, and what to subtract from the rows."""
        import tensorflow as tf

        step = tf.cast(self.iterations.value + 1, state.dtype)
        powers = [tf.cast(beta, state.dtype) ** step for beta in (self.beta_1, self.beta_2)]
        first, second = tf.split(state, 2, axis=1)
        first += (gradients - first) * (1 - self.beta_1)
        second += (tf.square(gradients) - second) * (1 - self.beta_2)
        alpha = rate * tf.sqrt(1 - powers[1]) / (1 - powers[0])
        change = first * alpha / (tf.sqrt(second) + self.epsilon)
        return tf.concat([first, second], axis=1), change

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this optimizer."""
        betas = {"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}
        return super().get_config() | betas


@register
class RowWiseAdagrad(RowOptimizer):
    """Adagrad with one number of state per table row: the sum of its mean squared gradients.

    For tables of width 16 the state takes 1/16 of the table's memory, where Adam's takes twice the
    table. Rows that a batch does not name have no gradient, so skipping them is exact.

    It is Keras's Adagrad on rows of one number: the change is rate * g / sqrt(state + epsilon), and
    the state starts at 0.1. FBGEMM's row-wise Adagrad starts at 0 and divides by sqrt(state) +
    epsilon: with `initial_accumulator_value=0` the two differ by `epsilon` only.

    Args:
        dense: Keras optimizer, or its name, for all other variables; its learning rate is also the
            tables'.
        table_scale: multiplies the learning rate of the tables; above 0. Adagrad needs about ten
            times the rate of Adam.
        initial_accumulator_value: initial state of each row, at least 0.
        epsilon: added to the state before the square root.
        tables: as in `RowSparseAdam`.
        name: of the optimizer.

    Raises:
        RuntimeError: if Keras does not run on TensorFlow.
        ValueError: as `RowSparseAdam`, or if `initial_accumulator_value` is below 0.

    Example:
        >>> optimizer = RowWiseAdagrad(keras.optimizers.Adam(0.001), table_scale=10)
        >>> optimizer.get_config()["table_scale"]
        10.0

    Source: Duchi et al., Adaptive Subgradient Methods, 2011; one number per row as in Naumov et
    al., Deep Learning Recommendation Model, 2019, arXiv:1906.00091.
    """

    def __init__(
        self,
        dense: Any = "adam",
        table_scale: float = 1.0,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        tables: Iterable[Any] | None = None,
        name: str | None = "row_wise_adagrad",
    ) -> None:
        super().__init__(dense, table_scale, tables, name)
        if initial_accumulator_value < 0:
            raise ValueError(
                f"initial_accumulator_value must be at least 0, got {initial_accumulator_value}"
            )
        self.initial_accumulator_value, self.epsilon = initial_accumulator_value, epsilon

    def add_state(self, table: Any) -> Any:
        """Return the accumulator of each row, [rows]."""
        return self.add_variable(
            (table.shape[0],),
            initializer=keras.initializers.Constant(self.initial_accumulator_value),
            dtype=table.dtype,
            name=f"{table.path.replace('/', '_')}_accumulator",
        )

    def row_update(self, state: Any, gradients: Any, rate: Any) -> tuple[Any, Any]:
        """Return the new accumulators of some rows, and what to subtract from the rows."""
        import tensorflow as tf

        state = state + tf.reduce_mean(tf.square(gradients), axis=1)
        return state, rate * gradients / tf.sqrt(state + self.epsilon)[:, None]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that recreate this optimizer."""
        return super().get_config() | {
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }
