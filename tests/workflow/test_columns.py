"""Columns that hold nulls, vectors or nothing, and rows without labels, through a Workflow."""

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.workflow_rows import all_rows, same, write
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import (
    Categorify,
    FillMissing,
    LabelEncoder,
    Normalize,
)
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column, Schema
from tutorlib.workflow import Workflow

# --- rows without labels, and columns without a value ---------------------------------------------

ROWS = 60
TARGETS = ["income", "label", "w", "next"]


def labelled():
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.random(ROWS),
        "C1": rng.integers(0, 5, ROWS),
        "word": rng.choice(["a", "b"], ROWS).tolist(),
        "tags": [[1, 2], [], [3]] * (ROWS // 3),
        "v": pa.FixedSizeListArray.from_arrays(rng.random(2 * ROWS), 2),
        "item": rng.integers(0, 9, ROWS),
        "user": np.arange(ROWS),
        "income": rng.choice(["<=50K", ">50K"], ROWS).tolist(),
        "label": rng.random(ROWS, np.float32),
        "w": rng.random(ROWS, np.float32),
        "next": rng.integers(0, 9, ROWS),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def fitted():
    return Workflow(
        ["x", "v"] >> FillMissing(0) >> Normalize(),
        ["item"] >> Categorify(),
        ["next"] >> LabelEncoder(),
        ["word", "tags"] >> Categorify(),
        ["income"] >> LabelEncoder(),
        ["label", "w"],
        label_names=["label", "next"],
        weight_name="w",
    ).fit(labelled())


def without(names):
    """The rows without some columns, and with these columns but no value in them."""
    table = labelled()
    places = [table.schema.get_field_index(name) for name in names]
    empty = table
    for place, name in zip(places, names, strict=True):
        empty = empty.set_column(place, name, pa.nulls(ROWS))
    return table.drop_columns(names), empty


@pytest.mark.parametrize("names", [TARGETS, ["income"], ["next", "w"]])
def test_labels_and_weight_that_rows_lack_are_left_out(fitted, tmp_path, names):
    whole = fitted.transform(labelled())
    for k, rows in enumerate(without(names)):
        out = fitted.transform(rows)
        assert out.names == [name for name in whole.names if name not in names]
        assert same(out, whole.select(out.names))
        folder = fitted.transform_to_parquet(rows, tmp_path / f"out_{k}")
        assert same(all_rows(folder), out)
        assert Schema.load(folder / "_schema.json").names == out.names
        assert Workflow.load(folder / "_workflow", data=rows).fingerprint == fitted.fingerprint


def test_a_feature_without_a_value_is_refused_unless_it_has_a_type(fitted):
    _, empty = without(["word", *TARGETS])
    with pytest.raises(ValueError, match=r"'word' is null, was string.*cast it to its own type"):
        fitted.transform(empty)
    place = empty.schema.get_field_index("word")
    typed = empty.set_column(place, "word", pa.nulls(ROWS, pa.string()))
    assert set(fitted.transform(typed)["word"].tolist()) == {1}


def test_a_loader_of_rows_without_labels_predicts_with_the_workflow(fitted, tmp_path):
    only = Workflow(*fitted.groups[:1], *fitted.groups[4:], weight_name="w").fit(labelled())
    train = write(tmp_path / "train.parquet", labelled(), 20)
    lacking, empty = without(TARGETS)
    pq.write_table(empty, tmp_path / "empty.parquet")
    scored = []
    for path in (train, write(tmp_path / "test.parquet", lacking, 20), tmp_path / "empty.parquet"):
        loader = KerasSequenceLoader(path, 16, shuffle=False).map(only)
        assert loader._labelled == (path == train)
        inputs = {"x": keras.Input((1,), name="x"), "v": keras.Input((2,), name="v")}
        scored.append(keras.Model(inputs, inputs["x"] * 2).predict(loader, verbose=0))
    assert np.array_equal(scored[0], scored[1])
    assert np.array_equal(scored[0], scored[2])


# --- vectors --------------------------------------------------------------------------------------

LENGTH = 3
NUMBERS = (np.arange(40)[:, None] * 10 + np.arange(LENGTH)).astype(np.float32)
BITS = np.arange(40)[:, None] >> np.arange(LENGTH) & 1


def fixed(values, kind):
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()).cast(kind), LENGTH)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "a.parquet"
    kind = pa.fixed_shape_tensor(pa.float32(), [LENGTH])
    columns = {
        "plain": fixed(NUMBERS, pa.float64()),
        "lists": fixed(NUMBERS, pa.float32()),
        "tensor": pa.ExtensionArray.from_storage(kind, fixed(NUMBERS, pa.float32())),
        "y": fixed(BITS, pa.int8()),
    }
    pq.write_table(pa.table(columns), path, row_group_size=16)
    workflow = Workflow(
        ["plain"], ["lists", "tensor"] >> Normalize(), ["y"], label_names=["y"],
    )  # fmt: skip
    return path, workflow.fit(path)


def wanted():
    scaled = ((NUMBERS - NUMBERS.mean()) / NUMBERS.std()).astype(np.float32)
    return {"plain": NUMBERS, "lists": scaled, "tensor": scaled, "y": BITS}


def test_vectors_keep_their_length_in_memory_in_files_in_batches_and_served(vectors, tmp_path):
    path, workflow = vectors
    done = Chunk.concat([workflow.transform(chunk) for chunk in ParquetSource(path).chunks()])
    workflow.transform_to_parquet(path, tmp_path / "out")
    assert same(all_rows(tmp_path / "out"), done)
    for name, values in wanted().items():
        np.testing.assert_allclose(done[name], values, rtol=1e-5)
    schema = workflow.output_schema
    assert schema["y"] == Column("y", "label", "int8", length=LENGTH)
    loader = KerasSequenceLoader(path, 40, shuffle=False, label_names=["y"]).map(workflow)
    batch, label = loader.peek()
    np.testing.assert_array_equal(label, BITS)
    names = [name for name in wanted() if name != "y"]
    layer = workflow.to_keras(columns=names)
    assert layer.raw_inputs()["lists"].shape == (None, LENGTH)
    raw = {n: c for n, c in all_rows(path).items() if n in layer.types}
    for name, values in layer(raw).items():
        np.testing.assert_array_equal(values, batch[name], err_msg=name)
    with pytest.raises(Exception, match=r"lists must have the shape \[batch, 3\]"):
        layer(raw | {"lists": np.zeros((40, 2), np.float32)})
