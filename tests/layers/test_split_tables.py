"""Tables split over devices: the plan, the numbers of one device, saving and loading.

Keras splits variables on JAX only, so most of it runs in one other process, on four virtual devices
of a CPU; `trained` is what that process found.
"""

import re

import numpy as np
import pytest

from tests.support.backends import run
from tests.support.processes import free_ports, run_together
from tutorlib.columns import Ragged
from tutorlib.layers import plan_tables

ROWS = 3200  # 50 batches of 64
SIZES = {"user": 20_000, "film": 30_000, "day": 8, "tags": 4_000}


def on_devices(count, **more):
    """Return the environment of a process that sees so many devices."""
    flags = f"--xla_force_host_platform_device_count={count}"
    return {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags, **more}


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    offsets = np.arange(ROWS + 1) * 3  # lists of one length: JAX compiles one step
    ids = {name: rng.integers(0, size, ROWS) for name, size in SIZES.items()}
    ids["tags"] = Ragged(rng.integers(0, SIZES["tags"], offsets[-1]), offsets)
    x = rng.standard_normal(ROWS).astype("float32")
    return {**ids, "x": x, "label": ((ids["user"] % 2) ^ (x > 0)).astype("float32")}


SETTING = f"""
import random
from pathlib import Path
from tutorlib import MultiHot, callbacks
from tutorlib.callbacks import LoaderCheckpoint
from tutorlib.layers import *

columns = [
    Column(name, "categorical", cardinality=size, embedding_dim=16, multi_hot=name == "tags")
    for name, size in {SIZES}.items()
]
schema = Schema([*columns, Column("x", "continuous"), Column("label", "label")])
set_distribution = keras.distribution.set_distribution
saved, BUCKETED = Path(folder).parent / "saved", MultiHot(bucketed=True)
callbacks.BLOCK_BYTES = 2**17  # these tables count as large

def make_model():
    keras.utils.set_random_seed(0)
    inputs = keras_inputs(schema)
    flat = keras.layers.Flatten(name="flat")
    fused = FusedEmbedding(schema.select(["user", "day"]), "concat", name="fused")
    tags = DenseFeatures(schema.select(["tags", "x"]), name="features")
    parts = [
        fused({{name: inputs[name] for name in ("user", "day")}}),
        tags({{name: inputs[name] for name in ("tags__values", "tags__nnzs", "x")}}),
        flat(EmbeddingTable(30_000, 16, name="table")(inputs["film"])),
        flat(EmbeddingTable(8, 16, name="small")(inputs["day"])),
        flat(keras.layers.Embedding(20_000, 16, name="plain")(inputs["user"])),
    ]
    x = keras.layers.Concatenate(name="all")(parts)
    x = keras.layers.Dense(16, "relu", name="hidden")(x)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid", name="out")(x))
    model.compile("adam", "binary_crossentropy")
    return model

def plan_of(shape, **arguments):
    shape = tuple(map(int, shape.split("x")))
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model")[: len(shape)])
    return plan_tables(make_model, mesh, "adam", **{{"split_above": "200KB", **arguments}})

class Steps(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.losses = []
    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])

def checkpoint_and_loader(name):
    loader = KerasSequenceLoader(folder, 64, schema=schema, multi_hot=BUCKETED)
    return LoaderCheckpoint(saved / name, loader), loader

def fit(model, name):
    steps = Steps()
    checkpoint, loader = checkpoint_and_loader(name)
    model.fit(loader, verbose=0, callbacks=[steps, checkpoint])
    return np.array(steps.losses)

def values(model):
    return [numpy(v) for v in [*model.variables, *model.optimizer.variables]]

def difference(a, b):
    return max(float(abs(x.astype("float64") - y).max()) for x, y in zip(a, b, strict=True))
"""


