"""What a Workflow and a split refuse, and that they say what is wrong with it."""

import numpy as np
import pytest

from tutorlib.chunk import Chunk
from tutorlib.ops import Categorify, Dropna, FillMedian, HashBucket, Normalize
from tutorlib.workflow import Workflow, split_rows

ROWS = Chunk({"x": np.arange(10.0), "n": np.arange(10), "label": np.arange(10) % 2})


def test_labels_and_weights_are_names_each_in_one_role():
    with pytest.raises(TypeError, match=r"label_names takes a list of names, got 'label'"):
        Workflow(["x"], ["label"], label_names="label")
    with pytest.raises(ValueError, match=r"'label' cannot be both a label and the weight"):
        Workflow(["x"], ["label"], weight_name="label")


def test_row_ops_may_be_one_and_are_nothing_else():
    one = Workflow(["x"], row_ops=Dropna(["x"]))
    assert repr(one) == repr(Workflow(["x"], row_ops=[Dropna(["x"])]))
    with pytest.raises(TypeError, match=r"row_ops takes Filter and Dropna, got Normalize"):
        Workflow(["x"], row_ops=[Normalize()])


@pytest.mark.parametrize("op", [Normalize(), Categorify(), FillMedian()])
def test_nothing_is_learned_from_no_rows(op):
    workflow = Workflow(["n"] >> op)
    with pytest.raises(ValueError, match="the data has no rows to fit on"):
        workflow.fit(ROWS.slice(0, 0))
    assert workflow.fit(ROWS).transform(ROWS.slice(0, 0)).num_rows == 0


def test_what_learns_nothing_takes_the_types_of_no_rows():
    workflow = Workflow(["n"] >> HashBucket(9)).fit(ROWS.slice(0, 0))
    assert workflow.output_schema["n"].cardinality == 9


@pytest.mark.parametrize("memory_budget", ["1GB", 0, -1, 2.5])
def test_a_memory_budget_is_a_number_of_bytes(memory_budget):
    with pytest.raises(ValueError, match=f"must be a number of bytes, got {memory_budget!r}"):
        Workflow(["n"] >> Categorify()).fit(ROWS, memory_budget=memory_budget)


def test_transform_takes_a_chunk():
    with pytest.raises(TypeError, match=r"takes a Chunk, got Table\. .*Chunk\.from_arrow\(table\)"):
        Workflow(["x"]).fit(ROWS).transform(ROWS.to_arrow())


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
def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path, source, options, rule):
    with pytest.raises(ValueError, match=rule):
        Workflow(["x"]).fit(ROWS).transform_to_parquet(source, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "7"])
def test_the_seed_of_a_split_is_an_integer(seed):
    with pytest.raises(ValueError, match=f"seed must be .*, got {seed!r}"):
        split_rows(ROWS, {"a": 0.5, "b": 0.5}, seed=seed)


def test_the_parts_of_a_split_have_names():
    with pytest.raises(TypeError, match=r"takes \{name: share\}, got \[0.5, 0.5\]"):
        split_rows(ROWS, [0.5, 0.5])
