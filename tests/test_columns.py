"""Chunk: taking, slicing and joining rows means the same for every kind of column."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutorlib.columns import (
    Chunk,
    Strings,
    as_lists,
    column_from_arrow,
    converted,
    flat_values,
    with_flat_values,
)

rows = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.integers(-(2**40), 2**40),
            "n": st.none() | st.integers(-5, 5),
            "s": st.text(max_size=4),
            "ns": st.none() | st.text(max_size=3),
            "l": st.none() | st.lists(st.integers(0, 9), max_size=3),
            "ls": st.none() | st.lists(st.none() | st.text(max_size=2), max_size=3),
            "v": st.lists(st.integers(0, 9), min_size=2, max_size=2),
            "nv": st.lists(st.none() | st.integers(0, 9), min_size=3, max_size=3),
        }
    ),
    max_size=12,
)
TYPES = pa.schema(
    {
        "i": pa.int64(),
        "n": pa.int32(),
        "s": pa.string(),
        "ns": pa.string(),
        "l": pa.list_(pa.int16()),
        "ls": pa.list_(pa.string()),
        "v": pa.list_(pa.float32(), 2),
        "nv": pa.list_(pa.int8(), 3),
    }
)


def chunk_of(records):
    return Chunk.from_arrow(pa.Table.from_pylist(records, schema=TYPES))


def records_of(chunk):
    columns = {name: column.tolist() for name, column in chunk.items()}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


@given(rows, st.randoms())
def test_rows_are_taken_sliced_and_joined_like_a_list(records, random):
    chunk = chunk_of(records)
    assert records_of(chunk) == chunk.to_arrow().to_pylist() == records
    picks = [random.randrange(len(records)) for _ in range(5)] if records else []
    taken = chunk.take(np.array(picks, dtype=np.int64))
    assert records_of(taken) == [records[k] for k in picks]
    a, b = sorted(random.randrange(len(records) + 1) for _ in range(2))
    part = chunk.slice(a, b)
    assert records_of(part) == records[a:b]
    joined = Chunk.concat([part, taken, chunk])
    assert records_of(joined) == records[a:b] + [records[k] for k in picks] + records


def test_numbers_are_not_copied_from_arrow():
    array = pa.array(np.arange(1000))
    column = Chunk.from_arrow(pa.table({"x": array}))["x"]
    assert column.ctypes.data == array.buffers()[1].address


def test_a_null_float_is_nan_and_a_null_list_stays_null():
    chunk = Chunk.from_arrow(pa.table({"x": [1.5, None], "l": [None, [1]]}))
    assert np.isnan(chunk["x"]).tolist() == [False, True]
    assert chunk["l"].tolist() == [None, [1]]
    assert chunk["l"].offsets.tolist() == [0, 0, 1]


def test_columns_of_unequal_length_and_chunks_of_different_columns_are_refused():
    with pytest.raises(ValueError, match="equal lengths"):
        Chunk({"a": np.arange(2), "b": np.arange(3)})
    with pytest.raises(ValueError, match="chunks have different columns"):
        Chunk.concat([Chunk({"a": np.arange(2)}), Chunk({"b": np.arange(2)})])
    with pytest.raises(TypeError, match="only columns of one kind can be concatenated"):
        Chunk.concat([Chunk({"a": np.arange(2)}), Chunk.from_arrow(pa.table({"a": ["x"]}))])


def test_an_unknown_column_and_an_unknown_type_are_named():
    with pytest.raises(KeyError, match="no column 'b'; the chunk has"):
        Chunk({"a": np.arange(2)})["b"]
    with pytest.raises(TypeError, match="struct"):
        Chunk.from_arrow(pa.table({"a": [{"x": 1}]}))
    with pytest.raises(TypeError, match="list<item: int64>> is not supported; store its parts"):
        Chunk.from_arrow(pa.table({"a": [[[1]]]}))


NUMBERS = [pa.float16(), pa.float32(), pa.float64(), pa.int8(), pa.uint64(), pa.bool_()]


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_a_list_of_fixed_size_is_a_vector_and_back(kind):
    array = pa.array([[1, 0], [0, 1], [1, 1]], pa.list_(pa.int8(), 2)).cast(pa.list_(kind, 2))
    column = Chunk.from_arrow(pa.table({"v": array}).slice(1))["v"]
    assert column.shape == (2, 2)
    assert column.tolist() == [[0, 1], [1, 1]]
    assert Chunk({"v": column}).to_arrow()["v"].type == pa.list_(kind, 2)


def test_a_tensor_is_a_vector_of_its_values_in_order():
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    storage = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.float32(), 4))
    table = pa.table({"t": pa.ExtensionArray.from_storage(kind, storage)})
    assert Chunk.from_arrow(table)["t"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize(("kind", "null"), [(pa.float32(), np.nan), (pa.int32(), None)])
def test_a_null_vector_has_a_null_in_each_place(kind, null):
    first, second, third = pa.array([1, 2, 3], kind).to_pylist()
    array = pa.array([[first, second], None, [third, None]], pa.list_(kind, 2))
    column = Chunk.from_arrow(pa.table({"v": array}))["v"]
    assert repr(column.tolist()) == repr([[first, second], [null, null], [third, null]])


def test_vectors_are_lists_where_lists_are_needed_and_values_keep_their_rows():
    vectors = np.array([[1, 2, 3], [4, 5, 6]])
    lists = as_lists(vectors)
    assert lists.tolist() == vectors.tolist()
    assert np.shares_memory(lists.values, vectors)
    assert with_flat_values(vectors, flat_values(vectors) * 2).tolist() == [[2, 4, 6], [8, 10, 12]]
    text = Strings.from_arrow(pa.array(list("abcdef")))
    assert with_flat_values(vectors, text).tolist() == [["a", "b", "c"], ["d", "e", "f"]]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "uint32"])
def test_integers_become_a_type_that_holds_them_all_and_stay_as_they_are_beyond_it(kind):
    limits = np.iinfo(kind)
    inside = np.array([limits.min, 1, limits.max])
    have = converted(inside, (kind, False))
    assert (have.dtype, have.tolist()) == (kind, inside.tolist())
    for beyond in (limits.min - 1, limits.max + 1):
        outside = np.append(inside, beyond)
        assert converted(outside, (kind, False)) is outside


# 33 rows that share one text of 64 MiB: 2.06 GiB, more than offsets of 32 bits reach.
LONG, PARTS = 64 << 20, 33
MAKE_LONG = {
    "strings": lambda text: [text] * PARTS,
    "lists": lambda text: [pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), text)] * PARTS,
    "a dictionary": lambda text: [
        pa.DictionaryArray.from_arrays(pa.array([0] * PARTS, pa.int8()), text)
    ],
}


@pytest.mark.slow  # for its memory: 2.3 GB
@pytest.mark.parametrize("kind", MAKE_LONG)
def test_a_column_may_hold_more_than_2_gib_of_text(kind):
    parts = pa.chunked_array(MAKE_LONG[kind](pa.array(["x" * LONG])))
    column = flat_values(column_from_arrow(parts))
    assert len(column) == PARTS
    assert int(column.offsets[-1]) == PARTS * LONG > 2**31
    assert (column.data[:: LONG // 2] == ord("x")).all()


def test_strings_and_lists_in_several_parts_are_joined_with_their_nulls():
    for values, kind in (
        ([["a", None], ["b"]], pa.string()),
        ([[["a"], None], [[], ["b", None]]], pa.list_(pa.string())),
        ([[["a"], None], [["b"]]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        ([["a", None], ["b"]], pa.string_view()),
    ):
        parts = pa.chunked_array([pa.array(part, kind) for part in values])
        assert column_from_arrow(parts).tolist() == [row for part in values for row in part]
