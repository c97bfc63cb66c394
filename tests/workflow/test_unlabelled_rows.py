"""Rows without labels go through a workflow that was fitted with labels, to be scored."""

import keras
import numpy as np
import pyarrow as pa
import pytest

from tests.support.workflow_rows import same, write
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import (
    Categorify,
    LabelEncoder,
    LambdaOp,
    Normalize,
    TargetEncoding,
)
from tutorlib.schema import Schema
from tutorlib.workflow import Workflow

ROWS = 60
TARGETS = ["income", "label", "w", "next"]


def rows():
    rng = np.random.default_rng(0)
    return Chunk.from_arrow(
        pa.table(
            {
                "x": rng.random(ROWS),
                "C1": rng.integers(0, 5, ROWS),
                "item": rng.integers(0, 9, ROWS),
                "user": np.arange(ROWS),
                "income": rng.choice(["<=50K", ">50K"], ROWS).tolist(),
                "stars": rng.integers(0, 6, ROWS).astype("float32"),
                "label": rng.random(ROWS, np.float32),
                "w": rng.random(ROWS, np.float32),
                "next": rng.integers(0, 9, ROWS),
            }
        )
    )


def workflow():
    return Workflow(
        ["x"] >> Normalize(),
        ["C1"] >> TargetEncoding("label", "user"),
        ["item", "next"] >> Categorify(joint=True),
        ["income"] >> LabelEncoder(),
        ["label", "w"],
        label_names=["label", "next"],
        weight_name="w",
        row_ops=[Filter([("stars", ">=", 0)]), Dropna(["income"]), Filter([("x", ">", 0.2)])],
    )


@pytest.fixture(scope="module")
def fitted():
    return workflow().fit(rows())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    test = rows().drop(TARGETS)
    return write(folder / "train.parquet", rows(), 20), write(folder / "test.parquet", test, 20)


def test_transform_leaves_out_labels_and_weight_that_the_rows_lack(fitted):
    whole = fitted.transform(rows())
    assert whole.names == fitted.output_names
    features = [name for name in whole.names if name not in TARGETS]
    for names in (TARGETS, ["income"], ["next", "w"]):
        out = fitted.transform(rows().drop(names))
        assert out.names == [name for name in whole.names if name not in names]
        assert same(out.select(features), whole.select(features))
    serving = fitted.transform(rows().drop([*TARGETS, "user", "stars"]))
    assert serving.names == features
    assert serving.num_rows == ROWS


def test_a_feature_that_is_missing_is_refused_even_if_labels_are_missing_too(fitted):
    with pytest.raises(ValueError, match=r"the workflow needs columns \['x'\]; there are"):
        fitted.transform(rows().drop([*TARGETS, "x"]))
    with pytest.raises(ValueError, match=r"the workflow needs columns \['stars'\]"):
        fitted.transform(rows().drop([*TARGETS, "stars"]))


def test_a_row_op_that_reads_what_a_label_is_made_of_is_left_out_with_it():
    groups = ["x"] >> Normalize(), ["stars"] >> LambdaOp(np.sign)
    keeping = Filter([("stars", ">", 2)]), Filter([("x", "<", 0.5)])
    one = Workflow(*groups, label_names=["stars"], row_ops=keeping).fit(rows())
    out = one.transform(rows().select(["x"]))
    assert out.names == ["x"]
    assert out.num_rows == int((rows()["x"] < 0.5).sum())


def test_rows_without_labels_are_written_next_to_rows_with_labels(fitted, files, tmp_path):
    train, test = files
    folder = fitted.transform_to_parquet({"train": train, "test": test}, tmp_path / "out")
    schemas = {name: Schema.load(folder / name / "_schema.json") for name in ("train", "test")}
    assert schemas["train"] == fitted.output_schema
    assert schemas["test"].names == schemas["train"].features.names
    loaded = Workflow.load(folder / "_workflow", data=test)
    assert loaded.fingerprint == fitted.fingerprint
    serving = fitted.transform_to_parquet(test, tmp_path / "alone")
    assert Schema.load(serving / "_schema.json").labels.names == []


def test_a_loader_of_rows_without_labels_predicts_with_the_workflow(fitted, files):
    train, test = files
    serving = fitted
    scored = []
    for path in (train, test):
        loader = KerasSequenceLoader(path, 16, shuffle=False).map(serving)
        assert loader.labelled == (path == train)
        inputs = {name: keras.Input((1,), name=name) for name in loader.schema.features.names}
        scored.append(keras.Model(inputs, inputs["x"] * 2).predict(loader, verbose=0))
    assert np.array_equal(scored[0], scored[1])
