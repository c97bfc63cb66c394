"""RowSparseAdam: its updates against NumPy and Keras, in training and in files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tutorlib.layers import DenseFeatures, EmbeddingTable, FusedEmbedding, keras_inputs
from tutorlib.models import DLRM
from tutorlib.optimizers import RowSparseAdam, sums_by_row
from tutorlib.schema import Column

ROWS, WIDTH = 7, 3
COLUMNS = [
    Column("a", "categorical", cardinality=30, embedding_dim=4),
    Column("b", "categorical", cardinality=9, embedding_dim=4),
    Column("x", "continuous", "float32"),
]
jits = pytest.mark.parametrize("jit", [False, True])


def table(rows=ROWS, width=WIDTH, seed=0):
    layer = EmbeddingTable(rows, width)
    layer.build()
    layer.set_weights([np.random.default_rng(seed).normal(size=(rows, width))])
    return layer.embedding_weights


def stepper(optimizer, variables, jit=False):
    """A compiled function that takes one step by a sparse gradient, given its ids and values."""
    optimizer.build(variables)

    @tf.function(jit_compile=jit, reduce_retracing=True)
    def step(ids, values):
        optimizer.apply([sparse(ids, values, variables[0])], variables)

    return step


def sparse(ids, values, variable):
    return tf.IndexedSlices(values, ids, tf.constant(list(variable.shape)))


def gradients(steps, ids_a_step, rows=ROWS, width=WIDTH):
    """Yield (ids, values) in which ids occur several times, and the last row never."""
    rng = np.random.default_rng(1)
    for _ in range(steps):
        ids = rng.integers(0, rows - 1, ids_a_step)
        yield ids, rng.normal(size=(ids_a_step, width)).astype(np.float32)


def state_of(optimizer):
    """Both moments of the only variable, side by side."""
    [first], [second] = optimizer._momentums, optimizer._velocities
    return np.concatenate([first, second], axis=1)


def adam_in_numpy(weights, batches, rate=0.1, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    """Row by row, in float64: only rows of the batch, their gradients summed."""
    weights = weights.astype(np.float64)
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for step, (ids, values) in enumerate(batches, 1):
        for row in set(ids.tolist()):
            g = values[ids == row].astype(np.float64).sum(axis=0)
            first[row] = beta_1 * first[row] + (1 - beta_1) * g
            second[row] = beta_2 * second[row] + (1 - beta_2) * g * g
            alpha = rate * np.sqrt(1 - beta_2**step) / (1 - beta_1**step)
            weights[row] -= alpha * first[row] / (np.sqrt(second[row]) + epsilon)
    return weights, np.concatenate([first, second], axis=1)


@jits
@pytest.mark.parametrize("ids_a_step", [4, 20])  # fewer and more than there are rows
def test_a_table_equals_the_formula_row_by_row(ids_a_step, jit):
    variable = table()
    start = np.array(variable)
    optimizer = RowSparseAdam(0.1)
    step = stepper(optimizer, [variable], jit)
    batches = list(gradients(6, ids_a_step))
    for ids, values in batches:
        step(tf.constant(ids), tf.constant(values))
    weights, state = adam_in_numpy(start, batches)
    np.testing.assert_allclose(variable, weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state_of(optimizer), state, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(np.array(variable)[-1], start[-1])  # no batch names it
    assert int(optimizer.iterations) == 6


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("number", "width"), [(0, 8), (1, 33), (2000, 64)])
def test_sums_of_rows_are_those_of_a_segment_sum_bit_for_bit(dtype, number, width):
    rng = np.random.default_rng(5)
    ids = tf.constant((50 * rng.random(number) ** 4).astype(np.int64))
    values = tf.cast(rng.normal(size=(number, width)), dtype)
    unique, sums = tf.function(sums_by_row)(tf.IndexedSlices(values, ids), (50, width))
    expected, positions = tf.unique(ids)
    np.testing.assert_array_equal(unique, expected)
    segments = tf.math.unsorted_segment_sum(values, positions, tf.size(expected))
    assert np.array(sums).tobytes() == np.array(segments).tobytes()


def test_dense_gradients_are_applied_as_by_keras_also_those_of_a_table():
    ours, alone = ([table(), keras.Variable(np.ones((2, 2)), name="kernel")] for _ in range(2))
    optimizers = [RowSparseAdam(0.1), keras.optimizers.Adam(0.1)]
    for optimizer, variables in zip(optimizers, (ours, alone), strict=True):
        for _ in range(3):
            optimizer.apply([tf.ones((ROWS, WIDTH)), tf.ones((2, 2))], variables)
    for variable, of_keras in zip(ours, alone, strict=True):
        np.testing.assert_array_equal(variable, of_keras)


# ---- in training --------------------------------------------------------------------------------


def rows(seed=0, number=256):
    rng = np.random.default_rng(seed)
    inputs = {
        "a": rng.integers(0, 30, (number, 1)),
        "b": rng.integers(0, 9, (number, 1)),
        "x": rng.normal(size=(number, 1)).astype(np.float32),
    }
    return inputs, (inputs["a"] % 2 + inputs["x"] > 0.5).astype(np.float32)


def model(optimizer, **arguments):
    keras.utils.set_random_seed(0)
    made = DLRM(COLUMNS, 4, [8], [8])
    made.compile(optimizer, "binary_crossentropy", **arguments)
    return made


@pytest.mark.parametrize(("policy", "jit"), [("float32", False), ("mixed_float16", True)])
def test_a_model_learns(policy, jit):
    keras.config.set_dtype_policy(policy)
    try:
        made = model(RowSparseAdam(0.03), jit_compile=jit)
        inputs, labels = rows()
        losses = made.fit(inputs, labels, batch_size=64, epochs=8, verbose=0).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("kind", ["fused", "features", "lists", "embedding"])
def test_only_rows_of_the_batch_move(kind):
    """Keras's Adam would go on moving the rows of the first batch."""
    column = Column("a", "categorical", multi_hot=kind == "lists", cardinality=30, embedding_dim=4)
    inputs = keras_inputs([column])
    if kind == "fused":
        x = FusedEmbedding([column], "concat")(inputs)
    elif kind == "embedding":
        x = keras.layers.Flatten()(keras.layers.Embedding(30, 4)(inputs["a"]))
    else:
        x = DenseFeatures([column])(inputs)
    made = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(x))
    made.compile(RowSparseAdam(), "binary_crossentropy")
    for ids in ([[3], [7]], [[5], [9]]):
        batch = {"a": np.array(ids)}
        if kind == "lists":
            batch = {"a__values": np.array(ids), "a__nnzs": np.array([[2], [0]])}
        before = made.trainable_variables[0].numpy()
        made.train_on_batch(batch, np.array([[0.0], [1.0]]))
        moved = (made.trainable_variables[0].numpy() != before).any(axis=1)
    assert set(np.flatnonzero(moved)) == {5, 9}


def test_a_scaled_loss_gives_the_same_steps_and_skips_those_that_are_not_finite():
    ours, alone = table(), table()
    scaled = keras.optimizers.LossScaleOptimizer(RowSparseAdam(), initial_scale=8)
    steps = [stepper(scaled, [ours]), stepper(RowSparseAdam(), [alone])]
    for ids, values in gradients(3, 4):
        steps[0](tf.constant(ids), tf.constant(8 * values))
        steps[1](tf.constant(ids), tf.constant(values))
    before = np.array(ours)
    np.testing.assert_allclose(before, alone, rtol=1e-6)
    steps[0](tf.constant([1]), tf.fill((1, WIDTH), np.float32(np.inf)))
    np.testing.assert_array_equal(ours, before)
    assert float(scaled.dynamic_scale) == 4


def test_a_training_resumed_from_a_keras_file_has_the_same_losses(tmp_path):
    inputs, labels = rows()
    made = model(RowSparseAdam(0.03))
    made.fit(inputs, labels, batch_size=64, epochs=2, shuffle=False, verbose=0)
    made.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == made.optimizer.get_config()
    for ours, theirs in zip(made.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    losses = [
        m.fit(inputs, labels, batch_size=64, epochs=2, shuffle=False, verbose=0).history["loss"]
        for m in (made, again)
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_options_that_need_all_rows_are_refused_by_name():
    for option in ("weight_decay", "clipnorm", "global_clipnorm", "use_ema", "amsgrad"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
            RowSparseAdam(**{option: 1})


@pytest.mark.parametrize("trained", ["tables", "dense"])
def test_variables_with_a_gradient_are_trained_if_others_have_none(trained):
    inputs = keras_inputs(COLUMNS)
    ids = {name: inputs[name] for name in ("a", "b")}
    tables = FusedEmbedding(COLUMNS, "concat", name="tables")(ids)
    dense = keras.layers.Dense(1, name="dense")(inputs["x"])
    outputs = {"tables": keras.ops.sum(tables, 1, keepdims=True), "dense": dense}
    made = keras.Model(inputs, outputs)
    made.compile(RowSparseAdam(), loss={trained: "mse"})
    before = {variable.path: np.array(variable) for variable in made.trainable_variables}
    batch, labels = rows(number=8)
    with pytest.warns(UserWarning, match="Gradients do not exist for variables"):
        made.train_on_batch(batch, {trained: labels})
    after = dict(zip(before, made.get_weights(), strict=True))
    moved = {path.split("/")[0] for path in before if (before[path] != after[path]).any()}
    assert moved == {trained}
    assert int(made.optimizer.iterations) == 1
