"""Inference of features: which columns become features by type, and what is said of others."""

import decimal
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import FillMissing
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Schema
from tutorlib.workflow import Workflow


@pytest.fixture
def path(tmp_path):
    table = pa.table(
        {
            "id": [3, 4, 5],
            "flag": [True, False, True],
            "price": [decimal.Decimal("1.5")] * 3,
            "flags": [[True], [], [False]],
            "payload": [b"a", b"b", b"c"],
            "y": [0.0, 1.0, 0.0],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    return str(tmp_path / "a.parquet")


def loader_of(path, **changes):
    return KerasSequenceLoader(path, 3, label_names=["y"], shuffle=False, **changes)


def test_a_boolean_column_is_a_continuous_feature_of_0_and_1(path):
    with pytest.warns(UserWarning, match="not among the features"):
        inputs, _ = next(iter(loader_of(path)))
    assert inputs["flag"].numpy().tolist() == [[1.0], [0.0], [1.0]]
    assert inputs["flag"].dtype == "float32"
    mapped = loader_of(path).map(Workflow(["id", "flag"]).fit(path))
    inputs, _ = next(iter(mapped))
    assert inputs["flag"].numpy().tolist() == [[1.0], [0.0], [1.0]]
    assert inputs["flag"].dtype == "float32"


@pytest.mark.parametrize("name", ["cat_names", "cont_names"])
def test_a_boolean_column_has_the_role_that_it_is_given(path, name):
    inputs, _ = next(iter(loader_of(path, **{name: ["flag"]})))
    assert inputs["flag"].dtype == ("int32" if name == "cat_names" else "float32")


def test_nulls_of_a_boolean_feature_are_refused_or_filled(tmp_path):
    pq.write_table(pa.table({"b": [True, None], "y": [1.0, 0.0]}), tmp_path / "a.parquet")
    loader = KerasSequenceLoader(tmp_path, 2, ["y"], shuffle=False)
    with pytest.raises(ValueError, match="'b': null or NaN at row 1"):
        next(iter(loader))
    loader = KerasSequenceLoader(tmp_path, 2, ["y"], shuffle=False, nulls="fill")
    assert next(iter(loader))[0]["b"].numpy().tolist() == [[1.0], [0.0]]


def test_what_inference_leaves_out_is_said_once_with_type_and_remedy(path):
    loader = loader_of(path)
    with warnings.catch_warnings(record=True, action="always") as said:
        list(loader)
        list(loader)
    (message,) = [str(one.message) for one in said if "not among the features" in str(one.message)]
    for words in [
        "'price' (decimal128(2, 1)): cast it to float64",
        "'payload' (binary): cast it to string",
        "'flags' (a list of bool): ",
    ]:
        assert words in message
    with pytest.warns(UserWarning, match="'payload' .binary.: cast it to string"):
        Schema.from_parquet(ParquetSource(path), label_names=["y"])


def test_nothing_is_said_where_features_are_named_or_a_workflow_makes_them(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader_of(path, cont_names=["id"]))
        list(loader_of(path).map(Workflow(["id"]).fit(path)))
        Schema.from_parquet(ParquetSource(path), cat_names=["id"])
        only = pa.table({"x": np.zeros(3), "n": [1, 2, 3]})
        Workflow(["x"] >> FillMissing()).fit(only)
