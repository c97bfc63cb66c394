"""The loader and the layers on Keras's other backends, JAX and PyTorch.

Each backend has a process of its own, for Keras chooses it when it is imported. TensorFlow must not
be needed there.
"""

import numpy as np
import pytest

from tests.support.backends import run
from tutorlib.columns import Ragged

ROWS = 500


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 5, ROWS))])
    x = rng.standard_normal(ROWS).astype("float32")
    return {
        "a": Ragged(rng.integers(0, 9, offsets[-1]), offsets),
        "c": rng.integers(0, 9, ROWS),
        "d": rng.integers(0, 9, ROWS),
        "x": x,
        "click": (x > 0).astype("float32"),
        "w": rng.random(ROWS).astype("float32"),
    }


PROGRAM = """
import gc, threading, time

from tutorlib.keras_bridge.backend import gpu_tensor_maker, tensor_maker, wait_for_gpu
from tutorlib.memory import aligned_empty

said, names = {}, {"cat_names": [], "cont_names": ["x"], "label_names": ["click"]}
weighted = {**names, "weight_name": "w"}

def refused(name, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except ValueError as error:
        said[name] = str(error)

# fit, evaluate and predict, compared with arrays in the order of the loader
model = plain_model()
loader = KerasSequenceLoader(folder, 64, class_weight={1: 3.0}, **weighted)
order = []
for epoch in range(3):
    loader.set_epoch(epoch)
    order += [numpy(inputs["x"]) for inputs, *_ in loader]
loader.set_epoch(0)
valid = KerasSequenceLoader(folder, 64, shuffle=False, **weighted)
history = model.fit(loader, epochs=3, validation_data=valid, verbose=0).history
said["epoch"] = loader.epoch
x, y, w = (np.concatenate(parts) for parts in zip(
    *((numpy(inputs["x"]), numpy(y), numpy(w)) for inputs, y, w in valid)
))
place = {float(v): k for k, v in enumerate(x[:, 0])}
again, losses = plain_model(), []
for epoch in range(3):
    values = np.concatenate(order[8 * epoch : 8 * epoch + 8])[:, 0]
    rows = np.array([place[float(value)] for value in values])
    weights = w[rows] * np.where(y[rows, 0] == 1, 3.0, 1.0)
    arrays = {"x": x[rows]}, y[rows], 64
    options = {"sample_weight": weights, "shuffle": False, "verbose": 0}
    losses += again.fit(*arrays, **options).history["loss"]
said["loss"] = history["loss"], losses
val_loss = again.evaluate({"x": x}, y, sample_weight=w, verbose=0)[0]
said["val_loss"] = history["val_loss"][-1:], [val_loss]
predicted = model.predict(valid, verbose=0)
said["predicted"] = predicted.tolist(), again.predict({"x": x}, verbose=0).tolist()
table = loader.predict(model, verbose=0)["prediction"].to_pylist()
said["table"] = table, predicted.ravel().tolist()

# a batch that only built the model, also the only one of the epoch, or of the rest of one
seeds = iter(range(100))
whole = KerasSequenceLoader(folder, 500, seed_fn=lambda: next(seeds), **names)
model = plain_model()
model.fit(whole, epochs=2, verbose=0)
said["whole"] = int(model.optimizer.iterations), whole.epoch, next(seeds)
parts, rest = (KerasSequenceLoader(folder, 100, **names) for _ in range(2))
batches = iter(parts)
for _ in range(4):
    next(batches)
rest.load_state_dict(parts.state_dict())
parts.close()
model = plain_model()
model.fit(rest, epochs=1, verbose=0)
said["rest"] = int(model.optimizer.iterations), rest.epoch

# what ends early, and what is refused
class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True
early = KerasSequenceLoader(folder, 16, buffer_size=50, **weighted)
plain_model().fit(early, callbacks=[Stop()], verbose=0)
gc.collect()
deadline = time.monotonic() + 30
readers = lambda: [t.name for t in threading.enumerate() if t.name.startswith("tutorlib-reader")]
while readers() and time.monotonic() < deadline:  # a pass that is dropped stops by itself
    time.sleep(0.01)
said["threads"] = readers()
model = plain_model()
model.fit(early, epochs=2, steps_per_epoch=4, verbose=0)
said["steps"] = int(model.optimizer.iterations)
refused("predict", model.predict, loader, verbose=0)
for name, value in {"batch_size": 32, "shuffle": False, "sample_weight": np.ones(500)}.items():
    refused(name, model.fit, early, verbose=0, **{name: value})
refused("ragged", KerasSequenceLoader, folder, 64, schema=lists, multi_hot="ragged")
refused("gpu", gpu_tensor_maker)
if keras.config.backend() == "jax":
    wait_for_gpu()  # works on any device

# tensors are the loader's own memory
array = aligned_empty((6, 1), np.float32)
tensor = tensor_maker()(array)
array[:] = 7
said["memory"] = numpy(tensor).tolist()
said["kind"] = type(loader.peek()[0]["x"]).__module__.split(".")[0]

# layers: two batches of the same lengths each epoch, as JAX compiles for every other length
for form in ("nnzs", "padded", "offsets"):
    inputs = keras_inputs(lists, multi_hot=form)
    output = keras.layers.Dense(1, "sigmoid")(DenseFeatures(lists)(inputs))
    model = compiled(keras.Model(inputs, output))
    batches = KerasSequenceLoader(folder, 250, schema=lists, multi_hot=form, shuffle=False)
    if form == "offsets":
        refused(form, model.fit, batches, verbose=0)
    else:
        said[form] = model.fit(batches, epochs=3, verbose=0).history["loss"]
for layout in ("columns", "stacked"):
    model = compiled(DLRM(scalars, 4, [8, 4], [8], batch_layout=layout))
    batches = KerasSequenceLoader(folder, 64, schema=scalars, batch_layout=layout)
    said[layout] = model.fit(batches, epochs=3, verbose=0).history["loss"]
print(json.dumps(said))
"""


@pytest.fixture(scope="module", params=["jax", "torch"])
def said(request, folder):
    return {"backend": request.param, **run(request.param, folder, PROGRAM)}


@pytest.mark.parametrize("name", ["loss", "val_loss", "predicted", "table"])
def test_fit_evaluate_and_predict_as_with_arrays_in_the_same_order(said, name):
    """Weights of rows and classes too; JAX draws a batch to build the model, then restarts."""
    np.testing.assert_allclose(*said[name], rtol=1e-4)
    assert said["epoch"] == 3


def test_a_batch_that_only_built_the_model_is_given_again(said):
    assert said["whole"] == [2, 2, 2]
    assert said["rest"] == [1, 1]


def test_early_stopping_and_steps(said):
    assert said["threads"] == []
    assert said["steps"] == 8


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "with a loader has no effect; ") for name in ("batch_size", "shuffle")),
        ("sample_weight", "with a loader has no effect; "),
        ("predict", "predict with a loader that shuffles"),
        ("ragged", "multi_hot='ragged'"),
        ("gpu", "cannot take: it sees no GPU. Install "),
        ("offsets", "first input, 'a__offsets'"),
    ],
)
def test_what_cannot_be_is_refused(said, name, message):
    assert message in said[name]


def test_a_batch_is_the_loaders_own_memory(said):
    assert said["memory"] == [[7.0]] * 6
    assert said["kind"] == {"jax": "numpy", "torch": "torch"}[said["backend"]]  # JAX likes NumPy


@pytest.mark.parametrize("form", ["nnzs", "padded", "columns", "stacked"])
def test_the_layers_learn_from_every_form_of_batches(said, form):
    assert said[form][-1] < said[form][0]
