"""Feature layers against NumPy: which columns, in which order, combined and weighted how."""

import keras
import numpy as np
import pytest

from tests.support.layer_cases import (
    COMBINERS,
    FORMS,
    LISTS,
    NNZS,
    POLICIES,
    SCHEMA,
    VALUES,
    WEIGHTED,
    as_tensors,
    batch,
    combine,
    lists_and_scores,
    reloaded,
    weighted_batch,
)
from tutorlib.layers import DenseFeatures, LinearFeatures, ScalarDenseFeatures, keras_inputs
from tutorlib.schema import Column, Schema

forms = pytest.mark.parametrize("form", FORMS)


def table_of(layer, name):
    return np.asarray(layer.tables[name].embedding_weights)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_dense_features_stand_in_name_order(combiner):
    layer = DenseFeatures(SCHEMA, combiner=combiner)
    out = layer(batch())
    expected = np.concatenate(
        [
            batch()["age"],
            table_of(layer, "film")[[8, 0, 1, 5]],
            combine(table_of(layer, "genres"), LISTS, combiner),
            table_of(layer, "user")[[0, 6, 3, 3]],
        ],
        axis=1,
    )
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_tables_are_named_after_their_columns():
    layer = DenseFeatures(SCHEMA, name="features")
    layer(batch())
    assert [w.path for w in layer.weights] == [
        f"features/{name}/embedding_weights" for name in ("film", "genres", "user")
    ]


def test_scalar_features_stack_in_name_order():
    columns = [Column(n, "categorical", cardinality=5, embedding_dim=2) for n in ("b", "c", "a")]
    layer = ScalarDenseFeatures(columns, aggregation="stack")
    inputs = {n: np.array([[i], [4 - i]]) for i, n in enumerate("abc")}
    out = layer(inputs)
    expected = np.stack([table_of(layer, n)[inputs[n][:, 0]] for n in "abc"], axis=1)
    np.testing.assert_array_equal(out, expected)
    flat = ScalarDenseFeatures(columns)
    flat.build({n: (None, 1) for n in "abc"})
    flat.set_weights(layer.get_weights())
    np.testing.assert_array_equal(flat(inputs), expected.reshape(2, 6))


def test_linear_features_start_at_zero_and_sum_every_weight():
    layer = LinearFeatures(SCHEMA)
    np.testing.assert_array_equal(layer(batch()), np.zeros((4, 1)))
    for table in layer.tables.values():
        table.embedding_weights.assign(np.arange(table.cardinality)[:, None] + 1)
    layer.numeric_kernel.assign([[10.0]])
    layer.bias.assign([0.25])
    # film + 1, sum of genres + 1 each, user + 1, 10 age, bias
    by_hand = [
        [9 + 6 + 1 + 5 + 0.25],
        [1 + 0 + 7 - 10 + 0.25],
        [2 + 5 + 4 + 20 + 0.25],
        [6 + 9 + 4 + 0 + 0.25],
    ]
    np.testing.assert_allclose(layer(batch()), by_hand)


def test_each_column_may_have_its_own_combiner():
    layer = DenseFeatures(SCHEMA, {"genres": "sum"})
    out = layer(batch())
    expected = combine(table_of(layer, "genres"), LISTS, "sum")
    np.testing.assert_allclose(out[:, 5:7], expected, rtol=1e-6)


@pytest.mark.parametrize("form", ["offsets", "ragged"])
def test_all_forms_of_a_list_column_give_the_same(form):
    layer = DenseFeatures(SCHEMA)
    expected = layer(batch())
    np.testing.assert_array_equal(layer(as_tensors(batch(form))), expected)


@pytest.mark.parametrize("policy", POLICIES)
@forms
def test_a_functional_model_over_columns_survives_a_keras_file(form, policy, tmp_path):
    inputs = keras_inputs(SCHEMA, multi_hot=form)
    deep = DenseFeatures(SCHEMA, dtype=policy, name="deep")(inputs)
    wide = LinearFeatures(SCHEMA, dtype=policy, name="wide")(inputs)
    model = keras.Model(inputs, keras.layers.Concatenate(dtype="float32")([deep, wide]))
    data = as_tensors(batch(form))
    out = model(data)
    assert out.shape == (4, 1 + 4 + 2 + 3 + 1)
    assert model.output_shape == (None, 11)
    np.testing.assert_array_equal(reloaded(model, tmp_path)(data), out)


