"""Training from s3:// gives the batches of local files, asks little, and names what fails.

The server is a process of its own (localbucket), to which a test gives delays and faults.
"""

import json
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
    store.requests()


def plain(batches):
    """Return batches as bytes with their names and shapes."""
    made = []
    for inputs, *rest in batches:
        arrays = {**inputs, **{f"rest {n}": array for n, array in enumerate(rest)}}
        made.append([(n, a.shape.as_list(), a.numpy().tobytes()) for n, a in arrays.items()])
    return made


def most_at_once(requests):
    """Return how many requests were being answered at one moment, at most."""
    times = [(r["start"], 1) for r in requests] + [(r["end"], -1) for r in requests]
    return max(np.cumsum([step for _, step in sorted(times)]))


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


def test_opening_asks_twice_a_file_and_many_files_at_once(store):
    store.requests(delay_ms=60)
    source = ParquetSource(URL)
    requests = store.requests()
    assert (
        len(requests) <= 2 * FILES + 4
    )  # and two for the first lists, one listing, is it a folder
    assert most_at_once(requests) >= FILES / 2
    assert source.num_rows == FILES * GROUPS * ROWS


def test_a_row_group_is_three_requests_and_many_are_read_ahead(store):
    source = ParquetSource(URL)
    store.requests()
    source.read(3)
    assert [r["method"] for r in store.requests()] == ["HEAD", "GET", "HEAD"]
    loader = loader_of(source)
    opening = store.requests(delay_ms=60)
    assert [r["path"] for r in opening] == ["/bucket/train/_schema.json"] * 3
    assert len(list(loader)) == len(loader)
    requests = store.requests()
    assert 2 * FILES * GROUPS <= len(requests) <= 3 * FILES * GROUPS
    assert most_at_once(requests) >= 3


def test_what_is_missing_or_forbidden_is_named_with_what_to_do(store, monkeypatch):
    for nowhere in ("s3://no-bucket", "s3://no-bucket/x.parquet", "s3://bucket/nothing"):
        with pytest.raises(FileNotFoundError, match=f"no Parquet file at '{nowhere}'"):
            ParquetSource(nowhere)
    refused = r"the object store failed .*ACCESS_DENIED.* Check endpoint .*AWS_ACCESS"
    store.requests(first=1, how=403)
    with pytest.raises(OSError, match=rf"{URL}: {refused}"):
        ParquetSource(URL)
    source = ParquetSource(URL)
    store.requests(first=1, how=403)
    with pytest.raises(ParquetError, match=rf"row group 0 of {URL}/day=0/0\.parquet: {refused}"):
        source.read(0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    filesystem = fs.S3FileSystem(
        endpoint_override=f"127.0.0.1:{port}", scheme="http",
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )  # fmt: skip
    with pytest.raises(OSError, match=r"the object store failed \(.*Check endpoint and network"):
        ParquetSource(URL, filesystem=filesystem)


def test_an_object_is_opened_where_names_that_do_not_exist_are_refused(store):
    loader = {"cat_names": ["item"], "cont_names": ["x"], "label_names": ["label"]}
    path = f"{URL}/day=0/0.parquet"
    store.requests(first=1000, how=403, key="_schema.json")
    assert len(loader_of(path, **loader)) == GROUPS * ROWS // 100
    assert not [r for r in store.requests() if r["fault"]]  # it is not asked for
    store.requests(first=1000, how=403, key="_schema.json")
    assert len(loader_of(f"{URL}/day=0", **loader)) == FILES // 3 * GROUPS * ROWS // 100


def test_messages_show_no_secrets_of_a_url(store):
    given = "s3://MINE:HIDDEN@bucket"
    (store.folder / "bucket" / "broken").mkdir()
    (store.folder / "bucket" / "broken" / "_schema.json").write_text("{")

    def forbidden():
        store.requests(first=1, how=403)
        ParquetSource(f"{given}/train")

    for fail in (
        forbidden,
        lambda: ParquetSource(f"{given}/nothing"),
        lambda: folder_schema([f"{given}/broken"]),
        lambda: new_file(f"{given}/x").__enter__(),
        lambda: ParquetSource("unheard://MINE:HIDDEN@bucket/train"),
    ):
        with pytest.raises((OSError, ValueError, ImportError), match="://bucket/") as error:
            fail()
        assert not re.search("MINE|HIDDEN", str(error.value))


@pytest.mark.parametrize("how", [500, 503, "reset", "cut"])
def test_a_request_that_fails_is_tried_again(store, how):
    source = ParquetSource(URL)
    position = next(n for n in range(len(source)) if "/2.parquet" in source.location(n))
    want = source.read(position).to_arrow()
    store.requests(first=1, how=how, method="GET", key="/2.parquet")
    assert source.read(position).to_arrow().equals(want)
    assert [r["fault"] for r in store.requests() if r["method"] == "GET"] == [how, None]


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_request_that_keeps_failing_is_named_with_its_tries_and_ends_the_pass(store):
    copied = pickle.loads(pickle.dumps(ParquetSource(URL)))
    loader = loader_of(copied)
    store.requests(first=1000, how=500, method="HEAD", key="7.parquet")
    place = re.escape(f"{URL}/day=1/7.parquet")
    with pytest.raises(
        ParquetError, match=rf"row group \d of {place}: .*the object store failed .*500"
    ):
        list(loader)
    failed = [r for r in store.requests() if r["fault"]]
    assert 3 <= len(failed) <= 3 * GROUPS  # its row groups may have been read at the same time


def test_a_pass_over_local_files_resumes_after_they_were_copied_to_the_store(store):
    loader = loader_of(store.folder / "bucket" / "train")
    batches = iter(loader)
    for _ in range(50):
        next(batches)
    state = json.dumps(loader.state_dict())
    rest = plain(batches)
    resumed = loader_of(URL)
    resumed.load_state_dict(json.loads(state))
    assert plain(resumed) == rest


def test_an_object_written_again_is_noticed_by_its_time(store):
    write(store.folder / "bucket" / "other")
    loader = loader_of("s3://bucket/other")
    state, source = loader.state_dict(), loader.source
    path = store.folder / "bucket" / "other" / "day=1" / "1.parquet"
    table = pq.read_table(path)
    order = np.arange(GROUPS * ROWS)
    order[:2] = [1, 0]
    time_ns = path.stat().st_mtime_ns + 10**9  # a store tells full seconds
    pq.write_table(table.take(order), path, row_group_size=ROWS, write_page_checksum=True)
    os.utime(path, ns=(time_ns, time_ns))
    position = next(n for n in range(len(source)) if path.name in source.location(n))
    with pytest.raises(
        ParquetError,
        match=r"1\.parquet: the file has changed since it was opened\. Open the source again",
    ):
        source.read(position)
    table = table.set_column(1, "x", pa.array(np.zeros(GROUPS * ROWS, "float32")))
    pq.write_table(table, path, row_group_size=ROWS)
    with pytest.raises(ValueError, match="footers"):
        loader_of("s3://bucket/other").load_state_dict(state)


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
