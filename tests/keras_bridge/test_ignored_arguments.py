"""What fit, evaluate and predict would ignore with a loader is refused.

The nightly job runs this file on the newest Keras: it fails when Keras passes its arguments in
another way, so that `refuse_ignored_arguments` no longer finds them.
"""

import keras
import numpy as np
import pytest

from tests.support.loaders import loader_with
from tutorlib.callbacks import TimedBatches

ROWS = 300
BATCH = 64
Y = np.zeros((ROWS, 1), "float32")


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    x, label = rng.standard_normal(ROWS), rng.integers(0, 3, ROWS)
    return {"x": x.astype("float32"), "label": label.astype("float32")}


loader_of = loader_with(BATCH, label_names=["label"], cat_names=[], cont_names=["x"], shuffle=False)


class WithPredictOfItsOwn(keras.Model):
    def predict(self, x, **arguments):
        return super().predict(x, **arguments)


def model_of(model_class=keras.Model):
    inputs = {"x": keras.Input((1,), name="x")}
    model = model_class(inputs, keras.layers.Dense(1)(inputs["x"]))
    model.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
    return model


@pytest.fixture(scope="module")
def model():
    return model_of()


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
        ("fit", {"validation_split": 0.2}, "cannot become an array; .*validation_data another"),
        ("evaluate", {"sample_weight": Y}, WEIGHTS),
        ("evaluate", {"batch_size": 32}, SIZE),
        ("predict", {"batch_size": 32}, SIZE),
    ],
)
def test_an_argument_that_keras_would_ignore_is_refused(folder, model, method, given, message):
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        getattr(model, method)(loader_of(folder), verbose=0, **given)
    assert "install" not in str(raised.value)


def test_an_order_is_accepted_if_the_loader_has_it(folder, model):
    model.fit(loader_of(folder), batch_size=BATCH, shuffle=False, verbose=0)
    model.fit(loader_of(folder), shuffle=True, verbose=0)  # the default of fit
    for order in (False, "batch"):
        with pytest.raises(ValueError, match=f"shuffle={order!r} with .*pass shuffle to"):
            model.fit(loader_of(folder, shuffle=True), shuffle=order, verbose=0)


def test_arguments_of_validation_data_are_refused_likewise(folder, model):
    with pytest.raises(ValueError, match=Y_GIVEN):
        model_of().fit({"x": Y}, Y, validation_data=(loader_of(folder), Y), verbose=0)
    valid = {"validation_data": loader_of(folder), "validation_batch_size": 32}
    with pytest.raises(ValueError, match=SIZE):
        model_of().fit({"x": Y}, Y, **valid, verbose=0)


def test_arguments_for_training_on_arrays_leave_a_validation_loader_alone(folder, columns):
    model, x, y = model_of(), {"x": columns["x"][:, None]}, columns["label"][:, None]
    given = {"batch_size": 10, "class_weight": {0: 1.0, 1: 1.0, 2: 1.0}, "shuffle": False}
    valid = loader_of(folder)
    history = model.fit(x, y, validation_data=valid, epochs=2, verbose=0, **given).history
    assert history["val_loss"][-1] == pytest.approx(model.evaluate(x, y, verbose=0)[0], rel=1e-5)


@pytest.mark.parametrize("given", [{"class_weight": {0: 1.0}}, {"batch_size": 8}, {"y": Y}])
def test_timed_batches_refuse_what_keras_would_ignore(folder, model, given):
    with pytest.raises(ValueError, match=f"{next(iter(given))}.* with timed batches has no effect"):
        model.fit(TimedBatches(loader_of(folder)), verbose=0, **given)


@pytest.mark.parametrize("given", [lambda loader: loader, lambda loader: (loader,)])
def test_the_training_loader_as_validation_data_is_refused(folder, model, given):
    """Validation would take every other epoch: training would be on epochs 0, 2, 3."""
    loader, other = loader_of(folder), loader_of(folder)
    with pytest.raises(ValueError, match="batch_size=8"):
        model.fit(loader, batch_size=8, verbose=0)  # leaves the loader where it is, too
    with pytest.raises(ValueError, match=r"the same that fit trains on: .*made with the same arg"):
        model.fit(loader, validation_data=given(loader), epochs=2, verbose=0)
    assert loader.epoch == 0
    model.fit(loader, validation_data=given(other), epochs=2, verbose=0)
    assert loader.epoch == 2


@pytest.mark.parametrize("model_class", [keras.Model, WithPredictOfItsOwn])
def test_predict_on_rows_out_of_order_is_refused(folder, model_class):
    """Its predictions came shuffled, without a word."""
    model, loader = model_of(model_class), loader_of(folder, shuffle=True)
    with pytest.raises(ValueError, match=r"predict with .* that shuffles .*loader\.predict\(model"):
        model.predict(loader, verbose=0)
    assert loader.epoch == loader.first_batch == 0
    ranks = loader_of(folder, canonical_ranks=4)
    with pytest.raises(ValueError, match=r"mixes the rows of canonical_ranks=4 .*loader\.predict"):
        model.predict(ranks, verbose=0)
    one_each = loader_of(folder, canonical_ranks=4, global_size=4, global_rank=1)
    assert model.predict(one_each, verbose=0).shape == (ROWS // 4, 1)
    in_order = model.predict(loader_of(folder), verbose=0)[:, 0]
    predicted = ranks.predict(model, verbose=0)["prediction"]
    np.testing.assert_array_equal(predicted.to_numpy(), in_order)
