"""ColumnGroup, Rename, Select, and what all ops hold to."""

import numpy as np
import pytest

from tests.support.ops import column
from tutorlib.columns import Chunk, Masked
from tutorlib.ops import (
    Bucketize,
    Categorify,
    Clip,
    FillMissing,
    HashBucket,
    LambdaOp,
    LogOp,
    Rename,
)


@pytest.mark.parametrize("op", [HashBucket(3), Categorify(vocabularies={"x": [1]})])
def test_ops_on_keys_refuse_floats_and_name_op_and_column(op):
    with pytest.raises(TypeError, match=f"'x': {type(op).__name__} takes integers or strings"):
        (["x"] >> op).transform(Chunk({"x": np.array([1.0, 2.0])}))


@pytest.mark.parametrize(
    "op", [Clip(min_value=0), LogOp(), Bucketize([1]), FillMissing(0)], ids=lambda op: str(op)
)
def test_ops_on_numbers_refuse_texts_and_name_op_and_column(op):
    with pytest.raises(TypeError, match=f"'x': {type(op).__name__} "):
        (["x"] >> op).transform(Chunk({"x": column(["a"])}))


def test_groups_copy_their_ops_so_that_one_op_may_stand_in_several():
    op = Categorify()
    first, second = ["a"] >> op, ["b"] >> op
    assert first.ops[0] is not second.ops[0]


def test_rename_and_select():
    group = (["a", "b"] >> Rename({"a": "x"}))[["b", "x"]]
    assert group.output_names == ["b", "x"]
    out = group.transform(Chunk({"a": np.array([1]), "b": np.array([2])}))
    assert out.names == ["b", "x"]
    with pytest.raises(ValueError, match=r"no columns \['c'\] to select"):
        group["c"]


def test_a_class_instead_of_an_op_is_refused():
    with pytest.raises(TypeError, match="forget the brackets"):
        (["a"] >> LogOp()) >> Categorify


def test_ops_leave_the_chunk_that_they_get_as_it_is():
    given = {
        "f": np.array([np.nan, 2.0]),
        "n": Masked(np.array([1, 2]), np.array([True, False])),
    }
    ops = [FillMissing(0), Clip(0), LogOp(), LambdaOp(lambda x: x + 1), Bucketize([1])]
    for op in ops:
        chunk = Chunk({"f": given["f"].copy(), "n": Masked(np.array([1, 2]), given["n"].valid)})
        (["f", "n"] >> op).transform(chunk)
        assert str(chunk["f"].tolist()) == "[nan, 2.0]"
        assert chunk["n"].values.tolist() == [1, 2]
