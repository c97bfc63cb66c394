"""What every layer promises: the declared shape and dtype, and that its config recreates it."""

import keras
import numpy as np
import pytest

from tests.support.layer_cases import POLICIES, every_layer


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", every_layer())
def test_declared_shape_and_dtype_are_the_real_ones(case, policy):
    layer, inputs = every_layer(policy)[case]
    out = layer(inputs)
    shapes = keras.tree.map_structure(lambda x: tuple(x.shape), inputs)
    if isinstance(inputs, np.ndarray):
        shapes = inputs.shape
    assert layer.compute_output_shape(shapes) == tuple(out.shape)
    assert keras.backend.standardize_dtype(out.dtype) == layer.compute_dtype
    assert all(weight.dtype == layer.variable_dtype for weight in layer.weights)
    assert np.isfinite(out.numpy().astype(np.float32)).all()


@pytest.mark.parametrize("case", every_layer())
def test_a_layer_comes_back_from_its_config(case):
    layer, inputs = every_layer("mixed_bfloat16")[case]
    out = layer(inputs)
    again = keras.layers.deserialize(keras.layers.serialize(layer))
    assert again.get_config() == layer.get_config()
    again(inputs)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(inputs), out)
