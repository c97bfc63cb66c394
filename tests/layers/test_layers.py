"""What every layer promises: its values, shapes and dtypes, config, file, and gradients."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.backends import both, run
from tests.support.layer_cases import (
    FORMS,
    POLICIES,
    SCHEMA,
    features_oracle,
    layers,
    randomised,
    rows,
)
from tutorlib.layers import (
    MLP,
    DenseFeatures,
    DotProductInteraction,
    EmbeddingBag,
    EmbeddingTable,
    FusedEmbedding,
    LinearFeatures,
    ScalarDenseFeatures,
    keras_inputs,
)
from tutorlib.schema import Column, Schema

LIST = Column("g", "categorical", multi_hot=True, cardinality=3, embedding_dim=1)
CASES = layers()
ROWS = [(name, layout) for name, case in CASES.items() for layout in case.inputs]
TABLES = [row for row in ROWS if row[0].split()[0] in ("table", "bag", "fused")]
every_layout = pytest.mark.parametrize(("name", "layout"), ROWS)


@pytest.mark.parametrize("jit", [False, True])
@every_layout
def test_a_layer_gives_what_numpy_gives(name, layout, jit):
    case, inputs = CASES[name], CASES[name].inputs[layout]
    layer = randomised(case.make("float32"), inputs)
    out = tf.function(lambda: layer(inputs), jit_compile=jit)()
    np.testing.assert_allclose(out, case.oracle(layer, inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
@every_layout
def test_shape_and_dtype_are_those_declared(name, layout, policy):
    inputs = CASES[name].inputs[layout]
    layer = randomised(CASES[name].make(policy), inputs)
    out = layer(inputs)
    if isinstance(inputs, dict):
        shapes = {key: tuple(x.shape) for key, x in inputs.items()}
    else:
        shapes = tuple(inputs.shape)
    assert layer.compute_output_shape(shapes) == tuple(out.shape)
    assert keras.backend.standardize_dtype(out.dtype) == layer.compute_dtype
    assert all(weight.dtype == layer.variable_dtype for weight in layer.weights)
    expected = CASES[name].oracle(layer, inputs)
    precision = {"float32": 1e-5, "float16": 0.01, "bfloat16": 0.08}[layer.compute_dtype]
    np.testing.assert_allclose(tf.cast(out, "float32"), expected, rtol=precision, atol=precision)


@pytest.mark.parametrize("name", CASES)
def test_a_layer_comes_back_from_its_config(name):
    [inputs, *_] = CASES[name].inputs.values()
    layer = randomised(CASES[name].make("mixed_bfloat16"), inputs)
    config = json.loads(json.dumps(keras.layers.serialize(layer)))
    again = keras.layers.deserialize(config)
    assert again.get_config() == layer.get_config()
    again(inputs)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(inputs), layer(inputs))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_a_functional_model_over_columns_survives_a_keras_file(form, policy, tmp_path):
    inputs = keras_inputs(SCHEMA, multi_hot=form)
    deep = DenseFeatures(SCHEMA, dtype=policy, name="deep")
    wide = LinearFeatures(SCHEMA, dtype=policy, name="wide")(inputs)
    model = keras.Model(inputs, keras.layers.Concatenate(dtype="float32")([deep(inputs), wide]))
    assert model.output_shape == (None, 1 + 4 + 2 + 2 + 3 + 1)
    assert [w.path for w in deep.weights] == [
        f"deep/table_{number}/embedding_weights" for number in range(3)
    ]
    data = {name: tf.constant(x) for name, x in rows(form).items()}
    out = model(data)
    precision = 1e-6 if policy == "float32" else 0.08
    expected = features_oracle("mean")(deep, data)
    np.testing.assert_allclose(out[:, :-1], expected, rtol=precision, atol=precision)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(data), out)


@both
def test_the_layers_give_the_same_on_other_backends(backend, tmp_path):
    code = """
from tests.support.layer_cases import *
from tutorlib.optimizers import RowSparseAdam
found = {}
for name, case in layers().items():
    for layout, inputs in case.inputs.items():
        layer = randomised(case.make("float32"), inputs)
        apart = array(layer(inputs)) - case.oracle(layer, inputs)
        found[f"{name}, {layout}"] = float(abs(apart).max())
fused = randomised(FusedEmbedding(SAME_WIDTH), IDS)
try:
    beyond = numpy(fused(np.array([[4, 0, 0], [0, -1, 2]])))
    found["neighbours"] = float(not np.isnan([beyond[0, 0], beyond[1, 1]]).all())
except IndexError:  # PyTorch refuses them
    found["neighbours"] = 0
try:
    RowSparseAdam()
except RuntimeError as error:
    found["optimizer"] = float(f"on TensorFlow, got '{keras.backend.backend()}'" not in str(error))
