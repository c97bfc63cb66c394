"""The layers and models give the same on JAX and PyTorch, without TensorFlow."""

import numpy as np

from tests.support.backends import both, run
from tests.support.layer_cases import COMBINERS, LISTS, NNZS, TABLE, VALUES, combine

ORACLES = f"""
from tutorlib.layers import *
TABLE = np.array({TABLE.tolist()}, "float32")
values, nnzs = np.array({VALUES.tolist()}), np.array({NNZS.tolist()})
outputs = {{}}
for combiner in {COMBINERS}:
    bag = EmbeddingBag(5, 2, combiner)
    bag.build()
    bag.set_weights([TABLE])
    outputs[combiner] = numpy(bag({{"values": values, "nnzs": nnzs}})).tolist()
    scores = np.arange(1, 8, dtype="float32")
    outputs[combiner + " weighted"] = numpy(
        bag({{"values": values, "nnzs": nnzs, "weights": scores}})
    ).tolist()
fused = FusedEmbedding([*ids, Column("e", "categorical", cardinality=3, embedding_dim=2)], "concat")
stacked = np.array([[1, 8, 2], [0, 0, 0]])
out = numpy(fused(stacked))
views = [numpy(fused.table(name))[stacked[:, k]] for k, name in enumerate("cde")]
outputs["fused"] = bool((out == np.concatenate(views, axis=1)).all())
cube = np.random.default_rng(0).normal(size=(3, 4, 2)).astype("float32")
pairs = numpy(DotProductInteraction(pad_to=16)(cube))
apart = pairs.sum(axis=1) - numpy(FactorizationMachine()(cube))[:, 0]
outputs["pairs"] = [pairs.shape[1], float(abs(apart).max())]
outputs["cross"] = list(Cross(2, 1)(cube[:, 0]).shape)
print(json.dumps(outputs))
"""


@both
def test_the_layers_give_the_same_on_other_backends(backend, tmp_path):
    got = run(backend, str(tmp_path), ORACLES)
    scores = np.arange(1, 8, dtype=np.float32)
    for combiner in COMBINERS:
        expected = combine(TABLE, LISTS, combiner)
        np.testing.assert_allclose(got[combiner], expected, rtol=1e-5)
        expected = combine(TABLE, LISTS, combiner, scores)
        np.testing.assert_allclose(got[f"{combiner} weighted"], expected, rtol=1e-5)
    assert got["fused"]
    assert got["pairs"][0] == 16
    assert got["pairs"][1] < 1e-4
    assert got["cross"] == [3, 2]


TRAINING = """
from tutorlib.models import *
losses = {}
rng = np.random.default_rng(0)
x = {"c": rng.integers(0, 9, (256, 1)), "d": rng.integers(0, 9, (256, 1))}
x["x"] = rng.normal(size=(256, 1)).astype("float32")
y = (x["c"] % 2 + x["x"] > 0.5).astype("float32")
sizes = {DLRM: (4, [8], [8]), WideAndDeep: ([8],), DeepFM: (4, [8]), DCNv2: (2, [8])}
for make, units in sizes.items():
    keras.utils.set_random_seed(0)
    model = make(scalars, *units)
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    history = model.fit(x, y, batch_size=64, epochs=6, verbose=0).history["loss"]
    losses[make.__name__] = [history[0], history[-1]]
print(json.dumps(losses))
"""


@both
def test_the_models_learn_on_other_backends(backend, tmp_path):
    for name, (first, last) in run(backend, str(tmp_path), TRAINING).items():
        assert last < 0.7 * first, name
