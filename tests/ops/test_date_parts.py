"""DateParts: parts of dates, equal to pandas', the same offline, in the loader and served."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.columns import Chunk, Masked
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Categorify, DateParts, Normalize
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow

REFERENCE = datetime.datetime(2024, 2, 29, 6, 30)
DATES = {"quarter": 4, "month": 12, "week": 53, "day": 31, "weekday": 7, "day_of_year": 366}
TIMES = {"hour": 24, "minute": 60, "second": 60}


def by_pandas(times):
    index = pd.DatetimeIndex(times)
    age = (pd.Timestamp(REFERENCE) - index).total_seconds()
    return {
        "quarter": index.quarter - 1,
        "month": index.month - 1,
        "week": index.isocalendar().week.to_numpy().astype(int) - 1,
        "day": index.day - 1,
        "weekday": index.weekday,
        "day_of_year": index.dayofyear - 1,
        "hour": index.hour,
        "minute": index.minute,
        "second": index.second,
        "year": index.year,
        "age_days": age / 86_400,
        "age_seconds": age,
    }


@pytest.mark.parametrize("unit", ["D", "s", "ms", "us", "ns"])
@pytest.mark.parametrize("typed", [True, False], ids=["dates", "integers"])
def test_each_part_is_that_of_pandas_before_and_after_1970(unit, typed):
    seconds = np.random.default_rng(0).integers(-5_000_000_000, 5_000_000_000, 20_000)
    times = seconds.astype("datetime64[s]").astype(f"datetime64[{unit}]")
    sizes = DATES if unit == "D" else DATES | TIMES
    parts = [*sizes, "year", "age_days", "age_seconds"]
    op = DateParts(parts, REFERENCE, unit=None if typed else unit)
    chunk = Chunk({"t": times if typed else times.view(np.int64)})
    group = ["t"] >> op
    made, want = group.transform(chunk), by_pandas(times)
    assert made.names == group.output_names == [f"t_{part}" for part in parts]
    for part in parts:
        values = made[f"t_{part}"]
        if part in sizes:
            assert values.dtype == np.int32
            np.testing.assert_array_equal(values, np.asarray(want[part]) + 2, part)
        else:
            np.testing.assert_array_equal(values, np.asarray(want[part]).astype("float32"), part)
    fitted = Workflow(group).fit(chunk)
    known = {c.name: c.cardinality for c in fitted.output_schema.categorical}
    assert known == {f"t_{part}": size + 2 for part, size in sizes.items()}
    assert fitted.output_schema.continuous.names == ["t_year", "t_age_days", "t_age_seconds"]


def table():
    moments = [datetime.datetime(1969, 12, 31, 23, 59, 58), None, datetime.datetime(2024, 2, 29, 7)]
    zoned = pa.timestamp("ns", "America/New_York")
    return pa.table(
        {
            "day": pa.array(moments).cast(pa.date32(), safe=False),
            "ms": pa.array(moments, pa.timestamp("ms")),
            "zoned": pa.array(moments, pa.timestamp("ns")).cast(zoned),
            "clock": pa.array([datetime.time(23, 5), None, datetime.time(0)], pa.time64("us")),
            "took": pa.array([datetime.timedelta(days=2, hours=12), None, None], pa.duration("s")),
            "days": pa.array([[moments[0], None], [], None], pa.list_(pa.timestamp("s"))),
            "y": [0.0, 1.0, 0.0],
        }
    )


GROUPS = [
    ["day"] >> DateParts(["day", "weekday"]),
    ["ms", "zoned"] >> DateParts(["hour", "month", "age_seconds"], REFERENCE),
    ["clock", "took"] >> DateParts(["hour", "total_days"]),
    ["days"] >> DateParts(["second"]),
]


def test_offline_and_in_the_loader_and_served_the_parts_are_the_same(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet")
    workflow = Workflow(*GROUPS, ["y"], label_names=["y"]).fit(tmp_path)
    Workflow.load(workflow.save(tmp_path / "saved"))
    loaded = Workflow.load(tmp_path / "saved")
    chunk = ParquetSource(tmp_path / "a.parquet").read(0)
    offline = loaded.transform(chunk)
    assert offline["day_day"].tolist() == [32, 1, 30]
    assert offline["zoned_hour"].tolist() == [25, 1, 9]  # of UTC
    assert offline["clock_hour"].tolist() == [25, 1, 2]
    assert offline["took_total_days"].tolist()[:1] == [2.5]
    assert offline["days_second"].tolist() == [[60, 1], [], []]

    loader = KerasSequenceLoader(tmp_path / "a.parquet", 3, shuffle=False, nulls="fill")
    online = loader.map(loaded).peek()[0]
    layer = loaded.to_keras()
    raw = {}
    for name in layer.types:
        column = chunk[name]
        values = getattr(column, "offsets", None)
        if values is not None:
            raw[f"{name}__nnzs"] = np.diff(values)
            column, name = column.values, f"{name}__values"
        raw[name] = column.values.view(np.int64)
        raw[f"{name.removesuffix('__values')}__valid"] = column.valid
    served = layer(raw)
    assert served.keys() == online.keys()
    for name, values in online.items():
        found = np.nan_to_num(served[name].numpy())  # the loader fills NaN with 0
        np.testing.assert_array_equal(found, values.numpy(), name)
        assert served[name].dtype == values.dtype


def test_dates_are_keys_but_not_numbers():
    days = np.array(["2024-02-29", "1969-12-31"], "datetime64[D]")
    chunk = Chunk({"t": Masked(days, np.array([True, False]))})
    assert Workflow(["t"] >> Categorify()).fit(chunk).transform(chunk)["t"].tolist() == [3, 1]
    with pytest.raises(TypeError, match=r"'t': Normalize takes numbers, got datetime64\[D\]"):
        Workflow(["t"] >> Normalize()).fit(chunk)


@pytest.mark.parametrize(
    ("parts", "options", "words"),
    [
        ("hour", {}, "parts must be a list of names"),
        ([], {}, "parts must be a list of names"),
        (["hour", "hour"], {}, "each once"),
        (["Hour"], {}, r"parts are quarter, .* got \['Hour'\]"),
        (["age_days"], {}, r"\['age_days'\] need reference="),
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
        (pa.array(["2024-01-01"]), DateParts(["hour"]), "takes dates and times, got string"),
        (np.arange(2).astype("M8[D]"), DateParts(["hour"]), r"no 'hour' in datetime64\[D\]"),
        (np.arange(2).astype("M8[s]"), DateParts(["total_days"]), "no 'total_days' in datetime64"),
        (np.arange(2).astype("m8[s]"), DateParts(["month"]), r"no 'month' in timedelta64\[s\]"),
        (np.arange(2).astype("M8[s]"), DateParts(["day"], unit="ms"), "has unit='ms', but the col"),
    ],
)
def test_a_column_without_the_part_is_refused_by_name(column, op, words):
    if isinstance(column, pa.Array):
        column = Chunk.from_arrow(pa.table({"t": column}))["t"]
    with pytest.raises((TypeError, ValueError), match=f"column 't': DateParts .*{words}"):
        (["t"] >> op).transform(Chunk({"t": column}))
