"""gpu-host: every step leaves a file, goes on where it ended, and does what its name says.

The steps themselves take a GPU, or minutes; the cheapest are done here, on the CPU.
"""

import json

import pytest

from benchmarks import gpu_host
from benchmarks.__main__ import main
from benchmarks.gpu_steps import MODELS, PIPELINES, Settings, names, step


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def performer(done, failing=()):
    def perform(name, left_s):
        done.append(name)
        if name in failing:
            raise RuntimeError("no kernel image")
        return {"samples_per_s": 12.0}

    return perform


def test_each_step_leaves_a_file_and_is_not_done_again(tmp_path):
    done = []
    assert gpu_host.do_steps(["a", "b"], tmp_path, performer(done)) == {"a": True, "b": True}
    assert gpu_host.do_steps(["a", "b", "c"], tmp_path, performer(done)) == {"c": True}
    assert done == ["a", "b", "c"]
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["result"] == {"samples_per_s": 12.0}
    assert {"hardware", "versions", "commit", "elapsed_s", "step"} <= record.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json", "c.json"]


def test_a_step_that_fails_says_why_and_is_tried_again(tmp_path):
    done = []
    outcomes = gpu_host.do_steps(["a", "b"], tmp_path, performer(done, failing="a"))
    assert outcomes == {"a": False, "b": True}
    record = json.loads((tmp_path / "a.failed.json").read_text())
    assert record["error"] == "RuntimeError: no kernel image"
    assert [gpu_host.state(tmp_path, name) for name in "abc"] == ["failed", "done", "left"]
    assert gpu_host.do_steps(["a", "b"], tmp_path, performer(done)) == {"a": True}
    assert not (tmp_path / "a.failed.json").exists()


def test_no_step_begins_when_the_time_is_up(tmp_path):
    clock, given = Clock(), {}

    def perform(name, left_s):
        given[name] = left_s
        clock.now_s += 200
        return {}

    done = gpu_host.do_steps("abcdefgh", tmp_path, perform, limit_s=540, clock=clock)
    assert given == {"a": 540, "b": 340, "c": 140}
    assert list(done) == ["a", "b", "c"]
    again = gpu_host.do_steps("abcd", tmp_path, perform, clock=clock)
    assert list(again) == ["d"]
    assert given["d"] == gpu_host.STEP_S < 600


def test_every_step_can_be_named():
    listed = list(names(Settings("gpu", recon="recon.py")))
    assert len(listed) == len(set(listed))
    assert all(callable(step(name)) for name in listed)
    for model in MODELS:
        for pipeline in PIPELINES:
            assert f"train-{model}-{pipeline}-float32" in listed
    for name in ("train-dlrm", "train-dlrm-stacked-float8", "loader-rows", "recon-", ""):
        with pytest.raises(ValueError, match=f"'{name}' is no step; the steps are environment, "):
            step(name)


def test_patterns_choose_steps():
    listed = list(names(Settings("gpu")))
    chosen = gpu_host.choose(listed, ["train-dlrm-*-float32", "environment"])
    assert chosen == ["environment", *(f"train-dlrm-{way}-float32" for way in PIPELINES)]
    with pytest.raises(SystemExit, match=r"\['train-bert\*'\] fit no step of environment, "):
        gpu_host.choose(listed, ["train-bert*"])


def command(tmp_path, *arguments):
    folders = ["--out", tmp_path / "out", "--data", tmp_path / "data", "--work", tmp_path / "work"]
    return main(["gpu-host", "--device", "cpu", *map(str, [*folders, *arguments])])


def test_a_rehearsal_on_the_cpu_does_real_steps(tmp_path, capsys):
    """One reader and one training, each in a process of its own."""
    chosen = ["loader-stacked", "train-dlrm-stacked-float32"]
    assert command(tmp_path, "--only", *chosen) == 0
    assert "2 of 2 steps are done" in capsys.readouterr().out
    read = json.loads((tmp_path / "out" / "loader-stacked.json").read_text())["result"]
    assert read["rows"] == Settings.tiny().rows
    assert read["rows_per_s"] > 0 < read["first_batch_s"]
    trained = json.loads((tmp_path / "out" / f"{chosen[1]}.json").read_text())["result"]
    assert trained["steps"] == Settings.tiny().steps
    assert trained["samples_per_s"] == pytest.approx(1024 * 1e3 / trained["step_ms"])
    assert 0.5 < trained["loss"] < 1
    assert trained["gpu_memory"] is None
    command(tmp_path, "--list", "--only", "loader-*")
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "left    loader-columns",
        "done    loader-stacked",
    ]


def test_a_step_that_cannot_be_done_ends_with_its_error(tmp_path):
    settings = Settings.tiny(data=str(tmp_path), work=str(tmp_path), recon="not-there.py")
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1: .*no answer, exit code 2"):
        gpu_host.perform("recon-shuffle", settings, 120)
    with pytest.raises(RuntimeError, match="more than 0 s"):
        gpu_host.perform("environment", settings, 0.01)
