"""Texts read as codes of a dictionary are the texts that are in the file."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops_strategies import FEW, TEXTS
from tutorlib.columns import (
    EncodedStrings,
    Masked,
    column_from_arrow,
    column_to_arrow,
    encoded_column,
)
from tutorlib.ops import Categorify, FillMissing, HashBucket, LabelEncoder
from tutorlib.ops.keys import integers_as_strings, strings_as_integers
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow

WORDS = ["b", "", None, "Müller", "b", "東京", None, "b", "a", ""]


KINDS = {
    "a dictionary": ({}, pa.string()),
    "no dictionary": ({"use_dictionary": False}, pa.string()),
    "two pages": ({"dictionary_pagesize_limit": 4, "data_page_size": 8}, pa.string()),
    "differences": ({"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}, pa.string()),
    "large strings": ({}, pa.large_string()),
    "string views": ({}, pa.string_view()),
    "an Arrow dictionary": ({}, pa.dictionary(pa.int8(), pa.string())),
}


@FEW
@given(st.lists(TEXTS, max_size=30), st.lists(st.integers(0, 29), max_size=9), st.integers(0, 30))
def test_encoded_texts_do_what_texts_do(texts, rows, end):
    array = pa.array(texts, pa.string())
    column, want = encoded_column(array), column_from_arrow(array)
    rows = np.array([row for row in rows if row < len(texts)], np.int64)
    end = min(end, len(texts))
    for have, other in (
        (column, want),
        (column.take(rows), want.take(rows)),
        (column.slice(1, end), want.slice(1, end)) if end else (column, want),
        (pickle.loads(pickle.dumps(column)), want),
    ):
        assert have.tolist() == other.tolist()
        assert column_to_arrow(have).to_pylist() == column_to_arrow(other).to_pylist()
        assert len(have) == len(other)


HEX_DIGITS = st.text("0123456789abcdef", min_size=8, max_size=8)


@FEW
@given(st.lists(HEX_DIGITS | st.sampled_from(["Müller!", "東京00", "abc", ""])), st.integers(0, 3))
def test_strings_of_8_bytes_are_integers_and_back(texts, start):
    strings = pa.array(texts, pa.large_string())[start:]  # a slice may begin at an odd address
    integers = strings_as_integers(strings)
    assert (integers is not None) == ({len(text.encode()) for text in texts[start:]} == {8})
    if integers is not None:
        assert integers_as_strings(integers) == strings
        assert len(integers.unique()) == len(strings.unique())


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_gives_the_texts_of_the_file_in_whatever_encoding(kind, tmp_path):
    options, arrow_type = KINDS[kind]
    texts = pa.array(WORDS).cast(arrow_type) if arrow_type != pa.string() else pa.array(WORDS)
    table = pa.table({"t": texts, "n": range(10), "l": [["x", "y"]] * 10})
    if "column_encoding" in options:
        options = {**options, "column_encoding": {"t": options["column_encoding"]}}
    path = tmp_path / "texts.parquet"
    pq.write_table(table, path, row_group_size=6, **options)
    plain = ParquetSource(path)
    encoded = plain.with_strings_as(encoded_column)
    for position, start, stop in ((0, 0, 6), (1, 0, 4), (0, 2, 5), (0, 3, 3)):
        have = encoded.read(position, None, start, stop)
        assert have["t"].tolist() == WORDS[6 * position :][start:stop]
        for name, column in plain.read(position, ["n", "l"], start, stop).items():
            assert have[name].tolist() == column.tolist()
        column = have["t"].values if isinstance(have["t"], Masked) else have["t"]
        assert isinstance(column, EncodedStrings)
    assert encoded.fingerprint() == plain.fingerprint()
    assert pickle.loads(pickle.dumps(encoded)).read(1)["t"].tolist() == WORDS[6:]


def test_a_file_that_stays_open_is_not_lent_to_who_reads_its_texts_otherwise(tmp_path):
    pq.write_table(pa.table({"t": WORDS}), tmp_path / "texts.parquet")
    plain = ParquetSource(tmp_path)
    encoded = plain.with_strings_as(encoded_column)
    for source in (plain, encoded, plain, encoded):
        column = source.table(0, ["t"])["t"]
        assert pa.types.is_dictionary(column.type) == (source is encoded)
        assert column.to_pylist() == WORDS


def test_texts_that_pass_through_come_out_as_ever(tmp_path):
    path = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"t": WORDS, "u": ["x"] * 10}), path, row_group_size=3)
    made = Workflow(["t"] >> FillMissing("b"), ["u"]).fit(path)
    made.transform_to_parquet(path, tmp_path / "out", shuffle_seed=1)
    out = pq.read_table(tmp_path / "out/part_00000.parquet")
    assert out.schema.types == [pa.large_string()] * 2
    assert sorted(out["t"].to_pylist()) == sorted(w or ("b" if w is None else "") for w in WORDS)


IRREGULAR = {
    "a null": (["a", None, "b"], [0, 1, 2, 0]),
    "twice": (["a", "a", "b"], [0, 1, 2, None]),
    "both": (["a", None, "a"], [2, 1, 0, None]),
    "nulls alone": ([None], [0, 0, 0, 0]),
    "integers": ([5, None, 5], [0, 1, 2, None]),
}
OPS = {
    "Categorify": lambda: Categorify(),
    "LabelEncoder": lambda: LabelEncoder(),
    "HashBucket": lambda: HashBucket(99),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", IRREGULAR)
def test_a_dictionary_with_a_null_or_a_value_twice_is_its_values(tmp_path, case, op):
    values, codes = IRREGULAR[case]
    kind = pa.int64() if case == "integers" else pa.string()
    irregular = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(values, kind))
    plain = pa.array(irregular.to_pylist(), kind)
    tables = [pa.table({"c": c, "y": [0.5, 1, 0, 1]}) for c in (irregular, plain)]
    if (case, op) == ("nulls alone", "LabelEncoder"):
        with pytest.raises(ValueError, match="'c': LabelEncoder found no value"):
            Workflow(["c"] >> OPS[op]()).fit(tables[0])
        return
    want = Workflow(["c"] >> OPS[op]()).fit(tables[1]).transform(tables[1])
    fitted = Workflow(["c"] >> OPS[op]()).fit(tables[0])
    folder = fitted.transform_to_parquet(tables[0], tmp_path / "out")
    for got in (fitted.transform(tables[0]), ParquetSource(folder).read(0)):
        assert [c.tolist() for c in got.values()] == [c.tolist() for c in want.values()]
    (read,) = ParquetSource(tables[0]).chunks(["c"])
    assert read["c"].tolist() == plain.to_pylist()
