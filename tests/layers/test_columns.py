"""Legacy feature columns: what they mean to a layer, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.support.layer_cases import NNZS, RAGGED, SCORES, VALUES, batch
from tutorlib.layers import DenseFeatures, ScalarDenseFeatures, keras_inputs

feature_column = tf.feature_column
identity = feature_column.categorical_column_with_identity


def legacy_columns():
    weighted = feature_column.weighted_categorical_column(identity("genres", 5), "scores")
    hashed = feature_column.categorical_column_with_hash_bucket("film", 9)
    return [
        feature_column.embedding_column(identity("user", 7), 3),
        feature_column.numeric_column("age"),
        feature_column.embedding_column(weighted, 2, combiner="sqrtn"),
        feature_column.embedding_column(hashed, 4, combiner="sum"),
        feature_column.numeric_column("v", shape=(2,)),
    ]


def test_feature_columns_are_taken_as_a_schema():
    column = feature_column.embedding_column(identity("C1", 10), 3)
    layer = ScalarDenseFeatures([column, feature_column.numeric_column("I1")])
    out = layer({"C1": np.array([[9]]), "I1": np.array([[2.5]])})
    assert out.shape == (1, 4)
    assert out.numpy()[0, 3] == 2.5


def test_legacy_columns_give_what_the_legacy_layer_gives():
    columns = legacy_columns()
    # The legacy layer would hash.
    columns[3] = feature_column.embedding_column(identity("film", 9), 4, combiner="sum")
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


def test_the_inputs_of_legacy_columns_include_the_weights():
    assert set(keras_inputs(legacy_columns())) >= {"user", "film", "scores__values", "v"}


def test_one_error_names_every_column_that_is_not_supported():
    c1 = identity("C1", 10)
    words = feature_column.categorical_column_with_vocabulary_list("word", ["a", "b"])
    columns = [
        *legacy_columns(),
        feature_column.bucketized_column(feature_column.numeric_column("price"), [1.0, 2.0]),
        feature_column.numeric_column("scaled", normalizer_fn=lambda x: x / 2),
        feature_column.embedding_column(c1, 4, max_norm=1.0),
        feature_column.embedding_column(words, 4),
        feature_column.embedding_column(c1, 4, trainable=False),
        feature_column.embedding_column(c1, 4, initializer=tf.zeros_initializer()),
    ]
    with pytest.raises(ValueError, match="not supported") as caught:
        DenseFeatures(columns)
    for part in ("price", "scaled", "normalizer_fn", "max_norm", "word", "trainable=False"):
        assert part in str(caught.value)
    assert "initializer (give the layer one)" in str(caught.value)
    assert "age" not in str(caught.value)


def test_scalar_features_refuse_weighted_columns():
    with pytest.raises(ValueError, match=r"\['genres'\] have weights"):
        ScalarDenseFeatures(legacy_columns()[:3])
