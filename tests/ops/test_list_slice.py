"""ListSlice: equal to Python's slices."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import chunk_of, column
from tests.support.ops_strategies import FEW, INTEGERS, TEXTS
from tutorlib.columns import Chunk
from tutorlib.ops import (
    ListSlice,
)

PLACES = st.one_of(st.none(), st.integers(-5, 5))


def test_list_slice_by_hand():
    tags = column([[1, 2, 3], [], [4], [5, None]])
    lists = {
        (0, 2): [[1, 2], [], [4], [5, None]],
        (1, None): [[2, 3], [], [], [None]],
        (-2, None): [[2, 3], [], [4], [5, None]],
        (0, -1): [[1, 2], [], [], [5]],
    }
    for (start, end), want in lists.items():
        out = (["t"] >> ListSlice(start, end)).transform(Chunk({"t": tags}))["t"]
        assert out.tolist() == want
        assert out.values.values.dtype == np.int64
    padded = (["t"] >> ListSlice(0, 2, pad=True)).transform(Chunk({"t": tags}))["t"]
    assert padded.tolist() == [[1, 2], [0, 0], [4, 0], [5, None]]
    texts = column([["a", "b"], [], ["c"]])
    out = (["t"] >> ListSlice(-2, pad=True, pad_value="?")).transform(Chunk({"t": texts}))["t"]
    assert out.tolist() == [["a", "b"], ["?", "?"], ["c", "?"]]


@FEW
@given(
    st.one_of(
        st.lists(st.lists(INTEGERS, max_size=6), min_size=1),
        st.lists(st.lists(TEXTS, max_size=6), min_size=1),
        st.lists(st.lists(st.floats(-5, 5, width=32), max_size=6), min_size=1),
    ),
    st.integers(-5, 5),
    PLACES,
)
def test_list_slice_equals_pythons_slices(lists, start, end):
    flat = [value for values in lists for value in values if value is not None]
    kind = pa.string() if any(isinstance(v, str) for v in flat) else pa.int64()
    kind = pa.float32() if any(isinstance(v, float) for v in flat) else kind
    chunk = chunk_of(t=(lists, pa.list_(kind)))
    out = (["t"] >> ListSlice(start, end)).transform(chunk)["t"].tolist()
    want = [values[start:end] for values in lists]
    assert out == want
    length = len(([0] * 99)[start:end])
    if 0 < length < 20:
        fill = "?" if kind == pa.string() else 7
        group = ["t"] >> ListSlice(start, end, pad=True, pad_value=fill)
        out = group.transform(chunk)["t"].tolist()
        assert out == [values + [fill] * (length - len(values)) for values in want]


@pytest.mark.parametrize("places", [(0, None), (-3, 2), (2, -1), (3, 3), (-1, -4)])
def test_list_slice_refuses_to_pad_to_no_one_length(places):
    with pytest.raises(ValueError, match="pad=True needs a slice of one length"):
        ListSlice(*places, pad=True)


def test_list_slice_names_op_and_column():
    with pytest.raises(TypeError, match="'x': ListSlice takes lists, got float64"):
        (["x"] >> ListSlice(1)).transform(chunk_of(x=[0.5]))
    whole, texts = chunk_of(l=[[1]]), chunk_of(l=[["a"]])
    with pytest.raises(ValueError, match=r"'l': ListSlice cannot put 0.5 into lists of int64"):
        (["l"] >> ListSlice(0, 2, pad=True, pad_value=0.5)).transform(whole)
    with pytest.raises(TypeError, match="'l': ListSlice cannot put 0 into lists of string"):
        (["l"] >> ListSlice(0, 2, pad=True)).transform(texts)
