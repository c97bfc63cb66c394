"""Workflow: fit does not depend on chunking, loading restores it, the schema fits the output."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.workflow_rows import MOVIES, OUTPUTS, rows, same, workflow, write
from tutorlib.columns import Chunk, Ragged
from tutorlib.ops import (
    Categorify,
    HashBucket,
    LabelEncoder,
    LambdaOp,
    LogOp,
    Normalize,
)
from tutorlib.parquet import ParquetSource, RowGroup
from tutorlib.schema import Schema
from tutorlib.workflow import Workflow


def test_fit_does_not_depend_on_kind_of_source_chunking_and_order(tmp_path):
    table = rows()
    chunk = Chunk.from_arrow(table)
    want = workflow().fit(chunk)
    for size in (19, 300):
        parts = [chunk.slice(start, min(start + size, 1000)) for start in range(0, 1000, size)]
        assert workflow().fit(parts[::-1]).fingerprint == want.fingerprint
    path = write(tmp_path / "rows.parquet", table, 130)
    for source in (path, ParquetSource(path), [path], str(tmp_path), table):
        assert workflow().fit(source).fingerprint == want.fingerprint
    other = workflow().fit(rows(seed=1))
    assert other.fingerprint != want.fingerprint
    assert other.fit(table).fingerprint == want.fingerprint  # nothing is left of the first fit


def test_fit_takes_a_pandas_data_frame():
    frame = pd.DataFrame({"id": [3, 1, 3], "x": [1.0, np.nan, 3.0], "text": ["a", None, "a"]})
    fitted = Workflow(["id", "text"] >> Categorify(), ["x"] >> Normalize()).fit(frame)
    out = fitted.transform(Chunk.from_arrow(pa.Table.from_pandas(frame)))
    assert [out["id"].tolist(), out["text"].tolist()] == [[3, 4, 3], [3, 1, 3]]


class Squares:
    """A RowSource that computes its rows: two row groups of 50."""

    row_groups = [RowGroup(0, index, 50) for index in range(2)]  # noqa: RUF012
    num_rows, files = 100, ()
    column_types = {"x": ("int64", False)}  # noqa: RUF012

    def read(self, position, columns, start, stop):
        first = 50 * position
        return Chunk({"x": np.arange(first + start, first + stop) ** 2}).select(columns)

    def location(self, position):
        return f"squares {position}"

    def fingerprint(self):
        return None


def test_any_class_with_the_members_of_row_source_is_a_source(tmp_path):
    want = Chunk({"x": np.arange(100) ** 2})
    fitted = Workflow(["x"] >> Normalize()).fit(Squares(), threads=2)
    assert fitted.fingerprint == Workflow(["x"] >> Normalize()).fit(want).fingerprint
    written = ParquetSource(fitted.transform_to_parquet(Squares(), tmp_path / "out"))
    assert same(Chunk.concat(list(written.chunks())), fitted.transform(want))
    with pytest.raises(ValueError, match=r"LogOp.*\(In squares 0\.\)"):
        Workflow(["x"] >> LambdaOp(np.negative) >> LogOp() >> Normalize()).fit(Squares())


def test_transform_equals_the_same_steps_by_hand_in_pandas():
    table = rows()
    frame = table.to_pandas()
    out = workflow().fit(table).transform(Chunk.from_arrow(table))
    assert out.names == OUTPUTS
    logs = np.log1p(frame["count"].fillna(0).clip(lower=0)).astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(out["count"], (logs - logs.mean()) / logs.std(ddof=0), rtol=1e-5)
    z = (frame["price"] - frame["price"].mean()) / frame["price"].std(ddof=0)
    np.testing.assert_allclose(out["price"], (z - z.min()) / (z.max() - z.min()), atol=1e-6)
    assert out["word"].tolist() == oracle_ids(frame["word"])
    assert out["userId"].tolist() == oracle_ids(frame["userId"])
    joined = frame[["movieId"]].merge(MOVIES.to_pandas(), on="movieId", how="left")["genres"]
    ids = {"Art": 3, "War": 4}
    want = [[ids[g] for g in genres] if genres is not None else [] for genres in as_lists(joined)]
    assert out["genres"].tolist() == want
    assert out["label"].tolist() == frame["label"].tolist()


def as_lists(series):
    return [None if isinstance(v, float) else list(v) for v in series]


def oracle_ids(series):
    counts = series.value_counts()
    counts = counts[counts >= 2]
    order = sorted(
        counts.index, key=lambda v: (-counts[v], v.encode() if isinstance(v, str) else v)
    )
    ids = {value: place for place, value in enumerate(order, 3)}
    return [1 if pd.isna(v) else ids.get(v, 2) for v in series]


def test_transform_does_not_depend_on_chunking():
    chunk = Chunk.from_arrow(rows())
    fitted = workflow().fit(chunk)
    parts = [fitted.transform(chunk.slice(a, a + 125)) for a in range(0, 1000, 125)]
    assert same(Chunk.concat(parts), fitted.transform(chunk))


def test_transformed_columns_match_the_output_schema():
    chunk = Chunk.from_arrow(rows())
    fitted = workflow().fit(chunk)
    schema, out = fitted.output_schema, fitted.transform(chunk)
    assert schema.names == out.names == fitted.output_names
    assert schema.categorical.names == ["userId", "word", "tags", "genres", "movieId"]
    assert schema.continuous.names == ["count", "price"]
    assert schema.labels.names == ["label"]
    for column in schema:
        values = out[column.name]
        assert column.multi_hot == isinstance(values, Ragged)
        flat = values.values if column.multi_hot else values
        assert flat.dtype.name == column.dtype
        if column.cardinality is not None:
            assert 0 <= flat.min() <= flat.max() < column.cardinality
    sizes = fitted.embedding_sizes()
    assert list(sizes) == schema.categorical.names
    assert sizes["genres"] == (5, 16)
    assert sizes["movieId"][0] == 50


def test_a_passed_through_column_has_the_role_of_its_type_unless_declared():
    chunk = Chunk({"id": np.arange(2), "x": np.zeros(2), "rating": np.ones(2), "w": np.ones(2)})
    fitted = Workflow(["id", "x", "rating", "w"], label_names=["rating"], weight_name="w")
    roles = {column.name: column.role for column in fitted.fit(chunk).output_schema}
    assert roles == {"id": "categorical", "x": "continuous", "rating": "label", "w": "weight"}
    assert fitted.embedding_sizes() == {}
    label = Workflow(["id"] >> LabelEncoder()).fit(chunk).output_schema["id"]
    assert (label.role, label.cardinality) == ("label", None)


def test_a_workflow_loaded_in_another_process_transforms_to_the_same_bits(tmp_path):
    table = rows()
    pq.write_table(table, tmp_path / "rows.parquet")
    fitted = workflow().fit(table)
    fitted.save(tmp_path / "workflow")
    code = (
        "import sys; from tutorlib.workflow import Workflow; from tutorlib.parquet import *\n"
        "w = Workflow.load(sys.argv[1]); chunk = ParquetSource(sys.argv[2]).read(0)\n"
        "import pickle; pickle.dump(w.transform(chunk), open(sys.argv[3], 'wb'))\n"
        "print(w.fingerprint, w.output_schema.to_json())"
    )
    paths = [tmp_path / "workflow", tmp_path / "rows.parquet", tmp_path / "out"]
    run = [sys.executable, "-c", code, *map(str, paths)]
    printed = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert printed.strip() == f"{fitted.fingerprint} {fitted.output_schema.to_json()}"
    import pickle

    with open(tmp_path / "out", "rb") as file:
        assert same(pickle.load(file), fitted.transform(Chunk.from_arrow(table)))


def test_a_loaded_workflow_keeps_its_settings_and_can_be_fitted_again(tmp_path):
    made = Workflow(["x"] >> Categorify(max_size=5), ["v"] >> Categorify(vocabularies={"v": [9]}))
    data = Chunk({"x": np.array([1, 1, 2, 3]), "v": np.array([9, 8, 9, 9])})
    made.fit(data).save(tmp_path / "workflow")
    loaded = Workflow.load(tmp_path / "workflow")
    assert loaded.transform(data)["v"].tolist() == [3, 2, 3, 3]
    loaded.fit(Chunk({"x": np.array([5, 6, 6, 7]), "v": np.array([1, 1, 1, 1])}))
    out = loaded.transform(Chunk({"x": np.array([6, 5, 7, 1]), "v": np.array([9, 1, 1, 1])}))
    assert [out["x"].tolist(), out["v"].tolist()] == [[3, 4, 2, 2], [3, 2, 2, 2]]


def test_load_refuses_another_format_version_an_unknown_op_and_changed_files(tmp_path):
    folder = workflow().fit(rows()).save(tmp_path / "workflow")
    path = folder / "workflow.json"
    text = path.read_text()
    content = json.loads(text)
    for other in (2, 99):
        path.write_text(json.dumps({**content, "format_version": other}))
        message = f"format version {other}, but this tutorlib reads version 4. Fit and save"
        with pytest.raises(ValueError, match=message):
            Workflow.load(folder)
    path.write_text(text.replace('"tutorlib.ops.HashBucket"', '"evil.Evil"'))
    with pytest.raises(ValueError, match=r"op 'evil\.Evil' is not known"):
        Workflow.load(folder)
    path.write_text(text.replace('"num_buckets": 50', '"num_buckets": 51'))
    with pytest.raises(ValueError, match="changed after they were saved"):
        Workflow.load(folder)
    path.write_text(text)
    vocabulary = folder / "group0_op0_table0.parquet"
    table = pq.read_table(vocabulary)
    pq.write_table(table.take(list(range(table.num_rows))[::-1]), vocabulary)
    with pytest.raises(ValueError, match="changed after they were saved"):
        Workflow.load(folder)
    with pytest.raises(FileNotFoundError, match="no saved workflow"):
        Workflow.load(tmp_path)


def test_save_writes_json_and_parquet_and_replaces_only_with_overwrite(tmp_path):
    fitted = workflow().fit(rows())
    folder = fitted.save(tmp_path / "workflow")
    assert {path.suffix for path in folder.glob("*.*")} - {""} == {".json", ".parquet"}
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fitted.save(folder)
    fitted.save(folder, overwrite=True)
    assert Workflow.load(folder).fingerprint == fitted.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["workflow"]


def doubled(values):
    return values * 2


def test_a_function_is_saved_by_name_and_must_be_passed_to_load(tmp_path):
    data = Chunk({"x": np.array([1.0, 2.0])})
    folder = Workflow(["x"] >> LambdaOp(doubled)).fit(data).save(tmp_path / "named")
    with pytest.raises(ValueError, match=r"needs the function 'doubled'.*functions=\{'doubled'"):
        Workflow.load(folder)
    loaded = Workflow.load(folder, functions={"doubled": doubled})
    assert loaded.transform(data)["x"].tolist() == [2, 4]
    assert "doubled" in (folder / "workflow.json").read_text()


def test_a_lambda_transforms_but_cannot_be_saved(tmp_path):
    data = Chunk({"x": np.array([1.0, 2.0])})
    fitted = Workflow(["x"] >> LambdaOp(lambda x: -x)).fit(data)
    assert fitted.transform(data)["x"].tolist() == [-1, -2]
    with pytest.raises(ValueError, match="a function without a name cannot be saved"):
        fitted.save(tmp_path / "lambda")
    with pytest.raises(ValueError, match="a function without a name cannot be saved"):
        fitted.transform_to_parquet(data, tmp_path / "rows")
    assert list(tmp_path.iterdir()) == []


def test_transform_to_parquet_writes_transformed_rows_schema_and_workflow(tmp_path):
    table = rows()
    source = write(tmp_path / "raw.parquet", table, 130)
    fitted = workflow().fit(source)
    folder = fitted.transform_to_parquet(
        source, tmp_path / "train", row_group_rows=100, rows_per_file=400
    )
    written = ParquetSource(folder)
    assert [len(written.files), len(written), written.num_rows] == [3, 10, 1000]
    assert same(
        Chunk.concat(list(written.chunks(OUTPUTS))), fitted.transform(Chunk.from_arrow(table))
    )
    assert Schema.load(folder / "_schema.json") == fitted.output_schema
    assert Workflow.load(folder / "_workflow").fingerprint == fitted.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw.parquet", "train"]
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fitted.transform_to_parquet(source, folder)


def test_transform_to_parquet_shuffles_by_seed_and_keeps_every_row_once(tmp_path):
    table = pa.table({"row": np.arange(1000), "label": np.arange(1000) % 2})
    source = write(tmp_path / "raw.parquet", table, 50)
    fitted = Workflow(["row", "label"]).fit(source)
    options = {"rows_per_file": 300, "row_group_rows": 100}
    orders = []
    for name, seed in {"a": 1, "again": 1, "b": 2}.items():
        folder = fitted.transform_to_parquet(source, tmp_path / name, shuffle_seed=seed, **options)
        out = Chunk.concat(list(ParquetSource(folder).chunks()))
        assert (out["row"] % 2 == out["label"]).all()
        orders.append(out["row"].tolist())
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(1000))
    starts = np.array(orders[0][:300]) // 50  # the first window mixes row groups from all over
    assert len(set(starts.tolist())) == 6
    assert np.abs(np.diff(orders[0])).mean() > 150


def test_a_failed_transform_to_parquet_names_the_row_group_and_leaves_no_files(tmp_path):
    source = write(tmp_path / "raw.parquet", pa.table({"x": [0.0, 1.0, -5.0, 2.0]}), 2)
    failing = Workflow(["x"] >> LogOp()).fit(source)
    with pytest.raises(
        ValueError, match=r"'x': LogOp .* got -5.0 at value 0 .*row group 1 of .*raw"
    ):
        failing.transform_to_parquet(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["raw.parquet"]


def test_a_failing_fit_leaves_the_workflow_unfitted():
    failing = Workflow(["x"] >> LogOp() >> Normalize(), ["c"] >> Categorify())
    good = Chunk({"x": np.array([1.0, 2.0]), "c": np.arange(2)})
    failing.fit(good)
    with pytest.raises(ValueError, match="'x': LogOp"):
        failing.fit([good, Chunk({"x": np.array([-2.0, 1.0]), "c": np.arange(2)})])
    with pytest.raises(ValueError, match=r"Call fit\(source\) first"):
        failing.transform(good)


def test_use_before_fit_is_refused_with_the_remedy():
    data = Chunk({"x": np.arange(2)})
    with pytest.raises(ValueError, match=r"Normalize.*\['x'\].*Call fit\(source\) first"):
        Workflow(["x"] >> Normalize()).transform(data)
    nothing_to_learn = Workflow(["x"] >> HashBucket(9))
    assert nothing_to_learn.transform(data).num_rows == 2
    with pytest.raises(ValueError, match=r"types .* not known yet. Call fit"):
        print(nothing_to_learn.output_schema)


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ([], {}, "at least one group"),
        ([["a"], ["b", "a"]], {}, r"columns \['a'\] are outputs of more than one group"),
        ([["a"]], {"label_names": ["y"]}, "'y' is declared as label or weight but is not among"),
        ([["a"]], {"weight_name": "w"}, "'w' is declared as label or weight but is not among"),
        ([[]], {}, "at least one column name"),
    ],
)
def test_invalid_groups_labels_and_weights_are_refused(groups, options, message):
    with pytest.raises(ValueError, match=message):
        Workflow(*groups, **options)


def test_missing_columns_are_named():
    with pytest.raises(ValueError, match=r"columns \['b'\] are not in the data, which has \['a'\]"):
        Workflow(["a", "b"]).fit(Chunk({"a": np.arange(2)}))
    with pytest.raises(ValueError, match=r"the workflow needs columns \['b'\]; there are \['a'\]"):
        Workflow(["a", "b"]).transform(Chunk({"a": np.arange(2)}))


def test_fitting_a_workflow_does_not_change_the_ops_it_was_given():
    op = Normalize()
    first = Workflow(["x"] >> op).fit(Chunk({"x": np.array([1.0, 3.0])}))
    group = ["x"] >> op
    second = Workflow(group).fit(Chunk({"x": np.array([10.0, 30.0])}))
    third = Workflow(group)
    assert op.unlearned(["x"]) == ["x"]
    assert first.transform(Chunk({"x": np.array([2.0])}))["x"].tolist() == [0]
    assert second.transform(Chunk({"x": np.array([20.0])}))["x"].tolist() == [0]
    with pytest.raises(ValueError, match="Call fit"):
        third.transform(Chunk({"x": np.array([2.0])}))


def test_values_not_fitted_on_get_the_out_of_vocabulary_id():
    fitted = workflow().fit(rows(200))
    out = fitted.transform(Chunk.from_arrow(rows(5000, seed=9)))
    assert (out["userId"] == 2).any()
    assert out["userId"].max() < fitted.embedding_sizes()["userId"][0]
