"""notebooks/run.py, on small real notebooks."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
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
    return write_lesson(
        tmp_path,
        "01_good",
        "# A good lesson",
        (PARAMETERS, "parameters"),
        "# Count",
        "import os\nrows = ROWS * 2",
        (
            "print('a first line')\nprint(f'{rows} rows in', os.path.basename(os.getcwd()))",
            "headline",
        ),
    )


@pytest.fixture
def bad(tmp_path):
    return write_lesson(
        tmp_path,
        "02_bad",
        "# A lesson that fails",
        (PARAMETERS, "parameters"),
        "# Divide",
        "first = 1",
        "quotient = ROWS / 0",
        "print('never reached')",
    )


@pytest.fixture
def params(tmp_path):
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "small.yaml").write_text("01_good: {ROWS: 3}\n")
    return tmp_path / "params"


def arguments_for(folder, *arguments):
    return ["--folder", str(folder), "--output", str(folder / "out"), *arguments]


def test_a_lesson_runs_in_its_folder_with_its_parameters_and_returns_its_headline(runner, good):
    result = runner.run_lesson(good, {"ROWS": 21}, good.parent / "out", io.StringIO())
    assert result.passed
    assert result.outcome == f"42 rows in {good.parent.name}"
    assert (good.parent / "out" / "01_good.html").stat().st_size > 1000


def test_progress_without_a_terminal_is_one_plain_line_per_section(runner, good):
    stream = io.StringIO()
    runner.run_lesson(good, {}, good.parent / "out", stream)
    lines = stream.getvalue().splitlines()
    assert [line.split(" s  ")[1] for line in lines] == ["A good lesson", "Count"]
    assert lines[0].strip().startswith("[cell 2/5]")


def test_a_failing_cell_is_printed_and_stops_the_run(runner, bad, good, params):
    late = write_lesson(bad.parent, "03_late", "# Late", "1")
    command = [sys.executable, runner.__file__, *arguments_for(bad.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "02_bad, section 'Divide': cell 5, In [3]:" in done.stdout
    assert "    quotient = ROWS / 0" in done.stdout
    assert "ZeroDivisionError: division by zero" in done.stdout
    table = done.stdout[done.stdout.index("lesson   seconds") :].splitlines()
    assert table[1].endswith(f"6 rows in {good.parent.name}")
    assert "FAILED: cell" in table[2]
    assert table[3].split() == [late.stem, "-", "not", "run"]


def test_a_failed_lesson_saves_its_notebook_and_html(runner, bad):
    runner.run_lesson(bad, {}, bad.parent / "out", io.StringIO())
    saved = nbformat.read(bad.parent / "out" / "02_bad.ipynb", as_version=4)
    errors = [o for c in saved.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert [error.ename for error in errors] == ["ZeroDivisionError"]
    assert (bad.parent / "out" / "02_bad.html").exists()


def test_a_dead_kernel_is_reported_with_its_cell(runner, tmp_path):
    dies = "import os\nos.write(2, b'Killed for its memory')\nos._exit(9)"
    lesson = write_lesson(tmp_path, "01_dies", "# Dies", "x = 1", dies)
    stream = io.StringIO()
    result = runner.run_lesson(lesson, {}, tmp_path / "out", stream)
    assert not result.passed
    assert "os._exit(9)" in stream.getvalue()
    assert "kernel died" in stream.getvalue()
    assert "Killed for its memory" in stream.getvalue()  # the end of its log


def test_pictures_of_a_lesson_are_part_of_its_html(runner, tmp_path):
    (tmp_path / "imgs").mkdir()
    (tmp_path / "imgs" / "dot.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (tmp_path / "notebooks").mkdir()
    text = "# Shows\n\n![a dot](../imgs/dot.svg), [here](../imgs/dot.svg), ![gone](gone.png)"
    lesson = write_lesson(tmp_path / "notebooks", "01_shows", text, "1")
    assert runner.run_lesson(lesson, {}, tmp_path / "build" / "out", io.StringIO()).passed
    page = (tmp_path / "build" / "out" / "01_shows.html").read_text()
    assert re.findall(r'<img [^>]*src="([^",]*)', page) == ["data:image/svg+xml;base64", "gone.png"]


def test_a_lesson_that_calls_sys_exit_fails(runner, tmp_path):
    lesson = write_lesson(
        tmp_path, "01_exits", "# Exits", "import sys\nsys.exit()", "print('rest')"
    )
    result = runner.run_lesson(lesson, {}, tmp_path / "out", io.StringIO())
    assert not result.passed
    assert "never reached" in result.outcome


STARTS = """import os, sys
os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written\\n")
os.write(2, b"I0000 00:00:17.2 97 port.cc:153] oneDNN custom operations are on.\\nW0000 00:00:")
os.write(2, b"17.2 97 cpu.cc:1] Allocation exceeds 10% of free system memory.\\n")
os.write(2, b"E0000 00:00:17.2 97 cuda_platform.cc:52] failed call to cuInit: INTERNAL\\n")
os.write(2, b"E0000 00:00:17.2 97 util.cc:131] oneDNN supports DT_HALF only on platforms with ")
os.write(2, b"AVX-512. Falling back to Eigen.\\nE0000 00:00:17.2 97 bfc.cc:1] ran out of memory\\n")
os.system("echo a child process; echo its warning >&2")
print("a warning of Python", file=sys.stderr)
"""
AWAITS = """import pathlib, time
while not {"a child process\\n", "its warning\\n"} < {*pathlib.Path("out/01_starts.log").open()}:
    time.sleep(0.02)
