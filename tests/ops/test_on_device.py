"""Ops on a device: what comes out is what comes out on the CPU, and has not left the device.

With a stand-in for CuPy that refuses what CuPy refuses; with CuPy itself: test_on_gpu.py.
"""

import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.cupy_stand_in import DEFAULT, StandIn, cupy
from tests.support.device_op_cases import (
    OPS,
    ROW_OPS,
    assert_every_op_is_here,
    assert_same_on_device,
    chunk,
    moved,
    table,
    workflow,
)
from tests.support.ops import bits
from tutorlib.ops import LambdaOp, Normalize
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow, split_rows


@pytest.fixture(autouse=True)
def device(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return StandIn()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "a.parquet"
    pq.write_table(pa.table(table()), path, row_group_size=70)
    return path


def test_no_op_is_forgotten():
    assert_every_op_is_here()


def test_a_function_that_the_stand_in_lacks_is_refused_with_the_remedy():
    assert hasattr(cupy, "isnan")
    assert not hasattr(cupy, "sinh")
    with pytest.raises(AttributeError, match=r"has no 'sinh'\. If CuPy has it, add it to ELEMENT"):
        _ = cupy.sinh


@pytest.mark.parametrize("name", [*OPS, *ROW_OPS])
def test_transforms_to_what_the_cpu_makes(device, name):
    rows = chunk()
    flow = workflow(name).fit(rows)
    wanted = flow.transform(rows)
    on_device = moved(rows, cupy)
    assert_same_on_device(flow.transform(on_device), wanted, cupy)
    none = on_device.slice(0, 0)
    assert flow.transform(none).num_rows == 0


@pytest.mark.parametrize("name", [*OPS, *ROW_OPS])
def test_learns_what_the_cpu_learns(device, path, name):
    ours = workflow(name).fit(ParquetSource(path).at(device), threads=3)
    theirs = workflow(name).fit(chunk())
    for group, other in zip(ours.groups, theirs.groups, strict=True):
        assert list(map(bits, group.ops)) == list(map(bits, other.ops))
    assert ours.output_schema == theirs.output_schema


@pytest.mark.parametrize("name", [*OPS, *ROW_OPS])
def test_threads_share_what_was_learned(device, name):
    """Each has a stream of its own, and takes over what another has brought to the device."""
    rows = chunk()
    flow = workflow(name).fit(rows)
    made, wrong = [], []
    barrier = threading.Barrier(3)

    def work():
        try:
            with device.work():
                mine = moved(rows, cupy)
                barrier.wait(60)
                made.append(flow.transform(mine))
                device.finish()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    wanted = flow.transform(rows)
    for done in made:
        assert_same_on_device(done, wanted, cupy)


def test_learning_threads_work_on_streams_of_their_own(device, path):
    streams = set()

    def noted(values):
        streams.add(cupy.cuda.get_current_stream())
        return values

    source = split_rows(ParquetSource(path).at(device), {"train": 0.5, "valid": 0.5}, seed=1)
    Workflow(["small"] >> LambdaOp(noted) >> Normalize()).fit(source["train"], threads=2)
    assert streams
    assert DEFAULT not in streams
