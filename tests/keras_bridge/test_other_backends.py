"""The loader and the layers on Keras's other backends, JAX and PyTorch.

Each test is a process of its own, for Keras chooses its backend when it is imported. TensorFlow
must not be needed there.
"""

import numpy as np
import pytest

from tests.support.backends import both, run
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


TRAINS = """
model = plain_model()
arguments = {"cat_names": [], "cont_names": ["x"], "label_names": ["click"], "weight_name": "w"}
loader = KerasSequenceLoader(folder, 64, class_weight={1: 3.0}, **arguments)
order = []
for epoch in range(3):
    loader.set_epoch(epoch)
    order += [numpy(inputs["x"]) for inputs, *_ in loader]
loader.set_epoch(0)
valid = KerasSequenceLoader(folder, 64, shuffle=False, **arguments)
history = model.fit(loader, epochs=3, validation_data=valid, verbose=0)

again = plain_model()
x, y, w = (np.concatenate(parts) for parts in zip(
    *((numpy(inputs["x"]), numpy(y), numpy(w)) for inputs, y, w in valid)
))
place = {float(v): k for k, v in enumerate(x[:, 0])}
try:
    model.predict(loader, verbose=0)
except ValueError as error:
    refused = str(error)
losses = []
for epoch in range(3):
    values = np.concatenate(order[8 * epoch : 8 * epoch + 8])[:, 0]
    rows = np.array([place[float(value)] for value in values])
    weights = w[rows] * np.where(y[rows, 0] == 1, 3.0, 1.0)
    log = again.fit({"x": x[rows]}, y[rows], sample_weight=weights, batch_size=64, shuffle=False,
                    verbose=0)
    losses += log.history["loss"]
table = loader.predict(model, labels=True, verbose=0)
print(json.dumps({
    "table": table["prediction"].to_pylist(),
    "table_labels": table["click"].to_pylist(),
    "labels": y[:, 0].tolist(),
    "loss": history.history["loss"],
    "loss_of_arrays": losses,
    "val_loss": history.history["val_loss"][-1],
    "val_loss_of_arrays": again.evaluate({"x": x}, y, sample_weight=w, verbose=0)[0],
    "predicted": model.predict(valid, verbose=0).tolist(),
    "predicted_of_arrays": again.predict({"x": x}, verbose=0).tolist(),
    "epoch": loader.epoch,
    "refused": refused,
}))
"""


@both
def test_fit_evaluate_and_predict_as_with_arrays_in_the_same_order(backend, folder):
    """Weights of rows and classes too; JAX draws a batch to build the model, then restarts."""
    got = run(backend, folder, TRAINS)
    for name in ("loss", "val_loss", "predicted"):
        np.testing.assert_allclose(got[name], got[f"{name}_of_arrays"], rtol=1e-4)
    np.testing.assert_allclose(got["table"], np.ravel(got["predicted"]), rtol=1e-6)
    assert got["table_labels"] == got["labels"]
    assert got["epoch"] == 3
    assert "predict with a loader that shuffles" in got["refused"]


LAYERS = """
losses = {}
for form in ("nnzs", "padded", "offsets"):
    keras.utils.set_random_seed(0)
    inputs = keras_inputs(lists, multi_hot=form)
    output = keras.layers.Dense(1, "sigmoid")(DenseFeatures(lists)(inputs))
    model = compiled(keras.Model(inputs, output))
    # two batches of the same lengths each epoch: JAX compiles again for every other length
    loader = KerasSequenceLoader(folder, 250, schema=lists, multi_hot=form, shuffle=False)
    if form == "offsets":
        try:
            model.fit(loader, verbose=0)
        except ValueError as error:
            losses[form] = str(error)
        continue
    losses[form] = model.fit(loader, epochs=3, verbose=0).history["loss"]
for layout in ("columns", "stacked"):
    keras.utils.set_random_seed(0)
    model = compiled(DLRM(scalars, 4, [8, 4], [8], batch_layout=layout))
    loader = KerasSequenceLoader(folder, 64, schema=scalars, batch_layout=layout)
    losses[layout] = model.fit(loader, epochs=3, verbose=0).history["loss"]
print(json.dumps(losses))
"""


@both
def test_the_layers_learn_from_every_form_of_batches(backend, folder):
    got = run(backend, folder, LAYERS)
    for form in ("nnzs", "padded", "columns", "stacked"):
        assert got[form][-1] < got[form][0], form
    assert "first input, 'a__offsets'" in got["offsets"]


