"""fit, evaluate and predict over a loader: each row as often as asked, right numbers, or errors."""

import functools
import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.epoch_iterator import EpochIterator

from tests.support.loaders import come_to_an_end, loader_with, reader_threads
from tests.support.training import compiled_model, data
from tutorlib.callbacks import TimedBatches
from tutorlib.columns import Ragged
from tutorlib.loader import KerasSequenceLoader

ROWS = 500
BATCH = 64  # 8 batches, the last of 52 rows


def lists(rng, longest):
    offsets = np.append(0, np.cumsum(rng.integers(0, longest + 1, ROWS)))
    return Ragged(rng.integers(1, 9, offsets[-1]), offsets)


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(ROWS).astype("float32")
    return {
        "row": np.arange(ROWS, dtype="int64"),
        "x": x,
        **{name: lists(rng, longest) for name, longest in (("A", 1), ("m", 4), ("z", 30))},
        "click": (x + rng.standard_normal(ROWS) > 0).astype("float32"),
        "rating": rng.random(ROWS).astype("float32"),
        "w": rng.random(ROWS).astype("float32"),
    }


NAMES = {"label_names": ["click"], "cat_names": ["row"], "cont_names": ["x"]}
loader_of = loader_with(BATCH, **NAMES)


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


@pytest.fixture(scope="module")
def constant():
    """A network that does not learn: the loss of an epoch is the mean over all rows."""
    return network(learning_rate=0.0)


def order_of(loader, epochs):
    """Return the rows of each batch over so many epochs, as a loop over the loader gives them."""
    batches = itertools.chain.from_iterable(iter(loader) for _ in range(epochs))
    return [inputs["row"].numpy()[:, 0].tolist() for inputs, _ in batches]


# ---- which rows, in which order ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(("steps", "steps_per_execution"), [(None, 1), (3, 2), (None, 3), (11, 1)])
def test_fit_trains_on_the_batches_of_the_loader_in_turn(folder, steps, steps_per_execution):
    """Also across epochs of fit that end within an epoch of the loader, or go beyond one."""
    model = network(run_eagerly=True, steps_per_execution=steps_per_execution)
    model.fit(loader_of(folder), epochs=3, steps_per_epoch=steps, verbose=0)
    assert len(model.rows) >= 3 * min(steps or 8, 8) - steps_per_execution
    assert model.rows == order_of(loader_of(folder), 3)[: len(model.rows)]


def test_too_many_steps_for_an_epoch_that_no_resume_made_shorter_are_warned_of(folder):
    loader, model = loader_of(folder), network(steps_per_execution=3)
    assert len(loader) % 3 > 0  # so Keras takes the batches until there are none
    with pytest.warns(UserWarning, match="Your input ran out of data"):
        model.fit(loader, steps_per_epoch=2 * len(loader), verbose=0)


def test_evaluating_in_between_does_not_disturb_training(folder):
    losses, valid = [], loader_of(folder, shuffle=False)
    evaluate = third_batch(lambda model: losses.append(model.evaluate(valid, verbose=0)))
    model, alone = network(run_eagerly=True), network(run_eagerly=True)
    options = {"validation_data": loader_of(folder, seed=9), "validation_freq": 2}
    options |= {"epochs": 4, "verbose": 0}
    history = model.fit(loader_of(folder), callbacks=[evaluate], **options).history
    alone.fit(loader_of(folder), epochs=4, verbose=0)
    assert [len(history["loss"]), len(history["val_loss"]), len(losses)] == [4, 2, 4]
    assert model.rows == alone.rows
    for ours, theirs in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_predict_gives_the_rows_in_the_order_of_the_loader(folder, columns, constant):
    want = constant({"x": columns["x"][:, None]}).numpy()
    for loader, rows, arguments in (
        (loader_of(folder, shuffle=False), slice(None), {}),
        (loader_of(folder, label_names=[], shuffle=False), slice(2 * BATCH), {"steps": 2}),
    ):
        predicted = constant.predict(loader, verbose=0, **arguments)
        np.testing.assert_allclose(predicted, want[rows], rtol=1e-6)


@pytest.mark.parametrize("drawn", [1, 3])
def test_batches_drawn_to_build_a_model_are_given_again_and_trained_ones_never(folder, drawn):
    """As Keras draws them on JAX and PyTorch; all three as with as many steps an execution."""
    loader, model = loader_of(folder, 200), network()
    batches = EpochIterator(loader, steps_per_execution=drawn)
    model._symbolic_build(iterator=batches)
    assert model.built
    batches.reset()
    assert loader.state_dict()["batch"] == loader.epoch == 0
    rows = [batch[0]["row"].numpy()[:, 0].tolist() for _, _, some in batches for batch in some]
    assert rows == order_of(loader_of(folder, 200), 1)
    assert loader.epoch == 1
    EpochIterator(loader, steps_per_execution=drawn).reset()  # as after an early stop, no build
    assert loader.epoch == 1


