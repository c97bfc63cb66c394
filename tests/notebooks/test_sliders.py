"""Sliders move a picture where somebody can move them, and break nothing elsewhere."""

import sys

import pytest

import lesson

CHOICES = {"parts": ([1, 2, 1_024], 2), "chunk_rows": (range(3), 1)}


@pytest.fixture
def drawn(monkeypatch):
    """Settings that were drawn, in order, in a run that somebody attends."""
    monkeypatch.delenv("LESSON_LOG", raising=False)
    return []


def draw_into(drawn):
    return lambda parts, chunk_rows, axes=None: drawn.append((parts, chunk_rows))


def test_a_slider_draws_the_first_choice_and_then_each_that_it_is_moved_to(drawn):
    box = lesson.sliders(draw_into(drawn), **CHOICES)
    parts, chunk_rows, _ = box.children
    parts.value = 1_024
    chunk_rows.value = 0
    assert drawn == [(2, 1), (1_024, 1), (1_024, 0)]
    assert [dial.description for dial in (parts, chunk_rows)] == ["parts", "chunk rows"]


def test_an_unattended_run_has_no_sliders_and_says_so(drawn, monkeypatch, capsys):
    monkeypatch.setenv("LESSON_LOG", "any.log")
    assert lesson.sliders(draw_into(drawn), **CHOICES) is None
    assert "make lab" in capsys.readouterr().out
    assert not drawn


def test_without_ipywidgets_there_are_no_sliders_and_no_error(drawn, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert lesson.sliders(draw_into(drawn), **CHOICES) is None
    assert "ipywidgets" in capsys.readouterr().out
    assert not drawn
