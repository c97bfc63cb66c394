"""Tensors over memory of ours, and batches with a type for tf.function."""

import gc
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.loaders import loader_with
from tutorlib.keras_bridge.backend import tensor_maker, unstacking_maker
from tutorlib.keras_bridge.batch_types import TypedBatch, with_types
from tutorlib.memory import aligned_empty

# ---- tensors ------------------------------------------------------------------------------------


def test_the_tensor_of_an_array_is_the_array():
    array = aligned_empty((5, 1), np.float32)
    tensor = tensor_maker()(array)
    array[:] = 7  # before the tensor's first use
    np.testing.assert_array_equal(tensor, np.full((5, 1), 7))
    assert np.shares_memory(np.from_dlpack(tensor), array)


@pytest.mark.parametrize("rows", [16, 9])  # the second leaves a gap before each part but the first
def test_each_of_the_tensors_made_together_is_its_part_and_keeps_the_memory(rows):
    array = aligned_empty((6, 16, 1), np.float32)
    tensors = unstacking_maker(tensor_maker())(array[:, :rows])
    array[:] = np.arange(96).reshape(array.shape)  # before the tensors' first use
    expected = [part[:rows].copy() for part in array]
    for tensor, part in zip(tensors, array, strict=True):
        assert np.shares_memory(np.from_dlpack(tensor), part)
    kept = tensors[4]
    del array, tensors, tensor, part
    gc.collect()
    others = [np.full(96 + 16, -1, np.float32) for _ in range(100)]  # would use freed memory
    np.testing.assert_array_equal(kept, expected[4])
    del others


# ---- types --------------------------------------------------------------------------------------

ROWS = 500
NAMES = [f"I{k}" for k in range(6)]


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    numbers = {name: rng.standard_normal(ROWS).astype("float32") for name in NAMES}
    label = (numbers["I0"] > numbers["I1"]).astype("float32")
    return {**numbers, "click": label, "rating": label * 2, "w": rng.random(ROWS).astype("f4")}


loader_of = loader_with(64, cat_names=[], cont_names=NAMES, label_names=["click"])


def batch_of(columns, rows=8):
    inputs = {f"I{k}": tf.fill([rows, 1], float(k)) for k in range(columns)}
    return inputs, tf.ones([rows, 1])


def model_of(**arguments):
    keras.utils.set_random_seed(0)
    inputs = {name: keras.Input((1,), name=name) for name in NAMES}
    x = keras.layers.Concatenate()([inputs[name] for name in NAMES])
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", **arguments)
    return model


def test_a_function_does_not_look_at_each_tensor_of_a_typed_batch():
    def calls(columns, made):
        function = tf.function(lambda batch: batch[1] + batch[0]["I0"])
        batch, entered = made()(batch_of(columns)), []
        function(batch)  # traces
        sys.setprofile(lambda frame, event, argument: entered.append(event == "call"))
        try:
            function(batch)
        finally:
            sys.setprofile(None)
        return sum(entered)

    typed, plain = (calls(40, made) - calls(2, made) for made in (with_types, lambda: tuple))
    assert typed < plain / 10


def test_a_function_is_traced_once_for_each_of_two_sizes_and_with_plain_dicts():
    traced = []

    @tf.function(reduce_retracing=True)
    def function(batch):
        traced.append((type(batch), type(batch[0])))
        return tf.reduce_sum(batch[0]["I2"] + batch[1])

    typed = with_types()
    assert type(typed(batch_of(3))) is TypedBatch
    sums = [float(function(typed(batch_of(3, rows)))) for rows in (8, 8, 5, 8, 5)]
    assert sums == [3 * rows for rows in (8, 8, 5, 8, 5)]
    assert traced == [(tuple, dict)] * 2


@pytest.mark.parametrize("arguments", [{}, {"steps_per_execution": 3}])
def test_training_is_the_same_as_in_eager_mode_and_on_a_dataset(folder, arguments):
    compiled, eager, dataset = model_of(**arguments), model_of(run_eagerly=True), model_of()
    for model in (compiled, eager):
        model.fit(loader_of(folder, weight_name="w"), epochs=2, verbose=0)
    dataset.fit(loader_of(folder, weight_name="w").to_tf_dataset(), epochs=2, verbose=0)
    for other in (eager, dataset):
        for a, b in zip(compiled.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_the_order_of_columns_and_the_number_of_labels_may_differ_between_loaders(folder):
    model = model_of()
    want = model.evaluate(loader_of(folder, shuffle=False), verbose=0)
    other = model_of()  # which is traced with the columns in this order
    turned = loader_of(folder, shuffle=False, cont_names=NAMES[::-1])
    for each in (model, other):
        assert each.evaluate(turned, verbose=0) == pytest.approx(want, rel=1e-6)
    probability = model.predict(loader_of(folder, label_names=None, shuffle=False), verbose=0)
    both = loader_of(folder, shuffle=False, label_names=["click", "rating"])
    np.testing.assert_array_equal(model.predict(both, verbose=0), probability)
    assert probability.shape == (ROWS, 1)
