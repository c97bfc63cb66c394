"""LabelEncoder: classes of labels become ids 0 to n - 1, and predictions become classes again."""

import keras
import numpy as np
import pyarrow as pa
import pytest

from tests.support.ops import chunk_of, fit, plain
from tests.support.workflow_rows import write
from tutorlib.columns import Masked
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Categorify, HashBucket, LabelEncoder, Rename
from tutorlib.workflow import Workflow

LABELS = {
    "text": ["b", "ü", None, "a", "b"],
    "whole": [30, -1, 2, 30, None],
    "real": [0.5, -0.0, 0.0, None, 7.0],
    "yes": [True, False, None, True, True],
}
CLASSES = {"text": ["a", "b", "ü"], "whole": [-1, 2, 30], "real": [0.0, 0.5, 7.0]}
CLASSES["yes"] = [False, True]


@pytest.fixture(scope="module")
def census(tmp_path_factory):
    """Text labels that x decides, in a file."""
    x = np.linspace(-1, 1, 64)
    income = [">50K" if value > 0 else "<=50K" for value in x]
    rows = chunk_of(x=x.tolist(), income=income, kind=[5, 7, 9, 7] * 16)
    return write(tmp_path_factory.mktemp("census") / "rows.parquet", rows, 16)


def test_learned_classes_are_sorted_and_a_null_stays_null():
    rows = chunk_of(**LABELS)
    op = fit(LabelEncoder(), rows)
    ids = op.transform(rows)
    for name, classes in CLASSES.items():
        assert op.classes_of(name) == classes
        assert [type(one) for one in op.classes_of(name)] == [type(one) for one in classes]
        expected = [None if v is None else classes.index(v) for v in LABELS[name]]
        assert plain(ids[name]) == expected
        assert isinstance(ids[name], Masked)
        assert ids[name].values.dtype == "int32"


@pytest.mark.parametrize("threads", [1, 3])
def test_several_labels_are_encoded_saved_and_decoded_by_a_workflow(census, tmp_path, threads):
    fitted = Workflow(["income", "kind"] >> LabelEncoder(), ["x"]).fit(census, threads=threads)
    again = Workflow.load(fitted.save(tmp_path / "workflow"))
    for one in (fitted, again):
        assert one.classes == {"income": ["<=50K", ">50K"], "kind": [5, 7, 9]}
        assert {c.name: c.dtype for c in one.output_schema.labels} == dict.fromkeys(
            ["income", "kind"], "int32"
        )
        assert one.decode("kind", np.array([[0.0, 0.9, 0.1]])).tolist() == [7]
    assert again.fingerprint == fitted.fingerprint
    with pytest.raises(ValueError, match=r"makes 'x'; .*\['income', 'kind'\]"):
        fitted.decode("x", [0])


@pytest.mark.parametrize("op", [Categorify(), HashBucket(2)])
def test_ids_of_features_are_refused_as_a_label(census, op):
    with pytest.raises(ValueError, match=r"label 'income': .*Use LabelEncoder"):
        Workflow(["income"] >> op, label_names=["income"])
    with pytest.raises(ValueError, match=r"label 'y': .*Use LabelEncoder"):
        Workflow(["income"] >> op >> Rename({"income": "y"}), label_names=["y"])
    workflow = Workflow(["x"], ["income"] >> op).fit(census)
    with pytest.raises(ValueError, match=r"label 'income': .*Use LabelEncoder"):
        KerasSequenceLoader(census, 16, ["income"]).map(workflow)


def test_given_classes_keep_their_order_and_learn_nothing():
    every = LabelEncoder([1, 0])
    rows = chunk_of(a=[0, 1], b=[1.0, 0.0], c=[True, False])
    assert every.unlearned(["a", "b"]) == []
    ids = {name: ids.tolist() for name, ids in every.transform(rows).items()}
    assert ids == {"a": [1, 0], "b": [0, 1], "c": [0, 1]}


ENCODER = LabelEncoder(["a", "c", "b"])
ERRORS = [
    (lambda: LabelEncoder(["a", "a"]), "classes .*'a' appears twice"),
    (lambda: LabelEncoder([]), r"classes \[\]: "),
    (lambda: LabelEncoder(["a", None]), "LabelEncoder: classes .*none of them null"),
    (lambda: ENCODER.transform(chunk_of(y=["b", None, "XL"])), "'y': .* got 'XL' at row 2 of the"),
    (lambda: LabelEncoder([3]).transform(chunk_of(y=[3.0, 2.5])), "'y': .* got 2.5 at row 1"),
    (lambda: LabelEncoder([0, 1]).transform(chunk_of(y=["0"])), "'y': .* of int64, got string"),
    (lambda: fit(LabelEncoder(), chunk_of(y=([None], pa.string()))), "'y': .* found no value"),
    (lambda: fit(LabelEncoder(), chunk_of(y=[["a"]])), "'y': .* one value per row, got lists"),
    (lambda: ENCODER.transform(chunk_of(y=[["a"]])), "'y': .* one value per row, got lists"),
    (lambda: LabelEncoder().transform(chunk_of(y=["a"])), "'y': .* has learned no value yet"),
    *[
        (lambda wrong=wrong: ENCODER.decode("y", wrong), "'y': LabelEncoder has 3 classes with ids")
        for wrong in (np.array([3]), np.array([-1]), np.ones((2, 2)), np.ones(2))
    ],
    (lambda: ENCODER.decode("y", [[0.1, 0.2, np.nan]]), "'y': LabelEncoder cannot decode NaN, got"),
    (lambda: ENCODER.decode("y", [[0.1], [0.2, 0.3]]), "'y': LabelEncoder cannot decode these"),
    (lambda: ENCODER.decode("y", pa.array([1, None])), "'y': LabelEncoder cannot decode NaN"),
    (lambda: ENCODER.decode("y", pa.array([[0.1], [0.1, 0.9]])), "'y': .* cannot decode these"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


PROBABILITIES = np.array([[0.1, 0.2, 0.7], [0.5, 0.4, 0.1]])
LISTS = pa.array(PROBABILITIES.tolist())
FORMS = {  # what models, predict, and conversions of its table give
    "array": PROBABILITIES,
    "lists": PROBABILITIES.tolist(),
    "Arrow lists": LISTS,
    "slice of Arrow": pa.concat_arrays([LISTS[1:], LISTS]).slice(1),
    "lists of fixed size": LISTS.cast(pa.list_(pa.float32(), 3)),
    "pandas": pa.table({"p": LISTS}).to_pandas()["p"],
    "tensor": keras.ops.convert_to_tensor(PROBABILITIES),
}


@pytest.mark.parametrize("form", FORMS)
def test_probabilities_of_several_classes_become_classes_in_every_form(form):
    assert ENCODER.decode("y", FORMS[form]).tolist() == ["b", "a"]


@pytest.mark.parametrize(
    "empty", [np.zeros(0, int), np.zeros((0, 3)), pa.array([], pa.list_(pa.float32(), 3))]
)
def test_no_prediction_becomes_no_class(empty):
    assert ENCODER.decode("y", empty).tolist() == []


def test_predictions_become_classes():
    for predicted in (np.array([2, 0]), np.array([[2], [0]]), PROBABILITIES):
        assert ENCODER.decode("y", predicted).tolist() == ["b", "a"]
    for shape in ([3], [3, 1]):  # the probability of the second of two classes
        predicted = np.array([0.2, 0.5, 0.9], np.float32).reshape(shape)
        assert LabelEncoder([False, True]).decode("y", predicted).tolist() == [False, True, True]
