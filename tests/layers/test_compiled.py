"""Under XLA and on JAX: the layers compile, seldom, and learn."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backends import both, run
from tests.support.layer_cases import LISTS, NNZS, TABLE, VALUES, built_bag, combine
from tutorlib.layers import bucket_length, bucketed
from tutorlib.layers.rows import compiled_by_xla, row_numbers, sum_rows


@given(st.integers(0, 2**33))
def test_a_bucket_adds_an_eighth_at_most(size):
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


def test_batches_are_padded_inside_tf_data_and_eagerly_alike():
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


def test_labels_pass_and_anything_but_columns_is_refused():
    [data] = ragged_batches(np.random.default_rng(2), 1)
    inputs, labels, weights = bucketed(data, "labels", "weights")
    assert (set(inputs), labels, weights) == (set(data), "labels", "weights")
    with pytest.raises(ValueError, match="dict of columns, got ndarray"):
        bucketed(np.zeros(3))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(0, 3))
def test_row_numbers_and_sums_equal_a_loop(counts, surplus):
    size = sum(counts) + surplus
    expected = np.repeat(np.arange(len(counts) + 1), [*counts, surplus])
    numbers = row_numbers(tf.constant(counts), size)
    np.testing.assert_array_equal(numbers, expected)
    values = np.arange(size * 2, dtype=np.float32).reshape(size, 2)
    sums = [values[expected == row].sum(axis=0) for row in range(len(counts))]
    np.testing.assert_allclose(sum_rows(tf.constant(values), numbers, len(counts)), sums)


def test_a_function_knows_that_it_is_compiled():
    seen = {}

    def look(name):
        def body(x):
            seen[name] = compiled_by_xla()
            return x

        return body

    tf.function(look("plain"))(tf.constant(1))
    tf.function(look("xla"), jit_compile=True)(tf.constant(1))
    inner = tf.function(look("inside"))
    tf.function(lambda x: inner(x), jit_compile=True)(tf.constant(1))
    look("eager")(tf.constant(1))
    assert seen == {"plain": False, "xla": True, "inside": True, "eager": False}


def test_the_memory_of_a_compiled_bag_grows_with_its_values_only():
    # A comparison of everything with everything would be 2**16 * 2**17 cells.
    bag = built_bag("sum")
    nnzs, values = tf.fill((2**16,), 2), tf.ones((2**17,), tf.int32)
    out = tf.function(bag, jit_compile=True)({"values": values, "nnzs": nnzs})
    np.testing.assert_array_equal(out, np.tile(2 * TABLE[1], (2**16, 1)))


ORACLES = f"""
from tutorlib.layers import *
TABLE = np.array({TABLE.tolist()}, "float32")
values, nnzs = np.array({VALUES.tolist()}), np.array({NNZS.tolist()})
outputs = {{}}
for combiner in ("mean", "sum", "sqrtn"):
    bag = EmbeddingBag(5, 2, combiner)
    bag.build()
    bag.set_weights([TABLE])
    outputs[combiner] = numpy(bag({{"values": values, "nnzs": nnzs}})).tolist()
    scores = np.arange(1, 8, dtype="float32")
    outputs[combiner + " weighted"] = numpy(
        bag({{"values": values, "nnzs": nnzs, "weights": scores}})
    ).tolist()
fused = FusedEmbedding([*ids, Column("e", "categorical", cardinality=3, embedding_dim=2)], "concat")
stacked = np.array([[1, 8, 2], [0, 0, 0]])
out = numpy(fused(stacked))
views = [numpy(fused.table(name))[stacked[:, k]] for k, name in enumerate("cde")]
outputs["fused"] = bool((out == np.concatenate(views, axis=1)).all())
cube = np.random.default_rng(0).normal(size=(3, 4, 2)).astype("float32")
pairs = numpy(DotProductInteraction(pad_to=16)(cube))
apart = pairs.sum(axis=1) - numpy(FactorizationMachine()(cube))[:, 0]
outputs["pairs"] = [pairs.shape[1], float(abs(apart).max())]
outputs["shapes"] = [list(CIN([2])(cube).shape), list(Cross(2, 1)(cube[:, 0]).shape)]
print(json.dumps(outputs))
"""


@both
def test_the_layers_give_the_same_on_other_backends(backend, tmp_path):
    got = run(backend, str(tmp_path), ORACLES)
    for combiner in ("mean", "sum", "sqrtn"):
        np.testing.assert_allclose(got[combiner], combine(TABLE, LISTS, combiner), rtol=1e-5)
        scores = np.arange(1, 8, dtype=np.float32)
        inputs = {"values": VALUES, "nnzs": NNZS, "weights": scores}
        expected = built_bag(combiner)(inputs)
        np.testing.assert_allclose(got[f"{combiner} weighted"], expected, rtol=1e-5)
    assert got["fused"]
    assert got["pairs"][0] == 16
    assert got["pairs"][1] < 1e-4
    assert got["shapes"] == [[3, 2], [3, 2]]


TRAINING = """
from tutorlib.models import *
losses = {}
rng = np.random.default_rng(0)
x = {"c": rng.integers(0, 9, (256, 1)), "d": rng.integers(0, 9, (256, 1))}
x["x"] = rng.normal(size=(256, 1)).astype("float32")
y = (x["c"] % 2 + x["x"] > 0.5).astype("float32")
sizes = {DLRM: (4, [8], [8]), WideAndDeep: ([8],), DeepFM: (4, [8]), DCNv2: (2, [8])}
for make, units in sizes.items():
    keras.utils.set_random_seed(0)
    model = make(scalars, *units)
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    history = model.fit(x, y, batch_size=64, epochs=6, verbose=0).history["loss"]
    losses[make.__name__] = [history[0], history[-1]]
print(json.dumps(losses))
"""


@both
def test_the_models_learn_on_other_backends(backend, tmp_path):
    for name, (first, last) in run(backend, str(tmp_path), TRAINING).items():
        assert last < 0.7 * first, name
