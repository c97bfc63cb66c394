"""Row-sparse optimizers: their updates against NumPy and Keras, in training and in files."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.backends import both, run
from tutorlib.callbacks import LoaderCheckpoint
from tutorlib.columns import Chunk
from tutorlib.layers import DenseFeatures, FusedEmbedding
from tutorlib.loader import KerasSequenceLoader
from tutorlib.models import DLRM, movielens_network
from tutorlib.optimizers import RowSparseAdam, RowWiseAdagrad, sums_by_row
from tutorlib.parquet import ParquetSink
from tutorlib.schema import Column, Schema

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
    values = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return keras.Variable(values, name="embedding_weights")


def stepper(optimizer, variables, jit=False):
    """A compiled function that takes one step by a sparse gradient, given its ids and values."""
    optimizer.build(variables)

    @tf.function(jit_compile=jit, reduce_retracing=True)
    def step(ids, values):
        optimizer.apply([sparse(ids, values, variables[0])], variables)

    return step


def sparse(ids, values, variable):
    return tf.IndexedSlices(values, ids, tf.constant(list(variable.shape)))


def dense_stepper(optimizer, variable):
    """As `stepper`, with the same gradient as a matrix."""

    def step(ids, values):
        rows, width = variable.shape
        matrix = np.zeros((rows, width), np.float32)
        np.add.at(matrix, np.asarray(ids), np.asarray(values))
        optimizer.apply([tf.constant(matrix)], [variable])

    return step


def gradients(steps, ids_a_step, rows=ROWS, width=WIDTH):
    """Yield (ids, values) in which ids occur several times."""
    rng = np.random.default_rng(1)
    for _ in range(steps):
        ids = rng.integers(0, rows, ids_a_step)
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
    assert int(optimizer.iterations) == 6


@jits
@kinds
def test_rows_that_a_batch_does_not_name_stay_bit_identical(kind, jit):
    variable = table()
    optimizer = KINDS[kind](keras.optimizers.Adam(0.1))
    step = stepper(optimizer, [variable], jit)
    everything = tf.range(ROWS, dtype=tf.int64)
    step(everything, tf.ones((ROWS, WIDTH)))
    weights, state = np.array(variable), state_of(optimizer)
    for _ in range(3):
        step(tf.constant([2, 5, 2], tf.int64), tf.ones((3, WIDTH)))
    named = np.isin(np.arange(ROWS), [2, 5])
    for before, after in ((weights, np.array(variable)), (state, state_of(optimizer))):
        np.testing.assert_array_equal(after[~named], before[~named])
        assert (after[named] != before[named]).all()


@jits
@kinds
def test_gradients_of_a_row_that_occurs_twice_are_summed(kind, jit):
    twice, once = table(), table()
    values = np.random.default_rng(2).normal(size=(4, WIDTH)).astype(np.float32)
    step = stepper(KINDS[kind](keras.optimizers.Adam(0.1)), [twice], jit)
    step(tf.constant([3, 1, 3, 6]), tf.constant(values))
    step = stepper(KINDS[kind](keras.optimizers.Adam(0.1)), [once], jit)
    summed = np.stack([values[1], values[0] + values[2], values[3]])
    step(tf.constant([1, 3, 6]), tf.constant(summed))
    np.testing.assert_allclose(twice, once, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("number", [0, 1, 2000])
@pytest.mark.parametrize("width", [1, 8, 33, 64])
def test_sums_of_rows_are_those_of_a_segment_sum_bit_for_bit(dtype, number, width):
    rng = np.random.default_rng(5)
    ids = tf.constant((50 * rng.random(number) ** 4).astype(np.int64))
    values = tf.cast(rng.normal(size=(number, width)), dtype)
    unique, sums = tf.function(sums_by_row)(tf.IndexedSlices(values, ids), (50, width))
    expected, positions = tf.unique(ids)
    np.testing.assert_array_equal(unique, expected)
    segments = tf.math.unsorted_segment_sum(values, positions, tf.size(expected))
    assert np.array(sums).tobytes() == np.array(segments).tobytes()


@jits
def test_adam_equals_keras_adam_if_every_row_is_named(jit):
    ours, theirs = table(), table()
    steps = [
        stepper(RowSparseAdam(keras.optimizers.Adam(0.1)), [ours], jit),
        dense_stepper(keras.optimizers.Adam(0.1), theirs),
    ]
    rng = np.random.default_rng(3)
    for _ in range(10):
        ids = np.concatenate([rng.permutation(ROWS), rng.integers(0, ROWS, 5)])
        values = rng.normal(size=(ROWS + 5, WIDTH)).astype(np.float32)
        for step in steps:
            step(tf.constant(ids), tf.constant(values))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_adagrad_equals_keras_adagrad_on_rows_of_one_number():
    ours, theirs = table(width=1), table(width=1)
    steps = [
        stepper(RowWiseAdagrad(keras.optimizers.SGD(0.1)), [ours]),
        dense_stepper(keras.optimizers.Adagrad(0.1), theirs),
    ]
    for ids, values in gradients(10, 4, width=1):
        for step in steps:
            step(tf.constant(ids), tf.constant(values))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_keras_adam_squares_the_parts_of_a_gradient_and_ours_their_sum():
    """The docstring says so; this fails once Keras follows Adam's definition."""

    def change(optimizer, is_sparse):
        variable = keras.Variable(np.zeros((2, 1), np.float32), name="embedding_weights")
        gradient = sparse([0, 0], tf.constant([[1.0], [3.0]]), variable)
        optimizer.apply([gradient if is_sparse else tf.convert_to_tensor(gradient)], [variable])
        return float(np.array(variable)[0, 0])

    assert change(keras.optimizers.Adam(0.1), False) == pytest.approx(-0.1, rel=1e-4)
    assert change(RowSparseAdam(keras.optimizers.Adam(0.1)), True) == pytest.approx(-0.1, rel=1e-4)
    # 4 / sqrt(1 + 9) in place of 4 / sqrt(16)
    assert change(keras.optimizers.Adam(0.1), True) == pytest.approx(-0.4 / 10**0.5, rel=1e-4)


