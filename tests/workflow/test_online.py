"""A workflow in the loader gives the same bits as transform_to_parquet, and its schema."""

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.workflow_rows import OUTPUTS, rows, workflow, write
from tutorlib.columns import Chunk
from tutorlib.layers import DenseFeatures
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
    lists = {"tags__values", "tags__nnzs"}
    for a, b in zip(batches(offline), batches(online), strict=True):
        assert a.keys() == b.keys() == {*OUTPUTS} - {"tags"} | lists
        for name in a:
            assert a[name].dtype == b[name].dtype, name
            assert a[name].tobytes() == b[name].tobytes(), name


def test_a_column_that_is_passed_through_keeps_its_cardinality(tmp_path):
    ids = {"C1": np.arange(20), "C2": np.arange(20), "x": np.ones(20), "y": np.ones(20)}
    raw = write(tmp_path / "raw.parquet", Chunk(ids), 10)
    known = [Column("C2", "categorical"), Column("x", "continuous"), Column("y", "label")]
    known = Schema([Column("C1", "categorical", cardinality=20), *known])
    workflow = Workflow(["C1"], ["C2"] >> Categorify(), ["x"] >> Normalize()).fit(raw)
    loader = KerasSequenceLoader(raw, 5, schema=known).map(workflow)
    assert loader.schema["C1"] == Column("C1", "categorical", "int64", cardinality=20)
    assert loader.schema.embedding_sizes()["C2"][0] == 23
    assert loader.peek()[0]["C1"].dtype == "int32"
    wrong = Schema([Column("C1", "categorical", cardinality=19), *known.columns[1:]])
    with pytest.raises(ParquetError, match="column 'C1'"):
        list(KerasSequenceLoader(raw, 5, schema=wrong).map(workflow))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (["tags", "userId"] >> HashBucket(9) >> Rename({"userId": "tags__values"}),
         "'tags__values' has the name of a tensor that a list column becomes"),
        (["word"], "'word' holds strings.*, or name it in id_names"),
    ],
)  # fmt: skip
def test_columns_that_no_batch_can_hold_are_refused_when_they_are_mapped(raw, group, message):
    loader = KerasSequenceLoader(raw, 100, label_names=["label"])
    with pytest.raises(ValueError, match=message):
        loader.map(Workflow(group, ["label"]).fit(raw))


def test_a_workflow_that_is_not_fitted_is_refused_when_it_is_mapped(raw):
    loader = KerasSequenceLoader(raw, 100, label_names=["label"])
    for group in (["userId"] >> Categorify(), ["userId"]):  # learns something, learns nothing
        with pytest.raises(ValueError, match=r"Call fit\(source\) first"):
            loader.map(Workflow(group, ["label"]))


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """Two categorical and two continuous columns, a label and a weight."""
    rng = np.random.default_rng(0)
    ids = {name: rng.integers(0, 9, 200) for name in ("C1", "C2")}
    numbers = {name: rng.random(200, np.float32) for name in ("I1", "I2", "w")}
    label = {"click": (numbers["I1"] > 0.5).astype(np.float32)}
    path = tmp_path_factory.mktemp("clicks") / "raw.parquet"
    return write(path, Chunk(ids | numbers | label), 50)


