"""Which files a path means: each file once, however it is named or linked."""

import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tutorlib import KerasSequenceLoader
from tutorlib.ops import Normalize
from tutorlib.parquet import ParquetSink, ParquetSource, find_files
from tutorlib.workflow import Workflow


def write(path, first=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": range(first, first + 100)}), path)
    return path


@pytest.fixture
def data(tmp_path):
    write(tmp_path / "data" / "part_0.parquet")
    write(tmp_path / "data" / "v1" / "part_1.parquet", 100)
    return tmp_path / "data"


TWICE = {
    "a link to a file": lambda d: (d / "latest.parquet").symlink_to("part_0.parquet"),
    "a link below": lambda d: (d / "v1" / "latest.parquet").symlink_to(d / "part_0.parquet"),
    "a link to a folder": lambda d: (d / "current").symlink_to("v1"),
    "a link to a link": lambda d: (
        (d / ".hidden").symlink_to("v1"),
        (d / "current").symlink_to(".hidden"),
    ),
}


@pytest.mark.parametrize("link", TWICE)
def test_a_file_that_a_link_names_again_is_refused(data, link):
    TWICE[link](data)
    for path in (data, f"{data}/", data / "**" / "*.parquet"):
        with pytest.raises(ValueError, match=r"is given twice \(also as "):
            ParquetSource(path)
    with pytest.raises(ValueError, match="is given twice"):
        KerasSequenceLoader(data, 10)
    (only,) = find_files(data / "part_0.parquet")
    assert only.path == f"{data}/part_0.parquet"


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_a_link_that_leads_back_to_a_folder_above_is_refused(data, target):
    (data / "v1" / "loop").symlink_to(data / "v1" / target)
    with pytest.raises((OSError, ValueError), match=r"loop/.*(link|twice)"):
        ParquetSource(data)
    assert ParquetSource(data / "v1" / "*.parquet").num_rows == 100  # no deeper than the pattern
    assert ParquetSource([data / "part_0.parquet", data / "v1" / "part_1.parquet"]).num_rows == 200


def test_one_file_in_several_spellings_is_refused(data, monkeypatch):
    monkeypatch.chdir(data)
    os.symlink("part_0.parquet", "latest.parquet")
    os.symlink("v1", "current")
    for paths in (
        ["part_0.parquet", "latest.parquet"],
        ["part_0.parquet", "./part_0.parquet"],
        ["part_0.parquet", data / "part_0.parquet"],
        ["part_0.parquet", (data / "part_0.parquet").as_uri()],
        ["v1", "./v1"],
        ["v1", "current"],
        ["p*.parquet", "*_0.parquet"],
        ["*/part_1.parquet"],
    ):
        with pytest.raises(ValueError, match="is given twice"):
            find_files(paths)


def test_a_link_that_is_the_path_itself_is_followed(data, tmp_path):
    (data / "current").symlink_to("v1")
    (tmp_path / "one.parquet").symlink_to(data / "part_0.parquet")
    (tmp_path / "ü").symlink_to(data / "current")
    for path in (data / "current", f"{data}/current/", tmp_path / "one.parquet", tmp_path / "ü",
                 data / "c*" / "*.parquet", f"{data}/current/*.parquet"):  # fmt: skip
        assert ParquetSource(path).num_rows == 100
    assert ParquetSource([tmp_path / "one.parquet", data / "current"]).num_rows == 200


def test_a_folder_of_links_into_a_cache_is_a_data_set(tmp_path):
    """Such as `huggingface_hub` makes; one file and one folder of keys are links to elsewhere."""
    snapshot = tmp_path / "snapshots" / "1f2e" / "data"
    snapshot.mkdir(parents=True)
    for number in range(3):
        write(tmp_path / "blobs" / f"{number:064x}", 100 * number)
        (snapshot / f"train-{number}.parquet").symlink_to(f"../../../blobs/{number:064x}")
    source = ParquetSource(snapshot)
    assert [chunk["x"][0] for chunk in source.chunks()] == [0, 100, 200]
    write(tmp_path / "disk" / "part.parquet")
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / "day=3").symlink_to(tmp_path / "disk")
    assert ParquetSource(tmp_path / "days").read(0)["day"].tolist() == [3] * 100
    (tmp_path / "blobs" / f"{1:064x}").unlink()
    (tmp_path / "days" / "day=4").symlink_to("nowhere")
    for path, link in ((snapshot, r"train-1.parquet is a link to \.\./.*0001"),
                       (tmp_path / "days", "day=4 is a link to nowhere")):  # fmt: skip
        with pytest.raises(FileNotFoundError, match=f"{link}, which cannot be read. Restore"):
            ParquetSource(path)


def test_links_to_nothing_and_pipes_that_are_no_data_are_ignored(data):
    (data / "README.md").symlink_to("nowhere")
    (data / ".lock.parquet").symlink_to("nowhere")
    os.mkfifo(data / "pipe.parquet")
    assert ParquetSource(data).num_rows == 200


