"""Normalize, NormalizeMinMax: the numbers of pandas, however the rows are divided."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import column, cut, fit
from tests.support.ops_strategies import CUTS, FEW
from tutorlib.columns import Chunk
from tutorlib.ops import Normalize, NormalizeMinMax

VALUES = st.lists(st.floats(-1e6, 1e6, width=32) | st.just(math.nan), min_size=1, max_size=40)


@FEW
@given(VALUES, CUTS, st.sampled_from([0.0, 1e9, -1e9]))
def test_normalize_equals_pandas_however_the_rows_are_divided(values, cuts, offset):
    x = np.array([*values, 0.5]) + offset
    op = fit(Normalize(), *cut(Chunk({"x": x}), cuts))
    exact = np.array([math.nan if v != v else v - offset for v in x.tolist()])
    want = pd.Series(exact)
    assert op.learned()["mean"]["x"] == pytest.approx(want.mean() + offset, rel=1e-12, abs=1e-9)
    assert op.learned()["std"]["x"] == pytest.approx(want.std(ddof=0), rel=1e-6, abs=1e-6)


def test_a_small_spread_beside_a_large_mean_is_kept_through_every_merge():
    x = 1e9 + np.random.default_rng(0).random(100_000)
    parts = [Chunk({"x": part}) for part in np.split(x, range(7, 100_000, 997))]
    learned = fit(Normalize(), *parts).learned()
    assert learned["mean"]["x"] - 1e9 == pytest.approx((x - 1e9).mean(), rel=1e-6)
    assert learned["std"]["x"] == pytest.approx((x - 1e9).std(), rel=1e-9)


@pytest.mark.parametrize("value", [0.1, 1e9 + 0.1, -7.3, 1e300 / 1e200])
@pytest.mark.parametrize("op", [Normalize, NormalizeMinMax])
def test_a_column_of_equal_values_becomes_zeros(op, value):
    chunks = [Chunk({"x": np.full(n, value)}) for n in (3, 1, 10)]
    out = fit(op(), *chunks).transform(chunks[0])["x"]
    assert out.tolist() == [0, 0, 0]


def test_nulls_and_lists_by_hand():
    chunk = Chunk(
        {
            "x": np.array([1.0, 3.0, np.nan], np.float32),
            "nulls": column([1, None, 3]),
            "lists": column([[1.0], [3.0, None], []]),
        }
    )
    out = fit(Normalize(), chunk).transform(chunk)
    assert str(out["x"].tolist()) == "[-1.0, 1.0, nan]"
    assert str(out["nulls"].tolist()) == "[-1.0, nan, 1.0]"
    assert str(out["lists"].tolist()) == "[[-1.0], [1.0, nan], []]"
    assert {c.dtype.name for c in (out["x"], out["nulls"])} == {"float32"}
    out = fit(NormalizeMinMax(), chunk.slice(0, 1), chunk.slice(1, 3)).transform(chunk)
    assert str(out["nulls"].tolist()) == "[0.0, nan, 1.0]"


def test_a_column_that_cannot_be_learned_from_is_named():
    with pytest.raises(ValueError, match="'x': Normalize found no value"):
        fit(Normalize(), Chunk({"x": np.array([np.nan])}), Chunk({"x": np.array([np.nan])}))
    with pytest.raises(ValueError, match=r"'x': Normalize takes values .*, got inf"):
        Normalize().partial(Chunk({"x": np.array([1.0, np.inf])}))
    with pytest.raises(ValueError, match="dtype must be float16"):
        Normalize(dtype="int32")


def test_the_least_value_is_the_same_zero_whichever_came_first():
    zeros = Chunk({"x": np.array([0.0])}), Chunk({"x": np.array([-0.0, 1.0])})
    for parts in itertools.permutations(zeros):
        one = fit(NormalizeMinMax(), *parts)
        assert str(one.learned()) == "{'min': {'x': 0.0}, 'range': {'x': 1.0}}"
