"""Ops on single values: each against NumPy or Python, with nulls and lists; all through JSON."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ops_helpers import FEW, INTEGERS, NUMBERS, TEXTS, bits, chunk_of, column, learned, plain
from oracles import MASK, hash_text, mix

from tutorlib.chunk import Chunk, Ragged
from tutorlib.ops import (
    Bucketize,
    Categorify,
    Clip,
    DifferenceLag,
    Dropna,
    FillMedian,
    FillMissing,
    Filter,
    HashBucket,
    HashedCross,
    JoinExternal,
    JoinGroupby,
    LambdaOp,
    LearningOp,
    ListSlice,
    LogOp,
    Normalize,
    NormalizeMinMax,
    Op,
    Rename,
    RowOp,
    Select,
    TargetEncoding,
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
@given(st.one_of(WHOLE, st.lists(TEXTS, min_size=1)), LISTS, st.integers(1, 2**31 - 1))
def test_hash_bucket_equals_its_definition(values, lengths, buckets):
    texts = any(isinstance(value, str) for value in values)
    hashed = [v if v is None else hash_text(v) if texts else mix(v & MASK) for v in values]
    want = [0 if h is None else ((h >> 32) * buckets) >> 32 for h in hashed]
    check(HashBucket(buckets), values, pa.string() if texts else pa.int64(), lengths, want)


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


# ------------------------------------------------------------------------------------ through JSON


def double(values):
    return values * 2


def even(chunk):
    return chunk["n"] % 2 == 0


CHUNK = chunk_of(
    n=[3, 1, 3, 2], m=[1, 1, 2, 2], x=[0.5, 2.0, None, 1.0], t=["a", "b", None, "a"],
    lists=[[1, 2], [], [3], [1]], y=[1, 0, 1, 1], row=[0, 1, 2, 3],
)  # fmt: skip
TABLE = pa.table({"n": [1, 2, 3], "year": [1999, None, 2001]})
OPS = {
    "Bucketize": (["x"], Bucketize({"x": np.array([0.5, 1])})),
    "Categorify": (["n", "t"], Categorify(1, {"n": 9}, 2, {"t": ["b", "a"]})),
    "Clip": (["x"], Clip(max_value=np.float32(1.5))),
    "DifferenceLag": (["x"], DifferenceLag(["n", "t"], 2, "float64")),
    "FillMedian": (["x", "n"], FillMedian(True, 100)),
    "FillMissing": (["t"], FillMissing("?", True)),
    "HashBucket": (["n"], HashBucket({"n": np.int64(9)})),
    "HashedCross": (["n", "t"], HashedCross(99, "nt")),
    "JoinExternal": (["n"], JoinExternal(TABLE, "n", ["year"])),
    "JoinGroupby": (["n", "t"], JoinGroupby(["x"], ["count", "std"], True, "nt", "float64")),
    "LambdaOp": (["n"], LambdaOp(double, "int64")),
    "ListSlice": (["lists"], ListSlice(-2, None, True, 9)),
    "LogOp": (["x"], LogOp("float16")),
    "Normalize": (["x"], Normalize("float64")),
    "NormalizeMinMax": (["x"], NormalizeMinMax("float16")),
    "Rename": (["n", "m"], Rename({"n": "k"}, "_raw")),
    "Select": (["n", "m"], Select(["m"])),
    "TargetEncoding": (["t"], TargetEncoding(["y", "x"], "row", 2, 0.5, 0.25, 7, dtype="float64")),
}
ROW_OPS = {
    "Dropna": Dropna(["t", "x"]),
    "Filter": Filter([[("n", "in", {3, 1}), ("x", ">", np.float32(0.5))], [("t", "==", "a")]]),
}


def test_every_op_is_among_these_examples():
    ours = {name for name, kind in Op.registry.items() if kind.__module__.startswith("tutorlib.")}
    assert OPS.keys() == {name for name in ours if not inspect_abstract(Op.registry[name])}
    assert ROW_OPS.keys() == RowOp.registry.keys()


def inspect_abstract(kind):
    return kind.__name__.startswith("_") or bool(kind.__abstractmethods__)


@pytest.mark.parametrize("name", OPS)
def test_an_op_is_the_same_after_json_and_its_tables(name):
    names, op = OPS[name]
    group = learned(names >> op, CHUNK) if isinstance(op, LearningOp) else names >> op
    op = group.ops[0]
    config, small = json.loads(json.dumps([op.get_config(), op.learned()]))
    tables = {key: Chunk.from_arrow(table.to_arrow()) for key, table in op.learned_tables().items()}
    again = type(op).from_config(config, tables, {"double": double})
    if isinstance(op, LearningOp):
        assert again.unlearned(names) == [n for n in names if (name, n) != ("Categorify", "t")]
    again.restore(small, tables)
    assert again.unlearned(names) == []
    assert bits(again) == bits(op)
    assert again.get_config() == op.get_config()
    beside = CHUNK.select([*names, *op.beside])
    assert again.output_names(names) == op.transform(beside).names
    for out, want in zip(
        again.transform(beside).values(), op.transform(beside).values(), strict=True
    ):
        assert plain(out) == plain(want)
        assert type(out) is type(want)


@pytest.mark.parametrize("name", ROW_OPS)
def test_a_row_op_is_the_same_after_json(name):
    op = ROW_OPS[name]
    again = type(op).from_config(json.loads(json.dumps(op.get_config())), {})
    assert again.get_config() == op.get_config()
    assert again.names == op.names
    assert again.keep(CHUNK).tolist() == op.keep(CHUNK).tolist()


def test_a_filter_by_a_function_is_the_same_after_json():
    op = Filter(even, ["n"])
    again = Filter.from_config(json.loads(json.dumps(op.get_config())), {"even": even})
    assert again.keep(CHUNK).tolist() == [False, False, False, True]


NUMBERS_OUT = {
    "JoinGroupby",
    "TargetEncoding",
    "DifferenceLag",
    "Normalize",
    "NormalizeMinMax",
    "LogOp",
}


@pytest.mark.parametrize("name", sorted(NUMBERS_OUT))
def test_numbers_computed_come_out_as_float32_unless_asked(name):
    names, op = OPS[name]
    config = {k: v for k, v in op.get_config().items() if k != "dtype"}
    plain_op = type(op)(**config)
    group = names >> plain_op
    if isinstance(plain_op, LearningOp):
        learned(group, CHUNK)
    out = group.transform(CHUNK.select(group.input_names))
    assert {values.dtype for values in out.values()} == {np.dtype(np.float32)}
