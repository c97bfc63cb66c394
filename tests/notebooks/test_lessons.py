"""Lessons as committed have the parts they must have, and a run of each gives what its page shows.

The outputs of cells tagged keep_output equal those of the run, compared as strict nbval does: its
collector reads the page and its tags, its comparison decides. To compare in a run of nbval's own:
`pytest --nbval --nbval-current-env notebooks/`.
"""

from __future__ import annotations

import base64
import copy
import re

import nbformat
import papermill
import pytest
from nbval.plugin import IPyNbFile, coalesce_streams

MAX_CODE_LINES = 30  # LESSONS.md aims at about 15
PAGE_BYTES, SOLUTIONS_BYTES, IMAGE_BYTES, LEAST_RECORDED = 600_000, 280_000, 120_000, 2
RECORDED_ON = r"\*.*recorded on .+, \d+ cores, .+, \d{4}-\d\d-\d\d.*\*"
# What no output says: True instead of what holds, a folder of the machine.
WRONG = r"\b(True|False)\b|(?<![\w.:/])/(home|root|tmp|Users|work)/\S*"

# What the opening of a lesson mentions, and its last headings in order.
OPENING = [r"you will learn", r"prerequisite", r"device", r"run time|runtime", r"\bdata\b"]
HEADINGS = r"(?is)\bchecks?\b.*\bexercises?\b.*\bsummary\b.*\bnext\b"


def tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def headings_of(notebook) -> str:
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return "\n".join(re.findall(r"^#+ .*$", "\n".join(texts), re.MULTILINE))


@pytest.fixture
def page(lesson):
    """The lesson as committed."""
    return nbformat.read(lesson, as_version=4)


def test_a_lesson_opens_with_title_and_goals_and_ends_with_exercises_and_next(page):
    first_code = next(i for i, cell in enumerate(page.cells) if cell.cell_type == "code")
    opening = "\n".join(cell.source for cell in page.cells[:first_code])
    assert opening.startswith("# "), "the first line is the title"
    assert [word for word in OPENING if not re.search(word, opening, re.IGNORECASE)] == []
    assert re.search(HEADINGS, headings_of(page))


def test_a_lesson_has_one_cell_of_parameters_one_headline_and_small_cells(page, lesson):
    [cell] = [cell for cell in page.cells if "parameters" in tags(cell)]
    lines = [line for line in cell.source.splitlines() if line.strip()]
    assert [line for line in lines if not re.match(r"[A-Z][A-Z0-9_]* = .+  # .+", line)] == []
    assert len(papermill.inspect_notebook(lesson)) == len(lines)
    assert max(len(cell.source.splitlines()) for cell in code_cells(page)) <= MAX_CODE_LINES
    assert sum("headline" in tags(cell) for cell in page.cells) == 1


def test_each_exercise_is_solved_below_its_name(lesson, page, pages, runner):
    """Solutions show what they gave when they ran after their lesson."""
    texts = "\n".join(cell.source for cell in page.cells if cell.cell_type == "markdown")
    exercises = texts.split("## Exercises")[1].split("\n## ")[0]
    names = re.findall(r"^\d+\. \*\*(.+?)[.?]?\*\*", exercises, re.MULTILINE)
    assert names
    assert f"(solutions/{lesson.name})" in exercises, "the exercises do not link their solutions"
    path = runner.solutions_of(lesson)
    solutions = nbformat.read(path, as_version=4)
    assert [name for name in names if name not in headings_of(solutions)] == []
    first, *rest = code_cells(solutions)
    assert (tags(first), first.source) == (["lesson"], f"%cd -q ..\n%run {lesson.name}")
    assert not any("lesson" in tags(cell) for cell in rest)
    stripped = copy.deepcopy(solutions)
    pages.strip_page(stripped)
    assert solutions == stripped, "`python notebooks/pages.py --strip` and its name mends this"
    assert path.stat().st_size < SOLUTIONS_BYTES
    [recorded] = [cell.source for cell in solutions.cells if cell.id == runner.RECORDED]
    assert re.fullmatch(RECORDED_ON, recorded, re.IGNORECASE)
    assert any(cell.outputs for cell in rest)
    outputs = [output for cell in rest for output in cell.outputs]
    said = [o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in outputs]
    assert not re.search(WRONG, "\n".join(said))


def test_a_page_has_the_outputs_of_tagged_cells_and_no_others(lesson, page, pages, runner):
    """Nothing written to stderr, and no metadata of an editor; what varies is not compared."""
    stripped = copy.deepcopy(page)
    pages.strip_page(stripped)
    assert page == stripped, "`python notebooks/pages.py --strip` and the page's name mends this"
    assert lesson.stat().st_size < PAGE_BYTES
    for cell in page.cells:
        varies = pages.has_tag(cell, "recorded_output", "headline")
        if pages.has_tag(cell, "keep_output", "recorded_output"):
            assert cell.outputs, f"tagged {tags(cell)} but has no output:\n{cell.source}"
        assert not (varies and pages.has_tag(cell, "keep_output")), cell.source
        if varies or (cell.cell_type == "code" and "check_measured(" in cell.source):
            assert pages.has_tag(cell, "nbval-ignore-output"), cell.source
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            said = output.get("text", "") + data.get("text/plain", "") + data.get("text/html", "")
            assert not re.search(WRONG, said), cell.source
            assert len(base64.b64decode(data.get("image/png", ""))) < IMAGE_BYTES, cell.source
    assert sum(pages.has_tag(cell, "recorded_output") for cell in page.cells) >= LEAST_RECORDED
    [machine] = [cell.source for cell in page.cells if cell.id == runner.RECORDED]
    assert re.fullmatch(RECORDED_ON, machine, re.IGNORECASE)


