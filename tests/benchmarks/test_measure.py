"""A benchmark takes turns, reports hardware and versions, and its figure can be drawn."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import figures, machine, measure
from benchmarks.__main__ import MEASURING, main
from benchmarks.data import column_sums, criteo_shape, movielens_shape
from benchmarks.loader import ASLEEP, BASELINE, CLAIMS, FIT, SECTIONS, Inputs, consume
from benchmarks.machine import MemoryWatch
from tutorlib.parquet import ParquetSource
from tutorlib.storage import mark


class Clock:
    """A clock that a test advances."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_candidates_take_turns_and_the_warm_up_is_not_counted():
    clock, order = Clock(), []

    def candidate(name, seconds):
        def work():
            order.append(name)
            clock.now_s += next(seconds)
            return 100

        return work

    slow, fast = measure.turns(
        {
            "slow": candidate("slow", iter([99, 4.0, 2.0, 5.0])),
            "fast": candidate("fast", iter([99, 1.0, 1.0, 1.0])),
        },
        repeat=3,
        clock=clock,
        progress=False,
    )
    assert order == ["slow", "fast"] * 4
    assert slow.elapsed_s == (4.0, 2.0, 5.0)
    assert slow.rates == [25, 50, 20]
    assert (slow.rows_per_s, fast.rows_per_s) == (25, 100)


def test_the_device_is_synchronised_before_each_reading_of_the_clock():
    clock = Clock()
    pending = []

    def work():
        pending.append(3.0)  # seconds that the device still needs when the call returns
        return 1

    def synchronise():
        while pending:
            clock.now_s += pending.pop()

    [timing] = measure.turns(
        {"work": work}, repeat=2, synchronise=synchronise, clock=clock, progress=False
    )
    assert timing.elapsed_s == (3.0, 3.0)


def test_starting_and_stopping_what_a_candidate_needs_is_not_timed():
    clock, started, ended = Clock(), [], []

    def start():
        clock.now_s += 5.0
        started.append(clock.now_s)

    def work():
        clock.now_s += 2.0
        return 1

    def end():
        clock.now_s += 9.0
        ended.append(clock.now_s)

    hooks = {"beforehand": {"work": start}, "afterwards": {"work": end}}
    [timing] = measure.turns(
        {"work": work}, repeat=2, warmup=0, clock=clock, progress=False, **hooks
    )
    assert timing.elapsed_s == (2.0, 2.0)
    assert (started, ended) == ([5.0, 21.0], [16.0, 32.0])


def test_a_claim_compares_rates_or_durations_turn_by_turn():
    ours = measure.Timing("ours", 100, (1.0, 2.0, 4.0))
    theirs = measure.Timing("theirs", 100, (3.0, 6.0, 4.0))
    timings = {"ours": ours, "theirs": theirs}
    faster = measure.Claim("ours", 2.9, other="theirs").check(timings)
    assert faster["values"] == [3.0, 3.0, 1.0]
    assert (faster["median"], faster["holds"]) == (3.0, True)
    assert not measure.Claim("ours", 3.1, other="theirs").check(timings)["holds"]
    shorter = measure.Claim("ours", 0.4, other="theirs", of="elapsed_s").check(timings)
    assert (shorter["median"], shorter["holds"]) == (pytest.approx(1 / 3), True)
    assert not measure.Claim("ours", 0.3, other="theirs", of="elapsed_s").check(timings)["holds"]
    assert measure.Claim("ours", 50).check(timings)["holds"]
    assert not measure.Claim("ours", 51).check(timings)["holds"]
    assert measure.Claim("ours", 1, other="absent").check(timings) is None


def test_a_candidate_whose_rows_change_between_turns_is_refused():
    rows = iter([5, 5, 4])
    with pytest.raises(ValueError, match="'moody' processed 4 rows in turn 2, before it 5"):
        measure.turns({"moody": lambda: next(rows)}, repeat=2, progress=False)
    with pytest.raises(ValueError, match="at least one"):
        measure.turns({"idle": lambda: 0}, repeat=1, progress=False)
    with pytest.raises(ValueError, match="repeat=0"):
        measure.turns({}, repeat=0)