TRAINING = """
def written(model, name):
    model.save_weights(saved / f"{name}.weights.h5")
    model.save(saved / f"{name}.keras")

def read(name, want):
    \"\"\"Return how far what was saved as `name` is from `want`, read in three ways.\"\"\"
    model = make_model()
    model.optimizer.build(model.trainable_variables)
    model.load_weights(saved / f"{name}.weights.h5")
    whole = keras.models.load_model(saved / f"{name}.keras")
    resumed = make_model()
    checkpoint_and_loader(name)[0].restore(resumed)
    return [difference(values(m), want) for m in (model, whole, resumed)], [model, whole, resumed]

found = {}
saved.mkdir()
model = make_model()
wanted = fit(model, "one")
one = values(model)
written(model, "one")
plan = plan_of("2x2")  # the code of the page runs on a mesh of one axis
set_distribution(plan.distribution())
model = make_model()
losses = fit(model, "four")
needs, shares = plan.bytes_per_device, {}
for v in [*model.variables, *model.optimizer.variables]:
    for table in plan.tables:
        if table.path.replace("/", "_") in v.path.replace("/", "_"):
            largest = max(shard.data.nbytes for shard in v.value.addressable_shards)
            shares.setdefault(table.path, []).append(largest / v.value.nbytes)
found["losses"] = len(losses), difference([losses], [wanted]), difference(values(model), one)
found["held"], found["measured"] = shares, list(plan.check(model).values())
found["planned"] = sum(needs.values()) - needs["gradients"]
four = values(model)
written(model, "four")
found["one to four"], models = read("one", one)
found["split"] = [plan.check(m) == plan.check(model) for m in models]
set_distribution(None)
found["four to one"], models = read("four", four)
found["devices"] = max(len(v.value.devices()) for m in models for v in m.variables)

def refusal(function, *arguments):
    try:
        function(*arguments)
    except (ValueError, RuntimeError) as error:
        return str(error)

def big_model():
    return DLRM(pad_tables(big, 512), 16, [8], [8])

state = random.getstate()
big = [Column(f"C{k}", "categorical", cardinality=160_000_001) for k in range(25)]
many = keras.distribution.DeviceMesh((512,), ("batch",), devices=[f"gpu:{k}" for k in range(512)])
plan = plan_tables(big_model, many, "adam", bytes_per_device="16GiB")
found["big"] = [plan.tables[0].rows, plan.bytes_per_device["tables"], str(plan)]
four = keras.distribution.DeviceMesh((4,), ("batch",))
limit = {"bytes_per_device": "16GiB"}
found["small devices"] = refusal(lambda: plan_tables(big_model, four, "adam", **limit))
columns[1] = Column("film", "categorical", cardinality=30_001, embedding_dim=16)
odd = lambda: DLRM(columns[:2], 16, [8], [8])
found["odd"] = refusal(lambda: plan_tables(odd, four, "adam", split_above="200KB"))
plan = plan_of("4")
set_distribution(plan.distribution())
found["unplanned"] = refusal(EmbeddingTable(20_000, 16, name="other").build)
set_distribution(None)
found["not distributed"] = refusal(plan.check, one_device := make_model())
found["seeds"] = state == random.getstate() or "changed"
unbuilt = lambda: keras.Sequential([keras.layers.Embedding(9, 2)])
found["unbuilt"] = refusal(lambda: plan_tables(unbuilt, four, "adam"))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def trained(folder):
    dump = folder.parent / "compiled"
    environment = on_devices(4)
    environment["XLA_FLAGS"] += (
        f" --xla_dump_to={dump} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*train_step.*"
    )
    found = run("jax", folder, SETTING + TRAINING, **environment)
    return found | {"compiled": [f.read_text() for f in dump.glob("*after_optimizations.txt")]}


def test_four_devices_give_the_numbers_of_one_and_hold_a_quarter_of_large_tables_each(trained):
    steps, losses_apart, values_apart = trained["losses"]
    assert steps == 50
    assert max(losses_apart, values_apart) < 1e-5
    large = {"table/embedding_weights", "plain/embeddings", "fused/embedding_weights"}
    large.add("features/tags/embedding_weights")
    assert trained["held"].keys() == large | {"small/embedding_weights"}
    for path, shares in trained["held"].items():
        assert len(shares) == 3  # the table and both moments
        assert max(shares) <= 0.26 if path in large else min(shares) == 1, path
    assert len(trained["measured"]) == 4
    assert 0.99 * trained["planned"] < max(trained["measured"]) <= trained["planned"]


def test_a_step_exchanges_rows_of_the_batch_and_no_table(trained):
    """Each array that devices exchange is smaller than a device's share of any large table."""
    share = SIZES["tags"] * 16 * 4 // 4
    kinds = set()
    for text in trained["compiled"]:
        for line in text.splitlines():
            if found := re.search(r" = (.*?) (all-\w+|reduce-scatter|collective-permute)\(", line):
                kinds.add(found[2])
                for sizes in re.findall(r"\w+\[([\d,]*)\]", found[1]):
                    values = np.prod([int(size) for size in sizes.split(",") if size])
                    assert 4 * values < share, line[:200]
    assert {"all-gather", "all-reduce"} <= kinds


def test_what_one_device_saved_is_loaded_on_four_and_the_other_way_round(trained):
    """As weights, a `.keras` file and a checkpoint, with the optimizer's state, bit for bit."""
    assert trained["one to four"] == trained["four to one"] == [0, 0, 0]
    assert trained["split"] == [True] * 3
    assert trained["devices"] == 1


