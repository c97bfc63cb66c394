"""What fit, evaluate and predict would ignore with a loader is refused.

The nightly job runs this file on the newest Keras: it fails when Keras passes its arguments in
another way, so that `refuse_ignored_arguments` no longer finds them.
"""

import keras
import numpy as np
import pytest

from tests.support.loaders import loader_with
from tutorlib.keras_bridge import TimedBatches

ROWS = 300
BATCH = 64
Y = np.zeros(ROWS, "float32")


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal(ROWS).astype("float32"),
        "label": rng.integers(0, 3, ROWS).astype("float32"),
    }


loader_of = loader_with(BATCH, label_names=["label"], cat_names=[], cont_names=["x"], shuffle=False)


def model_of():
    keras.utils.set_random_seed(0)
    inputs = {"x": keras.Input((1,), name="x")}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["x"]))
    model.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
    return model


REFUSED = [
    ({"y": Y}, r"y \(a ndarray\) with a loader has no effect; .*label_names"),
    ({"sample_weight": Y}, r"sample_weight \(a ndarray\) with a loader .*weight_name"),
    ({"batch_size": 32}, "batch_size=32 with .*pass batch_size to KerasSequenceLoader"),
    ({"class_weight": {0: 2.0}}, "class_weight={0: 2.0} with .*pass class_weight to Keras"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_an_argument_that_keras_would_ignore_is_refused(folder, method, given, message):
    if method == "predict" and "batch_size" not in given:
        return  # predict has no such argument
    if method == "evaluate" and "class_weight" in given:
        return  # nor has evaluate
    with pytest.raises(ValueError, match=message):
        getattr(model_of(), method)(loader_of(folder), verbose=0, **given)


@pytest.mark.parametrize("order", [False, "batch"])
def test_an_order_other_than_the_loaders_is_refused(folder, order):
    with pytest.raises(ValueError, match=f"shuffle={order!r} with .*pass shuffle to"):
        model_of().fit(loader_of(folder, shuffle=True), shuffle=order, verbose=0)


def test_an_argument_that_agrees_with_the_loader_is_accepted(folder):
    model_of().fit(loader_of(folder), batch_size=BATCH, shuffle=False, verbose=0)
    model_of().fit(loader_of(folder), shuffle=True, verbose=0)  # the default of fit


def test_arguments_of_validation_data_are_refused_likewise(folder, columns):
    model, x, y = model_of(), {"x": columns["x"][:, None]}, columns["label"][:, None]
    with pytest.raises(ValueError, match=r"y \(a ndarray\)"):
        model.fit(x, y, validation_data=(loader_of(folder), y), verbose=0)
    with pytest.raises(ValueError, match="batch_size=10 "):
        model.fit(x, y, validation_data=loader_of(folder), validation_batch_size=10, verbose=0)


def test_batch_size_and_class_weight_of_arrays_leave_a_validation_loader_alone(folder, columns):
    model, x, y = model_of(), {"x": columns["x"][:, None]}, columns["label"][:, None]
    given = {"batch_size": 10, "class_weight": {0: 1.0, 1: 1.0, 2: 1.0}, "shuffle": False}
    history = model.fit(x, y, validation_data=loader_of(folder), verbose=0, **given).history
    assert history["val_loss"] == pytest.approx([model.evaluate(x, y, verbose=0)[0]], rel=1e-5)


def test_validation_split_is_refused(folder):
    with pytest.raises(TypeError, match=r"validation_split.*another loader"):
        model_of().fit(loader_of(folder), validation_split=0.2, verbose=0)


@pytest.mark.parametrize("given", [{"class_weight": {0: 1.0}}, {"batch_size": 8}, {"y": Y}])
def test_timed_batches_refuse_what_keras_would_ignore(folder, given):
    with pytest.raises(ValueError, match=f"{next(iter(given))}.* with timed batches has no effect"):
        model_of().fit(TimedBatches(loader_of(folder)), verbose=0, **given)


def test_a_refused_fit_leaves_the_loader_where_it_was(folder):
    loader = loader_of(folder)
    next(iter(loader))
    before = loader.state_dict()
    with pytest.raises(ValueError, match="batch_size=8"):
        model_of().fit(loader, batch_size=8, verbose=0)
    assert loader.state_dict() == before
    model_of().fit(loader, verbose=0)
    assert loader.epoch == 1


@pytest.mark.parametrize("given", [lambda loader: loader, lambda loader: (loader,)])
def test_the_training_loader_as_validation_data_is_refused(folder, given):
    """Validation would take every other epoch: training would be on epochs 0, 2, 3."""
    loader, other = loader_of(folder), loader_of(folder)
    with pytest.raises(ValueError, match=r"the same that fit trains on: .*made with the same arg"):
        model_of().fit(loader, validation_data=given(loader), epochs=2, verbose=0)
    assert loader.epoch == 0
    model_of().fit(loader, validation_data=given(other), epochs=2, verbose=0)
    assert loader.epoch == 2


class WithPredictOfItsOwn(keras.Model):
    def predict(self, x, **arguments):
        return super().predict(x, **arguments)


@pytest.mark.parametrize("of", [lambda loader: loader, TimedBatches])
@pytest.mark.parametrize("model_class", [keras.Model, WithPredictOfItsOwn])
def test_predict_on_a_shuffled_loader_is_refused(folder, model_class, of):
    """Its predictions came shuffled, without a word."""
    plain, loader = model_of(), loader_of(folder, shuffle=True)
    model = model_class(plain.inputs, plain.outputs)
    with pytest.raises(
        ValueError, match=r"predict with .* that shuffles .*loader\.predict\(model\)"
    ):
        model.predict(of(loader), verbose=0)
    assert loader.epoch == loader.first_batch == 0
    assert model.predict(of(loader_of(folder)), verbose=0).shape == (ROWS, 1)
    ranks = loader_of(folder, canonical_ranks=4)
    with pytest.raises(ValueError, match=r"mixes the rows of canonical_ranks=4 .*loader\.predict"):
        model.predict(of(ranks), verbose=0)
    one_each = loader_of(folder, canonical_ranks=4, global_size=4, global_rank=1)
    assert model.predict(of(one_each), verbose=0).shape == (ROWS // 4, 1)
    np.testing.assert_array_equal(
        ranks.predict(model, verbose=0)["prediction"].to_numpy(),
        plain.predict(loader_of(folder), verbose=0)[:, 0],
    )
