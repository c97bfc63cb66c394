"""States beyond the memory budget go to files, and the result is the same to the bit."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.support.ops import bits, cut
from tests.support.ops_strategies import CUTS, KEYED, keyed_chunk
from tests.support.workflow_rows import rows, workflow, write
from tutorlib.columns import Chunk
from tutorlib.ops import Categorify, JoinGroupby, LogOp, Normalize, TargetEncoding
from tutorlib.ops.shared.group_sums import GroupSums
from tutorlib.workflow import Workflow
from tutorlib.workflow import spill as spilling
from tutorlib.workflow.fit_pass import Merger, next_pass
from tutorlib.workflow.inputs import as_source


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def numbers_of(draw, kind):
    counts = draw(st.lists(st.integers(-40, 40), max_size=60))
    return [f"Ü{n}" * (n % 3) for n in counts] if kind == "string" else counts


@st.composite
def chunks(draw):
    kind = draw(st.sampled_from(["int64", "string"]))
    arrays = [numbers_of(draw, kind) for _ in range(draw(st.integers(1, 8)))]
    arrays.append([None])  # a row at least
    tables = [pa.table({"x": pa.array(values, getattr(pa, kind)())}) for values in arrays]
    return [Chunk.from_arrow(table) for table in tables]


@settings(max_examples=60)
@given(chunks(), st.integers(1, 2000), st.integers(0, 4), st.sampled_from([None, 4, 9]))
def test_the_vocabulary_does_not_depend_on_the_memory_budget(chunks, budget, threshold, max_size):
    made = Workflow(["x"] >> Categorify(freq_threshold=threshold, max_size=max_size))
    want = made.fit(chunks).fingerprint
    assert made.fit(chunks, memory_budget=budget, threads=1).fingerprint == want


@settings(max_examples=20)
@given(chunks(), st.integers(1, 5), st.integers(2, 3))
def test_the_vocabulary_does_not_depend_on_blocks_and_runs(chunks, block_rows, most_runs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilling, "BLOCK_ROWS", (1, block_rows))
        patch.setattr(spilling, "MOST_RUNS", most_runs)
        made = Workflow(["x"] >> Categorify(max_size=8))
        want = made.fit(chunks).fingerprint
        assert made.fit(chunks, memory_budget=1, threads=1).fingerprint == want


STATISTICS = ["count", "sum", "mean", "std", "min", "max"]
GROUPED = {
    "join": ["n", "t"] >> JoinGroupby(["x"], STATISTICS),
    "join combined": ["n", "t"] >> JoinGroupby(["x"], STATISTICS, combo=True),
    "count": ["t"] >> JoinGroupby(),
    "target": ["n", "t"] >> TargetEncoding("x", "row", folds=3, prior=0.5),
    "target combined": ["t", "n"] >> TargetEncoding("x", "row", folds=2, prior=0.5, combo=True),
    "target of all rows": ["n"] >> TargetEncoding("x", None, prior=0.5),
    "ids of combinations": ["n", "t"] >> Categorify(combo=True, max_size=9, freq_threshold=2),
}


@pytest.mark.parametrize("group", GROUPED.values(), ids=GROUPED)
@settings(max_examples=25)
@given(KEYED, CUTS, st.integers(1, 4000), st.integers(1, 5), st.integers(2, 3))
def test_statistics_do_not_depend_on_the_budget(group, rows, places, budget, block_rows, most_runs):
    chunks = cut(keyed_chunk(rows), places)
    made = Workflow(group)
    want = bits(made.fit(chunks).groups[0].ops[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilling, "BLOCK_ROWS", (1, block_rows))
        patch.setattr(spilling, "MOST_RUNS", most_runs)
        made.fit(chunks, memory_budget=budget, threads=1)
    assert bits(made.groups[0].ops[0]) == want


def test_all_folds_of_a_key_of_numbers_and_texts_stay_together():
    rows = [(1, "b", 0), (2, "a", 0), (2, "b", 0), (2, "b", 1), (3, "a", 0)]
    blocks = [
        GroupSums.of([pa.array(part) for part in zip(*some, strict=True)], {})
        for some in (rows[:3], rows[3:])
    ]
    op = TargetEncoding("x", "row", combo=True)
    parts = [[key.to_pylist() for key in sums.keys] for sums in op.gathered("key", blocks)]
    found = [list(zip(*keys, strict=True)) for keys in parts]
    assert [key for some in found for key in some] == rows
    homes = [{key[:2] for key in some} for some in found]
    assert sum(map(len, homes)) == len(set.union(*homes))


def test_a_learned_prior_does_not_depend_on_the_memory_budget():
    generator = np.random.default_rng(0)
    chunks = [
        Chunk(
            {
                "user": generator.geometric(0.01, 500),
                "row": np.arange(n, n + 500),
                "label": generator.normal(size=500),
            }
        )
        for n in range(0, 5000, 500)
    ]
    made = Workflow(["user"] >> TargetEncoding("label", "row"))
    want = made.fit(chunks).fingerprint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilling, "BLOCK_ROWS", (50, 50))
        assert made.fit(chunks, memory_budget=1).fingerprint == want


@pytest.mark.parametrize("threads", [1, 3])
def test_spilling_and_other_ops_can_be_fitted_in_one_pass(tmp_path, folder, threads):
    source = write(tmp_path / "rows.parquet", rows(3000), 110)
    want = workflow().fit(source).fingerprint
    options = {"memory_budget": 5000, "threads": threads}
    assert workflow().fit(source, **options).fingerprint == want
    assert list(folder.iterdir()) == []


def test_group_sums_beyond_the_budget_stay_in_files_until_the_end(folder):
    made = Workflow(["id"] >> JoinGroupby(["x"], ["mean"]))
    values = {"x": np.linspace(0, 1, 1000)}
    source = as_source(
        [Chunk({"id": np.arange(n, n + 1000), **values}) for n in range(0, 9000, 900)]
    )
    work = next_pass(made, source)
    with spilling.Runs(work.ops, memory_budget=200_000) as runs:
        merger = Merger(work, runs)
        for row_range in work.row_ranges():
            merger.add(work.learn_from(row_range))
            held = sum(spilling.spillable_nbytes(work.ops, state) for state in merger.held())
            assert held <= 100_000
        assert len(list(folder.rglob("*.arrow"))) > 2
        _, state = merger.result()  # the first counts rows
        assert pa.concat_arrays([sums.keys[0] for sums in state["id"]]).to_pylist() == [
            *range(9100)
        ]
        made.groups[0].ops[0].finalize(state)
    assert list(folder.iterdir()) == []
    learned = made.groups[0].ops[0].learned_tables()["id"]
    assert learned["key_0"].tolist() == list(range(9100))


def test_an_error_in_finalize_removes_the_files(folder):
    chunks = [
        Chunk({"id": np.arange(1000), "x": np.full(1000, np.nan), "row": np.arange(1000)})
        for _ in range(5)
    ]
    made = Workflow(["id"] >> TargetEncoding("x", "row"))
    with pytest.raises(ValueError, match="'x': TargetEncoding found no value"):
        made.fit(chunks, memory_budget=1000)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("op", [Categorify(), JoinGroupby()])
def test_strings_and_integers_in_one_column_are_refused_with_and_without_a_budget(folder, op):
    chunks = [Chunk.from_arrow(pa.table({"x": values})) for values in ([1, 2], ["a", "b"])]
    said = []
    for options in ({}, {"memory_budget": 1, "threads": 1}):
        with pytest.raises(TypeError, match="column 'x'") as raised:
            Workflow(["x"] >> op).fit(chunks, **options)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert list(folder.iterdir()) == []


def test_states_beyond_the_budget_stay_in_files_until_the_end(folder):
    made = Workflow(["id"] >> Categorify())
    source = as_source([Chunk({"id": np.arange(n, n + 1000)}) for n in range(0, 20_000, 1000)])
    work = next_pass(made, source)
    with spilling.Runs(work.ops, memory_budget=100_000) as runs:
        merger = Merger(work, runs)
        for row_range in work.row_ranges():
            merger.add(work.learn_from(row_range))
            held = sum(spilling.spillable_nbytes(work.ops, state) for state in merger.held())
            assert held <= 50_000
        files = list(folder.rglob("*.arrow"))
        assert len(files) == 5
        assert sum(path.stat().st_size for path in files) > 15_000 * 16
        _, state = merger.result()  # the first counts rows
        assert state["id"].keys[0].to_pylist() == list(range(20_000))
    assert list(folder.iterdir()) == []


def test_an_error_in_a_row_range_removes_the_files(folder):
    chunks = [
        Chunk({"id": np.arange(n, n + 1000), "x": np.ones(1000)}) for n in range(0, 9000, 1000)
    ]
    chunks.append(Chunk({"id": np.arange(1000), "x": np.full(1000, -9.0)}))
    made = Workflow(["id"] >> Categorify(), ["x"] >> LogOp() >> Normalize())
    with pytest.raises(ValueError, match=r"'x': LogOp .* got -9.0 .*\(In chunk 9.\)"):
        made.fit(chunks, memory_budget=10_000)
    assert list(folder.iterdir()) == []


KILLED = """
import os, signal, sys
import numpy as np
from tutorlib.columns import Chunk
from tutorlib.ops import Categorify
from tutorlib.workflow import Workflow, spill

