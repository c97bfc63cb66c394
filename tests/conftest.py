"""What several test files share: the lessons, and one execution of each for all checks on it."""

from __future__ import annotations

import fcntl
import importlib
import io
import os
import shutil
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
hypothesis.settings.register_profile("untimed", deadline=None)  # speed is no matter of a test
hypothesis.settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent


def pytest_generate_tests(metafunc):
    """Give every test that asks for `lesson` each notebook in turn, or those of its class."""
    if "lesson" in metafunc.fixturenames:
        lessons = importlib.import_module("run").find_lessons(ROOT / "notebooks")
        is_mine = getattr(metafunc.cls, "is_mine", lambda lesson: True)
        chosen = [path for path in lessons if is_mine(path)]
        metafunc.parametrize("lesson", chosen, ids=lambda path: path.stem, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Run the lessons, minutes each, after everything that fails in seconds."""
    items.sort(key=lambda item: item.get_closest_marker("notebook") is not None)


@pytest.fixture(scope="module")
def folder(request, columns, tmp_path_factory):
    """The rows of a test file's own `columns` as Parquet, in files as its `FILES` says."""
    from tutorlib.columns import Chunk
    from tutorlib.parquet import ParquetSink

    path = tmp_path_factory.mktemp("data") / "train"
    with ParquetSink(path, **getattr(request.module, "FILES", {"row_group_rows": 90})) as sink:
        sink.write(Chunk(columns))
    return path


@pytest.fixture
def no_thread_is_left():
    """A pass ends with its loader, also one that was interrupted."""
    from tests.support.loaders import come_to_an_end, reader_threads

    yield
    assert come_to_an_end(reader_threads)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def runner():
    return importlib.import_module("run")


@pytest.fixture(scope="session")
def pages():
    return importlib.import_module("pages")


@pytest.fixture(scope="session")
def profile(runner):
    return runner.load_profile(ROOT / "notebooks" / "params" / "test.yaml")


@pytest.fixture(scope="session")
def stage():
    """A folder in which lessons run as in the tree, with data/ of a fixed seed, and the flights.

    The data of whoever works in the tree is neither needed nor touched, and what is kept on a page
    does not depend on it. It stays for the next session; `make clean` removes it.
    """
    folder = ROOT / "build" / "test"
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes run lessons
        make_stage(folder)
    return folder


def make_stage(folder):
    """Copy what lessons import, and make their data."""
    from data_prep.__main__ import main as data_prep

    for module in (ROOT / "notebooks").glob("*.py"):
        shutil.copy(module, folder / "notebooks")
    for name in ("imgs", "tutorlib", "notebooks/solutions"):  # lesson 07 copies tutorlib
        shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
    for name in ("criteo", "movielens"):
        data = folder / "data" / name
        assert data_prep(["synthetic", name, "--output", str(data / "raw")]) == 0
        assert data_prep([name, "--from", str(data / "raw"), "--output", str(data)]) == 0
    assert data_prep(["synthetic", "nhot", "--output", str(folder / "data" / "nhot")]) == 0
    assert data_prep(["flights", "--output", str(folder / "data" / "flights")]) == 0


@pytest.fixture(scope="session")
def executed(runner, profile, stage):
    """Run a lesson with the profile of the tests, at most once a session.

    Returns a function: (lesson, whether its solutions run after it) -> its Result, its executed
    notebook without the solutions, the printed progress, and a copy of the page that ran.
    """
    import nbformat

    output = stage / "executed"
    done = {}

    def run(lesson: Path, solutions: bool = False):
        if (lesson, solutions) not in done:
            runner.prepare_environment()
            page = Path(shutil.copy(lesson, stage / "notebooks"))
            log = io.StringIO()
            parameters = profile.get(lesson.stem, {})
            result = runner.run_lesson(page, parameters, output, log, solutions=solutions)
            notebook = nbformat.read(output / lesson.name, as_version=4)
            solved = {
                cell.id for cell in nbformat.read(runner.solutions_of(page), as_version=4).cells
            }
            notebook.cells = [cell for cell in notebook.cells if cell.id not in solved]
            done[lesson, solutions] = result, notebook, log.getvalue(), page
        return done[lesson, solutions]

    return run
