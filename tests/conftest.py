"""What several test files share: the lessons, and one execution of each for all checks on it."""

from __future__ import annotations

import functools
import importlib.util
import io
import os
import shutil
import sys
from pathlib import Path

import hypothesis
import nbformat
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
hypothesis.settings.register_profile("untimed", deadline=None)  # speed is no matter of a test
hypothesis.settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def load_runner():
    """Import notebooks/run.py, a script and no package; late, for papermill takes a second."""
    spec = importlib.util.spec_from_file_location("lesson_runner", ROOT / "notebooks" / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def pytest_generate_tests(metafunc):
    """Give every test that asks for `lesson` each notebook in turn."""
    if "lesson" in metafunc.fixturenames:
        lessons = load_runner().find_lessons(ROOT / "notebooks")
        metafunc.parametrize("lesson", lessons, ids=lambda path: path.stem, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Run the lessons, minutes each, after everything that fails in seconds."""
    items.sort(key=lambda item: item.get_closest_marker("notebook") is not None)


@pytest.fixture(scope="module")
def folder(request, columns, tmp_path_factory):
    """The rows of a test file's own `columns` as Parquet, in files as its `FILES` says."""
    from tutorlib.chunk import Chunk
    from tutorlib.parquet import ParquetSink

    path = tmp_path_factory.mktemp("data") / "train"
    with ParquetSink(path, **getattr(request.module, "FILES", {"row_group_rows": 90})) as sink:
        sink.write(Chunk(columns))
    return path


@pytest.fixture
def no_thread_is_left():
    """A pass ends with its loader, also one that was interrupted."""
    from tests.support.leftovers import come_to_an_end, reader_threads

    yield
    assert come_to_an_end(reader_threads)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def runner():
    return load_runner()


@pytest.fixture(scope="session")
def profile(runner):
    return runner.load_profile(ROOT / "notebooks" / "params" / "small.yaml")


@pytest.fixture(scope="session")
def stage():
    """A folder in which lessons run as in the tree: notebooks/ beside data/, from a fixed seed.

    The data of whoever works in the tree is neither needed nor touched, and what is kept on a page
    does not depend on it. It stays for the next session; `make clean` removes it.
    """
    from data_prep.__main__ import main as data_prep

    folder = ROOT / "build" / "test"
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "notebooks" / "lesson.py", folder / "notebooks")
    for name in ("criteo", "movielens", "adult"):
        data = folder / "data" / name
        assert data_prep(["synthetic", name, "--output", str(data / "raw")]) == 0
        assert data_prep([name, "--from", str(data / "raw"), "--output", str(data)]) == 0
    assert data_prep(["synthetic", "nhot", "--output", str(folder / "data" / "nhot")]) == 0
    return folder


@pytest.fixture(scope="session")
def executed(runner, profile, stage):
    """Run a lesson with the small profile, at most once a session: it takes a minute.

    Returns a function: lesson -> (its Result, its executed notebook, the printed progress).
    """
    output = stage / "executed"
    done = {}

    def run(lesson: Path):
        if lesson not in done:
            runner.prepare_environment()
            copy = Path(shutil.copy(lesson, stage / "notebooks"))
            log = io.StringIO()
            result = runner.run_lesson(copy, profile.get(lesson.stem, {}), output, log)
            notebook = nbformat.read(output / lesson.name, as_version=4)
            done[lesson] = result, notebook, log.getvalue()
        return done[lesson]

    return run
