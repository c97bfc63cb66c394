"""LabelEncoder: classes of labels become ids 0 to n - 1, and predictions become classes again."""

import keras
import numpy as np
import pyarrow as pa
import pytest

from tests.support.ops import chunk_of, fit, plain
from tests.support.workflow_rows import write
from tutorlib.columns import Masked
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Categorify, HashBucket, LabelEncoder, Normalize, Rename
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
    rows = chunk_of(x=x.tolist(), income=income, sex=["f", "m"] * 32, kind=[5, 7, 9, 7] * 16)
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


def test_given_classes_keep_their_order_and_learn_nothing():
    op = LabelEncoder({"size": ["S", "M", "L"]})
    assert op.unlearned(["size", "other"]) == ["other"]
    assert op.transform(chunk_of(size=["L", "S", "M"]))["size"].tolist() == [2, 0, 1]
    every = LabelEncoder([1, 0])
    rows = chunk_of(a=[0, 1], b=[1.0, 0.0], c=[True, False])
    ids = {name: ids.tolist() for name, ids in every.transform(rows).items()}
    assert ids == {"a": [1, 0], "b": [0, 1], "c": [0, 1]}


def test_an_unknown_value_is_refused_by_value_column_and_row_unless_an_id_is_asked_for():
    rows = chunk_of(size=["S", None, "XL", "M"])
    with pytest.raises(ValueError, match=r"column 'size': .*\['S', 'M'\], got 'XL' at row 2 of"):
        LabelEncoder(["S", "M"]).transform(rows)
    known = LabelEncoder(["S", "M"], unknown="null").transform(rows)["size"]
    assert known.tolist() == [0, None, None, 1]
    known = LabelEncoder(["S", "M"], unknown=-1).transform(rows)["size"]
    assert known.tolist() == [0, None, -1, 1]
    numbers = chunk_of(a=[2.5, 3.0, np.inf, 1e300])
    assert LabelEncoder([3], unknown=-1).transform(numbers)["a"].tolist() == [-1, 0, -1, -1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": ["a", "a"]}, "classes .*'a' appears twice"),
        ({"classes": []}, r"classes \[\]: "),
        ({"classes": {"y": ["a", None]}}, "column 'y': LabelEncoder: classes .*none of them null"),
        ({"classes": [["a"]]}, "classes .*are needed"),
        ({"classes": ["a", 1]}, "classes"),
        ({"unknown": "drop"}, "unknown must be 'error', 'null' or an id, got 'drop'"),
        ({"unknown": -2}, "unknown must be in"),
    ],
)
def test_arguments_that_cannot_be_kept_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LabelEncoder(**arguments)


def test_strings_and_numbers_are_never_taken_for_each_other():
    with pytest.raises(TypeError, match="column 'y': LabelEncoder has keys of int64, got string"):
        LabelEncoder([0, 1]).transform(chunk_of(y=["0", "1"]))
    with pytest.raises(ValueError, match="column 'y': LabelEncoder found no value"):
        fit(LabelEncoder(), chunk_of(y=([None], pa.string())))


@pytest.mark.parametrize(
    ("predicted", "classes"),
    [
        (np.array([1, 0]), ["c", "a"]),
        (np.array([[2], [0]]), ["b", "a"]),
        (np.array([[0.1, 0.2, 0.7], [0.5, 0.4, 0.1]]), ["b", "a"]),
    ],
)
def test_predictions_become_classes(predicted, classes):
    assert LabelEncoder(["a", "c", "b"]).decode("y", predicted).tolist() == classes


def test_a_probability_of_the_second_of_two_classes_becomes_a_class():
    op = LabelEncoder([False, True])
    for shape in ([3], [3, 1]):
        predicted = np.array([0.2, 0.5, 0.9], np.float32).reshape(shape)
        assert op.decode("y", predicted).tolist() == [False, True, True]


@pytest.mark.parametrize("predicted", [np.array([3]), np.array([-1]), np.ones((2, 2)), np.ones(2)])
def test_predictions_that_do_not_fit_the_classes_are_refused(predicted):
    with pytest.raises(ValueError, match="column 'y': LabelEncoder"):
        LabelEncoder(["a", "c", "b"]).decode("y", predicted)


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


def test_a_model_trains_on_text_labels_and_predicts_them(census):
    """Through Categorify these labels are 3 and 4, on which binary crossentropy is negative."""
    workflow = Workflow(["x"] >> Normalize(), ["income"] >> LabelEncoder()).fit(census)
    loader = KerasSequenceLoader(census, 16, ["income"], shuffle=False).map(workflow)
    assert loader.peek()[1].dtype == "int32"
    inputs = {"x": keras.Input((1,), name="x")}
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
    model.compile(keras.optimizers.Adam(0.3), "binary_crossentropy", metrics=["accuracy"])
    history = model.fit(loader, epochs=8, verbose=0).history
    assert min(history["loss"]) >= 0
    assert history["accuracy"][-1] > 0.95
    predicted = workflow.decode("income", model.predict(loader, verbose=0))
    assert predicted[0] == "<=50K"
    assert predicted[-1] == ">50K"


@pytest.mark.parametrize("op", [Categorify(), HashBucket(2)])
def test_ids_of_features_are_refused_as_a_label(census, op):
    with pytest.raises(ValueError, match=r"label 'income': .*Use LabelEncoder"):
        Workflow(["income"] >> op, label_names=["income"])
    with pytest.raises(ValueError, match=r"label 'y': .*Use LabelEncoder"):
        Workflow(["income"] >> op >> Rename({"income": "y"}), label_names=["y"])
    workflow = Workflow(["x"], ["income"] >> op).fit(census)
    with pytest.raises(ValueError, match=r"label 'income': .*Use LabelEncoder"):
        KerasSequenceLoader(census, 16, ["income"]).map(workflow)


# --- lists of labels ----------------------------------------------------------------------------

LISTS = [["b", "a"], [], ["c", None, "c"], ["a"]]


def test_lists_of_classes_become_a_multi_hot_target():
    op = fit(LabelEncoder(), chunk_of(tags=LISTS[:1]), chunk_of(tags=LISTS[1:]))
    assert op.classes_of("tags") == ["a", "b", "c"]
    target = op.transform(chunk_of(tags=LISTS))["tags"]
    assert target.dtype == np.float32
    assert target.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
    classes = [row.tolist() for row in op.decode("tags", target, multi_hot=True)]
    assert classes == [["a", "b"], [], ["c"], ["a"]]


def test_an_unknown_class_in_a_list_is_refused_by_its_row_or_left_out():
    with pytest.raises(ValueError, match=r"column 'tags': .* got 'c' at row 2 of the chunk"):
        LabelEncoder(["a", "b"]).transform(chunk_of(tags=LISTS))
    for unknown, first in (("null", [0, 0]), (-1, [0, 0]), (1, [0, 1]), (9, [0, 0])):
        target = LabelEncoder(["a", "b"], unknown).transform(chunk_of(tags=LISTS))["tags"]
        assert target.tolist() == [[1, 1], [0, 0], first, [1, 0]]
