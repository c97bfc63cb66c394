"""What the tests of the layers share: a schema, its batches in every form, oracles, each layer."""

import keras
import numpy as np
import tensorflow as tf

from tutorlib.layers import (
    MLP,
    Cross,
    DenseFeatures,
    DotProductInteraction,
    EmbeddingBag,
    EmbeddingTable,
    FactorizationMachine,
    FusedEmbedding,
    LinearFeatures,
    NumberEmbedding,
    ScalarDenseFeatures,
)
from tutorlib.schema import Column, Schema

MIXED_POLICIES = ["float32", "mixed_bfloat16", "mixed_float16"]
POLICIES = [*MIXED_POLICIES, "bfloat16", "float16"]
COMBINERS = ["mean", "sum", "sqrtn"]
FORMS = ["nnzs", "offsets", "ragged", "padded"]

TABLE = np.arange(1, 11, dtype=np.float32).reshape(5, 2)  # row i is (2 i + 1, 2 i + 2)
LISTS = [[1, 3], [], [4], [2, 2, 0, 1]]
VALUES = np.array([i for ids in LISTS for i in ids])
NNZS = np.array([len(ids) for ids in LISTS])
OFFSETS = np.array([0, 2, 2, 3, 7])
SCORES = np.array([0.5, 2, 1.5, 3, 1, 0.25, 0.75], np.float32)  # weights of VALUES
# Id 0 is padding there, so the one 0 of LISTS is no value.
PADDED = np.array([[1, 3, 0, 0], [0, 0, 0, 0], [4, 0, 0, 0], [2, 2, 1, 0]])
PADDED_LISTS = [[i for i in ids if i] for ids in LISTS]
PADDED_SCORES = np.zeros((4, 4), np.float32)
PADDED_SCORES[PADDED != 0] = SCORES[VALUES != 0]
RAGGED = tf.ragged.constant(LISTS, dtype=tf.int64)

SCHEMA = Schema(
    [
        Column("user", "categorical", cardinality=7, embedding_dim=3),
        Column("age", "continuous", "float32"),
        Column("genres", "categorical", multi_hot=True, cardinality=5, embedding_dim=2),
        Column("film", "categorical", cardinality=9, embedding_dim=4),
        Column("label", "label", "float32"),
    ]
)
WEIGHTED = Schema(
    [*SCHEMA, Column("scores", "continuous", "float32", multi_hot=True)]  # of the genres
)


def batch(form="nnzs"):
    """Four rows of SCHEMA in any form of lists; "nnzs" is the loader's default."""
    genres = {
        "nnzs": {"genres__values": VALUES[:, None], "genres__nnzs": NNZS[:, None]},
        "offsets": {"genres__values": VALUES, "genres__offsets": OFFSETS},
        "ragged": {"genres": RAGGED},
        "padded": {"genres": PADDED},
    }[form]
    return {
        "user": np.array([[0], [6], [3], [3]]),
        "age": np.array([[0.5], [-1.0], [2.0], [0.0]], np.float32),
        "film": np.array([[8], [0], [1], [5]]),
        **genres,
    }


def weighted_batch(form="nnzs"):
    """Four rows of WEIGHTED in any form of lists."""
    scores = {
        "nnzs": {"scores__values": SCORES[:, None], "scores__nnzs": NNZS[:, None]},
        "offsets": {"scores__values": SCORES, "scores__offsets": OFFSETS},
        "ragged": {"scores": RAGGED.with_values(SCORES)},
        "padded": {"scores": PADDED_SCORES},
    }[form]
    return batch(form) | scores


def as_tensors(inputs):
    """The arrays of a batch as tensors; ragged tensors stay as they are."""
    return {k: x if isinstance(x, tf.RaggedTensor) else tf.constant(x) for k, x in inputs.items()}


def lists_and_scores(form):
    """The values of each row, and their weights, as they are in a form."""
    return (PADDED_LISTS, SCORES[VALUES != 0]) if form == "padded" else (LISTS, SCORES)


def combine(table, lists, combiner, weights=None):
    """NumPy oracle of a bag: a loop over the rows, with the weights of all values in order."""
    out, start = np.zeros((len(lists), table.shape[1])), 0
    for row, ids in enumerate(lists):
        w = np.ones(len(ids)) if weights is None else weights[start : start + len(ids)]
        w = w.astype(np.float64)
        start += len(ids)
        if ids:
            divisor = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum())}[combiner]
            out[row] = (w[:, None] * table[ids]).sum(axis=0) / divisor
    return out


