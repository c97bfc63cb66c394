"""States that do not fit the budget go to files, and what is learned is the same to the bit."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from workflow_rows import rows, workflow, write

from tutorlib import spilling
from tutorlib.chunk import Chunk
from tutorlib.learning import Merger, Pass
from tutorlib.ops import Categorify, LogOp, Normalize
from tutorlib.parts import as_source
from tutorlib.workflow import Workflow


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
    tables = [pa.table({"x": pa.array(values, getattr(pa, kind)())}) for values in arrays]
    return [Chunk.from_arrow(table) for table in tables]


@settings(max_examples=60)
@given(chunks(), st.integers(1, 2000), st.integers(0, 4), st.sampled_from([None, 4, 9]))
def test_every_budget_gives_the_same_vocabulary(chunks, budget, threshold, max_size):
    made = Workflow(["x"] >> Categorify(freq_threshold=threshold, max_size=max_size))
    want = made.fit(chunks).fingerprint
    assert made.fit(chunks, memory_budget=budget, threads=1).fingerprint == want


@settings(max_examples=20)
@given(chunks(), st.integers(1, 5), st.integers(2, 3))
def test_small_blocks_and_many_runs_give_the_same(chunks, block_rows, most_runs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilling, "BLOCK_ROWS", block_rows)
        patch.setattr(spilling, "MOST_RUNS", most_runs)
        made = Workflow(["x"] >> Categorify(max_size=8))
        want = made.fit(chunks).fingerprint
        assert made.fit(chunks, memory_budget=1, threads=1).fingerprint == want


@pytest.mark.parametrize("threads", [1, 3])
def test_ops_that_spill_learn_beside_ops_that_do_not(tmp_path, folder, threads):
    source = write(tmp_path / "rows.parquet", rows(3000), 110)
    want = workflow().fit(source).fingerprint
    options = {"memory_budget": 5000, "threads": threads}
    assert workflow().fit(source, **options).fingerprint == want
    assert list(folder.iterdir()) == []


def test_states_above_the_budget_are_in_files_until_the_end(folder):
    made = Workflow(["id"] >> Categorify())
    source = as_source([Chunk({"id": np.arange(n, n + 1000)}) for n in range(0, 20_000, 1000)])
    work = Pass(made, made._pending(), source)
    with spilling.Runs(work.ops) as runs:
        merger = Merger(work, runs, memory_budget=100_000)
        for part in work.parts():
            merger.add(work.learn_from(part))
            held = sum(spilling.spillable_nbytes(work.ops, s) for s in merger._levels.values())
            assert held <= 50_000
        files = list(folder.rglob("*.arrow"))
        assert len(files) == 5
        assert sum(path.stat().st_size for path in files) > 15_000 * 16
        (state,) = merger.result()
        assert state["id"][0].tolist() == list(range(20_000))
    assert list(folder.iterdir()) == []


def test_an_error_removes_the_files(folder):
    chunks = [
        Chunk({"id": np.arange(n, n + 1000), "x": np.ones(1000)}) for n in range(0, 9000, 1000)
    ]
    chunks.append(Chunk({"id": np.arange(1000), "x": np.full(1000, -9.0)}))
    made = Workflow(["id"] >> Categorify(), ["x"] >> LogOp() >> Normalize())
    with pytest.raises(ValueError, match=r"'x': LogOp .* got -9.0 .*\(In chunk 9.\)"):
        made.fit(chunks, memory_budget=10_000)
    assert list(folder.iterdir()) == []


def test_a_budget_that_is_none_is_refused():
    with pytest.raises(ValueError, match="memory_budget must be at least 1 byte, got 0"):
        Workflow(["x"] >> Categorify()).fit(Chunk({"x": np.arange(3)}), memory_budget=0)


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
def test_memory_stays_near_the_budget_however_many_values_there_are(tmp_path):
    """Of 6 million different values, 96 MB of state, 20 MB at a time are in memory."""
    generator = np.random.default_rng(0)
    many = generator.permutation(6_000_000)
    many[:100] = many[100:200]
    write(tmp_path / "many.parquet", pa.table({"id": many}), 131_072)
    write(tmp_path / "small.parquet", pa.table({"id": many[:1000]}), 131_072)
    peaks = {}
    for budget in (0, 20_000_000):
        command = [sys.executable, "-c", PEAK, str(tmp_path), str(budget)]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        peak, cardinality = done.stdout.split()
        assert int(cardinality) == 103
        peaks[budget] = float(peak)
    assert peaks[20_000_000] < 100 < 200 < peaks[0], peaks