def test_profiles_and_tables_of_lessons_are_those_of_the_pages(runner, root):
    """Profiles name parameters that exist; the READMEs link each lesson."""
    lessons = runner.find_lessons(root / "notebooks")
    for path in (root / "notebooks" / "params").glob("*.yaml"):
        runner.plan_parameters(lessons, lessons, runner.load_profile(path))
    for path in (root / "README.md", root / "notebooks" / "README.md"):
        text = path.read_text(encoding="utf-8")
        named = r"(?:^\| \d\d \| .*?|\[\d\d&nbsp;\w+\]\(notebooks/)(\d\d_\w+\.ipynb)\)"
        linked = re.findall(named, text, re.MULTILINE)
        assert linked == [lesson.name for lesson in lessons]


def minutes_of(page) -> tuple[int, float]:
    """Return the minutes to read that a page names, and those of its words, code and pictures."""
    text = " ".join(cell.source for cell in page.cells if cell.cell_type == "markdown")
    lines = [line for cell in code_cells(page) for line in cell.source.splitlines() if line.strip()]
    shown = [output for cell in code_cells(page) for output in cell.outputs]
    pictures = text.count("![") + sum("image/png" in output.get("data", {}) for output in shown)
    [named] = re.findall(r"(\d+) minutes to read|To read\*\*: (\d+) minutes", text)
    return int("".join(named)), len(text.split()) / 200 + len(lines) / 12 + pictures / 2


def test_the_minutes_of_pages_are_those_of_their_words_and_code_and_the_map_adds_them_up(
    runner, root
):
    pages = [nbformat.read(path, 4) for path in runner.find_lessons(root / "notebooks")]
    minutes = [minutes_of(page) for page in pages]
    for page, (named, counted) in zip(pages, minutes, strict=True):
        assert abs(named - counted) <= 2, page.cells[0].source
    course = (root / "imgs" / "course.svg").read_text(encoding="utf-8")
    sums = [int(said) for said in re.findall(r"(\d+) minutes", course)]
    named = [named for named, _ in minutes]
    assert sums == [sum(named[:6]), sum(named[6:8]), sum(named[8:])]


@pytest.mark.notebook
class TestLessonsWithTFRecords:
    """They use what the one before has written: one process runs them, in order."""

    @staticmethod
    def is_mine(lesson):
        return lesson.name[:2] in ("02", "03", "04", "05", "08", "09")

    def test_a_lesson_runs_and_gives_the_kept_outputs(self, lesson, executed, request):
        check_run(lesson, executed, request)


@pytest.mark.notebook
class TestOtherLessons:
    @staticmethod
    def is_mine(lesson):
        return not TestLessonsWithTFRecords.is_mine(lesson)

    def test_a_lesson_runs_and_gives_the_kept_outputs(self, lesson, executed, request):
        check_run(lesson, executed, request)


def check_run(lesson, executed, request):
    result, notebook, log, page = executed(lesson)
    assert result.passed, log
    assert result.outcome != "-", "the cell tagged headline printed nothing"
    assert all(cell.execution_count for cell in code_cells(notebook))
    found = differences(page, copy.deepcopy(notebook), request)
    assert not found, "\n\n".join(["`make pages` updates the committed outputs.", *found])
    kept = next(cell for cell in notebook.cells if "keep_output" in tags(cell))
    kept.outputs = []  # any other output is a difference
    assert len(differences(page, notebook, request)) == 1


@pytest.mark.slow
def test_the_solutions_of_a_lesson_run_after_it(lesson, executed):
    result, _, log, _ = executed(lesson, solutions=True)
    assert result.passed, log


def differences(page, notebook, request) -> list[str]:
    """Return the differences between an executed notebook and the committed page, cell by cell.

    As in nbval's strict mode, a cell without the tag `nbval-ignore-output` must have exactly the
    outputs of the page, even if that is none. Cells without execution count are skipped.
    """
    expected = list(IPyNbFile.from_parent(request.session, path=page).collect())
    run = [cell for cell in code_cells(notebook) if "injected-parameters" not in tags(cell)]
    assert [item.cell.source for item in expected] == [cell.source for cell in run]
    found = []
    for item, cell in zip(expected, run, strict=True):
        if not item.options["check"] or (item.cell.execution_count is None and not cell.outputs):
            continue
        kept = coalesce_streams(item.cell.outputs)
        if not item.compare_outputs(coalesce_streams(cell.outputs), kept):
            found.append("\n".join([cell.source, *map(str, item.comparison_traceback)]))
    return found