def test_a_dense_gradient_of_a_table_updates_every_row():
    ours, theirs = table(), table()
    optimizers = [RowSparseAdam(keras.optimizers.Adam(0.1)), keras.optimizers.Adam(0.1)]
    gradient = np.random.default_rng(4).normal(size=(ROWS, WIDTH)).astype(np.float32)
    for optimizer, variable in zip(optimizers, (ours, theirs), strict=True):
        for _ in range(3):
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_other_variables_are_updated_by_the_dense_optimizer():
    rest, alone = (keras.Variable(np.ones((2, 2), np.float32), name="kernel") for _ in range(2))
    variable = table()
    sgd = {"learning_rate": 0.5, "momentum": 0.9, "clipnorm": 0.1}
    optimizer = RowWiseAdagrad(keras.optimizers.SGD(**sgd))
    plain = keras.optimizers.SGD(**sgd)
    slices = sparse([1], tf.ones((1, WIDTH)), variable)
    for _ in range(3):
        optimizer.apply([slices, tf.ones((2, 2))], [variable, rest])
        plain.apply([tf.ones((2, 2))], [alone])
    np.testing.assert_array_equal(rest, alone)
    assert int(optimizer.iterations) == int(plain.iterations) == 3


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


@pytest.mark.parametrize("kind", ["fused", "features", "lists", "keras"])
def test_every_kind_of_table_gives_sparse_gradients(kind, monkeypatch):
    seen = set()
    original = RowSparseAdam.update_step

    def update_step(self, gradient, variable, learning_rate):
        seen.add((id(variable), type(gradient)))
        original(self, gradient, variable, learning_rate)

    monkeypatch.setattr(RowSparseAdam, "update_step", update_step)  # only to look on
    inputs, labels = rows(number=32)
    del inputs["x"]
    ids = Schema(COLUMNS[:2])
    if kind == "lists":
        genres = Column("g", "categorical", multi_hot=True, cardinality=5, embedding_dim=2)
        made = movielens_network([*ids, genres], [4])
        inputs |= {"g__values": np.ones((64, 1), int), "g__nnzs": np.full((32, 1), 2)}
    else:
        symbols = {name: keras.Input((1,), name=name, dtype="int32") for name in ids.names}
        layer = {
            "fused": FusedEmbedding(ids, "concat"),
            "features": DenseFeatures(ids),
            "keras": lambda x: keras.layers.Flatten()(keras.layers.Embedding(30, 4)(x["a"])),
        }[kind]
        made = keras.Model(symbols, keras.layers.Dense(1, "sigmoid")(layer(symbols)))
    made.compile(RowSparseAdam(), "binary_crossentropy")
    made.train_on_batch(inputs, labels)
    tables = {"fused": 1, "features": 2, "lists": 3, "keras": 1}[kind]
    assert [type_ for _, type_ in seen] == [tf.IndexedSlices] * tables


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


@kinds
def test_a_loader_checkpoint_restores_all_state_of_the_optimizer(kind, tmp_path):
    inputs, labels = rows()
    with ParquetSink(tmp_path / "train", row_group_rows=64) as sink:
        sink.write(Chunk({name: x[:, 0] for name, x in {**inputs, "y": labels}.items()}))
    schema = Schema([*COLUMNS, Column("y", "label", "float32")])

    def training():
        loader = KerasSequenceLoader(tmp_path / "train", 32, schema=schema, seed=3)
        made = model(KINDS[kind](keras.optimizers.Adam(0.03)))
        return made, loader, LoaderCheckpoint(tmp_path / "checkpoints", loader)

    made, loader, checkpoint = training()
    made.fit(loader, epochs=2, verbose=0, callbacks=[checkpoint])
    again, loader, checkpoint = training()
    assert checkpoint.restore(again) == 2
    for ours, theirs in zip(made.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert state_of(again.optimizer).any()


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
            lambda: RowSparseAdam().build([keras.Variable(np.ones((2, 2)), name="kernel")]),
            "found no embedding table.*kernel",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@both
def test_other_backends_are_refused_with_the_remedy(backend, tmp_path):
    code = """
from tutorlib.optimizers import RowSparseAdam
try:
    RowSparseAdam()
except RuntimeError as error:
    print(json.dumps(str(error)))
"""
    message = run(backend, str(tmp_path), code)
    assert f"'{backend}'" in message
    assert "Use keras.optimizers" in message
