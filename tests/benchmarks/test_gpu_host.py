"""gpu-host: every step leaves a file, a run resumes where it ended, steps are ordered and complete.

The steps themselves need a GPU, or minutes; the cheapest run here, on the CPU.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time

import pytest
import yaml

from benchmarks import gpu_host, gpu_steps
from benchmarks.__main__ import main
from benchmarks.gpu_steps import Settings, Step, backend_for, read_tests, steps_of
from benchmarks.machine import ROOT
from benchmarks.train import GPU_WAYS, PRECISIONS, TITLES


class Clock:
    """A clock that a test advances."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def on_gpu(tmp_path):
    return Settings("gpu", tmp_path / "work", tmp_path / "data")


@pytest.fixture
def on_cpu(tmp_path):
    return Settings("cpu", tmp_path / "work", tmp_path / "data")


def performer(done, failing=()):
    def perform(name, step_s):
        done.append(name)
        if name in failing:
            raise RuntimeError("no kernel image")
        return {"samples_per_s": 12.0}

    return perform


def limits_of(steps, limit_s=100):
    return dict.fromkeys(steps, limit_s)


def test_each_step_leaves_a_file_and_is_not_run_again(tmp_path, on_cpu):
    done, details = [], gpu_host.where(on_cpu)
    given = {"out": tmp_path, "perform": performer(done), "details": details}
    assert gpu_host.do_steps(limits_of("ab"), **given) == {"a": True, "b": True}
    assert gpu_host.do_steps(limits_of("abc"), **given) == {"c": True}
    assert done == ["a", "b", "c"]
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["result"] == {"samples_per_s": 12.0}
    assert record["device"] == "cpu"
    assert {"hardware", "versions", "commit", "elapsed_s", "step", "date"} <= record.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json", "c.json"]


def test_a_failed_step_reports_its_error_and_is_tried_again_after_all_others(tmp_path):
    done = []
    outcomes = gpu_host.do_steps(limits_of("ab"), tmp_path, performer(done, failing="a"))
    assert outcomes == {"a": False, "b": True}
    record = json.loads((tmp_path / "a.failed.json").read_text())
    assert record["error"] == "RuntimeError: no kernel image"
    assert [gpu_host.state(tmp_path, name) for name in "abc"] == ["failed", "done", "left"]
    assert gpu_host.do_steps(limits_of("abc"), tmp_path, performer(done)) == {"c": True, "a": True}
    assert done == ["a", "b", "c", "a"]
    assert not (tmp_path / "a.failed.json").exists()


def test_a_step_starts_only_if_its_time_limit_is_left(tmp_path):
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


def test_a_step_that_hangs_is_ended_with_a_traceback(tmp_path):
    script, log = tmp_path / "hangs.py", tmp_path / "log.txt"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "code = 'import os, sys, time; os.setsid(); time.sleep(600)'\n"
        "subprocess.Popen([sys.executable, '-c', code, os.path.abspath(__file__)])\n"
        "print('half way', flush=True)\n"
        "time.sleep(600)\n"
    )  # starts a process in its own session, as a notebook's kernel is
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    assert gpu_host.run_limited([sys.executable, script], 5, log, environment) is None
    assert time.perf_counter() - started < 30
    output = log.read_text()
    assert "half way" in output
    assert "most recent call first" in output
    assert 'hangs.py", line 5' in output
    time.sleep(0.5)
    found = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True).stdout
    assert not [line for line in found.splitlines() if str(script) in line and line[0] != "Z"]


def perform(step, settings, limit_s=60):
    return gpu_host.perform_step(step, settings, settings.work / "out", "tensorflow", limit_s)


def step(code, **options):
    return Step(
        "a-step", [[sys.executable, "-c", code]], lambda output: {"said": output}, **options
    )


def test_the_error_of_a_failing_step_has_its_exit_code_and_the_end_of_its_output(on_cpu):
    assert perform(step("print('hello')"), on_cpu) == {"said": "hello\n"}
    with pytest.raises(RuntimeError, match=r"(?s)^exit code 1; .*the end of its .*KeyError: 'no'"):
        perform(step("raise KeyError('no')"), on_cpu)
    assert "KeyError" in perform(step("raise KeyError('no')", codes=(0, 1)), on_cpu)["said"]
    with pytest.raises(RuntimeError, match=r"^more than 1 s; the end of its output"):
        perform(step("import time; time.sleep(60)"), on_cpu, limit_s=1)