def test_endings_in_capitals_count_too(data):
    (data / "part_0.parquet").rename(data / "PART_0.PARQUET")
    assert ParquetSource(data).num_rows == 200


def test_a_folder_whose_name_has_brackets_may_hold_a_pattern(data, tmp_path, monkeypatch):
    data.rename(tmp_path / "data [v2]")
    monkeypatch.chdir(tmp_path)
    for path in ("data [v2]/*.parquet", tmp_path / "data [v2]" / "*.parquet", "data [v2]/p*_[0-9]*",
                 "d* ?v2?/*.parquet", "data [[]v2]/*.parquet"):  # fmt: skip
        assert ParquetSource(path).num_rows == 100
    assert ParquetSource("data [v2]/**/*.parquet").num_rows == 200
    memory = fsspec.filesystem("memory")
    memory.pipe("/brackets [v2]/x.parquet", (tmp_path / "data [v2]/part_0.parquet").read_bytes())
    assert ParquetSource("memory://brackets [v2]/*.parquet").num_rows == 100
    memory.rm_file("/brackets [v2]/x.parquet")


def test_a_tilde_is_the_home_folder_wherever_a_path_is_taken(data, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "data")
    for path in (
        "~/data",
        "~/data/",
        ["~/data/part_0.parquet", "~/data/v1"],
        "~/data/**/*.parquet",
    ):
        assert ParquetSource(path).num_rows == 200
    assert ParquetSource("~/data", filesystem=fs.LocalFileSystem()).num_rows == 200
    fitted = Workflow(["x"] >> Normalize()).fit("~/data")
    with pytest.raises(ValueError, match="overlaps the input"):
        fitted.transform_to_parquet("~/data", tmp_path / "data" / "out")
    with pytest.raises(ValueError, match="overlaps the input"):
        fitted.transform_to_parquet(data, "~/data/out")
    assert fitted.transform_to_parquet("~/data", "~/out") == tmp_path / "out"
    with pytest.raises(FileExistsError, match="exists already"):
        fitted.transform_to_parquet("~/data", "~/out")
    fitted.save("~/workflow")
    assert Workflow.load("~/workflow").output_schema == fitted.output_schema
    with ParquetSink("~/made/x.parquet") as sink:
        sink.write(pa.table({"x": [1]}))
    assert KerasSequenceLoader("~/out", 10).source.num_rows == 200
    assert {"made", "out", "workflow"} < set(os.listdir(tmp_path))
    assert sorted(os.listdir(data)) == ["part_0.parquet", "v1"]


def test_a_path_without_files_is_refused(data):
    for path in (data / "v2" / "x", f"{data}/v1/*.csv", [data / "nowhere"]):
        with pytest.raises(FileNotFoundError, match=r"no Parquet file at .*/(v2|v1|nowhere)"):
            ParquetSource(path)
    with pytest.raises(FileNotFoundError, match="empty"):
        ParquetSource([])


def test_numbers_in_names_are_sorted_by_their_value(tmp_path):
    """A split by time in the order of the files takes the last months for the last."""
    for month in (1, 2, 10, 11):
        write(tmp_path / f"month={month}" / "x.parquet", month)
        write(tmp_path / "flat" / f"part.{month}.snappy.parquet", month)
    memory = fsspec.filesystem("memory")
    for path in sorted(tmp_path.rglob("*.parquet")):
        memory.pipe(f"/order/{path.relative_to(tmp_path)}", path.read_bytes())
    for root in (f"{tmp_path}", "memory://order"):
        for path in (f"{root}/month=*/*", f"{root}/month=*/x.parquet", f"{root}/flat"):
            source = ParquetSource(path)
            assert [chunk["x"][0] for chunk in source.chunks()] == [1, 2, 10, 11]
    months = ParquetSource([tmp_path / "flat", f"{tmp_path}/month=*/*"])
    assert [chunk["x"][0] for chunk in months.chunks()] == [1, 2, 10, 11] * 2
    memory.rm("/order", recursive=True)


@pytest.mark.parametrize(
    ("log", "remedy"),
    [
        ("_delta_log/00000000000000000000.json", r"Delta Lake .*file_uris\(\)"),
        (".hoodie/hoodie.properties", r"Hudi .*read_snapshot\(\)"),
        ("metadata/00001-1f2e.metadata.json", r"Iceberg .*plan_files\(\)"),
    ],
)
def test_a_folder_of_a_table_format_is_refused_with_what_lists_its_live_files(data, log, remedy):
    (data / log).parent.mkdir()
    (data / log).write_text("{}")
    memory = fsspec.filesystem("memory")
    for path in (path for path in data.rglob("*") if path.is_file()):
        memory.pipe(f"/table/{path.relative_to(data)}", path.read_bytes())
    for path in (data, "memory://table", f"{data}/*.parquet", f"{data}/**/*.parquet"):
        with pytest.raises(ValueError, match=remedy):
            ParquetSource(path)
    memory.rm("/table", recursive=True)
    live = [data / "part_0.parquet", data / "v1" / "part_1.parquet"]
    assert ParquetSource(live).num_rows == 200
