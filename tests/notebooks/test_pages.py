"""What a page shows before it runs: of one kind, of limited size, and true.

The outputs of cells tagged keep_output equal those of a run, compared as strict nbval does.

nbval's collector reads the page and its tags, and nbval's comparison decides. The run is the one of
`test_lessons.py`, because a second run would double the time. To compare in a run of nbval's own:
`pytest --nbval --nbval-current-env notebooks/`.
"""

from __future__ import annotations

import base64
import copy
import io
import re

import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbval.plugin import IPyNbFile, coalesce_streams

PAGE_BYTES, IMAGE_BYTES = 600_000, 60_000
LEAST_RECORDED = 2


@pytest.fixture
def page(lesson):
    """The lesson as committed."""
    return nbformat.read(lesson, as_version=4)


def outputs_of(page):
    """Return (cell, output) of all committed outputs."""
    cells = [cell for cell in page.cells if cell.cell_type == "code"]
    return [(cell, output) for cell in cells for output in cell.outputs]


def text_of(output) -> str:
    data = output.get("data", {})
    return output.get("text", "") + data.get("text/plain", "") + data.get("text/html", "")


def test_a_page_has_the_outputs_of_tagged_cells_and_no_others(page, pages):
    """Nothing written to stderr either, and no metadata that only an editor needs."""
    stripped = copy.deepcopy(page)
    pages.strip_page(stripped)
    assert page == stripped, "`python notebooks/pages.py --strip` and the page's name mends this"
    for cell in page.cells:
        if pages.has_tag(cell, "keep_output", "recorded_output"):
            assert cell.outputs, f"tagged {cell.metadata.tags} but has no output:\n{cell.source}"


def test_an_output_that_varies_is_not_compared(page, pages):
    """A page shows at least two of them: figures or tables of one run."""
    recorded = [cell for cell in page.cells if pages.has_tag(cell, "recorded_output")]
    assert len(recorded) >= LEAST_RECORDED
    for cell in page.cells:
        varies = pages.has_tag(cell, "recorded_output", "headline")
        assert not (varies and pages.has_tag(cell, "keep_output")), cell.source
        if varies or (cell.cell_type == "code" and "check_measured(" in cell.source):
            assert pages.has_tag(cell, "nbval-ignore-output"), cell.source


def test_a_page_with_recorded_outputs_names_machine_and_date(page, pages):
    recorded = any(pages.is_recorded(cell) for cell in page.cells)
    lines = [cell.source for cell in page.cells if cell.id == pages.RECORDED]
    assert len(lines) == recorded
    pattern = r"\*.*recorded on .+, \d+ cores, .+, \d{4}-\d\d-\d\d.*\*"
    assert all(re.fullmatch(pattern, line, re.IGNORECASE) for line in lines), lines


@pytest.mark.parametrize(
    "wrong",
    [r"\b(True|False)\b", r"(?<![\w.:/])/(home|root|tmp|Users|work)/\S*"],
    ids=["True instead of what holds", "a folder of the machine"],
)
def test_a_committed_output_is_no_error_and_does_not_say(page, wrong):
    for cell, output in outputs_of(page):
        assert output.output_type != "error", cell.source
        assert not re.search(wrong, text_of(output)), f"{cell.source}\n{text_of(output)}"


def test_bars_have_their_values_their_unit_and_the_colour_of_their_name(drawing):
    table = pd.DataFrame({"reading": [50.0, 7500.0], "training": [49.5, np.nan]}, ["tf", "ours"])
    figure = drawing.draw_bars(table, "rows/s", {"ours": drawing.LOADER}, slowest=table / 2)
    left, right = figure.axes
    assert [text.get_text() for text in left.texts] == ["7,500", "50.0"]  # barh counts from below
    assert [text.get_text() for text in right.texts] == ["", "49.5"]
    colours = [to_hex(bar.get_facecolor()) for bar in left.patches]
    assert colours == [drawing.LOADER, drawing.NATIVE]
    assert (left.get_xlim(), left.get_xlabel()) == (right.get_xlim(), "rows/s")


def test_the_tables_of_lessons_end_with_the_headlines_of_the_pages(pages, runner, root):
    lessons = runner.find_lessons(root / "notebooks")
    headlines = {path.stem: runner.find_headline(path) for path in lessons}
    headlines = {name: line.replace("|", "/") for name, line in headlines.items() if line}
    for path in (root / "README.md", root / "notebooks" / "README.md"):
        text = path.read_text(encoding="utf-8")
        assert pages.with_headlines(text, headlines) == text, "`make pages` writes them"
        for lesson in lessons:
            [row] = re.findall(rf"^.*{lesson.name}\) \|.*$", text, re.MULTILINE)
            assert lesson.stem in headlines or row.endswith("| |"), f"from no page: {row}"


def test_a_page_and_its_pictures_are_small(lesson, page):
    assert lesson.stat().st_size < PAGE_BYTES
    for cell, output in outputs_of(page):
        picture = output.get("data", {}).get("image/png", "")
        assert len(base64.b64decode(picture)) < IMAGE_BYTES, cell.source