# What changes a loader, or begins a pass that does; everything else that is public only reads.
CHANGES = {"as_numpy", "close", "load_state_dict", "map", "on_epoch_begin", "on_epoch_end"}
CHANGES |= {"predict", "set_epoch", "to_tf_dataset"}


def read_everything(loader):
    """Read every public property and call every public method that only reads."""
    for name in sorted(set(dir(loader)) - CHANGES):
        if not name.startswith("_"):
            value = getattr(loader, name)
            if callable(value):
                value()
    return len(loader), repr(loader), 1 / loader.num_batches


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_callback_that_reads_all_a_loader_says_changes_no_batch(folder):
    trained = []
    for reads in (False, True):
        loader, model = loader_of(folder), network(run_eagerly=True)
        callback = keras.callbacks.Callback()
        if reads:
            for hook in ("on_epoch_begin", "on_train_batch_end", "on_epoch_end"):
                setattr(callback, hook, lambda *_, loader=loader, **__: read_everything(loader))
        model.fit(loader, epochs=3, steps_per_epoch=5, callbacks=[callback], verbose=0)
        trained.append((model.rows, loader.state_dict()))
    assert trained[0] == trained[1]
    assert len({tuple(batch) for batch in trained[0][0]}) > 8  # of two epochs of the loader


# ---- the numbers that fit reports -------------------------------------------------------------


def cross_entropy(model, columns):
    """Return the loss of each row, worked out from the probabilities with NumPy."""
    probability = model({"x": columns["x"][:, None]}).numpy()[:, 0].astype("float64")
    y = columns["click"]
    return -(y * np.log(probability) + (1 - y) * np.log(1 - probability))


@pytest.mark.parametrize("form", ["nnzs", "padded"])
def test_the_epoch_loss_is_right_beside_any_list_column(folder, columns, constant, form):
    """Keras weighs it by the rows of the first input, in order of names."""
    loader = loader_of(folder, cat_names=["row", "A"], multi_hot=form)
    loss = constant.fit(loader, verbose=0).history["loss"]
    assert loss == pytest.approx([cross_entropy(constant, columns).mean()], rel=1e-5)
    assert constant.evaluate(loader, verbose=0) == pytest.approx(loss[0], rel=1e-5)


def test_each_output_has_its_own_label_and_loss(folder, columns):
    x = keras.Input((1,), name="x")
    heads = {"click": keras.layers.Dense(1, "sigmoid")(x), "rating": keras.layers.Dense(1)(x)}
    model = keras.Model({"x": x}, heads)
    losses = {"click": "binary_crossentropy", "rating": "mean_squared_error"}
    model.compile(keras.optimizers.SGD(0.0), losses)
    names = {"cat_names": [], "label_names": ["click", "rating"], "weight_name": "w"}
    logs = model.fit(loader_of(folder, **names), epochs=2, verbose=0).history
    predicted = model.predict(loader_of(folder, cat_names=[], shuffle=False), verbose=0)
    assert predicted["click"].shape == predicted["rating"].shape == (ROWS, 1)

    outputs = {k: v.numpy()[:, 0] for k, v in model({"x": columns["x"][:, None]}).items()}
    y, p = columns["click"], outputs["click"].astype("float64")
    want = -(y * np.log(p) + (1 - y) * np.log(1 - p)) + (columns["rating"] - outputs["rating"]) ** 2
    assert logs["loss"] == pytest.approx([(columns["w"] * want).mean()] * 2, rel=1e-5)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(("known", "per_execution"), [(True, 1), (False, 3)])
