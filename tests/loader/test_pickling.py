"""A loader that has not begun is copied and sent to other processes; batches as NumPy arrays."""

import copy
import multiprocessing
import pickle
import sys
import types

import keras
import numpy as np
import pyarrow as pa
import pytest

from tutorlib import Categorify, KerasSequenceLoader, Workflow

ROWS = 3000
TABLE = pa.table(
    {
        "id": np.arange(ROWS, dtype="int32"),
        "tags": [[k % 3] * (k % 4) for k in range(ROWS)],
        "label": pa.array(np.arange(ROWS) % 2, pa.float32()),
    }
)
NAMES = {"label_names": ["label"], "cat_names": ["id", "tags"]}


def ids_of(batches):
    return [int(k) for inputs, _ in batches for k in np.asarray(inputs["id"])[:, 0]]


def test_copies_and_pickled_loaders_give_the_same_batches():
    loader = KerasSequenceLoader(TABLE, 256, **NAMES)
    twins = [copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))]
    expected = ids_of(loader)
    assert sorted(expected) == list(range(ROWS))
    assert [ids_of(twin) for twin in twins] == [expected] * 3


def test_a_pickled_loader_keeps_its_place_and_its_workflow():
    workflow = Workflow(["id"] >> Categorify(), ["label"]).fit(TABLE)
    loader, first = (KerasSequenceLoader(TABLE, 256, **NAMES).map(workflow) for _ in range(2))
    batches = iter(first)
    next(batches)
    loader.load_state_dict(first.state_dict())
    again = pickle.loads(pickle.dumps(loader))
    assert ids_of(again) == ids_of(batches)


def test_a_loader_that_has_begun_says_why_it_is_not_pickled():
    loader = KerasSequenceLoader(TABLE, 256, **NAMES)
    next(iter(loader))
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"has begun holds threads .* state_dict\(\)"):
            attempt(loader)


def send_sum(loader, queue):
    queue.put(sum(ids_of(loader.as_numpy())))


def test_a_spawned_process_reads_a_loader_that_it_was_given():
    loader = KerasSequenceLoader(TABLE, 256, **NAMES)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=send_sum, args=(loader, queue))
    process.start()
    assert queue.get(timeout=300) == sum(range(ROWS))
    process.join()


@pytest.mark.parametrize("multi_hot", ["nnzs", "offsets", "padded"])
def test_numpy_batches_hold_the_values_of_the_tensors(multi_hot):
    loader = KerasSequenceLoader(TABLE, 256, multi_hot=multi_hot, **NAMES)
    twin = copy.copy(loader)
    for arrays, tensors in zip(loader.as_numpy(), twin, strict=True):
        assert all(type(array) is np.ndarray for array in [*arrays[0].values(), arrays[1]])
        keras.tree.map_structure(np.testing.assert_array_equal, arrays, tensors)
    assert loader.epoch == 1


def test_ragged_tensors_are_refused_as_numpy_arrays():
    loader = KerasSequenceLoader(TABLE, 256, multi_hot="ragged", **NAMES)
    with pytest.raises(ValueError, match="for NumPy use 'nnzs' or 'padded'"):
        next(loader.as_numpy())


def test_two_workers_of_pytorch_never_give_a_row_twice(monkeypatch):
    """PyTorch itself is no requirement of the tests: a module answers as in one of its workers."""
    torch_data = types.ModuleType("torch.utils.data")
    torch_data.get_worker_info = lambda: types.SimpleNamespace(id=1, num_workers=2)
    monkeypatch.setitem(sys.modules, "torch.utils.data", torch_data)
    with pytest.raises(
        RuntimeError, match=r"2 workers .* each would give every row.*num_workers=0"
    ):
        next(iter(KerasSequenceLoader(TABLE, 256, **NAMES)))
    ranks = [
        KerasSequenceLoader(TABLE, 256, global_size=2, global_rank=rank, **NAMES) for rank in (0, 1)
    ]
    assert sorted(ids_of(ranks[0]) + ids_of(ranks[1])) == list(range(ROWS))
