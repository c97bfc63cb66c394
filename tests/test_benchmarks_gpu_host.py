"""gpu-host: every step leaves a file, goes on where it ended, and does what its name says.

The steps themselves take a GPU, or minutes; the cheapest are done here, on the CPU.
"""

import json
import subprocess
import sys
import tarfile
import time

import nbformat
import pytest

from benchmarks import gpu_host, gpu_lessons
from benchmarks.__main__ import main
from benchmarks.gpu_data import MODELS, ROOT, Settings
from benchmarks.gpu_steps import backend_for, names, step
from benchmarks.gpu_training import PIPELINES


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
            there = f"train-{model}-{pipeline}-float32" in listed
            assert there is (pipeline != "raw" or model == "dlrm")  # lists have no raw cells
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
    (tmp_path / "work" / "lessons").mkdir(parents=True)
    (tmp_path / "work" / "lessons" / "05.html").write_text("a page")
    assert command(tmp_path, "--keep", tmp_path / "kept.tar.xz", "--only", *chosen) == 0
    with tarfile.open(tmp_path / "kept.tar.xz") as kept:
        made = [f"out/{name}.json" for name in chosen]
        assert kept.getnames() == [*made, "lessons/05.html"]
    assert "2 of 2 steps are done" in capsys.readouterr().out
    read = json.loads((tmp_path / "out" / "loader-stacked.json").read_text())["result"]
    assert read["rows"] >= Settings.tiny().rows
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


def test_the_backend_is_what_does_arithmetic_on_the_gpu():
    able, unable = {"on_gpu": True}, {"on_gpu": False, "gpus": []}
    assert backend_for({"tensorflow": able, "jax": able})[0] == "tensorflow"
    chosen, why = backend_for({"tensorflow": {"error": "no libcublas"}, "jax": able})
    assert chosen == "jax"
    assert "tensorflow does not: {'error': 'no libcublas'}" in why
    with pytest.raises(RuntimeError, match="nothing does arithmetic on the GPU, tensorflow does n"):
        backend_for({"tensorflow": unable, "jax": unable})


def test_steps_after_the_choice_of_a_backend_go_by_it(tmp_path):
    assert gpu_host.backend_of(tmp_path) == "tensorflow"
    gpu_host.do_steps(["backend"], tmp_path, lambda name, left_s: {"backend": "jax"})
    assert gpu_host.backend_of(tmp_path) == "jax"


def test_a_training_runs_on_jax_too(tmp_path):
    chosen = ["train-dlrm-native-float32", "train-dlrm-stacked-float32"]
    assert command(tmp_path, "--backend", "jax", "--only", *chosen) == 0
    for name in chosen:
        made = json.loads((tmp_path / "out" / f"{name}.json").read_text())["result"]
        assert made["backend"] == "jax"
        assert 0.5 < made["loss"] < 1


def processes():
    """Return (process id, that of its parent) of all that run."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True)
    lines = [line.split() for line in listed.stdout.splitlines()]
    return [(int(pid), int(parent)) for pid, parent, state in lines if state[0] != "Z"]


def test_a_run_that_is_killed_goes_on_where_it_ended(tmp_path):
    """Killed while a step is at work: that step ends too, and what was done stays."""
    folders = ["--out", tmp_path / "out", "--data", tmp_path / "data", "--work", tmp_path / "work"]
    arguments = ["--device", "cpu", *folders, "--only", "data-movielens", "data-wide_and_deep"]
    run = [sys.executable, "-m", "benchmarks", "gpu-host", *map(str, arguments)]
    first, second = (tmp_path / "out" / f"data-{m}.json" for m in ("movielens", "wide_and_deep"))
    killed = subprocess.Popen(run, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not first.exists():
        assert killed.poll() is None
        time.sleep(0.05)
    step_of_it = None
    while step_of_it is None:
        step_of_it = next((pid for pid, parent in processes() if parent == killed.pid), None)
    killed.kill()
    killed.communicate()
    while step_of_it in dict(processes()):
        time.sleep(0.1)
    assert not second.exists()
    done = first.stat().st_mtime
    again = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "2 of 2 steps are done" in again.stdout, again.stderr
    assert first.stat().st_mtime == done
    assert json.loads(second.read_text())["result"]["rows"] == Settings.tiny().rows


def test_an_executed_notebook_is_kept_small(tmp_path):
    path = tmp_path / "a.ipynb"
    outputs = [nbformat.v4.new_output("stream", text=text) for text in ("short", "x" * 10**6)]
    cell = nbformat.v4.new_code_cell("print()", outputs=outputs)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    path.with_suffix(".html").write_text("x" * 10**6)
    assert gpu_lessons.shrink(path) == 1
    texts = [output.text for output in nbformat.read(path, as_version=4).cells[0].outputs]
    assert texts[0] == "short"
    assert texts[1].startswith("[an output of 1,000,0")
    assert "is left out" in path.with_suffix(".html").read_text()
    assert gpu_lessons.shrink(path) == 0


def test_only_parameters_that_a_lesson_has_are_given():
    for name in gpu_lessons.LESSONS.values():
        assert "DATA_DIR" in gpu_lessons._parameters(name)
    assert "LOG_DIR" not in gpu_lessons._parameters("05_mixed_precision")
