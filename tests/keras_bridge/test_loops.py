"""The loops of docs/scale_out.md for TensorFlow and PyTorch: two processes train as one does."""

import importlib.util
import json

import numpy as np
import pytest

from tests.support.documents import code_below
from tests.support.processes import free_ports, run_together
from tutorlib.schema import Column, Schema

PAGE = "docs/scale_out.md"
ROWS = 51_111  # 50 batches for each of two ranks, the last one of 467 or 468 rows
FILES = {"row_group_rows": 3000}
SCHEMA = Schema(
    [
        Column("C1", "categorical", cardinality=500),
        Column("C2", "categorical", cardinality=9),
        Column("x", "continuous"),  # says which row it is
        Column("label", "label"),
    ]
)

# What the programs of the page take for the loader: one that notes the rows that it gives, and one
# with the batches of both ranks, one after the other.
NOTED = """
import json, os, sys
import keras
import numpy as np
import tutorlib

noted = []

class Noted(tutorlib.KerasSequenceLoader):
    def __iter__(self):
        for inputs, labels in super().__iter__():
            noted.append(inputs["x"].numpy()[:, 0].tolist())
            yield inputs, labels

tutorlib.KerasSequenceLoader = Noted
"""
BOTH = """
class Both(Noted):
    def __init__(self, *args, batch_size, global_rank, global_size):
        super().__init__(*args, batch_size=batch_size, global_rank=0, global_size=2)
        self.other = Noted(*args, batch_size=batch_size, global_rank=1, global_size=2)

    def __iter__(self):
        join = lambda *parts: keras.ops.concatenate(parts)
        for (inputs, labels), (x, y) in zip(super().__iter__(), self.other, strict=True):
            yield {name: join(inputs[name], x[name]) for name in inputs}, join(labels, y)

tutorlib.KerasSequenceLoader = Both
"""


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    c1, x = rng.integers(0, 500, ROWS), rng.permutation(ROWS) / ROWS
    label = rng.random(ROWS) < 0.2 + 0.6 * x * (c1 % 2)
    return {"C1": c1, "C2": c1 % 9, "x": x.astype("float32"), "label": label.astype("float32")}


@pytest.fixture(scope="module")
def parent(folder):
    """The folder in which the programs find `train`."""
    (folder / "_schema.json").write_text(SCHEMA.to_json())
    return folder.parent


def check(first, second, alone):
    assert len(first["rows"]) == len(second["rows"]) == len(first["losses"]) == 50
    rows = [x for rank in (first, second) for batch in rank["rows"] for x in batch]
    assert len(rows) == len(set(rows)) == ROWS
    assert first["losses"] == second["losses"]
    assert first["weights"] == second["weights"]
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(first["weights"], alone["weights"], rtol=1e-3, atol=1e-3)
    assert first["losses"][-1] < first["losses"][0] - 0.02


RESULT_OF_TENSORFLOW = """
weights = [w.numpy().sum().item() for w in model.trainable_variables]
with strategy.scope():
    model.compile("sgd", "binary_crossentropy")
try:
    model.fit(loader, verbose=0)
except AttributeError as error:
    refused = str(error)
print(json.dumps({"losses": losses, "rows": noted, "weights": weights, "refused": refused}))
"""


@pytest.mark.slow
def test_under_multi_worker_mirrored_strategy(parent):
    """Equal steps, each row once, the same loss; `fit`, which cannot, names the page."""
    ports = free_ports(3)
    environments = []
    for workers, index in ((ports[:2], 0), (ports[:2], 1), (ports[2:], 0)):
        cluster = {"worker": [f"127.0.0.1:{port}" for port in workers]}
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        environments.append({"KERAS_BACKEND": "tensorflow", "TF_CONFIG": json.dumps(config)})
    loop = code_below(PAGE, "TensorFlow: a loop of your own") + RESULT_OF_TENSORFLOW
    programs = [NOTED + loop, NOTED + loop, NOTED + BOTH + loop]
    results = run_together(programs, environments, cwd=parent)
    check(*results)
    assert PAGE in results[0]["refused"]


RESULT_OF_TORCH = """
weights = [w.detach().numpy().sum().item() for w in model.parameters()]
with open(f"{world_size}_{rank}.json", "w") as file:
    json.dump({"losses": losses, "rows": noted, "weights": weights}, file)
torch.distributed.destroy_process_group()
"""
TORCHRUN = """
import runpy, sys
sys.argv = ["torchrun", "--standalone", "--nproc-per-node={}", "{}"]
runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
print("null")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_under_distributed_data_parallel(parent):
    """Equal steps, each row once, the same loss."""
    loop = code_below(PAGE, "PyTorch") + RESULT_OF_TORCH
    (parent / "two.py").write_text(NOTED + loop)
    (parent / "one.py").write_text(NOTED + BOTH + loop)
    programs = [TORCHRUN.format(2, "two.py"), TORCHRUN.format(1, "one.py")]
    run_together(programs, [{"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}] * 2, cwd=parent)
    check(
        *(json.loads((parent / name).read_text()) for name in ("2_0.json", "2_1.json", "1_0.json"))
    )
