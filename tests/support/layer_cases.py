"""The table of layers: each layer with inputs in every layout, and its values by NumPy."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from tutorlib.layers import (
    MLP,
    DenseFeatures,
    DotProductInteraction,
    EmbeddingBag,
    EmbeddingTable,
    FusedEmbedding,
    LinearFeatures,
    ScalarDenseFeatures,
)
from tutorlib.schema import Column, Schema

POLICIES = ["float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float16"]
COMBINERS = ["mean", "sum", "sqrtn"]
FORMS = ["nnzs", "padded"]

LISTS = [[1, 3], [], [4, 2], [2, 2, 3, 1], [3]]  # without 0, the padding
VALUES = np.array([i for ids in LISTS for i in ids])
NNZS = np.array([len(ids) for ids in LISTS])
PADDED = np.array([ids + [0] * (5 - len(ids)) for ids in LISTS])

SCHEMA = Schema(
    [
        Column("user", "categorical", cardinality=7, embedding_dim=3),
        Column("age", "continuous", "float32"),
        Column("genres", "categorical", multi_hot=True, cardinality=5, embedding_dim=2),
        Column("film", "categorical", cardinality=9, embedding_dim=4),
        Column("place", "continuous", "float32", length=2),
        Column("label", "label", "float32"),
    ]
)
SAME_WIDTH = Schema(  # not in name order
    Column(name, "categorical", cardinality=size, embedding_dim=2)
    for name, size in {"x": 4, "b": 6, "m": 3}.items()
)
IDS = np.array([[3, 5, 2], [0, 0, 0], [1, 4, 0]])  # of SAME_WIDTH


def lists(form):
    """What a bag takes for LISTS in a form."""
    return {
        "nnzs": {"values": VALUES, "nnzs": NNZS},
        "column": {"values": VALUES[:, None], "nnzs": NNZS[:, None]},
        "narrow": {"values": VALUES.astype("uint8"), "nnzs": NNZS.astype("int16")},
        "padded": PADDED,
    }[form]


def rows(form="nnzs"):
    """Five rows of SCHEMA in any form of lists; "nnzs" is the loader's default."""
    genres = lists("column" if form == "nnzs" else form)
    if isinstance(genres, dict):
        genres = {f"genres__{part}": array for part, array in genres.items()}
    else:
        genres = {"genres": genres}
    return {
        "user": np.array([[0], [6], [3], [3], [1]]),
        "age": np.array([[0.5], [-1.0], [2.0], [0.0], [4.0]], np.float32),
        "film": np.array([[8], [0], [1], [5], [5]]),
        "place": np.arange(10, dtype=np.float32).reshape(5, 2),
        **genres,
    }


def as_columns(ids=IDS):
    return {column.name: ids[:, [k]] for k, column in enumerate(SAME_WIDTH)}


def combine(table, lists, combiner):
    """NumPy oracle of a bag: a loop over the rows."""
    out = np.zeros((len(lists), table.shape[1]))
    for row, ids in enumerate(lists):
        if ids:
            divisor = {"sum": 1, "mean": len(ids), "sqrtn": len(ids) ** 0.5}[combiner]
            out[row] = table[ids].sum(axis=0) / divisor
    return out


def array(weight):
    import keras

    return keras.ops.convert_to_numpy(keras.ops.cast(weight, "float32")).astype("float64")


def features_oracle(combiner):
    """Columns in name order, each looked up by hand."""

    def oracle(layer, inputs):
        parts, inputs = [], rows()
        for column in sorted(SCHEMA.features, key=lambda column: column.name):
            if column.role == "continuous":
                parts.append(inputs[column.name])
                continue
            table = array(layer.tables[column.name].embedding_weights)
            if column.multi_hot:
                parts.append(combine(table, LISTS, combiner))
            else:
                parts.append(table[inputs[column.name][:, 0]])
        return np.concatenate(parts, axis=1)

    return oracle


