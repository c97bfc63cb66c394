"""What the loader does no more often than it must: hashes and opened files, counted, not timed."""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.loaders import loader_with
from tests.support.training import model_of

ROWS, FILES = 1_000, 8
loader_of = loader_with(100, cat_names=[], cont_names=["x"], label_names=["label"])


@pytest.fixture
def table():
    x = np.random.default_rng(0).standard_normal(ROWS).astype("float32")
    return pa.table({"x": x, "label": (x > 0).astype("float32")})


@pytest.fixture(params=["files", "memory"])
def data(request, table, tmp_path):
    if request.param == "memory":
        return table
    for number in range(FILES):
        rows = table.slice(number * ROWS // FILES, ROWS // FILES)
        pq.write_table(rows, tmp_path / f"{number}.parquet")
    return tmp_path


@pytest.fixture
def hashed(monkeypatch):
    """Bytes of each hash that anything in this process takes, in a list."""
    sizes, sha256 = [], hashlib.sha256

    class Counted:
        def __init__(self, data=b""):
            self.inner = sha256()
            self.update(data)

        def update(self, data):
            sizes.append(memoryview(data).nbytes)
            self.inner.update(data)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    monkeypatch.setattr(hashlib, "sha256", Counted)
    return sizes


def test_fit_evaluate_and_predict_of_one_process_hash_nothing(data, hashed):
    loader, valid, model = loader_of(data), loader_of(data, shuffle=False), model_of()
    model.fit(loader, epochs=2, validation_data=valid, verbose=0)
    model.evaluate(valid, verbose=0)
    model.predict(valid, verbose=0)
    loader.predict(model, verbose=0)
    assert hashed == []


def test_the_data_are_hashed_for_the_first_of_many_states_only(data, hashed):
    loader = loader_of(data)
    states, sizes = [], []
    for _ in loader:
        states.append(loader.state_dict())
        sizes.append(sum(hashed))
        hashed.clear()
    assert sizes[0] > 2_000 > sizes[1] == sizes[-1]
    assert [state["batch"] for state in states] == [*range(1, ROWS // 100), 0]
    assert states[0]["data"] == loader_of(data).state_dict()["data"]


def test_an_epoch_opens_a_file_once_for_each_row_group(table, tmp_path, monkeypatch):
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    loader, opened, parquet_file = loader_of(tmp_path), [], pq.ParquetFile

    def counted(*arguments, **options):
        opened.append(1)
        return parquet_file(*arguments, **options)

    monkeypatch.setattr(pq, "ParquetFile", counted)
    for epoch in range(3):
        assert len(list(loader)) == len(opened) - ROWS // 100 * epoch == ROWS // 100


def test_canonical_ranks_of_a_process_share_the_partitions_of_an_epoch(data):
    loader = loader_of(data, batch_size=128, canonical_ranks=64)
    first, *others = loader.plan.ranks
    assert len(others) == 63
    assert all(rank.partitions is first.partitions for rank in others)
