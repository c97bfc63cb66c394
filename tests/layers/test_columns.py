"""Weights, vectors, several widths, legacy feature columns: what a column can be."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.support.layer_cases import (
    LISTS,
    NNZS,
    OFFSETS,
    SCHEMA,
    SCORES,
    TABLE,
    VALUES,
    WEIGHTED,
    batch,
    built_bag,
    combine,
    combine_weighted,
    finite_differences,
    weighted_batch,
)
from tutorlib.layers import (
    DenseFeatures,
    EmbeddingBag,
    FusedEmbedding,
    LinearFeatures,
    ScalarDenseFeatures,
    keras_inputs,
)
from tutorlib.schema import Column, Schema

RAGGED = tf.ragged.constant(LISTS, dtype=tf.int64)
PADDED = np.array([[1, 3, 0, 0], [0, 0, 0, 0], [4, 0, 0, 0], [2, 2, 1, 0]])
feature_column = tf.feature_column

# ---- weights ------------------------------------------------------------------------------------


def weighted_forms():
    scores = np.zeros((4, 4), np.float32)
    scores[PADDED != 0] = SCORES[VALUES != 0]
    scores[0, 3] = 99  # of padding: does not count
    ragged_scores = RAGGED.with_values(SCORES)
    surplus = {"values": np.append(VALUES, [4, 4]), "weights": np.append(SCORES, [9, 9])}
    return {
        "nnzs": {"values": VALUES, "nnzs": NNZS, "weights": SCORES},
        "column": {"values": VALUES[:, None], "nnzs": NNZS[:, None], "weights": SCORES[:, None]},
        "offsets": {"values": VALUES, "offsets": OFFSETS, "weights": SCORES},
        "surplus": {**surplus, "nnzs": NNZS},
        "ragged": {"ids": RAGGED, "weights": ragged_scores},
        "padded": {"ids": PADDED, "weights": scores},
    }


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("form", weighted_forms())
def test_a_weighted_bag_equals_its_formula_in_every_form(form, combiner):
    lists, scores = LISTS, SCORES
    if form == "padded":
        lists, scores = [[i for i in ids if i] for ids in LISTS], SCORES[VALUES != 0]
    out = built_bag(combiner)(weighted_forms()[form])
    expected = combine_weighted(TABLE, lists, scores, combiner)
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_a_weighted_bag_by_hand():
    inputs = {"values": np.array([1, 3]), "nnzs": np.array([2]), "weights": np.array([1.0, 3.0])}
    # rows (3, 4) and (7, 8), so 3 + 21 and 4 + 24
    np.testing.assert_allclose(built_bag("sum")(inputs), [[24, 28]])
    np.testing.assert_allclose(built_bag("mean")(inputs), [[6, 7]])
    np.testing.assert_allclose(built_bag("sqrtn")(inputs), np.array([[24, 28]]) / 10**0.5)


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
def test_a_weighted_bag_equals_tensorflows(combiner):
    expected = tf.nn.embedding_lookup_sparse(
        TABLE, RAGGED.to_sparse(), RAGGED.with_values(SCORES).to_sparse(), combiner=combiner
    )
    out = built_bag(combiner)({"ids": RAGGED, "weights": RAGGED.with_values(SCORES)})
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
@pytest.mark.parametrize("form", ["nnzs", "padded"])
def test_weights_that_sum_to_zero_give_zeros(form, combiner):
    inputs = weighted_forms()[form]
    inputs = {**inputs, "weights": inputs["weights"] * 0}
    np.testing.assert_array_equal(built_bag(combiner)(inputs), np.zeros((4, 2)))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
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


@pytest.mark.parametrize("form", ["nnzs", "offsets", "ragged", "padded"])
def test_weights_of_a_column_are_another_column_and_no_feature(form, tmp_path):
    rest = {k: v for k, v in batch().items() if not k.startswith("genres")}
    scores = weighted_forms()["padded"]["weights"]
    data = {
        "nnzs": weighted_batch(),
        "offsets": {
            **rest, "genres__values": VALUES, "genres__offsets": OFFSETS,
            "scores__values": SCORES, "scores__offsets": OFFSETS,
        },
        "ragged": {**rest, "genres": RAGGED, "scores": RAGGED.with_values(SCORES)},
        "padded": {**rest, "genres": PADDED, "scores": scores},
    }[form]  # fmt: skip
    data = {k: v if isinstance(v, tf.RaggedTensor) else tf.constant(v) for k, v in data.items()}
    inputs = keras_inputs(WEIGHTED, multi_hot=form)
    layer = DenseFeatures(WEIGHTED, "sum", weights={"genres": "scores"}, name="features")
    model = keras.Model(inputs, layer(inputs))
    assert model.output_shape == (None, 1 + 4 + 2 + 3)
    table = np.asarray(layer.tables["genres"].embedding_weights)
    lists, values = LISTS, SCORES
    if form == "padded":
        lists, values = [[i for i in ids if i] for ids in LISTS], SCORES[VALUES != 0]
    out = model(data)
    np.testing.assert_allclose(
        out[:, 5:7], combine_weighted(table, lists, values, "sum"), rtol=1e-5, atol=1e-6
    )
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(data), out)


def test_each_column_may_have_its_own_combiner():
    layer = DenseFeatures(SCHEMA, {"genres": "sum"})
    out = layer(batch())
    table = np.asarray(layer.tables["genres"].embedding_weights)
    np.testing.assert_allclose(out[:, 5:7], combine(table, LISTS, "sum"), rtol=1e-6)


# ---- vectors ------------------------------------------------------------------------------------

VECTOR = Column("v", "continuous", "float32", multi_hot=True, embedding_dim=2)
PLACES = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


@pytest.mark.parametrize("form", ["nnzs", "offsets", "ragged", "padded"])
def test_a_column_of_n_numbers_is_taken_over(form):
    data = {
        "nnzs": {"v__values": PLACES.reshape(-1, 1), "v__nnzs": np.full((3, 1), 2)},
        "offsets": {"v__values": PLACES.ravel(), "v__offsets": np.array([0, 2, 4, 6])},
        "ragged": {"v": tf.RaggedTensor.from_tensor(PLACES)},
        "padded": {"v": PLACES},
    }[form]
    columns = [VECTOR, Column("a", "continuous")]
    data = {k: v if isinstance(v, tf.RaggedTensor) else tf.constant(v) for k, v in data.items()}
    data["a"] = tf.constant([[7.0], [8.0], [9.0]])
    inputs = keras_inputs(columns, multi_hot=form)
    model = keras.Model(inputs, DenseFeatures(columns)(inputs))
    assert model.output_shape == (None, 3)
    np.testing.assert_array_equal(model(data), [[7, 1, 2], [8, 3, 4], [9, 5, 6]])
    linear = LinearFeatures(columns)
    linear.build({name: x.shape for name, x in data.items()})
    linear.numeric_kernel.assign([[100.0], [10.0], [1.0]])
    np.testing.assert_array_equal(linear(data), [[712], [834], [956]])


def test_a_row_with_another_number_of_values_is_not_shifted_but_nan():
    values = np.arange(1, 7, dtype=np.float32)
    out = DenseFeatures([VECTOR])({"v__values": values, "v__nnzs": np.array([2, 3, 0, 1])})
    np.testing.assert_array_equal(out, [[1, 2], [np.nan] * 2, [np.nan] * 2, [np.nan] * 2])


# ---- several widths in one layer ----------------------------------------------------------------

MIXED = [
    Column(name, "categorical", cardinality=size, embedding_dim=width)
    for name, size, width in [("e", 5, 2), ("a", 4, 3), ("d", 6, 3), ("b", 3, 2), ("c", 7, 3)]
]
IDS = np.array([[4, 3, 5, 2, 6], [0, 0, 0, 0, 0], [1, 2, 3, 1, 4]])


@pytest.mark.parametrize("layout", ["stacked", "columns"])
def test_columns_of_several_widths_are_a_table_for_each_width(layout, tmp_path):
    inputs = keras_inputs(MIXED, batch_layout=layout)
    layer = FusedEmbedding(MIXED, "concat", name="fused")
    ids = inputs["categorical"] if layout == "stacked" else inputs
    model = keras.Model(inputs, layer(ids))
    assert [tuple(w.shape) for w in layer.weights] == [(8, 2), (17, 3)]
    data = {"categorical": IDS}
    if layout == "columns":
        data = {column.name: IDS[:, [k]] for k, column in enumerate(MIXED)}
    out = model(data)
    views = {column.name: np.asarray(layer.table(column.name)) for column in MIXED}
    assert [view.shape for view in views.values()] == [(5, 2), (4, 3), (6, 3), (3, 2), (7, 3)]
    expected = [view[IDS[:, k]] for k, view in enumerate(views.values())]
    np.testing.assert_array_equal(out, np.concatenate(expected, axis=1))
    assert model.output_shape == (None, 13)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(data), out)
    with pytest.raises(ValueError, match=r"widths \[2, 3\]"):
        layer.embedding_weights  # noqa: B018


def test_views_of_all_tables_together_are_the_table():
    layer = FusedEmbedding(MIXED, "concat")
    layer.build((None, 5))
    for width, names in ((2, "eb"), (3, "adc")):
        [table] = [t for t in layer.tables if t.shape[1] == width]
        views = [np.asarray(layer.table(name)) for name in names]
        np.testing.assert_array_equal(np.concatenate(views), table)


def test_equal_widths_side_by_side_are_the_stacked_ones():
    columns = MIXED[1:3]
    stacked, flat = FusedEmbedding(columns), FusedEmbedding(columns, "concat")
    out = stacked(IDS[:, 1:3])
    flat.build((None, 2))
    flat.set_weights(stacked.get_weights())
    np.testing.assert_array_equal(flat(IDS[:, 1:3]), np.reshape(out, (3, 6)))


# ---- legacy feature columns ---------------------------------------------------------------------


def legacy_columns():
    identity = feature_column.categorical_column_with_identity
    weighted = feature_column.weighted_categorical_column(identity("genres", 5), "scores")
    hashed = feature_column.categorical_column_with_hash_bucket("film", 9)
    return [
        feature_column.embedding_column(identity("user", 7), 3),
        feature_column.numeric_column("age"),
        feature_column.embedding_column(weighted, 2, combiner="sqrtn"),
        feature_column.embedding_column(hashed, 4, combiner="sum"),
        feature_column.numeric_column("v", shape=(2,)),
    ]


def test_legacy_columns_give_what_the_legacy_layer_gives():
    columns = legacy_columns()
    columns[3] = feature_column.embedding_column(
        feature_column.categorical_column_with_identity("film", 9), 4, combiner="sum"
    )  # the legacy layer would hash
    vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
    rest = {name: tf.constant(batch()[name]) for name in ("user", "age", "film")}
    legacy = tf_keras.layers.DenseFeatures(columns)
    sparse = {"genres": RAGGED.to_sparse(), "scores": RAGGED.with_values(SCORES).to_sparse()}
    expected = legacy({**rest, **sparse, "v": vectors})

    layer = DenseFeatures(columns)
    data = {**rest, "genres__values": VALUES, "genres__nnzs": NNZS, "scores__values": SCORES}
    data |= {"scores__nnzs": NNZS, "v": vectors}
    layer.build({name: x.shape for name, x in data.items()})
    for name, table in layer.tables.items():
        [theirs] = [w for w in legacy.weights if f"/{name}" in w.name]
        table.embedding_weights.assign(theirs)
    np.testing.assert_allclose(layer(data), expected, rtol=1e-5, atol=1e-6)


def test_a_layer_over_legacy_columns_comes_back_from_its_config():
    layer = DenseFeatures(legacy_columns())
    again = keras.layers.deserialize(keras.layers.serialize(layer))
    assert again.get_config() == layer.get_config()
    assert again.combiner == {"user": "mean", "genres": "sqrtn", "film": "sum"}
    assert again.weights_of == {"genres": "scores"}


def test_the_inputs_of_legacy_columns_have_the_weights_too():
    assert set(keras_inputs(legacy_columns())) >= {"user", "film", "scores__values", "v__values"}


def test_all_that_is_not_understood_stands_in_one_error():
    identity = feature_column.categorical_column_with_identity("C1", 10)
    columns = [
        *legacy_columns(),
        feature_column.bucketized_column(feature_column.numeric_column("price"), [1.0, 2.0]),
        feature_column.numeric_column("scaled", normalizer_fn=lambda x: x / 2),
        feature_column.embedding_column(identity, 4, max_norm=1.0),
        feature_column.embedding_column(
            feature_column.categorical_column_with_vocabulary_list("word", ["a", "b"]), 4
        ),
        feature_column.embedding_column(identity, 4, trainable=False),
        feature_column.embedding_column(identity, 4, initializer=tf.zeros_initializer()),
    ]
    with pytest.raises(ValueError, match="not understood") as caught:
        ScalarDenseFeatures(columns)
    for part in ("price", "scaled", "normalizer_fn", "max_norm", "word", "trainable=False"):
        assert part in str(caught.value)
    assert "initializer (give the layer one)" in str(caught.value)
    assert "age" not in str(caught.value)


def refusals():
    listed = {"genres__values": VALUES, "genres__nnzs": NNZS}
    return {
        "combiner of no column": (lambda: DenseFeatures(SCHEMA, {"x": "sum"}), r"\['x'\]"),
        "unknown combiner": (lambda: DenseFeatures(SCHEMA, {"genres": "max"}), "'max'"),
        "weights of no column": (lambda: DenseFeatures(SCHEMA, weights={"x": "y"}), r"\['x'\]"),
        "weights of one id": (
            lambda: DenseFeatures(SCHEMA, weights={"user": "y"})(batch()),
            "'user' has weights, so it must be multi-hot",
        ),
        "no weights": (
            lambda: DenseFeatures(WEIGHTED, weights={"genres": "scores"})({**batch(), **listed}),
            "weights 'scores__values' are missing",
        ),
        "vector of another length": (
            lambda: DenseFeatures([VECTOR])({"v": np.ones((2, 3), np.float32)}),
            r"'v' must have shape \[batch, 2\], got \(2, 3\)",
        ),
        "cardinalities": (
            lambda: DenseFeatures(Schema(Column(n, "categorical") for n in "ab")),
            r"\['a', 'b'\]: cardinality is not known",
        ),
    }


@pytest.mark.parametrize("case", refusals())
def test_what_does_not_fit_is_refused_with_its_name(case):
    call, message = refusals()[case]
    with pytest.raises(ValueError, match=message):
        call()
