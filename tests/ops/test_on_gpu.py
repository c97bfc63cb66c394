"""On a GPU: ops on CuPy's arrays make and learn what the CPU does, and nothing leaves the GPU."""

import inspect

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.device_op_cases import (
    OPS,
    ROW_OPS,
    assert_same_on_device,
    chunk,
    moved,
    table,
    workflow,
)
from tests.support.gpu import ON_GPU
from tests.support.ops import bits
from tutorlib.parquet import ParquetSource

pytestmark = ON_GPU


@pytest.fixture
def cupy():
    """CuPy, on a stream of this thread's own."""
    from tutorlib.memory import gpu_space

    space = gpu_space()
    with space.work():
        yield space.xp


@pytest.mark.parametrize("name", [*OPS, *ROW_OPS])
def test_transforms_to_what_the_cpu_makes(cupy, name):
    rows = chunk()
    flow = workflow(name).fit(rows)
    on_device = moved(rows, cupy)
    none = on_device.slice(0, 0)
    made = flow.transform(on_device)
    assert_same_on_device(made, flow.transform(rows), cupy)
    assert flow.transform(none).num_rows == 0


@pytest.mark.parametrize("name", [*OPS, *ROW_OPS])
def test_learns_what_the_cpu_learns(tmp_path, name):
    pq.write_table(pa.table(table()), tmp_path / "a.parquet", row_group_size=70)
    ours = workflow(name).fit(ParquetSource(tmp_path, device="gpu"), threads=3)
    theirs = workflow(name).fit(chunk())
    for group, other in zip(ours.groups, theirs.groups, strict=True):
        assert list(map(bits, group.ops)) == list(map(bits, other.ops))


def test_the_stand_in_has_nothing_that_cupy_lacks(cupy):
    """What passes with it on a CPU has the functions and parameters that CuPy has."""
    from tests.support import cupy_stand_in as stand_in

    ours = {name for name in vars(stand_in.cupy) if not name.startswith("_")}
    assert not [name for name in ours if not hasattr(cupy, name)]
    methods = {name for name in vars(stand_in.ndarray) if not name.startswith("_")}
    assert not [name for name in methods if not hasattr(cupy.ndarray, name)]
    for name, known in stand_in.PARAMETERS.items():
        theirs = getattr(cupy, name)
        if not isinstance(theirs, cupy.ufunc):
            assert set(known.split()) <= set(inspect.signature(theirs).parameters), name