MEMORY = """
from tutorlib.memory import aligned_empty
from tutorlib.keras_bridge import tensor_maker
array = aligned_empty((6, 1), np.float32)
tensor = tensor_maker()(array)
array[:] = 7
kind = type(next(iter(KerasSequenceLoader(folder, 64, schema=scalars)))[0]["x"])
print(json.dumps([numpy(tensor).tolist(), kind.__module__.split(".")[0]]))
"""


@both
def test_a_batch_is_the_loaders_own_memory(backend, folder):
    values, kind = run(backend, folder, MEMORY)
    assert values == [[7.0]] * 6
    assert kind == {"jax": "numpy", "torch": "torch"}[backend]  # JAX likes NumPy best


NO_GPU = """
from tutorlib.keras_bridge import gpu_tensor_maker, wait_for_gpu
if keras.config.backend() == "jax":
    wait_for_gpu()  # works on any device
try:
    gpu_tensor_maker()
except ValueError as error:
    print(json.dumps(str(error)))
"""


@both
def test_a_backend_that_sees_no_gpu_is_refused(backend, folder):
    said = run(backend, folder, NO_GPU)
    assert "cannot take: it sees no GPU. Install " in said
    assert said.endswith("or leave device='cpu'.")


EARLY = """
import gc, threading, time
def readers():
    return [t.name for t in threading.enumerate() if t.name.startswith("tutorlib-reader")]
class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True
arguments = {"cat_names": [], "cont_names": ["x"], "label_names": ["click"], "weight_name": "w"}
loader = KerasSequenceLoader(folder, 16, buffer_size=50, **arguments)
plain_model().fit(loader, callbacks=[Stop()], verbose=0)
gc.collect()
deadline = time.monotonic() + 30
while readers() and time.monotonic() < deadline:  # a pass that is dropped stops by itself
    time.sleep(0.01)
threads = readers()
model = plain_model()
model.fit(loader, epochs=2, steps_per_epoch=4, verbose=0)
steps = int(model.optimizer.iterations)
refused = {}
ignored = {"batch_size": 32, "shuffle": False, "sample_weight": np.ones(500)}
for name, value in ignored.items():
    try:
        plain_model().fit(loader, verbose=0, **{name: value})
    except ValueError as error:
        refused[name] = str(error)
try:
    KerasSequenceLoader(folder, 64, schema=lists, multi_hot="ragged").peek()
except ValueError as error:
    refused["ragged"] = str(error)
print(json.dumps({"threads": threads, "steps": steps, "refused": refused}))
"""


@both
def test_early_stopping_steps_and_refusals(backend, folder):
    got = run(backend, folder, EARLY)
    assert got["threads"] == []
    assert got["steps"] == 8
    for name in ("batch_size", "shuffle", "sample_weight"):
        assert f"{name}" in got["refused"][name]
        assert "with a loader has no effect; " in got["refused"][name]
    assert "multi_hot='ragged'" in got["refused"]["ragged"]
    assert "TensorFlow" in got["refused"]["ragged"]


ONE_BATCH = """
arguments = {"cat_names": [], "cont_names": ["x"], "label_names": ["click"]}
seeds = iter(range(100))
whole = KerasSequenceLoader(folder, 500, seed_fn=lambda: next(seeds), **arguments)
model = plain_model()
model.fit(whole, epochs=2, verbose=0)
parts = KerasSequenceLoader(folder, 100, **arguments)
batches = iter(parts)
for _ in range(4):
    next(batches)
rest = KerasSequenceLoader(folder, 100, **arguments)
rest.load_state_dict(parts.state_dict())
other = plain_model()
other.fit(rest, epochs=1, verbose=0)
print(json.dumps({
    "steps": int(model.optimizer.iterations), "epoch": whole.epoch, "next_seed": next(seeds),
    "rest_steps": int(other.optimizer.iterations), "rest_epoch": rest.epoch,
}))
"""


@both
def test_a_batch_that_only_built_the_model_is_given_again(backend, folder):
    """Also where it is the only one of the epoch, or of what is left of it."""
    got = run(backend, folder, ONE_BATCH)
    assert (got["steps"], got["epoch"], got["next_seed"]) == (2, 2, 2)
    assert (got["rest_steps"], got["rest_epoch"]) == (1, 1)
