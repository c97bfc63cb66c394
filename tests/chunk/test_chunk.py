"""Chunk: taking, slicing and joining rows means the same for every kind of column."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutorlib.chunk import Chunk, Masked, Ragged, Strings, gather_rows, row_ids

rows = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.integers(-(2**40), 2**40),
            "n": st.none() | st.integers(-5, 5),
            "s": st.text(max_size=4),
            "ns": st.none() | st.text(max_size=3),
            "l": st.lists(st.integers(0, 9), max_size=3),
            "ls": st.lists(st.none() | st.text(max_size=2), max_size=3),
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
    assert records_of(chunk) == records
    picks = [random.randrange(len(records)) for _ in range(5)] if records else []
    taken = chunk.take(np.array(picks, dtype=np.int64))
    assert records_of(taken) == [records[k] for k in picks]
    a, b = sorted(random.randrange(len(records) + 1) for _ in range(2))
    part = chunk.slice(a, b)
    assert records_of(part) == records[a:b]
    joined = Chunk.concat([part, taken, chunk])
    assert records_of(joined) == records[a:b] + [records[k] for k in picks] + records


@given(rows)
def test_arrow_and_back_keeps_every_value(records):
    table = chunk_of(records).to_arrow()
    assert table.to_pylist() == records
    assert records_of(Chunk.from_arrow(table)) == records


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.randoms())
def test_gather_rows_finds_the_values_of_ragged_rows(lengths, random):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    picks = np.array([random.randrange(len(lengths)) for _ in range(8)])
    positions, result = gather_rows(offsets, picks)
    want = [k for row in picks for k in range(offsets[row], offsets[row + 1])]
    assert positions.tolist() == want
    assert np.diff(result).tolist() == [lengths[row] for row in picks]
    assert row_ids(offsets).tolist() == [r for r, n in enumerate(lengths) for _ in range(n)]


def test_text_views_with_nulls_are_texts_with_nulls():
    views = pa.table({"x": pa.array(["a", None, "bc"], pa.string_view())})
    column = Chunk.from_arrow(views)["x"]
    assert column.valid.tolist() == [True, False, True]
    assert column.values.to_arrow().to_pylist() == ["a", "", "bc"]


def test_numbers_are_not_copied_from_arrow():
    array = pa.array(np.arange(1000))
    column = Chunk.from_arrow(pa.table({"x": array}))["x"]
    assert column.ctypes.data == array.buffers()[1].address


def test_a_null_float_is_nan_and_a_null_list_is_empty():
    chunk = Chunk.from_arrow(pa.table({"x": [1.5, None], "l": [None, [1]]}))
    assert np.isnan(chunk["x"]).tolist() == [False, True]
    assert chunk["l"].tolist() == [[], [1]]


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="equal lengths"):
        Chunk({"a": np.arange(2), "b": np.arange(3)})


def test_concatenating_one_chunk_gives_its_rows():
    assert Chunk.concat([Chunk({"a": np.arange(2)})])["a"].tolist() == [0, 1]


def test_chunks_with_different_columns_do_not_concatenate():
    with pytest.raises(ValueError, match="chunks have different columns"):
        Chunk.concat([Chunk({"a": np.arange(2)}), Chunk({"b": np.arange(2)})])
    with pytest.raises(TypeError, match="only columns of one kind can be concatenated"):
        Chunk.concat(
            [
                Chunk({"a": np.arange(2)}),
                chunk_of([])
                .select(["s"])
                .with_columns({"a": Strings(np.zeros(0, np.uint8), np.zeros(1, np.int64))})
                .select(["a"]),
            ]
        )


def test_an_unknown_column_and_an_unknown_type_are_named():
    with pytest.raises(KeyError, match="no column 'b'; the chunk has"):
        Chunk({"a": np.arange(2)})["b"]
    with pytest.raises(TypeError, match="struct"):
        Chunk.from_arrow(pa.table({"a": [{"x": 1}]}))
    with pytest.raises(TypeError, match="lists of lists"):
        Chunk.from_arrow(pa.table({"a": [[[1]]]}))


def test_nbytes_counts_values_offsets_and_masks():
    ragged = Ragged(np.zeros(3, np.int32), np.zeros(3, np.int64))
    masked = Masked(np.zeros(2, np.int64), np.zeros(2, bool))
    assert Chunk({"r": ragged, "m": masked}).nbytes == 12 + 24 + 16 + 2
