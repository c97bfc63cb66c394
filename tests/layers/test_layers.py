"""Layers against NumPy oracles and cases computed by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.layer_cases import (
    LISTS,
    MIXED_POLICIES,
    NNZS,
    OFFSETS,
    POLICIES,
    SCHEMA,
    TABLE,
    VALUES,
    bag_forms,
    batch,
    built_bag,
    combine,
    every_layer,
    fused_columns,
)
from tutorlib.layers import (
    MLP,
    DenseFeatures,
    DotProductInteraction,
    EmbeddingTable,
    FusedEmbedding,
    LinearFeatures,
    ScalarDenseFeatures,
    keras_inputs,
)
from tutorlib.schema import Column


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("form", bag_forms())
def test_a_bag_combines_each_row_in_every_form(form, combiner):
    inputs, lists = bag_forms()[form]
    out = built_bag(combiner)(inputs)
    np.testing.assert_allclose(out, combine(TABLE, lists, combiner), rtol=1e-6)
    assert not out.numpy()[1].any()  # the empty row


def test_a_bag_of_only_empty_rows_gives_zeros():
    out = built_bag()({"values": np.zeros((0, 1), np.int64), "nnzs": np.zeros((3, 1), np.int32)})
    np.testing.assert_array_equal(out, np.zeros((3, 2)))


@pytest.mark.parametrize("dtype", ["int64", "int16", "uint8"])
@pytest.mark.parametrize("part", ["nnzs", "offsets"])
def test_a_bag_takes_counts_of_any_integer_type(part, dtype):
    """A GPU's loader gives int64."""
    inputs, lists = bag_forms()[part]
    out = built_bag("mean")(inputs | {part: np.asarray(inputs[part]).astype(dtype)})
    np.testing.assert_allclose(out, combine(TABLE, lists, "mean"), rtol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
def test_a_bags_gradient_is_the_oracles_also_under_xla(combiner, jit):
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


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
def test_dense_features_stand_in_name_order(combiner):
    layer = DenseFeatures(SCHEMA, combiner=combiner)
    out = layer(batch())
    tables = {name: np.asarray(t.embedding_weights) for name, t in layer.tables.items()}
    expected = np.concatenate(
        [
            batch()["age"],
            tables["film"][[8, 0, 1, 5]],
            combine(tables["genres"], LISTS, combiner),
            tables["user"][[0, 6, 3, 3]],
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
    expected = np.stack(
        [np.asarray(layer.tables[n].embedding_weights)[inputs[n][:, 0]] for n in "abc"], axis=1
    )
    np.testing.assert_array_equal(out, expected)
    flat = ScalarDenseFeatures(columns)
    flat.build({n: (None, 1) for n in "abc"})
    flat.set_weights(layer.get_weights())
    np.testing.assert_array_equal(flat(inputs), expected.reshape(2, 6))


def test_feature_columns_are_taken_as_a_schema():
    column = tf.feature_column.embedding_column(
        tf.feature_column.categorical_column_with_identity("C1", 10), 3
    )
    layer = ScalarDenseFeatures([column, tf.feature_column.numeric_column("I1")])
    out = layer({"C1": np.array([[9]]), "I1": np.array([[2.5]])})
    assert out.shape == (1, 4)
    assert out.numpy()[0, 3] == 2.5


def test_embeddings_start_with_a_norm_near_one():
    table = EmbeddingTable(4_000, 64)
    table.build()
    weights = np.asarray(table.embedding_weights)
    # A normal cut at two standard deviations keeps 0.88 of one.
    assert weights.std() == pytest.approx(0.88 / 8, rel=0.03)
    assert abs(weights).max() <= 2 / 8


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


def test_fused_embedding_equals_a_table_per_column():
    layer = FusedEmbedding(fused_columns())
    stacked = np.array([[3, 5, 2], [0, 0, 0], [1, 4, 0]])
    out = layer(stacked)
    tables = [np.asarray(layer.table(name)) for name in ("x", "b", "m")]
    assert [len(table) for table in tables] == [4, 6, 3]
    expected = np.stack([t[stacked[:, k]] for k, t in enumerate(tables)], axis=1)
    np.testing.assert_array_equal(out, expected)
    columns = {name: stacked[:, [k]] for k, name in enumerate(("x", "b", "m"))}
    np.testing.assert_array_equal(layer(columns), expected)


@pytest.mark.parametrize("dtype", ["int32", "int64", "int16", "uint8"])
def test_fused_embedding_takes_ids_of_any_integer_type(dtype):
    layer = FusedEmbedding(
        [Column(n, "categorical", cardinality=250, embedding_dim=2) for n in "ab"]
    )
    out = layer(np.array([[1, 249]], dtype))
    np.testing.assert_array_equal(out[0, 1], np.asarray(layer.table("b"))[249])


def test_mlp_is_its_dense_layers():
    layer = MLP([4, 3], output_units=2, output_activation="sigmoid")
    x = np.random.default_rng(3).normal(size=(5, 6)).astype(np.float32)
    out = layer(x)
    for k in range(2):
        kernel, bias = (np.asarray(w) for w in layer.weights[2 * k : 2 * k + 2])
        x = np.maximum(x @ kernel + bias, 0)
    kernel, bias = (np.asarray(w) for w in layer.weights[4:])
    np.testing.assert_allclose(out, 1 / (1 + np.exp(-(x @ kernel + bias))), rtol=1e-5)


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


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", ["nnzs", "offsets", "ragged", "padded"])
def test_a_functional_model_over_columns_survives_a_keras_file(form, policy, tmp_path):
    inputs = keras_inputs(SCHEMA, multi_hot=form)
    deep = DenseFeatures(SCHEMA, dtype=policy, name="deep")(inputs)
    wide = LinearFeatures(SCHEMA, dtype=policy, name="wide")(inputs)
    model = keras.Model(inputs, keras.layers.Concatenate(dtype="float32")([deep, wide]))
    data = {name: x for name, x in batch().items() if not name.startswith("genres")}
    data |= {
        "nnzs": {"genres__values": VALUES[:, None], "genres__nnzs": NNZS[:, None]},
        "offsets": {"genres__values": VALUES, "genres__offsets": OFFSETS},
        "ragged": {"genres": tf.ragged.constant(LISTS, dtype=tf.int32)},
        "padded": {"genres": tf.constant([[1, 3], [0, 0], [4, 0], [2, 1]])},
    }[form]
    data = {name: x if name == "genres" else tf.constant(x) for name, x in data.items()}
    out = model(data)
    assert out.shape == (4, 1 + 4 + 2 + 3 + 1)
    assert model.output_shape == (None, 11)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(data), out)


def test_all_forms_of_a_list_column_give_the_same():
    layer = DenseFeatures(SCHEMA)
    expected = layer(batch())
    rest = {name: x for name, x in batch().items() if not name.startswith("genres")}
    offsets = layer({**rest, "genres__values": VALUES, "genres__offsets": OFFSETS})
    tensors = {name: tf.constant(x) for name, x in rest.items()}
    ragged = layer({**tensors, "genres": tf.ragged.constant(LISTS, dtype=tf.int64)})
    np.testing.assert_array_equal(offsets, expected)
    np.testing.assert_array_equal(ragged, expected)


def refusals():
    numbers = Column("n", "continuous", "float32", multi_hot=True)
    known = [Column("a", "categorical", cardinality=3, embedding_dim=2)]
    wider = [*known, Column("b", "categorical", cardinality=3, embedding_dim=4)]
    ids = np.array([[0], [1]])
    return {
        "cardinality": (lambda: DenseFeatures([Column("a", "categorical")]), "'a'.*cardinality"),
        "no columns": (lambda: DenseFeatures([Column("y", "label")]), "at least one feature"),
        "list of numbers": (lambda: DenseFeatures([numbers]), r"\['n'\] hold lists"),
        "combiner": (lambda: DenseFeatures(SCHEMA, "max"), "combiner must be one of.*'max'"),
        "aggregation": (lambda: DenseFeatures(known, "sum", "add"), "aggregation.*'add'"),
        "multi-hot": (lambda: ScalarDenseFeatures(SCHEMA), r"\['genres'\] are multi-hot"),
        "stack": (lambda: ScalarDenseFeatures(wider, "stack"), "equal widths.*'b': 4"),
        "fused widths": (lambda: FusedEmbedding(wider), "equal widths.*'b': 4"),
        "fused multi-hot": (lambda: FusedEmbedding(SCHEMA), r"\['genres'\] are multi-hot"),
        "fused shape": (lambda: FusedEmbedding(known)(np.zeros((2, 2), int)), r"\[batch, 1\]"),
        "missing": (lambda: DenseFeatures(known)({"b": ids}), r"'a' is missing.*\['b'\]"),
        "not a dict": (lambda: DenseFeatures(known)(ids), "dict of columns"),
        "shape": (lambda: DenseFeatures(known)({"a": ids[:, 0]}), r"'a' must have shape.*\(2,\)"),
        "lists missing": (
            lambda: DenseFeatures(SCHEMA)({k: v for k, v in batch().items() if "nnzs" not in k}),
            "'genres' is multi-hot and needs genres__values",
        ),
        "interaction": (lambda: DotProductInteraction("field"), "interaction_type.*'field'"),
        "one feature": (
            lambda: DotProductInteraction()(np.ones((2, 1, 3), np.float32)),
            "at least two features",
        ),
        "rank": (lambda: DotProductInteraction()(np.ones((2, 3), np.float32)), r"\[batch, F, d\]"),
        "mlp": (lambda: MLP([]), "at least one layer"),
        "mlp activation": (lambda: MLP([2], output_activation="tanh"), "output_units"),
        "table": (lambda: EmbeddingTable(0, 2), "cardinality must be at least 1, got 0"),
        "layout": (lambda: keras_inputs(SCHEMA, batch_layout="rows"), "batch_layout.*'rows'"),
        "form": (lambda: keras_inputs(SCHEMA, multi_hot="csr"), "multi_hot.*'csr'"),
        "stacked": (lambda: keras_inputs(SCHEMA, batch_layout="stacked"), "'genres'"),
    }


@pytest.mark.parametrize("case", refusals())
def test_what_does_not_fit_is_refused_with_its_name(case):
    call, message = refusals()[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_inputs_have_the_dtype_that_holds_the_ids():
    columns = [
        Column("small", "categorical", cardinality=2**31 - 1),
        Column("large", "categorical", cardinality=2**31 + 1, embedding_dim=2),
    ]
    inputs = keras_inputs(columns)
    assert (inputs["small"].dtype, inputs["large"].dtype) == ("int32", "int64")
    assert keras_inputs(columns, batch_layout="stacked")["categorical"].dtype == "int64"
