"""Vectors: columns of k numbers in each row, as features and as labels."""

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.cupy_stand_in import StandIn, cupy
from tests.support.device_batches import assert_same_batches
from tutorlib.layers import DenseFeatures, keras_inputs
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetError, ParquetSource
from tutorlib.schema import Column, Schema

ROWS, LENGTH = 500, 3
ROW = np.arange(ROWS, dtype=np.int64)
NUMBERS = (ROW[:, None] * 10 + np.arange(LENGTH)).astype(np.float32)
BITS = (ROW[:, None] >> np.arange(LENGTH) & 1).astype(bool)


def fixed(values, kind):
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()).cast(kind), LENGTH)


def lists(values, kind):
    return fixed(values, kind).cast(pa.list_(kind))


def tensor(values, kind):
    type_ = pa.fixed_shape_tensor(kind, [1, LENGTH])
    return pa.ExtensionArray.from_storage(type_, fixed(values, kind))


COLUMNS = {
    "list_float": (NUMBERS, lists(NUMBERS, pa.float32())),
    "large_list_double": (NUMBERS, lists(NUMBERS, pa.float64()).cast(pa.large_list(pa.float64()))),
    "fixed_float": (NUMBERS, fixed(NUMBERS, pa.float32())),
    "fixed_double": (NUMBERS, fixed(NUMBERS, pa.float64())),
    "fixed_int": (NUMBERS, fixed(NUMBERS, pa.int32())),
    "tensor": (NUMBERS, tensor(NUMBERS, pa.float32())),
    "list_bool": (BITS, lists(BITS, pa.bool_())),
    "fixed_bool": (BITS, fixed(BITS, pa.bool_())),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors")
    columns = {"row": ROW, "x": ROW / 2, "y": (ROW % 2).astype(np.float32)}
    columns |= {name: array for name, (_, array) in COLUMNS.items()}
    table = pa.table(columns)
    for number, first in enumerate((0, 300)):
        part = table.slice(first, 300)
        pq.write_table(part, path / f"{number}.parquet", row_group_size=70)
    return path


def batches_of(loader):
    """All inputs and all labels of an epoch, in the order of the rows."""
    parts = [(inputs, labels) for inputs, labels in loader]
    inputs = {name: np.concatenate([np.asarray(i[name]) for i, _ in parts]) for name in parts[0][0]}
    ids = inputs["row" if "row" in inputs else "categorical"][:, 0]
    order = np.argsort(ids)
    labels = np.concatenate([np.asarray(label) for _, label in parts])
    assert ids[order].tolist() == ROW.tolist()
    return {name: values[order] for name, values in inputs.items()}, labels[order]


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("batch_size", [32, 300])
def test_a_vector_is_a_feature_of_its_length_in_both_layouts(folder, name, batch_size):
    names = {"cat_names": ["row"], "cont_names": ["x", name], "label_names": ["y"]}
    loader = KerasSequenceLoader(folder, batch_size, **names)
    assert loader.schema[name].length == LENGTH
    inputs, _ = batches_of(loader)
    assert inputs[name].dtype == np.float32
    np.testing.assert_array_equal(inputs[name], COLUMNS[name][0])
    stacked = KerasSequenceLoader(folder, batch_size, batch_layout="stacked", **names)
    inputs, _ = batches_of(stacked)
    want = np.column_stack([ROW / 2, COLUMNS[name][0]]).astype(np.float32)
    np.testing.assert_array_equal(inputs["continuous"], want)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("layout", ["columns", "stacked"])
def test_a_vector_is_a_label_of_its_length(folder, name, layout):
    names = {"cat_names": ["row"], "cont_names": ["x"], "label_names": [name]}
    _, labels = batches_of(KerasSequenceLoader(folder, 64, batch_layout=layout, **names))
    kind = np.float32 if "bool" not in name and "int" not in name else np.int32
    assert labels.dtype == kind
    np.testing.assert_array_equal(labels, COLUMNS[name][0])


@pytest.mark.parametrize("layout", ["columns", "stacked"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_on_a_device_are_those_of_the_cpu(folder, monkeypatch, layout, shuffle):
    space = StandIn()
    monkeypatch.setitem(__import__("sys").modules, "cupy", cupy)
    monkeypatch.setattr("tutorlib.loader.settings.memory_space", {"gpu": space}.get)
    names = {"cat_names": ["row"], "cont_names": ["x", "list_float", "fixed_int", "tensor"]}
    names |= {"label_names": ["list_bool"], "shuffle": shuffle, "batch_layout": layout}
    with KerasSequenceLoader(folder, 33, device="gpu", **names) as ours:
        assert_same_batches(ours, KerasSequenceLoader(folder, 33, **names))


def test_a_model_over_vectors_trains_and_a_dataset_gives_the_same_batches(folder):
    names = {
        "cat_names": ["row"],
        "cont_names": ["fixed_float", "x"],
        "label_names": ["fixed_bool"],
    }
    loader = KerasSequenceLoader(folder, 100, **names)
    features = loader.schema.features.continuous
    inputs = keras_inputs(features)
    model = keras.Model(inputs, keras.layers.Dense(LENGTH)(DenseFeatures(features)(inputs)))
    model.compile("sgd", "mse")
    model.fit(loader, verbose=0)
    ordered = KerasSequenceLoader(folder, 100, shuffle=False, **names)
    assert model.predict(ordered, verbose=0).shape == (ROWS, LENGTH)
    dataset = KerasSequenceLoader(folder, 100, **names).to_tf_dataset()
    assert_same_batches(dataset, KerasSequenceLoader(folder, 100, **names), np.int32)


def test_vectors_are_counted_in_the_plan_and_within_a_budget(folder):
    names = {"cat_names": ["row"], "label_names": ["y"]}
    one = KerasSequenceLoader(folder, 50, cont_names=["x"], **names).describe()
    two = KerasSequenceLoader(folder, 50, cont_names=["x", "list_float"], **names).describe()
    assert two["chunk_bytes"] - one["chunk_bytes"] == 4 * LENGTH * ROWS
    names |= {"cont_names": ["list_float"], "memory_budget": 2**26}
    budget = KerasSequenceLoader(folder, 50, **names)
    np.testing.assert_array_equal(batches_of(budget)[0]["list_float"], NUMBERS)


def test_inference_takes_vectors_as_continuous_and_fixed_lists_of_integers_as_ids(folder):
    schema = Schema.from_parquet(ParquetSource(folder), label_names=["y"])
    assert {c.name for c in schema.continuous if c.length == LENGTH} == set(COLUMNS) - {"fixed_int"}
    assert schema["fixed_int"] == Column("fixed_int", "categorical", "int32", multi_hot=True)
    loader = KerasSequenceLoader(folder, 50, cat_names=["row", "fixed_int"], label_names=["y"])
    inputs, _ = loader.peek()
    lists_of_ids = inputs["fixed_int__values"].numpy().reshape(-1, LENGTH)
    np.testing.assert_array_equal(lists_of_ids, NUMBERS[inputs["row"].numpy()[:, 0]])


# ---- what is missing or wrong --------------------------------------------------------------------


def written(path, **columns):
    pq.write_table(pa.table(columns), path / "a.parquet", row_group_size=4)
    return path


MISSING = [[1.0, 2.0], [3.0, None], None, [4.0, 5.0], [6.0, 7.0]]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2)], ids=str)
@pytest.mark.parametrize("first_null", [1, 2])
def test_missing_vectors_and_values_are_refused_with_their_row_or_filled(
    tmp_path, kind, first_null
):
    rows = MISSING[:1] + MISSING[first_null:]
    folder = written(tmp_path, v=pa.array(rows, kind), y=np.arange(len(rows), dtype=np.float32))
    names = {"cont_names": ["v"], "label_names": ["y"], "shuffle": False}
    with pytest.raises(
        ParquetError, match=r"column 'v': null or NaN at row 1.*row group 0 of .*a\.p"
    ):
        KerasSequenceLoader(folder, 5, **names).peek()
    inputs, _ = KerasSequenceLoader(folder, 5, nulls={"v": -1}, **names).peek()
    want = [[-1, -1] if row is None else [-1 if x is None else x for x in row] for row in rows]
    assert inputs["v"].numpy().tolist() == want


