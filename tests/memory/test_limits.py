"""Device: memory is limited only when asked, in the unit that was meant."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tutorlib.loader import KerasSequenceLoader
from tutorlib.memory import (
    gpu_not_used,
    has_gpu,
    host_memory_bytes,
    limit_tensorflow_memory,
    loader_gpu_bytes,
    missing_for_gpu,
    parse_allocation,
    resolve_device,
    usable_cores,
)
from tutorlib.parquet import ParquetSource

GIB = 2**30
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "want"), [("0.5", 4 * GIB), (0.25, 2 * GIB), ("1024", GIB), (8192, 8 * GIB)]
)
def test_below_one_is_a_share_and_above_are_mebibytes(text, want):
    assert parse_allocation(text, 8 * GIB) == want


@pytest.mark.parametrize("text", ["half", "0", "-1", "nan"])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(ValueError, match=r"TF_MEMORY_ALLOCATION=.* must be a number"):
        parse_allocation(text, GIB)


def test_more_than_there_is_is_refused():
    with pytest.raises(ValueError, match="asks for 2,048 MiB, but the device has 1,024 MiB"):
        parse_allocation(2048, GIB)


def test_host_memory_is_that_of_the_machine_or_less():
    assert 2**28 < host_memory_bytes() < 2**50


def test_devices_are_named():
    assert resolve_device(None) == "cpu"
    with pytest.raises(ValueError, match="device must be one of"):
        resolve_device("tpu")


@pytest.mark.skipif(missing_for_gpu() is None, reason="a GPU is there")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"device='gpu' needs an NVIDIA GPU, cuDF and CuPy, but "):
        resolve_device("gpu")
    with pytest.raises(ValueError, match=r"pip install 'tutorlib\[gpu\]'"):
        ParquetSource("train.parquet", device="gpu")


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="a GPU is there")
def test_without_a_gpu_nothing_is_changed(monkeypatch):
    monkeypatch.setenv("TF_MEMORY_ALLOCATION", "0.3")
    assert limit_tensorflow_memory() is None


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="a GPU is there")
def test_an_allocation_that_nothing_applies_is_said_until_it_is_applied(monkeypatch, tmp_path):
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "a.parquet")
    monkeypatch.setenv("TF_MEMORY_ALLOCATION", "0.3")
    monkeypatch.setattr("tutorlib.memory.limits._GIVEN", {})
    with pytest.warns(UserWarning, match=r"=0.3 is set, but .* limit_tensorflow_memory\(\) is"):
        KerasSequenceLoader(tmp_path, 1)
    limit_tensorflow_memory()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KerasSequenceLoader(tmp_path, 1)


def test_a_gpu_that_is_not_used_is_said_with_what_to_do():
    assert "a GPU, but batches are made on the CPU: pass device='gpu'" in gpu_not_used(None)
    assert "since CuPy is missing, or device='cpu'" in gpu_not_used("CuPy is missing")


@pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU")
@pytest.mark.gpu
def test_the_default_device_of_a_machine_with_a_gpu_is_said(tmp_path):
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "a.parquet")
    with pytest.warns(UserWarning, match="a GPU, but batches are made on the CPU"):
        KerasSequenceLoader(tmp_path, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="needs an NVIDIA GPU")
def test_after_the_gpu_is_in_use_the_limit_is_refused():
    tf.zeros(1).gpu()
    with pytest.raises(RuntimeError, match="already initialised"):
        limit_tensorflow_memory(0.5)


@pytest.mark.gpu
@pytest.mark.skipif(missing_for_gpu() is not None, reason="needs an NVIDIA GPU with CuPy")
def test_the_memory_of_the_gpu_is_what_cuda_says(monkeypatch):
    import cupy

    monkeypatch.delenv("TF_MEMORY_ALLOCATION", raising=False)
    monkeypatch.setattr("tutorlib.memory.limits._GIVEN", {})
    assert loader_gpu_bytes() == pytest.approx(cupy.cuda.Device(0).mem_info[1], rel=0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds a process to cores")
def test_the_cores_of_a_process_are_those_that_it_may_use(monkeypatch):
    code = "import os\nfrom tutorlib.memory import usable_cores\nos.sched_setaffinity(0, {%d})\n"
    one = min(os.sched_getaffinity(0))
    program = [sys.executable, "-c", code % one + "print(usable_cores())"]
    done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "1\n"
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert usable_cores() == os.cpu_count()
