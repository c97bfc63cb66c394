"""What fit, evaluate and predict are given beside a loader is applied or refused, never ignored."""

import keras
import numpy as np
import pytest

from tutorlib.chunk import Chunk
from tutorlib.keras_bridge import ClassWeights
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSink

ROWS = 300
BATCH = 64


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal(ROWS).astype("float32"),
        "label": rng.integers(0, 3, ROWS).astype("float32"),
        "clicked": rng.integers(0, 2, ROWS).astype("float32"),
        "w": rng.random(ROWS).astype("float32"),
    }


@pytest.fixture(scope="module")
def path(columns, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.parquet"
    with ParquetSink(path, row_group_rows=90) as sink:
        sink.write(Chunk(columns))
    return path


def loader_of(path, **changes):
    arguments = {"label_names": ["label"], "cat_names": [], "cont_names": ["x"], "shuffle": False}
    return KerasSequenceLoader(path, BATCH, **{**arguments, **changes})


def model_of():
    keras.utils.set_random_seed(0)
    inputs = {"x": keras.Input((1,), name="x")}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["x"]))
    model.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
    return model


def trained(data, *labels, **arguments):
    """Return the history and the weights after two epochs in the order of the rows."""
    model = model_of()
    history = model.fit(data, *labels, epochs=2, shuffle=False, verbose=0, **arguments).history
    return history, model.get_weights()


def assert_same(one, other):
    assert one[0].keys() == other[0].keys()
    for name, values in one[0].items():
        np.testing.assert_allclose(values, other[0][name], rtol=1e-5)
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


Y = np.zeros(ROWS, "float32")
REFUSED = [
    ({"y": Y}, r"y \(a ndarray\).*label_names"),
    ({"sample_weight": Y}, r"sample_weight \(a ndarray\).*weight_name"),
    ({"batch_size": 32}, "batch_size=32 .*rows its batches have"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_what_the_loader_decides_is_refused(path, method, given, message):
    if method == "predict" and "batch_size" not in given:
        return  # predict has no such argument
    with pytest.raises(ValueError, match=message):
        getattr(model_of(), method)(loader_of(path), verbose=0, **given)


@pytest.mark.parametrize("order", [False, "batch"])
def test_an_order_that_is_not_the_loaders_is_refused(path, order):
    with pytest.raises(ValueError, match=f"shuffle={order!r} .*shuffled"):
        model_of().fit(loader_of(path, shuffle=True), shuffle=order, verbose=0)


def test_what_says_the_same_as_the_loader_is_let_through(path):
    model_of().fit(loader_of(path), batch_size=BATCH, shuffle=False, verbose=0)
    model_of().fit(loader_of(path), shuffle=True, verbose=0)  # the default of fit


def test_validation_data_is_held_to_the_same_rules(path, columns):
    model, x, y = model_of(), {"x": columns["x"][:, None]}, columns["label"][:, None]
    with pytest.raises(ValueError, match=r"y \(a ndarray\)"):
        model.fit(x, y, validation_data=(loader_of(path), y), verbose=0)
    with pytest.raises(ValueError, match="batch_size=10 "):
        model.fit(x, y, validation_data=loader_of(path), validation_batch_size=10, verbose=0)
    history = model.fit(x, y, validation_data=loader_of(path), batch_size=10, verbose=0).history
    assert history["val_loss"] == pytest.approx([model.evaluate(x, y, verbose=0)[0]], rel=1e-5)


def test_validation_split_is_refused(path):
    with pytest.raises(TypeError, match=r"validation_split.*another loader"):
        model_of().fit(loader_of(path), validation_split=0.2, verbose=0)


def test_class_weight_trains_as_with_arrays(path, columns):
    weights = {0: 0.5, 2: 7.0}  # class 1 is not named: it weighs 1
    x, y = {"x": columns["x"][:, None]}, columns["label"][:, None]
    assert_same(
        trained(loader_of(path), class_weight=weights),
        trained(x, y, class_weight=weights, batch_size=BATCH),
    )


def test_class_weight_multiplies_the_weights_of_the_rows(path, columns):
    weights = {0: 0.5, 1: 3.0, 2: 7.0}
    x, y = {"x": columns["x"][:, None]}, columns["label"][:, None]
    both = columns["w"] * np.vectorize(weights.get)(columns["label"].astype(int))
    assert_same(
        trained(loader_of(path, weight_name="w"), class_weight=weights),
        trained(x, y, sample_weight=both, batch_size=BATCH),
    )


def test_class_weight_holds_for_one_fit_and_for_training_alone(path):
    loader, valid = loader_of(path), loader_of(path)
    plain = trained(loader, validation_data=valid)
    weighted = trained(loader, validation_data=valid, class_weight={0: 9.0})
    assert weighted[0]["loss"] != pytest.approx(plain[0]["loss"], rel=0.01)
    assert_same(trained(loader, validation_data=valid), plain)
    model = model_of()
    model.set_weights(weighted[1])
    assert weighted[0]["val_loss"][-1] == pytest.approx(model.evaluate(valid, verbose=0)[0])


def test_class_weight_needs_one_label(path):
    several = loader_of(path, label_names=["label", "clicked"])
    with pytest.raises(ValueError, match=r"needs one label.*\['label', 'clicked'\].*weight_name"):
        model_of().fit(several, class_weight={0: 2.0}, verbose=0)
    with pytest.raises(ValueError, match=r"needs one label.*none"):
        model_of().fit(loader_of(path, label_names=[]), class_weight={0: 2.0}, verbose=0)


@pytest.mark.parametrize(
    "wrong", [{}, {"a": 1.0}, {0: "heavy"}, {0.5: 2.0}, {2**24 + 1: 2.0}, [1.0, 2.0]]
)
def test_class_weight_must_be_a_dict_of_classes(wrong):
    with pytest.raises(ValueError, match="class_weight must be a dict of integer classes"):
        ClassWeights(wrong)