def die(self, states):
    os.kill(os.getpid(), signal.SIGKILL)

spill.Runs.merge = die
chunks = [Chunk({"id": np.arange(n, n + 1000)}) for n in range(0, 9000, 1000)]
Workflow(["id"] >> Categorify()).fit(chunks, memory_budget=10_000)
"""


def test_what_a_killed_fit_left_is_removed_by_the_next_and_a_living_fit_keeps_its_files(folder):
    environment = {**os.environ, "TMPDIR": str(folder)}
    mine = folder / "tutorlib_fit_thesis"
    mine.mkdir()
    (mine / "thesis.txt").touch()
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", KILLED], env=environment)
        assert done.returncode == -signal.SIGKILL
        (left,) = set(folder.iterdir()) - {mine}
        assert list(left.glob("*.arrow"))
    work = next_pass(Workflow(["id"] >> Categorify()), as_source(Chunk({"id": np.arange(9)})))
    with spilling.Runs(work.ops, memory_budget=1) as runs:
        runs.write(work.learn_from(work.row_ranges()[0]))
        assert not left.exists()
        (living,) = set(folder.iterdir()) - {mine}
        assert living.stat().st_mode & 0o077 == 0  # others cannot read it
        with spilling.Runs(work.ops, memory_budget=1):
            assert list(living.glob("*.arrow"))
    assert list(folder.iterdir()) == [mine]
    assert (mine / "thesis.txt").exists()


PEAK = """
import sys
from tutorlib.workflow import Workflow
from tutorlib.ops import Categorify

