"""Workflow: what it learns does not depend on the source, and its schema fits its output."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.ops import bits
from tests.support.workflow_rows import OUTPUTS, rows, same, workflow, write
from tutorlib.columns import Chunk, Ragged
from tutorlib.ops import (
    Categorify,
    ColumnOp,
    FillMedian,
    HashBucket,
    LabelEncoder,
    LearningOp,
    LogOp,
    Normalize,
)
from tutorlib.parquet import ParquetSource, files
from tutorlib.workflow import Workflow, fit

DATA = Chunk({"x": np.arange(10.0), "n": np.arange(10), "label": np.arange(10) % 2})


def test_fit_does_not_depend_on_kind_of_source_chunking_and_order(tmp_path):
    table = rows()
    chunk = Chunk.from_arrow(table)
    counted = Workflow(["userId", "word", "tags"] >> Categorify(freq_threshold=2))
    vocabularies = counted.fit(chunk).fingerprint
    for size in (19, 300):
        parts = [chunk.slice(start, min(start + size, 1000)) for start in range(0, 1000, size)]
        assert counted.fit(Chunk.concat(parts[::-1])).fingerprint == vocabularies
    path = write(tmp_path / "rows.parquet", table, 130)
    want = workflow().fit(path)
    for source in (ParquetSource(path), [path], str(tmp_path)):
        assert workflow().fit(source, threads=3).fingerprint == want.fingerprint
    users = [Workflow(["userId"] >> Categorify()).fit(data) for data in (table, table.to_pandas())]
    assert same(users[0].transform(table.to_pandas()), users[1].transform(chunk))
    other = workflow().fit(rows(seed=1))
    assert other.fingerprint != want.fingerprint
    assert other.fit(path).fingerprint == want.fingerprint  # nothing is left of the first fit


def test_the_schema_gives_name_role_dtype_and_cardinality_of_each_output():
    table = rows()
    fitted = workflow().fit(table)
    out, schema = fitted.transform(table), fitted.output_schema
    assert out.names == schema.names == fitted.output_names == OUTPUTS
    assert (schema.continuous.names, schema.labels.names) == (["count", "price"], ["label"])
    for column in schema:
        values = out[column.name]
        assert column.multi_hot == isinstance(values, Ragged)
        flat = values.values if column.multi_hot else values
        assert flat.dtype.name == column.dtype
        if column.cardinality is not None:
            assert 0 <= flat.min() <= flat.max() < column.cardinality
    sizes = fitted.embedding_sizes()
    assert list(sizes) == schema.categorical.names
    assert sizes["movieId"][0] == 50


def test_a_column_without_ops_has_the_role_of_its_type_unless_declared():
    chunk = Chunk({"id": np.arange(2), "x": np.zeros(2), "rating": np.ones(2), "w": np.ones(2)})
    fitted = Workflow(["id", "x", "rating", "w"], label_names=["rating"], weight_name="w")
    roles = {column.name: column.role for column in fitted.fit(chunk).output_schema}
    assert roles == {"id": "categorical", "x": "continuous", "rating": "label", "w": "weight"}
    assert fitted.embedding_sizes() == {}
    label = Workflow(["id"] >> LabelEncoder()).fit(chunk).output_schema["id"]
    assert (label.role, label.cardinality) == ("label", None)


def test_fitting_does_not_change_the_ops_that_were_given():
    op = Normalize()
    first = Workflow(["x"] >> op).fit(Chunk({"x": np.array([1.0, 3.0])}))
    group = ["x"] >> op
    second = Workflow(group).fit(Chunk({"x": np.array([10.0, 30.0])}))
    assert op.unlearned(["x"]) == ["x"]
    assert first.transform(Chunk({"x": np.array([2.0])}))["x"].tolist() == [0]
    assert second.transform(Chunk({"x": np.array([20.0])}))["x"].tolist() == [0]
    with pytest.raises(ValueError, match="Call fit"):
        Workflow(group).check_fitted()


@pytest.mark.parametrize("op", [Normalize(), Categorify(), FillMedian()])
def test_fit_refuses_data_without_rows_if_an_op_has_to_learn(op):
    workflow = Workflow(["n"] >> op)
    with pytest.raises(ValueError, match="the data has no rows to fit on"):
        workflow.fit(DATA.slice(0, 0))
    assert workflow.fit(DATA).transform(DATA.slice(0, 0)).num_rows == 0
    hashed = Workflow(["n"] >> HashBucket(9)).fit(DATA.slice(0, 0))
    assert hashed.output_schema["n"].cardinality == 9


class Mean(ColumnOp, LearningOp):
    """An op of a user that learns no table."""

    def partial(self, chunk):
        return {name: column.mean() for name, column in chunk.items()}

    def merge_states(self, states):
        return sum(states) / len(states)

    def transform_column(self, name, column):
        return column - self.state[name]


def test_an_op_that_learns_no_table_is_refused_by_column_and_op():
    workflow = Workflow(["n"] >> Mean())
    with pytest.raises(TypeError, match=r"column 'n': Mean learns a Chunk for each column, got f"):
        workflow.fit(DATA)
    with pytest.raises(ValueError, match="Call fit"):
        workflow.check_fitted()


X = ["x"]
ERRORS = {
    "no group": (lambda: Workflow(), "at least one group"),
    "no column": (lambda: Workflow([]), "at least one column name"),
    "twice": (lambda: Workflow(["a"], ["b", "a"]), r"\['a'\] are outputs of more than one group"),
    "label not made": (lambda: Workflow(X, label_names=["y"]), r"\['y'\] are declared as label"),
    "weight not made": (lambda: Workflow(X, weight_name="w"), r"\['w'\] are declared as label"),
    "a name": (lambda: Workflow(X, label_names="x"), "label_names takes a list .*got 'x'"),
    "both": (lambda: Workflow(X, label_names=X, weight_name="x"), "both a label and the weight"),
    "ids as label": (lambda: Workflow(["label"] >> Categorify()), "Use LabelEncoder"),
    "fit without": (lambda: Workflow(["z"]).fit(DATA), r"\['z'\] are not in the data, which has"),
    "transform without": (
        lambda: Workflow(["x", "n"]).fit(DATA).transform(DATA.select(["x"])),
        r"'n' is missing, was int64.* only labels and weight may be missing",
    ),
    "nothing to learn": (lambda: Workflow(["n"] >> HashBucket(9)).transform(DATA), "Call fit"),
    "not fitted": (lambda: Workflow(X >> Normalize()).transform(DATA), r"Normalize.*\['x'\].*fit"),
    "no types": (lambda: Workflow(X).output_schema, "types of the columns are not known. Call fit"),
    "no labels": (lambda: Workflow(X).fit(DATA).decode("x", [1]), "no LabelEncoder makes 'x'"),
    "a path": (lambda: Workflow(X).fit(DATA).transform("a"), "transform_to_parquet takes files"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_use_is_refused_with_the_rule_and_the_value(case):
    call, rule = ERRORS[case]
    with pytest.raises((ValueError, TypeError), match=rule):
        call()


def test_data_without_a_column_is_refused_by_its_name(tmp_path):
    table = rows(50)
    fitted = workflow().fit(table)
    changed = table.drop_columns(["price"])
    path = write(tmp_path / "changed.parquet", changed, 20)
    message = "do not match those fitted on: 'price' is missing, was float64"
    for data in (changed, path, ParquetSource(path), Chunk.from_arrow(changed)):
        with pytest.raises(ValueError, match=f"{message}. Write"):
            fitted.check_data(data)
    with pytest.raises(ValueError, match=message):
        fitted.transform_to_parquet(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    fitted.check_data(table.append_column("more", table["label"]).drop_columns(["unused"]))


# --- states of row ranges, merged in one way


def test_any_number_of_threads_learns_the_same_bits(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    columns = {"x": rng.lognormal(0, 9, 30_000), "k": rng.integers(0, 50, 30_000)}
    table = pa.table({**columns, "row": np.arange(30_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7_001)
    monkeypatch.setattr(fit, "RANGE_ROWS", 500)  # ranges are cut within row groups
    want = None
    for threads in (1, 2, 7):
        groups = ["x"] >> Normalize(), ["k"] >> Categorify()
        fitted = Workflow(*groups).fit(tmp_path, threads=threads)
        learned = [bits(op) for group in fitted.groups for op in group.ops]
        want = want or learned
        assert learned == want


def test_after_an_error_no_op_is_fitted_and_the_error_is_that_of_the_first_range(monkeypatch):
    monkeypatch.setattr(files, "TABLE_ROWS", 100)
    values = [np.full(100, 1.0 if k != 3 else -5.0) for k in range(6)]
    values[5] = np.full(100, -9.0)
    workflow = Workflow(["x"] >> LogOp() >> Normalize())
    with pytest.raises(ValueError, match=r"'x': LogOp .* got -5.0 .*row group 3 of"):
        workflow.fit(Chunk({"x": np.concatenate(values)}), threads=2)
    with pytest.raises(ValueError, match="Call fit"):
        workflow.transform(Chunk({"x": values[0]}))


def test_threads_are_refused_with_a_client():
    with pytest.raises(ValueError, match="with client="):
        Workflow(["x"] >> Normalize()).fit(Chunk({"x": np.ones(3)}), object(), threads=2)