sys.stderr.flush()
sys.stdout.flush()
"""


def test_what_tensorflow_logs_of_the_machine_goes_to_a_log_and_nothing_to_the_terminal(
    runner, tmp_path, monkeypatch, capfd
):
    for name in ("PYTHONSTARTUP", "TF_CPP_MIN_LOG_LEVEL", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with it, ipykernel leaves file descriptors alone
    runner.prepare_environment()
    lesson = write_lesson(tmp_path, "01_starts", "# Starts", STARTS, AWAITS)  # for slow pipes
    assert runner.run_lesson(lesson, {}, tmp_path / "out", io.StringIO()).passed
    cells = nbformat.read(tmp_path / "out" / "01_starts.ipynb", as_version=4).cells
    seen = "".join(output.text for cell in cells for output in cell.get("outputs", []))
    log = (tmp_path / "out" / "01_starts.log").read_text()
    for start in ("absl", "custom operations", "cuInit", "DT_HALF"):
        assert start in log
        assert start not in seen
    for real in ("exceeds 10%", "ran out of memory", "a child process", "its warning"):
        assert real in seen
    assert "a warning of Python" in seen
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "ROW=3"], "no such parameter in 01_good, 02_bad; did you mean ROWS?"),
        (["-p", "ROWS=many"], "01_good: ROWS = 'many' must have the type of 10"),
        (["-p", "ROWS"], "expected NAME=VALUE, got 'ROWS'"),
        (["--profile", "tiny"], "no profile 'tiny'"),
        (["7"], "no lesson '7'. Pass a number or a name; there are: 01_good, 02_bad."),
    ],
)
def test_wrong_requests_are_refused_before_anything_runs(
    runner, good, bad, params, capsys, arguments, message
):
    with pytest.raises(SystemExit) as left:
        runner.main(arguments_for(good.parent, *arguments))
    assert left.value.code == 2
    assert message in capsys.readouterr().err
    assert not (good.parent / "out").exists()


def test_a_profile_with_an_unknown_lesson_or_parameter_is_refused(runner, good):
    with pytest.raises(runner.UsageError, match="lesson '09_none', which does not exist"):
        runner.plan_parameters([good], [good], {"09_none": {}}, {})
    with pytest.raises(runner.UsageError, match="01_good: no parameter 'EPOCHS'; there are: NAME"):
        runner.plan_parameters([good], [good], {"01_good": {"EPOCHS": 1}}, {})


TRACED = """DATA_DIR = "data"  # folder
ROWS = 1_000  # rows
BATCH = 100  # rows per batch
LAST = 3  # last traced step"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], ""),
        (
            ["-p", "LAST=11"],
            "BATCH = 100 and LAST = 11 need 1,100 training rows of criteo, but ROWS",
        ),
        (
            ["-p", "LAST=6"],
            "600 training rows of criteo; 500 exist. `make data ROWS=100_000` makes",
        ),
    ],
)
def test_sizes_that_the_data_does_not_have_are_refused_before_anything_runs(
    runner, tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.setattr(runner, "run_lessons", lambda *_: [runner.Result("01_traced", True, 1, "")])
    write_lesson(tmp_path, "01_traced", "# Traced", (TRACED, "parameters"))
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "small.yaml").write_text("{}")
    (tmp_path / "needs.yaml").write_text("01_traced: {criteo: BATCH * LAST}")
    for part in range(2):
        path = tmp_path / "data" / "criteo" / "train" / f"part_{part}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"label": [0] * 250}), path)
    if not message:
        assert runner.main(arguments_for(tmp_path, *arguments)) == 0
        return
    with pytest.raises(SystemExit):
        runner.main(arguments_for(tmp_path, *arguments))
    assert message in capsys.readouterr().err


def test_an_override_beats_the_profile_in_every_lesson_that_declares_it(runner, good, tmp_path):
    other = write_lesson(tmp_path, "02_other", "# Other", ("BATCH = 4  # rows", "parameters"))
    profile = {"01_good": {"ROWS": 1, "RATE": 1}}
    lessons = [good, other]
    plan = runner.plan_parameters(lessons, lessons, profile, {"ROWS": 2, "BATCH": 8})
    assert plan == {good: {"ROWS": 2, "RATE": 1}, other: {"BATCH": 8}}


def test_a_notebook_without_a_kernel_is_refused(runner, tmp_path):
    cell = new_code_cell("ROWS = 1", metadata={"tags": ["parameters"]})
    nbformat.write(new_notebook(cells=[cell]), tmp_path / "01_bare.ipynb")
    with pytest.raises(runner.UsageError, match=r"01_bare\.ipynb: No kernel name found"):
        runner.lesson_parameters(tmp_path / "01_bare.ipynb")


@pytest.mark.parametrize("name", ["4", "04", "04_gpu_accelerated", "gpu_accelerated.ipynb"])
def test_a_lesson_is_selected_by_number_or_name(runner, tmp_path, name):
    lessons = [tmp_path / "01_etl.ipynb", tmp_path / "04_gpu_accelerated.ipynb"]
    assert runner.select_lessons(lessons, [name]) == lessons[1:]
    assert runner.select_lessons(lessons, []) == lessons


def test_list_prints_titles_and_parameters_and_runs_no_lesson(runner, good, params, capsys):
    assert runner.main(arguments_for(good.parent, "--list")) == 0
    assert "01_good: A good lesson\n    ROWS = 10  # rows" in capsys.readouterr().out
    assert not (good.parent / "out").exists()
