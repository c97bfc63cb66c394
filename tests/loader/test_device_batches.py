"""Batches on a device are those of the CPU, bit for bit: here with NumPy in the device's place.

All that a GPU does beyond this is CUDA's: test_gpu.py.
"""

import gc
import itertools
import re
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tutorlib.loader.device_batches import DeviceBuilder

from tests.support.cupy_stand_in import StandIn, cupy
from tests.support.device_batches import SCHEMA, assert_same_batches, chunk_of, loader_of
from tests.support.leftovers import come_to_an_end, reader_threads
from tutorlib.columns import Chunk
from tutorlib.loader.layout import Layout
from tutorlib.memory import DevicePool, HostSpace
from tutorlib.ops import Categorify, FillMissing, Normalize
from tutorlib.parquet import ParquetError, ParquetSink, ParquetSource
from tutorlib.schema import Column, Schema
from tutorlib.workflow import Workflow

FILES = {"row_group_rows": 100, "rows_per_file": 400}


class NumpyDevice(HostSpace):
    """Counts how often everything was waited for, and has only so much memory."""

    def __init__(self, limit_bytes=None):
        super().__init__(limit_bytes)
        self.waited = 0

    def finish_consumers(self):
        self.waited += 1


@pytest.fixture(params=[NumpyDevice, StandIn])
def space(request, monkeypatch):
    """NumPy in the place of the GPU, or what refuses all that CuPy refuses."""
    space = request.param()
    if request.param is StandIn:
        monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr("tutorlib.loader.settings.memory_space", {"gpu": space}.get)
    return space


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 rows and groups of up to 64, so that small files have many."""
    monkeypatch.setattr("tutorlib.loader.plan.BLOCK_ROWS", 16)
    monkeypatch.setattr("tutorlib.loader.plan.GROUP_ROWS", 64)


@pytest.fixture(scope="module")
def columns():
    return chunk_of(1000)


FORMS = {
    "nnzs": {},
    "offsets": {"multi_hot": "offsets"},
    "ragged": {"multi_hot": "ragged"},
    "padded": {"multi_hot": "padded"},
    "padded to 5": {"multi_hot": "padded", "max_list_length": 5},
    "stacked": {"batch_layout": "stacked"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("batch_size", [33, 300])
def test_batches_are_those_of_the_cpu(folder, space, form, shuffle, batch_size):
    changes = {**FORMS[form], "shuffle": shuffle}
    with loader_of(folder, batch_size, device="gpu", **changes) as ours:
        assert ours.device == "gpu"
        with loader_of(folder, batch_size, **changes) as theirs:
            assert_same_batches(ours, theirs)
            assert_same_batches(ours, theirs)  # the next epoch, in another order


plans = st.fixed_dictionaries(
    {
        "batch_size": st.integers(9, 200),
        "buffer_size": st.integers(1, 400),
        "parts_per_chunk": st.integers(1, 4),
        "shuffle": st.booleans(),
        "drop_last": st.booleans(),
        "seed": st.integers(0, 2**64 - 1),
        "limit_rows": st.one_of(st.none(), st.integers(200, 900)),  # one full batch at least
        "batch_layout": st.sampled_from(["columns", "stacked"]),
        "reader_kwargs": st.sampled_from([{"threads": 1}, {"threads": 3}]),
    }
)


@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(plan=plans)
def test_any_plan_gives_the_batches_of_the_cpu(folder, space, small_blocks, plan):
    with loader_of(folder, device="gpu", **plan) as ours, loader_of(folder, **plan) as theirs:
        assert_same_batches(ours, theirs)


def test_rows_that_a_filter_leaves_come_as_on_the_cpu(folder, space):
    changes = {"filters": [("small", ">", 333)]}
    with loader_of(folder, device="gpu", **changes) as ours:
        assert_same_batches(ours, loader_of(folder, **changes))
        assert ours.num_rows == 666


def test_keys_in_paths_become_columns(tmp_path, space):
    for day in (1, 2):
        with ParquetSink(tmp_path / f"day={day}" / "a.parquet") as sink:
            sink.write(Chunk({"x": np.arange(30, dtype="float32") * day}))
    settings = {"schema": None, "cat_names": ["day"], "cont_names": ["x"]}
    with loader_of(tmp_path, 16, device="gpu", **settings) as ours:
        assert_same_batches(ours, loader_of(tmp_path, 16, **settings))


def test_a_workflow_transforms_on_the_way(folder, space):
    names = ["id", "gaps"]
    workflow = Workflow(
        names >> Categorify(), ["holes"] >> FillMissing(0) >> Normalize(), ["label"]
    )
    workflow.fit(ParquetSource(folder))
    settings = {"schema": None, "label_names": ["label"], "cat_names": ["id", "gaps"]}
    settings |= {"cont_names": ["holes"], "nulls": "error"}
    with loader_of(folder, device="gpu", **settings).map(workflow) as ours:
        assert_same_batches(ours, loader_of(folder, **settings).map(workflow))


def test_a_saved_place_goes_on_with_the_rest(folder, space):
    with loader_of(folder, device="gpu") as ours, loader_of(folder) as theirs:
        begun, other = iter(ours), list(theirs)
        for _ in range(5):
            next(begun)
        again = loader_of(folder)
        again.load_state_dict(ours.state_dict())
        assert_same_batches(begun, list(again))
        assert_same_batches(loader_of(folder, device="gpu"), other)


def test_a_source_on_a_device_is_enough(folder, space):
    source = ParquetSource(folder).at(space)
    with loader_of(source) as ours:
        assert ours.device == "gpu"
        assert_same_batches(ours, loader_of(folder))
    assert loader_of(source, device="cpu").device == "cpu"


def test_every_array_starts_aligned_and_belongs_to_one_batch(folder, space):
    space.alignment = 256
    with loader_of(folder, 33, device="gpu", multi_hot="offsets") as loader:
        batches = list(loader)
    spans = []
    for inputs, labels, weights in batches:
        for tensor in [*inputs.values(), *labels.values()]:
            address = np.asarray(tensor).ctypes.data
            spans.append((address, address + np.asarray(tensor).nbytes))
        assert len(weights) in (33, 1000 % 33)
    assert len({start for start, _ in spans}) == len(spans)
    spans.sort()
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))


def test_fields_of_a_group_start_at_the_alignment_of_the_place():
    space = HostSpace()
    pool = DevicePool(space, 0)
    for stacked in (False, True):
        layout = Layout(SCHEMA, stacked=stacked, nulls="fill")
        group = DeviceBuilder(layout, pool).new_group(100)
        for first in range(0, 100, 16):
            assert group.rows(0, first, first + 1).ctypes.data % 64 == 0


FAULTS = {
    "an id too large": ("id", lambda rows: np.where(rows == 737, 97, rows % 97), {}),
    "a list's id too large": ("tags", None, {}),
    "NaN": ("x", lambda rows: np.where(rows == 737, np.nan, rows), {"nulls": "error"}),
    "a number too large": ("x64", lambda rows: np.where(rows == 737, 1e39, rows), {}),
    "a label that is not there": ("label", lambda rows: np.where(rows == 737, np.nan, 1.0), {}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_as_on_the_cpu(tmp_path, space, fault):
    name, values, changes = FAULTS[fault]
    chunk = chunk_of(1000)
    if values is None:
        chunk["tags"].values[chunk["tags"].offsets[737]] = 4000
    else:
        column = values(np.arange(1000))
        chunk = chunk.with_columns({name: column})
    with ParquetSink(tmp_path / "a.parquet", row_group_rows=100) as sink:
        sink.write(chunk)
    if "nulls" in changes:
        changes = {"nulls": {"holes": 0, "gaps": 0}}
    said = []
    for device in ("cpu", "gpu"):
        loader = loader_of(tmp_path, device=device, **changes)
        with pytest.raises(ParquetError) as error:
            list(loader)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert re.search(rf"column '{name}'.* at row 37.*row group 7 of ", said[0])
    assert come_to_an_end(reader_threads)


def test_a_function_that_leaves_the_device_is_told():
    """What map() gives must be of the device's library: here a masked one, against plain NumPy."""
    space = HostSpace()
    space.xp = np.ma
    layout = Layout(Schema([Column("x", "continuous", "float32")]))
    columns = [("x", np.zeros(3, np.float32))]
    with pytest.raises(
        ValueError, match=r"column 'x': map\(\) gave a numpy array, but .* numpy.ma"
    ):
        DeviceBuilder(layout, DevicePool(space, 0)).scatter(columns, [])


