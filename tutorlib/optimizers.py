"""An Adam whose step on an embedding table costs as much as the rows of the batch.

Keras's Adam updates every row of a table and of its moments in every step. This one updates only
the rows that the batch names.

Measured by `python -m benchmarks layers` on two CPU cores, with 26 tables of a million rows of 16
numbers in all, against Keras's Adam: at batches of 4,096, which name 3 % of the rows, a step of
RowSparseAdam takes 11 ms instead of 74, and 15 instead of 51 under XLA; at 65,536, which name 22 %,
it takes 155 ms instead of 271, but under XLA 105, where that of Keras takes 76. The savings grow
with the tables and shrink with the batch. They need tables of this library, such as
`EmbeddingTable`: `keras.layers.Embedding` copies its whole table in every step, 8 ms for that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import keras

from tutorlib.layers.tables import Tensor, compiled_by_xla, gather_rows

LearningRate: TypeAlias = (
    "float | keras.optimizers.schedules.LearningRateSchedule | Callable[[], float]"
)


@keras.saving.register_keras_serializable(package="tutorlib")
class RowSparseAdam(keras.optimizers.Adam):
    """Adam that updates only the table rows in the batch, elsewhere called lazy Adam.

    Keras's Adam moves every row in every step, even rows without a gradient, by their remaining
    moments. Here the value and the moments of a row stay as they are until a batch names it again.
    The bias correction counts all steps. A variable that the model does not look rows up in is
    updated as by Keras's Adam.

    If every step names every row once, this equals Keras's Adam. If a row occurs several times in a
    batch, Keras 3.15 on TensorFlow adds the squares of its partial gradients to the second moment;
    Adam's definition, followed here, is the square of their sum.

    The other options of Keras's Adam, such as `weight_decay`, `clipnorm`, `use_ema`, `amsgrad` and
    `gradient_accumulation_steps`, need all rows in every step, so there are none here. Under
    "mixed_float16", Keras scales the loss and therefore looks at whole gradients, as slowly as its
    own Adam; "mixed_bfloat16" needs no scale.

    Args:
        learning_rate: number above 0, schedule, or function without arguments.
        beta_1: decay of a row's first moment per step that names it, 0 to 1.
        beta_2: decay of a row's second moment per step that names it, 0 to 1.
        epsilon: added to the square root of the second moment.
        name: of the optimizer.

    Raises:
        RuntimeError: if Keras does not run on TensorFlow, the only backend with sparse gradients.

    Example:
        >>> from tutorlib import DLRM, Column
        >>> columns = [Column("C1", "categorical", cardinality=9), Column("I1", "continuous")]
        >>> model = DLRM(columns, 4, [8], [8])
        >>> model.compile(RowSparseAdam(0.01), "binary_crossentropy")
        >>> round(float(model.optimizer.learning_rate), 3)
        0.01

    Source: Kingma and Ba, Adam, 2014, arXiv:1412.6980, applied to the rows of a batch.
    """

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "row_sparse_adam",
    ) -> None:
        if keras.config.backend() != "tensorflow":
            raise RuntimeError(
                f"RowSparseAdam needs Keras on TensorFlow, got {keras.config.backend()!r}, where "
                "gradients of tables are dense. Use keras.optimizers.Adam there."
            )
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name)

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Update the rows of a table that a gradient names, or the whole of another variable."""
        import tensorflow as tf

        if not isinstance(gradient, tf.IndexedSlices) or len(variable.shape) != 2:
            super().update_step(gradient, variable, learning_rate)
            return
        ids, sums = sums_by_row(gradient, variable.shape)
        sums = tf.cast(sums, variable.dtype)
        index = self._get_variable_index(variable)
        first = self._momentums[index].value
        second = self._velocities[index].value

        new_first = gather_rows(first, ids)
        new_first += (sums - new_first) * (1 - self.beta_1)
        new_second = gather_rows(second, ids)
        new_second += (tf.square(sums) - new_second) * (1 - self.beta_2)
        first.scatter_update(tf.IndexedSlices(new_first, ids))
        second.scatter_update(tf.IndexedSlices(new_second, ids))

        step = tf.cast(self.iterations.value + 1, variable.dtype)
        left_1 = 1 - tf.cast(self.beta_1, variable.dtype) ** step
        left_2 = 1 - tf.cast(self.beta_2, variable.dtype) ** step
        rate = tf.cast(learning_rate, variable.dtype) * tf.sqrt(left_2) / left_1
        change = rate * new_first / (tf.sqrt(new_second) + self.epsilon)
        if compiled_by_xla() or tf.config.list_logical_devices("GPU"):
            variable.scatter_sub(tf.IndexedSlices(change, ids))
        else:  # the same bits in half the time, as each id occurs once
            rows = gather_rows(variable, ids) - change
            variable.scatter_update(tf.IndexedSlices(rows, ids))

    def get_config(self) -> dict[str, object]:
        """Return the arguments that recreate this optimizer."""
        config = super().get_config()
        names = ("learning_rate", "beta_1", "beta_2", "epsilon", "name")
        return {name: config[name] for name in names}


def sums_by_row(gradient: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
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
    size = tf.size(unique)
    if values.dtype not in (tf.float32, tf.float64) or tf.config.list_logical_devices("GPU"):
        return unique, tf.math.unsorted_segment_sum(values, positions, size)
    # On a CPU, the same bits in a quarter of the time: multiply the values by a sparse matrix with
    # a one at (position of the id, number of the value).
    total = tf.size(ids)
    cells = tf.cast(tf.stack([positions, tf.range(total)], axis=1), tf.int64)
    matrix = tf.SparseTensor(cells, tf.ones((total,), values.dtype), (size, total))
    return unique, tf.sparse.sparse_dense_matmul(matrix, values)


def _sums_under_xla(ids: Tensor, values: Tensor, rows: int) -> tuple[Tensor, Tensor]:
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