def test_a_report_has_all_values_ratios_hardware_and_versions(tmp_path):
    timings = [
        measure.Timing("native", 10, (2.0, 1.0, 4.0)),
        measure.Timing("ours", 100, (1.0, 1.0, 1.0)),
    ]
    result = measure.report("demo", timings, command="python -m benchmarks demo", details={"n": 1})
    path = measure.save(result, tmp_path / "deep" / "demo.json")
    assert json.loads(path.read_text()) == result
    assert [entry["ratio"] for entry in result["candidates"]] == [1, 20]
    assert result["candidates"][0]["elapsed_s"] == [2.0, 1.0, 4.0]
    assert {"tensorflow", "keras", "numpy", "pyarrow", "python"} <= result["versions"].keys()
    machine = result["hardware"]
    assert machine["cpu"]
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] > 2**28
    assert list(path.parent.iterdir()) == [path]
    assert "20" in measure.table(result)


def test_a_report_is_saved_in_the_results_folder_named_after_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    result = measure.report("demo", [measure.Timing("a", 1, (1.0,))], command="demo")
    path = measure.save(result)
    assert path.parent == tmp_path
    assert path.name == f"demo-{machine.hardware_slug(result['hardware'])}.json"


def test_a_batch_whose_tensors_differ_in_rows_is_refused():
    def tensor(*shape):
        return SimpleNamespace(shape=shape)

    assert consume([({"a": tensor(3, 1)}, tensor(3, 1)), ({"a": tensor(2, 1)}, tensor(2, 1))]) == 5
    with pytest.raises(ValueError, match="'a' has 2 rows, the label 3"):
        consume([({"a": tensor(2, 1)}, tensor(3, 1))])


def test_a_dataset_whose_tensors_differ_in_rows_is_refused():
    import tensorflow as tf

    ids = tf.data.Dataset.range(5).batch(2)
    assert consume(ids.map(lambda row: ({"a": row}, row))) == 5
    with pytest.raises(tf.errors.InvalidArgumentError):
        consume(ids.map(lambda row: ({"a": row}, row[:1])))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def inputs(folder):
    """Few rows in every format, twice where candidates are fast; batches of 1000 rows."""
    return Inputs(criteo_shape(folder, 20_480), movielens_shape(folder, 20_480), 4000, 2, 1000)


@pytest.fixture(scope="module")
def candidates(inputs):
    """Candidates that deliver batches: {name: (candidate, data set)}."""
    return {
        name: (candidate, inputs.movielens if section == "movielens" else inputs.criteo)
        for section, build in SECTIONS.items()
        for name, candidate in build(inputs).items()
        if candidate.batches is not None
    }


def delivered(batches, schema):
    """Return (rows, {column: sum}) of an epoch in any layout; lists count as their values."""
    rows, sums = 0, Counter()
    for features, label in batches:
        rows += label.shape[0]
        for name, tensor in {**features, schema.labels.names[0]: label}.items():
            totals = np.asarray(tensor).sum(axis=0, dtype=np.float64)
            names = [name.removesuffix("__values")]
            if name in ("categorical", "continuous"):
                names = schema.with_role(name).names
            sums.update(dict(zip(names, totals, strict=True)))
    return rows, sums


