"""The progress bar counts rows if progress=True or on a terminal, and is silent otherwise."""

import sys
import threading

import pytest

from tests.support.workflow_rows import rows, workflow, write
from tutorlib.storage import row_bar

pytest.importorskip("tqdm")


def test_a_bar_counts_every_row_of_every_pass(tmp_path, capsys):
    source = write(tmp_path / "rows.parquet", rows(1000), 130)
    workflow().fit(source, progress=True).transform_to_parquet(
        source, tmp_path / "out", progress=True
    )
    shown = capsys.readouterr().err
    for label in ("fit, pass 1", "fit, pass 2", "transform"):  # the prices are normalized twice
        assert f"{label}: 100%" in shown
    assert "1.00k/1.00k" in shown


def test_without_a_terminal_or_with_false_nothing_is_shown(tmp_path, capsys):
    for progress in (None, False):
        workflow().fit(rows(100), progress=progress)
    assert capsys.readouterr() == ("", "")


def test_many_threads_may_count_at_once(capsys):
    with row_bar("rows", 8000, progress=True) as done:
        threads = [
            threading.Thread(target=lambda: [done(1) for _ in range(1000)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "8.00k/8.00k" in capsys.readouterr().err


def test_without_tqdm_it_is_silent_unless_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with row_bar("rows", 1, progress=None) as done:
        done(1)
    with pytest.raises(ImportError, match="progress=True needs tqdm"), row_bar("rows", 1, True):
        pass