def test_memory_comes_back_when_the_batches_are_gone(folder, space):
    with loader_of(folder, device="gpu", reader_kwargs={"threads": 1}) as loader:
        held = list(loader)
        before = loader._pool.free_bytes
        del held
        gc.collect()
        assert loader._pool.free_bytes > before
        waited = space.waited
        list(loader)
        assert space.waited > waited  # before what came back was used again
    assert loader._pool.free_bytes == 0


def test_where_memory_ends_it_says_what_to_change(folder, monkeypatch):
    small = NumpyDevice(limit_bytes=2**12)
    monkeypatch.setattr("tutorlib.loader.settings.memory_space", lambda device: small)
    loader = loader_of(folder, device="gpu")
    with pytest.raises(MemoryError, match=r"no 0\.\d MiB for batches .*smaller memory_budget"):
        list(loader)
    assert come_to_an_end(reader_threads)


class FullAtFirst(NumpyDevice):
    """Runs out of memory the first times that a thread waits for what it has begun."""

    def __init__(self, times):
        super().__init__()
        self.times, self.failed = times, 0

    def finish(self):
        if self.failed < self.times:
            self.failed += 1
            raise MemoryError("no room for a row group")


def test_where_a_piece_does_not_fit_it_is_read_again_in_small_steps(folder, monkeypatch):
    full = FullAtFirst(1)
    monkeypatch.setattr("tutorlib.loader.settings.memory_space", {"gpu": full}.get)
    changes = {"buffer_size": 40, "reader_kwargs": {"threads": 2}}  # row groups come in slices
    with loader_of(folder, device="gpu", **changes) as ours:
        assert_same_batches(ours, loader_of(folder, **changes))
    assert full.failed == 1


