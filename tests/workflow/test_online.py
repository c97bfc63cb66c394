"""A workflow in the loader gives the same bits as transform_to_parquet, and its schema."""

import numpy as np
import pytest

from tests.support.workflow_rows import OUTPUTS, rows, workflow, write
from tutorlib.chunk import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Categorify, Dropna, FillMissing, Filter, JoinGroupby, Normalize
from tutorlib.parquet import ParquetError
from tutorlib.schema import Column, Schema
from tutorlib.workflow import Workflow


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return write(tmp_path_factory.mktemp("online") / "raw.parquet", rows(1000), 130)


@pytest.fixture(scope="module")
def fitted(raw):
    """A workflow over columns of every kind; a loader takes no NaN, so prices are filled."""
    others = [group for group in workflow().groups if group.names != ("price",)]
    return Workflow(*others, ["price"] >> FillMissing(0) >> Normalize()).fit(raw)


def batches(loader):
    """Return the batches as {name: NumPy array}."""
    found = []
    for inputs, label in loader:
        arrays = {name: np.asarray(tensor) for name, tensor in inputs.items()}
        found.append({**arrays, "label": np.asarray(label)})
    return found


def test_a_column_that_is_passed_through_keeps_its_cardinality(tmp_path):
    ids = {"C1": np.arange(20), "C2": np.arange(20), "x": np.ones(20), "y": np.ones(20)}
    raw = write(tmp_path / "raw.parquet", Chunk(ids), 10)
    known = Schema([Column("C1", "categorical", cardinality=20), Column("y", "label", "float64")])
    workflow = Workflow(["C1"], ["C2"] >> Categorify(), ["x"] >> Normalize()).fit(raw)
    loader = KerasSequenceLoader(raw, 5, schema=known).map(workflow)
    assert loader.schema["C1"] == Column("C1", "categorical", "int64", cardinality=20)
    assert loader.schema.embedding_sizes()["C2"][0] == 23
    assert loader.peek()[0]["C1"].dtype == "int32"
    wrong = Schema([Column("C1", "categorical", cardinality=19), known["y"]])
    with pytest.raises(ParquetError, match="column 'C1'"):
        list(KerasSequenceLoader(raw, 5, schema=wrong, check_ids=True).map(workflow))


@pytest.mark.parametrize("shuffle", [False, True])
def test_online_equals_offline_to_the_bit(raw, fitted, tmp_path, shuffle):
    folder = fitted.transform_to_parquet(raw, tmp_path / "train", row_group_rows=130)
    options = {"batch_size": 64, "label_names": ["label"], "shuffle": shuffle, "seed": 3}
    if shuffle:  # row groups of equal rows on both sides: the same plan
        options["buffer_size"] = 500
    offline = KerasSequenceLoader(str(folder), **options, schema=fitted.output_schema)
    online = KerasSequenceLoader(raw, **options).map(fitted)
    for loader in (offline, online):
        assert {c.name: c for c in loader.schema} == {c.name: c for c in fitted.output_schema}
    for a, b in zip(batches(offline), batches(online), strict=True):
        assert a.keys() == b.keys() == {
            *(set(OUTPUTS) - {"tags", "genres"}),
            "tags__values", "tags__nnzs", "genres__values", "genres__nnzs",
        }  # fmt: skip
        for name in a:
            assert a[name].dtype == b[name].dtype, name
            assert a[name].tobytes() == b[name].tobytes(), name


def test_the_loader_has_the_output_schema_and_counts_the_transform_stage(raw, fitted):
    loader = KerasSequenceLoader(raw, 100, label_names=["label"]).map(fitted)
    assert loader.schema.embedding_sizes() == fitted.output_schema.embedding_sizes()
    assert {c.name: c.cardinality for c in loader.schema.categorical} == {
        name: cardinality for name, (cardinality, _) in fitted.embedding_sizes().items()
    }
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["transform_s"] > 0
    plain = KerasSequenceLoader(
        raw, 100, label_names=["label"], cat_names=[], cont_names=["unused"]
    )
    for _ in plain:
        pass
    assert plain.stats()["transform_s"] == 0


@pytest.mark.parametrize(
    "changing", [{"row_ops": [Filter([("userId", ">", 3)])]}, {"row_ops": [Dropna(["count"])]}]
)
def test_the_loader_refuses_a_workflow_that_drops_rows(raw, changing):
    dropping = Workflow(["userId"] >> Categorify(), ["label"], **changing).fit(raw)
    loader = KerasSequenceLoader(raw, 100, label_names=["label"])
    with pytest.raises(ValueError, match=r"drops rows by .*, but batches are planned before"):
        next(iter(loader.map(dropping)))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (["tags"] >> JoinGroupby(["price"]), "'tags_count': a list must be categorical"),
        (["word"], "'word' holds strings"),
    ],
)
def test_the_loader_refuses_columns_that_no_batch_can_hold_when_they_are_mapped(
    raw, group, message
):
    loader = KerasSequenceLoader(raw, 100, label_names=["label"])
    with pytest.raises(ValueError, match=message):
        loader.map(Workflow(group, ["label"]).fit(raw))
