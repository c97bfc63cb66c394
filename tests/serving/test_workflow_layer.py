"""WorkflowLayer: what goes in and comes out, and what it refuses."""

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tests.ops.cases import CASES
from tests.support.ops import column
from tests.support.ops_served import (
    Served,
    assert_same_bits,
    raw_tensors,
    rows_of_all_kinds,
    workflow_of_all_kinds,
)
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.models import DLRM
from tutorlib.ops import (
    Categorify,
    ColumnOp,
    HashBucket,
    LogOp,
    Normalize,
)
from tutorlib.parquet import ParquetSink
from tutorlib.serving import SERVED, ServedOp
from tutorlib.workflow import Workflow


class Squared(ColumnOp):
    def transform_column(self, name, column):
        return column * column


@pytest.mark.parametrize("multi_hot", ["nnzs", "padded"])
def test_the_layer_gives_the_batches_of_the_loader(tmp_path, multi_hot):
    table = rows_of_all_kinds(100)
    with ParquetSink(tmp_path / "rows.parquet") as sink:
        sink.write(table)
    workflow = workflow_of_all_kinds().fit(table)
    names = [n for n in workflow.input_names if n != "label"]
    options = {"label_names": ["label"], "shuffle": False, "multi_hot": multi_hot}
    loader = KerasSequenceLoader(tmp_path / "rows.parquet", 100, **options).map(workflow)
    batch, _ = loader.peek()
    layer = workflow.to_keras(multi_hot=multi_hot)
    got = layer(raw_tensors(layer, Chunk.from_arrow(table), names))
    want = {name: tensor.numpy() for name, tensor in batch.items()}
    assert_same_bits(got, want)


def test_padded_lists_are_served_in_order_with_a_column_at_least_and_no_id_0():
    lists = Chunk({"tags": column([[4, 5], [], [4], [5, 5, 4]])})
    workflow = Workflow(["tags"] >> HashBucket(3, first_id=1)).fit(lists)
    ids = workflow.transform(lists)["tags"].tolist()
    layer = workflow.to_keras(multi_hot="padded")
    for call in (layer, tf.function(layer)):
        got = call(raw_tensors(layer, lists, ["tags"]))["tags"].numpy()
        assert got.tolist() == [row + [0] * (3 - len(row)) for row in ids]
        got = call(raw_tensors(layer, lists.slice(1, 2), ["tags"]))["tags"]
        assert got.numpy().tolist() == [[0]]  # as the loader
    layer = Workflow(["tags"] >> HashBucket(1)).fit(lists).to_keras(multi_hot="padded")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"column tags: .*first_id=1"):
        layer(raw_tensors(layer, lists, ["tags"]))


def test_lists_and_columns_come_in_as_tensors_arrays_or_lists_of_one_or_two_dimensions():
    chunk = Chunk({"tags": column([[1, 2], [], [1]], pa.list_(pa.int64())), "x": np.arange(3.0)})
    workflow = Workflow(["tags"] >> Categorify(), ["x"]).fit(chunk)
    layer = workflow.to_keras(multi_hot="padded")
    for tags in (
        {"tags__values": [1, 2, 1], "tags__nnzs": [2, 0, 1]},
        {"tags__values": np.array([[1], [2], [1]]), "tags__nnzs": np.array([[2], [0], [1]])},
        {"tags__values": tf.constant([1, 2, 1]), "tags__nnzs": tf.constant([2, 0, 1], tf.int64)},
    ):
        for x in ([0, 1, 2], np.arange(3.0), np.arange(3.0)[:, None], np.arange(3, dtype="int32")):
            out = layer({**tags, "x": x})
            assert out["tags"].numpy().tolist() == [[3, 4], [0, 0], [3, 0]]
            assert out["x"].numpy().tolist() == [[0.0], [1.0], [2.0]]


def test_only_the_columns_that_features_are_made_of_are_asked_for():
    workflow = workflow_of_all_kinds().fit(rows_of_all_kinds())
    assert "label" not in workflow.to_keras().types
    assert list(workflow.to_keras(columns=["tags", "count"]).types) == ["count", "tags"]
    unserved = ["label"] >> Squared()
    workflow = Workflow(["x"] >> Normalize(), unserved)
    workflow.fit(Chunk({"x": np.arange(3.0), "label": np.arange(3.0)}))
    assert list(workflow.to_keras()({"x": np.arange(3.0)})) == ["x"]
    with pytest.raises(ValueError, match=r"Squared of the columns \['label'\]"):
        workflow.to_keras(columns=["label"])


