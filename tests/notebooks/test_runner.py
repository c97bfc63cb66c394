"""notebooks/run.py, on small real notebooks."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PARAMETERS = "ROWS = 10  # rows\nRATE = 0.5  # learning rate\nNAME = 'a'  # a label"


def write_lesson(folder, name, *cells):
    """Write a notebook; a string that starts with # is a text cell, (source, tag) a tagged cell."""
    made = []
    for cell in cells:
        source, *tags = (cell,) if isinstance(cell, str) else cell
        if source.startswith("# "):
            made.append(new_markdown_cell(source))
        else:
            made.append(new_code_cell(source, metadata={"tags": tags}))
    path = folder / f"{name}.ipynb"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=made, metadata={"kernelspec": kernel}), path)
    return path


@pytest.fixture
def good(tmp_path):
    printing = "print('a first line')\nprint(f'{rows} rows in', os.path.basename(os.getcwd()))"
    (tmp_path / "dot.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "small.yaml").write_text("01_good: {ROWS: 3}\n")
    return write_lesson(
        tmp_path, "01_good",
        "# A good lesson\n\n![a dot](dot.svg), [here](dot.svg)", (PARAMETERS, "parameters"),
        "# Count", "import os\nrows = ROWS * 2", (printing, "headline"),
    )  # fmt: skip


def test_a_lesson_runs_in_its_folder_and_saves_its_headline_and_its_page(runner, good):
    stream = io.StringIO()
    result = runner.run_lesson(good, {"ROWS": 21}, good.parent / "out", stream)
    assert result.passed
    assert result.outcome == f"42 rows in {good.parent.name}"
    lines = stream.getvalue().splitlines()
    assert [line.split(" s  ")[1] for line in lines] == ["A good lesson", "Count"]
    page = (good.parent / "out" / "01_good.html").read_text()
    assert re.findall(r'<img [^>]*src="([^",]*)', page) == ["data:image/svg+xml;base64"]


def test_a_failing_cell_is_printed_and_stops_the_run(runner, good):
    folder = good.parent
    write_lesson(folder, "02_bad", "# Divides", "first = 1", "first / 0", "print('never')")
    write_lesson(folder, "03_late", "# Late", "1")
    arguments = ["--folder", str(folder), "--output", str(folder / "out")]
    command = [sys.executable, runner.__file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "02_bad, section 'Divides': cell 3, In [2]: ZeroDivisionError" in done.stdout
    assert "first / 0" in done.stdout
    table = done.stdout[done.stdout.index("lesson   seconds") :].splitlines()
    assert table[1].endswith(f"6 rows in {folder.name}")
    assert "FAILED: cell 3" in table[2]
    assert table[3].split() == ["03_late", "-", "not", "run"]
    saved = nbformat.read(folder / "out" / "02_bad.ipynb", as_version=4)
    errors = [o for c in saved.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert [error.ename for error in errors] == ["ZeroDivisionError"]
    assert (folder / "out" / "02_bad.html").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os\nos.write(2, b'Killed for its memory')\nos._exit(9)", "Killed for its memory"),
        ("import sys\nsys.exit()", "cell 3 was never reached"),
    ],
)
def test_a_lesson_whose_kernel_ends_early_fails_and_says_why(runner, tmp_path, source, said):
    lesson = write_lesson(tmp_path, "01_ends", "# Ends", source, "print('rest')")
    stream = io.StringIO()
    result = runner.run_lesson(lesson, {}, tmp_path / "out", stream)
    assert not result.passed
    assert said in stream.getvalue()
    assert "cell" in result.outcome


def test_what_processes_of_a_lesson_write_is_on_its_page_and_not_in_the_terminal(
    runner, tmp_path, monkeypatch, capfd
):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with it, ipykernel leaves file descriptors alone
    command = "import os, time\nos.system('echo a child process; echo its warning >&2')"
    lesson = write_lesson(tmp_path, "01_speaks", "# Speaks", f"{command}\ntime.sleep(1)")
    assert runner.run_lesson(lesson, {}, tmp_path / "out", io.StringIO()).passed
    cells = nbformat.read(tmp_path / "out" / "01_speaks.ipynb", as_version=4).cells
    seen = "".join(output.text for cell in cells for output in cell.get("outputs", []))
    assert "a child process" in seen
    assert "its warning" in seen
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "ROW=3"], "-p ROW: no such parameter; there are: NAME, RATE, ROWS"),
        (["-p", "ROWS"], "expected NAME=VALUE, got 'ROWS'"),
        (["--profile", "tiny"], "no profile 'tiny'"),
        (["--profile", "wrong"], "09_none: no parameter 'ROWS'; there are: no such lesson"),
        (["7"], "no lesson '7'. Pass a number or a name; there are: 01_good."),
    ],
)
def test_wrong_requests_are_refused_before_anything_runs(runner, good, capsys, arguments, message):
    (good.parent / "params" / "wrong.yaml").write_text("09_none: {ROWS: 3}\n")
    folders = ["--folder", str(good.parent), "--output", str(good.parent / "out")]
    with pytest.raises(SystemExit) as left:
        runner.main([*folders, *arguments])
    assert left.value.code == 2
    assert message in capsys.readouterr().err
    assert not (good.parent / "out").exists()


def test_an_override_beats_the_profile_in_every_lesson_that_declares_it(runner, good, tmp_path):
    other = write_lesson(tmp_path, "02_other", "# Other", ("BATCH = 4  # rows", "parameters"))
    profile = {"01_good": {"ROWS": 1, "RATE": 1}}
    lessons = [good, other]
    plan = runner.plan_parameters(lessons, lessons, profile, {"ROWS": 2, "BATCH": 8})
    assert plan == {good: {"ROWS": 2, "RATE": 1}, other: {"BATCH": 8}}


@pytest.mark.parametrize("name", ["4", "04", "04_gpu_accelerated", "gpu_accelerated.ipynb"])
def test_a_lesson_is_selected_by_number_or_name(runner, tmp_path, name):
    lessons = [tmp_path / "01_etl.ipynb", tmp_path / "04_gpu_accelerated.ipynb"]
    assert runner.select_lessons(lessons, [name]) == lessons[1:]
    assert runner.select_lessons(lessons, []) == lessons
