"""Wrong arguments of Workflow and split_rows are refused with the rule and the value."""

import numpy as np
import pytest

from tutorlib.columns import Chunk
from tutorlib.ops import Categorify, FillMedian, FillMissing, HashBucket, Normalize
from tutorlib.workflow import Workflow, split_rows

ROWS = Chunk({"x": np.arange(10.0), "n": np.arange(10), "label": np.arange(10) % 2})


def test_label_names_must_be_a_list_and_no_label_can_be_the_weight():
    with pytest.raises(TypeError, match=r"label_names takes a list of names, got 'label'"):
        Workflow(["x"], ["label"], label_names="label")
    with pytest.raises(ValueError, match=r"'label' cannot be both a label and the weight"):
        Workflow(["x"], ["label"], weight_name="label")


def test_row_ops_takes_one_row_op_or_a_list_and_refuses_other_ops():
    one = Workflow(["x"], row_ops=Dropna(["x"]))
    assert repr(one) == repr(Workflow(["x"], row_ops=[Dropna(["x"])]))
    with pytest.raises(TypeError, match=r"row_ops takes Filter and Dropna, got Normalize"):
        Workflow(["x"], row_ops=[Normalize()])


@pytest.mark.parametrize("op", [Normalize(), Categorify(), FillMedian()])
def test_fit_refuses_data_without_rows_if_an_op_has_to_learn(op):
    workflow = Workflow(["n"] >> op)
    with pytest.raises(ValueError, match="the data has no rows to fit on"):
        workflow.fit(ROWS.slice(0, 0))
    assert workflow.fit(ROWS).transform(ROWS.slice(0, 0)).num_rows == 0


@pytest.mark.parametrize("op", [Normalize(), Categorify(), FillMedian(), FillMissing(0)])
@pytest.mark.parametrize("options", [{}, {"memory_budget": "1B"}], ids=["in memory", "spilling"])
def test_fit_on_rows_that_are_all_dropped_names_the_row_ops(op, options):
    group = ["n"] >> op
    if isinstance(op, FillMissing):
        group = group >> Normalize()
    workflow = Workflow(group, row_ops=[Dropna(["x"]), Filter([("x", ">", 99)])])
    with pytest.raises(ValueError, match=r"no rows to fit on: the row ops .*Filter.* drop all"):
        workflow.fit([ROWS, ROWS], **options)
    with pytest.raises(ValueError, match="is not fitted"):
        workflow.check_fitted()


def test_fit_takes_the_column_types_of_data_without_rows_if_no_op_learns():
    workflow = Workflow(["n"] >> HashBucket(9)).fit(ROWS.slice(0, 0))
    assert workflow.output_schema["n"].cardinality == 9


@pytest.mark.parametrize("memory_budget", ["1G", 0, -1])
def test_a_memory_budget_must_be_a_positive_number_of_bytes(memory_budget):
    with pytest.raises(ValueError, match=f"must be a number of bytes.*got {memory_budget!r}"):
        Workflow(["n"] >> Categorify()).fit(ROWS, memory_budget=memory_budget)


@pytest.mark.parametrize(
    ("source", "options", "rule"),
    [
        ({}, {}, r"source is \{\}: give \{name: data\}"),
        (ROWS, {"shuffle_seed": -1}, r"shuffle_seed must be at least 0, got -1"),
        (ROWS, {"shuffle_seed": "7"}, r"shuffle_seed must be .*, got '7'"),
        ({"a": ROWS}, {"shuffle_seed": {"a": 1.5}}, r"shuffle_seed must be .*, got 1\.5"),
        ({"a": ROWS}, {"shuffle_seed": {"b": 1}}, r"names \['b'\], but the splits are \['a'\]"),
        ({"../a": ROWS}, {}, r"becomes that of a folder, .* got '\.\./a'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path, source, options, rule):
    with pytest.raises(ValueError, match=rule):
        Workflow(["x"]).fit(ROWS).transform_to_parquet(source, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "7"])
def test_the_seed_of_a_split_must_be_an_integer_in_range(seed):
    with pytest.raises(ValueError, match=f"seed must be .*, got {seed!r}"):
        split_rows(ROWS, {"a": 0.5, "b": 0.5}, seed=seed)


def test_the_shares_of_a_split_must_have_names():
    with pytest.raises(TypeError, match=r"takes \{name: share\}, got \[0.5, 0.5\]"):
        split_rows(ROWS, [0.5, 0.5])
