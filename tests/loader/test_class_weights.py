"""class_weight of a loader weighs rows as Keras's class_weight weighs those of arrays."""

import keras
import numpy as np
import pytest

from tests.support.loaders import loader_with
from tutorlib.memory import HostSpace

ROWS = 300
BATCH = 64


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal(ROWS).astype("float32"),
        "label": rng.integers(0, 3, ROWS).astype("float32"),
        "clicked": rng.integers(0, 2, ROWS),
        "w": rng.random(ROWS).astype("float32"),
    }


loader_of = loader_with(BATCH, label_names=["label"], cat_names=[], cont_names=["x"], shuffle=False)


def trained(data, *labels, **arguments):
    """Return the history and the weights after two epochs in the order of the rows."""
    keras.utils.set_random_seed(0)
    inputs = {"x": keras.Input((1,), name="x")}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["x"]))
    model.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
    history = model.fit(data, *labels, epochs=2, shuffle=False, verbose=0, **arguments).history
    return history, model.get_weights()


def assert_same(one, other):
    assert one[0].keys() == other[0].keys()
    for name, values in one[0].items():
        np.testing.assert_allclose(values, other[0][name], rtol=1e-5)
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore:class_weight names the classes")
def test_it_trains_as_keras_does_on_arrays(folder, columns):
    weights = {0: 0.5, 2: 7.0}  # class 1 is not named: it weighs 1
    x, y = {"x": columns["x"][:, None]}, columns["label"][:, None]
    assert_same(
        trained(loader_of(folder, class_weight=weights)),
        trained(x, y, class_weight=weights, batch_size=BATCH),
    )


def test_it_multiplies_the_weights_of_the_rows(folder, columns):
    weights = {0: 0.5, 1: 3.0, 2: 7.0}
    x, y = {"x": columns["x"][:, None]}, columns["label"][:, None]
    both = columns["w"] * np.vectorize(weights.get)(columns["label"].astype(int))
    assert_same(
        trained(loader_of(folder, weight_name="w", class_weight=weights)),
        trained(x, y, sample_weight=both, batch_size=BATCH),
    )


@pytest.mark.filterwarnings("ignore:class_weight names the classes")
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("layout", ["columns", "stacked"])
def test_each_batch_holds_the_weight_of_each_label(folder, columns, layout, device, monkeypatch):
    monkeypatch.setattr("tutorlib.loader.settings.memory_space", {"gpu": HostSpace()}.get)
    settings = {"label_names": ["clicked"], "weight_name": "w", "batch_layout": layout}
    loader = loader_of(folder, class_weight={1: 4.0, -3: 2.0}, device=device, **settings)
    weights = np.concatenate([weights for _, _, weights in loader])
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights, columns["w"] * np.where(columns["clicked"] == 1, 4, 1))


def test_a_class_that_is_not_named_is_reported_once_and_weighs_1(folder):
    loader = loader_of(folder, class_weight={0: 2.0, 2: 3.0})
    with pytest.warns(UserWarning, match="class_weight names the classes") as caught:
        weights = np.concatenate([weights for _ in range(2) for _, _, weights in loader])
    assert set(weights.tolist()) == {1.0, 2.0, 3.0}
    (warning,) = [w for w in caught if "class_weight" in str(w.message)]
    assert "the classes [0, 2], but label 'label' also has class 1." in str(warning.message)


def test_a_named_class_that_no_row_has_changes_nothing_and_is_not_reported(folder, recwarn):
    named = {0: 2.0, 1: 5.0, 2: 3.0}
    loaders = [loader_of(folder, class_weight=w) for w in (named, named | {7: 9.0})]
    one, other = (np.concatenate([w for _, _, w in loader]) for loader in loaders)
    assert np.array_equal(one, other)
    assert not [w for w in recwarn if "class_weight" in str(w.message)]


@pytest.mark.filterwarnings("ignore:class_weight names the classes")
def test_a_validation_loader_without_it_is_not_weighed(folder, columns):
    valid = loader_of(folder)
    plain = trained(loader_of(folder), validation_data=valid)
    weighted = trained(loader_of(folder, class_weight={0: 9.0}), validation_data=valid)
    assert weighted[0]["loss"] != pytest.approx(plain[0]["loss"], rel=0.01)
    bias, slope = weighted[1][1], weighted[1][0][0]
    want = np.mean((bias + slope * columns["x"] - columns["label"]) ** 2)
    assert weighted[0]["val_loss"][-1] == pytest.approx(want, rel=1e-5)


def test_it_needs_exactly_one_label(folder):
    for names in (["label", "clicked"], []):
        with pytest.raises(ValueError, match=r"needs exactly one label, got .*weight_name"):
            loader_of(folder, label_names=names, class_weight={0: 2.0})


@pytest.mark.parametrize(
    "wrong", [{}, {"a": 1.0}, {0: "heavy"}, {0.5: 2.0}, {2**24 + 1: 2.0}, [1.0, 2.0]]
)
def test_it_must_be_a_dict_of_classes(folder, wrong):
    with pytest.raises(ValueError, match="class_weight must be a dict of integer classes"):
        loader_of(folder, class_weight=wrong)