def test_a_list_of_another_length_is_refused_with_file_row_group_row_and_both_lengths(tmp_path):
    rows = [[1.0, 2.0]] * 4 + [[1.0], [2.0, 3.0, 4.0]] + [[1.0, 2.0]] * 2
    folder = written(tmp_path, v=pa.array(rows), y=np.zeros(8, np.float32))
    names = {"cont_names": ["v"], "label_names": ["y"]}
    pq.write_table(
        pa.table({"v": [[0.0, 1.0]] * 4, "y": np.zeros(4, np.float32)}), tmp_path / "0.parquet"
    )
    assert ParquetSource(folder).column_types["v"] == ("(2,)float64", False)
    message = r"row group 1 of .*a\.parquet, column 'v': a list of 1 values at row 0.*must have 2"
    with pytest.raises(ParquetError, match=message):
        list(KerasSequenceLoader(folder, 4, **names))


def test_a_schema_tells_that_lists_are_vectors_and_must_agree_with_the_type(tmp_path):
    folder = written(tmp_path, v=[[0, 1], [2, 3]], w=[[0.0, 1.0]] * 2)
    schema = Schema([Column("v", "continuous", length=2), Column("w", "label")])
    inputs, labels = KerasSequenceLoader(folder, 4, schema=schema, shuffle=False).peek()
    assert inputs["v"].numpy().tolist() == [[0, 1], [2, 3]]
    assert labels.shape == (2, 2)
    with pytest.raises(ValueError, match=r"'w': length=3, but the data has vectors of 2 values"):
        KerasSequenceLoader(folder, 4, schema=schema.replace("w", length=3))
    with pytest.raises(ValueError, match=r"'v': a list of 2 values at row 0.*must have 3"):
        KerasSequenceLoader(folder, 4, schema=schema.replace("v", length=3)).peek()
    with pytest.raises(ValueError, match=r"class_weight needs.*\['w'\] are vectors"):
        KerasSequenceLoader(folder, 4, schema=schema, class_weight={0: 1, 1: 2})


