"""Normalize, NormalizeMinMax, exact_sum: no bit depends on chunks or order."""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import column, fit, learned
from tests.support.ops_strategies import FEW
from tutorlib.columns import Chunk
from tutorlib.ops import (
    FillMedian,
    Normalize,
    NormalizeMinMax,
    exact_sum,
)
from tutorlib.ops.shared.exact import exact_square_sum, exact_sums
from tutorlib.ops.shared.group_sums import GroupSums
from tutorlib.workflow import Workflow


@FEW
@given(st.lists(st.floats(-1e200, 1e200), min_size=1, max_size=60))
def test_exact_sum_is_exact(values):
    assert exact_sum(np.array(values)) == sum(map(Fraction, values))


def test_exact_sum_over_blocks():
    values = np.random.default_rng(0).standard_normal(40_000) * 10.0 ** np.arange(40_000).clip(0, 9)
    assert float(exact_sum(values)) == math.fsum(values.tolist())


@FEW
@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32) | st.just(math.nan), max_size=9),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_normalize_does_not_depend_on_chunks_or_order_to_the_last_bit(parts, random):
    flat = np.array([v for part in parts for v in part] + [0.5])
    whole = fit(Normalize(), Chunk({"x": flat}))
    op = Normalize()
    states = [op.partial(Chunk({"x": np.array(part, float)})) for part in [*parts, [0.5]]]
    while len(states) > 1:
        random.shuffle(states)
        states.append(op.merge(states.pop(), states.pop()))
    op.finalize(states[0])
    assert op.learned() == whole.learned()
    want = pd.Series(flat)
    assert op.learned()["mean"]["x"] == pytest.approx(want.mean(), rel=1e-12, abs=1e-9)
    assert op.learned()["std"]["x"] == pytest.approx(want.std(ddof=0), rel=1e-9, abs=1e-6)


def test_normalize_does_not_lose_a_small_spread_beside_a_large_mean():
    op = fit(Normalize(), Chunk({"x": np.array([1e9 + 0.25, 1e9 + 0.75])}))
    assert op.learned() == {"mean": {"x": 1e9 + 0.5}, "std": {"x": 0.25}}


@FEW
@given(st.lists(st.floats(-1e100, 1e100) | st.floats(-1e-150, 1e-150), min_size=1, max_size=20))
def test_sums_of_squares_are_exact_whatever_the_size_of_the_values(values):
    want = sum(Fraction(v) ** 2 for v in values)
    assert exact_square_sum(np.array(values)) == want
    sums = GroupSums.of([np.zeros(len(values), int)], {"x": np.array(values)}, square=True)
    (total,), e = sums.totals("square", "x")
    assert Fraction(total, 1 << e) == want


@FEW
@given(
    st.lists(st.floats(-16, 16) | st.integers(0, 2**60), min_size=1, max_size=40),
    st.sampled_from([1.0, 2.0**-1022, 2.0**-420, 2.0**-397, 2.0**-300, 2.0**300, 2.0**335]),
)
def test_sums_and_sums_of_squares_together_are_exact_for_values_of_any_width(values, size):
    scaled = np.array(values, np.float64) * size
    exact = [Fraction(value) for value in scaled.tolist()]
    assert exact_sums(scaled) == (sum(exact), sum(value**2 for value in exact))


def test_sums_and_sums_of_squares_together_are_exact_over_blocks():
    rng = np.random.default_rng(0)
    counts = np.floor(rng.lognormal(2, 1.5, 30_000))
    for values in (
        np.log1p(counts),  # three limbs
        counts,
        counts * rng.choice([-1, 1], 30_000),
        np.full(30_000, 2.0**20 - 1),
        rng.standard_normal(30_000) * 10.0 ** rng.integers(-9, 9, 30_000),  # too wide for limbs
    ):
        assert exact_sums(values) == (exact_sum(values), exact_square_sum(values))


@pytest.mark.parametrize("size", [1.0, 1e-100, 1.1e-158, 3.7e-158, 1e-170, 1e-300, 5e-324, 1e100])
def test_values_of_every_size_are_normalized_alike(size):
    chunk = Chunk({"x": np.array([size, 3 * size]), "same": np.array([size, size])})
    op = fit(Normalize("float64"), chunk)
    assert op.learned()["mean"]["x"] == 2 * size
    assert op.learned()["std"] == {"x": pytest.approx(size, rel=1e-15), "same": 0.0}
    out = op.transform(chunk)
    assert out["x"].tolist() == pytest.approx([-1, 1])
    assert out["same"].tolist() == [0, 0]
    keyed = Chunk({"k": np.array([7, 7]), "x": chunk["x"]})
    group = learned(["k"] >> JoinGroupby(["x"], ["std"], dtype="float64"), keyed)
    assert group.transform(keyed)["k_x_std"][0] == op.learned()["std"]["x"]


def test_normalize_by_hand():
    chunk = Chunk(
        {
            "x": np.array([1.0, 3.0, np.nan], np.float32),
            "same": np.array([4, 4, 4]),
            "nulls": column([2, None, 6]),
            "lists": column([[1.0], [3.0, None], []]),
        }
    )
    out = fit(Normalize(), chunk).transform(chunk)
    assert str(out["x"].tolist()) == "[-1.0, 1.0, nan]"
    assert out["same"].tolist() == [0, 0, 0]
    assert str(out["nulls"].tolist()) == "[-1.0, nan, 1.0]"
    assert str(out["lists"].tolist()) == "[[-1.0], [1.0, nan], []]"
    assert {c.dtype.name for c in (out["x"], out["same"], out["nulls"])} == {"float32"}
    assert fit(Normalize(dtype="float64"), chunk).transform(chunk)["x"].dtype == np.float64


def test_normalize_names_a_column_that_it_cannot_learn_from():
    with pytest.raises(ValueError, match="'x': Normalize found no value"):
        fit(Normalize(), Chunk({"x": np.array([np.nan])}))
    with pytest.raises(ValueError, match=r"'x': Normalize takes values .*, got inf"):
        Normalize().partial(Chunk({"x": np.array([1.0, np.inf])}))
    with pytest.raises(ValueError, match="dtype must be float16"):
        Normalize(dtype="int32")


def test_normalize_min_max_by_hand():
    chunk = Chunk({"x": column([2, None, 6, 3]), "same": np.array([5.0, 5, 5, np.nan])})
    out = fit(NormalizeMinMax(), chunk.slice(0, 2), chunk.slice(2, 4)).transform(chunk)
    assert str(out["x"].tolist()) == "[0.0, nan, 1.0, 0.25]"
    assert str(out["same"].tolist()) == "[0.0, 0.0, 0.0, nan]"


def test_the_least_value_is_the_same_zero_whichever_came_first():
    zeros = Chunk({"x": np.array([0.0])}), Chunk({"x": np.array([-0.0, 1.0])})
    for parts in (zeros, zeros[::-1]):
        one = learned(["x"] >> NormalizeMinMax(), *parts).ops[0]
        assert str(one.learned()) == "{'min': {'x': 0.0}, 'range': {'x': 1.0}}"
    one = Workflow(["x"] >> FillMedian()).fit(list(zeros))
    assert one.fingerprint == Workflow(["x"] >> FillMedian()).fit(list(zeros[::-1])).fingerprint
