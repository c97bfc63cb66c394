"""One number for one thing: README, figures and the JSON behind both say the same."""

from __future__ import annotations

import pytest

from benchmarks import figures, targets
from benchmarks.__main__ import main
from notebooks import traces as timeline


@pytest.fixture(scope="module")
def readme(root):
    return " ".join((root / "README.md").read_text(encoding="utf-8").split())


def named(result, name):
    return next(entry for entry in result["candidates"] if entry["name"] == name)


def test_the_rates_and_ratios_in_the_readme_are_those_of_the_results(readme):
    result = figures.newest("loader")
    loader, batched = "loader, columns, shuffled", "batch then parse_example, shuffled"
    rates = {
        name: figures.in_words(named(result, name)["rows_per_s"])
        for name in (result["baseline"], loader, batched, "prebatched TFRecord, not shuffled")
    }
    ratio = named(result, loader)["ratio"]
    turns = next(
        c for c in result["claims"] if (c["name"], c["other"]) == (loader, result["baseline"])
    )
    expected = (
        f"gives {rates[result['baseline']]} rows/s",
        f"The loader gives {rates[loader]}, {ratio:.0f} times as many",
        f"the ratio was {min(turns['values']):.0f} to {max(turns['values']):.0f}",
        f"single `tf.data` steps gives {rates[batched]}",
        f"a whole batch, not shuffled, give {rates['prebatched TFRecord, not shuffled']}",
        result["date"][:10],
    )
    assert [text for text in expected if text not in readme] == []


def test_the_gain_in_training_that_the_readme_names_is_that_of_the_results(readme):
    candidates = figures.newest("train")["candidates"]
    gains, prebatched = (
        [c[times] for c in candidates if "loader" in c["name"]]
        for times in ("times_native", "times_prebatched")
    )
    waits = [100 * c["wait_share"] for c in candidates if c["name"].endswith(": native")]
    assert f"training {min(gains):.1f} to {max(gains):.1f} times as fast" in readme
    assert f"and {min(prebatched):.1f} to {max(prebatched):.1f} times as fast" in readme
    assert f"for data {min(waits):.0f} to {max(waits):.0f} % of the time" in readme


def test_the_rates_of_other_libraries_in_the_readme_are_those_of_the_results(readme):
    result = figures.newest("peers")
    expected = {
        "loader, columns": "the loader gives {} rows/s",
        "Keras arrays in memory": "Keras gives {} from arrays",
        "PyTorch DataLoader over Arrow, per row group": "DataLoader over Arrow {}",
        "merlin-dataloader, per partition": "merlin-dataloader {}",
        "HF datasets, in a window": "HF datasets at most {}",
        "train: loader, stacked and fused": "{} samples/s with the loader",
        "train: PyTorch, tensors in memory": "{} in PyTorch",
    }
    texts = [
        text.format(figures.in_words(named(result, name)["rows_per_s"]))
        for name, text in expected.items()
    ]
    assert [text for text in texts if text not in readme] == []
    assert result["not_measured"] == []


@pytest.mark.parametrize("name", ["loader_throughput", "train"])
def test_a_figure_shows_the_ratios_of_the_results(name, root):
    benchmark, part, _ = figures.DRAWN[name]
    result = figures.newest(benchmark, part=part)
    shown = {n for section in figures.SHOWN for n in result["sections"].get(section, ())}
    drawn = (root / "imgs" / f"{name}.svg").read_text(encoding="utf-8")
    for entry in result["candidates"]:
        if name == "train":
            entry = entry | {"ratio": entry["times_native"]}
        if name == "train" or entry["name"] in shown:
            assert f"<!-- {figures.rate(entry)} -->" in drawn, entry["name"]


def test_figures_have_the_colours_of_the_lessons():
    ours = figures.OURS, figures.THEIRS, figures.LIMIT, figures.TEXT
    assert ours == (timeline.LOADER, timeline.NATIVE, timeline.COPIES, timeline.TEXT)


def test_the_table_of_targets_is_that_of_the_results(root):
    page = (root / "docs" / "performance.md").read_text(encoding="utf-8")
    assert targets.BEGIN + targets.tables() + targets.END in page, "run make figures"


def test_only_the_table_of_the_page_is_replaced(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{targets.BEGIN}old\n{targets.END}\nafter\n", encoding="utf-8")
    assert main(["targets", "--page", str(page)]) == 0
    expected = f"before\n{targets.BEGIN}{targets.tables()}{targets.END}\nafter\n"
    assert page.read_text(encoding="utf-8") == expected


def test_a_page_without_the_two_comments_is_refused_and_kept(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("text\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="has no lines"):
        main(["targets", "--page", str(page)])
    assert page.read_text(encoding="utf-8") == "text\n"
