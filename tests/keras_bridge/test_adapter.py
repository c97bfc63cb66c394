"""Keras takes the loader as it is, and what fit, evaluate and predict say of it is right."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.support.leftovers import come_to_an_end, reader_threads
from tests.support.loaders import loader_with
from tutorlib.columns import Chunk, Ragged
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSink

ROWS = 500


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 5, ROWS)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    x = rng.standard_normal(ROWS).astype("float32")
    return {
        "a": Ragged(rng.integers(0, 9, offsets[-1]), offsets),
        "x": x,
        "label": (x > 0).astype("float32"),
    }


loader_of = loader_with(cat_names=[], cont_names=["x"], label_names=["label"])


def model_of(names=("x",)):
    keras.utils.set_random_seed(0)
    inputs = {name: keras.Input((1,), name=name) for name in names}
    output = keras.layers.Dense(1, activation="sigmoid")(inputs["x"])
    model = keras.Model(inputs, output)
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    return model


def test_fit_over_epochs_trains_and_validates_like_evaluate(folder):
    model = model_of()
    valid = loader_of(folder, shuffle=False)
    history = model.fit(loader_of(folder), validation_data=valid, epochs=4, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert history["val_loss"][-1] == pytest.approx(model.evaluate(valid, verbose=0), rel=1e-6)


def test_the_loss_is_that_of_all_rows_whatever_the_last_batch(folder):
    model = model_of()
    loader = loader_of(folder, 64, shuffle=False)
    x = np.concatenate([inputs["x"] for inputs, _ in loader])
    y = np.concatenate([label for _, label in loader])
    probability = model.predict(loader, verbose=0)
    assert probability.shape == (ROWS, 1)
    want = keras.losses.binary_crossentropy(y, model({"x": x})).numpy().mean()
    assert model.evaluate(loader, verbose=0) == pytest.approx(want, rel=1e-5)


def test_the_epoch_loss_is_right_beside_a_ragged_column_that_sorts_first(folder):
    model = model_of()
    plain = model.evaluate(loader_of(folder, shuffle=False), verbose=0)

    class WithLists(keras.Model):
        def call(self, inputs):
            return model({"x": inputs["x"]})

    beside = WithLists()
    beside.compile(loss="binary_crossentropy")
    lists = loader_of(folder, shuffle=False, cat_names=["a"])
    assert "a__values" in lists.peek()[0]
    assert beside.evaluate(lists, verbose=0) == pytest.approx(plain, rel=1e-6)


def test_batches_reach_the_train_step_without_a_copy(folder):
    """The very tensors that the loader made arrive: no from_generator, no trip through NumPy."""
    made, seen = [], []

    class Watching(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, activation="sigmoid")

        def train_step(self, data):
            seen.append(data[0]["x"])
            return super().train_step(data)

        def call(self, inputs):
            return self.dense(inputs["x"])

    class Recording(KerasSequenceLoader):
        def __iter__(self):
            for batch in super().__iter__():
                made.append(batch)
                yield batch

    loader = Recording(folder, 64, cat_names=[], cont_names=["x"], label_names=["label"])
    model = Watching()
    model.compile("sgd", "binary_crossentropy", run_eagerly=True)
    model.fit(loader, verbose=0)
    assert len(seen) == len(loader)
    for tensor in seen:
        assert any(tensor is inputs["x"] for inputs, _ in made)


def test_steps_per_epoch_goes_on_where_it_stopped(folder):
    loader = loader_of(folder, 50)
    model = model_of()
    history = model.fit(loader, epochs=4, steps_per_epoch=5, verbose=0)
    assert len(history.history["loss"]) == 4
    assert loader.epoch == 2
    assert loader.stats()["rows"] == 2 * ROWS


def test_early_stopping_leaves_no_thread(folder):
    class StopAtOnce(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    model_of().fit(loader_of(folder), callbacks=[StopAtOnce()], epochs=3, verbose=0)
    assert come_to_an_end(reader_threads)


def test_weights_change_the_loss_as_keras_says(folder, tmp_path):
    with ParquetSink(tmp_path / "w.parquet") as sink:
        sink.write(
            Chunk(
                {
                    "x": np.array([1, -1], "float32"),
                    "label": np.array([0, 0], "float32"),
                    "w": np.array([3, 1], "float32"),
                }
            )
        )
    loader = KerasSequenceLoader(
        tmp_path / "w.parquet", 2, ["label"], cont_names=["x"], weight_name="w", shuffle=False
    )
    model = model_of()
    inputs, label, weights = loader.peek()
    x, y, w = inputs["x"].numpy(), label.numpy(), weights.numpy()
    want = model.evaluate({"x": x}, y, sample_weight=w, verbose=0)
    assert model.evaluate(loader, verbose=0) == pytest.approx(want, rel=1e-6)


def test_offsets_that_would_falsify_the_loss_are_refused(folder):
    loader = loader_of(folder, cat_names=["a"], multi_hot="offsets")
    with pytest.raises(ValueError, match="first input, 'a__offsets'"):
        model_of().evaluate(loader, verbose=0)


# ---- the order in which Keras calls the adapter -------------------------------------------------


class Calls:
    """Makes the calls of Keras's EpochIterator on an adapter, in its order."""

    def __init__(self, loader):
        self.loader = loader

    def take_in(self):
        self.loader.num_batches  # noqa: B018

    def begin(self):
        self.loader.num_batches  # noqa: B018
        self.loader.on_epoch_end()

    def draw(self, batches):
        self.loader.on_epoch_begin()
        iterator = iter(self.loader.get_torch_dataloader())
        return [next(iterator) for _ in range(batches)]

    def epoch(self, batches):
        taken = self.draw(batches)
        iter(self.loader.get_torch_dataloader())  # of the next epoch, which may never come
        self.loader.on_epoch_end()
        return taken


