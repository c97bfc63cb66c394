"""What the tests of the benchmarks share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def gpu_hidden_by_benchmarks_only():
    """Restore the variable with which `--device cpu` hides GPUs from a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield
