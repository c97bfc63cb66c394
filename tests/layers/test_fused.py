"""Fused embeddings equal a table per column."""

import keras
import numpy as np
import pytest

from tests.support.layer_cases import SCHEMA, fused_columns, reloaded
from tutorlib.layers import FusedEmbedding, keras_inputs
from tutorlib.schema import Column

SEVERAL_WIDTHS = [
    Column(name, "categorical", cardinality=size, embedding_dim=width)
    for name, size, width in [("e", 5, 2), ("a", 4, 3), ("d", 6, 3), ("b", 3, 2), ("c", 7, 3)]
]
IDS = np.array([[4, 3, 5, 2, 6], [0, 0, 0, 0, 0], [1, 2, 3, 1, 4]])


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


@pytest.mark.parametrize("layout", ["stacked", "columns"])
def test_columns_of_several_widths_get_one_table_per_width(layout, tmp_path):
    inputs = keras_inputs(SEVERAL_WIDTHS, batch_layout=layout)
    layer = FusedEmbedding(SEVERAL_WIDTHS, "concat", name="fused")
    ids = inputs["categorical"] if layout == "stacked" else inputs
    model = keras.Model(inputs, layer(ids))
    assert [tuple(w.shape) for w in layer.weights] == [(8, 2), (17, 3)]
    data = {"categorical": IDS}
    if layout == "columns":
        data = {column.name: IDS[:, [k]] for k, column in enumerate(SEVERAL_WIDTHS)}
    out = model(data)
    views = {column.name: np.asarray(layer.table(column.name)) for column in SEVERAL_WIDTHS}
    assert [view.shape for view in views.values()] == [(5, 2), (4, 3), (6, 3), (3, 2), (7, 3)]
    expected = [view[IDS[:, k]] for k, view in enumerate(views.values())]
    np.testing.assert_array_equal(out, np.concatenate(expected, axis=1))
    assert model.output_shape == (None, 13)
    np.testing.assert_array_equal(reloaded(model, tmp_path)(data), out)
    with pytest.raises(ValueError, match=r"widths \[2, 3\]"):
        layer.embedding_weights  # noqa: B018


def test_the_columns_of_a_width_fill_its_table_without_gaps():
    layer = FusedEmbedding(SEVERAL_WIDTHS, "concat")
    layer.build((None, 5))
    for width, names in ((2, "eb"), (3, "adc")):
        [table] = [t for t in layer.tables if t.shape[1] == width]
        views = [np.asarray(layer.table(name)) for name in names]
        np.testing.assert_array_equal(np.concatenate(views), table)


def test_concat_gives_the_stacked_embeddings_side_by_side():
    columns = SEVERAL_WIDTHS[1:3]
    stacked, flat = FusedEmbedding(columns), FusedEmbedding(columns, "concat")
    out = stacked(IDS[:, 1:3])
    flat.build((None, 2))
    flat.set_weights(stacked.get_weights())
    np.testing.assert_array_equal(flat(IDS[:, 1:3]), np.reshape(out, (3, 6)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FusedEmbedding(SEVERAL_WIDTHS), "equal widths.*'e': 2"),
        (lambda: FusedEmbedding(SCHEMA), r"\['genres'\] are multi-hot"),
        (lambda: FusedEmbedding(fused_columns())(IDS), r"\[batch, 3\].*got \(3, 5\)"),
    ],
    ids=["widths", "multi_hot", "shape"],
)
def test_what_does_not_fit_is_refused_with_its_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
