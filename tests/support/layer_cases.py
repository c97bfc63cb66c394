"""What the tests of the layers share: a schema, its batches, oracles, and each layer once."""

import numpy as np
import tensorflow as tf

from tutorlib.layers import (
    CIN,
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
TABLE = np.arange(1, 11, dtype=np.float32).reshape(5, 2)  # row i is (2 i + 1, 2 i + 2)
LISTS = [[1, 3], [], [4], [2, 2, 0, 1]]
VALUES = np.array([i for ids in LISTS for i in ids])
NNZS = np.array([len(ids) for ids in LISTS])
OFFSETS = np.array([0, 2, 2, 3, 7])
SCHEMA = Schema(
    [
        Column("user", "categorical", cardinality=7, embedding_dim=3),
        Column("age", "continuous", "float32"),
        Column("genres", "categorical", multi_hot=True, cardinality=5, embedding_dim=2),
        Column("film", "categorical", cardinality=9, embedding_dim=4),
        Column("label", "label", "float32"),
    ]
)


def batch():
    """Four rows of SCHEMA in the loader's default form."""
    return {
        "user": np.array([[0], [6], [3], [3]]),
        "age": np.array([[0.5], [-1.0], [2.0], [0.0]], np.float32),
        "film": np.array([[8], [0], [1], [5]]),
        "genres__values": VALUES[:, None],
        "genres__nnzs": NNZS[:, None],
    }


def combine(table, lists, combiner):
    """NumPy oracle of a bag: a Python loop over the rows."""
    out = np.zeros((len(lists), table.shape[1]), np.float64)
    for row, ids in enumerate(lists):
        for i in ids:
            out[row] += table[i]
        if ids:
            out[row] /= {"sum": 1, "mean": len(ids), "sqrtn": len(ids) ** 0.5}[combiner]
    return out


def bag_forms():
    padded = np.zeros((4, 4), np.int64)
    lists = [[i for i in ids if i] for ids in LISTS]  # id 0 is padding there
    for row, ids in enumerate(lists):
        padded[row, : len(ids)] = ids
    return {
        "nnzs": ({"values": VALUES, "nnzs": NNZS}, LISTS),
        "nnzs_column": ({"values": VALUES[:, None], "nnzs": NNZS[:, None]}, LISTS),
        "offsets": ({"values": VALUES, "offsets": OFFSETS}, LISTS),
        "surplus_values": ({"values": np.append(VALUES, [4, 4]), "nnzs": NNZS}, LISTS),
        "ragged": (tf.ragged.constant(LISTS, dtype=tf.int64), LISTS),
        "padded": (padded, lists),
    }


def built_bag(combiner="mean", **kwargs):
    bag = EmbeddingBag(5, 2, combiner=combiner, name="bag", **kwargs)
    bag.build()
    bag.set_weights([TABLE])
    return bag


WEIGHTED = Schema(
    [*SCHEMA, Column("scores", "continuous", "float32", multi_hot=True)]  # of the genres
)
SCORES = np.array([0.5, 2, 1.5, 3, 1, 0.25, 0.75], np.float32)


def weighted_batch():
    return batch() | {"scores__values": SCORES[:, None], "scores__nnzs": NNZS[:, None]}


def combine_weighted(table, lists, weights, combiner):
    """NumPy oracle of a weighted bag."""
    out, start = np.zeros((len(lists), table.shape[1])), 0
    for row, ids in enumerate(lists):
        w = weights[start : start + len(ids)].astype(np.float64)
        start += len(ids)
        size = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum())}[combiner]
        if ids:
            out[row] = (w[:, None] * table[ids]).sum(axis=0) / size
    return out


def finite_differences(function, x, step=1e-6):
    """The gradient of a function that gives one number, cell by cell, in float64."""
    gradient = np.zeros(x.size)
    for cell in range(x.size):
        moved = np.zeros(x.size)
        moved[cell] = step
        moved = moved.reshape(x.shape)
        gradient[cell] = float(function(x + moved) - function(x - moved)) / (2 * step)
    return gradient.reshape(x.shape)


def fused_columns():
    sizes = {"x": 4, "b": 6, "m": 3}  # not in name order
    return [Column(n, "categorical", cardinality=c, embedding_dim=2) for n, c in sizes.items()]


def every_layer(policy="float32"):
    """(layer, input) of each layer and option."""
    scalar = Schema(c for c in SCHEMA if not c.multi_hot)
    same = fused_columns()
    columns = {c.name: np.zeros((4, 1), np.int64) for c in same}
    cube = np.ones((4, 3, 2), np.float32)
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
            DenseFeatures(WEIGHTED, "mean", weights={"genres": "scores"}, dtype=policy),
            weighted_batch(),
        ),
        "combiners": (DenseFeatures(SCHEMA, {"genres": "sum"}, dtype=policy), batch()),
        "linear_weighted": (
            LinearFeatures(WEIGHTED, weights={"genres": "scores"}, dtype=policy),
            weighted_batch(),
        ),
        "cin": (CIN([3, 2], "relu", dtype=policy), cube),
        "cross": (Cross(2, dtype=policy), np.ones((4, 3), np.float32)),
        "cross_low_rank": (Cross(2, 2, dtype=policy), np.ones((4, 3), np.float32)),
        "pairs": (FactorizationMachine(dtype=policy), cube),
        "numbers": (NumberEmbedding(2, dtype=policy), np.ones((4, 3), np.float32)),
        "padded": (DotProductInteraction(None, True, 16, dtype=policy), cube),
        "mlp": (MLP([4], dtype=policy), np.ones((4, 3), np.float32)),
        "mlp_output": (MLP([], 2, "gelu", "tanh", dtype=policy), np.ones((4, 3), np.float32)),
    }
    for kind in (None, "field_all", "field_each", "field_interaction"):
        for itself in (False, True):
            layer = DotProductInteraction(kind, itself, dtype=policy)
            cases[f"interaction_{kind}_{itself}"] = (layer, cube)
    return cases
