"""DeviceReader: the columns that the CPU reads, in a device's place; here NumPy's."""

import itertools
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.device_batches import chunk_of
from tutorlib.memory import HostSpace
from tutorlib.parquet import ParquetError, ParquetSource

NAMES = list(chunk_of(1))
FILES = {"row_group_rows": 200, "rows_per_file": 400}


@pytest.fixture(scope="module")
def columns():
    return chunk_of(500)


def assert_equal(ours, theirs):
    assert ours.names == theirs.names
    for name in ours:
        np.testing.assert_equal(ours[name].tolist(), theirs[name].tolist(), err_msg=name)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    order=st.randoms(use_true_random=False),
    saves=st.booleans(),
)
def test_slices_in_any_order_are_those_of_the_cpu(folder, names, cuts, order, saves):
    theirs = ParquetSource(folder)
    ours = theirs.at(HostSpace())
    if saves:
        ours.save_memory()
    slices = list(itertools.pairwise([0, *sorted(cuts), 200]))
    order.shuffle(slices)
    for start, stop in slices:
        assert_equal(ours.read(0, names, start, stop), theirs.read(0, names, start, stop))
    assert_equal(ours.read(2, names), theirs.read(2, names))


def test_a_row_group_is_decoded_once_for_all_its_slices(folder):
    class Counting(HostSpace):
        """Counts what is decoded for later slices: each is waited for once, each slice once."""

        finished = 0

        def finish(self):
            self.finished += 1

    space = Counting()
    source = ParquetSource(folder).at(space)
    for start in range(0, 200, 50):
        source.read(0, ["x"], start, start + 50)
    assert space.finished == 1 + 4
    assert len(source.streams) == 0  # the last slice has been taken


def test_a_slice_keeps_nothing_of_its_row_group(folder):
    source = ParquetSource(folder).at(HostSpace())
    first = source.read(0, ["x", "tags", "gaps"], 0, 50)
    second = source.read(0, ["x", "tags", "gaps"], 50, 100)
    assert not np.shares_memory(first["x"], second["x"])
    assert not np.shares_memory(first["tags"].values, second["tags"].values)
    assert first["gaps"].valid.base is None


def test_a_filter_and_a_saved_source_read_the_same(folder):
    theirs = ParquetSource(folder, filters=[("small", ">", 120)])
    ours = pickle.loads(pickle.dumps(theirs.at(HostSpace())))
    for position in range(len(theirs)):
        assert_equal(ours.read(position), theirs.read(position))
        assert_equal(ours.read(position, None, 3, 40), theirs.read(position, None, 3, 40))


def test_a_type_without_a_place_in_a_chunk_is_named_as_on_the_cpu(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"i": [1], "s": pa.array([{"a": 1}])}), path)
    said = []
    for source in (ParquetSource(path), ParquetSource(path).at(HostSpace())):
        with pytest.raises(
            ParquetError, match=r"row group 0 of .*, column 's': Arrow type st"
        ) as e:
            source.read(0)
        said.append(str(e.value))
    assert said[0] == said[1]


def test_a_file_that_has_changed_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"i": list(range(100))}), path)
    source = ParquetSource(path).at(HostSpace())
    pq.write_table(pa.table({"i": list(range(2000))}), path)
    with pytest.raises(ParquetError, match="the file has changed since it was opened"):
        source.read(0)
