"""Ops on single values: equal to NumPy, pandas or Python, with nulls and in lists."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import chunk_of, column, cut, fit, learned, plain
from tests.support.ops_strategies import CUTS, FEW, INTEGERS, NUMBERS, TEXTS
from tutorlib.columns import Chunk, Ragged
from tutorlib.ops import Bucketize, Clip, FillMedian, FillMissing, LogOp

LISTS = st.lists(st.integers(0, 4), max_size=10)
FLOATS = st.lists(NUMBERS, min_size=1, max_size=20)
WHOLE = st.lists(INTEGERS, min_size=1, max_size=20)


def check(op, values, kind, lengths, want):
    """Hold an op to what it should make of the values, one a row and in lists."""
    ends = np.cumsum([0, *lengths]).clip(max=len(values))
    lists = Ragged(column(values, kind), np.append(ends, len(values)))
    out = (["x"] >> op).transform(Chunk({"x": column(values, kind)}))["x"]
    assert plain(out) == [repr(w) if w != w else w for w in want]
    listed = (["x"] >> op).transform(Chunk({"x": lists}))["x"]
    assert plain(listed.values) == plain(out)
    assert listed.offsets.tolist() == lists.offsets.tolist()


@FEW
@given(FLOATS, LISTS, st.floats(-50, 0), st.floats(0, 50))
def test_clip_equals_pandas(values, lengths, low, high):
    want = pd.Series(values, dtype=float).clip(low, high).tolist()
    check(Clip(low, high), values, pa.float64(), lengths, want)


@FEW
@given(WHOLE, LISTS, st.integers(-5, 0), st.integers(0, 5))
def test_clip_of_integers_keeps_nulls_and_dtype(values, lengths, low, high):
    want = [None if value is None else min(max(value, low), high) for value in values]
    check(Clip(low, high), values, pa.int64(), lengths, want)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("limit", [0.0, -0.0])
@pytest.mark.parametrize("length", [1, 3, 100])  # NumPy takes other ways for long arrays
def test_clip_leaves_a_value_that_equals_a_limit_as_it_is(dtype, limit, length):
    values = np.resize(np.array([0.0, -0.0, math.nan], dtype), length)
    for op in (Clip(limit), Clip(max_value=limit), Clip(limit, 5), Clip(-5, limit)):
        out = (["x"] >> op).transform(Chunk({"x": values}))["x"]
        assert out.dtype == dtype
        assert out.tobytes() == values.tobytes()


@FEW
@given(FLOATS, LISTS)
def test_log_op_equals_numpy(values, lengths):
    values = [None if value is None else abs(value) for value in values]
    want = np.log1p(np.array(values, float)).astype(np.float32).tolist()
    check(LogOp(), values, pa.float64(), lengths, want)


@FEW
@given(FLOATS, LISTS, st.lists(st.integers(-5, 5), min_size=1, unique=True).map(sorted))
def test_bucketize_equals_counting_boundaries(values, lengths, edges):
    want = [1 if v is None else 2 + sum(edge <= v for edge in edges) for v in values]
    check(Bucketize(edges), values, pa.float64(), lengths, want)


@FEW
@given(st.one_of(FLOATS, WHOLE, st.lists(TEXTS, min_size=1)), LISTS)
def test_fill_missing_equals_its_definition(values, lengths):
    texts = any(isinstance(value, str) for value in values)
    kind = pa.float64() if any(isinstance(value, float) for value in values) else pa.int64()
    fill = "?" if texts else 7
    want = [fill if value is None else value for value in values]
    check(FillMissing(fill), values, pa.string() if texts else kind, lengths, want)


@FEW
@given(st.lists(st.tuples(NUMBERS, st.none() | st.integers(-9, 9)), min_size=1, max_size=40), CUTS)
def test_fill_median_equals_pandas_however_the_rows_are_divided(rows, cuts):
    x, n = [[*values, 1] for values in zip(*rows, strict=True)]
    chunk = chunk_of(x=(x, pa.float64()), n=(n, pa.int64()))
    op = fit(FillMedian(), *cut(chunk, cuts))
    medians = op.learned()["medians"]
    assert medians["x"] == pd.Series(x, dtype=float).median()
    assert medians["n"] == pd.Series(n, dtype=float).median()
    out = op.transform(chunk)
    assert out["x"].tolist() == pd.Series(x, dtype=float).fillna(medians["x"]).tolist()
    whole = math.floor(medians["n"])
    assert out["n"].tolist() == [whole if value is None else value for value in n]


@pytest.mark.parametrize(
    ("op", "values", "message"),
    [
        (FillMissing(0.5), [None, 3], r"FillMissing cannot put 0.5 into .* int64"),
        (FillMissing("x"), [None, 3], r"FillMissing cannot put 'x' into .* int64"),
        (FillMissing(0), ["a"], "FillMissing cannot put 0 into a column of string"),
        (Clip(0.5), [1, 2], r"Clip cannot limit a column of int64 to \[0.5\]"),
        (Clip(math.inf), [1, 2], r"Clip cannot limit a column of int64 to \[inf\]"),
        (Clip(0), ["a"], "Clip takes numbers, got strings"),
        (LogOp(), [0, 1, -1], "LogOp .* above -1, got -1.0 at value 2"),
        (Bucketize([1]), ["a"], "Bucketize takes numbers, got strings"),
        (FillMedian(), ["a"], "FillMedian takes numbers, got strings"),
        (FillMedian(), [None, None], "FillMedian found no value"),
        (FillMedian(), [1.0, math.inf], r"FillMedian takes values below 2\*\*400, got inf"),
    ],
)
def test_a_column_that_an_op_cannot_take_is_named(op, values, message):
    kind = pa.float64() if values == [None, None] else None
    chunk = Chunk({"x": column(values, kind)})
    with pytest.raises((TypeError, ValueError), match=f"column 'x': {message}"):
        (learned(["x"] >> op, chunk) if isinstance(op, FillMedian) else ["x"] >> op).transform(
            chunk
        )


def test_a_median_that_a_smaller_dtype_cannot_hold_is_refused():
    group = learned(["n"] >> FillMedian(), chunk_of(n=[1000]))
    with pytest.raises(ValueError, match="'n': FillMedian cannot put 1000 into a column of int8"):
        group.transform(Chunk({"n": column([1, None], pa.int8())}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clip(), "give min_value"),
        (lambda: Clip(2, 1), "min_value 2 is above"),
        (lambda: Clip(math.nan), "Clip: min_value must be a finite number"),
        (lambda: Bucketize([1, 1]), "boundaries must rise"),
        (lambda: Bucketize([]), "boundaries must rise"),
        (lambda: Bucketize({"x": [0, math.nan]}), "each boundary must be a finite number"),
        (lambda: Bucketize(["a"]), "each boundary must be a finite number"),
        (lambda: ["x"] >> Bucketize({"y": [1]}), r"boundaries has no entry for columns \['x'\]"),
        (lambda: FillMissing(math.inf), "fill_value must be a finite number"),
        (lambda: LogOp("int32"), "dtype must be float16"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