def test_a_step_runs_only_after_the_step_it_needs(on_cpu):
    with pytest.raises(RuntimeError, match="not run: it needs the step 'data-lessons', which is n"):
        perform(steps_of(on_cpu)["lesson-04"], on_cpu)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed here")
def test_a_benchmark_whose_device_is_missing_ends_before_it_measures(tmp_path):
    given = ["--device", "gpu", "--data", str(tmp_path / "data")]
    for command in (["loader"], ["train", "--ways", "stacked"]):
        with pytest.raises(SystemExit, match="--device gpu needs a GPU, cuDF and CuPy, but CuPy"):
            main([*command, *given])
    assert not (tmp_path / "data").exists()


def test_a_test_file_of_which_no_test_passes_is_a_failed_step(on_gpu):
    """On a machine without a GPU all of them are skipped."""
    if gpu_host.machine.hardware()["gpus"]:
        pytest.skip("a GPU is there")
    with pytest.raises(RuntimeError, match=r"(?s)no test has passed: .*skipped"):
        perform(steps_of(on_gpu)["tests-parquet"], on_gpu, limit_s=120)


def test_counts_of_tests_are_read_from_the_summary_of_pytest():
    said = "..s\n2 passed, 1 skipped, 9 deselected in 3.21s\nI0000 1 device\n"
    assert read_tests(said)["counts"] == {"passed": 2, "skipped": 1, "deselected": 9}
    collected = "a.py::test_b\n\n12/30 tests collected (18 deselected) in 0.52s\n"
    assert read_tests(collected)["counts"] == {"collected": 12, "deselected": 18}
    failed = "FAILED a.py::test_b - no\n1 failed, 2 passed in 3.21s"
    assert read_tests(failed)["failed"] == ["FAILED a.py::test_b - no"]


def test_lessons_have_rows_enough_for_their_traces():
    content = yaml.safe_load((ROOT / "notebooks" / "params" / "gpu.yaml").read_text())
    rows = (
        int(gpu_steps.SIZES["gpu"]["criteo"].split()[-1]) * 6 // 7
    )  # of 7 days 6 are for training
    for name in ("03_gpu_native", "04_gpu_accelerated"):
        assert content[name]["LAST_TRACED"] * content[name]["BATCH_SIZE"] <= rows


def test_steps_are_complete_and_in_order_of_value(on_gpu):
    steps = steps_of(on_gpu)
    assert all(100 < step.limit_s <= 400 for step in steps.values())
    for model in TITLES:
        for way in ("cpu-native", *GPU_WAYS):
            for precision in PRECISIONS:
                there = f"train-{model}-{way}-{precision}" in steps
                assert there is (way != "raw" or model == "dlrm")  # lists have no raw cells
    listed = list(steps)
    assert listed[0] == "environment"
    first = listed.index("train-dlrm-native-float32")
    assert listed.index("tests-batches") < first < listed.index("lesson-04")
    assert listed.index("data-lessons") < listed.index("lesson-04")


def test_every_command_of_a_benchmark_is_accepted_by_its_parser(on_gpu, on_cpu):
    from benchmarks.__main__ import parser

    for settings in (on_gpu, on_cpu):
        for step in steps_of(settings).values():
            for command in step.commands:
                if command[1:3] == ["-m", "benchmarks"]:
                    arguments = parser().parse_args(command[3:])
                    on_host_cpu = settings.device == "cpu" or "-cpu-" in step.name
                    assert arguments.device == ("cpu" if on_host_cpu else "gpu")


def test_patterns_choose_steps(on_gpu):
    steps = steps_of(on_gpu)
    chosen = list(gpu_host.choose(steps, ["train-dlrm-*-float32", "environment"]))
    ways = ("cpu-native", *GPU_WAYS)
    assert set(chosen) == {"environment", *(f"train-dlrm-{way}-float32" for way in ways)}
    assert chosen == sorted(chosen, key=list(steps).index)
    with pytest.raises(SystemExit, match=r"\['train-bert\*'\] match no step of environment, "):
        gpu_host.choose(steps, ["train-bert*"])


def command(tmp_path, *arguments):
    folders = ["--out", tmp_path / "out", "--data", tmp_path / "data", "--work", tmp_path / "work"]
    return main(["gpu-host", "--device", "cpu", *map(str, [*folders, *arguments])])