print(json.dumps(found))
"""
    found = run(backend, str(tmp_path), code)
    assert {"table, ids", "neighbours", "optimizer"} <= found.keys()
    assert {name: apart for name, apart in found.items() if not apart < 1e-5} == {}


# ---- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if name != "mlp"])
def test_gradients_equal_finite_differences_and_those_under_xla(name):
    """Of all weights, and of the input if it is numbers."""
    for layout, inputs in CASES[name].inputs.items():
        layer = randomised(CASES[name].make("float64"), inputs)
        moved = [weight.value for weight in layer.weights]
        if not isinstance(inputs, dict) and inputs.dtype == np.float32:
            inputs = tf.Variable(inputs.astype(np.float64))
            moved.append(inputs)

        def step(layer=layer, inputs=inputs, moved=moved):
            with tf.GradientTape() as tape:
                x = tf.convert_to_tensor(inputs) if isinstance(inputs, tf.Variable) else inputs
                loss = tf.reduce_sum(tf.sin(layer(x)))
            return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, moved)]

        compiled = tf.function(step)
        gradients = compiled()[1]
        for ours, theirs in zip(tf.function(step, jit_compile=True)()[1], gradients, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        for variable, gradient in zip(moved, gradients, strict=True):
            start = variable.numpy()
            for cell in np.ndindex(*start.shape):
                ends = []
                for change in (1e-6, -1e-6):
                    value = start.copy()
                    value[cell] += change
                    variable.assign(value)
                    ends.append(float(compiled()[0]))
                expected = (ends[0] - ends[1]) / 2e-6
                assert gradient[cell].numpy() == pytest.approx(expected, rel=1e-4, abs=1e-6), layout
            variable.assign(start)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize(("name", "layout"), TABLES)
def test_the_gradient_of_a_table_is_float32_and_names_only_rows_of_the_batch(name, layout, policy):
    """Padding too: a row-sparse optimizer updates every row that a gradient names."""
    inputs = CASES[name].inputs[layout]
    layer = randomised(CASES[name].make(policy), inputs)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(layer(inputs), tf.float32))
        return tape.gradient(loss, layer.embedding_weights.value)

    found = gradient()
    assert isinstance(found, tf.IndexedSlices)
    assert found.dtype == tf.float32
    dense = tf.convert_to_tensor(found).numpy()
    assert set(np.unique(found.indices)) == set(np.flatnonzero(dense.any(axis=1)))


# ---- single layers ------------------------------------------------------------------------------


def test_an_id_out_of_range_never_reads_a_neighbours_row():
    fused, table = FusedEmbedding(_columns(a=3, b=4)), EmbeddingTable(3, 2)
    fused.build((None, 2))
    table.build()
    for ids in ([[3, 0]], [[0, 4]], [[-1, 0]], [[0, -1]]):
        ids = tf.constant(ids)
        for call in (fused, tf.function(fused)):
            with pytest.raises(tf.errors.InvalidArgumentError):
                call(ids)
        nearest = np.clip(ids, 0, [2, 3])
        np.testing.assert_array_equal(tf.function(fused, jit_compile=True)(ids), fused(nearest))
    with pytest.raises(tf.errors.InvalidArgumentError):  # as a table of its own does
        table(tf.constant([3]))


def _columns(width=2, **sizes):
    return [
        Column(name, "categorical", cardinality=size, embedding_dim=width)
        for name, size in sizes.items()
    ]


def test_the_columns_of_a_fused_table_fill_it_without_gaps():
    layer = FusedEmbedding(_columns(x=4, b=6, m=3))
    layer.build((None, 3))
    views = [np.asarray(layer.table(name)) for name in "xbm"]
    assert [view.shape for view in views] == [(4, 2), (6, 2), (3, 2)]
    np.testing.assert_array_equal(np.concatenate(views), layer.embedding_weights)


def test_linear_features_start_at_zero_and_empty_lists_stay_there():
    np.testing.assert_array_equal(LinearFeatures(SCHEMA)(rows()), np.zeros((5, 1)))
    nothing = {"values": np.zeros((0, 1), np.int64), "nnzs": np.zeros((3, 1), np.int32)}
    for inputs in (nothing, np.zeros((3, 2), np.int64)):
        np.testing.assert_array_equal(EmbeddingBag(5, 2)(inputs), np.zeros((3, 2)))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("layer", [EmbeddingBag(3, 1, "sum"), DenseFeatures([LIST], "sum")])
def test_the_id_0_is_padding_in_the_padded_form_alone(layer, jit):
    forms = {
        "nnzs": {"g__values": np.array([[0], [2], [0]]), "g__nnzs": np.array([[2], [0], [1]])},
        "padded": {"g": np.array([[0, 2], [0, 0], [0, 0]])},
    }
    for form, inputs in forms.items():
        if isinstance(layer, EmbeddingBag):
            inputs = inputs.get("g", {name[3:]: tensor for name, tensor in inputs.items()})
        layer(inputs)
        layer.set_weights([np.array([[1.0], [10.0], [100.0]])])
        call = tf.function(lambda inputs=inputs: layer(inputs), jit_compile=jit)
        want = [[100], [0], [0]] if form == "padded" else [[101], [0], [1]]
        np.testing.assert_array_equal(call(), want, err_msg=form)


def test_the_memory_of_a_compiled_bag_grows_with_its_values_only():
    """A comparison of everything with everything would be 2**16 * 2**17 cells."""
    bag = EmbeddingBag(5, 2, "sum", embeddings_initializer="ones")
    bag.build()
    nnzs, values = tf.fill((2**16,), 2), tf.ones((2**17,), tf.int32)
    out = tf.function(bag, jit_compile=True)({"values": values, "nnzs": nnzs})
    np.testing.assert_array_equal(out, np.full((2**16, 2), 2))


def test_inputs_have_the_dtype_that_holds_the_ids():
    columns = [*_columns(small=2**31 - 1, large=2**31 + 1), VECTOR]
    inputs, stacked = keras_inputs(columns), keras_inputs(columns, batch_layout="stacked")
    assert (inputs["small"].dtype, inputs["large"].dtype) == ("int32", "int64")
    assert stacked["categorical"].dtype == "int64"
    assert stacked["continuous"].shape == inputs["v"].shape == (None, 2)


# ---- what is refused ----------------------------------------------------------------------------

NUMBERS = Column("n", "continuous", "float32", multi_hot=True)
VECTOR = Column("v", "continuous", "float32", length=2)
ONE, TWO_WIDTHS = _columns(a=3), [*_columns(a=3), *_columns(4, b=3)]
TWO = np.array([[0], [1]])
LEGACY = tf.feature_column.numeric_column("age")
REFUSED = {
    "cardinality": (lambda: EmbeddingTable(0, 2), "cardinality must be at least 1, got 0"),
    "unknown cardinalities": (
        lambda: DenseFeatures(Schema(Column(n, "categorical") for n in "ab")),
        r"\['a', 'b'\]: cardinality is not known",
    ),
    "no columns": (lambda: DenseFeatures([Column("y", "label")]), "at least one feature"),
    "legacy columns": (
        lambda: DenseFeatures([LEGACY]),
        r"KerasSequenceLoader\(feature_columns=...\), and pass loader.schema",
    ),
    "ids of three dimensions": (
        lambda: EmbeddingBag(9, 2)(np.zeros((2, 3, 4), np.int32)),
        r"\[batch, max_len\], got \(2, 3, 4\)",
    ),
    "list of numbers": (lambda: DenseFeatures([NUMBERS]), r"\['n'\] hold lists"),
    "combiner": (lambda: DenseFeatures(SCHEMA, "max"), "combiner must be one of.*'max'"),
    "aggregation": (lambda: FusedEmbedding(ONE, "add"), "aggregation.*'add'"),
    "widths": (lambda: FusedEmbedding(TWO_WIDTHS), "equal widths.*'b': 4"),
    "scalar lists": (lambda: ScalarDenseFeatures(SCHEMA), r"\['genres'\] are multi-hot"),
    "fused lists": (lambda: FusedEmbedding(SCHEMA), r"\['genres'\] are multi-hot"),
    "fused shape": (
        lambda: FusedEmbedding(ONE)(np.zeros((2, 2), np.int32)),
        r"\[batch, 1\].*got \(2, 2\)",
    ),
    "missing column": (lambda: DenseFeatures(ONE)({"b": TWO}), r"'a' is missing.*\['b'\]"),
    "not a dict": (lambda: DenseFeatures(ONE)(TWO), "dict of columns"),
    "shape": (lambda: DenseFeatures(ONE)({"a": TWO[:, 0]}), r"'a' must have shape.*\(2,\)"),
    "missing lists": (
        lambda: DenseFeatures(SCHEMA)({k: v for k, v in rows().items() if "nnzs" not in k}),
        "'genres' is multi-hot and needs genres__values",
    ),
    "vector of another length": (
        lambda: DenseFeatures([VECTOR])({"v": np.ones((2, 3), np.float32)}),
        r"'v' must have shape \[batch, 2\], got \(2, 3\)",
    ),
    "layout": (lambda: keras_inputs(SCHEMA, batch_layout="rows"), "batch_layout.*'rows'"),
    "form": (lambda: keras_inputs(SCHEMA, multi_hot="csr"), "multi_hot.*'csr'"),
    "stacked lists": (lambda: keras_inputs(SCHEMA, batch_layout="stacked"), "'genres'"),
    "no layer": (lambda: MLP([]), "at least one layer"),
    "rank": (lambda: DotProductInteraction()(np.ones((2, 3), np.float32)), r"\[batch, F, d\]"),
    "one vector": (lambda: DotProductInteraction()(np.ones((2, 1, 3))), "at least two"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_with_its_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
