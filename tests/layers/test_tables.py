"""Tables and bags against a loop over the rows, TensorFlow and keras-rs."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.layer_cases import (
    COMBINERS,
    LISTS,
    MIXED_POLICIES,
    NNZS,
    OFFSETS,
    PADDED,
    PADDED_LISTS,
    PADDED_SCORES,
    RAGGED,
    SCORES,
    TABLE,
    VALUES,
    built_bag,
    combine,
    finite_differences,
    lists_and_scores,
)
from tutorlib.layers import EmbeddingBag, EmbeddingTable, FusedEmbedding
from tutorlib.schema import Column

combiners = pytest.mark.parametrize("combiner", COMBINERS)


def bag_forms():
    """{form: (ids, weights)} of what a bag takes; the ids always as a dict."""
    column = VALUES[:, None], NNZS[:, None], SCORES[:, None]
    scores = PADDED_SCORES.copy()
    scores[0, 3] = 99  # of padding: does not count
    return {
        "nnzs": ({"values": VALUES, "nnzs": NNZS}, SCORES),
        "column": ({"values": column[0], "nnzs": column[1]}, column[2]),
        "offsets": ({"values": VALUES, "offsets": OFFSETS}, SCORES),
        "surplus": ({"values": np.append(VALUES, [4, 4]), "nnzs": NNZS}, np.append(SCORES, [9, 9])),
        "ragged": ({"ids": RAGGED}, RAGGED.with_values(SCORES)),
        "padded": ({"ids": PADDED}, scores),
    }


@combiners
@pytest.mark.parametrize("form", bag_forms())
def test_a_bag_combines_each_row_in_every_form(form, combiner):
    inputs, _ = bag_forms()[form]
    out = built_bag(combiner)(inputs)
    lists, _ = lists_and_scores(form)
    np.testing.assert_allclose(out, combine(TABLE, lists, combiner), rtol=1e-6)
    assert not out.numpy()[1].any()  # the empty row


@combiners
@pytest.mark.parametrize("form", bag_forms())
def test_a_bag_weights_each_value_in_every_form(form, combiner):
    inputs, weights = bag_forms()[form]
    out = built_bag(combiner)({**inputs, "weights": weights})
    lists, scores = lists_and_scores(form)
    np.testing.assert_allclose(out, combine(TABLE, lists, combiner, scores), rtol=1e-6)


@pytest.mark.parametrize(("ids", "lists"), [(RAGGED, LISTS), (PADDED, PADDED_LISTS)])
def test_a_bag_takes_bare_tensors_of_ids(ids, lists):
    np.testing.assert_allclose(built_bag()(ids), combine(TABLE, lists, "mean"), rtol=1e-6)


def test_a_weighted_bag_by_hand():
    inputs = {"values": np.array([1, 3]), "nnzs": np.array([2]), "weights": np.array([1.0, 3.0])}
    # rows (3, 4) and (7, 8), so 3 + 21 and 4 + 24
    np.testing.assert_allclose(built_bag("sum")(inputs), [[24, 28]])
    np.testing.assert_allclose(built_bag("mean")(inputs), [[6, 7]])
    np.testing.assert_allclose(built_bag("sqrtn")(inputs), np.array([[24, 28]]) / 10**0.5)


def test_a_bag_of_only_empty_rows_gives_zeros():
    out = built_bag()({"values": np.zeros((0, 1), np.int64), "nnzs": np.zeros((3, 1), np.int32)})
    np.testing.assert_array_equal(out, np.zeros((3, 2)))


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
@pytest.mark.parametrize("form", ["nnzs", "padded"])
def test_weights_that_sum_to_zero_give_zeros(form, combiner):
    inputs, weights = bag_forms()[form]
    out = built_bag(combiner)({**inputs, "weights": weights * 0})
    np.testing.assert_array_equal(out, np.zeros((4, 2)))


@pytest.mark.parametrize("dtype", ["int64", "int16", "uint8"])  # a GPU's loader gives int64
@pytest.mark.parametrize("part", ["nnzs", "offsets"])
def test_a_bag_takes_counts_of_any_integer_type(part, dtype):
    inputs, _ = bag_forms()[part]
    out = built_bag("mean")(inputs | {part: np.asarray(inputs[part]).astype(dtype)})
    np.testing.assert_allclose(out, combine(TABLE, LISTS, "mean"), rtol=1e-6)


@combiners
def test_a_weighted_bag_equals_tensorflows(combiner):
    expected = tf.nn.embedding_lookup_sparse(
        TABLE, RAGGED.to_sparse(), RAGGED.with_values(SCORES).to_sparse(), combiner=combiner
    )
    out = built_bag(combiner)({"ids": RAGGED, "weights": RAGGED.with_values(SCORES)})
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@combiners
def test_a_bag_equals_that_of_keras_rs(combiner, weighted):
    reason = "compares with keras-rs: pip install keras-rs"
    keras_rs = pytest.importorskip("keras_rs", reason=reason)
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


# ---- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [False, True])
@combiners
def test_a_bags_gradient_equals_a_loop_over_the_rows(combiner, jit):
    bag = built_bag(combiner)
    upstream = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)

    @tf.function(jit_compile=jit)
    def gradient(values, nnzs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(bag({"values": values, "nnzs": nnzs}) * upstream)
        return tf.convert_to_tensor(tape.gradient(loss, bag.embedding_weights.value))

    expected = np.zeros_like(TABLE)
    for row, ids in enumerate(LISTS):
        for i in ids:
            scale = {"sum": 1, "mean": len(ids), "sqrtn": len(ids) ** 0.5}[combiner]
            expected[i] += upstream[row] / scale
    got = gradient(tf.constant(VALUES), tf.constant(NNZS))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("jit", [False, True])
@combiners
def test_gradients_of_table_and_weights_equal_finite_differences(combiner, jit):
    bag = EmbeddingBag(5, 2, combiner, dtype="float64")
    bag.build()

    @tf.function(jit_compile=jit)
    def output(table, scores):
        bag.embedding_weights.assign(table)
        with tf.GradientTape() as tape:
            tape.watch(scores)
            out = bag({"values": VALUES, "nnzs": NNZS, "weights": scores})
            loss = tf.reduce_sum(tf.sin(out))
        found = tape.gradient(loss, [bag.embedding_weights.value, scores])
        return loss, [tf.convert_to_tensor(g) for g in found]

    table, scores = TABLE.astype(np.float64) / 10, SCORES.astype(np.float64)
    _, (of_table, of_scores) = output(table, tf.constant(scores))
    expected = finite_differences(lambda x: output(x, tf.constant(scores))[0], table)
    np.testing.assert_allclose(of_table, expected, rtol=1e-5, atol=1e-8)
    expected = finite_differences(lambda x: output(table, tf.constant(x))[0], scores)
    np.testing.assert_allclose(of_scores, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("policy", MIXED_POLICIES)
def test_the_gradient_of_a_table_stays_sparse_and_float32(policy):
    table, bag = EmbeddingTable(9, 4, dtype=policy), built_bag(dtype=policy)
    columns = [Column(n, "categorical", cardinality=9, embedding_dim=4) for n in "ab"]
    fused = FusedEmbedding(columns, dtype=policy)

    @tf.function
    def gradients(ids, values, nnzs):
        with tf.GradientTape() as tape:
            bagged = bag({"values": values, "nnzs": nnzs})
            outputs = [table(ids), bagged, fused(tf.concat([ids, ids], axis=1))]
            loss = tf.add_n([tf.reduce_sum(tf.cast(x, tf.float32)) for x in outputs])
        layers = (table, bag, fused)
        found = tape.gradient(loss, [layer.embedding_weights.value for layer in layers])
        assert all(isinstance(g, tf.IndexedSlices) for g in found)
        assert all(g.dtype == tf.float32 for g in found)
        return loss

    table.build()
    fused.build((None, 2))
    gradients(tf.constant([[1], [2]]), tf.constant(VALUES), tf.constant(NNZS))


# ---- size ---------------------------------------------------------------------------------------


def test_the_memory_of_a_compiled_bag_grows_with_its_values_only():
    # A comparison of everything with everything would be 2**16 * 2**17 cells.
    bag = built_bag("sum")
    nnzs, values = tf.fill((2**16,), 2), tf.ones((2**17,), tf.int32)
    out = tf.function(bag, jit_compile=True)({"values": values, "nnzs": nnzs})
    np.testing.assert_array_equal(out, np.tile(2 * TABLE[1], (2**16, 1)))


def test_embeddings_start_with_a_norm_near_one():
    table = EmbeddingTable(4_000, 64)
    table.build()
    weights = np.asarray(table.embedding_weights)
    # A normal distribution cut at two standard deviations keeps 0.88 of one.
    assert weights.std() == pytest.approx(0.88 / 8, rel=0.03)
    assert abs(weights).max() <= 2 / 8


def test_a_size_below_one_is_refused():
    with pytest.raises(ValueError, match="cardinality must be at least 1, got 0"):
        EmbeddingTable(0, 2)
