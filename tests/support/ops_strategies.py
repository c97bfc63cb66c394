"""Random values, rows and cuts for the tests of ops."""

from hypothesis import settings
from hypothesis import strategies as st

FEW = settings(max_examples=40, deadline=None)
INTEGERS = st.one_of(st.none(), st.integers(-2, 3), st.integers(-(2**63), 2**63 - 1))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "Müller"]), st.text(max_size=9))
NUMBERS = st.one_of(st.none(), st.integers(-3, 3).map(float), st.floats(-1e6, 1e6, width=32))
CUTS = st.lists(st.integers(0, 40), max_size=4)