USERS, WORDS = np.arange(3), ["a", "b", "c"]
INPUTS = [
    ({"user": USERS}, r"raw columns \['tags__nnzs', 'tags__values', 'word'\] are missing"),
    ({"user": np.arange(3.0)}, r"'user': the workflow was fitted on int64, got float64\. Cast it"),
    ({"user": ["1", "2", "3"]}, r"'user'.* fitted on int64, got string"),
    ({"word": USERS}, r"'word'.* on string, got int64"),
    ({"word__valid": USERS}, r"'word__valid'.* fitted on bool, got int64"),
    ({"word": ["a", "b"]}, r"columns user and word must have the same number of rows"),
    ({"word__valid": [True]}, r"word__valid must have the shape of the values of word"),
    ({"user": np.zeros([2, 2], np.int64)}, r"user must have the shape \[batch\] or \[batch, 1\]"),
    ({"tags__nnzs": [1, 1, 0]}, "column tags: the lengths of its lists must be at least 0 and add"),
    ({"tags__nnzs": [4, -1, 0]}, "column tags: the lengths of its lists must be at least 0 and ad"),
]


@pytest.mark.parametrize(("inputs", "rule"), INPUTS)
def test_wrong_inputs_are_refused_by_column_and_rule(inputs, rule):
    layer = Workflow(["user", "word", "tags"] >> HashBucket(9)).fit(rows_of_all_kinds()).to_keras()
    tags = {"tags__values": np.arange(3), "tags__nnzs": [1, 2, 0]}
    right = {} if "missing" in rule else {"user": USERS, "word": WORDS, **tags}
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=rule):
        layer(right | inputs)


def test_what_transform_or_a_loader_refuses_the_graph_refuses():
    logs = Served(Workflow(["x"] >> LogOp()), Chunk({"x": np.array([1.0])}))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"x: LogOp takes values above -1"):
        logs(Chunk({"x": np.array([1.0, -1.0])}))
    nulls = Served(Workflow(["n"]), Chunk({"n": np.arange(3)}), nullable=["n"])
    assert nulls(Chunk({"n": np.arange(3)}))["n"].numpy().tolist() == [[0], [1], [2]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"n comes out with a null"):
        nulls(Chunk({"n": column([1, None], pa.int64())}))
    layer = Workflow(["x"]).fit(Chunk({"x": np.ones(2)})).to_keras()
    with pytest.raises(tf.errors.InvalidArgumentError, match="column x: a value is too large for"):
        layer({"x": np.array([1.0, 1e300])})
    assert layer({"x": np.array([np.inf, 1.0])})["x"].dtype == "float32"


class ServedSquared(ServedOp):
    def column(self, name, column):
        return column.with_values(column.values * column.values, column.valid)


def test_an_op_of_ones_own_is_served_by_the_class_entered_for_it(monkeypatch):
    monkeypatch.setitem(SERVED, Squared, ServedSquared)
    rows = Chunk({"x": np.arange(-2.0, 3.0)})
    Served(Workflow(["x"] >> Squared()), rows).check(rows)


def test_every_op_of_this_library_but_that_of_labels_has_a_served_version():
    assert {kind.__name__ for kind in SERVED} == {
        name.replace(",", " ").split()[0] for name, case in CASES.items() if case.served
    } - {"a"}


def test_wrong_choices_and_an_unfitted_workflow_are_refused():
    workflow = workflow_of_all_kinds()
    with pytest.raises(ValueError, match="Call fit"):
        workflow.to_keras()
    workflow.fit(rows_of_all_kinds())
    with pytest.raises(ValueError, match=r"multi_hot must be one of .*, got 'csr'"):
        workflow.to_keras(multi_hot="csr")
    with pytest.raises(ValueError, match=r"nullable: \['nobody'\] are not raw columns"):
        workflow.to_keras().raw_inputs(["nobody"])


def test_the_layer_stands_in_a_functional_model(tmp_path):
    workflow = workflow_of_all_kinds(lists=False).fit(rows_of_all_kinds())
    layer = workflow.to_keras()
    inputs = {
        name: keras.Input((1,), name=name, dtype=spec.dtype.name)
        for name, spec in layer.raw_inputs(["count", "word"]).items()
    }
    model = DLRM(workflow.output_schema, 4, [8], [8])
    whole = keras.Model(inputs, model(layer(inputs)))
    raw = raw_tensors(layer, Chunk.from_arrow(rows_of_all_kinds(seed=1)), ["count", "word"])
    got = whole.predict({name: tensor[:, None] for name, tensor in raw.items()}, verbose=0)
    np.testing.assert_allclose(got, model(layer(raw)), rtol=1e-5, atol=1e-30)
    assert layer.trainable_variables == []
    with pytest.raises(NotImplementedError, match=r"workflow\.save\(folder\).*export_serving"):
        whole.save(tmp_path / "whole.keras")