# ---- continuous lists ----------------------------------------------------------------------------

WEIGHTS = [[0.5], [], [1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize("form", ["nnzs", "offsets", "ragged", "padded"])
def test_lists_of_numbers_come_as_lists_of_ids_do(tmp_path, form):
    ids = [[int(weight) + 1 for weight in row] for row in WEIGHTS]
    folder = written(tmp_path, g=ids, w=pa.array(WEIGHTS, pa.list_(pa.float64())))
    schema = Schema(
        [
            Column("g", "categorical", multi_hot=True, cardinality=9, embedding_dim=2),
            Column("w", "continuous", multi_hot=True),
        ]
    )
    loader = KerasSequenceLoader(folder, 4, schema=schema, shuffle=False, multi_hot=form)
    inputs, _ = loader.peek()
    values = inputs["w" if form in ("ragged", "padded") else "w__values"]
    assert values.dtype == "float32"
    if form == "padded":
        want = [[*row, *[0.0] * (3 - len(row))] for row in WEIGHTS]
        assert values.numpy().tolist() == want
    else:
        flat = values.values if form == "ragged" else values
        assert flat.numpy().ravel().tolist() == [0.5, 1, 2, 3, 4, 5]


def test_vectors_named_as_lists_come_as_lists(tmp_path):
    folder = written(tmp_path, w=[[0.0, 1.0]] * 3)
    schema = Schema([Column("w", "continuous", multi_hot=True)])
    inputs, _ = KerasSequenceLoader(folder, 4, schema=schema).peek()
    assert inputs["w__nnzs"].numpy().ravel().tolist() == [2, 2, 2]
