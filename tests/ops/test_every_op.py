"""Each op learns and makes the same in memory, from files, and loaded."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.ops.cases import CASES, chunk, table
from tests.support.ops import bits
from tests.support.workflow_rows import same
from tutorlib import ops
from tutorlib.ops import LearningOp, Op
from tutorlib.parquet import files
from tutorlib.workflow import Workflow

EACH = pytest.mark.parametrize("name", CASES)
GROUP_ROWS = 9  # 34 row groups, so that the merge has three levels


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "a.parquet"
    pq.write_table(table(), path, row_group_size=GROUP_ROWS)
    return path


def learned(workflow):
    return [bits(op) for group in workflow.groups for op in group.ops]


@pytest.fixture(scope="module")
def in_memory():
    """{case: the workflow fitted on rows in memory, in row groups as those of the file}."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "TABLE_ROWS", GROUP_ROWS)
        return {name: case.fitted(chunk(), threads=1) for name, case in CASES.items()}


def test_no_op_is_forgotten():
    ours = {n.rpartition(".")[2] for n in Op.registry if n.startswith("tutorlib.ops.")}
    public = {name for name in ours if hasattr(ops, name)} - {"ColumnOp", "LearningOp"}
    assert public == {name.split(",")[0].split(" ")[0] for name in CASES} - {"a"}


@EACH
def test_files_on_threads_teach_and_become_what_rows_in_memory_do(name, in_memory, path, tmp_path):
    """Texts come from files as codes of a dictionary, and from memory as bytes."""
    fitted = CASES[name].fitted(path, threads=3)
    assert learned(fitted) == learned(in_memory[name])
    assert fitted.output_schema == in_memory[name].output_schema
    want = in_memory[name].transform(chunk())
    assert same(fitted.transform(chunk()), want)
    assert want.names == fitted.output_schema.names
    written = pq.read_table(fitted.transform_to_parquet(path, tmp_path / "out"))
    for column, values in want.items():
        np.testing.assert_equal(written[column].to_pylist(), values.tolist(), column)


@EACH
def test_a_saved_op_makes_the_same_and_learns_nothing_anew(name, in_memory, tmp_path):
    fitted = in_memory[name]
    loaded = Workflow.load(fitted.save(tmp_path / "saved"))
    assert loaded.fingerprint == fitted.fingerprint
    assert learned(loaded) == learned(fitted)
    assert same(loaded.transform(chunk()), fitted.transform(chunk()))
    for group in loaded.groups:
        assert not any(isinstance(op, LearningOp) and op.unlearned([]) for op in group.ops)


@EACH
def test_the_chunk_is_left_as_it_is_and_any_rows_of_it_become_the_same(name, in_memory):
    rows = chunk()
    whole = in_memory[name].transform(rows)
    assert same(rows, chunk())
    for start, stop in ((0, 0), (50, 51), (51, 120)):
        part = in_memory[name].transform(rows.slice(start, stop))
        assert str(part.to_arrow()) == str(whole.slice(start, stop).to_arrow())
