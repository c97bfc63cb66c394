"""Filter, Dropna: which rows stay."""

import operator

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import chunk_of, plain, through_disk
from tests.support.ops_strategies import FEW, INTEGERS, NUMBERS, TEXTS
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import (
    Categorify,
    Dropna,
    FillMissing,
    Filter,
    Normalize,
)
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow


def test_dropna_by_hand():
    chunk = chunk_of(
        n=[1, None, 3, 4, 5],
        x=[0.5, 1.5, None, 2.5, 3.5],
        s=["a", "b", "c", None, ""],
        tags=[[1], [2], [3], [4], []],
        row=[0, 1, 2, 3, 4],
    )
    for names, rows in {
        "n": [0, 2, 3, 4], "x": [0, 1, 3, 4], "s": [0, 1, 2, 4], "tags": [0, 1, 2, 3],
        "row": [0, 1, 2, 3, 4],
    }.items():  # fmt: skip
        assert Dropna([names]).apply(chunk)["row"].tolist() == rows
    out = Dropna(["n", "x", "s", "tags"]).apply(chunk)
    assert {name: plain(values) for name, values in out.items()} == {
        "n": [1], "x": [0.5], "s": ["a"], "tags": [[1]], "row": [0],
    }  # fmt: skip


def test_dropna_leaves_a_list_with_a_null_and_drops_a_null_list():
    chunk = chunk_of(tags=([[None], None, [1]], pa.list_(pa.int64())), row=[0, 1, 2])
    assert Dropna(["tags"]).apply(chunk)["row"].tolist() == [0, 2]


ROWS = st.lists(st.tuples(INTEGERS, TEXTS, NUMBERS), max_size=20)


COMPARE = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "in": lambda a, b: a in b, "not in": lambda a, b: a not in b,
}  # fmt: skip


def table(rows):
    numbers, texts, values = zip(*rows, strict=True) if rows else ((), (), ())
    return chunk_of(
        n=(numbers, pa.int64()), t=(texts, pa.string()), x=(values, pa.float64()),
        row=(range(len(rows)), pa.int64()),
    )  # fmt: skip


@st.composite
def comparisons(draw):
    name, values = draw(
        st.sampled_from([("n", st.integers(-3, 3)), ("t", st.sampled_from(["", "a", "b"])),
                         ("x", st.integers(-3, 3).map(float))])
    )  # fmt: skip
    comparison = draw(st.sampled_from(sorted(COMPARE)))
    many = comparison in ("in", "not in")
    return name, comparison, draw(st.lists(values, max_size=3) if many else values)


@FEW
@given(ROWS, st.lists(st.lists(comparisons(), min_size=1, max_size=2), min_size=1, max_size=2))
def test_filter_equals_the_comparisons_in_python(rows, condition):
    def met(row, name, comparison, value):
        one = row["ntx".index(name)]
        if one is None:
            return False
        if isinstance(one, str):
            one = one.encode()
            value = [v.encode() for v in value] if isinstance(value, list) else value.encode()
        return COMPARE[comparison](one, value)

    want = [
        place
        for place, row in enumerate(rows)
        if any(all(met(row, *one) for one in every) for every in condition)
    ]
    assert Filter(condition).apply(table(rows))["row"].tolist() == want


@FEW
@given(ROWS, st.lists(st.sampled_from("ntx"), min_size=1, unique=True))
def test_dropna_equals_pandas(rows, names):
    frame = pd.DataFrame(rows, columns=["n", "t", "x"], dtype=object)
    want = frame.dropna(subset=names).index.tolist()
    assert Dropna(names).apply(table(rows))["row"].tolist() == want


def test_filter_keeps_the_rows_that_the_loaders_filters_keep(tmp_path):
    generator = np.random.default_rng(0)
    rows = pa.table(
        {
            "n": pa.array(generator.integers(0, 9, 500), mask=generator.random(500) < 0.1),
            "t": pa.array(generator.choice(["a", "b", "c", None], 500)),
            "row": np.arange(500),
        }
    )
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=100)
    for condition in (
        [("n", ">", 3), ("t", "!=", "a")],
        [[("n", "in", [1, 2])], [("t", "not in", ["a", "b"]), ("t", "!=", "")]],
        [("t", "<=", "b")],
    ):
        source = ParquetSource(tmp_path / "rows.parquet", filters=condition)
        want = [row for chunk in source.chunks(["row"]) for row in chunk["row"].tolist()]
        assert 0 < len(want) < 500
        assert Filter(condition).apply(Chunk.from_arrow(rows))["row"].tolist() == want


def test_filter_by_a_function_gets_its_columns_alone():
    def short(chunk):
        assert chunk.names == ["tags"]
        return np.diff(chunk["tags"].offsets) < 2

    chunk = chunk_of(tags=[[1], [1, 2], []], row=[0, 1, 2])
    assert Filter(short, ["tags"]).apply(chunk)["row"].tolist() == [0, 2]
    with pytest.raises(ValueError, match=r"\['row'\]: Filter expects .* got int64 \(3,\)"):
        Filter(lambda c: c["row"], ["row"]).apply(chunk)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "condition must be a list of"),
        (([("x", ">")],), "condition must be a list of"),
        (([("x", "~", 1)],), "column 'x': Filter: operators are"),
        (([("x", "in", 1)],), "'in' takes a list of values, got 1"),
        (([("x", "==", [1])],), "'==' takes one value"),
        (([("x", "==", None)],), "To keep rows that have a value, use Dropna"),
        (([("x", "!=", float("nan"))],), "use Dropna"),
        ((lambda chunk: chunk,), "name the columns that the function reads"),
        (([("x", ">", 1)], ["x"]), "names goes with a function"),
    ],
)
def test_filter_refuses_conditions_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        Filter(*arguments)


