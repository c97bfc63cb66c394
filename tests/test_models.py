"""Whole networks: their formulas, both layouts, learning, files and export."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tutorlib.layers import DenseFeatures, DotProductInteraction
from tutorlib.models import DLRM, DCNv2, DeepFM, WideAndDeep, movielens_network
from tutorlib.schema import Column, Schema

ROWS = 1_024
SCHEMA = Schema(
    [
        Column("label", "label", "float32"),
        Column("I2", "continuous", "float32"),
        Column("I1", "continuous", "float32"),
        Column("C9", "categorical", cardinality=30),
        Column("C10", "categorical", cardinality=7),
        Column("C1", "categorical", cardinality=11),
    ]
)


def criteo_like(seed=0):
    """(columns batch, stacked batch, labels) of the same rows; labels depend on C9 and I1."""
    rng = np.random.default_rng(seed)
    columns = {
        c.name: rng.integers(0, c.cardinality, (ROWS, 1)).astype("int32")
        for c in SCHEMA.categorical
    }
    columns |= {c.name: rng.normal(size=(ROWS, 1)).astype("float32") for c in SCHEMA.continuous}
    stacked = {
        "categorical": np.concatenate([columns[n] for n in SCHEMA.categorical.names], axis=1),
        "continuous": np.concatenate([columns[n] for n in SCHEMA.continuous.names], axis=1),
    }
    labels = (columns["C9"] % 2 + columns["I1"] > 0.5).astype("float32")
    return columns, stacked, labels


def base_rate_loss(labels):
    """The loss of a model that knows only how frequent a positive label is."""
    base = labels.mean()
    return -(base * np.log(base) + (1 - base) * np.log(1 - base))


def small_dlrm(layout="columns", schema=SCHEMA):
    return DLRM(schema, 4, [16], [16], batch_layout=layout)


def movielens_schema(width=None):
    return Schema(
        [
            Column("userId", "categorical", cardinality=162_542 if width is None else 20),
            Column("movieId", "categorical", cardinality=56_586 if width is None else 30),
            Column("genres", "categorical", multi_hot=True, cardinality=21, embedding_dim=width),
            Column("rating", "label", "float32"),
        ]
    )


def movielens_like(seed=0):
    """(batch, labels): a film with genre 3 is liked."""
    rng = np.random.default_rng(seed)
    nnzs = rng.integers(0, 5, (256, 1)).astype("int32")
    values = rng.integers(1, 21, (int(nnzs.sum()), 1)).astype("int32")
    row_ids = np.repeat(np.arange(256), nnzs[:, 0])
    labels = np.zeros((256, 1), "float32")
    labels[row_ids[values[:, 0] <= 5]] = 1
    batch = {
        "userId": rng.integers(0, 20, (256, 1)).astype("int32"),
        "movieId": rng.integers(0, 30, (256, 1)).astype("int32"),
        "genres__values": values,
        "genres__nnzs": nnzs,
    }
    return batch, labels


def test_dlrm_equals_its_formula():
    _, stacked, _ = criteo_like()
    model = small_dlrm("stacked")

    bottom, top = model.get_layer("bottom_mlp").dense, model.get_layer("top_mlp").dense
    x = dense(bottom[1], np.maximum(dense(bottom[0], stacked["continuous"]), 0))
    embeddings = model.get_layer("embeddings")
    tables = [np.asarray(embeddings.table(name)) for name in SCHEMA.categorical.names]
    rows = [table[stacked["categorical"][:, k]] for k, table in enumerate(tables)]
    features = [x, *rows]
    pairs = [(a * b).sum(1) for i, a in enumerate(features) for b in features[i + 1 :]]
    y = np.maximum(dense(top[0], np.concatenate([x, np.stack(pairs, axis=1)], axis=1)), 0)
    y = sigmoid(dense(model.get_layer("probability"), y))
    np.testing.assert_allclose(model(stacked), y, rtol=1e-4)


@pytest.mark.parametrize("layout", ["columns", "stacked"])
def test_dlrm_learns(layout):
    keras.utils.set_random_seed(1)
    columns, stacked, labels = criteo_like()
    model = small_dlrm(layout)
    model.compile("adam", "binary_crossentropy")
    model.optimizer.learning_rate = 0.02
    inputs = columns if layout == "columns" else stacked
    losses = model.fit(inputs, labels, batch_size=128, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.6 * base_rate_loss(labels) < losses[0]


@pytest.mark.parametrize("numbers", [[], ["I1"]])
def test_dlrm_works_with_no_or_one_continuous_column(numbers):
    schema = SCHEMA.select([*numbers, "C9", "C1"])
    columns, _, _ = criteo_like()
    assert small_dlrm(schema=schema)({n: columns[n] for n in schema.names}).shape == (ROWS, 1)


def test_dlrm_refuses_lists_no_ids_and_a_single_feature():
    with pytest.raises(ValueError, match=r"\['genres'\] are multi-hot"):
        DLRM(movielens_schema())
    with pytest.raises(ValueError, match="at least one feature column"):
        DLRM(SCHEMA.continuous)
    with pytest.raises(ValueError, match="at least 2 features"):
        DLRM(SCHEMA.select(["C9"]))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_probability_is_float32_under_a_mixed_policy(policy):
    columns, _, labels = criteo_like()
    keras.config.set_dtype_policy(policy)
    try:
        model = small_dlrm()
        model.compile("adam", "binary_crossentropy")
        history = model.fit(columns, labels, batch_size=256, epochs=2, verbose=0)
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.get_layer("embeddings").compute_dtype == policy.removeprefix("mixed_")
    assert model(columns).dtype == tf.float32
    assert all(weight.dtype == "float32" for weight in model.weights)
    assert history.history["loss"][1] < history.history["loss"][0]


def test_the_movielens_network_is_1040_wide():
    # By its declared shape: the tables of this size are 450 MB.
    shapes = {n: (None, 1) for n in ("userId", "movieId", "genres__values", "genres__nnzs")}
    assert DenseFeatures(movielens_schema()).compute_output_shape(shapes) == (None, 1040)
    model = movielens_network(movielens_schema(8))
    assert [layer.units for layer in model.get_layer("mlp").dense] == [128, 128, 128]


def test_the_movielens_network_learns_from_batches_with_varying_list_lengths():
    keras.utils.set_random_seed(2)

    def batches():
        for seed in range(24):
            yield movielens_like(seed)

    batch, labels = movielens_like()
    signature = (
        {name: tf.TensorSpec((None, 1), tf.int32) for name in batch},
        tf.TensorSpec((None, 1), tf.float32),
    )
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    model = movielens_network(movielens_schema(8), (16,))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    model.fit(data, epochs=3, verbose=0)
    held_out, held_out_labels = movielens_like(99)
    loss = keras.losses.BinaryCrossentropy()(held_out_labels, model(held_out))
    assert float(loss) < 0.7 * base_rate_loss(labels)


def small_models():
    """{name: function of a batch layout that makes a model}, for models with both layouts."""
    return {
        "dlrm": small_dlrm,
        "deepfm": lambda layout="columns": DeepFM(SCHEMA, 4, [16], batch_layout=layout),
        "dcn_v2": lambda layout="columns": DCNv2(SCHEMA, 2, [16], batch_layout=layout),
        "dcn_v2_parallel": lambda layout="columns": DCNv2(
            SCHEMA, 2, [16], projection_dim=4, structure="parallel", batch_layout=layout
        ),
    }


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def dense(layer, x):
    """A keras.layers.Dense without its activation, in NumPy."""
    return x @ np.asarray(layer.kernel) + np.asarray(layer.bias)


def randomised(model):
    """The model with random weights everywhere, also where they start at zero."""
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(scale=0.3, size=w.shape) for w in model.get_weights()])
    return model


@pytest.mark.parametrize("name", small_models())
def test_a_model_gives_the_same_for_columns_and_stacked_batches(name):
    columns, stacked, _ = criteo_like()
    by_columns, by_stack = (small_models()[name](layout) for layout in ("columns", "stacked"))
    assert [w.shape for w in by_columns.weights] == [w.shape for w in by_stack.weights]
    by_stack.set_weights(randomised(by_columns).get_weights())
    np.testing.assert_allclose(by_stack(stacked), by_columns(columns), rtol=1e-5)


def test_deepfm_equals_its_formula():
    _, stacked, _ = criteo_like()
    model = randomised(small_models()["deepfm"]("stacked"))
    names, ids = SCHEMA.categorical.names, stacked["categorical"]
    tables = [model.get_layer(layer) for layer in ("embeddings", "weights_of_ids")]
    vectors, weights = (
        np.stack([np.asarray(t.table(n))[ids[:, k]] for k, n in enumerate(names)], axis=1)
        for t in tables
    )
    numbers = stacked["continuous"]
    scaled = numbers[:, :, None] * np.asarray(model.get_layer("numbers").vectors)
    features = np.concatenate([vectors, scaled], axis=1)
    pairs = [(i, j) for j in range(features.shape[1]) for i in range(j)]
    second = sum((features[:, i] * features[:, j]).sum(axis=1, keepdims=True) for i, j in pairs)
    [hidden] = model.get_layer("deep_mlp").dense
    deep = np.maximum(dense(hidden, features.reshape(ROWS, -1)), 0)
    logit = weights.sum(axis=1) + dense(model.get_layer("weights_of_numbers"), numbers)
    logit = logit + second + dense(model.get_layer("deep"), deep)
    np.testing.assert_allclose(model(stacked), sigmoid(logit), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["dcn_v2", "dcn_v2_parallel"])
def test_dcn_equals_its_formula(name):
    _, stacked, _ = criteo_like()
    model = randomised(small_models()[name]("stacked"))
    embeddings, cross = model.get_layer("embeddings"), model.get_layer("cross")
    tables = [np.asarray(embeddings.table(n)) for n in SCHEMA.categorical.names]
    rows = [table[stacked["categorical"][:, k]] for k, table in enumerate(tables)]
    x0 = x = np.concatenate([stacked["continuous"], *rows], axis=1)
    for kernels, bias in zip(cross.kernels, cross.biases, strict=True):
        product = x
        for kernel in kernels:
            product = product @ np.asarray(kernel)
        x = x0 * (product + np.asarray(bias)) + x
    [hidden] = model.get_layer("deep_mlp").dense
    deep = np.maximum(dense(hidden, x if name == "dcn_v2" else x0), 0)
    top = deep if name == "dcn_v2" else np.concatenate([x, deep], axis=1)
    expected = sigmoid(dense(model.get_layer("probability"), top))
    np.testing.assert_allclose(model(stacked), expected, rtol=1e-4, atol=1e-6)


def test_wide_and_deep_is_the_sigmoid_of_the_sum_of_both_sides():
    batch, _ = movielens_like()
    schema = movielens_schema(8)
    model = randomised(WideAndDeep(schema, [16], combiner="sum"))
    wide, features = model.get_layer("wide"), model.get_layer("deep_features")
    [hidden] = model.get_layer("deep_mlp").dense
    deep = dense(model.get_layer("deep"), np.maximum(dense(hidden, features(batch).numpy()), 0))
    np.testing.assert_allclose(model(batch), sigmoid(wide(batch) + deep), rtol=1e-4)
    assert features.combiner == "sum"


def test_the_wide_side_starts_at_zero_and_can_have_columns_of_its_own():
    columns, _, _ = criteo_like()
    crossed = Column("C1_x_C9", "categorical", cardinality=330)
    model = WideAndDeep(SCHEMA.select(["C9", "I1"]), [8], wide_schema=[crossed])
    assert set(model.input) == {"C9", "I1", "C1_x_C9"}
    batch = {"C9": columns["C9"], "I1": columns["I1"], "C1_x_C9": columns["C1"] * 30}
    np.testing.assert_array_equal(model.get_layer("wide")(batch), np.zeros((ROWS, 1)))
    with pytest.raises(ValueError, match=r"\['C9'\] differently"):
        WideAndDeep(SCHEMA, wide_schema=SCHEMA.replace("C9", cardinality=31))


@pytest.mark.parametrize("name", ["deepfm", "dcn_v2", "dcn_v2_parallel", "wide_and_deep"])
def test_a_model_learns(name):
    keras.utils.set_random_seed(1)
    columns, _, labels = criteo_like()
    model = WideAndDeep(SCHEMA, [16]) if name == "wide_and_deep" else small_models()[name]()
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    losses = model.fit(columns, labels, batch_size=128, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.6 * base_rate_loss(labels)


def test_models_refuse_unknown_structures_lists_and_a_single_feature():
    with pytest.raises(ValueError, match=r"structure must be one of.*'deep'"):
        DCNv2(SCHEMA, structure="deep")
    for make in (DeepFM, DCNv2):
        with pytest.raises(ValueError, match=r"\['genres'\] are multi-hot"):
            make(movielens_schema())
    with pytest.raises(ValueError, match="at least 2 features"):
        DeepFM(SCHEMA.select(["C9"]))


def models():
    columns, stacked, _ = criteo_like()
    return {
        **{name: (make(), columns) for name, make in small_models().items()},
        "dlrm_stacked": (small_dlrm("stacked"), stacked),
        "wide_and_deep": (WideAndDeep(movielens_schema(8), [8]), movielens_like()[0]),
        "movielens": (movielens_network(movielens_schema(8), (8,)), movielens_like()[0]),
    }


@pytest.mark.parametrize("name", models())
def test_a_model_survives_a_keras_file_and_an_export(name, tmp_path):
    model, batch = models()[name]
    out = model(batch)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(batch), out)
    model.export(tmp_path / "export", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "export"))
    tensors = {key: tf.constant(x) for key, x in batch.items()}
    np.testing.assert_allclose(served.serve(tensors), out, rtol=1e-6)


@pytest.mark.parametrize("name", ["dlrm_stacked", "deepfm", "dcn_v2", "movielens"])
def test_a_model_can_be_summed_up_and_drawn(name):
    pytest.importorskip("pydot", reason="drawing a model needs pydot")
    model, _ = models()[name]
    lines = []
    model.summary(print_fn=lambda text, line_break=False: lines.append(text))
    assert "probability" in "\n".join(lines)
    drawing = keras.utils.model_to_dot(model, show_shapes=True).to_string()
    assert "probability" in drawing


@pytest.mark.parametrize("name", ["dlrm_stacked", "wide_and_deep", "movielens"])
def test_a_model_trains_under_xla(name):
    model, batch = models()[name]
    labels = (np.arange(len(next(iter(reversed(batch.values()))))) % 2).astype("float32")
    model.compile("adam", "binary_crossentropy", jit_compile=True)
    losses = [model.train_on_batch(batch, labels[:, None]) for _ in range(3)]
    assert losses[2] < losses[0]


def test_the_interactions_of_a_dlrm_can_be_padded():
    padded = DLRM(SCHEMA, 4, [16], [16], pad_to=16)
    assert padded.get_layer("interaction").output.shape == (None, 16)  # of six pairs


def test_models_are_made_of_the_librarys_feature_layers():
    assert isinstance(small_dlrm().get_layer("interaction"), DotProductInteraction)
    features = movielens_network(movielens_schema(8)).get_layer("features")
    assert isinstance(features, DenseFeatures)
    assert features.combiner == "mean"