def test_training_on_timed_batches_equals_training_on_the_dataset(known, per_execution):
    dataset = data() if known else data().filter(lambda x, y: True)
    timed = TimedBatches.of_dataset(dataset)
    model, plain = (compiled_model(steps_per_execution=per_execution) for _ in range(2))
    given = model.fit(timed, epochs=2, verbose=0, shuffle=False).history["loss"]
    assert given == pytest.approx(plain.fit(dataset, epochs=2, verbose=0).history["loss"])
    assert timed.batches == 10
    assert timed.wait_s > 0


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "the loader's predict"])
@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            {"cat_names": ["row"]},
            r"only the batches have the features \['row'\], only the model the inputs \[\]",
        ),
        (
            {"cat_names": [], "cont_names": ["rating"]},
            r"features \['rating'\], only the model the inputs \['x'\]",
        ),
        ({"cat_names": ["m"]}, r"features \['m__nnzs', 'm__values'\], only"),
    ],
)
def test_other_features_than_those_of_a_functional_model_are_refused(folder, method, names, words):
    """Keras fills a dict of inputs by place, so that here it would train on the rows' numbers."""
    model, loader = regression(), loader_of(folder, shuffle=False, **names)
    asked = functools.partial(loader.predict, model)
    if method in ("fit", "evaluate", "predict"):
        asked = functools.partial(getattr(model, method), loader)
    with pytest.raises(ValueError, match=f"{words}.* Give the loader the features"):
        asked(verbose=0)
    assert loader.first_batch == loader.epoch == 0


def test_what_is_left_of_an_epoch_leaves_the_filters_of_warnings_alone(folder):
    loader = loader_of(folder)
    for _ in zip(range(3), loader, strict=False):
        pass
    resumed, before = loader_of(folder), list(warnings.filters)
    resumed.load_state_dict(loader.state_dict())
    assert sum(1 for _ in resumed.new_pass()) == 5
    assert warnings.filters == before


# ---- nothing is copied, nothing stays behind --------------------------------------------------


def addresses(batch):
    return [np.from_dlpack(tensor).ctypes.data for tensor in tf.nest.flatten(batch)]


def test_the_train_step_computes_on_the_loaders_own_memory(folder, monkeypatch):
    """No batch goes through a generator dataset, which copies every tensor on the host."""
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

    monkeypatch.delattr(tf.data.Dataset, "from_generator")
    model = Watching()
    model.compile("sgd", "binary_crossentropy", run_eagerly=True)
    names = {**NAMES, "cat_names": ["row", "m"], "weight_name": "w"}
    valid = loader_of(folder, **names)
    model.fit(Recording(folder, BATCH, **names), validation_data=valid, verbose=0)
    model.predict(loader_of(folder, **names, shuffle=False), verbose=0)
    assert len(seen) == 8
    assert seen == [place for place, _ in made]


def third_batch(function):
    """Return a callback that calls a function of the model after the third batch."""
    callback = keras.callbacks.Callback()
    callback.on_train_batch_end = lambda batch, logs: batch == 2 and function(callback.model)
    return callback


def test_early_stopping_ends_the_threads_and_the_next_fit_begins_the_epoch_anew(folder):
    loader, model = loader_of(folder, buffer_size=50), network(run_eagerly=True)
    stop = third_batch(lambda model: setattr(model, "stop_training", True))
    model.fit(loader, callbacks=[stop], verbose=0)
    assert come_to_an_end(reader_threads)
    assert loader.epoch == 0
    model.rows.clear()
    model.fit(loader, verbose=0)
    assert model.rows == order_of(loader_of(folder, buffer_size=50), 1)


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (RuntimeError("no disk space"), "callback"),
        (KeyboardInterrupt("Ctrl-C"), "callback"),
        (RuntimeError("row 400 is bad"), "reader"),
    ],
)
def test_an_error_comes_through_fit_and_leaves_no_thread(folder, error, where):
    def fail(model_or_chunk):
        raise error

    loader = loader_of(folder, buffer_size=50)
    used = [third_batch(fail)] if where == "callback" else []
    with pytest.raises(type(error), match=str(error)) as raised:
        network().fit(loader if used else loader.map(fail), callbacks=used, verbose=0)
    del raised
    error.__traceback__ = None  # it holds the frames of fit, and these the batches
    assert come_to_an_end(reader_threads)


