"""fit, evaluate and predict over a loader: each row as often as asked, and the right numbers."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.leftovers import come_to_an_end, reader_threads
from tests.support.loaders import loader_with
from tutorlib.columns import Ragged
from tutorlib.loader import KerasSequenceLoader

ROWS = 500
BATCH = 64  # 8 batches, the last of 52 rows


def lists(rng, longest):
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, longest + 1, ROWS))])
    return Ragged(rng.integers(0, 9, offsets[-1]), offsets)


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(ROWS).astype("float32")
    return {
        "row": np.arange(ROWS, dtype="int64"),
        "x": x,
        "A": lists(rng, 1),
        "m": lists(rng, 4),
        "z": lists(rng, 30),
        "click": (x + rng.standard_normal(ROWS) > 0).astype("float32"),
        "rating": rng.random(ROWS).astype("float32"),
        "w": rng.random(ROWS).astype("float32"),
    }


loader_of = loader_with(BATCH, label_names=["click"], cat_names=["row"], cont_names=["x"])


class Network(keras.Model):
    """A logistic regression on x, whatever else there is; keeps the rows that it trained on."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, activation="sigmoid")
        self.rows = []

    def train_step(self, data):
        if not tf.inside_function():
            self.rows.append(data[0]["row"].numpy()[:, 0].tolist())
        return super().train_step(data)

    def call(self, inputs):
        return self.dense(inputs["x"] if "x" in inputs else inputs["continuous"])


def network(learning_rate=0.1, **arguments):
    keras.utils.set_random_seed(0)
    model = Network()
    model.compile(keras.optimizers.SGD(learning_rate), "binary_crossentropy", **arguments)
    return model


def order_of(loader, epochs):
    """Return the rows of each batch over so many epochs, as a loop over the loader gives them."""
    batches = itertools.chain.from_iterable(iter(loader) for _ in range(epochs))
    return [inputs["row"].numpy()[:, 0].tolist() for inputs, _ in batches]


# ---- which rows, in which order ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps", [None, 1, 3, 8])
@pytest.mark.parametrize("steps_per_execution", [1, 2, 3])
def test_fit_trains_on_the_batches_of_the_loader_in_turn(folder, steps, steps_per_execution):
    """Also across epochs of fit that end within an epoch of the loader."""
    model = network(run_eagerly=True, steps_per_execution=steps_per_execution)
    model.fit(loader_of(folder), epochs=3, steps_per_epoch=steps, verbose=0)
    want = order_of(loader_of(folder), 3)
    assert len(model.rows) >= 3 * (steps or 8) - steps_per_execution
    assert model.rows == want[: len(model.rows)]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_more_steps_than_batches_end_with_the_loaders_epoch(folder):
    model = network(run_eagerly=True)
    model.fit(loader_of(folder), epochs=2, steps_per_epoch=11, verbose=0)
    assert model.rows == order_of(loader_of(folder), 2)