def test_a_plan_for_4_billion_rows_needs_neither_the_devices_nor_the_memory(trained):
    rows, nbytes, text = trained["big"]
    assert rows == 25 * 160_000_512
    assert nbytes == rows * 16 * 4 // 512
    assert "512 devices (512), on each 1,907.4 MiB of 16,384.0 MiB" in text
    assert "tables 476.8 MiB, slots 953.7 MiB, gradients 476.8 MiB" in text
    assert "embeddings/embedding_weights: 4,000,012,800 x 16" in text


def test_what_does_not_fit_is_refused_with_tables_bytes_and_remedies(trained):
    said = trained["small devices"]
    assert said.startswith("the model does not fit 16,384.0 MiB per device")
    assert "embeddings/embedding_weights" in said
    assert "Take more devices" in said
    assert "table/embedding_weights has 30,001" in trained["odd"] or (
        "has 50,001, next is 50,004" in trained["odd"]
    )
    assert "pad_tables(schema, 4)" in trained["odd"]


def test_a_large_table_outside_of_the_plan_is_refused(trained):
    assert (
        "'other/embedding_weights' of 1.2 MiB is not among the large tables" in trained["unplanned"]
    )
    assert "set_distribution(plan.distribution()) before" in trained["not distributed"]
    assert "which is not built" in trained["unbuilt"]
    assert trained["seeds"] is True


def test_other_backends_than_jax_are_refused():
    with pytest.raises(RuntimeError, match="needs Keras on JAX, got 'tensorflow'"):
        plan_tables(lambda: None, None, "adam")


# ---- several processes ------------------------------------------------------------


SEVERAL = """
import json, os, sys
sys.modules["tensorflow"] = None
import keras
import numpy as np
folder, port, rank = sys.argv[1:]
alone = rank == "alone"
if not alone:
    keras.distribution.initialize(f"127.0.0.1:{port}", 2, int(rank))
from tutorlib.callbacks import LoaderCheckpoint
from tutorlib.layers import plan_tables
from tutorlib.loader import KerasSequenceLoader
from tutorlib.models import DLRM
from tutorlib.schema import Column, Schema

ids = [Column(n, "categorical", cardinality=size) for n, size in {"user": 20_000, "day": 8}.items()]
schema = Schema([*ids, Column("x", "continuous"), Column("label", "label")])
make_model = lambda: DLRM(schema, 16, [16], [16])
mesh = keras.distribution.DeviceMesh((4,), ("batch",))
plan = plan_tables(make_model, mesh, "adam", split_above="1MB")
distribution = plan.distribution(auto_shard_dataset=False)
distribution._layout_map["bottom.*/bias"] = ("batch",)  # not only tables can be split and saved
keras.distribution.set_distribution(distribution)
keras.utils.set_random_seed(0)
model = make_model()
model.compile("adam", "binary_crossentropy")
loader = KerasSequenceLoader(folder, 64 if alone else 32, schema=schema, canonical_ranks=2)
losses = []
note = lambda batch, logs: losses.append(float(logs["loss"]))
note = keras.callbacks.LambdaCallback(on_train_batch_end=note)
checkpoint = LoaderCheckpoint(f"{folder}_{'alone' if alone else 'together'}", loader)
model.fit(loader, verbose=0, callbacks=[note, checkpoint])
resumed = make_model()
resumed.compile("adam", "binary_crossentropy")
checkpoint.restore(resumed)
equal = [
    np.array_equal(a.data, b.data)
    for v, w in zip(
        [*model.variables, *model.optimizer.variables],
        [*resumed.variables, *resumed.optimizer.variables],
        strict=True,
    )
    for a, b in zip(v.value.addressable_shards, w.value.addressable_shards, strict=True)
]
print(json.dumps([losses, list(plan.check(resumed).values()), all(equal)]))
"""


@pytest.mark.slow
def test_two_processes_with_two_devices_each_train_and_save_as_one_with_four(folder):
    port = free_ports(1)[0]
    setting = "import sys; sys.argv[1:] = {!r}\n"
    programs = [
        setting.format([str(folder), str(port), rank]) + SEVERAL for rank in ("0", "1", "alone")
    ]
    environments = [on_devices(2), on_devices(2), on_devices(4)]
    first, second, alone = run_together(programs, environments)
    np.testing.assert_allclose(first[0], alone[0], atol=1e-5, rtol=0)
    assert len(alone[0]) == 50
    assert first[0] == second[0]
    assert first[1] + second[1] == alone[1]
    assert first[2]  # what was restored from the checkpoint, of which each process held a half
    assert second[2]
    assert alone[2]