@forms
def test_weights_of_a_column_are_another_column_and_no_feature(form, tmp_path):
    data = as_tensors(weighted_batch(form))
    inputs = keras_inputs(WEIGHTED, multi_hot=form)
    layer = DenseFeatures(WEIGHTED, "sum", weights={"genres": "scores"}, name="features")
    model = keras.Model(inputs, layer(inputs))
    assert model.output_shape == (None, 1 + 4 + 2 + 3)
    out = model(data)
    lists, scores = lists_and_scores(form)
    expected = combine(table_of(layer, "genres"), lists, "sum", scores)
    np.testing.assert_allclose(out[:, 5:7], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(reloaded(model, tmp_path)(data), out)


# ---- vectors ------------------------------------------------------------------------------------

VECTOR = Column("v", "continuous", "float32", length=2)
VECTORS = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


def test_a_vector_is_passed_through_and_has_a_weight_for_each_number(tmp_path):
    columns = [VECTOR, Column("a", "continuous")]
    data = as_tensors({"v": VECTORS, "a": np.array([[7.0], [8.0], [9.0]], np.float32)})
    inputs = keras_inputs(columns)
    model = keras.Model(inputs, DenseFeatures(columns)(inputs))
    assert model.output_shape == (None, 3)
    np.testing.assert_array_equal(model(data), [[7, 1, 2], [8, 3, 4], [9, 5, 6]])
    np.testing.assert_array_equal(reloaded(model, tmp_path)(data), model(data))
    linear = LinearFeatures(columns)
    linear.build({name: x.shape for name, x in data.items()})
    linear.numeric_kernel.assign([[100.0], [10.0], [1.0]])
    np.testing.assert_array_equal(linear(data), [[712], [834], [956]])


def test_a_vector_as_wide_as_the_embeddings_is_stacked_with_them():
    columns = [Column("a", "categorical", cardinality=3, embedding_dim=2), VECTOR]
    out = DenseFeatures(columns, aggregation="stack")({"a": np.array([[1]]), "v": VECTORS[:1]})
    np.testing.assert_array_equal(out[0, 1], [1, 2])


def test_a_vector_is_that_many_columns_of_the_stacked_matrix():
    columns = [Column("a", "continuous"), VECTOR]
    assert keras_inputs(columns, batch_layout="stacked")["continuous"].shape == (None, 3)


# ---- what is refused ----------------------------------------------------------------------------

NUMBERS = Column("n", "continuous", "float32", multi_hot=True)
ONE = [Column("a", "categorical", cardinality=3, embedding_dim=2)]
TWO_WIDTHS = [*ONE, Column("b", "categorical", cardinality=3, embedding_dim=4)]
IDS = np.array([[0], [1]])
REFUSED = {
    "cardinality": (lambda: DenseFeatures([Column("a", "categorical")]), "'a'.*cardinality"),
    "cardinalities": (
        lambda: DenseFeatures(Schema(Column(n, "categorical") for n in "ab")),
        r"\['a', 'b'\]: cardinality is not known",
    ),
    "no columns": (lambda: DenseFeatures([Column("y", "label")]), "at least one feature"),
    "list of numbers": (lambda: DenseFeatures([NUMBERS]), r"\['n'\] hold lists"),
    "combiner": (lambda: DenseFeatures(SCHEMA, "max"), "combiner must be one of.*'max'"),
    "combiner of a column": (lambda: DenseFeatures(SCHEMA, {"genres": "max"}), "'max'"),
    "combiner of no column": (lambda: DenseFeatures(SCHEMA, {"x": "sum"}), r"\['x'\]"),
    "aggregation": (lambda: DenseFeatures(ONE, "sum", "add"), "aggregation.*'add'"),
    "widths": (lambda: ScalarDenseFeatures(TWO_WIDTHS, "stack"), "equal widths.*'b': 4"),
    "multi-hot": (lambda: ScalarDenseFeatures(SCHEMA), r"\['genres'\] are multi-hot"),
    "missing column": (lambda: DenseFeatures(ONE)({"b": IDS}), r"'a' is missing.*\['b'\]"),
    "not a dict": (lambda: DenseFeatures(ONE)(IDS), "dict of columns"),
    "shape": (lambda: DenseFeatures(ONE)({"a": IDS[:, 0]}), r"'a' must have shape.*\(2,\)"),
    "missing lists": (
        lambda: DenseFeatures(SCHEMA)({k: v for k, v in batch().items() if "nnzs" not in k}),
        "'genres' is multi-hot and needs genres__values",
    ),
    "weights of no column": (lambda: DenseFeatures(SCHEMA, weights={"x": "y"}), r"\['x'\]"),
    "weights of one id": (
        lambda: DenseFeatures(SCHEMA, weights={"user": "y"})(batch()),
        "'user' has weights, so it must be multi-hot",
    ),
    "missing weights": (
        lambda: DenseFeatures(WEIGHTED, weights={"genres": "scores"})(
            {**batch(), "genres__values": VALUES, "genres__nnzs": NNZS}
        ),
        "weights 'scores__values' are missing",
    ),
    "vector of another length": (
        lambda: DenseFeatures([VECTOR])({"v": np.ones((2, 3), np.float32)}),
        r"'v' must have shape \[batch, 2\], got \(2, 3\)",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_with_its_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
