"""gpu-report: the files of gpu-host become one file, and tables that name the device."""

import json

import pytest

from benchmarks import gpu_report
from benchmarks.__main__ import main
from benchmarks.measure import RESULTS

GPU = {"cpu": "A CPU", "cores": 16, "memory_bytes": 2**37, "gpus": ["NVIDIA H100, 81559 MiB"]}
GIB = 2**30


def trained(model, way, precision, rate, idle=None):
    """Return a training as gpu-host writes it: the name of its step, and the report of `train`."""
    name = f"{model}: {way}"
    entry = {"name": name, "rows": 8, "rows_per_s": rate, "elapsed_s": [8 / rate]}
    entry |= {"min_rows_per_s": rate, "max_rows_per_s": rate, "losses": [0.6], "valid_loss": 0.5}
    entry |= {"compared_steps": 16, "jit_compile": True, "parameters": 9}
    entry |= {"tf32": precision == "float32" or None}
    entry |= {} if idle is None else {"idle_share": idle}
    report = {"candidates": [entry], "precision": precision, "backend": "tensorflow"}
    report |= {"batch_size": 65_536, "widths": "published", "timelines": {}, "untraced": {}}
    report["device_memory"] = {"tensorflow": {"peak": 3 * GIB}, "rmm": {"peak": GIB / 2}}
    return f"train-{model}-{way}-{precision}", report


def reader(name, rate):
    return {"name": name, "rows": 9, "rows_per_s": rate, "elapsed_s": [1.0], "plan": {}}


def write(folder, results, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in results:
        record = {"step": name, "date": "2026-11-22T01:00:00+00:00", "elapsed_s": 1.0}
        record |= {"device": "gpu", "hardware": GPU, "versions": {"keras": "3.15.1"}}
        record |= {"commit": "abc", "result": result, **changes}
        (folder / f"{name}.json").write_text(json.dumps(record))


@pytest.fixture
def measured(tmp_path):
    """Folder of a GPU host that reached some targets."""
    folder = tmp_path / "gpu-host-nvidia-h100"
    write(
        folder,
        [
            trained("dlrm", "native", "float32", 1e6),
            trained("dlrm", "stacked", "float32", 4e6, 0.05),
            trained("dlrm", "stacked", "mixed_float16", 6e6, 0.2),
            trained("dlrm", "native", "mixed_float16", 1e6, 0.7),
            trained("movielens", "native", "float32", 1e6),
            ("loader-alone", {"candidates": [reader("loader, stacked, shuffled", 30e6)]}),
            ("loader-raw", {"candidates": [reader("raw binary, stacked, not shuffled", 90e6)]}),
            ("tests-ops", {"counts": {"passed": 9}, "output": "x" * 8000}),
        ],
    )
    failed = {"step": "lesson-02", "error": "RuntimeError: " + "x" * 900 + " the end"}
    write(folder, [("lesson-02.failed", {})], **failed)
    return folder


def test_targets_are_reached_or_not_or_not_measured(measured):
    targets = {t["what"]: t for t in gpu_report.merged(measured)["targets"]}
    outcomes = {what: (target["value"], target["outcome"]) for what, target in targets.items()}
    assert outcomes == {
        "MovieLens, stacked and fused, float32: times native": (None, "not measured"),
        "DLRM, stacked and fused, float32: times native": (4, "reached"),
        "MovieLens, stacked and fused: mixed_float16, times float32": (None, "not measured"),
        "DLRM, stacked and fused: mixed_float16, times float32": (1.5, "not reached"),
        "DLRM, stacked and fused: samples per second": (6e6, "reached"),
        "loader alone: rows per second": (30e6, "reached"),
        "DLRM, stacked and fused, float32: idle share of the GPU": (0.05, "reached"),
        "DLRM, stacked and fused, mixed_float16: idle share of the GPU": (0.2, "not reached"),
    }


def test_the_report_is_small_and_its_tables_name_the_device(measured, tmp_path, capsys):
    out = tmp_path / "gpu.json"
    assert main(["gpu-report", str(measured), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Trained on NVIDIA H100: A CPU, 16 cores, 128 GiB, NVIDIA H100. 2026-11")
    row = "| DLRM | loader, stacked and fused | float32 (TF32) | 4,000,000 | 16.4 | 4 | 5% |"
    assert f"{row} 0.5000 | 3.00 GiB | 0.50 GiB |" in said
    assert "validation loss: after 16 steps" in said
    assert "failed: lesson-02: xxx" in said
    result = json.loads(out.read_text())
    assert result["benchmark"] == "gpu"
    assert out.stat().st_size < 10_000
    by_way = {(e["way"], e["precision"]): e for e in result["trainings"] if e["model"] == "dlrm"}
    assert by_way["native", "mixed_float16"]["idle_share"] == 0.7
    assert by_way["native", "float32"]["idle_share"] is None
    assert result["tests"] == {"tests-ops": {"passed": 9}}


def test_the_report_of_a_gpu_goes_to_the_results(measured):
    result = gpu_report.merged(measured)
    assert gpu_report.target(result, measured, None) is None


def test_a_rehearsal_is_named_so_and_kept_out_of_results(tmp_path, capsys):
    machine = {"device": "cpu", "hardware": GPU | {"gpus": []}}
    runs = [trained("dlrm", way, "float32", rate) for way, rate in (("native", 1), ("stacked", 9))]
    write(tmp_path, runs, **machine)
    assert main(["gpu-report", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Trained on a CPU (rehearsal): A CPU, 16 cores")
    assert "| 9 | not measured |" in said
    assert "| reached |" not in said
    made = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert made == ["rehearsal-a-cpu-16-cores.json"]
    with pytest.raises(SystemExit, match="is a rehearsal on a CPU and must not be written to"):
        main(["gpu-report", str(tmp_path), "--out", str(RESULTS / "gpu-here.json")])
    assert not (RESULTS / "gpu-here.json").exists()


def test_files_of_several_machines_are_refused(measured, tmp_path):
    write(measured, [("environment", {})], device="cpu")
    with pytest.raises(SystemExit, match="is of several machines"):
        gpu_report.merged(measured)
    with pytest.raises(SystemExit, match="no step of gpu-host has left a file in"):
        gpu_report.merged(tmp_path / "nothing")
