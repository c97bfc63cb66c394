"""Row-sparse optimizers: their updates against NumPy and Keras, in training and in files."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tutorlib.layers import DenseFeatures, EmbeddingTable, FusedEmbedding, keras_inputs
from tutorlib.models import DLRM
from tutorlib.optimizers import RowSparseAdam, RowWiseAdagrad, sums_by_row
from tutorlib.schema import Column

ROWS, WIDTH = 7, 3
COLUMNS = [
    Column("a", "categorical", cardinality=30, embedding_dim=4),
    Column("b", "categorical", cardinality=9, embedding_dim=4),
    Column("x", "continuous", "float32"),
]
KINDS = {"adam": RowSparseAdam, "adagrad": RowWiseAdagrad}
kinds = pytest.mark.parametrize("kind", KINDS)
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
    [state] = [v for v in optimizer.variables if v.path.endswith(("moments", "accumulator"))]
    return np.array(state)


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


def adagrad_in_numpy(weights, batches, rate=0.1, start=0.1, epsilon=1e-7):
    weights = weights.astype(np.float64)
    state = np.full(len(weights), start)
    for ids, values in batches:
        for row in set(ids.tolist()):
            g = values[ids == row].astype(np.float64).sum(axis=0)
            state[row] += (g * g).mean()
            weights[row] -= rate * g / np.sqrt(state[row] + epsilon)
    return weights, state


@jits
@kinds
@pytest.mark.parametrize("ids_a_step", [4, 20])  # fewer and more than there are rows
def test_an_optimizer_equals_its_formula_row_by_row(kind, ids_a_step, jit):
    variable = table()
    start = np.array(variable)
    optimizer = KINDS[kind](keras.optimizers.Adam(0.1))
    step = stepper(optimizer, [variable], jit)
    batches = list(gradients(6, ids_a_step))
    for ids, values in batches:
        step(tf.constant(ids), tf.constant(values))
    oracle = {"adam": adam_in_numpy, "adagrad": adagrad_in_numpy}[kind]
    weights, state = oracle(start, batches)
    np.testing.assert_allclose(variable, weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state_of(optimizer), state, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(np.array(variable)[-1], start[-1])  # no batch names it
    assert int(optimizer.iterations) == 6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("number", "width"), [(0, 8), (1, 33), (2000, 1), (2000, 64)])
def test_sums_of_rows_are_those_of_a_segment_sum_bit_for_bit(dtype, number, width):
    rng = np.random.default_rng(5)
    ids = tf.constant((50 * rng.random(number) ** 4).astype(np.int64))
    values = tf.cast(rng.normal(size=(number, width)), dtype)
    unique, sums = tf.function(sums_by_row)(tf.IndexedSlices(values, ids), (50, width))
    expected, positions = tf.unique(ids)
    np.testing.assert_array_equal(unique, expected)
    segments = tf.math.unsorted_segment_sum(values, positions, tf.size(expected))
    assert np.array(sums).tobytes() == np.array(segments).tobytes()


def test_dense_gradients_are_applied_by_the_dense_optimizer_also_those_of_a_table():
    for plain in (keras.optimizers.SGD(0.5, 0.9, clipnorm=0.1), keras.optimizers.Adam(0.1)):
        ours, alone = ([table(), keras.Variable(np.ones((2, 2)), name="kernel")] for _ in range(2))
        gradients = [tf.ones((ROWS, WIDTH)), tf.ones((2, 2))]
        optimizer = RowSparseAdam(type(plain).from_config(plain.get_config()))
        for _ in range(3):
            optimizer.apply(gradients, ours)
            plain.apply(gradients, alone)
        np.testing.assert_array_equal(ours[1], alone[1])
        assert int(optimizer.iterations) == int(plain.iterations) == 3
    np.testing.assert_allclose(ours[0], alone[0], rtol=1e-5)  # as Adam does


def test_tables_get_a_multiple_of_the_one_learning_rate():
    def moved(**arguments):
        variable, kernel = table(), keras.Variable(np.ones((2, 2), np.float32), name="kernel")
        before = [np.array(variable), np.array(kernel)]
        optimizer = RowWiseAdagrad(keras.optimizers.SGD(0.5), **arguments)
        optimizer.learning_rate = 0.1
        slices = sparse([1], tf.ones((1, WIDTH)), variable)
        optimizer.apply([slices, tf.ones((2, 2))], [variable, kernel])
        assert float(optimizer.learning_rate) == pytest.approx(0.1)
        return np.array(variable)[1] - before[0][1], np.array(kernel) - before[1]

    (of_row, of_kernel), (of_row_scaled, _) = moved(), moved(table_scale=10)
    np.testing.assert_allclose(of_kernel, np.full((2, 2), -0.1), rtol=1e-5)
    np.testing.assert_allclose(of_row_scaled, 10 * of_row, rtol=1e-4)


def test_a_schedule_advances_if_all_variables_are_tables():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.25])
    optimizer = RowSparseAdam(keras.optimizers.Adam(schedule))
    step = stepper(optimizer, [table()])
    rates = []
    for _ in range(4):
        rates.append(float(optimizer.learning_rate))
        step(tf.constant([1]), tf.ones((1, WIDTH)))
    assert rates == [0.5, 0.5, 0.25, 0.25]


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


@pytest.mark.parametrize(
    ("kind", "policy", "jit"),
    [
        ("adam", "float32", False),
        ("adagrad", "float32", False),
        ("adam", "mixed_float16", False),
        ("adagrad", "mixed_float16", True),
        ("adam", "mixed_float16", True),
    ],
)
def test_a_model_learns_with_a_row_sparse_optimizer(kind, policy, jit):
    keras.config.set_dtype_policy(policy)
    try:
        scale = {"adam": 1.0, "adagrad": 3.0}[kind]
        made = model(KINDS[kind](keras.optimizers.Adam(0.03), scale), jit_compile=jit)
        inputs, labels = rows()
        losses = made.fit(inputs, labels, batch_size=64, epochs=8, verbose=0).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("kind", "is_sparse"),
    [("fused", True), ("features", True), ("lists", True), ("named", True), ("positions", False)],
)
def test_only_rows_of_the_batch_move_in_tables_that_layers_made_or_that_are_named(kind, is_sparse):
    """Keras's Adam would go on moving the rows of the first batch; so it does with positions."""
    column = Column("a", "categorical", multi_hot=kind == "lists", cardinality=30, embedding_dim=4)
    inputs, plain = keras_inputs([column]), keras.layers.Embedding(30, 4, name="plain")
    parts = []
    if kind in ("fused", "positions"):
        parts.append(FusedEmbedding([column], "concat")(inputs))
    if kind in ("features", "lists"):
        parts.append(DenseFeatures([column])(inputs))
    if kind in ("named", "positions"):
        parts.insert(0, keras.layers.Flatten()(plain(inputs["a"])))
    x = keras.layers.Concatenate()([*parts, *parts])
    made = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(x))
    tables = [plain] if kind == "named" else None
    made.compile(RowSparseAdam(tables=tables), "binary_crossentropy")
    for ids in ([[3], [7]], [[5], [9]]):
        batch = {"a": np.array(ids)}
        if kind == "lists":
            batch = {"a__values": np.array(ids), "a__nnzs": np.array([[2], [0]])}
        before = made.trainable_variables[0].numpy()
        made.train_on_batch(batch, np.array([[0.0], [1.0]]))
        moved = (made.trainable_variables[0].numpy() != before).any(axis=1)
    assert set(np.flatnonzero(moved)) == ({5, 9} if is_sparse else {3, 5, 7, 9})


