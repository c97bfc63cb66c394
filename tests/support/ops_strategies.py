"""Random values, rows and cuts for the tests of ops."""

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

from tests.support.ops import chunk_of

FEW = settings(max_examples=40, deadline=None)
INTEGERS = st.one_of(st.none(), st.integers(-2, 3), st.integers(-(2**63), 2**63 - 1))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "Müller"]), st.text(max_size=9))
NUMBERS = st.one_of(st.none(), st.integers(-3, 3).map(float), st.floats(-1e6, 1e6, width=32))
CUTS = st.lists(st.integers(0, 40), max_size=4)
KEYED = st.lists(st.tuples(INTEGERS, TEXTS, NUMBERS, st.integers(0, 9)), min_size=1, max_size=40)


def keyed_chunk(rows):
    """Rows of KEYED: two keys n and t, a number x, and row, which the folds are hashed from."""
    numbers, texts, values, folds = zip(*rows, strict=True)
    return chunk_of(
        n=(numbers, pa.int64()),
        t=(texts, pa.string()),
        x=(values, pa.float64()),
        row=(folds, pa.int64()),
    )