def test_a_piece_that_never_fits_is_named(folder, monkeypatch):
    full = FullAtFirst(100)
    monkeypatch.setattr("tutorlib.loader.settings.memory_space", lambda device: full)
    loader = loader_of(folder, device="gpu")
    named = r"rows \[0, 100\) of row group . of .*: they do not fit, .*smaller .*no room for a row"
    with pytest.raises(MemoryError, match=named):
        list(loader)
    assert come_to_an_end(reader_threads)


def test_what_to_change_is_said_where_batches_cannot_be_put_in_order():
    space = NumpyDevice()
    layout = Layout(SCHEMA, stacked=False, nulls="fill")
    group = DeviceBuilder(layout, DevicePool(space, 0)).new_group(100)
    group.add_lists("tags", 0, chunk_of(100)["tags"])
    full = FullAtFirst(1)
    space.finish = full.finish
    with pytest.raises(MemoryError, match=r"no room for a row group\)\. Give a smaller "):
        group.close([50, 50], np.arange(100))
    assert full.failed == 1


def test_a_finished_batch_is_given_while_threads_wait_for_memory(folder, space):
    pipeline = loader_of(folder, device="gpu")._new_pipeline()
    assert pipeline.next_batch() is not None
    with pipeline._filling, pipeline._lock:  # in the order of a thread that makes a group
        assert pipeline.next_batch() is not None  # of the same group as the first
    pipeline.close()


def test_a_budget_bounds_what_is_planned_on_the_device(folder, space):
    free = loader_of(folder, device="gpu", buffer_size=1000)
    tight = loader_of(folder, device="gpu", buffer_size=1000, memory_budget=150_000)
    assert tight.describe()["peak_bytes"] <= 150_000 < free.describe()["peak_bytes"]
    assert tight.describe()["chunk_rows"] < free.describe()["chunk_rows"]
    assert sum(len(weights) for *_, weights in tight) == 1000


def test_a_cpu_loader_keeps_away_from_all_this(folder, monkeypatch):
    def refuse(*_):
        raise AssertionError("device code in a CPU's loader")

    for name in ("loader.DevicePool", "tensors.gpu_tensor_maker", "batch_format.DeviceBuilder"):
        monkeypatch.setattr(f"tutorlib.loader.{name}", refuse)
    assert sum(len(weights) for *_, weights in loader_of(folder)) == 1000
