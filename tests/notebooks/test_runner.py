"""notebooks/run.py and pages.py, on small real notebooks."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import nbformat
import pytest
from nbformat import v4

PARAMETERS = "ROWS = 10  # rows\nRATE = 0.5  # learning rate\nNAME = 'a'  # a label"


def write_lesson(folder, name, *cells):
    """Write a notebook; a string that starts with # is a text cell, (source, tag) a tagged cell."""
    tagged = [[cell] if isinstance(cell, str) else cell for cell in cells]
    made = [v4.new_code_cell(source, metadata={"tags": tags}) for source, *tags in tagged]
    made = [v4.new_markdown_cell(c.source) if c.source[0] == "#" else c for c in made]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = folder / f"{name}.ipynb"
    nbformat.write(v4.new_notebook(cells=made, metadata={"kernelspec": kernel}), path)
    return path


@pytest.fixture
def good(tmp_path):
    printing = "print('a first line')\nprint(f'{rows} rows in', os.path.basename(os.getcwd()))"
    folder, pictures = tmp_path / "notebooks", tmp_path / "imgs"
    pictures.mkdir()
    (pictures / "dot.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (folder / "params").mkdir(parents=True)
    (folder / "params" / "small.yaml").write_text("01_good: {ROWS: 3}\n")
    speaking = "import os, time\nimport tensorflow\n"
    speaking += "os.system('echo child $((6*7)); echo warns $((6*7)) >&2')\ntime.sleep(1)"
    title = "# A good lesson\n\n![a dot](../imgs/dot.svg), [here](../imgs/dot.svg)"
    return write_lesson(
        folder, "01_good",
        title, (PARAMETERS, "parameters"),
        "# Count", f"{speaking}\ntime.sleep(1)\nrows = ROWS * 2", (printing, "headline"),
    )  # fmt: skip


def test_lessons_run_in_their_folder_and_the_first_that_fails_ends_the_run(runner, good):
    folder = good.parent
    write_lesson(folder, "02_bad", "# Divides", "first = 1", "first / 0", "print('never')")
    write_lesson(folder, "03_late", "# Late", "1")
    arguments = ["--folder", str(folder), "--output", str(folder / "out")]
    command = [sys.executable, runner.__file__, *arguments]
    # With this variable, ipykernel leaves file descriptors alone.
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert re.findall(r"] +\d+\.\d s  (.*)", done.stdout) == ["A good lesson", "Count", "Divides"]
    assert "02_bad: cell 3, In [2]: ZeroDivisionError" in done.stdout
    table = done.stdout[done.stdout.index("lesson   seconds") :].splitlines()
    assert table[1].endswith(f"6 rows in {folder.name}")
    assert "FAILED: cell 3" in table[2]
    assert table[3].split() == ["03_late", "-", "not", "run"]
    page = (folder / "out" / "01_good.html").read_text()
    assert re.findall(r'<img [^>]*src="([^",]*)', page) == ["data:image/svg+xml;base64"]
    assert "ZeroDivisionError" in (folder / "out" / "02_bad.html").read_text()
    for said in ("child 42", "warns 42"):  # by processes of a lesson: on its page alone
        assert said in re.sub(r"<[^>]*>", "", page)
        assert said not in done.stdout + done.stderr
    assert "InitializeLog" not in page  # what TensorFlow logs while it is imported


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os\nos.write(2, b'Killed for its memory')\nos._exit(9)", "Killed for its memory"),
        ("import sys\nsys.exit()", "cell 3 was never finished"),
    ],
)
def test_a_lesson_whose_kernel_ends_early_fails_and_says_why(runner, tmp_path, source, said):
    lesson = write_lesson(tmp_path, "01_ends", "# Ends", source, "print('rest')")
    stream = io.StringIO()
    result = runner.run_lesson(lesson, {}, tmp_path / "out", stream)
    assert said in stream.getvalue()
    assert result.outcome.startswith("FAILED: cell")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "tiny"], "no profile 'tiny'"),
        (["--profile", "wrong"], "do not exist: ['01_good: RAW', '09_none: ROWS']"),
        (["7"], "no lesson '7'. Pass a number or a name; there are: 01_good."),
    ],
)
def test_wrong_requests_are_refused_before_anything_runs(runner, good, capsys, arguments, message):
    (good.parent / "params" / "wrong.yaml").write_text(
        "09_none: {ROWS: 3}\n01_good: {RAW: 3, ROWS: 3}\n"
    )
    with pytest.raises(SystemExit, match="2"):
        runner.main(["--folder", str(good.parent), *arguments])
    said = capsys.readouterr()
    assert (message in said.err, said.out) == (True, "")


def test_a_page_takes_the_outputs_of_its_run(pages, runner, tmp_path):
    """In place: parameters, other outputs, stderr, counts and metadata of the run stay away."""
    path = write_lesson(
        tmp_path, "01_page", "# Title", ("N = 1  # a number", "parameters"),
        ("print(N)", "nbval-ignore-output"),
        ("import sys\nprint('warned', file=sys.stderr)\nprint('kept')", "keep_output"),
        ("N + 1", "recorded_output", "nbval-ignore-output"),
    )  # fmt: skip
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells]
    executed = tmp_path / "out" / path.name
    for _ in range(2):  # again gives the same
        assert runner.run_lesson(path, {"N": 2}, executed.parent, io.StringIO()).passed
        pages.renew(path, executed)
        title, machine, *rest = nbformat.read(path, as_version=4).cells
        assert machine.source.startswith("*Recorded on ")
        assert [cell.source for cell in (title, *rest)] == sources
        assert [cell.execution_count for cell in rest] == [1, 2, 3, 4]
        shown = [[o.get("text") or o.data["text/plain"] for o in cell.outputs] for cell in rest]
        assert shown == [[], [], ["kept\n"], ["3"]]
    assert machine.id not in executed.read_text()  # it is of another run
    path.write_text(path.read_text().replace("N + 1", "N + 2"))
    with pytest.raises(ValueError, match="another cell"):
        pages.renew(path, executed)


def test_a_page_shows_a_claim_that_its_run_did_not_bear_out(pages, runner, tmp_path):
    claim = f"{runner.NOT_BORNE_OUT} it is fast"
    path = write_lesson(tmp_path, "01_page", (f"print('{claim}')", "recorded_output"))
    result = runner.run_lesson(path, {}, tmp_path / "out", io.StringIO())
    assert "01_page: it is fast" in runner.format_table([result])
    pages.renew(path, tmp_path / "out" / path.name)
    shown = nbformat.read(path, as_version=4).cells[0].outputs
    assert [output.text for output in shown] == [f"{claim}\n"]
