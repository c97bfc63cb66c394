"""FillMissing, FillMedian: equal to pandas, whatever the chunks."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import bits, chunk_of, column, cut, learned, plain
from tests.support.ops_strategies import CUTS, FEW, INTEGERS, NUMBERS, RANDOM
from tutorlib.columns import Chunk
from tutorlib.ops import (
    FillMedian,
    FillMissing,
)


def test_fill_missing_by_hand():
    chunk = Chunk(
        {
            "f": np.array([np.nan, 2.0], np.float32),
            "n": column([None, 3], pa.int32()),
            "whole": np.array([1, 2]),
            "lists": column([[None, 4], []]),
        }
    )
    out = (list(chunk) >> FillMissing(7)).transform(chunk)
    assert [c.tolist() for c in out.values()] == [[7, 2], [7, 3], [1, 2], [[7, 4], []]]
    assert [out["f"].dtype, out["n"].dtype] == [np.float32, np.int32]
    texts = (["s"] >> FillMissing("?")).transform(Chunk({"s": column(["a", None])}))
    assert texts["s"].tolist() == ["a", "?"]
    assert (["f"] >> FillMissing()).transform(chunk)["f"].tolist() == [0, 2]


def test_fill_missing_adds_indicator_columns_behind_the_others():
    group = ["a", "b"] >> FillMissing(0, add_binary_cols=True)
    out = group.transform(Chunk({"a": np.array([np.nan, 1]), "b": column([1, None])}))
    assert out.names == group.output_names == ["a", "b", "a_filled", "b_filled"]
    assert [out["a_filled"].tolist(), out["b_filled"].tolist()] == [[1, 0], [0, 1]]
    assert out["a_filled"].dtype == np.float32


def test_fill_median_by_hand():
    chunk = chunk_of(
        odd=[5.0, None, 1.0, 9.0, None],
        even=([4, None, 1, 2, 9], pa.int16()),
        same=[0.5, 1.5, None, 0.5, 1.5],
        lists=[[1.0, None], [], [8.0, 3.0], [None], []],
        whole=[3, 1, 2, 5, 4],
    )
    group = learned(list(chunk) >> FillMedian(), chunk)
    assert group.ops[0].learned() == {
        "medians": {"odd": 5.0, "even": 2, "same": 1.0, "lists": 3.0, "whole": 3}
    }
    out = group.transform(chunk)
    assert [plain(values) for values in out.values()] == [
        [5, 5, 1, 9, 5],
        [4, 2, 1, 2, 9],
        [0.5, 1.5, 1, 0.5, 1.5],
        [[1, 3], [], [8, 3], [3], []],
        [3, 1, 2, 5, 4],
    ]
    assert [out["even"].dtype, out["odd"].dtype] == [np.int16, np.float64]


@FEW
@given(st.lists(st.tuples(NUMBERS, INTEGERS), min_size=1, max_size=40), CUTS, RANDOM)
def test_fill_median_equals_pandas_whatever_the_chunks(rows, cuts, random):
    x, n = [[*values, 1] for values in zip(*rows, strict=True)]
    chunk = chunk_of(x=(x, pa.float64()), n=(n, pa.int64()))
    group = learned(["x", "n"] >> FillMedian(), *cut(chunk, cuts), random=random)
    medians = group.ops[0].learned()["medians"]
    assert medians["x"] == pd.Series(x, dtype=float).median()
    whole = sorted(value for value in n if value is not None)
    assert medians["n"] == whole[(len(whole) - 1) // 2]
    out = group.transform(chunk)
    assert out["x"].tolist() == pd.Series(x, dtype=float).fillna(medians["x"]).tolist()
    assert out["n"].tolist() == [medians["n"] if value is None else value for value in n]


@FEW
@given(st.lists(st.integers(-1000, 1000), min_size=5, max_size=60), CUTS, RANDOM, st.integers(2, 6))
def test_fill_median_of_too_many_values_rounds_them_alike_whatever_the_chunks(
    values, cuts, random, max_values
):
    chunk = chunk_of(x=[value / 7 for value in values], n=values)
    op = FillMedian(max_values=max_values)
    group = learned(["x", "n"] >> op, *cut(chunk, cuts), random=random)
    once = bits(group.ops[0])
    state = op.partial(chunk)
    for _, rounded, (kept, counts) in state.values():
        assert len(kept) <= max_values
        assert counts.sum() == len(values)
        assert rounded or len(kept) == len(set(values))
    assert bits(learned(group, chunk).ops[0]) == once


def test_fill_median_names_op_and_column():
    with pytest.raises(TypeError, match="'s': FillMedian takes numbers, got strings"):
        learned(["s"] >> FillMedian(), chunk_of(s=["a"]))
    with pytest.raises(ValueError, match="'x': FillMedian found no value"):
        learned(["x"] >> FillMedian(), chunk_of(x=([None], pa.float64())))
    with pytest.raises(ValueError, match=r"'x': FillMedian takes values below 2\*\*400, got inf"):
        learned(["x"] >> FillMedian(), chunk_of(x=[1.0, float("inf")]))
    with pytest.raises(TypeError, match="'x': FillMedian cannot take one median of integers and"):
        learned(["x"] >> FillMedian(), chunk_of(x=[1]), chunk_of(x=[0.5]))
    with pytest.raises(ValueError, match="max_values must be at least 2, got 1"):
        FillMedian(max_values=1)
    group = learned(["n"] >> FillMedian(), chunk_of(n=[1000]))
    with pytest.raises(ValueError, match="'n': FillMedian cannot put 1000 into a column of int8"):
        group.transform(Chunk({"n": column([1, None], pa.int8())}))
