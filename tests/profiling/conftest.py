"""Data and traces that the tests of profiling share."""

import pytest
from tutorlib.profiling import read_trace

from tests.support.traces import profiled, write_trace
from tests.support.training import model_of, slow_dataset, write_rows


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def starved(tmp_path_factory):
    """The trace of a small model whose data takes a tenth of a second per batch."""
    return profiled(slow_dataset(8, 0.1), model_of(), tmp_path_factory.mktemp("starved"), 8)


@pytest.fixture
def gpu_trace(tmp_path):
    """Two steps of 50 ms: 20 of waiting, 5 of copying, 20 of kernels, two of them at once for 5."""
    host = {"python": [], "tf_data_iterator_get_next/1": []}
    compute, copies, derived = [], [], []
    for step, begin in enumerate((10, 60)):
        host["python"].append(("train", begin, begin + 50, {"step_num": step}))
        wait = "IteratorGetNextOp::DoCompute", begin, begin + 20, {}
        host["tf_data_iterator_get_next/1"].append(wait)
        copies.append(("MemcpyH2D", begin + 20, begin + 25, {}))
        copies.append(("gemm", begin + 30, begin + 40, {"tf_op": "top/dense/MatMul:MatMul"}))
        compute.append(("gemm", begin + 25, begin + 35, {"tf_op": "top/dense/MatMul:MatMul"}))
        derived.append(("train", begin, begin + 50, {}))
    streams = {"Stream #13(Compute)": compute, "Stream #14(MemcpyH2D)": copies, "Steps": derived}
    planes = {"/host:CPU": host, "/device:GPU:0": streams}
    path = tmp_path / "plugins" / "profile" / "2026" / "host.xplane.pb"
    return read_trace(write_trace(path, planes).parents[3])
