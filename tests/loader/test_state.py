"""State and ranks: a loader goes on with the rest in `fit`, on each rank and in other processes."""

import itertools
import json

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.loaders import after, loader_with
from tutorlib.loader import loader as loader_module
from tutorlib.ops import Categorify
from tutorlib.parquet import ParquetSource
from tutorlib.workflow import Workflow

ROWS, BATCHES = 600, 10
pytestmark = pytest.mark.usefixtures("no_thread_is_left")
loader_of = loader_with(
    label_names=["label"], cat_names=["row"], cont_names=["x"], buffer_size=60, parts_per_chunk=2
)


def table_of(first=0, rows=ROWS):
    row = np.arange(first, first + rows)
    x, label = (row / 8).astype("float32"), (row % 2).astype("float32")
    return pa.table({"row": row, "x": x, "label": label})


def write(folder, row_group_rows=50):
    folder.mkdir(exist_ok=True)
    for number in range(2):
        table = table_of(number * 300, 300)
        pq.write_table(table, folder / f"{number}.parquet", row_group_rows)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "train")


def rows_of(batches):
    return [np.asarray(inputs["row"])[:, 0].tolist() for inputs, *_ in batches]


# ---- going on ------------------------------------------------------------------------------------


def test_a_restored_loader_begins_there_again_until_the_epoch_is_done(folder):
    whole, restored = rows_of(loader_of(folder)), loader_of(folder)
    restored.load_state_dict(after(loader_of(folder), 4))
    assert rows_of([restored.peek()]) == [whole[4]]
    assert rows_of(itertools.islice(restored, 2)) == whole[4:6]
    assert restored.state_dict()["batch"] == 6
    third = loader_of(folder)
    third.load_state_dict(restored.state_dict())
    batches = iter(third)
    next(batches)
    third.load_state_dict(restored.state_dict())  # ends a pass that is under way
    assert (list(batches), rows_of(third)) == ([], whole[6:])
    assert rows_of(restored) == whole[4:]
    late = iter(restored)
    next(late)
    restored.set_epoch(0)
    list(late)  # a late pass does not turn the epoch back
    assert (restored.epoch, rows_of(restored)) == (0, whole)


@pytest.mark.parametrize(
    ("size", "threads", "budget"), [(1, 1, None), (3, 4, None), (3, 4, "20MB")]
)
def test_a_row_group_is_read_in_several_steps_from_its_middle(tmp_path, size, threads, budget):
    """A rank is cut inside a row group larger than a partition, and resumes inside it."""
    rows = 50_000
    pq.write_table(table_of(rows=rows), tmp_path / "a.parquet", rows)
    made = {"buffer_size": 4000, "parts_per_chunk": 3, "memory_budget": budget}
    made |= {"threads": threads, "shuffle": False}
    seen = []
    for rank in range(size):
        share = {"global_size": size, "global_rank": rank} if size > 1 else {}
        whole = list(loader_of(tmp_path, 777, **share, **made).as_numpy())
        restored, taken = loader_of(tmp_path, 777, **share, **made), len(whole) // 3
        restored.load_state_dict({**restored.state_dict(), "batch": taken})
        assert rows_of(restored.as_numpy()) == rows_of(whole)[taken:]
        for inputs, labels in whole:
            np.testing.assert_array_equal(inputs["x"], (inputs["row"] / 8).astype("float32"))
            np.testing.assert_array_equal(labels, inputs["row"] % 2)
        seen += itertools.chain(*rows_of(whole))
    assert seen == list(range(rows))


def model_of(steps_per_execution=1):
    keras.utils.set_random_seed(0)
    inputs = {name: keras.Input((1,), name=name) for name in ("row", "x")}
    output = keras.layers.Dense(1, activation="sigmoid")(inputs["x"] / 100.0)
    model = keras.Model(inputs, output)
    model.compile("sgd", "binary_crossentropy", steps_per_execution=steps_per_execution)
    return model


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # in a shorter epoch
@pytest.mark.parametrize(("taken", "steps_per_execution"), [(7, 3), (9, 64)])
def test_fit_and_predict_take_the_rest_and_then_whole_epochs(folder, taken, steps_per_execution):
    loader, model = loader_of(folder), model_of(steps_per_execution)
    loader.load_state_dict(after(loader_of(folder), taken))
    model.fit(loader, epochs=3, verbose=0)
    assert (loader.epoch, int(model.optimizer.iterations)) == (3, 3 * BATCHES - taken)
    in_order = loader_of(folder, shuffle=False)
    want = model.predict(in_order, verbose=0)[taken * 64 :]
    in_order.load_state_dict(after(loader_of(folder, shuffle=False), taken))
    np.testing.assert_allclose(model.predict(in_order, verbose=0), want, rtol=1e-6)


def test_a_state_is_small_of_the_data_not_its_place_and_goes_on_with_a_workflow(folder, tmp_path):
    many = write(tmp_path / "many", 1)
    sizes = [len(json.dumps(after(loader_of(path), 3))) for path in (folder, many)]
    assert max(sizes) < 4096
    assert sizes[1] - sizes[0] <= 8  # digits of the counts
    workflow = Workflow(["row"] >> Categorify(), ["x"], ["label"]).fit(ParquetSource(folder))
    whole = rows_of(loader_of(folder).map(workflow))
    restored = loader_of(write(tmp_path / "moved")).map(workflow)
    restored.load_state_dict(after(loader_of(folder).map(workflow), 5))
    assert rows_of(restored) == whole[5:]
    refitted = Workflow(["row"] >> Categorify(), ["x"], ["label"]).fit(table_of(300, 300))
    with pytest.raises(ValueError, match=r"other data or settings.*fingerprint\.workflow"):
        loader_of(folder).map(refitted).load_state_dict(after(loader_of(folder).map(workflow), 5))


CHANGES = {
    "a file less": lambda folder: (folder / "1.parquet").unlink(),
    "other row groups": lambda folder: write(folder, 60),
    "other names": lambda folder: (folder / "0.parquet").rename(folder / "2.parquet"),
    "other values": lambda folder: pq.write_table(table_of(9, 300), folder / "0.parquet", 50),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_data_is_refused_and_the_loader_stays_as_it_is(tmp_path, name):
    state = after(loader_of(write(tmp_path)), 4)
    CHANGES[name](tmp_path)
    loader = loader_of(tmp_path)
    with pytest.raises(ValueError, match=r"other data or settings.*fingerprint\.data\."):
        loader.load_state_dict(state)
    assert (loader.epoch, loader.first_batch) == (0, 0)


# ---- ranks ---------------------------------------------------------------------------------------


def test_ranks_have_one_state_and_each_goes_on_as_the_rank_that_it_is(folder):
    made = {"global_size": 3, "batch_size": 16}
    loaders = [loader_of(folder, global_rank=rank, **made) for rank in range(3)]
    wholes = [rows_of(loader_of(folder, global_rank=rank, **made)) for rank in range(3)]
    states = [after(loader, 5) for loader in loaders]
    assert states[0] == states[1] == states[2]
    for rank, whole in enumerate(wholes):
        restored = loader_of(folder, global_rank=rank, **made)
        restored.load_state_dict(states[0])
        assert rows_of(restored) == whole[5:]


def test_a_loader_made_before_the_processes_were_joined_is_refused(folder, monkeypatch):
    monkeypatch.setattr(loader_module, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"every row: make it after jax.distributed.initialize"):
        loader_of(folder, 60)._check_for_fit()
