"""Ops on single values: equal to NumPy or Python, with nulls and in lists."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import column, learned, plain
from tests.support.ops_strategies import FEW, INTEGERS, NUMBERS, TEXTS
from tutorlib.columns import Chunk, Ragged
from tutorlib.ops import (
    Bucketize,
    Clip,
    FillMissing,
    LearningOp,
    LogOp,
    Normalize,
    NormalizeMinMax,
)

LISTS = st.lists(st.integers(0, 4), max_size=10)


def both_ways(values, kind, lengths):
    """The values as a column, and as the values of lists."""
    ends = np.cumsum([0, *lengths]).clip(max=len(values))
    offsets = np.append(ends, len(values))
    return Chunk({"x": column(values, kind)}), Chunk({"x": Ragged(column(values, kind), offsets)})


def check(op, values, kind, lengths, want):
    """Hold an op to what it should make of the values, one a row and in lists."""
    rows, lists = both_ways(values, kind, lengths)
    group = learned(["x"] >> op, rows) if isinstance(op, LearningOp) else ["x"] >> op
    out = group.transform(rows)["x"]
    assert plain(out) == [repr(w) if w != w else w for w in want]
    listed = group.transform(lists)["x"]
    assert plain(listed.values) == plain(out)
    assert listed.offsets.tolist() == lists["x"].offsets.tolist()


FLOATS = st.lists(NUMBERS, min_size=1, max_size=20)


WHOLE = st.lists(INTEGERS, min_size=1, max_size=20)


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
@given(FLOATS, LISTS)
def test_normalize_and_min_max_equal_pandas(values, lengths):
    values = [*values, 0.5]
    frame = pd.Series(values, dtype=float)
    rows, _ = both_ways(values, pa.float64(), lengths)
    low, high = frame.min(), frame.max()
    want = ((frame - low) / ((high - low) or math.inf)).astype(np.float32).tolist()
    check(NormalizeMinMax(), values, pa.float64(), lengths, want)
    numbers = learned(["x"] >> Normalize(dtype="float64"), rows).ops[0].learned()
    assert numbers["mean"]["x"] == pytest.approx(frame.mean(), rel=1e-9, abs=1e-9)
    assert numbers["std"]["x"] == pytest.approx(frame.std(ddof=0), rel=1e-6, abs=1e-6)
    scaled = (frame - numbers["mean"]["x"]) / (numbers["std"]["x"] or math.inf)
    check(Normalize(dtype="float64"), values, pa.float64(), lengths, scaled.tolist())


BORDERS = st.one_of(
    st.integers(-3, 300), st.floats(-3, 300), st.integers(2**53 - 2, 2**53 + 2).map(float),
    st.integers(2**53 - 2, 2**53 + 2), st.integers(2**63 - 2, 2**63 + 2),
    st.sampled_from([-math.inf, math.inf, 2**64, -(2**63) - 1, 2**70, 1e300, 0.1, 1 / 3]),
)  # fmt: skip


@FEW
@given(
    st.sampled_from(["int8", "uint8", "int32", "int64", "uint64", "float32", "float64"]),
    st.lists(BORDERS, min_size=1, max_size=8),
    st.lists(BORDERS, min_size=1, max_size=8),
)
def test_bucketize_compares_numbers_of_every_dtype_exactly(dtype, values, borders):
    if "int" in dtype:
        limits = np.iinfo(dtype)
        values = [limits.min, limits.max] + [
            int(v) for v in values if math.isfinite(v) and limits.min <= v <= limits.max
        ]
    rows = np.array(values).astype(dtype) if "float" in dtype else np.array(values, dtype)
    borders = sorted(set(borders))
    out = (["x"] >> Bucketize(borders)).transform(Chunk({"x": rows}))["x"]
    assert out.tolist() == [2 + sum(b <= v for b in borders) for v in rows.tolist()]
    assert out.dtype == np.int32


@pytest.mark.parametrize("borders", [[math.nan], [0, math.nan], [math.nan, 1], ["a"], [10**400]])
def test_bucketize_refuses_boundaries_that_are_no_numbers(borders):
    for boundaries in (borders, {"x": borders}):
        with pytest.raises(ValueError, match="each boundary must be a finite number, got"):
            Bucketize(boundaries)


def test_log_by_hand_and_its_error_names_column_value_and_place():
    out = (["x"] >> LogOp()).transform(Chunk({"x": column([0, None, 7])}))["x"]
    assert str(out.tolist()) == str([0.0, math.nan, float(np.float32(math.log(8)))])
    assert out.dtype == np.float32
    with pytest.raises(ValueError, match=r"'x': LogOp .* above -1, got -1.0 at value 2"):
        (["x"] >> LogOp()).transform(Chunk({"x": np.array([0, 1, -1])}))