def test_tables_named_by_layer_or_variable_come_back_from_a_keras_file(tmp_path):
    ids = keras.Input((1,), dtype="int32")
    first, second = (keras.layers.Embedding(9, 2) for _ in range(2))
    x = keras.layers.Flatten()(first(ids) * second(ids))
    made = keras.Model(ids, keras.layers.Dense(1)(x))
    made.compile(RowSparseAdam(tables=[first, second.embeddings]), "mse")
    made.train_on_batch(np.array([[3]]), np.array([[1.0]]))
    made.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.tables == [first.embeddings.path, second.embeddings.path]
    for model in (made, again):
        model.train_on_batch(np.array([[4]]), np.array([[2.0]]))
    for ours, theirs in zip(made.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_scaled_loss_leaves_gradients_sparse():
    """The table would have 2**40 rows: anything as long as it does not fit into memory."""
    scaled = keras.optimizers.LossScaleOptimizer(RowSparseAdam())
    rows, shape = tf.ones((2, 4)), tf.constant([2**40, 4], tf.int64)
    for values, is_finite in ((rows, True), (rows * np.inf, False), (rows * np.nan, False)):
        gradient = tf.IndexedSlices(values, tf.constant([0, 2**39], tf.int64), shape)
        for gradients in ([gradient, tf.ones(3)], [tf.ones(3), None, gradient]):
            assert bool(scaled.check_finite(gradients)) == is_finite
    assert not scaled.check_finite([tf.constant([1.0, np.nan])])


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


@kinds
def test_a_training_resumed_from_a_keras_file_has_the_same_losses(kind, tmp_path):
    inputs, labels = rows()
    made = model(KINDS[kind](keras.optimizers.Adam(0.03), 2.0))
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


def test_an_optimizer_comes_back_from_its_config():
    optimizer = RowSparseAdam(keras.optimizers.SGD(0.5, momentum=0.9), 3, 0.8, 0.99, 1e-5)
    config = json.loads(json.dumps(keras.optimizers.serialize(optimizer)))
    again = keras.optimizers.deserialize(config)
    assert again.get_config() == optimizer.get_config()
    assert (again.beta_1, again.beta_2, again.epsilon, again.table_scale) == (0.8, 0.99, 1e-5, 3.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RowSparseAdam(table_scale=0), "table_scale must be above 0, got 0"),
        (lambda: RowWiseAdagrad(initial_accumulator_value=-1), "at least 0, got -1"),
        (
            lambda: RowSparseAdam(keras.optimizers.Adam(gradient_accumulation_steps=2)),
            "neither accumulate gradients",
        ),
        (
            lambda: RowSparseAdam(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())),
            "put a LossScaleOptimizer around RowSparseAdam",
        ),
        (
            lambda: RowSparseAdam(keras.optimizers.Adam(global_clipnorm=1.0)),
            "global_clipnorm.*got 1.0",
        ),
        (
            lambda: RowSparseAdam().build([keras.Variable(np.ones((2, 2)), name="embeddings")]),
            "found no embedding table.*embeddings.*in `tables`",
        ),
        (
            lambda: RowSparseAdam(tables=[keras.Variable(np.ones((2, 2)), name="b")]).build(
                [keras.Variable(np.ones((2, 2)), name="a")]
            ),
            r"found no embedding table \['b'\] among \['a'\]",
        ),
        (lambda: RowSparseAdam(tables=[keras.layers.Embedding(3, 2)]), "Build it first"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---- some variables without a gradient ----------------------------------------------------------


def two_heads():
    """A model whose outputs are a tower of tables and a tower without."""
    inputs = keras_inputs(COLUMNS)
    ids = {name: inputs[name] for name in ("a", "b")}
    tables = FusedEmbedding(COLUMNS, "concat", name="tables")(ids)
    dense = keras.layers.Dense(1, name="dense")(inputs["x"])
    outputs = {"tables": keras.ops.sum(tables, 1, keepdims=True), "dense": dense}
    return keras.Model(inputs, outputs)


@jits
@kinds
@pytest.mark.parametrize("trained", ["tables", "dense"])
def test_variables_with_a_gradient_are_trained_if_others_have_none(trained, kind, jit):
    made, (inputs, labels) = two_heads(), rows(number=8)
    made.compile(KINDS[kind](), loss={trained: "mse"}, jit_compile=jit)
    before = {variable.path: np.array(variable) for variable in made.trainable_variables}
    with pytest.warns(UserWarning, match="have no gradient and are not updated"):
        made.train_on_batch(inputs, {trained: labels})
    made.train_on_batch(inputs, {trained: labels})
    moved = {
        path.split("/")[0]
        for path, start in before.items()
        if (start != dict(zip(before, made.get_weights(), strict=True))[path]).any()
    }
    assert moved == {trained}
    assert int(made.optimizer.iterations) == 2


@kinds
def test_frozen_tables_stay_and_the_rest_is_trained(kind):
    made, (inputs, labels) = two_heads(), rows(number=8)
    made.get_layer("tables").trainable = False
    made.compile(KINDS[kind](keras.optimizers.SGD(0.1)), loss={"dense": "mse"})
    frozen, kernel = made.get_layer("tables").get_weights(), made.get_layer("dense").get_weights()
    with pytest.warns(UserWarning, match="found no embedding table.*updates them all"):
        made.train_on_batch(inputs, {"dense": labels})
    np.testing.assert_array_equal(made.get_layer("tables").get_weights(), frozen)
    assert (made.get_layer("dense").get_weights()[0] != kernel[0]).all()
    assert int(made.optimizer.iterations) == 1


def test_no_gradient_at_all_is_refused_as_by_keras_and_counts_no_step():
    variables = [table(), keras.Variable(np.ones((2, 2)), name="kernel")]
    optimizer = RowSparseAdam()
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply([None, None], variables)
    assert int(optimizer.iterations) == 0


def test_the_check_of_other_scaled_optimizers_is_that_of_keras():
    """A sparse gradient of theirs becomes dense in it, so a table of 2**40 rows does not fit."""
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    shape = tf.constant([2**40, 4], tf.int64)
    gradient = tf.IndexedSlices(tf.ones((1, 4)), tf.constant([0], tf.int64), shape)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        scaled.check_finite([gradient])
