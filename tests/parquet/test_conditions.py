"""The rule by which filters compare numbers, and what tells two filters apart."""

import math
import tempfile
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tutorlib.parquet import ParquetSource
from tutorlib.parquet.source import COMPARE, MEMBERSHIP

TYPES = ["float16", "float32", "float64", "int8", "int64", "uint64", "bool"]
EDGES = [0, 1, -1, 127, 128, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64]
NUMBERS = st.one_of(
    st.sampled_from([*EDGES, *map(float, EDGES), *(-e for e in EDGES), 10**400, -(10**400)]),
    st.sampled_from([0.1, 0.2, 0.3, 2.5, -2.5, -0.0, 1e300, math.inf, -math.inf, 65504.0, True]),
    st.integers(-3, 3),
)


def exact(value):
    return value if isinstance(value, float) and not math.isfinite(value) else Fraction(value)


def as_stored(dtype, value):
    """The value as the rule compares it with a column: rounded to floats, exact for integers."""
    if dtype.kind != "f":
        return exact(value)
    try:
        with np.errstate(over="ignore"):
            return exact(float(dtype.type(float(value))))
    except OverflowError:
        return math.copysign(math.inf, 1 if value > 0 else -1)


def passes(dtype, cell, comparison, value):
    if cell is None or cell != cell:
        return False
    cell = exact(cell)
    if comparison in MEMBERSHIP:
        return (cell in [as_stored(dtype, one) for one in value]) == (comparison == "in")
    return bool(COMPARE[comparison](cell, as_stored(dtype, value)))


def column(dtype, numbers):
    """The numbers that the type holds, a null, and a NaN if it has one."""
    if dtype.kind == "b":
        return pa.array([False, True, None])
    if dtype.kind == "f":
        kept = [float(n) for n in numbers if abs(n) < 10**300] + [math.nan]
        with np.errstate(over="ignore"):
            values = pa.array(np.array(kept, dtype))
        return pa.concat_arrays([values, pa.nulls(1, values.type)])
    limits = np.iinfo(dtype)
    whole = [int(n) for n in numbers if math.isfinite(n) and n == math.floor(n)]
    return pa.array([*(n for n in whole if limits.min <= n <= limits.max), None], dtype.name)


@settings(max_examples=150, deadline=None)
@given(
    dtype=st.sampled_from(TYPES).map(np.dtype),
    cells=st.lists(NUMBERS.filter(lambda n: abs(n) < 10**300 or not isinstance(n, int))),
    comparison=st.sampled_from([*COMPARE, *MEMBERSHIP]),
    value=NUMBERS,
    more=st.lists(NUMBERS, max_size=2),
)
@example(np.dtype("float32"), [0.1, 0.2, 0.3], "==", 0.1, [])
@example(np.dtype("float32"), [0.1, 0.2, 0.3], "<=", 0.1, [])
@example(np.dtype("int64"), [2**53, 2**53 + 1], "==", 2.0**53, [])
@example(np.dtype("uint64"), [2**64 - 1, 5], ">", -1, [])
@example(np.dtype("float64"), [0.0, -0.0], "in", 0, [])
def test_a_filter_compares_numbers_by_the_rule(dtype, cells, comparison, value, more):
    table = pa.table({"x": column(dtype, cells)})
    table = table.append_column("row", pa.array(np.arange(len(table))))
    condition = [("x", comparison, [value, *more] if comparison in MEMBERSHIP else value)]
    want = [
        row
        for row, cell in enumerate(table["x"].to_pylist())
        if passes(dtype, None if cell is None else cell, comparison, condition[0][2])
    ]
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, f"{folder}/x.parquet", row_group_size=2)
        chunks = ParquetSource(folder, filters=condition).chunks(["row"])
        assert [row for chunk in chunks for row in chunk["row"].tolist()] == want


@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_nan_is_refused_as_a_value(tmp_path, kind):
    table = pa.table({"x": pa.array([1, 2], kind)})
    pq.write_table(table, tmp_path / "x.parquet")
    for condition in ([("x", "==", math.nan)], [("x", "in", [1, math.nan])]):
        with pytest.raises(ValueError, match=r"compares with numbers other than NaN, got .*nan"):
            ParquetSource(tmp_path, filters=condition)


VALUES = list(range(60))
OTHERS = [*range(30), 1000, *range(31, 60)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("x", "in", VALUES)], [("x", "in", OTHERS)]),
        (pc.field("x").isin(VALUES), pc.field("x").isin(OTHERS)),
        ([("x", "in", VALUES * 30)], [("x", "in", VALUES * 29 + OTHERS)]),
        ([("y", "<", 0.1)], [("y", "<", 0.1 + 2**-56)]),
        (pc.field("y") < 0.1, pc.field("y") < 0.1 + 2**-56),
    ],
    ids=["list", "expression", "long list", "last digit", "last digit of an expression"],
)
def test_the_fingerprints_of_two_filters_differ(tmp_path, one, other):
    pq.write_table(pa.table({"x": range(100), "y": np.linspace(0, 1, 100)}), tmp_path / "x.parquet")

    def fingerprint(filters):
        return ParquetSource(tmp_path, filters=filters).fingerprint()["filters"]

    assert fingerprint(one) == fingerprint(one)
    assert fingerprint(one) != fingerprint(other)
    assert len(fingerprint(one)) < 1100