def test_a_rehearsal_on_the_cpu_runs_real_steps(tmp_path, capsys):
    """One reader and one training, each in a process of its own."""
    chosen = ["loader-alone", "train-dlrm-stacked-float32"]
    assert command(tmp_path, "--only", *chosen) == 0
    assert "2 of 2 steps are done" in capsys.readouterr().out
    read = json.loads((tmp_path / "out" / "loader-alone.json").read_text())["result"]
    assert read["device"] == "cpu"
    by_name = {entry["name"]: entry for entry in read["candidates"]}
    assert by_name["loader, stacked, shuffled"]["rows_per_s"] > 0
    assert {"stages", "plan"} <= by_name["loader, stacked, shuffled"].keys()
    assert by_name["loader, first batch of an epoch"]["elapsed_s"][0] > 0
    trained = json.loads((tmp_path / "out" / f"{chosen[1]}.json").read_text())["result"]
    [entry] = trained["candidates"]
    assert entry["rows"] == 8192
    assert 0.4 < entry["losses"][0] < 1 > entry["valid_loss"] > 0.4
    assert trained["device_memory"] is entry["tf32"] is None  # of a GPU
    assert "idle_share" not in entry
    assert (list(trained["timelines"]), trained["untraced"]) == ([entry["name"]], {})
    command(tmp_path, "--list", "--only", "loader-alone", "loader-raw")
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "done    loader-alone",
        "left    loader-raw",
    ]


def test_the_backend_is_the_first_that_computes_on_the_gpu():
    able, unable = {"on_gpu": True}, {"on_gpu": False, "gpus": []}
    assert backend_for({"tensorflow": able, "jax": able})[0] == "tensorflow"
    chosen, why = backend_for({"tensorflow": {"error": "no libcublas"}, "jax": able})
    assert chosen == "jax"
    assert "tensorflow does not: {'error': 'no libcublas'}" in why
    with pytest.raises(RuntimeError, match="nothing computes on the GPU, tensorflow does not"):
        backend_for({"tensorflow": unable, "jax": unable})


def test_the_environment_step_reads_the_answers_of_its_probes(on_gpu):
    output = 'noise\nANSWER jax {"on_gpu": true}\nANSWER loader {"missing_for_gpu": null}\n'
    found = steps_of(on_gpu)["environment"].read(output)
    assert (found["backend"], found["missing_for_gpu"]) == ("jax", None)
    assert "noise" in found["found"]["tensorflow"]["error"]


def test_steps_use_the_backend_that_the_environment_step_chose(tmp_path):
    assert gpu_host.backend_of(tmp_path) == "tensorflow"
    gpu_host.do_steps({"environment": 9}, tmp_path, lambda name, limit_s: {"backend": "jax"})
    assert gpu_host.backend_of(tmp_path) == "jax"


def test_a_training_runs_on_jax_too(tmp_path):
    chosen = ["train-dlrm-native-float32", "train-dlrm-stacked-float32"]
    assert command(tmp_path, "--backend", "jax", "--only", *chosen) == 0
    for name in chosen:
        trained = json.loads((tmp_path / "out" / f"{name}.json").read_text())["result"]
        assert trained["backend"] == "jax"
        assert 0.4 < trained["candidates"][0]["valid_loss"] < 1


def processes():
    """Return (process id, that of its parent) of all that run."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True)
    lines = [line.split() for line in listed.stdout.splitlines()]
    return [(int(pid), int(parent)) for pid, parent, state in lines if state[0] != "Z"]


def test_a_killed_run_resumes_where_it_ended(tmp_path):
    """Killed during a step: the step ends too, and what was done stays."""
    folders = ["--out", tmp_path / "out", "--data", tmp_path / "data", "--work", tmp_path / "work"]
    arguments = ["--device", "cpu", *folders, "--only", "layers-fused", "layers-bag"]
    run = [sys.executable, "-m", "benchmarks", "gpu-host", *map(str, arguments)]
    first, second = (tmp_path / "out" / f"layers-{name}.json" for name in ("fused", "bag"))
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
    assert json.loads(second.read_text())["result"]["candidates"]


def test_a_lesson_gets_only_parameters_that_it_has():
    for name in gpu_steps.LESSONS.values():
        assert "DATA_DIR" in gpu_steps.parameters_of(name)
    assert "LOG_DIR" not in gpu_steps.parameters_of("01_etl")