def test_fit_twice_is_fit_once_with_twice_the_epochs(folder):
    once, twice = network(), network()
    once.fit(loader_of(folder), epochs=4, verbose=0)
    loader = loader_of(folder)
    for _ in range(2):
        twice.fit(loader, epochs=2, verbose=0)
    for a, b in zip(once.get_weights(), twice.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_evaluating_in_between_does_not_disturb_training(folder):
    class Evaluate(keras.callbacks.Callback):
        losses = ()

        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                self.losses += (self.model.evaluate(valid, verbose=0),)

    valid, evaluate = loader_of(folder, shuffle=False), Evaluate()
    model, alone = network(run_eagerly=True), network(run_eagerly=True)
    history = model.fit(
        loader_of(folder),
        epochs=4,
        validation_data=loader_of(folder, seed=9),
        validation_freq=2,
        callbacks=[evaluate],
        verbose=0,
    ).history
    alone.fit(loader_of(folder), epochs=4, verbose=0)
    assert (len(history["loss"]), len(history["val_loss"])) == (4, 2)
    assert len(evaluate.losses) == 4
    assert model.rows == alone.rows
    for a, b in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_validation_steps_take_the_first_batches(folder, columns):
    model = network(learning_rate=0.0)
    valid = loader_of(folder, shuffle=False)
    history = model.fit(
        loader_of(folder), validation_data=valid, validation_steps=2, verbose=0
    ).history
    want = cross_entropy(model, columns)[: 2 * BATCH].mean()
    assert history["val_loss"] == pytest.approx([want], rel=1e-5)


def test_predict_gives_the_rows_in_the_order_of_the_loader(folder, columns):
    model = network()
    model({"x": columns["x"][:1, None]})
    want = model({"x": columns["x"][:, None]}).numpy()

    def check(loader, rows, **arguments):
        predicted = model.predict(loader, verbose=0, **arguments)
        np.testing.assert_allclose(predicted, want[rows], rtol=1e-6)

    check(loader_of(folder, shuffle=False), slice(None))
    check(loader_of(folder, label_names=[], shuffle=False), slice(2 * BATCH), steps=2)


# ---- the numbers that fit reports -------------------------------------------------------------


def cross_entropy(model, columns, label="click"):
    """Return the loss of each row, worked out from the probabilities with NumPy."""
    probability = model({"x": columns["x"][:, None]}).numpy()[:, 0].astype("float64")
    y = columns[label]
    return -(y * np.log(probability) + (1 - y) * np.log(1 - probability))


@pytest.mark.parametrize("name", ["A", "m", "z"])
@pytest.mark.parametrize("multi_hot", ["nnzs", "offsets", "ragged", "padded"])
def test_the_epoch_loss_is_right_beside_any_list_column(folder, columns, name, multi_hot):
    """The network does not learn, so the loss of an epoch is the mean over all rows."""
    loader = loader_of(folder, cat_names=["row", name], cont_names=["x"], multi_hot=multi_hot)
    model = network(learning_rate=0.0)
    if multi_hot == "offsets" and name < "row":
        with pytest.raises(ValueError, match=f"first input, '{name}__offsets'"):
            model.fit(loader, verbose=0)
        return
    loss = model.fit(loader, verbose=0).history["loss"]
    assert loss == pytest.approx([cross_entropy(model, columns).mean()], rel=1e-5)
    assert model.evaluate(loader, verbose=0) == pytest.approx(loss[0], rel=1e-5)


def test_the_epoch_loss_is_right_for_stacked_batches(folder, columns):
    model = network(learning_rate=0.0)
    loader = loader_of(folder, batch_layout="stacked")
    loss = model.fit(loader, verbose=0).history["loss"]
    assert loss == pytest.approx([cross_entropy(model, columns).mean()], rel=1e-5)


def test_offsets_beside_stacked_columns_are_refused_where_they_sort_first(folder, columns):
    """ "A__offsets" sorts before "categorical", and "m__offsets" behind it."""
    arguments = {"batch_layout": "stacked", "multi_hot": "offsets"}
    with pytest.raises(ValueError, match="first input, 'A__offsets'"):
        network().fit(loader_of(folder, cat_names=["row", "A"], **arguments), verbose=0)
    model = network(learning_rate=0.0)
    loss = model.evaluate(loader_of(folder, cat_names=["row", "m"], **arguments), verbose=0)
    assert loss == pytest.approx(cross_entropy(model, columns).mean(), rel=1e-5)


def test_weights_weigh_the_loss_and_the_metrics(folder, columns):
    """Keras divides the weighted sum of a batch by its rows, not by its weights."""
    model = network(learning_rate=0.0, weighted_metrics=["mae"])
    loader = loader_of(folder, weight_name="w")
    logs = model.fit(loader, verbose=0).history
    want = (columns["w"] * cross_entropy(model, columns)).mean()
    assert logs["loss"] == pytest.approx([want], rel=1e-5)
    error = np.abs(columns["click"] - model({"x": columns["x"][:, None]}).numpy()[:, 0])
    assert logs["mae"] == pytest.approx([np.average(error, weights=columns["w"])], rel=1e-5)


class TwoHeads(keras.Model):
    def __init__(self):
        super().__init__()
        self.click = keras.layers.Dense(1, activation="sigmoid")
        self.rating = keras.layers.Dense(1)

    def call(self, inputs):
        return {"click": self.click(inputs["x"]), "rating": self.rating(inputs["x"])}


@pytest.mark.parametrize("weight_name", [None, "w"])
def test_each_output_has_its_own_label_and_loss(folder, columns, weight_name):
    keras.utils.set_random_seed(0)
    model = TwoHeads()
    model.compile(
        keras.optimizers.SGD(0.0), {"click": "binary_crossentropy", "rating": "mean_squared_error"}
    )
    loader = loader_of(folder, label_names=["click", "rating"], weight_name=weight_name)
    logs = model.fit(loader, epochs=2, verbose=0).history
    ordered = loader_of(folder, shuffle=False)
    predicted = {name: model.predict(ordered, verbose=0)[name] for name in ("click", "rating")}
    assert predicted["click"].shape == predicted["rating"].shape == (ROWS, 1)

    outputs = {k: v.numpy()[:, 0] for k, v in model({"x": columns["x"][:, None]}).items()}
    y, p = columns["click"], outputs["click"].astype("float64")
    want = -(y * np.log(p) + (1 - y) * np.log(1 - p)) + (columns["rating"] - outputs["rating"]) ** 2
    weights = columns[weight_name] if weight_name else 1
    assert logs["loss"] == pytest.approx([(weights * want).mean()] * 2, rel=1e-5)


def test_compiled_by_xla_it_learns_the_same(folder):
    plain, compiled = network(jit_compile=False), network(jit_compile=True)
    for model in (plain, compiled):
        model.fit(loader_of(folder, drop_last=True), epochs=2, verbose=0)
    for a, b in zip(plain.get_weights(), compiled.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_lists_of_any_length_are_traced_a_few_times_only(folder):
    """Two batches tell TensorFlow that a length varies, the last one that the batch does."""
    traces = []

    class Traced(Network):
        def train_step(self, data):
            traces.append(data[0]["m__values"].shape)
            return super().train_step(data)

    model = Traced()
    model.compile("sgd", "binary_crossentropy")
    model.fit(loader_of(folder, cat_names=["row", "A", "m", "z"]), epochs=3, verbose=0)
    assert len(set(map(str, traces))) <= 3
    assert str(traces[-1]) == "(None, 1)"


# ---- nothing is copied, nothing stays behind --------------------------------------------------


def test_fit_never_goes_through_a_generator_dataset(folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("from_generator copies every tensor on the host")

    monkeypatch.setattr(tf.data.Dataset, "from_generator", refuse)
    model, loader = network(), loader_of(folder, cat_names=["row", "m"], weight_name="w")
    valid = loader_of(folder, cat_names=["row", "m"], weight_name="w")
    model.fit(loader, validation_data=valid, epochs=2, verbose=0)
    model.evaluate(loader, verbose=0)
    model.predict(loader_of(folder, cat_names=["row", "m"], shuffle=False), verbose=0)


def addresses(batch):
    return [np.from_dlpack(tensor).ctypes.data for tensor in tf.nest.flatten(batch)]


def test_the_train_step_computes_on_the_loaders_own_memory(folder):
    made, seen = [], []

    class Recording(KerasSequenceLoader):
        def __iter__(self):
            for batch in super().__iter__():
                made.append((addresses(batch), batch))  # held, so that no address comes twice
                yield batch

    class Watching(Network):
        def train_step(self, data):
            seen.append(addresses(data))
            return super().train_step(data)

    model = Watching()
    model.compile("sgd", "binary_crossentropy", run_eagerly=True)
    names = {"label_names": ["click"], "cat_names": ["row", "m"], "cont_names": ["x"]}
    model.fit(Recording(folder, BATCH, weight_name="w", **names), verbose=0)
    assert len(seen) == 8
    assert seen == [place for place, _ in made]


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.model.stop_training = True


class Fail(keras.callbacks.Callback):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise self.error


def test_early_stopping_ends_the_threads_and_the_next_fit_begins_the_epoch_anew(folder):
    loader, model = loader_of(folder, buffer_size=50), network(run_eagerly=True)
    model.fit(loader, callbacks=[Stop()], verbose=0)
    assert come_to_an_end(reader_threads)
    assert loader.epoch == 0
    model.rows.clear()
    model.fit(loader, verbose=0)
    assert model.rows == order_of(loader_of(folder, buffer_size=50), 1)


@pytest.mark.parametrize("error", [RuntimeError("no disk space"), KeyboardInterrupt()])
def test_an_error_in_a_callback_comes_through_and_leaves_no_thread(folder, error):
    with pytest.raises(type(error)) as raised:
        network().fit(loader_of(folder, buffer_size=50), callbacks=[Fail(error)], verbose=0)
    del raised
    error.__traceback__ = None  # it holds the frames of fit, and these the batches
    assert come_to_an_end(reader_threads)


def test_an_error_in_a_reader_comes_through_fit_and_leaves_no_thread(folder):
    def fails(chunk):
        if 400 in chunk["row"]:
            raise RuntimeError("row 400 is bad")
        return chunk

    loader = loader_of(folder, shuffle=False).map(fails)
    with pytest.raises(RuntimeError, match="row 400 is bad"):
        network().fit(loader, verbose=0)
    assert come_to_an_end(reader_threads)
