"""Dense layers and vectors of numbers, against NumPy."""

import numpy as np
import pytest

from tests.support.layer_cases import check_gradient
from tutorlib.layers import MLP, NumberEmbedding


def test_mlp_equals_its_formula():
    layer = MLP([4, 3], output_units=2, output_activation="sigmoid")
    x = np.random.default_rng(3).normal(size=(5, 6)).astype(np.float32)
    out = layer(x)
    for k in range(2):
        kernel, bias = (np.asarray(w) for w in layer.weights[2 * k : 2 * k + 2])
        x = np.maximum(x @ kernel + bias, 0)
    kernel, bias = (np.asarray(w) for w in layer.weights[4:])
    np.testing.assert_allclose(out, 1 / (1 + np.exp(-(x @ kernel + bias))), rtol=1e-5)


def test_numbers_scale_the_vectors_of_their_columns():
    layer = NumberEmbedding(2)
    layer.build((None, 3))
    layer.set_weights([np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])])
    out = layer(np.array([[1.0, 0.0, -2.0]]))
    np.testing.assert_array_equal(out, [[[1, 2], [0, 0], [-10, -12]]])


def test_the_gradient_of_a_number_equals_finite_differences():
    x = np.random.default_rng(6).normal(size=(2, 3))
    check_gradient(NumberEmbedding(2, dtype="float64"), x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MLP([]), "at least one layer"),
        (lambda: MLP([2], output_activation="tanh"), "output_units"),
        (lambda: NumberEmbedding(2)(np.ones((2, 3, 4), np.float32)), r"\[batch, n\]"),
    ],
    ids=["no_layer", "activation_of_no_layer", "rank"],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