class Compressor(keras.Model):
    """Learns x from itself: it has a loss of its own, and needs no labels."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        found = self.dense(inputs["x"])
        self.add_loss(keras.ops.mean((found - inputs["x"]) ** 2))
        return found


def test_a_model_with_a_loss_of_its_own_takes_batches_without_labels(folder):
    keras.utils.set_random_seed(0)
    model, loader = Compressor(), loader_of(folder, label_names=[])
    model.compile(keras.optimizers.SGD(0.1))
    losses = model.fit(loader, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 10
    assert model.evaluate(loader, verbose=0) < losses[0]


# ---- arguments that Keras would ignore ---------------------------------------------------------
#
# The nightly job runs this on the newest Keras: it fails when Keras passes its arguments in another
# way, so that `caller_of` no longer finds them.

Y = np.zeros((ROWS, 1), "float32")
unshuffled = loader_with(BATCH, **{**NAMES, "cat_names": []}, shuffle=False)


def regression():
    inputs = {"x": keras.Input((1,), name="x")}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["x"]))
    model.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
    return model


@pytest.fixture(scope="module")
def model():
    return regression()


Y_GIVEN = r"y \(a ndarray\) with a loader has no effect; .*label_names"
WEIGHTS = r"sample_weight \(a ndarray\) with a loader .*weight_name"
SIZE = "batch_size=32 with a loader .*pass batch_size to KerasSequenceLoader"


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("fit", {"y": Y}, Y_GIVEN),
        ("fit", {"sample_weight": Y}, WEIGHTS),
        ("fit", {"batch_size": 32}, SIZE),
        ("fit", {"class_weight": {0: 2.0}}, "class_weight={0: 2.0} with .*weight_name="),
        ("evaluate", {"sample_weight": Y}, WEIGHTS),
        ("evaluate", {"batch_size": 32}, SIZE),
        ("predict", {"batch_size": 32}, SIZE),
    ],
)
def test_an_argument_that_keras_would_ignore_is_refused(folder, model, method, given, message):
    with pytest.raises(ValueError, match=message):
        getattr(model, method)(unshuffled(folder), verbose=0, **given)


def test_an_order_is_accepted_if_the_loader_has_it(folder, model):
    model.fit(unshuffled(folder), batch_size=BATCH, shuffle=False, verbose=0)
    model.fit(unshuffled(folder), shuffle=True, verbose=0)  # the default of fit
    for order in (False, "batch"):
        with pytest.raises(ValueError, match=f"shuffle={order!r} with .*pass shuffle to"):
            model.fit(unshuffled(folder, shuffle=True), shuffle=order, verbose=0)


def test_arguments_of_validation_data_are_refused_likewise(folder, model):
    with pytest.raises(ValueError, match=Y_GIVEN):
        regression().fit({"x": Y}, Y, validation_data=(unshuffled(folder), Y), verbose=0)
    valid = {"validation_data": unshuffled(folder), "validation_batch_size": 32}
    with pytest.raises(ValueError, match=SIZE):
        regression().fit({"x": Y}, Y, **valid, verbose=0)


@pytest.mark.parametrize("given", [{"class_weight": {0: 1.0}}, {"batch_size": 8}, {"y": Y}])
def test_timed_batches_refuse_what_keras_would_ignore(folder, model, given):
    with pytest.raises(ValueError, match=f"{next(iter(given))}.* with timed batches has no effect"):
        model.fit(TimedBatches(unshuffled(folder)), verbose=0, **given)


def test_the_training_loader_as_validation_data_is_refused(folder, model):
    """Validation would take every other epoch: training would be on epochs 0, 2, 3."""
    loader, other = unshuffled(folder), unshuffled(folder)
    with pytest.raises(ValueError, match=r"the same that fit trains on: .*made with the same arg"):
        model.fit(loader, validation_data=(loader,), epochs=2, verbose=0)
    assert loader.epoch == 0
    model.fit(loader, validation_data=other, epochs=2, verbose=0)
    assert loader.epoch == 2


def test_predict_on_rows_out_of_order_is_refused(folder, model):
    """Its predictions came shuffled, without a word."""
    loader = unshuffled(folder, shuffle=True)
    with pytest.raises(ValueError, match=r"predict with .* that shuffles .*loader\.predict\(model"):
        model.predict(loader, verbose=0)
    assert loader.epoch == loader.first_batch == 0
    in_order = model.predict(unshuffled(folder), verbose=0)[:, 0]
    predicted = loader.predict(model, verbose=0)["prediction"]
    np.testing.assert_array_equal(predicted.to_numpy(), in_order)


def test_a_tf_function_that_would_keep_batches_is_refused(folder):
    loader = loader_of(folder, shuffle=False)

    def total_of(batches):
        @tf.function
        def total():
            rows = tf.constant(0, tf.int64)
            for inputs, _ in batches:
                rows += tf.reduce_sum(tf.cast(inputs["row"], tf.int64))
            return rows

        return total

    with pytest.raises(RuntimeError, match=r"while it is traced.*\s+loader\.to_tf_dataset\(\)"):
        total_of(loader)()
    total = total_of(loader.to_tf_dataset())
    assert total() == total() == ROWS * (ROWS - 1) // 2


def test_one_pass_over_a_loader_is_told_what_to_give(folder, model):
    with pytest.raises(TypeError, match=r"fit the loader itself, or loader\.to_tf_dataset\(\)"):
        model.fit(iter(unshuffled(folder)), verbose=0)