def linear_oracle(layer, inputs):
    """Weights of ids, summed over lists, and of numbers, and the bias."""
    inputs, tables = rows(), {name: array(t.embedding_weights) for name, t in layer.tables.items()}
    numbers = np.concatenate([inputs["age"], inputs["place"]], axis=1)
    total = numbers @ array(layer.numeric_kernel) + array(layer.bias)
    total = total + combine(tables["genres"], LISTS, "sum")
    return total + tables["film"][inputs["film"][:, 0]] + tables["user"][inputs["user"][:, 0]]


def stack_oracle(layer, inputs):
    """Tables of SAME_WIDTH side by side: fused ones in the given order, others in name order."""
    names = SAME_WIDTH.names if isinstance(layer, FusedEmbedding) else sorted(SAME_WIDTH.names)
    table = getattr(layer, "table", lambda name: layer.tables[name].embedding_weights)
    found = [array(table(n))[IDS[:, SAME_WIDTH.names.index(n)]] for n in names]
    stacked = getattr(layer, "aggregation", "concat") == "stack"
    return np.stack(found, axis=1) if stacked else np.hstack(found)


def interaction_oracle(layer, x):
    """One dot product at a time."""
    pairs = [(x[:, i] * x[:, j]).sum(axis=1) for i, j in itertools.combinations(range(4), 2)]
    return np.stack(pairs, axis=1)


def mlp_oracle(layer, x):
    for dense in layer.dense:
        x = x @ array(dense.kernel) + array(dense.bias)
        is_output = layer.output_units is not None and dense is layer.dense[-1]
        x = x if is_output else np.maximum(x, 0)
    return x


class Case(NamedTuple):
    """A row of the table."""

    make: Any  # (policy) -> layer
    inputs: dict  # {layout: inputs}
    oracle: Any  # (layer, inputs) -> what it gives, float64


CUBE = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
MATRIX = CUBE[:, :, 0]


def layers():
    """The table, {name: Case}."""
    bags = {form: lists(form) for form in ["nnzs", "column", "narrow", "padded"]}
    features = {form: rows(form) for form in FORMS}
    both = {"stacked": IDS, "stacked int32": IDS.astype("int32"), "columns": as_columns()}
    ids = {"ids": np.array([[1], [0], [4]])}
    cases = {
        "table": Case(
            lambda p: EmbeddingTable(5, 2, dtype=p),
            ids,
            lambda layer, x: array(layer.embedding_weights)[x],
        ),
        "linear": Case(lambda p: LinearFeatures(SCHEMA, dtype=p), features, linear_oracle),
        "interaction": Case(
            lambda p: DotProductInteraction(dtype=p), {"": CUBE}, interaction_oracle
        ),
        "mlp": Case(lambda p: MLP([4], dtype=p), {"": MATRIX}, mlp_oracle),
        "mlp output": Case(lambda p: MLP([3], 2, dtype=p), {"": MATRIX}, mlp_oracle),
    }
    for c in COMBINERS:
        cases[f"bag {c}"] = Case(
            lambda p, c=c: EmbeddingBag(5, 2, c, dtype=p),
            bags,
            lambda layer, _, c=c: combine(array(layer.embedding_weights), LISTS, c),
        )
        cases[f"dense {c}"] = Case(
            lambda p, c=c: DenseFeatures(SCHEMA, c, dtype=p), features, features_oracle(c)
        )
    for way in ("stack", "concat"):
        cases[f"fused {way}"] = Case(
            lambda p, way=way: FusedEmbedding(SAME_WIDTH, way, dtype=p), both, stack_oracle
        )
    cases["scalar"] = Case(
        lambda p: ScalarDenseFeatures(SAME_WIDTH, dtype=p), {"columns": as_columns()}, stack_oracle
    )
    return cases


def randomised(layer, inputs, seed=1):
    """The layer, built for the inputs, with weights that differ everywhere."""
    layer(inputs)
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.weights])
    return layer
