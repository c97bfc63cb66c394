"""Whole networks: their formulas, both layouts, learning, files and export."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tutorlib.layers import DenseFeatures
from tutorlib.models import DLRM, WideAndDeep, movielens_network
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


def criteo_like():
    """(columns batch, stacked batch, labels) of the same rows; labels depend on C9 and I1."""
    rng = np.random.default_rng(0)
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
    """(batch, labels): a film with a genre up to 5 is liked; genre 0 is one too.

    The number of values is the same in every batch, so that XLA compiles for one shape.
    """
    rng = np.random.default_rng(seed)
    nnzs = rng.permutation(np.arange(256, dtype="int32") % 5)[:, None]
    values = rng.integers(0, 21, (int(nnzs.sum()), 1)).astype("int32")
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


def small_dlrm(layout="columns", schema=SCHEMA, **options):
    return DLRM(schema, 4, [16], [16], batch_layout=layout, **options)


def models():
    """{name: (model, batch, labels)}, with random weights, also where they start at 0."""
    columns, stacked, labels = criteo_like()
    made = {
        "dlrm": (small_dlrm(), columns, labels),
        "dlrm_stacked": (small_dlrm("stacked"), stacked, labels),
        "wide_and_deep": (WideAndDeep(SCHEMA, [16]), columns, labels),
        "wide_and_deep_lists": (WideAndDeep(movielens_schema(8), [16]), *movielens_like()),
        "movielens": (movielens_network(movielens_schema(8), (16,)), *movielens_like()),
    }
    for model, *_ in made.values():
        rng = np.random.default_rng(1)
        model.set_weights([rng.normal(scale=0.3, size=w.shape) for w in model.get_weights()])
    return made


@pytest.fixture(scope="module")
def untrained():
    return models()


@pytest.fixture(scope="module")
def trained():
    """{name: (model, batch, losses of its epochs, loss of knowing the base rate only)}."""
    found = {}
    for name, (model, batch, labels) in models().items():
        jit = name != "dlrm"  # the others are compiled by XLA
        model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", jit_compile=jit)
        if len(labels) == ROWS:
            fit = model.fit(batch, labels, batch_size=128, epochs=8, shuffle=False, verbose=0)
        else:  # lists cannot be cut by row
            signature = ({n: tf.TensorSpec((None, 1), x.dtype) for n, x in batch.items()},
                         tf.TensorSpec((None, 1), tf.float32))  # fmt: skip
            data = tf.data.Dataset.from_generator(
                lambda: map(movielens_like, range(24)), output_signature=signature
            )
            fit = model.fit(data, epochs=4, verbose=0)
        base = labels.mean()
        base_loss = -(base * np.log(base) + (1 - base) * np.log(1 - base))
        found[name] = model, batch, fit.history["loss"], base_loss
    return found


names = pytest.mark.parametrize(
    "name", ["dlrm", "dlrm_stacked", "wide_and_deep", "wide_and_deep_lists", "movielens"]
)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def dense(layer, x):
    """A keras.layers.Dense without its activation, in NumPy."""
    return x @ np.asarray(layer.kernel) + np.asarray(layer.bias)


def test_dlrm_equals_its_formula_in_both_layouts(untrained):
    model, stacked, _ = untrained["dlrm_stacked"]
    bottom, top = model.get_layer("bottom_mlp").dense, model.get_layer("top_mlp").dense
    x = dense(bottom[1], np.maximum(dense(bottom[0], stacked["continuous"]), 0))
    embeddings = model.get_layer("embeddings")
    tables = [np.asarray(embeddings.table(name)) for name in SCHEMA.categorical.names]
    features = [x, *(t[stacked["categorical"][:, k]] for k, t in enumerate(tables))]
    pairs = [(a * b).sum(1) for i, a in enumerate(features) for b in features[i + 1 :]]
    y = np.maximum(dense(top[0], np.concatenate([x, np.stack(pairs, axis=1)], axis=1)), 0)
    y = sigmoid(dense(model.get_layer("probability"), y))
    np.testing.assert_allclose(model(stacked), y, rtol=1e-4)
    by_columns, columns, _ = untrained["dlrm"]  # the same weights, in the same order
    np.testing.assert_allclose(by_columns(columns), y, rtol=1e-4)


def test_wide_and_deep_is_the_sigmoid_of_the_sum_of_both_sides(untrained):
    model, batch, _ = untrained["wide_and_deep_lists"]
    wide, features = model.get_layer("wide"), model.get_layer("deep_features")
    [hidden] = model.get_layer("deep_mlp").dense
    deep = dense(model.get_layer("deep"), np.maximum(dense(hidden, features(batch).numpy()), 0))
    np.testing.assert_allclose(model(batch), sigmoid(wide(batch) + deep), rtol=1e-4)
    summed = WideAndDeep(movielens_schema(8), [16], combiner="sum")
    assert summed.get_layer("deep_features").combiner == "sum"


def test_the_movielens_network_is_1040_wide(untrained):
    # By its declared shape: the tables of this size are 450 MB.
    shapes = {n: (None, 1) for n in ("userId", "movieId", "genres__values", "genres__nnzs")}
    assert DenseFeatures(movielens_schema()).compute_output_shape(shapes) == (None, 1040)
    model, batch, _ = untrained["movielens"]
    [hidden] = model.get_layer("mlp").dense
    x = np.maximum(dense(hidden, model.get_layer("features")(batch).numpy()), 0)
    np.testing.assert_allclose(
        model(batch), sigmoid(dense(model.get_layer("probability"), x)), rtol=1e-4
    )


@names
def test_a_model_learns(trained, name):
    _, _, losses, base_loss = trained[name]
    assert losses[-1] < 0.6 * base_loss


@names
def test_a_model_survives_a_keras_file_and_an_export(trained, name, tmp_path):
    model, batch, *_ = trained[name]
    out = model(batch)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(batch), out)
    model.export(tmp_path / "export", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "export"))
    tensors = {key: tf.constant(x) for key, x in batch.items()}
    np.testing.assert_allclose(served.serve(tensors), out, rtol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_probability_is_float32_under_a_mixed_policy(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = small_dlrm()
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.get_layer("embeddings").compute_dtype == policy.removeprefix("mixed_")
    assert model(criteo_like()[0]).dtype == tf.float32
    assert all(weight.dtype == "float32" for weight in model.weights)


@pytest.mark.parametrize("numbers", [[], ["I1"]])
def test_dlrm_works_with_no_or_one_continuous_column(numbers):
    schema = SCHEMA.select([*numbers, "C9", "C1"])
    columns, stacked, _ = criteo_like()
    assert small_dlrm(schema=schema)({n: columns[n] for n in schema.names}).shape == (ROWS, 1)
    stacked = {"categorical": stacked["categorical"][:, [0, 2]], "continuous": columns["I1"]}
    stacked = stacked if numbers else {"categorical": stacked["categorical"]}
    assert small_dlrm("stacked", schema)(stacked).shape == (ROWS, 1)


def test_dlrm_refuses_lists_no_ids_and_a_single_feature():
    with pytest.raises(ValueError, match=r"\['genres'\] are multi-hot"):
        DLRM(movielens_schema())
    with pytest.raises(ValueError, match="at least one feature column"):
        DLRM(SCHEMA.continuous)
    with pytest.raises(ValueError, match="at least two"):
        DLRM(SCHEMA.select(["C9"]))
