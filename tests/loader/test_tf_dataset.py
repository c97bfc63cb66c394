"""to_tf_dataset(): the loader's batches, for code that must have a tf.data.Dataset."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.leftovers import come_to_an_end, reader_threads
from tests.support.loaders import loader_with
from tutorlib.columns import Ragged

ROWS = 500


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 5, ROWS))])
    x = rng.standard_normal(ROWS).astype("float32")
    return {
        "a": Ragged(rng.integers(0, 9, offsets[-1]), offsets),
        "row": np.arange(ROWS),
        "x": x,
        "click": (x > 0).astype("float32"),
        "rating": rng.random(ROWS).astype("float32"),
        "w": rng.random(ROWS).astype("float32"),
    }


loader_of = loader_with(cat_names=["row"], cont_names=["x"], label_names=["click"])


def rows_of(batches):
    return [inputs["row"].numpy()[:, 0].tolist() for inputs, *_ in batches]


KINDS = {
    "nnzs": {"cat_names": ["row", "a"]},
    "offsets": {"cat_names": ["row", "a"], "multi_hot": "offsets"},
    "ragged": {"cat_names": ["row", "a"], "multi_hot": "ragged"},
    "padded": {"cat_names": ["row", "a"], "multi_hot": "padded"},
    "stacked": {"batch_layout": "stacked"},
    "weights": {"weight_name": "w"},
    "several labels": {"label_names": ["click", "rating"], "weight_name": "w"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_pass_is_the_next_epoch_of_the_loader(folder, kind):
    loader, alone = loader_of(folder, **KINDS[kind]), loader_of(folder, **KINDS[kind])
    dataset = loader.to_tf_dataset()
    assert int(dataset.cardinality()) == len(loader) == 8
    for epoch in range(1, 4):
        for got, want in zip(dataset, alone, strict=True):
            tf.nest.assert_same_structure(got, want)
            parts = [tf.nest.flatten(batch, expand_composites=True) for batch in (got, want)]
            for one, other in zip(*parts, strict=True):
                np.testing.assert_array_equal(one, other)
        assert loader.epoch == epoch
    assert come_to_an_end(reader_threads)


def test_a_pass_left_early_leaves_no_thread_and_begins_anew(folder):
    loader = loader_of(folder, 16, buffer_size=50)
    dataset = loader.to_tf_dataset()
    for _ in dataset.take(2):
        pass
    assert come_to_an_end(reader_threads)
    batches = iter(dataset.prefetch(3))
    next(batches)
    assert reader_threads()
    del batches
    assert come_to_an_end(reader_threads)
    assert loader.epoch == 0
    assert rows_of(dataset) == rows_of(loader_of(folder, 16, buffer_size=50))


def test_repeating_it_is_epoch_after_epoch(folder):
    alone = loader_of(folder)
    want = rows_of(alone) + rows_of(alone)
    assert rows_of(loader_of(folder).to_tf_dataset().repeat(2)) == want


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_it_trains_as_the_loader_does(folder):
    def trained(data):
        keras.utils.set_random_seed(0)
        inputs = {name: keras.Input((1,), name=name) for name in ("x", "row")}
        model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
        model.compile("sgd", "binary_crossentropy")
        return model.fit(data, epochs=3, verbose=0).history["loss"]

    want = trained(loader_of(folder))
    assert trained(loader_of(folder).to_tf_dataset()) == pytest.approx(want, rel=1e-5)


def test_a_strategy_that_needs_one_says_so_and_takes_it(folder):
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        inputs = {name: keras.Input((1,), name=name) for name in ("x", "row")}
        model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
        model.compile("sgd", "binary_crossentropy")
    with pytest.raises(AttributeError, match=r"tf\.distribute strategy.*loader\.to_tf_dataset\(\)"):
        model.fit(loader_of(folder), verbose=0)
    history = model.fit(loader_of(folder).to_tf_dataset(), epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2


def test_the_error_of_a_reader_comes_through(folder):
    def fails(chunk):
        if 400 in chunk["row"]:
            raise RuntimeError("row 400 is bad")
        return chunk

    dataset = loader_of(folder, shuffle=False, buffer_size=90).map(fails).to_tf_dataset()
    with pytest.raises(tf.errors.UnknownError, match="row 400 is bad"):
        for _ in dataset:
            pass
    assert come_to_an_end(reader_threads)
