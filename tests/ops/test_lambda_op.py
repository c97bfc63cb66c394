"""LambdaOp: the function gets the values that are not null."""

import numpy as np
import pyarrow as pa
import pytest

from tests.support.ops import column
from tutorlib.chunk import Chunk
from tutorlib.ops import (
    LambdaOp,
)


def test_lambda_op_applies_the_function_to_values_that_are_there():
    chunk = Chunk({"x": column([1, None, 3]), "lists": column([[1, 2], [], []])})
    out = (["x", "lists"] >> LambdaOp(lambda x: x * 10)).transform(chunk)
    assert str(out["x"].tolist()) == "[10.0, nan, 30.0]"
    assert out["x"].dtype == np.float32
    assert out["lists"].tolist() == [[10, 20], [], []]
    out = (["x"] >> LambdaOp(lambda x: x + 1, dtype="int64")).transform(chunk)
    assert out["x"].tolist() == [2, None, 4]


def test_lambda_op_gets_texts_as_an_arrow_array():
    import pyarrow.compute as pc

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
