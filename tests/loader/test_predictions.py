"""Ids: columns that pass the model by, and predictions that are joined to them."""

import datetime
import decimal
import itertools

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutorlib import (
    Categorify,
    Chunk,
    Column,
    KerasSequenceLoader,
    ParquetSource,
    Schema,
    Workflow,
)

ROWS = 230


def table_of(rows):
    """Rows with an id of each kind; x, from which the model predicts, is the row's number."""
    numbers = range(rows)
    day = datetime.datetime(2026, 1, 1)
    return pa.table(
        {
            "text": [f"row {n}" for n in numbers],
            "big": pa.array([2**64 - 1 - n for n in numbers], pa.uint64()),
            "exact": pa.array([decimal.Decimal(10**30 + n) for n in numbers], pa.decimal128(38, 0)),
            "day": pa.array([day + datetime.timedelta(n) for n in numbers], pa.timestamp("us")),
            "list": pa.array([[n] * (n % 3) for n in numbers], pa.list_(pa.int64())),
            "struct": [{"a": n, "b": None if n % 2 else str(n)} for n in numbers],
            "word": pa.array([f"w{n % 7}" for n in numbers]).dictionary_encode(),
            "nothing": pa.nulls(rows),
            "x": pa.array(np.arange(rows), pa.float32()),
            "C": pa.array([f"c{n % 5}" for n in numbers]),
            "label": pa.array([n % 2 for n in numbers], pa.float32()),
        }
    )


