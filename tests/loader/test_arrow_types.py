"""Every Arrow type as feature, label and unused column, alone, through a Workflow and served.

`docs/arrow_types.md` is this table for readers; a test holds the two equal.
"""

import datetime
import decimal
import re
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Categorify, Normalize
from tutorlib.workflow import Workflow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "arrow_types.md"
DAYS = [datetime.date(2024, 2, 29), datetime.date(2023, 5, 1), datetime.date(2024, 2, 29)]
MOMENTS = [datetime.datetime(2024, 2, 29, 7, 5), datetime.datetime(2023, 5, 1), None]
SPANS = [datetime.timedelta(days=2), datetime.timedelta(hours=5), None]
CLOCK = [datetime.time(23, 5), datetime.time(0), None]
DECIMALS = [decimal.Decimal("1.5"), decimal.Decimal("2.5"), decimal.Decimal("1.5")]
IDS = ("categorical feature", "label", "Categorify")
NUMBERS = ("continuous feature", "label", "Normalize")
TEXT = ("in a Workflow: turn them into ids", "in a Workflow", "Categorify")
LISTS = ("categorical feature (multi-hot)", "refused", "Categorify")


def refused(remedy, op="refused"):
    return (f"refused: {remedy}", "refused", op)


DATES = refused(
    "take numbers out of it in the data, as by pyarrow.compute.day_of_week", "Categorify"
)
SPANS_OF_TIME = refused("cast it to int64 (time32 to int32) in the data", "Categorify")
COMPOUND = refused("store its parts as columns of numbers or strings")
BINARY = refused(
    "cast it to string in the data if it holds text, else store v.hex() of each value v"
)
UUIDS = refused("store str(v) of each value v")
DECIMAL = refused("cast it to float64 in the data")
VIEW = refused("cast it to a list in the data")

# {Arrow type: (values, (as a feature, as a label, op that takes it in a Workflow))}
TYPES = {
    "bool": (pa.array([True, False, True]), ("continuous feature (0, 1)", "label", "Normalize")),
    **{
        f"{sign}int{bits}": (pa.array([1, 2, 1], getattr(pa, f"{sign}int{bits}")()), IDS)
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "float16": (pa.array([0.5, 1.5, 0.5]).cast(pa.float16()), NUMBERS),
    "float32": (pa.array([0.5, 1.5, 0.5], pa.float32()), NUMBERS),
    "float64": (pa.array([0.5, 1.5, 0.5]), NUMBERS),
    "decimal32": (pa.array(DECIMALS, pa.decimal32(5, 2)), DECIMAL),
    "decimal64": (pa.array(DECIMALS, pa.decimal64(12, 2)), DECIMAL),
    "decimal128": (pa.array(DECIMALS, pa.decimal128(20, 2)), DECIMAL),
    "decimal256": (pa.array(DECIMALS, pa.decimal256(50, 2)), DECIMAL),
    "string": (pa.array(["a", "b", "a"]), TEXT),
    "large_string": (pa.array(["a", "b", "a"], pa.large_string()), TEXT),
    "string_view": (pa.array(["a", "b", "a"], pa.string_view()), TEXT),
    "dictionary of string": (pa.array(["a", "b", "a"]).dictionary_encode(), TEXT),
    "dictionary of int64": (pa.array([1, 2, 1]).dictionary_encode(), IDS),
    "binary": (pa.array([b"a", b"b", b"a"]), BINARY),
    "large_binary": (pa.array([b"a", b"b", b"a"], pa.large_binary()), BINARY),
    "binary_view": (pa.array([b"a", b"b", b"a"], pa.binary_view()), BINARY),
    "fixed_size_binary": (
        pa.array([uuid.UUID(int=k).bytes for k in (1, 2, 1)], pa.binary(16)),
        BINARY,
    ),
    "uuid": (pa.array([uuid.UUID(int=k) for k in (1, 2, 1)], pa.uuid()), UUIDS),
    "date32": (pa.array(DAYS), DATES),
    "date64": (pa.array(DAYS, pa.date64()), DATES),
    "time32": (pa.array(CLOCK, pa.time32("s")), SPANS_OF_TIME),
    "time64": (pa.array(CLOCK, pa.time64("us")), SPANS_OF_TIME),
    "timestamp": (pa.array(MOMENTS, pa.timestamp("us")), DATES),
    "timestamp with time zone": (pa.array(MOMENTS, pa.timestamp("ns", "Europe/Paris")), DATES),
    "duration": (pa.array(SPANS, pa.duration("ms")), SPANS_OF_TIME),
    "list of integers": (pa.array([[1, 2], [], [1]]), LISTS),
    "list of strings": (pa.array([["a", "b"], [], ["a"]]), (TEXT[0], "refused", "Categorify")),
    "large_list of integers": (pa.array([[1], [], [2]], pa.large_list(pa.int64())), LISTS),
    "list of lists": (pa.array([[[1]], [], [[2]]]), COMPOUND),
    "list_view": (pa.array([[1], [], [2]], pa.list_view(pa.int64())), VIEW),
    "large_list_view": (pa.array([[1], [], [2]], pa.large_list_view(pa.int64())), VIEW),
    "struct": (pa.array([{"a": 1}] * 3), COMPOUND),
    "map": (pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())), COMPOUND),
    "null": (pa.nulls(3), refused("store values in it")),
}
REST = pa.table({"x": [0.5, 1.5, 2.5], "y": [0.0, 1.0, 0.0]})
OPS = {"Categorify": Categorify, "Normalize": Normalize}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("types")
    for name, (values, _) in TYPES.items():
        pq.write_table(REST.append_column("c", values), folder / f"{name}.parquet")
    return {name: str(folder / f"{name}.parquet") for name in TYPES}


