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
    offsets = np.append(0, np.cumsum(rng.integers(0, 5, ROWS)))
    x = rng.standard_normal(ROWS).astype("float32")
    return {
        "a": Ragged(rng.integers(1, 9, offsets[-1]), offsets),
        "c": rng.integers(0, 9, ROWS),
        "d": rng.integers(0, 9, ROWS),
        "x": x,
        "click": (x > 0).astype("float32"),
        "w": rng.random(ROWS).astype("float32"),
    }


PROGRAM = """
import gc, threading, time

from tutorlib.callbacks import ThroughputLogger
from tutorlib.diagnosis import diagnose
from tutorlib.keras_bridge.backend import tensor_maker
from tutorlib.gpu.batches import gpu_tensor_maker, wait_for_gpu
from tutorlib.memory import aligned_empty

said, names = {}, {"cat_names": [], "cont_names": ["x"], "label_names": ["click"]}
weighted = {**names, "weight_name": "w"}

def refused(name, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except ValueError as error:
        said[name] = str(error)

# fit, evaluate and predict, compared with arrays in the order of the loader
model, again = plain_model(), plain_model()
loader = KerasSequenceLoader(folder, 64, **weighted)
valid = KerasSequenceLoader(folder, 64, shuffle=False, **weighted)
history, losses = model.fit(loader, epochs=3, validation_data=valid, verbose=0).history, []
said["epoch"] = loader.epoch
for epoch in range(3):
    loader.set_epoch(epoch)
    columns = zip(*((numpy(inputs["x"]), numpy(y), numpy(w)) for inputs, y, w in loader))
    x, y, w = map(np.concatenate, columns)
    options = {"sample_weight": w, "shuffle": False, "verbose": 0}
    losses += again.fit({"x": x}, y, 64, **options).history["loss"]
said["loss"] = history["loss"], losses
predicted = model.predict(valid, verbose=0)
table = loader.predict(model, verbose=0)["prediction"].to_pylist()
said["predicted"] = sorted(table), np.sort(again.predict({"x": x}, verbose=0).ravel()).tolist()
said["table"] = table, predicted.ravel().tolist()
said["val_loss"] = history["val_loss"][-1:], [
    model.evaluate({"x": x}, y, sample_weight=w, verbose=0)[0]
]

# a batch that only built the model, also the only one of an epoch, or of the rest of one
whole = KerasSequenceLoader(folder, 500, **names)
parts, rest = (KerasSequenceLoader(folder, 100, **names) for _ in range(2))
for _ in zip(range(4), parts):
    rest.load_state_dict(parts.state_dict())
for name, loader, epochs in (("whole", whole, 2), ("rest", rest, 1)):
    model = plain_model()
    model.fit(loader, epochs=epochs, verbose=0)
    said[name] = int(model.optimizer.iterations), loader.epoch

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
model, logger = plain_model(), ThroughputLogger(iter(range(99)).__next__)  # a second a step
logs = model.fit(early, epochs=2, steps_per_epoch=4, verbose=0, callbacks=[logger]).history
said["steps"] = [int(model.optimizer.iterations), *logs["samples_per_s"]]
refused("predict", model.predict, early, verbose=0)
refused("shuffle", model.fit, early, verbose=0, shuffle=False)
refused("gpu", gpu_tensor_maker)
if keras.config.backend() == "jax":
    wait_for_gpu()  # works on any device

# tensors are the loader's own memory
array = aligned_empty((6, 1), np.float32)
tensor = tensor_maker()(array)
array[:] = 7
said["memory"] = numpy(tensor).tolist(), type(early.peek()[0]["x"]).__module__.split(".")[0]

# layers: two batches of the same lengths each epoch, as JAX compiles for every other length
for form in ("nnzs", "padded"):
    inputs = keras_inputs(lists, multi_hot=form)
    output = keras.layers.Dense(1, "sigmoid")(DenseFeatures(lists)(inputs))
    model = compiled(keras.Model(inputs, output))
    batches = KerasSequenceLoader(folder, 250, schema=lists, multi_hot=form, shuffle=False)
    said[form] = model.fit(batches, epochs=3, verbose=0).history["loss"]
model = compiled(DLRM(scalars, 4, [8, 4], [8], batch_layout="stacked"))
batches = KerasSequenceLoader(folder, 64, schema=scalars, batch_layout="stacked")
said["stacked"] = model.fit(batches, epochs=3, verbose=0).history["loss"]

# what would help a training that waits
waits = KerasSequenceLoader(folder, 64, **names).map(lambda table: time.sleep(0.2) or table)
said["remedies"] = list(diagnose(plain_model(), waits, max_seconds=0.3).remedies)
print(json.dumps(said))
"""


@pytest.fixture(scope="module", params=["jax", pytest.param("torch", marks=pytest.mark.slow)])
def said(request, folder):
    return {"backend": request.param, **run(request.param, folder, PROGRAM)}


def test_fit_evaluate_and_predict_as_with_arrays_in_the_same_order(said):
    """Weights of rows too; JAX draws a batch to build the model, then restarts."""
    for name in ("loss", "val_loss", "predicted", "table"):
        np.testing.assert_allclose(*said[name], rtol=1e-4, err_msg=name)
    assert (said["epoch"], said["whole"], said["rest"]) == (3, [2, 2], [1, 1])
    assert said["threads"] == []
    assert said["steps"] == [8, 16, 16]  # and rows of each, which took a second


def test_a_training_that_waits_is_told_to_hold_its_rows_in_memory(said):
    assert said["remedies"][0].startswith("model.fit(x, y, batch_size=64), all rows in memory")


def test_what_cannot_be_is_refused(said):
    for name, message in {
        "shuffle": "with a loader has no effect; ",
        "predict": "predict with a loader that shuffles",
        "gpu": "device='gpu' makes batches ",
    }.items():
        assert message in said[name]


def test_a_batch_is_the_loaders_own_memory_and_layers_learn_from_every_form(said):
    kind = {"jax": "numpy", "torch": "torch"}[said["backend"]]  # JAX likes NumPy
    assert said["memory"] == [[[7.0]] * 6, kind]
    for form in ("nnzs", "padded", "stacked"):
        assert said[form][-1] < said[form][0], form