IDS = ["text", "big", "exact", "day", "list", "struct", "word", "nothing"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three files of rows in small row groups."""
    folder, table = tmp_path_factory.mktemp("ids"), table_of(ROWS)
    for number, (start, stop) in enumerate(itertools.pairwise([0, 90, 100, ROWS])):
        path = folder / f"{number}.parquet"
        pq.write_table(table.slice(start, stop - start), path, row_group_size=33)
    return folder


def model_of(outputs=lambda x: x, **names):
    inputs = {"x": keras.Input((1,), name="x")}
    identity = keras.layers.Dense(1, kernel_initializer="ones", **names)(inputs["x"])
    return keras.Model(inputs, outputs(identity))


@pytest.fixture(scope="module")
def model():
    return model_of()


def loader_of(files, batch_size=32, **settings):
    defaults = {"cat_names": [], "cont_names": ["x"], "id_names": IDS, "label_names": ["label"]}
    return KerasSequenceLoader(files, batch_size, **{**defaults, **settings})


def plain(table):
    """The table with dictionaries decoded, as ids are given."""
    word = table["word"].cast(pa.string())
    return table.set_column(table.column_names.index("word"), "word", word)


# ---- what ids are -----------------------------------------------------------------------------


def test_ids_are_not_inferred_as_features_and_may_be_named_as_such(files):
    ids = [*IDS, "C"]
    inferred = KerasSequenceLoader(files, 32, id_names=ids, label_names=["label"])
    assert inferred.schema.features.names == ["x"]
    both = loader_of(files, cont_names=["x"], id_names=["x"], shuffle=False)
    assert (both._id_names, both.schema.features.names) == (["x"], ["x"])


def test_a_schema_names_ids(files):
    schema = Schema([Column("x", "continuous"), Column("text", "id", "string")])
    assert Schema.from_json(schema.to_json())["text"].role == "id"
    assert KerasSequenceLoader(files, 32, schema=schema)._id_names == ["text"]
    more = KerasSequenceLoader(files, 32, schema=schema, id_names=["big", "text"])
    assert (more._id_names, more.schema.names) == (["big", "text"], ["x"])


@st.composite
def layouts(draw):
    world_size = draw(st.integers(1, 3))
    shuffle = draw(st.booleans())
    return {
        "batch_size": draw(st.integers(2, 60)),
        "shuffle": shuffle,
        "seed": draw(st.integers(0, 9)),
        "drop_last": draw(st.booleans()),
        "global_size": world_size,
        "global_rank": draw(st.integers(0, world_size - 1)),
        "buffer_size": draw(st.none() | st.integers(1, 70)),
        "parts_per_chunk": draw(st.none() | st.integers(1, 3)) if shuffle else None,
        "filters": draw(st.sampled_from([None, [("x", ">", 40)], [("text", "!=", "row 7")]])),
    }


# ---- predictions ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the shuffle is poor")
@settings(max_examples=12)
@given(layout=layouts())
def test_predictions_are_those_of_all_rows_in_the_order_of_the_files(files, model, layout):
    loader = loader_of(files, id_names=["text", "big", "x"], **layout)
    next(iter(loader))
    before = loader.state_dict()
    got = loader.predict(model, verbose=0)
    want = pq.read_table(files, filters=layout["filters"])
    assert got.select(["text", "big", "x"]).equals(want.select(["text", "big", "x"]))
    np.testing.assert_array_equal(got["prediction"].to_numpy(), want["x"].to_numpy())
    assert loader.state_dict() == before


def test_the_table_has_ids_of_any_type_labels_and_predictions(files, model):
    ids = [*IDS, "label"]
    table = loader_of(files, id_names=ids).predict(model, name="score", verbose=0)
    want = plain(table_of(ROWS))
    assert table.column_names == [*ids, "score"]
    assert table.drop_columns("score").equals(want.select(ids))
    assert table.schema.field("score").type == pa.float32()


def both_of(x):
    dense = keras.layers.Dense(3, kernel_initializer="ones", name="three")(x)
    return {"flat": keras.layers.Flatten()(x), "three": dense}


def test_an_output_of_several_values_is_a_column_of_lists(files):
    many = model_of(lambda x: both_of(x)["three"])
    lists = loader_of(files, id_names=[]).predict(many, verbose=0)["prediction"]
    assert lists.type == pa.list_(pa.float32(), 3)
    assert lists.to_pylist() == [[n] * 3 for n in range(ROWS)]


def test_several_outputs_are_a_column_each(files):
    model, numbers = model_of(both_of), list(range(ROWS))
    table = loader_of(files, id_names=["big"]).predict(model, verbose=0)
    assert table.column_names == ["big", "prediction_flat", "prediction_three"]
    assert table.columns[1].to_pylist() == numbers
    assert table.columns[2].to_pylist() == [[n] * 3 for n in numbers]


def test_what_does_not_make_a_table_is_refused(files, model):
    class Sum(keras.Model):
        def call(self, inputs):
            return keras.ops.sum(inputs["x"])

    loader = loader_of(files, id_names=["text"])
    with pytest.raises(ValueError, match=r"'prediction' has the shape \(\) for a batch of 32 rows"):
        loader.predict(Sum(), verbose=0)
    with pytest.raises(ValueError, match=r"columns \['text'\] would be in the table twice"):
        loader.predict(model, name="text", verbose=0)


def test_rows_without_labels_are_predicted_for(tmp_path, model):
    rows = {"x": [1.0, 2.0], "label": pa.array([None, 0.5], pa.float32()), "n": ["a", "b"]}
    pq.write_table(pa.table(rows), tmp_path / "new.parquet")
    loader = loader_of(tmp_path, id_names=["n"])
    assert loader.predict(model, verbose=0).to_pydict() == {"n": ["a", "b"], "prediction": [1, 2]}


def test_rows_go_through_the_mapped_workflow_and_ids_stay_as_they_are(files):
    """A raw column may be an id too, beside the values that the workflow makes of it."""
    workflow = Workflow(["C"] >> Categorify(), ["label"]).fit(ParquetSource(files))
    loader = KerasSequenceLoader(files, 32, id_names=[*IDS, "C"], label_names=["label"])
    loader.map(workflow)
    inputs = {"C": keras.Input((1,), name="C")}
    table = loader.predict(keras.Model(inputs, keras.ops.cast(inputs["C"], "int32")), verbose=0)
    assert table["exact"].equals(table_of(ROWS)["exact"])
    raw = Chunk.from_arrow(table_of(ROWS).select(["C", "label"]))
    assert table["C"].to_pylist() == raw["C"].tolist()
    assert table["prediction"].to_pylist() == workflow.transform(raw)["C"].tolist()
