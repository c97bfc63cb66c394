"""A chunk begins ahead of the consumer only if memory is left for it."""

import numpy as np
import pyarrow as pa
import pytest

from tests.support.loaders import loader_with
from tutorlib.loader.chunks import ChunkReader
from tutorlib.loader.pipeline import Pipeline, Stopwatch
from tutorlib.memory import BufferPool
from tutorlib.parquet import RowRange

ROWS, BUDGET = 4_096, 2**20
loader_of = loader_with(256, cat_names=[], cont_names=["x"], label_names=[])


@pytest.fixture
def loader():
    with loader_of(pa.table({"x": np.zeros(ROWS, "float32")})) as made:
        yield made


@pytest.fixture
def reader(loader):
    pool, columns = BufferPool(limit_bytes=0), ["x"]
    return ChunkReader(
        loader.source, columns, loader.layout, pool, Stopwatch(), None, held_bytes=BUDGET
    )


def room(reader):
    """The bytes of the largest chunk, in steps of 1,024, that may begin."""
    return max(size for size in range(0, BUDGET, 1_024) if reader.has_room(size, BUDGET))


def test_a_chunk_has_room_if_twice_its_batches_fit_beside_what_is_held(reader, loader):
    whole = room(reader)
    assert whole == BUDGET // 2
    held = reader.gatherer.empty((BUDGET // 8,), np.float32)  # batches that the consumer keeps
    assert room(reader) == whole - held.nbytes // 2
    owner = loader.plan.chunks[0], ""
    decoded = reader.decoded(owner, RowRange(0, 0, ROWS), ["x"])  # rows that wait to be gathered
    assert room(reader) == whole - held.nbytes // 2 - decoded.nbytes // 2
    del held
    assert room(reader) == whole - decoded.nbytes // 2
    reader.release(owner)
    assert room(reader) == whole


def test_without_a_budget_there_is_always_room(reader):
    assert reader.has_room(2**62, None)


class Work:
    """Work of a chunk, of a single task that does nothing."""

    def stages(self):
        return [[lambda: None]]

    def finish(self):
        pass


@pytest.mark.parametrize(("room", "most_ahead"), [(False, 0), (True, 2)])
def test_without_room_only_the_chunk_that_the_consumer_waits_for_begins(room, most_ahead):
    begun, chunks = [], 6

    def work_on(number):
        begun.append(number)
        return Work()

    pipeline = Pipeline(
        chunks,
        work_on,
        threads=2,
        room_for=lambda number: room,
        stopwatch=Stopwatch(),
        at_end=lambda: None,
        owner=Work,
    )
    ahead = set()
    for taken in range(1, chunks + 1):
        assert pipeline.next_work() is not None
        ahead.add(len(begun) - taken)
    pipeline.close()
    assert begun == [*range(chunks)]
    assert max(ahead) <= most_ahead
    assert (max(ahead) > 0) == room