def test_filter_names_the_column_that_it_cannot_compare():
    chunk = chunk_of(n=[1], t=["a"], tags=[[1]])
    with pytest.raises(TypeError, match="'n': Filter cannot compare int64 with 'a'"):
        Filter([("n", "==", "a")]).apply(chunk)
    with pytest.raises(TypeError, match="'t': Filter cannot compare string with 1"):
        Filter([("t", "in", ["a", 1])]).apply(chunk)
    with pytest.raises(TypeError, match="'tags': Filter takes one value per row, got lists"):
        Filter([("tags", "==", 1)]).apply(chunk)
    with pytest.raises(ValueError, match="Dropna: names must be a list of column names, got 'n'"):
        Dropna("n")


def test_rows_are_dropped_from_all_groups_alike_in_fit_and_transform(tmp_path):
    chunk = chunk_of(
        user=["a", "b", "c", "c", None], rating=[3.0, None, 5.0, 0.5, 4.0], label=[1, 0, 1, 0, 1]
    )
    row_ops = [Dropna(["rating"]), Filter([("rating", ">", 1)])]
    groups = ["user"] >> Categorify(), ["rating"] >> Normalize(dtype="float64"), ["label"]
    loaded = through_disk(tmp_path, *groups, chunk=chunk, row_ops=row_ops)
    assert loaded.groups[0].ops[0].vocabulary("user") == ["a", "c"]  # "b" and one "c" are dropped
    assert loaded.groups[1].ops[0].learned()["mean"] == {"rating": 4.0}
    out = loaded.transform(chunk)
    assert out["user"].tolist() == [3, 4, 1]
    assert out["label"].tolist() == [1, 1, 1]
    assert loaded.input_names == ["user", "rating", "label"]
    assert [repr(op) for op in loaded.row_ops] == [repr(op) for op in row_ops]
    served = loaded.for_serving().transform(chunk)
    assert served["user"].tolist() == [3, 2, 4, 4, 1]
    assert Workflow(*groups).fit(chunk).fingerprint != loaded.fingerprint


def positive(chunk):
    return chunk["x"] > 0


def test_a_filter_by_a_function_is_saved_by_its_name_only(tmp_path):
    chunk = chunk_of(x=[1.0, -1.0], row=[0, 1])
    loaded = through_disk(tmp_path, ["row"], chunk=chunk, row_ops=[Filter(positive, ["x"])])
    assert loaded.transform(chunk)["row"].tolist() == [0]
    with pytest.raises(ValueError, match=r"Filter: the saved workflow needs .* 'positive'"):
        Workflow.load(tmp_path / "workflow")
    nameless = Workflow(["row"], row_ops=[Filter(lambda c: c["x"] > 0, ["x"])]).fit(chunk)
    with pytest.raises(ValueError, match="Filter: a function without a name cannot be saved"):
        nameless.save(tmp_path / "other")


def test_row_ops_in_a_group_say_where_they_belong():
    for left in (["x"], ["x"] >> FillMissing(0)):
        with pytest.raises(TypeError, match=r"Pass it to the workflow: .*row_ops=\[Dropna"):
            left >> Dropna(["x"])
    with pytest.raises(TypeError, match="row_ops takes Filter and Dropna, got FillMissing"):
        Workflow(["x"], row_ops=[FillMissing(0)])


@pytest.mark.parametrize("shuffle_seed", [None, 7])
def test_transform_to_parquet_writes_the_rows_that_stay(tmp_path, shuffle_seed):
    generator = np.random.default_rng(0)
    rows = pa.table({"x": generator.normal(size=1000), "row": np.arange(1000)})
    pq.write_table(rows, tmp_path / "raw.parquet", row_group_size=130)
    keep = Filter([("x", ">", 0.5), ("row", "<", 600)])  # nothing of the last row groups stays
    workflow = Workflow(["x", "row"], row_ops=[keep]).fit(tmp_path / "raw.parquet")
    workflow.transform_to_parquet(
        tmp_path / "raw.parquet", tmp_path / "out", shuffle_seed=shuffle_seed
    )
    written = pq.read_table(tmp_path / "out", columns=["row"])["row"].to_pylist()
    x = rows["x"].to_numpy()
    want = np.flatnonzero((x > 0.5) & (np.arange(1000) < 600)).tolist()
    assert (written if shuffle_seed is None else sorted(written)) == want
    assert (written == want) == (shuffle_seed is None)


def test_a_loader_drops_rows_by_its_filters_and_maps_the_workflow_that_keeps_them(tmp_path):
    rows = pa.table({"x": np.arange(100) - 50, "label": np.arange(100) / 100})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=20)
    condition = [("x", ">", 0)]
    workflow = Workflow(["x"] >> Normalize(), ["label"], row_ops=[Filter(condition)])
    workflow.fit(tmp_path / "rows.parquet")
    options = {"label_names": ["label"], "cont_names": ["x"], "shuffle": False}
    with (
        KerasSequenceLoader(tmp_path / "rows.parquet", 10, **options) as loader,
        pytest.raises(ValueError, match="rows"),
    ):
        next(iter(loader.map(workflow)))
    with KerasSequenceLoader(tmp_path / "rows.parquet", 10, filters=condition, **options) as loader:
        batches = [inputs["x"] for inputs, _ in loader.map(workflow.keeping_rows())]
    want = workflow.transform(Chunk.from_arrow(rows))["x"]
    assert np.concatenate(batches)[:, 0].tolist() == want.tolist()
    assert len(want) == 49
