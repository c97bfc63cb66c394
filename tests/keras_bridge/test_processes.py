"""Training in several real processes: the programs of docs/scale_out.md.

Those on JAX find each other on this machine by the variables that Slurm sets.
"""

import contextlib
import json
import random
import shutil
import socket
import tempfile
import time

import numpy as np
import pytest

from tests.support.documents import code_below
from tests.support.processes import free_ports, run, run_together, started
from tutorlib.columns import Chunk, Ragged
from tutorlib.parquet import ParquetSink
from tutorlib.schema import Column, Schema

ROWS, STEPS = 3400, 53
PAGE = "docs/scale_out.md"
PROGRAM = code_below(PAGE, "Training in several processes")
HEARTBEAT_S = 8

WITHOUT_TENSORFLOW = """import sys
sys.modules["tensorflow"] = None  # as where it is not installed: Keras would import it
import jax
"""
WATCH = """
import json, os, signal
import numpy as np

losses = []

class Watch(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        losses.append(float(logs["loss"]))
        self.steps += 1
        if os.environ.get("KILLED_AFTER") == str(self.steps):
            os.kill(os.getpid(), signal.SIGKILL)

from tutorlib"""

REPORT = """
import hashlib
values = [keras.ops.convert_to_numpy(v) for v in (*model.variables, *model.optimizer.variables)]
numbers = {"cat_names": ["row"], "cont_names": [], "drop_last": True}
numbered = KerasSequenceLoader("train", batch_size, **numbers)
print(json.dumps({
    "rows": [inputs["row"][:, 0].tolist() for inputs, _ in numbered.as_numpy()],
    "losses": losses,
    "bits": hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest(),
    "steps": int(model.optimizer.iterations),
    "predicted": train.predict(model, verbose=0).num_rows,
}))
"""


def edited(program, *changes):
    """Return a program in which each (old, new) text is replaced."""
    for old, new in changes:
        assert old in program, old
        program = program.replace(old, new)
    return program


PROGRAM = edited(PROGRAM, ("import jax\n", WITHOUT_TENSORFLOW))
CHANGES = [
    ("batch_size, drop_last=True)", 'batch_size, drop_last=True, id_names=["row"])'),
    ("from tutorlib", WATCH),
    ("callbacks=[checkpoint]", "callbacks=[Watch(), checkpoint]"),
    ("    validation_data=valid,\n", ""),
    ("epochs=2", "epochs=1"),
    ("every_n_batches=1000", "every_n_batches=10"),
    ("heartbeat_timeout_seconds=30", f"heartbeat_timeout_seconds={HEARTBEAT_S}"),
]
WATCHED = edited(PROGRAM, *CHANGES) + REPORT


