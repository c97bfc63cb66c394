"""A Dask cluster fits and writes the same bits as threads, also when a worker is killed."""

import contextlib
import os
import signal
import time

import numpy as np
import pyarrow as pa
import pytest

from tests.support.documents import code_below
from tests.support.processes import started
from tests.support.workflow_rows import OUTPUTS, all_rows, contents, rows, same, workflow, write
from tutorlib.ops import Categorify, LogOp, Normalize
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow

distributed = pytest.importorskip("distributed")


@contextlib.contextmanager
def cluster_of(workers):
    """Give the client of so many worker processes."""
    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(processes=True, **options) as running,
        distributed.Client(running) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def two_workers():
    with cluster_of(2) as client:
        yield client


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dask") / "rows.parquet", rows(2000), 57)


def test_a_cluster_writes_the_same_bytes_as_threads(two_workers, source, tmp_path):
    fitted = workflow().fit(source)
    assert workflow().fit(source, two_workers).fingerprint == fitted.fingerprint
    options = {"row_group_rows": 100, "rows_per_file": 300, "shuffle_seed": 3}
    threads = fitted.transform_to_parquet(source, tmp_path / "threads", **options)
    workers = fitted.transform_to_parquet(
        source, tmp_path / "workers", client=two_workers, **options
    )
    assert len(list(threads.glob("part_*"))) == 7
    assert contents(threads) == contents(workers)
    assert sorted(all_rows(workers)["label"].tolist()) == sorted(rows(2000)["label"].to_pylist())
    assert ParquetSource(workers).read(0).names == OUTPUTS


class Deadly(Normalize):
    """Normalize whose process dies, as by the system, once for each file in `folder`.

    The name of a file begins with the step in which it dies: "partial", "merge", "learn" or
    "transform".
    """

    def __init__(self, folder):
        self.folder = folder

    def die(self, step):
        for death in os.listdir(self.folder):
            if death.startswith(step):
                try:
                    os.remove(os.path.join(self.folder, death))
                except FileNotFoundError:
                    continue  # the other process died of it
                os.kill(os.getpid(), signal.SIGKILL)

    def partial(self, chunk):
        self.die("partial")
        time.sleep(0.02)
        return super().partial(chunk)

    def merge_states(self, states):
        self.die("merge")
        return super().merge_states(states)

    def learn(self, name, merged):
        self.die("learn")
        return super().learn(name, merged)

    def transform_column(self, name, column):
        self.die("transform")
        return super().transform_column(name, column)


def deadly(folder):
    """Return a Workflow whose processes die as the files in `folder` say."""
    folder.mkdir(exist_ok=True)
    groups = [["price"] >> Deadly(str(folder)), ["userId", "word", "tags"] >> Categorify()]
    return Workflow(*groups, ["label"])


def test_workers_killed_in_fit_do_not_change_the_result(two_workers, source, tmp_path):
    """One dies with a task begun, one while it merges, one when all states are merged."""
    want = deadly(tmp_path / "deaths").fit(source).fingerprint
    before = set(two_workers.run(os.getpid).values())
    for step in ("partial", "merge", "learn"):
        (tmp_path / "deaths" / step).touch()
    dying = deadly(tmp_path / "deaths").fit(source, two_workers)
    assert os.listdir(tmp_path / "deaths") == []
    assert dying.fingerprint == want
    two_workers.wait_for_workers(2)
    assert before - set(two_workers.run(os.getpid).values())


def test_an_error_on_a_worker_names_op_column_and_row_group(two_workers, tmp_path):
    path = write(tmp_path / "x.parquet", pa.table({"x": [0.0, 1.0, -5.0, 2.0]}), 2)
    failing = Workflow(["x"] >> LogOp() >> Normalize())
    with pytest.raises(ValueError, match=r"'x': LogOp .* got -5.0 .*row group 1 of .*x\.parquet"):
        failing.fit(path, two_workers)
    with pytest.raises(ValueError, match="Call fit"):
        failing.transform(ParquetSource(path).read(0))
    fitted = Workflow(["x"] >> LogOp()).fit(path, two_workers)
    with pytest.raises(ValueError, match=r"'x': LogOp .* got -5.0 .*row group 1 of .*x\.parquet"):
        fitted.transform_to_parquet(path, tmp_path / "out", client=two_workers)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.parquet"]


@pytest.mark.slow
def test_the_program_of_the_page_prepares_a_folder_as_threads_do(tmp_path):
    """Its workers import the file in which it is."""
    rng = np.random.default_rng(0)
    columns = {"C1": rng.integers(0, 9, 500), "C2": rng.integers(0, 5, 500), "x": rng.random(500)}
    write(tmp_path / "raw" / "a.parquet", pa.table({**columns, "label": rng.random(500)}), 50)
    code = code_below("docs/scale_out.md", "Preprocessing on a cluster")
    (tmp_path / "prepare.py").write_text(code)
    with (tmp_path / "log").open("w") as log, started(["prepare.py"], log, tmp_path) as process:
        assert process.wait(120) == 0, (tmp_path / "log").read_text()
    groups = [["C1", "C2"] >> Categorify(), ["x"] >> Normalize()]
    want = Workflow(*groups, ["label"]).fit(tmp_path / "raw")
    assert Workflow.load(tmp_path / "train" / "_workflow").fingerprint == want.fingerprint
    assert same(all_rows(tmp_path / "train"), want.transform(all_rows(tmp_path / "raw")))
