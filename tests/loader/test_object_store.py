"""Training from s3:// gives the batches of local files, asks little, and names what fails.

The server is a process of its own (localbucket), to which a test gives delays and faults.
"""

import os
import pickle
import re
import shutil
import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.support.documents import code_below
from tests.support.loaders import loader_with
from tests.support.object_store import object_store
from tutorlib.loader.roles import folder_schema
from tutorlib.output import new_file
from tutorlib.parquet import ParquetError, ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema
from tutorlib.workflow import Workflow

FILES, GROUPS, ROWS = 12, 2, 300  # row groups of a file, rows of a row group
URL = "s3://bucket/train"
loader_of = loader_with(100, shuffle=True, seed=3)


def write(folder):
    """Write files in folders of days, with the schema that a Workflow writes."""
    for number in range(FILES):
        first = number * GROUPS * ROWS
        row = np.arange(first, first + GROUPS * ROWS)
        columns = {"item": row % 50, "x": (row / 8).astype("float32")}
        columns["tags"] = [[r, r + 1] for r in row % 7]
        table = pa.table({**columns, "label": (row % 2).astype("float32")})
        path = folder / f"day={number % 3}" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=ROWS, write_page_checksum=True)
    columns = [
        Column("item", "categorical", cardinality=50), Column("x", "continuous"),
        Column("tags", "categorical", multi_hot=True, cardinality=8), Column("label", "label"),
    ]  # fmt: skip
    (folder / "_schema.json").write_text(Schema(columns).to_json())
    (folder / "_SUCCESS").touch()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    write(folder / "bucket" / "train")
    with pytest.MonkeyPatch.context() as patch, object_store(folder) as store:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store


@pytest.fixture(autouse=True)
def healthy(store):
    store.fail()


def plain(batches):
    """Return batches as bytes with their names and shapes."""
    made = []
    for inputs, *rest in batches:
        arrays = {**inputs, **{f"rest {n}": array for n, array in enumerate(rest)}}
        made.append([(n, a.shape.as_list(), a.numpy().tobytes()) for n, a in arrays.items()])
    return made


def test_the_batches_are_those_of_local_files_also_with_filters_keys_and_a_given_filesystem(store):
    folder = store.folder / "bucket" / "train"
    local = plain(loader_of(folder))
    assert len(local) == FILES * GROUPS * ROWS // 100
    assert plain(loader_of(URL)) == local  # the columns and roles are those of _schema.json
    own = {"endpoint_override": f"127.0.0.1:{store.port}", "scheme": "http"}
    assert plain(loader_of(f"{URL}?endpoint_override=127.0.0.1:{store.port}&scheme=http")) == local
    filesystem = fs.S3FileSystem(access_key="mine", secret_key="test", region="eu-west-1", **own)
    for path in (URL, "bucket/train"):
        source = ParquetSource(path, filesystem=filesystem)
        assert plain(loader_of(source)) == local
    some = {"filters": [("day", "in", [1, 2]), ("item", "<", 9)]}
    names = {"cat_names": ["day"], "cont_names": ["x"], "label_names": ["label"]}
    for path in (URL, URL + "/"):
        given = {"source": path, **some, **names}
        assert plain(loader_of(**given)) == plain(loader_of(folder, **some, **names))


def test_what_is_missing_or_forbidden_is_named_with_what_to_do(store, monkeypatch):
    for nowhere in ("s3://no-bucket", "s3://no-bucket/x.parquet", "s3://bucket/nothing"):
        with pytest.raises(FileNotFoundError, match=f"no Parquet file at '{nowhere}'"):
            ParquetSource(nowhere)
    refused = r".*ACCESS_DENIED"
    store.fail(first=1, how=403)
    with pytest.raises(OSError, match=rf"bucket.*{refused}"):
        ParquetSource(URL)
    source = ParquetSource(URL)
    store.fail(first=1, how=403)
    with pytest.raises(
        ParquetError,
        match=rf"row group 0 of bucket/train/day=0/0\.parquet: cannot be read.*{refused}",
    ):
        source.read(0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    filesystem = fs.S3FileSystem(
        endpoint_override=f"127.0.0.1:{port}", scheme="http",
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )  # fmt: skip
    with pytest.raises(OSError, match=r"AWS Error NETWORK_CONNECTION"):
        ParquetSource(URL, filesystem=filesystem)


def test_messages_show_no_secrets_of_a_url(store):
    given = "s3://MINE:HIDDEN@bucket"
    (store.folder / "bucket" / "broken").mkdir()
    (store.folder / "bucket" / "broken" / "_schema.json").write_text("{")

    def forbidden():
        store.fail(first=1, how=403)
        ParquetSource(f"{given}/train")

    for fail in (
        forbidden,
        lambda: ParquetSource(f"{given}/nothing"),
        lambda: folder_schema([f"{given}/broken"]),
        lambda: new_file(f"{given}/x").__enter__(),
        lambda: ParquetSource("unheard://MINE:HIDDEN@bucket/train"),
    ):
        with pytest.raises((OSError, ValueError, ImportError), match="bucket") as error:
            fail()
        assert not re.search("MINE|HIDDEN", str(error.value))


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_request_that_keeps_failing_is_named_and_ends_the_pass(store):
    copied = pickle.loads(pickle.dumps(ParquetSource(URL)))
    loader = loader_of(copied)
    store.fail(first=1000, how=500, method="HEAD", key="7.parquet")
    place = re.escape("bucket/train/day=1/7.parquet")
    with pytest.raises(ParquetError, match=rf"row group \d of {place}.*: cannot be read .*500"):
        list(loader)


def test_the_code_of_the_page_fits_as_on_local_files_and_trains_from_the_store(store, monkeypatch):
    monkeypatch.chdir(store.folder / "bucket")  # so that "train" is uploaded as it is written
    shutil.rmtree("train")
    rng = np.random.default_rng(0)
    columns = {"C1": rng.integers(0, 9, 500), "C2": rng.integers(0, 5, 500), "x": rng.random(500)}
    with ParquetSink("raw") as sink:
        sink.write(pa.table({**columns, "label": rng.integers(0, 2, 500) / 1.0}))
    made = {}
    exec(code_below("docs/scale_out.md", "Data in an object store"), made)
    assert sum(len(labels) for _, labels in made["loader"]) == 500
    local = Workflow(*made["workflow"].groups).fit("raw")
    assert local.fingerprint == made["workflow"].fingerprint
    assert local.fingerprint == Workflow.load("train/_workflow").fingerprint
    shutil.rmtree("train")
    write(store.folder / "bucket" / "train")
