"""The ETL benchmark runs one job with several libraries and compares what they write."""

import importlib.util
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import etl, etl_clicks, figures, machine
from benchmarks.__main__ import main
from tests.support.figures import assert_reproducible
from tutorlib.parquet import ParquetSource

ROWS = 40_000
HERE = [name for name in etl.TITLES if etl.is_installed(name)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("etl")


@pytest.fixture(scope="module")
def measured(folder):
    """Report of a run over few rows: it shows only that the benchmark runs."""
    path = folder / "results" / "etl-here.json"
    words = ["--rows", ROWS, "--scale", 0.01, "--repeat", 1, "--data", folder, "--out", path]
    words += ["--growth", ROWS]
    assert main(["etl", *map(str, words)]) == 0
    return path


def test_every_installed_library_is_measured_and_the_others_are_named(measured):
    result = json.loads(measured.read_text())
    assert [entry["name"] for entry in result["candidates"]] == [etl.TITLES[n] for n in HERE]
    assert result["not_measured"] == [name for name in etl.TITLES if name not in HERE]
    assert set(HERE) <= result["versions"].keys()
    entries = result["candidates"] + [
        e for job in result["also"].values() for e in job["candidates"]
    ]
    assert [e["name"] for e in entries] == 3 * [etl.TITLES[name] for name in HERE]
    for entry in entries:
        [process] = entry["processes"]
        assert entry["elapsed_s"] == [sum(process["elapsed_s"])]
        assert entry["rows"] == entry["fit"]["rows"] == entry["transform"]["rows"] == ROWS
        assert all(0 < seconds for seconds in process["cpu_s"])
        assert entry["peak_bytes"] == max(process["peak_bytes"]) > 10**6
        assert process["written_bytes"] > ROWS * 3
    assert [claim["other"] for claim in result["claims"]] == [etl.TITLES[n] for n in HERE[1:]]
    table = etl.table(result)
    assert table.count("met ") == len(HERE)
    assert "required: at most 2,000 MB" in table


def test_growth_is_measured_on_one_core_and_on_two(measured):
    growth = json.loads(measured.read_text())["growth"]
    assert [(entry["rows"], entry["cores"]) for entry in growth] == [(ROWS, 1), (ROWS, 2)]
    for entry in growth:
        assert entry["rows_per_s"] == ROWS / sum(entry["elapsed_s"])
        assert entry["peak_bytes"] > 10**6
    one_core = growth[0]
    assert sum(one_core["cpu_s"]) < 1.05 * sum(one_core["elapsed_s"])


def test_only_the_raw_rows_are_kept(measured, folder):
    assert sorted(path.name for path in folder.iterdir()) == [
        "criteo-raw-40000-rows-scale-0.01-no-checksums",
        "ratings-raw-40000-rows",
        "results",
    ]


def test_lists_and_statistics_by_key_are_what_their_names_say(measured, folder):
    files = etl.raw_rows(folder, "lists", ROWS, 0.01)
    rows = pq.read_table(files[0]).to_pandas()
    target = folder.parent / "also"
    made = {}
    for job in etl.ALSO:
        task = etl.Task(job, "tutorlib", files, str(target / job))
        machine.in_fresh_process(etl.perform, task)
        made[job] = pq.read_table(target / job / "part_00000.parquet").to_pandas()
    order = rows["genres"].explode().value_counts().sort_index(kind="stable")
    order = order.sort_values(ascending=False, kind="stable").index.tolist()
    want = [[order.index(genre) + 3 for genre in genres] for genres in rows["genres"][:100]]
    assert [ids.tolist() for ids in made["lists"]["genres"][:100]] == want
    films = rows.groupby("movieId")["rating"].transform
    smoothed = films("sum") + 20 * rows["rating"].mean()
    np.testing.assert_allclose(
        made["statistics"]["movieId_rating_mean"], smoothed / (films("count") + 20), rtol=1e-5
    )


def test_raw_rows_are_strings_and_counts_as_in_the_raw_files(measured, folder):
    files = etl.raw_rows(folder, "clicks", ROWS, 0.01)
    source = ParquetSource(list(files))
    types = source.column_types
    assert source.num_rows == ROWS
    assert {types[name] for name in etl_clicks.STRINGS} == {("string", False)}
    assert {types[name] for name in etl_clicks.COUNTS} == {("int32", False)}
    first = pq.read_table(files[0], columns=["C1", "I1"]).slice(0, 1000)
    assert {len(value) for value in first["C1"].to_pylist() if value} == {8}
    assert first["I1"].null_count > 0


@pytest.fixture(scope="module")
def written(measured, folder):
    files = etl.raw_rows(folder, "clicks", ROWS, 0.01)
    target = folder.parent / "written"
    for name in ("tutorlib", "pandas"):
        machine.in_fresh_process(etl.perform, etl.Task("clicks", name, files, str(target / name)))
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
    raw = pq.read_table(etl.raw_rows(folder, "clicks", ROWS, 0.01)[0], columns=["C20"])[
        "C20"
    ].to_pandas()
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
    words += [
        "--also",
        "--growth",
        "--only",
        "polars",
        "tutorlib",
        "--out",
        folder / "results/alone.json",
    ]
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
