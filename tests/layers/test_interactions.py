"""Products of features: one at a time by hand, gradients by finite differences, and keras-rs."""

import keras
import numpy as np
import pytest

from tests.support.layer_cases import check_gradient
from tutorlib.layers import Cross, DotProductInteraction, FactorizationMachine

kinds = pytest.mark.parametrize("kind", [None, "field_all", "field_each", "field_interaction"])
self_interactions = pytest.mark.parametrize("self_interaction", [False, True])


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


@self_interactions
@kinds
def test_an_interaction_equals_one_dot_product_at_a_time(kind, self_interaction):
    x = np.random.default_rng(1).normal(size=(6, 5, 3)).astype(np.float32)
    layer = DotProductInteraction(kind, self_interaction)
    out = layer(x)
    kernel = None if kind is None else np.asarray(layer.kernel)
    expected = interaction_oracle(x, kernel, kind, 0 if self_interaction else 1)
    assert out.shape == expected.shape == (6, 15 if self_interaction else 10)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@self_interactions
@kinds
def test_the_gradient_of_an_interaction_equals_finite_differences(kind, self_interaction):
    x = np.random.default_rng(2).normal(size=(2, 4, 3))
    check_gradient(DotProductInteraction(kind, self_interaction, dtype="float64"), x)


@pytest.mark.parametrize("kind", [None, "field_interaction"])
@self_interactions
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
    unpadded = DotProductInteraction(pad_to=5).compute_output_shape((6, 5, 3))
    assert unpadded == (6, 10)  # a multiple of 5 already
    check_gradient(padded, x)


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


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Cross(2, dtype="float64"), (2, 4)),
        (Cross(2, 1, dtype="float64"), (2, 4)),
        (FactorizationMachine(dtype="float64"), (2, 3, 2)),
    ],
    ids=["cross", "cross_low_rank", "pairs"],
)
def test_gradients_equal_finite_differences(layer, shape):
    check_gradient(layer, np.random.default_rng(6).normal(size=shape))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DotProductInteraction(pad_to=0), "pad_to must be at least 1, got 0"),
        (lambda: FactorizationMachine()(np.ones((2, 1, 3), np.float32)), "at least 2 features"),
        (lambda: Cross(0), "layers must be at least 1, got 0"),
        (lambda: Cross(1, 0), "projection_dim must be at least 1, got 0"),
        (lambda: Cross()(np.ones((2, 3, 4), np.float32)), r"\[batch, d\]"),
        (lambda: DotProductInteraction("field"), "interaction_type.*'field'"),
        (lambda: DotProductInteraction()(np.ones((2, 3), np.float32)), r"\[batch, F, d\]"),
        (
            lambda: DotProductInteraction()(np.ones((2, 1, 3), np.float32)),
            "at least 2 features, got 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---- the same layers of keras-rs ----------------------------------------------------------------


@pytest.fixture(scope="module")
def keras_rs():
    return pytest.importorskip("keras_rs", reason="compares with keras-rs: pip install keras-rs")


@self_interactions
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
