"""Every op is the same after its settings went through JSON and what it learned through tables."""

import json

import numpy as np
import pyarrow as pa
import pytest

from tests.support.ops import bits, chunk_of, learned, plain
from tutorlib import ops
from tutorlib.columns import Chunk


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
    "Bucketize": (["x"], ops.Bucketize({"x": np.array([0.5, 1])})),
    "Categorify": (["n", "t"], ops.Categorify(1, {"n": 9}, 2, {"t": ["b", "a"]})),
    "Clip": (["x"], ops.Clip(max_value=np.float32(1.5))),
    "DateParts": (["n"], ops.DateParts(["month", "age_days"], np.datetime64("2024-05-06"), "s")),
    "FillMedian": (["x", "n"], ops.FillMedian(True, 100)),
    "FillMissing": (["t"], ops.FillMissing("?", True)),
    "HashBucket": (["n"], ops.HashBucket({"n": np.int64(9)})),
    "HashedCross": (["n", "t"], ops.HashedCross(99, "nt")),
    "JoinExternal": (["n"], ops.JoinExternal(TABLE, "n", ["year"])),
    "JoinGroupby": (["n", "t"], ops.JoinGroupby(["x"], ["count", "std"], True, "nt", "float64")),
    "LabelEncoder": (["n", "t", "x"], ops.LabelEncoder({"x": np.array([0.5, 1, 2])}, -1)),
    "LambdaOp": (["n"], ops.LambdaOp(double, "int64")),
    "ListSlice": (["lists"], ops.ListSlice(-2, None, True, 9)),
    "LogOp": (["x"], ops.LogOp("float16")),
    "Normalize": (["x"], ops.Normalize("float64")),
    "NormalizeMinMax": (["x"], ops.NormalizeMinMax("float16")),
    "Rename": (["n", "m"], ops.Rename({"n": "k"}, "_raw")),
    "Select": (["n", "m"], ops.Select(["m"])),
    "TargetEncoding": (
        ["t"],
        ops.TargetEncoding(["y", "x"], "row", 2, 0.5, 0.25, 7, dtype="float64"),
    ),
}
ROW_OPS = {
    "Dropna": ops.Dropna(["t", "x"]),
    "Filter": ops.Filter([[("n", "in", {3, 1}), ("x", ">", np.float32(0.5))], [("t", "==", "a")]]),
}


GIVEN = {"Categorify": "t", "LabelEncoder": "x"}  # {op: column that does not learn}


def test_every_op_is_among_these_examples():
    assert OPS.keys() == ops.OPS.keys()
    assert ROW_OPS.keys() == ops.ROW_OPS.keys()


@pytest.mark.parametrize("name", OPS)
def test_an_op_is_the_same_after_json_and_its_tables(name):
    names, op = OPS[name]
    group = learned(names >> op, CHUNK) if isinstance(op, ops.LearningOp) else names >> op
    op = group.ops[0]
    config, small = json.loads(json.dumps([op.get_config(), op.learned()]))
    tables = {key: Chunk.from_arrow(table.to_arrow()) for key, table in op.learned_tables().items()}
    again = type(op).from_config(config, tables, {"double": double})
    if isinstance(op, ops.LearningOp):
        assert again.unlearned(names) == [n for n in names if n != GIVEN.get(name)]
    again.restore(small, tables)
    assert again.unlearned(names) == []
    assert bits(again) == bits(op)
    assert again.get_config() == op.get_config()
    extra_columns = CHUNK.select([*names, *op.extra_columns])
    assert again.output_names(names) == op.transform(extra_columns).names
    for out, want in zip(
        again.transform(extra_columns).values(), op.transform(extra_columns).values(), strict=True
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
    op = ops.Filter(even, ["n"])
    again = ops.Filter.from_config(json.loads(json.dumps(op.get_config())), {"even": even})
    assert again.keep(CHUNK).tolist() == [False, False, False, True]


NUMBERS_OUT = {
    "JoinGroupby",
    "TargetEncoding",
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
    if isinstance(plain_op, ops.LearningOp):
        learned(group, CHUNK)
    out = group.transform(CHUNK.select(group.input_names))
    assert {values.dtype for values in out.values()} == {np.dtype(np.float32)}
