"""ListSlice equals Python's slices, DateParts the parts of pandas."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import chunk_of
from tests.support.ops_strategies import FEW, INTEGERS, TEXTS
from tutorlib.columns import Chunk
from tutorlib.ops import Categorify, DateParts, ListSlice, Normalize
from tutorlib.workflow import Workflow


@FEW
@given(
    st.one_of(
        st.lists(st.lists(INTEGERS, max_size=6), min_size=1),
        st.lists(st.lists(TEXTS, max_size=6), min_size=1),
    ),
    st.integers(-5, 5),
    st.none() | st.integers(-5, 5),
)
def test_list_slice_equals_pythons_slices(lists, start, end):
    texts = any(isinstance(value, str) for values in lists for value in values)
    chunk = chunk_of(t=(lists, pa.list_(pa.string() if texts else pa.int64())))
    out = (["t"] >> ListSlice(start, end)).transform(chunk)["t"].tolist()
    assert out == [values[start:end] for values in lists]


def test_list_slice_keeps_the_cardinality_of_ids_and_refuses_single_values():
    fitted = Workflow(["t"] >> Categorify() >> ListSlice(0, 2)).fit(chunk_of(t=[["a", "b", "a"]]))
    assert fitted.output_schema["t"].cardinality == 5
    with pytest.raises(TypeError, match="'x': ListSlice takes lists, got float64"):
        (["x"] >> ListSlice(1)).transform(chunk_of(x=[0.5]))


REFERENCE = datetime.datetime(2024, 2, 29, 6, 30)
DATES = {"month": 12, "day": 31, "weekday": 7}
TIMES = {"hour": 24, "minute": 60, "second": 60}


@pytest.mark.parametrize("unit", ["D", "s", "ms", "us", "ns"])
@pytest.mark.parametrize("typed", [True, False], ids=["dates", "integers"])
def test_each_part_is_that_of_pandas_before_and_after_1970(unit, typed):
    seconds = np.random.default_rng(0).integers(-5_000_000_000, 5_000_000_000, 20_000)
    times = seconds.astype("datetime64[s]").astype(f"datetime64[{unit}]")
    sizes = DATES if unit == "D" else DATES | TIMES
    op = DateParts([*sizes, "year", "age_days"], REFERENCE, unit=None if typed else unit)
    chunk = Chunk({"t": times if typed else times.view(np.int64)})
    fitted = Workflow(["t"] >> op).fit(chunk)
    made, index = fitted.transform(chunk), pd.DatetimeIndex(times)
    for part, size in sizes.items():
        want = np.asarray(getattr(index, part)) + (1 if part in ("month", "day") else 2)
        np.testing.assert_array_equal(made[f"t_{part}"], want, part)
        column = fitted.output_schema[f"t_{part}"]
        assert (column.cardinality, made[f"t_{part}"].dtype.name) == (size + 2, column.dtype)
    np.testing.assert_array_equal(made["t_year"], index.year.astype("float32"))
    age = (pd.Timestamp(REFERENCE) - index).total_seconds() / 86_400
    np.testing.assert_array_equal(made["t_age_days"], age.astype("float32"))


def test_nulls_time_zones_durations_and_lists():
    moments = [datetime.datetime(1969, 12, 31, 23, 59, 58), None, datetime.datetime(2024, 2, 29, 7)]
    zoned = pa.array(moments, pa.timestamp("ns")).cast(pa.timestamp("ns", "America/New_York"))
    table = pa.table(
        {
            "day": pa.array(moments).cast(pa.date32(), safe=False),
            "zoned": zoned,
            "clock": pa.array([datetime.time(23, 5), None, datetime.time(0)], pa.time64("us")),
            "took": pa.array([datetime.timedelta(days=2, hours=12), None, None], pa.duration("s")),
            "days": pa.array([[moments[0], None], [], None], pa.list_(pa.timestamp("s"))),
        }
    )
    workflow = Workflow(
        ["day"] >> DateParts(["day"]),
        ["zoned", "days"] >> DateParts(["hour"]),
        ["clock", "took"] >> DateParts(["minute", "total_seconds"]),
    )
    out = workflow.fit(table).transform(table)
    assert out["day_day"].tolist() == [32, 1, 30]
    assert out["zoned_hour"].tolist() == [25, 1, 9]  # of UTC
    assert out["days_hour"].tolist() == [[25, 1], [], []]
    assert out["clock_minute"].tolist() == [7, 1, 2]
    assert str(out["took_total_seconds"].tolist()) == "[216000.0, nan, nan]"


def test_dates_are_keys_but_not_numbers():
    days = chunk_of(t=[datetime.date(2024, 2, 29), None])
    assert Workflow(["t"] >> Categorify()).fit(days).transform(days)["t"].tolist() == [3, 1]
    with pytest.raises(TypeError, match=r"'t': Normalize takes numbers, got datetime64\[D\]"):
        Workflow(["t"] >> Normalize()).fit(days)


@pytest.mark.parametrize(
    ("parts", "options", "words"),
    [
        ("hour", {}, "parts must be a list of names"),
        ([], {}, "parts must be a list of names"),
        (["hour", "hour"], {}, "each once"),
        (["Hour"], {}, r"parts are month, .* got \['Hour'\]"),
        (["age_days"], {}, "'age_days' needs reference="),
        (["age_days"], {"reference": "yesterday"}, "got 'yesterday'"),
        (["hour"], {"unit": "h"}, "unit must be 'D', 's', 'ms', 'us' or 'ns', got 'h'"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(parts, options, words):
    with pytest.raises(ValueError, match=words):
        DateParts(parts, **options)


@pytest.mark.parametrize(
    ("column", "op", "words"),
    [
        (np.arange(2), DateParts(["hour"]), "takes int64 only with unit=, such as unit='s'"),
        (np.ones(2), DateParts(["hour"]), "takes dates and times, got float64"),
        (np.arange(2).astype("M8[D]"), DateParts(["hour"]), r"no 'hour' in datetime64\[D\]"),
        (np.arange(2).astype("M8[s]"), DateParts(["total_seconds"]), "no 'total_seconds' in datet"),
        (np.arange(2).astype("m8[s]"), DateParts(["month"]), r"no 'month' in timedelta64\[s\]"),
        (np.arange(2).astype("M8[s]"), DateParts(["day"], unit="ms"), "has unit='ms', but the col"),
    ],
)
def test_a_column_without_the_part_is_refused_by_name(column, op, words):
    with pytest.raises((TypeError, ValueError), match=f"column 't': DateParts .*{words}"):
        (["t"] >> op).transform(Chunk({"t": column}))
