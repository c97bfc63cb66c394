"""gpu-host: every step leaves a file, goes on where it ended, and does what its name says.

The steps themselves take a GPU, or minutes; the cheapest are done here, on the CPU.
"""

import importlib.util
import json
import subprocess
import sys
import tarfile
import time

import nbformat
import pytest
import yaml

from benchmarks import gpu_host, gpu_lessons, gpu_steps
from benchmarks.__main__ import main
from benchmarks.gpu_data import DAYS, MODELS, ROOT, Settings
from benchmarks.gpu_steps import backend_for, kind_of, names, step
from benchmarks.gpu_training import PIPELINES, PRECISIONS


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def performer(done, failing=()):
    def perform(name, step_s):
        done.append(name)
        if name in failing:
            raise RuntimeError("no kernel image")
        return {"samples_per_s": 12.0}

    return perform


def steps_of(steps, limit_s=100):
    return dict.fromkeys(steps, limit_s)


def test_each_step_leaves_a_file_and_is_not_done_again(tmp_path):
    done, facts = [], gpu_host.where(Settings.tiny())
    given = {"out": tmp_path, "perform": performer(done), "facts": facts}
    assert gpu_host.do_steps(steps_of("ab"), **given) == {"a": True, "b": True}
    assert gpu_host.do_steps(steps_of("abc"), **given) == {"c": True}
    assert done == ["a", "b", "c"]
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["result"] == {"samples_per_s": 12.0}
    assert record["device"] == "cpu"
    assert {"hardware", "versions", "commit", "elapsed_s", "step", "date"} <= record.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json", "c.json"]


def test_a_step_that_fails_says_why_and_is_tried_again_after_all_others(tmp_path):
    done = []
    outcomes = gpu_host.do_steps(steps_of("ab"), tmp_path, performer(done, failing="a"))
    assert outcomes == {"a": False, "b": True}
    record = json.loads((tmp_path / "a.failed.json").read_text())
    assert record["error"] == "RuntimeError: no kernel image"
    assert [gpu_host.state(tmp_path, name) for name in "abc"] == ["failed", "done", "left"]
    assert gpu_host.do_steps(steps_of("abc"), tmp_path, performer(done)) == {"c": True, "a": True}
    assert done == ["a", "b", "c", "a"]
    assert not (tmp_path / "a.failed.json").exists()


def test_a_step_begins_only_if_what_it_may_take_is_left(tmp_path):
    clock, given = Clock(), {}

    def perform(name, step_s):
        given[name] = step_s
        clock.now_s += 100
        return {}

    steps = {"a": 200, "lesson": 450, "b": 200, "c": 200, "d": 200, "e": 150}
    done = gpu_host.do_steps(steps, tmp_path, perform, limit_s=540, clock=clock)
    assert given == {"a": 200, "b": 200, "c": 200, "d": 200}
    assert list(done) == ["a", "b", "c", "d"]
    again = gpu_host.do_steps(steps, tmp_path, perform, limit_s=540, clock=clock)
    assert list(again) == ["lesson", "e"]


def test_a_step_that_hangs_is_ended_and_says_where_it_was(tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text(
        "import os, time\nos.setsid()\nprint('half way', flush=True)\ntime.sleep(600)\n"
    )  # in a group of its own, as a notebook's kernel is
    settings = Settings.tiny(data=str(tmp_path), work=str(tmp_path), recon=str(script))
    started = time.perf_counter()
    with pytest.raises(RuntimeError, match=r"(?s)^more than 5 s.*half way.*most recent.*in recon"):
        gpu_host.perform("recon-shuffle", settings, 5)
    assert time.perf_counter() - started < 30
    time.sleep(0.5)
    found = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True).stdout
    assert not [line for line in found.splitlines() if str(script) in line and line[0] != "Z"]


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="what is missing is there")
def test_a_step_whose_packages_are_missing_is_not_tried(tmp_path):
    settings = Settings("gpu", data=str(tmp_path), work=str(tmp_path))
    with pytest.raises(RuntimeError, match="not tried: CuPy cannot be imported"):
        gpu_steps.done("train-dlrm-stacked-float32", settings)
    assert gpu_steps.missing(["keras", "no_such_package"]) == ["no_such_package"]
    said = gpu_host.summary({"elapsed_s": 1, "result": {"missing_for_gpu": "there is no GPU"}})
    assert said == "1 s: missing_for_gpu there is no GPU"


def test_what_a_step_needs_is_what_its_file_imports():
    assert {"tf_keras", "nbclient", "nbformat", "nbconvert"} <= gpu_steps.needs("lesson-02")
    assert "tf_keras" not in gpu_steps.needs("lesson-03")
    assert "psutil" in gpu_steps.needs("tests-callbacks")
    assert not {"gpu_helpers", "rmm"} & gpu_steps.needs("tests-parquet")  # ours; in a string


def test_tests_of_which_none_passes_are_no_step_that_is_done():
    """On a machine without a GPU all of them are skipped."""
    if gpu_steps.environment(Settings("gpu"))["missing_for_gpu"] is None:
        pytest.skip("a GPU is there")
    with pytest.raises(RuntimeError, match=r"(?s)no test has passed, .*skipped"):
        gpu_steps.gpu_tests("parquet", Settings("gpu"))


def test_lessons_have_rows_enough_for_their_traces():
    content = yaml.safe_load((ROOT / "notebooks" / "params" / "gpu.yaml").read_text())
    rows = Settings("gpu").lesson_rows * (DAYS - 1) // DAYS
    for name in ("03_gpu_native", "04_gpu_accelerated"):
        assert content[name]["LAST_TRACED"] * content[name]["BATCH_SIZE"] <= rows


def test_every_step_can_be_named():
    listed = list(names(Settings("gpu", recon="recon.py")))
    assert len(listed) == len(set(listed))
    assert all(callable(step(name)) for name in listed)
    assert all(60 < kind_of(name).limit_s <= 400 for name in listed)
    for model in MODELS:
        for pipeline in PIPELINES:
            for precision in PRECISIONS:
                there = f"train-{model}-{pipeline}-{precision}" in listed
                assert there is (pipeline != "raw" or model == "dlrm")  # lists have no raw cells
    first = listed.index("train-dlrm-native-float32")
    assert listed.index("tests-batches") < first < listed.index("trace-dlrm-native-mixed_float16")
    for name in ("train-dlrm", "train-dlrm-stacked-float8", "loader-rows", "recon-", ""):
        with pytest.raises(ValueError, match=f"'{name}' is no step; the steps are environment, "):
            step(name)


def test_patterns_choose_steps():
    listed = names(Settings("gpu"))
    chosen = gpu_host.choose(listed, ["train-dlrm-*-float32", "environment"])
    assert set(chosen) == {"environment", *(f"train-dlrm-{way}-float32" for way in PIPELINES)}
    assert chosen == sorted(chosen, key=listed.index)
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
    assert 0.5 < trained["loss"] < 1 > trained["valid_loss"] > 0.5
    assert trained["gpu_memory"] is trained["tf32"] is trained["idle_share"] is None  # of a GPU
    assert "untraced" not in trained
    command(tmp_path, "--list", "--only", "loader-*")
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "left    loader-columns",
        "done    loader-stacked",
    ]


def test_a_step_that_cannot_be_done_ends_with_its_error(tmp_path):
    settings = Settings.tiny(data=str(tmp_path), work=str(tmp_path), recon="not-there.py")
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1; .*no answer, exit code 2"):
        gpu_host.perform("recon-shuffle", settings, 120)


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
    gpu_host.do_steps({"backend": 9}, tmp_path, lambda name, step_s: {"backend": "jax"})
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
