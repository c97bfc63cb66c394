"""Outputs of data_prep are whole or absent, and are made once."""

import functools
import os
import signal
import subprocess
import sys
import time

import pytest

from data_prep.__main__ import main
from data_prep.output import DataPrepError, make_once, read_settings


def make(folder, settings, text="content", **options):
    def write(path):
        (path / "file.txt").write_text(text)
        return {"length": len(text)}

    return make_once(folder, settings, write, **options)


def make_parts(folder, text, **options):
    def write(path):
        for name in ("train", "index"):
            (path / name).mkdir()
            (path / name / "a.txt").write_text(text)
        (path / "scratch").write_text("not a part")
        return {}

    return make_once(folder, {"text": text}, write, parts=("train", "index"), **options)


def test_an_output_is_made_once_and_other_settings_are_refused_by_name(tmp_path, capsys):
    out = tmp_path / "out"
    for _ in range(2):
        assert make(out, {"n": 1, "m": 2}) == {"length": 7}
    assert "left alone" in capsys.readouterr().out
    assert read_settings(out) == {"settings": {"n": 1, "m": 2}, "metadata": {"length": 7}}
    with pytest.raises(DataPrepError, match=r"n was 1, is now 3.*--overwrite"):
        make(out, {"n": 3, "m": 2})
    with pytest.raises(TypeError):
        make(out, {"n": 3}, text=5, overwrite=True)  # fails after the staging folder was made
    assert (out / "file.txt").read_text() == "content"
    make(out, {"n": 3}, "new", overwrite=True)
    assert (out / "file.txt").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[1]", '{"settings": {}}', '"\\ud800"'])
def test_settings_that_were_changed_are_refused_by_name(tmp_path, text):
    make(tmp_path / "out", {})
    (tmp_path / "out/_settings.json").write_text(text)
    with pytest.raises(DataPrepError, match=r"_settings\.json (is not JSON|was not written)"):
        read_settings(tmp_path / "out")


def test_what_exists_is_replaced_only_with_overwrite(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/thesis.txt").write_text("mine")
    for call in (lambda: make(tmp_path / "train", {}), lambda: make_parts(tmp_path, "x")):
        with pytest.raises(DataPrepError, match=r"train exists already\. Pass --overwrite to"):
            call()
    assert os.listdir(tmp_path) == ["train"]
    assert (tmp_path / "train/thesis.txt").read_text() == "mine"


def test_parts_are_replaced_and_their_neighbours_stay(tmp_path):
    (tmp_path / "raw").mkdir()
    for text in ("first", "second"):
        make_parts(tmp_path, text, overwrite=True)
        assert (tmp_path / "train/a.txt").read_text() == text
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {"raw", "train", "index", "_settings.json"}


PUBLISH = """
import os, signal, sys
from data_prep.output import make_once

moment, count = int(sys.argv[2]), 0

def kill_at_moment(event, _):
    global count
    if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.scandir", "open"):
        count += 1
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)

def write(path):
    for name in ("train", "index"):
        (path / name).mkdir()
        (path / name / "a.txt").write_text("new")
    sys.addaudithook(kill_at_moment)
    return {}

make_once(sys.argv[1], {"text": "new"}, write, parts=("train", "index"), overwrite=True)
"""


def test_a_kill_at_any_moment_of_publishing_leaves_whole_parts_and_never_mixed_ones(tmp_path):
    found, moment, status = [], 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        moment += 1
        folder = tmp_path / str(moment)
        make_parts(folder, "old")
        (folder / "mine").touch()
        command = [sys.executable, "-c", PUBLISH, str(folder), str(moment)]
        status = subprocess.run(command).returncode
        parts = [folder / name for name in ("train", "index")]
        texts = {(part / "a.txt").read_text() if part.exists() else "" for part in parts}
        finished = read_settings(folder)
        found.append(finished["settings"]["text"] if finished else "unfinished")
        assert not finished or texts == {found[-1]}
        make_parts(folder, "newer", overwrite=True)
        names = [name for name in os.listdir(folder) if not name.endswith(".partial")]
        assert sorted(names) == ["_settings.json", "index", "mine", "train"]
    assert status == 0
    order = ["old", "unfinished", "new"]
    assert found == sorted(found, key=order.index)
    assert {*found} == {*order}


def run(*arguments, **keywords):
    # A shell starts its background jobs with Ctrl-C ignored, and so would this child inherit it.
    listening = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [sys.executable, "-m", "data_prep", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listening,
        **keywords,
    )


def test_an_interrupted_run_leaves_nothing_and_can_be_repeated(tmp_path):
    output = tmp_path / "raw"
    process = run("synthetic", "criteo", "--rows", "50000000", "--output", str(output))
    while not list(tmp_path.glob("_raw.*.partial/raw/day_0.tsv")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())
    command = ["synthetic", "criteo", "--rows", "100", "--days", "2", "--output", str(output)]
    assert main(command) == 0
    made = {path.name for path in output.iterdir()}
    assert made == {"_settings.json", "day_0.tsv", "day_1.tsv"}


def test_every_command_shows_its_terms(tmp_path, capsys):
    for command, terms in (("criteo", "CC BY-NC-SA 4.0"), ("movielens", "Harper")):
        assert main([command, "--from", str(tmp_path / "nowhere"), "--output", str(tmp_path)]) == 1
        printed = capsys.readouterr()
        assert terms in printed.out
        assert "nowhere" in printed.err
        assert printed.err.count("\n") == 1