def slurm(world_size, **of_one):
    """Return the environment of each process, as Slurm sets it for tasks on one node.

    JAX takes the port from the number of the job.
    """
    while True:
        job = random.randrange(4096)
        with contextlib.suppress(OSError), socket.socket() as trial:
            trial.bind(("", 65535 - 2**12 + 1 + job))
            break
    common = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "SLURM_JOB_ID": str(job)}
    common["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # compiles in less time
    common |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": str(world_size)}
    ranks = [{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(world_size)]
    ranks[-1] |= of_one
    return [{**common, **rank} for rank in ranks]


LABEL = Column("label", "label")


def write_columns(folder, columns, schema, row_group_rows=100):
    """Write rows with a schema, as `Workflow.transform_to_parquet` does."""
    with ParquetSink(folder, row_group_rows=row_group_rows) as sink:
        sink.write(Chunk(columns))
    (folder / "_schema.json").write_text(Schema(schema).to_json(), encoding="utf-8")


def write(folder, rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    columns = {"c": rng.integers(0, 50, rows), "d": rng.integers(0, 9, rows)}
    columns |= {name: rng.standard_normal(rows).astype("float32") for name in ("x", "z")}
    columns |= {"label": (columns["x"] > 0).astype("float32"), "row": np.arange(rows)}
    ids = [Column("c", "categorical", cardinality=50), Column("d", "categorical", cardinality=9)]
    numbers = [Column(name, "continuous", "float32") for name in ("x", "z")]
    write_columns(folder, columns, [*ids, *numbers, LABEL, Column("row", "id")])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the data, for trainings in copies of it."""
    pytest.importorskip("jax", reason="jax is not installed: pip install jax")
    folder = tmp_path_factory.mktemp("processes")
    write(folder / "train")
    write(folder / "valid", 300, seed=1)
    return folder


def train(folder):
    """Return what each of two processes reports."""
    return run_together([WATCHED] * 2, slurm(2), cwd=folder)


@pytest.fixture(scope="module")
def undisturbed(place, tmp_path_factory):
    """What each of two processes reports that are never killed."""
    return train(shutil.copytree(place, tmp_path_factory.mktemp("run") / "here"))


def test_two_processes_train_one_model_on_each_row_once(undisturbed):
    rows = np.concatenate([report["rows"] for report in undisturbed], axis=1)
    assert rows.shape == (STEPS, 64)
    assert len(set(rows.ravel())) == STEPS * 64
    for report in undisturbed:
        assert report["steps"] == STEPS
        assert report["losses"] == undisturbed[0]["losses"]
        assert report["bits"] == undisturbed[0]["bits"]
        assert report["predicted"] == ROWS


@pytest.mark.slow
def test_a_killed_process_ends_the_other_and_both_resume_bit_for_bit(undisturbed, place, tmp_path):
    folder = shutil.copytree(place, tmp_path / "here")
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile("w+"))
        first, second = (
            stack.enter_context(started(["-c", WATCHED], output, folder, **environment))
            for environment in slurm(2, KILLED_AFTER="25")
        )
        second.wait(120)
        killed = time.monotonic()
        code = first.wait(4 * HEARTBEAT_S)
        assert code != 0, f"ended {time.monotonic() - killed:.0f} s after the other"
        output.seek(0)
        assert "Task 1 heartbeat timeout" in output.read()
    for report in train(folder):
        assert report["steps"] == STEPS
        assert len(report["losses"]) == STEPS - 20  # from the last checkpoint on
        assert report["bits"] == undisturbed[0]["bits"]


REFUSALS = """
import json
from tutorlib.parquet import ParquetSource
said = {}

def refused(name, method="fit", folder="train", **changes):
    try:
        loader = KerasSequenceLoader(folder, batch_size, **{"drop_last": True, **changes})
        getattr(model, method)(loader, verbose=0)
    except ValueError as error:
        said[name] = str(error)

refused("last batch", folder=ParquetSource("train").head(3399), drop_last=False)
refused("predict", "predict", shuffle=False)
refused("right", folder=ParquetSource("train").head(128), drop_last=False)
schema = KerasSequenceLoader("lists", batch_size).schema
inputs = keras_inputs(schema)
model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(DenseFeatures(schema)(inputs)))
model.compile("adam", "binary_crossentropy")
refused("lists", folder="lists")
print(json.dumps(said))
"""


def test_what_joined_processes_cannot_do_is_refused_on_all_of_them(place, tmp_path):
    folder = shutil.copytree(place, tmp_path / "here")
    lists = {"g": Ragged(np.arange(128) % 5, np.arange(0, 129, 2)), "label": np.ones(64, "f4")}
    ids = Column("g", "categorical", cardinality=5, multi_hot=True)
    write_columns(folder / "lists", lists, [ids, LABEL])
    program = PROGRAM.partition("checkpoint = ")[0] + REFUSALS
    first, second = run_together([program] * 2, slurm(2), cwd=folder)
    assert first == second
    assert "devices, as Keras needs. Use drop_last=True" in first["last batch"]
    assert "loader.predict(model)" in first["predict"]
    assert "multi_hot=MultiHot('padded', max_length=...)" in first["lists"]
    assert "right" not in first


REPLICA = """
import json
devices = keras.distribution.list_devices()
mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], devices)
layouts = keras.distribution.LayoutMap(mesh)
keras.distribution.set_distribution(
    keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch"))
loader = KerasSequenceLoader("train", 64, cat_names=["row"], cont_names=[])
print(json.dumps([inputs["row"][:, 0].tolist() for inputs, _ in loader.as_numpy()]))
"""


def test_processes_that_hold_one_replica_together_have_the_same_rows(place):
    program = PROGRAM.partition("keras.utils.set_random_seed")[0] + REPLICA
    first, second = run_together([program] * 2, slurm(2), cwd=place)
    assert first == second
    assert sorted(np.concatenate(first)) == list(range(ROWS))


SHARED = """
import sys
sys.modules["tensorflow"] = None
import keras
from tutorlib import KerasSequenceLoader
keras.distribution.set_distribution(keras.distribution.DataParallel())
x = keras.Input((1,), name="x")
model = keras.Model({"x": x}, keras.layers.Dense(1)(x))
model.compile("sgd", "mse")
for size in (32, 30):
    names = {"cat_names": [], "cont_names": ["x"], "label_names": ["label"], "drop_last": True}
    try:
        model.fit(KerasSequenceLoader(sys.argv[1], size, **names), verbose=0)
        print("trained")
    except ValueError as error:
        print(error)
"""


def test_a_batch_that_the_devices_of_a_process_cannot_share_is_refused(place):
    flags = "--xla_force_host_platform_device_count=4"
    environment = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    trained, refused = run(SHARED, place / "train", **environment).splitlines()
    assert trained == "trained"
    assert "batch_size=30 must be a multiple of 4, the devices of this process" in refused


# ---- a table split over devices ------------------------------------------------------------------


SPLIT = """import sys
sys.modules["tensorflow"] = None
import json
losses = []
def report():
    shards = model.get_layer("embeddings").embedding_weights.value.addressable_shards
    held = {}
    for variable in [*model.variables, *model.optimizer.variables]:
        for shard in variable.value.addressable_shards:
            held[str(shard.device)] = held.get(str(shard.device), 0) + shard.data.nbytes
    print(json.dumps([losses, [shard.data.shape[0] for shard in shards], list(held.values())]))
"""


def test_a_table_split_over_four_devices_trains_as_on_one(tmp_path):
    rng = np.random.default_rng(0)
    columns = {"user": rng.integers(0, 49_999, 1024), "day": rng.integers(0, 7, 1024)}
    columns["x"] = rng.standard_normal(1024).astype("float32")
    columns["label"] = (columns["x"] > 0).astype("float32")
    ids = [Column("user", "categorical", cardinality=49_999)]
    ids.append(Column("day", "categorical", cardinality=7))
    write_columns(tmp_path / "train", columns, [*ids, Column("x", "continuous"), LABEL])
    program = edited(
        code_below(PAGE, "Tables that fit no device"),
        ("% len(devices)", "% 4"),  # as many rows on one device
        ("batch_size=512", "batch_size=64"),
        ("import keras  #", "import keras; keras.utils.set_random_seed(0)  #"),
        ("epochs=1)", "callbacks=[keras.callbacks.LambdaCallback("
         "on_train_batch_end=lambda batch, logs: losses.append(logs['loss']))])"),
    )  # fmt: skip
    flags = "--xla_force_host_platform_device_count="
    environments = [{"KERAS_BACKEND": "jax", "XLA_FLAGS": f"{flags}{n}"} for n in (1, 4)]
    (one, [rows], [whole]), (four, shards, held) = run_together(
        [f"{SPLIT}{program}\nreport()"] * 2, environments, cwd=tmp_path
    )
    assert len(one) == 16
    np.testing.assert_allclose(four, one, atol=1e-5, rtol=0)
    assert rows == 50_008
    assert shards == [rows // 4] * 4
    assert max(held) < 0.27 * whole


# ---- loops of one's own -------------------------------------------------------------------------


LOOP_ROWS = 21_111  # 21 batches for each of two ranks, the last one of 75 or 76 rows

RESULT = """
import json
weights = [float(keras.ops.sum(w)) for w in model.trainable_variables]
print(json.dumps({"losses": losses, "weights": weights}))
"""


@pytest.mark.slow
def test_two_processes_in_a_loop_of_your_own_stay_equal(tmp_path):
    """Equal steps, losses and weights."""
    rng = np.random.default_rng(0)
    c1, x = rng.integers(0, 500, LOOP_ROWS), rng.permutation(LOOP_ROWS) / LOOP_ROWS
    label = rng.random(LOOP_ROWS) < 0.2 + 0.6 * x * (c1 % 2)
    columns = {"C1": c1, "C2": c1 % 9, "x": x.astype("float32"), "label": label.astype("float32")}
    ids = [Column("C1", "categorical", cardinality=500), Column("C2", "categorical", cardinality=9)]
    write_columns(tmp_path / "train", columns, [*ids, Column("x", "continuous"), LABEL], 3000)
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    configs = [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        for index in range(2)
    ]
    environments = [{"KERAS_BACKEND": "tensorflow", "TF_CONFIG": json.dumps(c)} for c in configs]
    program = code_below(PAGE, "TensorFlow: a loop of your own") + RESULT
    first, second = run_together([program] * 2, environments, cwd=tmp_path)
    assert len(first["losses"]) == 21
    assert first["losses"] == second["losses"]
    assert first["weights"] == second["weights"]
    assert first["losses"][-1] < first["losses"][0]
