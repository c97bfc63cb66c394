"""Ops of values: equal to NumPy, pandas or Python, with nulls and in lists."""

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
from tutorlib.ops import (
    Categorify,
    Clip,
    FillMedian,
    FillMissing,
    HashBucket,
    LogOp,
    Normalize,
    Rename,
)  # fmt: skip
from tutorlib.workflow import Workflow

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
    medians = {name: table["median"].item() for name, table in op.state.items()}
    assert medians["x"] == pd.Series(x, dtype=float).median()
    assert medians["n"] == pd.Series(n, dtype=float).median()
    out = op.transform(chunk)
    assert out["x"].tolist() == pd.Series(x, dtype=float).fillna(medians["x"]).tolist()
    whole = math.floor(medians["n"])
    assert out["n"].tolist() == [whole if value is None else value for value in n]


@FEW
@given(FLOATS, CUTS, st.sampled_from([0.0, 1e9, -1e9]))
def test_normalize_equals_pandas_however_the_rows_are_divided(values, cuts, offset):
    x = np.array([*(math.nan if v is None else v for v in values), 0.5]) + offset
    op = fit(Normalize(), *cut(Chunk({"x": x}), cuts))
    want = pd.Series(x - offset)
    mean, std = (column.item() for column in op.state["x"].values())
    assert mean == pytest.approx(want.mean() + offset, rel=1e-12, abs=1e-9)
    assert std == pytest.approx(want.std(ddof=0), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("value", [0.1, 1e9 + 0.1, -7.3, 1e300 / 1e200])
def test_a_column_of_equal_values_becomes_zeros(value):
    chunks = [Chunk({"x": np.full(n, value)}) for n in (3, 1, 10)]
    out = fit(Normalize(), *chunks).transform(chunks[0])["x"]
    assert out.tolist() == [0, 0, 0]


def test_renamed_ids_keep_their_cardinality():
    renamed = ["t"] >> Categorify() >> Rename(postfix="_2")
    fitted = Workflow(renamed).fit(chunk_of(t=[["a", "b", "a"]]))
    assert fitted.output_schema["t_2"].cardinality == 5


COLUMNS = [
    (FillMissing(0.5), [None, 3], r"FillMissing cannot put 0.5 into .* int64"),
    (FillMissing(0), ["a"], "FillMissing cannot put 0 into a column of string"),
    (FillMissing(-1), [None, True], "FillMissing cannot put -1 into .* bool.* from 0 to 1"),
    (
        FillMissing(0),
        np.arange(2).astype("M8[us]"),
        r"FillMissing cannot put 0 .*\[us\]: .*compute.day_of_week",
    ),
    (FillMissing(300), np.arange(2, dtype="u1"), "FillMissing cannot put 300 .* from 0 to 255"),
    (FillMissing(1e300), np.ones(2, "f4"), r"FillMissing cannot put 1e\+300 .* float32"),
    (Clip(300), np.arange(2, dtype="u1"), r"Clip cannot limit .* uint8 to \[300\].* \[0, 255\]"),
    (Clip(1e300), np.ones(2, "f4"), r"Clip cannot limit .* float32 to \[1e\+300\]"),
    (Clip(0), np.ones(2, bool), r"Clip cannot limit a column of bool to \[0\]"),
    (Clip(0.5), [1, 2], r"Clip cannot limit a column of int64 to \[0.5\]"),
    (Clip(0), ["a"], "Clip takes numbers, got strings"),
    (LogOp(), [0, 1, -1], "LogOp .* above -1, got -1.0 at value 2"),
    (LogOp(), np.arange(2).astype("M8[D]"), r"LogOp takes numbers, .*\[D\]. .*compute.day_of_week"),
    (HashBucket(3), [1.0], "HashBucket takes integers or strings"),
    (FillMedian(), ["a"], "FillMedian takes numbers, got strings"),
    (FillMedian(), np.array([np.nan] * 2), "FillMedian found no value"),
    (FillMedian(), [1.0, math.inf], r"FillMedian takes values below 2\*\*400, got inf"),
    (Normalize(), ["$1,250.00", "3,5 %", None], r"Normalize .* such as '\$1,250.00'.*to_numeric"),
    (HashBucket(3), np.array([np.nan] * 2), "HashBucket .* Without a value .* 'string'"),
    (Normalize(), np.array([np.nan] * 2), "Normalize found no value"),
    (Normalize(), [1.0, -math.inf], "Normalize takes values .*, got -inf"),
]


@pytest.mark.parametrize(("op", "values", "message"), COLUMNS)
def test_a_column_that_an_op_cannot_take_is_named(op, values, message):
    chunk, learns = Chunk({"x": column(values)}), hasattr(op, "partial")
    with pytest.raises((TypeError, ValueError), match=f"column 'x': {message}"):
        (learned(["x"] >> op, chunk) if learns else ["x"] >> op).transform(chunk)


def test_a_median_of_truth_values_is_rounded_down():
    group = learned(["x"] >> FillMedian(), chunk_of(x=[False, False, True, True]))
    assert group.transform(Chunk({"x": column([None, True])}))["x"].tolist() == [False, True]


def test_truth_values_are_filled_by_0_and_1():
    for fill in (0, 1, True, 0.0):
        group = ["x"] >> FillMissing(fill)
        assert group.transform(Chunk({"x": column([None], pa.bool_())}))["x"].tolist() == [
            bool(fill)
        ]


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
        (lambda: FillMissing(math.inf), "fill_value must be a finite number"),
        (lambda: ["x"] >> HashBucket({"y": 1}), r"num_buckets has no entry for columns \['x'\]"),
        (lambda: ["a"] >> Rename({"b": "c"}), r"Rename: no columns \['b'\]"),
        (lambda: (["a"] >> LogOp()) >> Categorify, "forget the brackets"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