def seeds_of(loader_seeds):
    return lambda: next(loader_seeds)


@pytest.mark.parametrize("drawn", [1, 2, 3])
def test_batches_drawn_to_build_a_model_are_given_again(folder, drawn):
    """Also all three of an epoch, as with three steps per execution on PyTorch."""
    seeds = iter(range(9))
    loader = loader_of(folder, 200, seed_fn=seeds_of(seeds))
    keras_calls = Calls(loader)
    keras_calls.take_in()
    first = keras_calls.draw(drawn)[0][0]["x"]
    keras_calls.begin()
    assert loader.state_dict()["batch"] == loader.epoch == 0
    np.testing.assert_array_equal(keras_calls.epoch(3)[0][0]["x"], first)
    assert (loader.epoch, next(seeds)) == (1, 1)


def test_the_rest_of_a_resumed_epoch_is_given_again(folder):
    half = loader_of(folder, 200)
    next(iter(half))
    loader = loader_of(folder, 200)
    loader.load_state_dict(half.state_dict())
    keras_calls = Calls(loader)
    keras_calls.take_in()
    keras_calls.draw(2)
    assert loader.epoch == 1
    keras_calls.begin()
    assert (loader.epoch, loader.first_batch) == (0, 1)
    keras_calls.epoch(2)
    assert (loader.epoch, loader.first_batch) == (1, 0)


def test_an_epoch_that_was_trained_is_never_given_again(folder):
    loader = loader_of(folder, 200)
    fit, predict, validate = Calls(loader), Calls(loader), Calls(loader)
    fit.take_in(), fit.begin()
    fit.epoch(3)
    fit.draw(3)  # stopped early, at the last batch of the epoch
    assert loader.epoch == 2
    validate.begin()  # with an iterator that fit has kept from its first validation
    validate.epoch(3)
    predict.take_in()
    predict.epoch(3)
    validate.begin()
    predict.take_in()
    predict.draw(3)  # stopped early
    fit.take_in(), fit.begin()
    assert loader.epoch == 5


MOVED = """
import importlib.abc, sys
import keras
from keras.src.trainers.data_adapters import data_adapter

class Moved(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == data_adapter.__name__:
            raise ModuleNotFoundError(f"No module named {name!r}")

import keras.src.trainers.data_adapters as package
del sys.modules[data_adapter.__name__]
sys.meta_path.insert(0, Moved())

from tutorlib.loader import KerasSequenceLoader

names = {"cat_names": [], "cont_names": ["x"], "label_names": ["label"]}
loader = KerasSequenceLoader(sys.argv[1], 64, **names)
inputs = {"x": keras.Input((1,), name="x")}
model = keras.Model(inputs, keras.layers.Dense(1)(inputs["x"]))
model.compile("sgd", "mse")
for method in (model.fit, model.evaluate, model.predict):
    try:
        method(loader, verbose=0)
    except TypeError as error:
        print(error)
history = model.fit(loader.to_tf_dataset(), epochs=2, verbose=0).history
print(len(history["loss"]), loader.epoch, len(list(loader)))
"""


def test_another_keras_gets_a_clear_error_and_to_tf_dataset(folder):
    """As if Keras had moved its DataAdapter, which is not part of its public interface."""
    result = subprocess.run(
        [sys.executable, "-c", MOVED, folder], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    *errors, trained = result.stdout.strip().splitlines()
    assert len(errors) == 3
    for error in errors:
        assert "fit, evaluate and predict of Keras 3.15 take it as it is" in error
        assert f"Keras {keras.__version__} does not" in error
        assert "give it loader.to_tf_dataset()" in error
    assert trained == "2 2 8"
