"""Every lesson and its solutions run with the small profile, and have the parts they must have."""

from __future__ import annotations

import re

import nbformat
import papermill
import pytest

MAX_CODE_LINES = 30  # LESSONS.md aims at about 15

# What the opening of a lesson mentions, and its last headings in order.
OPENING = [r"you will learn", r"prerequisite", r"device", r"run time|runtime", r"\bdata\b"]
HEADINGS = [r"\bchecks?\b", r"\bexercises?\b", r"\bsummary\b", r"\bnext\b"]


def tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


@pytest.fixture
def page(lesson):
    """The lesson as committed."""
    return nbformat.read(lesson, as_version=4)


@pytest.fixture
def texts(page):
    return [cell.source for cell in page.cells if cell.cell_type == "markdown"]


def test_a_lesson_opens_with_title_and_goals_and_ends_with_exercises_and_next(page, texts):
    first_code = next(i for i, cell in enumerate(page.cells) if cell.cell_type == "code")
    opening = "\n".join(cell.source for cell in page.cells[:first_code])
    assert opening.startswith("# "), "the first line is the title"
    missing = [word for word in OPENING if not re.search(word, opening, re.IGNORECASE)]
    assert not missing, f"the opening does not mention {missing}"
    headings = re.findall(r"^#+ (.*)$", "\n".join(texts), re.MULTILINE)
    last = [
        max(
            (i for i, text in enumerate(headings) if re.search(word, text, re.IGNORECASE)),
            default=-1,
        )
        for word in HEADINGS
    ]
    assert min(last) >= 0, f"no heading for one of {HEADINGS} in {headings}"
    assert last == sorted(last), f"headings are not in the order {HEADINGS}: {headings}"


def test_a_lesson_has_one_parameters_cell_with_a_comment_per_name(page, lesson):
    cells = [cell for cell in page.cells if "parameters" in tags(cell)]
    assert len(cells) == 1
    lines = [line for line in cells[0].source.splitlines() if line.strip()]
    assert [line for line in lines if not re.match(r"[A-Z][A-Z0-9_]* = .+  # .+", line)] == []
    assert len(papermill.inspect_notebook(lesson)) == len(lines)


def test_a_lesson_has_small_cells_and_one_headline(page):
    longest = max(code_cells(page), key=lambda cell: len(cell.source.splitlines()))
    assert len(longest.source.splitlines()) <= MAX_CODE_LINES, longest.source
    assert sum("headline" in tags(cell) for cell in page.cells) == 1


def test_every_profile_names_existing_parameters(runner, root):
    lessons = runner.find_lessons(root / "notebooks")
    for path in (root / "notebooks" / "params").glob("*.yaml"):
        runner.plan_parameters(lessons, lessons, runner.load_profile(path), {})


def test_the_table_of_lessons_links_each_lesson(runner, root):
    table = (root / "notebooks" / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\((\d\d_\w+\.ipynb)\)", table)
    assert linked == [lesson.name for lesson in runner.find_lessons(root / "notebooks")]


def test_each_exercise_is_solved_below_its_name(lesson, texts):
    exercises = "\n".join(texts).split("## Exercises")[1].split("\n## ")[0]
    names = re.findall(r"^\d+\. \*\*(.+?)[.?]?\*\*", exercises, re.MULTILINE)
    assert names
    assert f"(solutions/{lesson.name})" in exercises, "the exercises do not link their solutions"
    solutions = nbformat.read(lesson.parent / "solutions" / lesson.name, as_version=4)
    solved = [cell.source for cell in solutions.cells if cell.cell_type == "markdown"]
    headings = re.findall(r"^#+ (.*)$", "\n".join(solved), re.MULTILINE)
    missing = [name for name in names if not any(name in heading for heading in headings)]
    assert not missing, f"no heading with {missing} in {headings}"
    first, *rest = code_cells(solutions)
    assert (tags(first), first.source) == (["lesson"], f"%cd -q ..\n%run {lesson.name}")
    assert not any("lesson" in tags(cell) or cell.outputs for cell in rest)


@pytest.mark.notebook
def test_a_lesson_and_its_solutions_run_with_the_small_profile(lesson, executed):
    result, notebook, log, _ = executed(lesson)
    assert result.passed, log
    assert result.outcome != "-", "the cell tagged headline printed nothing"
    assert all(cell.execution_count for cell in code_cells(notebook))
