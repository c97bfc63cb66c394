"""LambdaOp: the function gets the values that are not null."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.ops import column
from tutorlib.columns import Chunk
from tutorlib.ops import LambdaOp


def test_lambda_op_applies_the_function_to_values_that_are_there():
    chunk = Chunk({"x": column([1, None, 3]), "lists": column([[1, 2], [], []])})
    out = (["x", "lists"] >> LambdaOp(lambda x: x * 10)).transform(chunk)
    assert str(out["x"].tolist()) == "[10.0, nan, 30.0]"
    assert out["x"].dtype == np.float32
    assert out["lists"].tolist() == [[10, 20], [], []]
    out = (["x"] >> LambdaOp(lambda x: x + 1, dtype="int64")).transform(chunk)
    assert out["x"].tolist() == [2, None, 4]


def test_lambda_op_gets_texts_as_an_arrow_array():
    chunk = Chunk({"s": column(["ab", None, "c"])})
    out = (["s"] >> LambdaOp(pc.utf8_upper, dtype="string")).transform(chunk)
    assert out["s"].tolist() == ["AB", None, "C"]
    lengths = (["s"] >> LambdaOp(pc.utf8_length, dtype="int32")).transform(chunk)["s"]
    assert lengths.tolist() == [2, None, 1]


@pytest.mark.parametrize("dtype", ["float32", "int64", "string"])
def test_lambda_op_on_a_column_of_nulls_alone_gives_nulls(dtype):
    def refuse(values):
        raise AssertionError("there is no value to call the function with")

    chunk = Chunk({"x": column([None, None], pa.int64())})
    out = (["x"] >> LambdaOp(refuse, dtype)).transform(chunk)["x"]
    assert str(out.tolist()) == ("[nan, nan]" if dtype == "float32" else "[None, None]")


def test_lambda_op_refuses_another_number_of_values():
    with pytest.raises(ValueError, match=r"'x': LambdaOp gave 2 values .* and got 1 back"):
        (["x"] >> LambdaOp(lambda x: x[:1])).transform(Chunk({"x": np.arange(2)}))


@pytest.mark.parametrize("dtype", ["float32", "string"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.list_(pa.int64())])
def test_the_function_is_never_called_without_values(dtype, kind):
    def largest(values):
        return values - values.max()

    rows = Chunk({"x": column([], kind)})
    out = (["x"] >> LambdaOp(largest, dtype)).transform(rows)["x"]
    assert out.tolist() == []
    lists = Chunk({"x": column([[], []], pa.list_(pa.int64()))})
    assert (["x"] >> LambdaOp(largest, dtype)).transform(lists)["x"].tolist() == [[], []]


def test_a_comparison_of_strings_says_what_to_write_instead():
    chunk = Chunk({"s": column(["a", "b", None])})
    with pytest.raises(TypeError, match=r"'s': LambdaOp .* got False\. .*pc\.equal\(x, 'a'\)"):
        (["s"] >> LambdaOp(lambda x: x == "a")).transform(chunk)
    equal = (["s"] >> LambdaOp(lambda x: pc.equal(x, "a"))).transform(chunk)["s"]
    assert str(equal.tolist()) == "[1.0, 0.0, nan]"
    with pytest.raises(TypeError, match=r"'x': LambdaOp .* expects an array, got 5"):
        (["x"] >> LambdaOp(lambda x: 5)).transform(Chunk({"x": np.arange(3)}))


def test_an_error_in_the_function_names_column_and_argument():
    with pytest.raises(AttributeError) as raised:
        (["s"] >> LambdaOp(lambda x: x.upper())).transform(Chunk({"s": column(["a"])}))
    (note,) = raised.value.__notes__
    assert note == "column 's': LambdaOp called the function with a LargeStringArray"


def test_a_missing_number_stays_missing_and_never_reaches_the_function():
    met = []

    def above_three(ratings):
        met.extend(ratings.tolist())
        return ratings > 3

    rows = Chunk({"r": np.array([5.0, np.nan, 1.0]), "l": column([[None, 4.0], [2.0], []])})
    for dtype, missing in (("float32", "nan"), ("int64", "None"), ("bool", "None")):
        out = (["r", "l"] >> LambdaOp(above_three, dtype)).transform(rows)
        yes, no = {"float32": ("1.0", "0.0"), "int64": ("1", "0"), "bool": ("True", "False")}[dtype]
        assert str(out["r"].tolist()) == f"[{yes}, {missing}, {no}]"
        assert str(out["l"].tolist()) == f"[[{missing}, {yes}], [{no}], []]"
    assert not np.isnan(met).any()


def test_a_null_that_the_function_makes_is_no_number():
    def halved(values):
        return np.where(values > 2, values / 2, np.nan)

    rows = Chunk({"x": np.array([4.0, 1.0])})
    out = (["x"] >> LambdaOp(halved, "int64")).transform(rows)["x"]
    assert out.tolist() == [2, None]
    texts = Chunk({"s": column(["7", "x", None])})
    numbers = (["s"] >> LambdaOp(lambda s: pc.cast(pc.if_else(pc.equal(s, "x"), None, s), "int32"),
                                 "int64")).transform(texts)  # fmt: skip
    assert numbers["s"].tolist() == [7, None, None]
