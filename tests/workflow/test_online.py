"""A workflow in the loader gives the same bits as transform_to_parquet, and its schema."""

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support.workflow_rows import OUTPUTS, rows, workflow, write
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Categorify, FillMissing, HashBucket, Normalize, Rename
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
        (["tags", "userId"] >> HashBucket(9) >> Rename({"userId": "tags__values"}),
         "'tags__values' has the name of a tensor that a list column becomes"),
        (["word"], "'word' holds strings"),
    ],
)  # fmt: skip
def test_the_loader_refuses_columns_that_no_batch_can_hold_when_they_are_mapped(
    raw, group, message
):
    loader = KerasSequenceLoader(raw, 100, label_names=["label"])
    with pytest.raises(ValueError, match=message):
        loader.map(Workflow(group, ["label"]).fit(raw))


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """Two categorical and two continuous columns, a label and a weight."""
    rng = np.random.default_rng(0)
    ids = {name: rng.integers(0, 9, 200) for name in ("C1", "C2")}
    numbers = {name: rng.random(200, np.float32) for name in ("I1", "I2", "w")}
    label = {"click": (numbers["I1"] > 0.5).astype(np.float32)}
    return write(
        tmp_path_factory.mktemp("clicks") / "raw.parquet", Chunk(ids | numbers | label), 50
    )


def roles_of(loader):
    return {column.name: column.role for column in loader.schema}


def test_a_label_and_a_weight_that_the_workflow_names_are_those_of_the_batches(clicks):
    groups = [["C1"] >> Categorify(), ["click", "w"]]
    workflow = Workflow(*groups, label_names=["click"], weight_name="w").fit(clicks)
    loader = KerasSequenceLoader(clicks, 50).map(workflow)
    assert roles_of(loader) == {"C1": "categorical", "click": "label", "w": "weight"}
    inputs, labels, weights = loader.peek()
    assert (list(inputs), labels.shape, weights.shape) == (["C1"], (50, 1), (50,))
    chosen = KerasSequenceLoader(clicks, 50, ["I2"], weight_name="I1").map(workflow)
    assert roles_of(chosen) == {"C1": "categorical", "I2": "label", "I1": "weight"}


@pytest.mark.parametrize(
    "named",
    [
        {"cat_names": ["C1"], "cont_names": ["I1"]},
        {"schema": Schema([Column("C1", "categorical"), Column("I1", "continuous", "float32")])},
    ],
)
def test_a_named_feature_that_the_workflow_does_not_take_stays(clicks, named):
    workflow = Workflow(["C1"] >> Categorify(), ["click"], label_names=["click"]).fit(clicks)
    loader = KerasSequenceLoader(clicks, 50, shuffle=False, **named).map(workflow)
    assert roles_of(loader) == {"C1": "categorical", "I1": "continuous", "click": "label"}
    raw = Chunk.from_arrow(pq.read_table(clicks))
    got = np.concatenate([inputs["I1"] for inputs, _ in loader])[:, 0]
    assert np.array_equal(got, raw["I1"])


def test_a_named_feature_that_the_workflow_replaces_goes(clicks):
    workflow = Workflow(["C1"] >> Categorify() >> Rename({"C1": "ids"})).fit(clicks)
    loader = KerasSequenceLoader(clicks, 50, ["click"], cat_names=["C1", "C2"]).map(workflow)
    assert roles_of(loader) == {
        "ids": "categorical", "C2": "categorical", "click": "label"
    }  # fmt: skip


def test_features_that_were_only_inferred_are_replaced_by_those_of_the_workflow(clicks):
    workflow = Workflow(["C1"] >> Categorify()).fit(clicks)
    loader = KerasSequenceLoader(clicks, 50, ["click"]).map(workflow)
    assert roles_of(loader) == {"C1": "categorical", "click": "label"}


class Autoencoder(keras.Model):
    """Compares its output with its input, so that it needs no labels."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs["I1"])

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return super().compute_loss(x, x["I1"], y_pred, sample_weight, training)


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_loader_without_labels_is_refused_by_fit_and_evaluate_but_not_by_predict(clicks, method):
    loader = KerasSequenceLoader(clicks, 50, shuffle=False, cont_names=["I1"])
    inputs = {"I1": keras.Input((1,), name="I1")}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["I1"]))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=rf"{method} with a loader that has no labels.*label_nam"):
        getattr(model, method)(loader, verbose=0)
    assert model.predict(loader, verbose=0).shape == (200, 1)
    own = Autoencoder()
    own.compile("sgd", "mse")
    getattr(own, method)(loader, verbose=0)


def test_validation_data_without_labels_is_refused(clicks):
    loader = KerasSequenceLoader(clicks, 50, ["click"], cont_names=["I1"])
    validation = KerasSequenceLoader(clicks, 50, cont_names=["I1"])
    inputs = {"I1": keras.Input((1,), name="I1")}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["I1"]))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="with a loader that has no labels"):
        model.fit(loader, validation_data=validation, verbose=0)