def test_every_candidate_delivers_exactly_the_rows_of_the_files(candidates):
    assert len(candidates) == 27
    for name, (candidate, data) in candidates.items():
        rows, sums = delivered(candidate.batches, data.schema)
        assert rows in (40_960, 20_480, 4000, 1000), name
        times = max(1, rows // 20_480)
        if data.name == "movielens-shape":
            lists = [len(chunk["genres"].values) for chunk in data.source.chunks()]
            assert sums.pop("genres__nnzs") == times * sum(lists)
        once = column_sums(data.source, rows // times)
        expected = {column: times * total for column, total in once.items()}
        assert sums == pytest.approx(expected, rel=1e-6), name


def test_a_candidate_keeps_the_order_if_and_only_if_its_name_says_not_shuffled(candidates):
    for name, (candidate, data) in candidates.items():
        first = next(data.source.chunks(rows=1000))
        features, _ = next(iter(candidate.batches))
        column = "userId" if "userId" in features else "C1"
        ids = features[column] if column in features else features["categorical"][:, 0]
        same = np.array_equal(np.asarray(ids).ravel(), first[column])
        assert same == ("not shuffled" in name), name


def test_a_py_dataset_has_a_new_order_in_the_next_epoch(inputs):
    from benchmarks.readers import RowGroups

    dataset = RowGroups(inputs.criteo.source, 1000, inputs.criteo.schema)
    first = dataset[0][0]["C1"]
    assert np.array_equal(dataset[0][0]["C1"], first)
    dataset.on_epoch_end()
    assert not np.array_equal(dataset[0][0]["C1"], first)


def test_bare_arrow_reads_all_rows_and_a_chunk_as_many_row_groups_as_it_needs(tmp_path):
    from benchmarks.readers import read_and_shuffle, read_row_groups

    source = criteo_shape(tmp_path, 1000, row_group_rows=300).source
    assert read_row_groups(source) == 1000
    assert [read_and_shuffle(source, rows) for rows in (1, 300, 301, 1000)] == [300, 300, 600, 1000]


def test_fit_trains_the_trivial_model_on_every_row(inputs):
    from benchmarks.readers import one_weight_model

    model = one_weight_model("I1")
    history = model.fit(inputs.loader(), verbose=0).history
    assert float(model.factor) != 0
    assert history["loss"][0] > 0
    assert SECTIONS["fit"](inputs)[FIT].work() == 40_960


def test_a_format_is_written_once_and_again_after_an_interrupted_run(tmp_path):
    data = criteo_shape(tmp_path, 2048)
    cut_off = data.folder / "raw-rows.partial"
    cut_off.mkdir(parents=True)
    mark(cut_off)
    (cut_off / "cells.bin").write_bytes(b"half")
    file = data.raw_rows() / "cells.bin"
    assert file.stat().st_size == 2048 * 40 * 4
    assert not cut_off.exists()
    written_ns = file.stat().st_mtime_ns
    again = criteo_shape(tmp_path, 2048)
    assert (again.raw_rows() / "cells.bin").stat().st_mtime_ns == written_ns
    other = criteo_shape(tmp_path, 2048, row_group_rows=100)
    assert other.folder != data.folder


def test_plain_files_hold_the_same_rows_as_int64_with_dictionary_and_snappy(inputs):
    import pyarrow.parquet as pq

    for data in (inputs.criteo, inputs.movielens):
        plain = ParquetSource(data.plain)
        assert column_sums(plain) == column_sums(data.source)
        kinds = {kind for kind, _ in plain.column_types.values()}
        assert kinds == {"int64", "float32"}
        column = pq.read_metadata(plain.files[0]).row_group(0).column(0)
        assert (column.compression, column.has_dictionary_page) == ("SNAPPY", True)


# ---- whole runs ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(folder):
    """Report of a run over few rows: it shows only that the benchmark runs."""
    path = folder / "results" / "loader-here.json"
    options = {
        "--rows": 20_480, "--slow-rows": 4000, "--copies": 1, "--batch-size": 1000, "--repeat": 1,
        "--data": folder, "--out": path,
    }  # fmt: skip
    words = [str(word) for option in options.items() for word in option]
    assert main(["loader", *words]) == 0
    return path


def test_the_loader_benchmark_measures_all_candidates_over_the_rows_it_reports(measured, folder):
    result = json.loads(measured.read_text())
    rows = {entry["name"]: entry["rows"] for entry in result["candidates"]}
    assert len(rows) == 34
    parsed = (BASELINE, ASLEEP, "batch then parse_example, shuffled")
    assert {rows.pop(name) for name in parsed} == {4000}
    assert rows.pop("parse_single_example, shuffled") == 1000
    assert set(rows.values()) == {20_480}
    assert result["baseline"] == BASELINE
    assert {name for names in result["sections"].values() for name in names} == {
        entry["name"] for entry in result["candidates"]
    }
    data = result["data"]["criteo-shape"]
    assert data["columns"] == {"continuous": 13, "categorical": 26, "label": 1}
    assert data["nbytes"]["raw-rows"] == 20_480 * 40 * 4
    assert data["nbytes"]["parquet"] > 0
    assert len(result["claims"]) == len(CLAIMS)
    assert str(folder) not in measured.read_text()


def test_one_section_can_be_measured_alone(folder, capsys):
    path = folder / "alone.json"
    options = ["--rows", "20480", "--batch-size", "1000", "--repeat", "1", "--data", str(folder)]
    assert main(["loader", *options, "--only", "movielens", "--out", str(path)]) == 0
    result = json.loads(path.read_text())
    assert [entry["name"].split(":")[0] for entry in result["candidates"]] == ["MovieLens"] * 2
    assert [claim["bound"] for claim in result["claims"]] == [0.35]
    assert "MovieLens: loader" in capsys.readouterr().out


@pytest.fixture(scope="module")
def watched(folder):
    """The memory benchmark with a small budget, a process for each case."""
    path = folder / "results" / "memory-here.json"
    options = {
        "--budget-mib": 160, "--sizes": 2, "--batch-size": 4096, "--row-group-rows": 16_384,
        "--repeat": 1, "--data": folder, "--out": path,
    }  # fmt: skip
    assert main(["memory", *(str(word) for option in options.items() for word in option)]) == 0
    return path


def test_the_memory_benchmark_reports_the_memory_of_each_case(watched):
    result = json.loads(watched.read_text())
    cases = {entry["name"]: entry for entry in result["candidates"]}
    assert len(cases) == 3
    assert [entry["in_series"] for entry in result["candidates"]] == [True, False, False]
    for entry in cases.values():
        [process] = entry["processes"]
        assert 0 < process["peak_bytes"] == entry["peak_bytes"]
        assert process["before_bytes"] > 2**26
        assert entry["planned_bytes"] > 0
    series = cases["2 x the budget"]
    assert series["data_bytes"] == pytest.approx(2 * result["budget_bytes"], rel=0.1)
    assert series["rows"] * 160 == series["data_bytes"]
    assert result["over_budget"] == series["peak_bytes"] / result["budget_bytes"] - 1
    assert len(series["processes"][0]["elapsed_s"]) == 5


def test_anonymous_and_mapped_memory_are_measured_apart(tmp_path):
    size = 2**26
    path = tmp_path / "bytes"
    path.write_bytes(b"x" * size)
    with MemoryWatch() as watch:
        ones = np.ones(size, np.uint8)
        time.sleep(0.05)
        del ones
    anonymous, mapped = np.subtract(watch.peak, watch.before)
    assert anonymous > 0.9 * size
    assert mapped < 0.5 * size
    with MemoryWatch() as watch, path.open("rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            assert view[:: mmap.PAGESIZE].count(b"x") == size // mmap.PAGESIZE
            time.sleep(0.05)
    anonymous, mapped = np.subtract(watch.peak, watch.before)
    assert anonymous < 0.5 * size
    assert mapped > 0.9 * size


def test_figures_are_drawn_from_the_newest_results_and_are_reproducible(
    measured, watched, tmp_path
):
    old = json.loads(measured.read_text())
    old |= {"date": "2020-01-01T00:00:00+00:00", "batch_size": 7}
    (measured.parent / "loader-old.json").write_text(json.dumps(old))
    assert figures.newest("loader", measured.parent)["batch_size"] == 1000
    names = ("loader_throughput", "loader_memory")
    folders = ["--results", str(measured.parent), "--images", str(tmp_path)]
    command = ["figures", "--only", *names, *folders]
    assert main(command) == 0
    first = [(tmp_path / f"{name}.svg").read_bytes() for name in names]
    assert main(command) == 0
    assert [(tmp_path / f"{name}.svg").read_bytes() for name in names] == first
    assert all(b"<svg" in drawn for drawn in first)
    assert main([*command, "--format", "png"]) == 0
    for name in names:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_measurement_does_not_prevent_the_other_figures(measured, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    (results / "loader-here.json").write_text(measured.read_text())
    with pytest.raises(SystemExit, match="python -m benchmarks memory"):
        main(["figures", "--results", str(results), "--images", str(tmp_path)])
    assert (tmp_path / "loader_throughput.svg").is_file()


def test_without_a_measurement_the_figures_command_names_the_benchmark_to_run(tmp_path):
    with pytest.raises(SystemExit, match="python -m benchmarks loader"):
        main(["figures", "--results", str(tmp_path), "--images", str(tmp_path)])


def test_help_lists_the_benchmarks_without_starting_tensorflow(root):
    code = (
        "import sys; from benchmarks.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: sys.exit('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in (*MEASURING, "figures"))


def test_an_epoch_is_measured_until_it_has_ended():
    ends = []

    def epoch():
        ended = measure.Ended(8)
        ends.append(ended.at)
        return ended

    [timing] = measure.turns(
        {"epoch": epoch}, repeat=2, warmup=0, clock=lambda: 1.0, progress=False
    )
    assert timing.rows == 8
    assert timing.elapsed_s == tuple(end - 1.0 for end in ends)


def test_an_epoch_of_fit_has_the_rows_that_the_loss_counted():
    import keras

    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    ended, loss = measure.fit_epoch(model, np.ones((10, 1)), np.ones((10, 1)), batch_size=4)
    assert ended == 10
    assert loss > 0
