"""Outputs in an object store are whole or refused."""

import os
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.support.documents import code_below
from tests.support.object_store import object_store
from tests.support.workflow_rows import contents
from tutorlib.filesystems import UNFINISHED_FILE
from tutorlib.ops import Categorify, Normalize
from tutorlib.output import MARK
from tutorlib.parquet import ParquetSink, ParquetSource, find_files
from tutorlib.workflow import Workflow

FILES, ROWS, PER_FILE = 6, 6000, 500
URL = "s3://bucket/raw"


@pytest.fixture
def store(tmp_path, monkeypatch):
    (tmp_path / "bucket").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with object_store(tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        with ParquetSink(URL, row_group_rows=PER_FILE, rows_per_file=2 * PER_FILE) as sink:
            sink.write(pa.table({"item": np.arange(ROWS) % 37, "x": np.arange(ROWS) / 8.0}))
        yield store


def workflow():
    return Workflow(["item"] >> Categorify(), ["x"] >> Normalize())


def test_a_workflow_is_fitted_transforms_and_is_saved_in_the_store_as_on_this_machine(store):
    bucket = store.folder / "bucket"
    near = workflow().fit(bucket / "raw")
    far = workflow().fit(URL)
    assert far.fingerprint == near.fingerprint
    options = {"rows_per_file": 1000, "row_group_rows": 250, "shuffle_seed": 4}
    near.transform_to_parquet(bucket / "raw", store.folder / "near", **options)
    assert far.transform_to_parquet(URL, "s3://bucket/far", **options) == "s3://bucket/far"
    assert contents(bucket / "far") == contents(store.folder / "near")
    assert far.save("s3://bucket/saved") == "s3://bucket/saved"
    own = fs.S3FileSystem(endpoint_override=f"127.0.0.1:{store.port}", scheme="http")
    for folder, filesystem in (("s3://bucket/saved", None), ("bucket/far/_workflow", own)):
        assert Workflow.load(folder, filesystem=filesystem).fingerprint == near.fingerprint
    with ParquetSink("bucket/one.parquet", filesystem=own) as sink:
        sink.write(pa.table({"x": [1, 2]}))
    assert pq.read_table(bucket / "one.parquet")["x"].to_pylist() == [1, 2]
    assert os.listdir(store.folder / "tmp") == []  # nothing is left on this machine


def test_what_is_there_is_neither_lost_nor_mixed(store):
    fitted = workflow().fit(URL)
    with pytest.raises(FileExistsError, match=r"s3://bucket/raw exists already\. Pass overwrite"):
        ParquetSink(URL)
    with pytest.raises(
        ValueError, match=r"output s3://bucket/raw/x overlaps the input s3://bucket"
    ):
        fitted.transform_to_parquet(URL, f"{URL}/x")
    own = fs.S3FileSystem(endpoint_override=f"127.0.0.1:{store.port}", scheme="http")
    given = ParquetSource("bucket/raw", filesystem=own)
    with pytest.raises(ValueError, match=r"s3://bucket/raw/x overlaps the input s3://bucket/raw"):
        fitted.transform_to_parquet(given, f"{URL}/x")
    fitted.transform_to_parquet(URL, "s3://bucket/out", rows_per_file=1000, row_group_rows=500)
    fitted.transform_to_parquet(URL, "s3://bucket/out", rows_per_file=6000, overwrite=True)
    assert len(find_files("s3://bucket/out")) == 1
    (store.folder / "bucket" / "out" / MARK).unlink()
    with pytest.raises(FileExistsError, match="was not made by tutorlib"):
        fitted.save("s3://bucket/out", overwrite=True)
    with pytest.raises(FileNotFoundError, match="there is nothing at s3://bucket/nowhere"):
        Workflow.load("s3://bucket/nowhere")
    with pytest.raises(OSError, match=r"s3://no-bucket/x.* the object store failed"):
        fitted.save("s3://no-bucket/x")
    with pytest.raises(ValueError, match=r"client=, workers write .* not to s3://bucket/new"):
        fitted.transform_to_parquet(URL, "s3://bucket/new", client=object())


def test_an_upload_that_fails_leaves_nothing_that_a_reader_takes(store):
    fitted = workflow().fit(URL)
    options = {"rows_per_file": 1000, "row_group_rows": 500}
    store.requests(first=1000, how=403, method="POST", key="part_00003")
    with pytest.raises(OSError, match=r"s3://bucket/out/part_00003.parquet: .* failed"):
        fitted.transform_to_parquet(URL, "s3://bucket/out", **options)
    assert not (store.folder / "bucket" / "out" / "part_00003.parquet").exists()
    refused = rf"s3://bucket/out is being written, or a run .* holds {UNFINISHED_FILE}\. Wait"
    for read in (ParquetSource, Workflow.load):
        with pytest.raises(ValueError, match=refused):
            read("s3://bucket/out")
    store.requests()
    fitted.transform_to_parquet(URL, "s3://bucket/out", **options)
    fitted.transform_to_parquet(URL, store.folder / "near", **options)
    assert contents(store.folder / "bucket" / "out") == contents(store.folder / "near")
    store.requests(first=1000, how=403, method="PUT")
    with pytest.raises(OSError, match="object store failed"):
        with ParquetSink("s3://bucket/one.parquet") as sink:
            sink.write(pa.table({"x": [1, 2]}))
    assert not (store.folder / "bucket" / "one.parquet").exists()


def test_the_code_of_the_page_runs(store):
    rng = np.random.default_rng(0)
    columns = {"C1": rng.integers(0, 9, 500), "C2": rng.integers(0, 5, 500), "x": rng.random(500)}
    with ParquetSink("s3://bucket/raw", overwrite=True) as sink:
        sink.write(pa.table({**columns, "label": rng.integers(0, 2, 500) / 1.0}))
    made = {}
    exec(code_below("docs/scale_out.md", "Data in an object store"), made)
    loader = made["loader"]
    assert (loader.num_rows, loader.schema.labels.names) == (500, ["label"])
    assert sum(len(labels) for _, labels in loader) == 500
    fitted = Workflow.load(store.folder / "bucket" / "train" / "_workflow")
    assert made["workflow"].fingerprint == fitted.fingerprint
