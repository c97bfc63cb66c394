"""`python -m benchmarks growth`: what a loader costs as its data grows."""

from __future__ import annotations

import json

import pytest

from benchmarks import figures, growth
from benchmarks.__main__ import main
from tests.support.figures import assert_reproducible


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Report of a run over two and six files: it shows only that the benchmark runs."""
    folder = tmp_path_factory.mktemp("growth")
    path = folder / "results" / "growth-here.json"
    path.parent.mkdir()
    options = ["--only", "files", "--files", "6", "2", "--repeat", "1", "--batch-size", "500"]
    assert main(["growth", *options, "--data", str(folder), "--out", str(path)]) == 0
    return path


def test_each_size_is_read_whole_and_reports_its_costs(measured):
    result = json.loads(measured.read_text())
    few, many = result["candidates"]
    assert [(e["series"], e["size"], e["rows"]) for e in (few, many)] == [
        ("files", 2, 2 * growth.FILE_ROWS),
        ("files", 6, 6 * growth.FILE_ROWS),
    ]
    for entry in (few, many):
        assert 0 < entry["open_s"] <= entry["first_batch_s"] <= entry["epoch_s"]
        assert entry["first_batch_cpu_s"] <= entry["epoch_cpu_s"]
        assert entry["read_bytes"] > 0
    assert many["read_bytes"] > 2 * few["read_bytes"]
    assert {found["cost"] for found in result["growth"]} == set(growth.BOUNDED)
    assert result["start_up"][0]["name"] == "6 files"


def test_the_figure_has_a_line_for_each_series_measured_and_is_reproducible(measured, tmp_path):
    assert_reproducible("growth", figures.draw_growth, measured.parent, tmp_path)
    drawn = (tmp_path / "growth.svg").read_text(encoding="utf-8")
    assert "<!-- files -->" in drawn
    assert "<!-- columns -->" not in drawn
    for title, _ in figures.GROWTH.values():
        assert f"<!-- {title} -->" in drawn


def test_a_cost_that_grows_faster_than_the_size_is_found():
    def entry(size, cost):
        return {"series": "files", "size": size, **dict.fromkeys(growth.BOUNDED, cost)}

    linear = list(growth.growth([entry(1, 5.0), entry(10, 3.0), entry(100, 30.0)]))
    assert [found["exponent"] for found in linear] == pytest.approx([1.0] * 4)
    assert all(found["holds"] for found in linear)
    square = growth.growth([entry(10, 3.0), entry(100, 300.0)])
    assert [found["holds"] for found in square] == [False] * 4


@pytest.mark.parametrize("series", growth.SIZES)
def test_a_series_has_what_its_size_counts(series, tmp_path):
    data, copies = growth.data_of(series, 4, tmp_path)
    groups = copies * len(data.source)
    counted = {
        "rows": copies * data.rows,
        "columns": len(data.source.column_types),
        "row_groups": groups,
        "files": copies * len(data.source.files),
    }
    assert counted[series] == 4