IDS = ["C1"] >> Categorify()
NAMED = Schema([Column("C1", "categorical"), Column("I1", "continuous", "float32")])
ROLES = {  # groups and options of the workflow, options of the loader, roles in the batches
    "those of the workflow": (
        [IDS, ["click", "w"]], {"label_names": ["click"], "weight_name": "w"}, {},
        {"C1": "categorical", "click": "label", "w": "weight"},
    ),
    "those of the loader first": (
        [IDS, ["click", "w"]], {"label_names": ["click"], "weight_name": "w"},
        {"label_names": ["I2"], "weight_name": "I1"},
        {"C1": "categorical", "I2": "label", "I1": "weight"},
    ),
    "named features are replaced": (
        [IDS >> Rename({"C1": "ids"}), ["I1", "click"]], {"label_names": ["click"]},
        {"schema": NAMED}, {"ids": "categorical", "I1": "continuous", "click": "label"},
    ),
    "features that were only inferred go": (
        [IDS], {}, {"label_names": ["click"]}, {"C1": "categorical", "click": "label"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ROLES)
def test_the_roles_of_workflow_and_loader_make_those_of_the_batches(clicks, case):
    groups, ours, options, want = ROLES[case]
    loader = KerasSequenceLoader(clicks, 50, **options).map(Workflow(*groups, **ours).fit(clicks))
    assert {column.name: column.role for column in loader.schema} == want
    inputs, *targets = loader.peek()
    assert list(inputs) == [n for n, role in want.items() if role not in ("label", "weight")]
    assert len(targets) == len(want) - len(inputs)


def test_a_loader_that_asks_for_no_labels_gets_none_of_the_workflow(clicks):
    whole = pq.read_table(clicks)
    fitted = Workflow(IDS, ["click"], label_names=["click"]).fit(whole)
    blank = whole.set_column(whole.schema.get_field_index("click"), "click", pa.nulls(200, "float"))
    for table in (whole, blank):
        loader = KerasSequenceLoader(table, 50, label_names=[]).map(fitted)
        assert (loader._labelled, loader.schema.names) == (False, ["C1"])
        assert sum(len(inputs["C1"]) for inputs, *_ in loader) == 200
    assert KerasSequenceLoader(whole, 50).map(fitted)._labelled


def test_a_workflow_of_other_features_than_the_loader_names_is_refused(clicks):
    fitted = Workflow(IDS, ["I1"] >> Normalize(), ["C2"], ["click"]).fit(clicks)
    more = {"cat_names": ["C1", "C2"], "cont_names": ["I1", "I2"]}
    for named in (more, {"cat_names": ["C1"]}, {"cont_names": ["I2"]}):
        loader = KerasSequenceLoader(clicks, 50, ["click"], **named)
        with pytest.raises(
            ValueError, match=r"makes features of columns \['C1', 'C2', 'I1'\], but"
        ):
            loader.map(fitted)
    target = ["click"] >> Rename({"click": "target"})  # a label is no feature
    fitted_of_both = Workflow(IDS, target, label_names=["target"]).fit(clicks)
    loader = KerasSequenceLoader(clicks, 50, cat_names=["C1"]).map(fitted_of_both)
    assert loader.schema.names == ["C1", "target"]


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_loader_without_labels_is_refused_by_fit_and_evaluate_but_not_by_predict(clicks, method):
    loader = KerasSequenceLoader(clicks, 50, shuffle=False, cont_names=["I1"])
    inputs = {"I1": keras.Input((1,), name="I1")}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["I1"]))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=rf"{method} with a loader that has no labels.*label_nam"):
        getattr(model, method)(loader, verbose=0)
    assert model.predict(loader, verbose=0).shape == (200, 1)
    labelled = KerasSequenceLoader(clicks, 50, ["click"], cont_names=["I1"])
    with pytest.raises(ValueError, match="with a loader that has no labels"):
        model.fit(labelled, validation_data=loader, verbose=0)


def test_loaders_with_other_labels_change_nothing_of_the_workflow_and_share_it(clicks):
    whole = pq.read_table(clicks).add_column(0, "y", pa.array(np.arange(200) % 2))
    fitted = Workflow(IDS, ["I1"] >> Normalize(), ["y", "w", "click"]).fit(whole)
    before = fitted.fingerprint, repr(vars(fitted))
    features = {}
    for label, options in {"y": {}, "click": {"weight_name": "w"}}.items():
        loader = KerasSequenceLoader(whole, 50, [label], **options).map(fitted)
        assert [column.name for column in loader.schema.labels] == [label]
        features[label] = set(loader.schema.features.names)
    assert features == {"y": {"C1", "I1", "w", "click"}, "click": {"C1", "I1", "y"}}
    assert (fitted.fingerprint, repr(vars(fitted))) == before


def test_a_missing_column_that_may_be_a_label_is_refused_with_the_remedy(clicks, tmp_path):
    fitted = Workflow(IDS, ["I1"] >> Normalize(), ["click", "I2"]).fit(clicks)
    rows = pq.read_table(clicks).drop_columns(["click"])
    with pytest.raises(ValueError, match=r"columns \['click'\].* \(label_names\)"):
        KerasSequenceLoader(rows, 50).map(fitted)
    for call in (
        fitted.transform,
        lambda rows: fitted.transform_to_parquet(rows, tmp_path / "out"),
    ):
        with pytest.raises(ValueError, match=r"'click' is missing.* \(label_names\)"):
            call(rows)
    with pytest.raises(ValueError, match="'C1' is missing"):
        fitted.transform(pq.read_table(clicks).drop_columns(["C1"]))
    with pytest.raises(ValueError, match="Labels, weights and ids are no features"):
        DenseFeatures(Schema([Column("y", "categorical")]))