def built_bag(combiner="mean", **kwargs):
    bag = EmbeddingBag(5, 2, combiner=combiner, name="bag", **kwargs)
    bag.build()
    bag.set_weights([TABLE])
    return bag


def reloaded(model, folder):
    """The model after a round trip through a `.keras` file."""
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def finite_differences(function, x, step=1e-6):
    """The gradient of a function that gives one number, cell by cell, in float64."""
    gradient = np.zeros(x.size)
    for cell in range(x.size):
        moved = np.zeros(x.size)
        moved[cell] = step
        moved = moved.reshape(x.shape)
        gradient[cell] = float(function(x + moved) - function(x - moved)) / (2 * step)
    return gradient.reshape(x.shape)


def check_gradient(layer, x):
    """Compare the gradient of a layer's input with finite differences, without XLA and with it."""

    def output(inputs):
        return tf.reduce_sum(tf.sin(layer(inputs)))

    if not layer.built:
        layer.build(x.shape)
    expected = finite_differences(tf.function(output), x)
    for jit in (False, True):
        tensor = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            loss = tf.function(output, jit_compile=jit)(tensor)
        got = tape.gradient(loss, tensor)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-8)


def fused_columns():
    sizes = {"x": 4, "b": 6, "m": 3}  # not in name order
    return [Column(n, "categorical", cardinality=c, embedding_dim=2) for n, c in sizes.items()]


def every_layer(policy="float32"):
    """{case: (layer, input)}: each layer, and each option that changes its output."""
    scalar = Schema(c for c in SCHEMA if not c.multi_hot)
    same = fused_columns()
    columns = {c.name: np.zeros((4, 1), np.int64) for c in same}
    cube, matrix = np.ones((4, 3, 2), np.float32), np.ones((4, 3), np.float32)
    weights = {"genres": "scores"}
    cases = {
        "table": (EmbeddingTable(5, 2, dtype=policy), np.array([[1], [2]])),
        "bag": (EmbeddingBag(5, 2, "sum", dtype=policy), {"values": VALUES, "nnzs": NNZS}),
        "bag_offsets": (EmbeddingBag(5, 2, dtype=policy), {"values": VALUES, "offsets": OFFSETS}),
        "dense": (DenseFeatures(SCHEMA, "sqrtn", dtype=policy), batch()),
        "scalar": (ScalarDenseFeatures(scalar, dtype=policy), batch()),
        "scalar_stack": (ScalarDenseFeatures(same, "stack", dtype=policy), columns),
        "linear": (LinearFeatures(SCHEMA, dtype=policy), batch()),
        "fused": (FusedEmbedding(same, dtype=policy), columns),
        "fused_stacked": (FusedEmbedding(same, dtype=policy), np.zeros((4, 3), np.int32)),
        "fused_widths": (
            FusedEmbedding(scalar, "concat", "ones", dtype=policy),
            np.array([[1, 2], [6, 8], [0, 0], [3, 1]]),
        ),
        "weighted": (
            DenseFeatures(WEIGHTED, "mean", weights=weights, dtype=policy),
            weighted_batch(),
        ),
        "combiners": (DenseFeatures(SCHEMA, {"genres": "sum"}, dtype=policy), batch()),
        "linear_weighted": (
            LinearFeatures(WEIGHTED, weights=weights, dtype=policy),
            weighted_batch(),
        ),
        "cross": (Cross(2, dtype=policy), matrix),
        "cross_low_rank": (Cross(2, 2, dtype=policy), matrix),
        "pairs": (FactorizationMachine(dtype=policy), cube),
        "numbers": (NumberEmbedding(2, dtype=policy), matrix),
        "padded": (DotProductInteraction(None, True, 16, dtype=policy), cube),
        "mlp": (MLP([4], dtype=policy), matrix),
        "mlp_output": (MLP([], 2, "gelu", "tanh", dtype=policy), matrix),
    }
    for kind in (None, "field_all", "field_each", "field_interaction"):
        for itself in (False, True):
            layer = DotProductInteraction(kind, itself, dtype=policy)
            cases[f"interaction_{kind}_{itself}"] = (layer, cube)
    return cases
