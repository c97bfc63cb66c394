"""Vectors in a Workflow: transformed by their values, written, mapped and served as vectors."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Categorify, Clip, FillMissing, LogOp, Normalize
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column
from tutorlib.workflow import Workflow

ROWS, LENGTH = 40, 3
NUMBERS = (np.arange(ROWS)[:, None] * 10 + np.arange(LENGTH)).astype(np.float32)
BITS = np.arange(ROWS)[:, None] >> np.arange(LENGTH) & 1


def fixed(values, kind):
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()).cast(kind), LENGTH)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "a.parquet"
    missing = np.where(NUMBERS % 7 == 0, np.nan, NUMBERS)
    kind = pa.fixed_shape_tensor(pa.float32(), [LENGTH])
    columns = {
        "plain": fixed(NUMBERS, pa.float64()),
        "lists": fixed(NUMBERS, pa.float32()).cast(pa.list_(pa.float32())),
        "tensor": pa.ExtensionArray.from_storage(kind, fixed(NUMBERS, pa.float32())),
        "holes": fixed(missing, pa.float32()),
        "clipped": fixed(NUMBERS, pa.float32()),
        "bits": fixed(BITS, pa.bool_()).cast(pa.list_(pa.bool_())),
        "ids": fixed(NUMBERS, pa.int64()),
        "y": fixed(BITS, pa.int8()),
    }
    pq.write_table(pa.table(columns), path, row_group_size=16)
    return path


@pytest.fixture(scope="module")
def workflow(path):
    return Workflow(
        ["plain", "bits"], ["lists", "tensor"] >> Normalize(),
        ["holes"] >> FillMissing(0) >> LogOp(), ["clipped"] >> Clip(0, 100),
        ["ids"] >> Categorify(), ["y"], label_names=["y"],
    ).fit(path)  # fmt: skip


def wanted():
    holes = np.where(NUMBERS % 7 == 0, 0, NUMBERS)
    scaled = ((NUMBERS - NUMBERS.mean()) / NUMBERS.std()).astype(np.float32)
    return {
        "plain": NUMBERS, "bits": BITS, "lists": scaled, "tensor": scaled,
        "holes": np.log1p(holes), "clipped": NUMBERS.clip(0, 100), "y": BITS,
    }  # fmt: skip


def test_ops_take_the_values_of_vectors_and_the_schema_keeps_their_length(path, workflow):
    done = workflow.transform(ParquetSource(path).read(0))
    for name, values in wanted().items():
        assert done[name].shape == (16, LENGTH)
        np.testing.assert_allclose(done[name], values[:16], rtol=1e-5)
    schema = workflow.output_schema
    assert schema["y"] == Column("y", "label", "int8", length=LENGTH)
    assert {c.name for c in schema.continuous if c.length == LENGTH} == {*wanted()} - {"y"}
    assert schema["ids"].multi_hot
    assert schema["ids"].length is None


def test_a_saved_workflow_refuses_vectors_of_another_length(path, workflow, tmp_path):
    workflow.save(tmp_path / "w")
    loaded = Workflow.load(tmp_path / "w", data=path)
    assert loaded.output_schema == workflow.output_schema
    table = pq.read_table(path).drop(["plain"])
    four = pa.array([[1.0] * 4] * ROWS, pa.list_(pa.float64(), 4))
    pq.write_table(table.append_column("plain", four), tmp_path / "b.parquet")
    words = "'plain' is a vector of 4 float64, was a vector of 3 float64"
    with pytest.raises(ValueError, match=words):
        loaded.check_data(tmp_path / "b.parquet")


def test_files_hold_fixed_size_lists_and_load_as_the_mapped_loader(path, workflow, tmp_path):
    workflow.transform_to_parquet(path, tmp_path / "out")
    source = ParquetSource(tmp_path / "out")
    for name, values in wanted().items():
        assert pa.types.is_fixed_size_list(source.arrow_schema.field(name).type)
        got = np.concatenate([chunk[name] for chunk in source.chunks()])
        np.testing.assert_allclose(got, values, rtol=1e-5)
    offline = KerasSequenceLoader(source, 7, schema=workflow.output_schema, shuffle=False)
    mapped = KerasSequenceLoader(path, 7, shuffle=False, label_names=["y"]).map(workflow)
    for (ours, y), (theirs, label) in zip(mapped, offline, strict=True):
        assert y.shape[1] == LENGTH
        np.testing.assert_array_equal(y, label)
        assert ours.keys() == theirs.keys()
        for name, values in ours.items():
            np.testing.assert_array_equal(values, theirs[name], err_msg=name)


@pytest.mark.parametrize("layout", ["columns", "stacked"])
def test_a_served_vector_is_the_mapped_one(path, workflow, layout):
    names = [n for n in wanted() if n != "y"]
    layer = workflow.to_keras(columns=names, batch_layout=layout)
    assert layer.raw_inputs()["lists"].shape == (None, LENGTH)
    raw = {n: c for n, c in ParquetSource(path).read(0).items() if n in layer.types}
    served = layer(raw)
    only = Workflow(*(g for g in workflow.groups if g.names[0] not in ("ids", "y"))).fit(path)
    loader = KerasSequenceLoader(path, 16, shuffle=False, batch_layout=layout).map(only)
    inputs, _ = loader.peek()
    for name, values in inputs.items():
        np.testing.assert_allclose(served[name], values, rtol=1e-6, err_msg=name)
    with pytest.raises(Exception, match=r"lists must have the shape \[batch, 3\]"):
        layer(raw | {"lists": np.zeros((16, 2), np.float32)})


def test_lists_of_one_length_in_a_chunk_pass_as_lists():
    lists = Chunk.from_arrow(pa.table({"x": [[1.0, 2.0], [3.0, 4.0]]}))
    done = Workflow(["x"] >> Clip(max_value=3)).fit(lists).transform(lists)
    assert done["x"].tolist() == [[1, 2], [3, 3]]
