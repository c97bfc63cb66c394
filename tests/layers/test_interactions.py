"""Products of features: one at a time by hand, gradients by finite differences, and keras-rs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.layer_cases import finite_differences
from tutorlib.layers import (
    CIN,
    Cross,
    DotProductInteraction,
    EmbeddingBag,
    FactorizationMachine,
    NumberEmbedding,
)


def interaction_oracle(x, kernel, kind, first):
    """One dot product at a time."""
    features, out, pair = x.shape[1], [], 0
    for i in range(features):
        for j in range(i + first, features):
            w = {
                None: lambda i, p: np.eye(x.shape[2]),
                "field_all": lambda i, p: kernel,
                "field_each": lambda i, p: kernel[i],
                "field_interaction": lambda i, p: kernel[p],
            }[kind](i, pair)
            out.append(np.einsum("bk,kd,bd->b", x[:, i], w, x[:, j]))
            pair += 1
    return np.stack(out, axis=1)


@pytest.mark.parametrize("self_interaction", [False, True])
@pytest.mark.parametrize("kind", [None, "field_all", "field_each", "field_interaction"])
def test_interaction_equals_one_dot_product_at_a_time(kind, self_interaction):
    x = np.random.default_rng(1).normal(size=(6, 5, 3)).astype(np.float32)
    layer = DotProductInteraction(kind, self_interaction)
    out = layer(x)
    kernel = None if kind is None else np.asarray(layer.kernel)
    expected = interaction_oracle(x, kernel, kind, 0 if self_interaction else 1)
    assert out.shape == expected.shape == (6, 15 if self_interaction else 10)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("self_interaction", [False, True])
@pytest.mark.parametrize("kind", [None, "field_all", "field_each", "field_interaction"])
def test_interactions_gradient_equals_finite_differences(kind, self_interaction, jit):
    layer = DotProductInteraction(kind, self_interaction, dtype="float64")
    x = np.random.default_rng(2).normal(size=(2, 4, 3))
    layer.build(x.shape)

    @tf.function(jit_compile=jit)
    def output(inputs):
        return tf.reduce_sum(tf.sin(layer(inputs)))

    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        loss = output(tensor)
    got = tape.gradient(loss, tensor)
    np.testing.assert_allclose(got, finite_differences(output, x), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", [None, "field_interaction"])
@pytest.mark.parametrize("self_interaction", [False, True])
def test_an_interaction_is_padded_by_zeros_to_a_multiple(kind, self_interaction):
    x = np.random.default_rng(1).normal(size=(6, 5, 3))
    plain = DotProductInteraction(kind, self_interaction, dtype="float64")
    padded = DotProductInteraction(kind, self_interaction, 16, dtype="float64")
    expected = plain(x)
    padded.build(x.shape)
    padded.set_weights(plain.get_weights())
    out = padded(x)
    pairs = expected.shape[1]
    assert out.shape == padded.compute_output_shape(x.shape) == (6, 16)
    np.testing.assert_array_equal(out[:, :pairs], expected)
    np.testing.assert_array_equal(out[:, pairs:], np.zeros((6, 16 - pairs)))
    assert DotProductInteraction(pad_to=5).compute_output_shape((6, 5, 3)) == (6, 10)  # as it is

    def output(inputs):
        return tf.reduce_sum(tf.sin(padded(inputs)))

    check_gradient(output, x)


def check_gradient(output, x):
    """Compare the gradient of the input with finite differences, eagerly and under XLA."""
    expected = finite_differences(tf.function(output), x)
    for jit in (False, True):
        tensor = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            loss = tf.function(output, jit_compile=jit)(tensor)
        got = tape.gradient(loss, tensor)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-8)


def test_cin_equals_its_sum_over_pairs_of_maps():
    x0 = np.random.default_rng(3).normal(size=(4, 3, 2)).astype(np.float32)
    layer = CIN([5, 2])
    out = layer(x0)
    x, expected = x0, []
    for kernel in map(np.asarray, layer.kernels):
        maps = np.zeros((4, kernel.shape[1], 2))
        for k in range(kernel.shape[1]):
            for i in range(x.shape[1]):
                for j in range(3):
                    maps[:, k] += kernel[i * 3 + j, k] * x[:, i] * x0[:, j]
        x = maps
        expected.append(x.sum(axis=2))
    np.testing.assert_allclose(out, np.concatenate(expected, axis=1), rtol=1e-4, atol=1e-5)


def test_cin_by_hand():
    layer = CIN([1])
    layer.build((1, 2, 2))
    layer.set_weights([np.array([[1.0], [10.0], [100.0], [1000.0]])])  # 00, 01, 10, 11
    x = np.array([[[1.0, 2.0], [3.0, 4.0]]])
    # over both columns: 1 + 4, 10 and 100 times 3 + 8, 1000 times 9 + 16
    np.testing.assert_allclose(layer(x), [[5 + 110 * 11 + 25_000]])


def test_crosses_equal_their_formula():
    x0 = np.random.default_rng(4).normal(size=(4, 6)).astype(np.float32)
    full, low = Cross(2), Cross(2, projection_dim=2)
    for layer in (full, low):
        layer.build(x0.shape)
        for bias in layer.biases:
            bias.assign(np.arange(6) / 10)
        x = x0
        for kernels in layer.kernels:
            matrix = np.linalg.multi_dot([*map(np.asarray, kernels), np.eye(6)])
            x = x0 * (x @ matrix + np.arange(6) / 10) + x
        np.testing.assert_allclose(layer(x0), x, rtol=1e-4, atol=1e-5)
    assert [kernel.shape for kernel in low.kernels[0]] == [(6, 2), (2, 6)]


def test_a_factorization_machine_sums_what_the_interaction_gives():
    x = np.random.default_rng(5).normal(size=(7, 5, 3)).astype(np.float32)
    expected = np.sum(DotProductInteraction()(x), axis=1, keepdims=True)
    np.testing.assert_allclose(FactorizationMachine()(x), expected, rtol=1e-4, atol=1e-5)


def test_numbers_scale_their_vectors():
    layer = NumberEmbedding(2)
    layer.build((None, 3))
    layer.set_weights([np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])])
    out = layer(np.array([[1.0, 0.0, -2.0]]))
    np.testing.assert_array_equal(out, [[[1, 2], [0, 0], [-10, -12]]])


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (CIN([3, 2], "tanh", dtype="float64"), (2, 3, 2)),
        (Cross(2, dtype="float64"), (2, 4)),
        (Cross(2, 1, dtype="float64"), (2, 4)),
        (FactorizationMachine(dtype="float64"), (2, 3, 2)),
        (NumberEmbedding(2, dtype="float64"), (2, 3)),
    ],
    ids=["cin", "cross", "cross_low_rank", "pairs", "numbers"],
)
def test_gradients_equal_finite_differences(layer, shape):
    x = np.random.default_rng(6).normal(size=shape)
    layer.build(shape)
    check_gradient(lambda inputs: tf.reduce_sum(tf.sin(layer(inputs))), x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DotProductInteraction(pad_to=0), "pad_to must be at least 1, got 0"),
        (lambda: CIN([]), "at least one layer"),
        (lambda: CIN([2, 0]), r"at least 1 map, got \[2, 0\]"),
        (lambda: CIN([2])(np.ones((2, 3), np.float32)), r"\[batch, F, d\]"),
        (lambda: FactorizationMachine()(np.ones((2, 1, 3), np.float32)), "at least two features"),
        (lambda: Cross(0), "layers must be at least 1, got 0"),
        (lambda: Cross(1, 0), "projection_dim must be at least 1, got 0"),
        (lambda: Cross()(np.ones((2, 3, 4), np.float32)), r"\[batch, d\]"),
        (lambda: NumberEmbedding(2)(np.ones((2, 3, 4), np.float32)), r"\[batch, n\]"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---- the same layers of keras-rs ----------------------------------------------------------------


@pytest.fixture(scope="module")
def keras_rs():
    return pytest.importorskip("keras_rs", reason="compares with keras-rs: pip install keras-rs")


@pytest.mark.parametrize("self_interaction", [False, True])
def test_the_interaction_equals_that_of_keras_rs(keras_rs, self_interaction):
    x = np.random.default_rng(7).normal(size=(6, 5, 3)).astype(np.float32)
    theirs = keras_rs.layers.DotInteraction(self_interaction)([x[:, i] for i in range(5)])
    ours = DotProductInteraction(None, self_interaction)(x)
    # They give the lower triangle row by row, we the upper one.
    pairs = list(zip(*np.triu_indices(5, 0 if self_interaction else 1), strict=True))
    lower = sorted(pairs, key=lambda pair: (pair[1], pair[0]))
    order = [lower.index(pair) for pair in pairs]
    np.testing.assert_allclose(ours, np.asarray(theirs)[:, order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("projection_dim", [None, 2])
def test_crosses_equal_a_chain_of_those_of_keras_rs(keras_rs, projection_dim):
    x0 = np.random.default_rng(8).normal(size=(6, 5)).astype(np.float32)
    ours = Cross(3, projection_dim)
    ours.build(x0.shape)
    for bias in ours.biases:
        bias.assign(np.arange(5) / 10)
    x = keras.ops.convert_to_tensor(x0)
    for kernels, bias in zip(ours.kernels, ours.biases, strict=True):
        theirs = keras_rs.layers.FeatureCross(projection_dim)
        theirs(x0)
        theirs.set_weights([*map(np.asarray, kernels), np.asarray(bias)])
        x = theirs(x0, x)
    np.testing.assert_allclose(ours(x0), x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
def test_a_bag_equals_that_of_keras_rs(keras_rs, combiner, weighted):
    rng = np.random.default_rng(9)
    ids = rng.integers(1, 9, (6, 4))  # no padding, which they would count
    weights = rng.random((6, 4)).astype(np.float32) if weighted else None
    theirs = keras_rs.layers.EmbedReduce(9, 3, combiner=combiner)
    expected = theirs(ids, weights)
    ours = EmbeddingBag(9, 3, combiner=combiner)
    ours.build()
    ours.set_weights(theirs.get_weights())
    inputs = {"ids": ids} | ({"weights": weights} if weighted else {})
    np.testing.assert_allclose(ours(inputs), expected, rtol=1e-5, atol=1e-6)
