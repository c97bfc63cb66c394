"""`python -m benchmarks scale`: trainings divided over processes and devices."""

from __future__ import annotations

import importlib.util
import json

import pytest

from benchmarks import scale
from benchmarks.__main__ import main

SIZES = ["--rows", "4096", "--batch-size", "512", "--table-rows", "200000", "--repeat", "1"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Report of a small run: it shows only that the benchmark runs, and that its bounds hold."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed: pip install jax")
    folder = tmp_path_factory.mktemp("scale")
    path = folder / "scale.json"
    options = [*SIZES, "--sizes", "2", "1", "--data", str(folder), "--out", str(path)]
    assert main(["scale", *options]) == 0
    return json.loads(path.read_text())


def test_each_case_reports_its_speed_and_bytes_and_its_bounds_hold(measured):
    names = ["1 process", "2 processes", "tables on 1 device", "tables on 2 devices"]
    assert [entry["name"] for entry in measured["candidates"]] == names
    for entry in measured["candidates"]:
        assert entry["rows"] == 4096
        assert entry["steps_per_s"] > 0
        processes = entry["size"] if entry["section"] == "processes" else 1
        assert sum(process["rows"] for process in entry["processes"]) == 4096
        assert len(entry["processes"]) == processes
        assert entry["loss_difference"] <= scale.LOSS_TOLERANCE
    assert [bound["holds"] for bound in measured["bounds"]] == [True] * 6
    assert "MiB per device" in scale.table(measured)


def test_processes_hold_the_whole_model_and_devices_their_part_of_the_tables(measured):
    one, two, whole, half = (entry["bytes_per_device"] for entry in measured["candidates"])
    assert one == two
    assert whole / 2 < half < whole / 2 * scale.SHARE_TOLERANCE


def test_other_losses_and_tables_that_are_copied_are_found():
    def entry(section, size, **other):
        values = {"bytes_per_device": 100, "loss_difference": 0.0, "name": f"{section} {size}"}
        return {"section": section, "size": size, **values, **other}

    found = scale.bounds(
        [
            entry("processes", 1),
            entry("processes", 4, loss_difference=2e-5),
            entry("tables", 1),
            entry("tables", 4, bytes_per_device=27),
        ]
    )
    holds = {bound["text"].partition(";")[0]: bound["holds"] for bound in found}
    assert list(holds.values()) == [True, False, True, True, True, False]


def test_what_a_process_that_fails_printed_is_shown():
    task = {"section": "tables", "size": 1, "schema": "no schema"}
    with pytest.raises(SystemExit, match="a process failed"):
        scale.launch(task)
