"""Functions of the user's, `seed_fn` and those of `map`: what they do wrong is said, not hidden."""

import keras
import numpy as np
import pytest

from tests.support.loaders import loader_with
from tutorlib.columns import Masked, Ragged
from tutorlib.parquet import ParquetError

ROWS = 200
pytestmark = pytest.mark.usefixtures("no_thread_is_left")
loader_of = loader_with(10, label_names=["y"], cat_names=["row"], cont_names=[], buffer_size=30)


@pytest.fixture(scope="module")
def columns():
    lists = Ragged(np.arange(ROWS), np.arange(ROWS + 1))
    return {"row": np.arange(ROWS), "g": lists, "y": np.zeros(ROWS, "float32")}


def iterate(loader):
    return [sum(1 for _ in loader) for _ in range(3)]


def fit(loader):
    row = keras.Input((1,), name="row", dtype="int64")
    model = keras.Model({"row": row}, keras.layers.Flatten()(keras.layers.Embedding(200, 1)(row)))
    model.compile("sgd", "mse")
    return model.fit(loader, epochs=3, verbose=0).history["loss"]


@pytest.mark.parametrize("use", [iterate, fit])
def test_seeds_that_end_are_an_error_not_the_end_of_the_epoch(folder, use):
    seeds = iter([5, 6])
    loader = loader_of(folder, seed_fn=lambda: next(seeds))
    with pytest.raises(RuntimeError, match=r"seed_fn .* raised StopIteration for epoch 2;"):
        use(loader)


@pytest.mark.parametrize("seed", [1.5, "1", None, -1, 2**64], ids=repr)
def test_a_seed_that_is_no_integer_of_64_bits_is_refused(folder, seed):
    match = r"the seed that seed_fn returned for epoch 0 must be .*in \[0, 2\*\*64\), got"
    with pytest.raises(ValueError, match=match):
        loader_of(folder, seed_fn=lambda: seed).peek()
    assert loader_of(folder, seed_fn=lambda: np.uint64(2**64 - 1)).peek() is not None


@pytest.mark.parametrize("use", [iterate, fit])
def test_stop_iteration_of_a_mapped_function_is_an_error_not_the_end_of_the_epoch(folder, use):
    chunks = iter(range(10))

    def fail(chunk):
        next(chunks)
        return chunk

    with pytest.raises(RuntimeError, match=r"map\(\): .* raised StopIteration; .*row group"):
        use(loader_of(folder).map(fail))


@pytest.mark.parametrize(
    "offsets",
    [
        lambda rows: np.arange(rows + 1) + 1,
        lambda rows: np.arange(rows + 1) * 2,
        lambda rows: np.r_[0, rows, np.arange(2, rows + 1)],
        lambda rows: np.zeros(rows + 1, int),
    ],
    ids=["not from 0", "beyond the values", "falling", "without the values"],
)
def test_lists_with_wrong_offsets_are_refused_whatever_the_batches(folder, offsets):
    def lists(chunk):
        return chunk.with_columns({"g": Ragged(np.arange(chunk.num_rows), offsets(chunk.num_rows))})

    with pytest.raises(ParquetError, match=r"column 'g': the offsets of a Ragged must .*row group"):
        loader_of(folder, cat_names=["row", "g"]).map(lists).peek()


def test_a_mask_of_another_length_than_its_values_is_refused(folder):
    def mask(chunk):
        longer = np.zeros(chunk.num_rows + 1, int)
        return chunk.with_columns({"row": Masked(longer, np.ones(chunk.num_rows, bool))})

    with pytest.raises(ParquetError, match=r"column 'row': a Masked needs .*row group"):
        loader_of(folder).map(mask).peek()
