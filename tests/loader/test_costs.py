"""What the loader does no more often than it must: hashes and opened files, counted, not timed."""

import hashlib
import pickle
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.loaders import come_to_an_end, loader_with, open_files
from tutorlib.parquet import ParquetSource

ROWS = 1_000
loader_of = loader_with(100, cat_names=[], cont_names=["x"], label_names=["label"])


def table_of(rows):
    return pa.table({"x": np.arange(rows, dtype="float32"), "label": np.zeros(rows, "float32")})


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


def test_the_data_are_hashed_for_the_first_of_many_states_only(hashed):
    data = table_of(ROWS)
    loader = loader_of(data)
    states, sizes = [], []
    for _ in loader:
        states.append(loader.state_dict())
        sizes.append(sum(hashed))
        hashed.clear()
    assert sizes[0] > 2_000 > sizes[1] == sizes[-1]
    assert [state["batch"] for state in states] == [*range(1, ROWS // 100), 0]
    assert states[0]["fingerprint"] == loader_of(data).state_dict()["fingerprint"]


@pytest.mark.parametrize("changes", [{}, {"drop_last": True}, {"shuffle": False}], ids=str)
def test_rows_and_batches_are_counted_as_they_are_taken(changes):
    loader = loader_of(table_of(ROWS + 50), 15, **changes)
    assert (loader.stats()["rows"], loader.stats()["batches"]) == (0, 0)
    for epoch in (1, 2):
        batches = list(loader)
        rows = sum(len(labels) for _, labels in batches)
        stats = loader.stats()
        assert (stats["rows"], stats["batches"]) == (epoch * rows, epoch * len(batches))


@pytest.fixture
def opened(monkeypatch):
    """(Thread, path) of each file that is opened for its rows, "footer" of others, in a list."""
    places, parquet_file = [], pq.ParquetFile

    def open_file(path, **options):
        has_footer = options.get("metadata") is not None
        places.append((threading.get_ident(), path) if has_footer else "footer")
        return parquet_file(path, **options)

    monkeypatch.setattr(pq, "ParquetFile", open_file)
    return places


WIDE = [f"f{number}" for number in range(200)]


@pytest.mark.parametrize("changes", [{}, {"memory_budget": "64MB"}, {"shuffle": False}], ids=str)
@pytest.mark.parametrize("names", [["x"], WIDE], ids=["one column", "200 columns"])
def test_an_epoch_opens_a_file_once_a_thread_and_reads_its_footer_once_ever(
    names, changes, tmp_path, opened
):
    rows, files, groups = 4_000, 4, 10
    values = np.random.default_rng(0).random((rows, len(names)), dtype="float32")
    columns = dict(zip(names, values.T, strict=True)) | {"label": np.zeros(rows, "float32")}
    for number in range(files):
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet", rows // groups)
    made = {"cont_names": names, "threads": 2, **changes}
    loader = loader_of(tmp_path, 1000, **made)
    assert opened == ["footer"] * files
    for _ in range(3):
        opened.clear()
        assert sum(len(labels) for _, labels in loader) == rows * files
        assert len({path for _, path in opened}) == files
        assert files <= len(opened) <= 2 * files


def test_idle_files_are_few_and_are_closed_with_their_pass_or_their_source(tmp_path):
    for number in range(20):
        pq.write_table(table_of(50), tmp_path / f"{number}.parquet")
    before = open_files()
    loader, source = loader_of(tmp_path), ParquetSource(tmp_path)
    assert len(list(loader)) == ROWS // 100
    assert come_to_an_end(lambda: open_files() - before)
    assert sum(chunk.num_rows for chunk in source.chunks()) == ROWS
    assert 0 < open_files() - before < 10
    copy = pickle.loads(pickle.dumps(source.head(50)))
    source.close()
    assert open_files() == before
    assert copy.read(0)["x"].tolist() == source.read(0)["x"].tolist()
    del source, copy
    assert open_files() == before


def test_as_many_row_groups_are_open_as_a_chunk_has_parts(tmp_path):
    """A row group whose slices go to several chunks is closed before another one is opened."""
    for number in range(12):
        pq.write_table(table_of(10_000), tmp_path / f"{number}.parquet")
    made = {"buffer_size": 1_000, "parts_per_chunk": 3, "threads": 2}
    before, most = open_files(), 0
    for _ in loader_of(tmp_path, **made).map(lambda rows: rows):
        most = max(most, open_files() - before)
    assert 0 < most <= 3
