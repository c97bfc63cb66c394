"""Inputs that match the loader's batches, and lists padded to few lengths."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.support.layer_cases import SCHEMA, TABLE, built_bag, combine
from tutorlib.layers import bucketed, keras_inputs
from tutorlib.loader.list_lengths import bucket_length
from tutorlib.schema import Column


def test_inputs_have_the_dtype_that_holds_the_ids():
    columns = [
        Column("small", "categorical", cardinality=2**31 - 1),
        Column("large", "categorical", cardinality=2**31 + 1, embedding_dim=2),
    ]
    inputs = keras_inputs(columns)
    assert (inputs["small"].dtype, inputs["large"].dtype) == ("int32", "int64")
    assert keras_inputs(columns, batch_layout="stacked")["categorical"].dtype == "int64"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_layout": "rows"}, "batch_layout.*'rows'"),
        ({"multi_hot": "csr"}, "multi_hot.*'csr'"),
        ({"batch_layout": "stacked"}, "'genres'"),
    ],
)
def test_inputs_that_no_loader_makes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        keras_inputs(SCHEMA, **options)


# ---- lists padded to few lengths ----------------------------------------------------------------


@given(st.integers(0, 2**33))
def test_a_bucket_adds_at_most_an_eighth(size):
    length = bucket_length(size)
    assert size <= length <= max(64, size * 9 / 8)


def test_a_training_meets_few_lengths():
    assert len({bucket_length(size) for size in range(100_000, 200_001)}) == 9


def ragged_batches(rng, number):
    for _ in range(number):
        nnzs = rng.integers(0, 7, 100)
        values = rng.integers(0, 5, nnzs.sum())
        yield {"g__values": values, "g__nnzs": nnzs}


@pytest.mark.parametrize("jit", [False, True])
def test_padded_batches_compile_seldom_and_give_the_same(jit):
    bag, compilations = built_bag("sum"), []

    @tf.function(jit_compile=jit)
    def forward(values, nnzs):
        compilations.append(values.shape)  # at each tracing, which is for one shape
        return bag({"values": values, "nnzs": nnzs})

    lengths = set()
    for data in ragged_batches(np.random.default_rng(0), 40):
        lengths.add(len(data["g__values"]))
        padded = bucketed(data)
        out = forward(tf.constant(padded["g__values"]), tf.constant(padded["g__nnzs"]))
        lists = np.split(data["g__values"], np.cumsum(data["g__nnzs"])[:-1])
        expected = combine(TABLE, [list(ids) for ids in lists], "sum")
        np.testing.assert_allclose(out, expected, rtol=1e-5)
    assert len(compilations) <= 6 < 25 < len(lengths)


def test_batches_are_padded_alike_in_tf_data_as_tensors_and_as_arrays():
    batches = list(ragged_batches(np.random.default_rng(1), 5))
    signature = {name: tf.TensorSpec((None,), tf.int64) for name in batches[0]}
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    for data, mapped in zip(batches, dataset.map(bucketed), strict=True):
        arrays = bucketed(data)
        tensors = bucketed({name: tf.constant(x) for name, x in data.items()})
        for name in data:
            np.testing.assert_array_equal(mapped[name], arrays[name])
            np.testing.assert_array_equal(tensors[name], arrays[name])
        assert len(arrays["g__values"]) == bucket_length(len(data["g__values"]))


def test_padding_passes_labels_through_and_refuses_anything_but_a_dict():
    [data] = ragged_batches(np.random.default_rng(2), 1)
    inputs, labels, weights = bucketed(data, "labels", "weights")
    assert (set(inputs), labels, weights) == (set(data), "labels", "weights")
    with pytest.raises(ValueError, match="dict of columns, got ndarray"):
        bucketed(np.zeros(3))
