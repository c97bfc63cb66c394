"""Intervals behave like sets of times."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
from tutorlib.profiling import Intervals

pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)).map(lambda p: (p[0], sum(p))))


def cells(intervals):
    """The unit cells of [0, 40) that intervals with whole ends cover."""
    return {n for start, stop in intervals for n in range(int(start), int(stop))}


@hypothesis.given(pairs, pairs, st.integers(0, 20), st.integers(1, 20))
def test_intervals_behave_like_sets_of_times(one, other, start, length):
    first, second, stop = Intervals.union(one), Intervals.union(other), start + length
    assert cells(first) == cells(one)
    assert first.total_ms == len(cells(one))
    assert np.all(first.starts[1:] > first.stops[:-1])
    window = set(range(start, stop))
    assert cells(first.within(start, stop)) == cells(one) & window
    assert cells(first.gaps(start, stop)) == window - cells(one)
    assert cells(first.overlap(second)) == cells(one) & cells(other)