def loader_of(path, label="y", **changes):
    return KerasSequenceLoader(path, 3, [label], shuffle=False, nulls="fill", **changes)


@pytest.mark.parametrize("name", TYPES)
def test_as_a_feature_it_comes_in_the_batch_or_is_refused_with_the_remedy(paths, name):
    as_feature = TYPES[name][1][0]
    kinds = [{"cont_names": ["c"]}] if as_feature.startswith("cont") else [{"cat_names": ["c"]}]
    if "feature" in as_feature.split(":")[0]:
        inputs, _ = loader_of(paths[name], **kinds[0]).peek()
        assert {key.partition("__")[0] for key in inputs} == {"c"}
        return
    remedy = as_feature.partition(": ")[2]
    with pytest.raises(ValueError, match=rf"column 'c'.*{re.escape(remedy)}"):
        loader_of(paths[name], **kinds[0]).peek()


@pytest.mark.parametrize("name", TYPES)
def test_as_a_label_it_comes_in_the_batch_or_is_refused_by_name(paths, name):
    loader = lambda: loader_of(paths[name], label="c", cont_names=["x"])  # noqa: E731
    if TYPES[name][1][1] == "label":
        labels = loader().peek()[1].numpy()[:, 0].astype(float)
        want = TYPES[name][0].cast(pa.float64()).to_pylist()
        np.testing.assert_array_equal(labels, want)
    else:
        with pytest.raises(ValueError, match="column 'c'"):
            loader().peek()


@pytest.mark.parametrize("name", TYPES)
def test_in_a_workflow_offline_online_and_served_agree_or_it_is_refused_by_name(paths, name):
    if TYPES[name][1][2] == "refused":
        for op in (Categorify(), Normalize()):
            with pytest.raises((TypeError, ValueError), match="column 'c'"):
                _ = Workflow(["c"] >> op).fit(paths[name]).output_schema
        return
    workflow = Workflow(["c"] >> OPS[TYPES[name][1][2]]()).fit(paths[name])
    loader = loader_of(paths[name]).map(workflow)
    online = loader.peek()[0]
    layer = workflow.to_keras()
    values = loader.source.read(0, ["c"])["c"]
    raw = {"c": values}
    if hasattr(values, "offsets") and not hasattr(values, "data"):
        raw = {"c__values": values.values, "c__nnzs": np.diff(values.offsets)}
    if hasattr(values, "valid") and hasattr(values, "values") and "c" in raw:
        raw = {"c": values.values, "c__valid": values.valid}
    raw = {k: v.to_arrow().to_pylist() if hasattr(v, "to_arrow") else v for k, v in raw.items()}
    for key, array in raw.items():  # a graph takes times as the integers that they count
        if getattr(array, "dtype", np.dtype("O")).kind in "mM":
            raw[key] = array.view(np.int64)
    served = layer(raw)
    for key in set(online) & set(served):
        found = np.nan_to_num(served[key].numpy())
        np.testing.assert_array_equal(found, np.asarray(online[key]), key)
    assert set(served) <= set(online)


@pytest.mark.parametrize("name", TYPES)
def test_unused_it_hinders_nothing(paths, name, tmp_path):
    inputs, labels = loader_of(paths[name], cont_names=["x"]).peek()
    assert (list(inputs), labels.shape) == (["x"], (3, 1))
    workflow = Workflow(["x"] >> Normalize(), ["y"], label_names=["y"])
    table = REST.append_column("c", TYPES[name][0])
    for source in (paths[name], table):
        fitted = workflow.fit(source)
    assert list(loader_of(paths[name], cont_names=["x"]).map(fitted).peek()[0]) == ["x"]
    written = fitted.transform_to_parquet(paths[name], tmp_path / "out")
    assert pq.read_table(sorted(written.glob("*.parquet"))[0]).column_names == ["x", "y"]


def page():
    lines = [
        "# Arrow types",
        "",
        "What becomes of a column of each type as a feature, as a label, and in a `Workflow`,",
        "offline, in the loader and served alike. A column that is not used does no harm,",
        "whatever its type. Errors name the column and the remedy. Each cell is checked by",
        "[tests/loader/test_arrow_types.py](../tests/loader/test_arrow_types.py).",
        "",
        "| type | feature | label | op in a Workflow |",
        "|---|---|---|---|",
        *(f"| {name} | {' | '.join(cells)} |" for name, (_, cells) in TYPES.items()),
        "",
        "Lists of numbers that all have one length k (fixed-size lists, tensors, lists of floats)",
        "are vectors: features and labels of shape [batch, k]. Fixed-size lists of integers are",
        "ids unless `cont_names` or `label_names` names them. Lists of floats of several lengths",
        "come as lists of ids do: see [its tests](../tests/loader/test_against_reference.py).",
        "",
        "Continuous features are float32, exact for integers up to 2**24 (16.8 million). Of larger",
        "ones the last digits are lost: of times in Unix seconds, the last two minutes. Take the",
        "difference to a start in the data first.",
        "",
        "Timestamps of Spark and Hive (INT96) are read in microseconds. A time beyond the year",
        "294,246 is an error that names its column. Arrow reads Julian day 0 (4713 BC) as",
        "1970-01-01: store a null instead.",
    ]
    return "\n".join(lines) + "\n"


def test_the_page_for_readers_is_this_table():
    assert PAGE.read_text(encoding="utf-8") == page()