def peak(line="VmHWM"):
    with open("/proc/self/status") as file:
        return next(int(row.split()[1]) for row in file if row.startswith(line)) / 1024

budget = int(sys.argv[2]) or None
made = Workflow(["id"] >> Categorify(freq_threshold=2))
made.fit(sys.argv[1] + "/small.parquet")
before = peak("VmRSS")
made.fit(sys.argv[1] + "/many.parquet", memory_budget=budget, threads=1)
print(peak() - before, made.embedding_sizes()["id"][0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_stays_near_the_budget_for_any_number_of_values(tmp_path):
    """Of 6 million different values, 96 MB of state, no more is in memory than of 2 million."""
    peaks = {}
    for millions, budget in ((2, 20_000_000), (6, 20_000_000), (6, 0)):
        many = np.random.default_rng(0).permutation(millions * 1_000_000)
        many[:100] = many[100:200]
        folder = tmp_path / f"{millions}_{budget}"
        folder.mkdir()
        write(folder / "many.parquet", pa.table({"id": many}), 131_072)
        write(folder / "small.parquet", pa.table({"id": many[:1000]}), 131_072)
        command = [sys.executable, "-c", PEAK, str(folder), str(budget)]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        peak, cardinality = done.stdout.split()
        assert int(cardinality) == 103
        peaks[millions, bool(budget)] = float(peak)
    assert peaks[6, True] < 1.4 * peaks[2, True], peaks
    assert peaks[6, False] > 3 * peaks[6, True], peaks
