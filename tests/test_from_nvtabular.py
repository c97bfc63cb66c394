"""The page for those who come from NVTabular runs."""

import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib import Workflow, ops
from tutorlib.parquet import ParquetSink

PAGE = (Path(__file__).parents[1] / "docs/from_nvtabular.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.*?) \| (`.*) \|$", PAGE, flags=re.MULTILINE)


def test_a_workflow_can_be_copied_and_pickled():
    made = Workflow(["a"] >> ops.Normalize())
    assert repr(copy.deepcopy(made)) == repr(pickle.loads(pickle.dumps(made))) == repr(made)


def test_todays_side_of_every_row_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            **{name: rng.integers(0, 20, 500) for name in ("C1", "C2")},
            "I1": rng.normal(1, 1, 500).astype("float32"),
            "genres": [list(range(k % 5)) for k in range(500)],
            "label": rng.integers(0, 2, 500).astype("float32"),
        }
    )
    with ParquetSink("raw/a.parquet") as sink:
        sink.write(table)
    names = {}
    exec("from tutorlib import *", names)
    names |= {"np": np, "pa": pa, "pq": pq}
    assert len(ROWS) == PAGE.count("\n| ") - 2  # all but the heads of the tables
    for _, after in ROWS:
        exec(re.match(r"`(.*?)`", after)[1], names)
    inputs, labels = names["padded"].peek()
    assert inputs["genres"].shape == (64, 5)
    assert labels.shape == (64, 1)
    inputs, _ = names["online"].peek()
    assert set(inputs) == {"C1", "I1", "genres__values", "genres__nnzs"}
    assert names["sizes"] == names["workflow"].embedding_sizes()
    assert names["bounded"].describe()["budget_bytes"] == 10**9
