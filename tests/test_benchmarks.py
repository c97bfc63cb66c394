"""A benchmark runs, measures in turns, says where and with what, and its figure can be drawn."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks import figures, measure
from benchmarks.__main__ import MEASURING, main
from benchmarks.loader import BASELINE, consume


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_candidates_run_turn_by_turn_and_the_warm_up_does_not_count():
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


def test_the_device_is_waited_for_before_each_reading_of_the_clock():
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


def test_a_candidate_that_does_other_work_each_turn_is_refused():
    rows = iter([5, 5, 4])
    with pytest.raises(ValueError, match="'moody' went through 4 rows in turn 1, before through 5"):
        measure.turns({"moody": lambda: next(rows)}, repeat=2, progress=False)
    with pytest.raises(ValueError, match="at least one row"):
        measure.turns({"idle": lambda: 0}, repeat=1, progress=False)
    with pytest.raises(ValueError, match="repeat=0"):
        measure.turns({}, repeat=0)


def test_a_report_has_all_values_and_ratios_and_says_where_and_with_what(tmp_path):
    timings = [
        measure.Timing("native", 10, (2.0, 1.0, 4.0)),
        measure.Timing("ours", 100, (1.0, 1.0, 1.0)),
    ]
    result = measure.report("demo", timings, command="python -m benchmarks demo", facts={"n": 1})
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


def test_a_report_goes_to_the_results_folder_under_the_name_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    result = measure.report("demo", [measure.Timing("a", 1, (1.0,))], command="demo")
    path = measure.save(result)
    assert path.parent == tmp_path
    assert path.name == f"demo-{measure.hardware_slug(result['hardware'])}.json"


def test_a_batch_whose_tensors_differ_in_rows_is_refused():
    def tensor(*shape):
        return SimpleNamespace(shape=shape)

    assert consume([({"a": tensor(3, 1)}, tensor(3, 1)), ({"a": tensor(2, 1)}, tensor(2, 1))]) == 5
    with pytest.raises(ValueError, match="'a' has 2 rows, the label 3"):
        consume([({"a": tensor(2, 1)}, tensor(3, 1))])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The loader benchmark over few rows: it shows that it runs, its figures mean nothing."""
    folder = tmp_path_factory.mktemp("benchmark")
    path = folder / "results" / "loader-here.json"
    options = {
        "--rows": 20_000, "--slow-rows": 4096, "--batch-size": 1024, "--repeat": 1,
        "--data": folder / "data", "--out": path,
    }  # fmt: skip
    assert main(["loader", *(str(word) for option in options.items() for word in option)]) == 0
    return path


def test_the_loader_benchmark_measures_all_candidates_over_the_rows_it_says(measured):
    result = json.loads(measured.read_text())
    rows = {entry["name"]: entry["rows"] for entry in result["candidates"]}
    assert len(rows) == 7
    assert {rows.pop(name) for name in (BASELINE, "batch then parse_example, shuffled")} == {4096}
    assert set(rows.values()) == {20_000}
    assert result["baseline"] == BASELINE
    assert result["formats"]["parquet"]["nbytes"] > 0
    assert result["formats"]["examples"]["rows"] == 4096
    assert result["columns"] == {"continuous": 13, "categorical": 26, "label": 1}
    assert str(measured.parent.parent) not in measured.read_text()


def test_the_figure_is_drawn_from_the_newest_result_and_is_the_same_each_time(measured, tmp_path):
    old = json.loads(measured.read_text())
    old |= {"date": "2020-01-01T00:00:00+00:00", "batch_size": 7}
    (measured.parent / "loader-old.json").write_text(json.dumps(old))
    assert figures.newest("loader", measured.parent)["batch_size"] == 1024
    command = ["figures", "--results", str(measured.parent), "--images", str(tmp_path)]
    drawn = tmp_path / "loader_throughput.svg"
    assert main(command) == 0
    first = drawn.read_bytes()
    assert main(command) == 0
    assert drawn.read_bytes() == first
    assert b"<svg" in first
    assert main([*command, "--format", "png"]) == 0
    assert (tmp_path / "loader_throughput.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_measurement_the_figure_command_says_what_to_run(tmp_path):
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