def differences(page, notebook, request) -> list[str]:
    """Return the differences between an executed notebook and the committed page, cell by cell.

    As in nbval's strict mode, a cell without the tag `nbval-ignore-output` must have exactly the
    outputs of the page, even if that is none. Cells without execution count are skipped.
    """
    collector = IPyNbFile.from_parent(request.session, path=page)
    expected = list(collector.collect())
    run = [cell for cell in notebook.cells if cell.cell_type == "code"]
    run = [cell for cell in run if "injected-parameters" not in cell.metadata.get("tags", [])]
    assert [item.cell.source for item in expected] == [cell.source for cell in run]
    found = []
    for item, cell in zip(expected, run, strict=True):
        if not item.options["check"] or (item.cell.execution_count is None and not cell.outputs):
            continue
        kept = coalesce_streams(item.cell.outputs)
        if not item.compare_outputs(coalesce_streams(cell.outputs), kept):
            text = "\n".join(str(line) for line in item.comparison_traceback)
            found.append(f"code cell {item.cell_num}:\n{cell.source}\n{text}")
    return found


@pytest.mark.notebook
def test_committed_outputs_equal_those_of_a_run(lesson, executed, request):
    result, notebook, log, page = executed(lesson)
    assert result.passed, log
    found = differences(page, notebook, request)
    assert not found, "\n\n".join(["`make pages` updates the committed outputs.", *found])


@pytest.mark.parametrize(
    ("kept", "given", "tag", "equal"),
    [
        ("(3, 4)", "(3, 4)", "keep_output", True),
        ("(3, 4)", "(3, 5)", "keep_output", False),
        ("", "0.31", "nbval-ignore-output", True),
        ("", "0.31", "untagged", False),
    ],
)
def test_the_comparison_is_strict(tmp_path, request, kept, given, tag, equal):
    pages = []
    for text in (kept, given):
        outputs = [new_output("stream", name="stdout", text=text)] if text else []
        cell = new_code_cell("f()", metadata={"tags": [tag]}, outputs=outputs, execution_count=1)
        pages.append(new_notebook(cells=[cell]))
    nbformat.write(pages[0], tmp_path / "page.ipynb")
    assert bool(differences(tmp_path / "page.ipynb", pages[1], request)) != equal


def write_page(path, *sources_and_tags):
    """Write a page: a title, then code cells."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [new_code_cell(source, metadata={"tags": tags}) for source, *tags in sources_and_tags]
    page = new_notebook(cells=[new_markdown_cell("# Title"), *cells])
    page.metadata["kernelspec"] = kernel
    nbformat.write(page, path)
    return [cell.source for cell in cells]


def test_a_page_takes_the_outputs_of_its_run(pages, runner, tmp_path):
    """In place: parameters, other outputs, stderr, counts and metadata of the run stay away."""
    path = tmp_path / "01_page.ipynb"
    sources = write_page(
        path,
        ("N = 1  # a number", "parameters"),
        ("print(N)", "nbval-ignore-output"),
        ("import sys\nprint('warned', file=sys.stderr)\nprint('kept')", "keep_output"),
        ("N + 1", "recorded_output", "nbval-ignore-output"),
    )
    assert runner.run_lesson(path, {"N": 2}, tmp_path / "out", io.StringIO()).passed
    for _ in range(2):  # again gives the same
        pages.renew(path, tmp_path / "out" / path.name)
        page = nbformat.read(path, as_version=4)
        assert [cell.id for cell in page.cells].count(pages.RECORDED) == 1
        assert page.cells[1].source.startswith("*Recorded on ")
        code = [cell for cell in page.cells if cell.cell_type == "code"]
        assert [cell.source for cell in code] == sources
        assert [cell.execution_count for cell in code] == [1, 2, 3, 4]
        shown = [[text_of(output) for output in cell.outputs] for cell in code]
        assert shown == [[], [], ["kept\n"], ["3"]]
    assert runner.run_lesson(path, {}, tmp_path / "again", io.StringIO()).passed
    again = nbformat.read(tmp_path / "again" / path.name, as_version=4)
    assert pages.RECORDED == runner.RECORDED
    assert pages.RECORDED not in [cell.id for cell in again.cells]  # it is of another run
    page.cells[-1].source = "N + 2"
    with pytest.raises(ValueError, match="another cell"):
        pages.take_outputs(page, nbformat.read(tmp_path / "out" / path.name, as_version=4), "x")


def test_a_page_takes_no_outputs_of_a_run_that_did_not_bear_out_a_claim(pages, runner, tmp_path):
    path = tmp_path / "01_page.ipynb"
    write_page(path, (f"print('{runner.NOT_BORNE_OUT} it is fast')", "nbval-ignore-output"))
    result = runner.run_lesson(path, {}, tmp_path / "out", io.StringIO())
    assert "01_page: it is fast" in runner.format_table([result])
    with pytest.raises(ValueError, match="it is fast"):
        pages.renew(path, tmp_path / "out" / path.name)
