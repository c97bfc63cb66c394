"""The ETL benchmark runs one job with several libraries and compares what they write."""

import importlib.util
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import etl, figures, machine
from benchmarks.__main__ import main
from tests.support.figures import assert_reproducible
from tutorlib.parquet import ParquetSource

ROWS = 40_000
HERE = [name for name in etl.JOBS if etl.is_installed(name)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("etl")


@pytest.fixture(scope="module")
def measured(folder):
    """Report of a run over few rows: it shows only that the benchmark runs."""
    path = folder / "results" / "etl-here.json"
    words = ["--rows", ROWS, "--scale", 0.01, "--repeat", 1, "--data", folder, "--out", path]
    assert main(["etl", *map(str, words)]) == 0
    return path


def test_every_installed_library_is_measured_and_the_others_are_named(measured):
    result = json.loads(measured.read_text())
    assert [entry["name"] for entry in result["candidates"]] == [etl.TITLES[n] for n in HERE]
    assert result["not_measured"] == [name for name in etl.JOBS if name not in HERE]
    assert set(HERE) <= result["versions"].keys()
    for entry in result["candidates"]:
        [process] = entry["processes"]
        assert entry["elapsed_s"] == [sum(process["elapsed_s"])]
        assert entry["rows"] == entry["fit"]["rows"] == entry["transform"]["rows"] == ROWS
        assert all(0 < seconds for seconds in process["cpu_s"])
        assert entry["peak_bytes"] == max(process["peak_bytes"]) > 10**6
        assert process["written_bytes"] > ROWS * 26
    assert [claim["other"] for claim in result["claims"]] == [etl.TITLES[n] for n in HERE[1:]]
    table = etl.table(result)
    assert table.count("met ") == len(HERE)
    assert "required: at most 2,000 MB" in table


def test_only_the_raw_rows_are_kept(measured, folder):
    assert sorted(path.name for path in folder.iterdir()) == [
        "criteo-raw-40000-rows-scale-0.01",
        "results",
    ]


def test_raw_rows_are_strings_and_counts_as_in_the_raw_files(measured, folder):
    files = etl.raw_rows(folder, ROWS, 0.01)
    source = ParquetSource(list(files))
    types = source.column_types
    assert source.num_rows == ROWS
    assert {types[name] for name in etl.STRINGS} == {("string", False)}
    assert {types[name] for name in etl.COUNTS} == {("int32", False)}
    first = pq.read_table(files[0], columns=["C1", "I1"]).slice(0, 1000)
    assert {len(value) for value in first["C1"].to_pylist() if value} == {8}
    assert first["I1"].null_count > 0


@pytest.fixture(scope="module")
def written(measured, folder):
    files = etl.raw_rows(folder, ROWS, 0.01)
    target = folder.parent / "written"
    for name in ("tutorlib", "pandas"):
        machine.in_fresh_process(etl.perform, etl.Task(name, files, str(target / name)))
    return target


def test_jobs_that_wrote_different_values_are_refused(written):
    ours = written / "tutorlib"
    etl.check_equal(ours, written / "pandas", ROWS)
    table = pq.read_table(ours / "part_00000.parquet")
    for name, value in (("C3", 1), ("I2", 3e-5), ("label", 1)):
        changed = table[name].to_numpy().copy()
        changed[777] += np.asarray(value, changed.dtype)
        place = table.schema.get_field_index(name)
        other = written / "changed"
        shutil.rmtree(other, ignore_errors=True)
        other.mkdir()
        pq.write_table(table.set_column(place, name, pa.array(changed)), other / "part.parquet")
        with pytest.raises(ValueError, match=f"column '{name}': tutorlib wrote .* in row 777"):
            etl.check_equal(ours, other, ROWS)
    with pytest.raises(ValueError, match="wrote 40000 rows"):
        etl.check_equal(ours, written / "pandas", ROWS + 1)


def test_ids_are_ordered_by_frequency_then_by_bytes(written, folder):
    raw = pq.read_table(etl.raw_rows(folder, ROWS, 0.01)[0], columns=["C20"])["C20"].to_pandas()
    counts = raw.value_counts()
    order = sorted(counts[counts >= etl.FREQ_THRESHOLD].items(), key=lambda x: (-x[1], x[0]))
    ids = {value: number for number, (value, _) in enumerate(order, 3)}
    want = [1 if isinstance(value, float) else ids.get(value, 2) for value in raw]
    have = pq.read_table(written / "tutorlib/part_00000.parquet", columns=["C20"])["C20"]
    assert have.to_pylist() == want


def test_a_library_that_is_not_installed_is_reported_with_the_way_to_install_it(
    measured, folder, capsys, monkeypatch
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "polars" else find(name)
    )
    words = ["--rows", ROWS, "--scale", 0.01, "--repeat", 1, "--data", folder]
    words += ["--only", "polars", "tutorlib", "--out", folder / "results/alone.json"]
    assert main(["etl", *map(str, words)]) == 0
    assert "not measured: Polars, streaming: not installed here; pip install polars" in (
        capsys.readouterr().out
    )
    result = json.loads((folder / "results/alone.json").read_text())
    assert [entry["name"] for entry in result["candidates"]] == ["tutorlib"]
    assert result["claims"] == []
    (folder / "results/alone.json").unlink()


def test_the_figure_is_reproducible(measured, tmp_path):
    assert_reproducible("etl", figures.draw_etl, measured.parent, tmp_path)
