"""What the tests of serving share: raw tensors, batches, fitted layers and comparing bits."""

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tutorlib.columns import Masked, Ragged, Strings
from tutorlib.ops import (
    Categorify,
    FillMissing,
    HashBucket,
    LogOp,
    Normalize,
)
from tutorlib.schema import batch_dtype
from tutorlib.serving.export import as_string_tensor, columns_batch
from tutorlib.workflow import Workflow


def raw_tensors(layer, chunk, nullable):
    """Return the rows of a chunk as the layer's `raw_inputs` ask for them."""
    raw = {}
    for name in layer.types:
        values, key = chunk[name], name
        if isinstance(values, Ragged):
            raw[f"{name}__nnzs"] = np.diff(values.offsets)
            values, key = values.values, f"{name}__values"
        valid = np.ones(len(values), bool)
        if isinstance(values, Masked):
            values, valid = values.values, values.valid
        if not isinstance(values, Strings) and values.dtype.kind in "mM":
            values = values.view(np.int64)
        raw[key] = as_string_tensor(values) if isinstance(values, Strings) else values
        if name in nullable:
            raw[f"{name}__valid"] = valid
    return {
        name: tf.cast(tf.convert_to_tensor(raw[name]), spec.dtype)
        for name, spec in layer.raw_inputs(nullable).items()
    }


def as_batch(chunk):
    """Return a transformed chunk as a batch with multi_hot="nnzs"."""
    batch = {}
    for name, values in chunk.items():
        if isinstance(values, Ragged):
            batch[f"{name}__nnzs"] = np.diff(values.offsets).astype(np.int32)[:, None]
            name, values = f"{name}__values", values.values
        assert not isinstance(values, Masked), f"{name} is left with nulls"
        if isinstance(values, Strings):
            values = np.array([text.encode() for text in values.tolist()], object)
        batch[name] = values if values.ndim == 2 else values[:, None]
    return batch


def in_batch_dtypes(batch, schema):
    """Return a batch of numbers in the dtypes of a loader; strings and list lengths stay."""
    dtypes = {c.name: batch_dtype(c) for c in schema if c.dtype != "string"}
    return {
        name: values.astype(dtypes.get(name.removesuffix("__values"), values.dtype))
        for name, values in batch.items()
    }


def assert_same_bits(got, want):
    assert got.keys() == want.keys()
    for name, expected in want.items():
        found = got[name].numpy() if hasattr(got[name], "numpy") else got[name]
        assert found.dtype == expected.dtype, name
        assert found.shape == expected.shape, name
        if found.dtype != object:
            found, expected = (np.where(a != a, np.nan, a) for a in (found, expected))
            found, expected = (np.ascontiguousarray(a).view(np.uint8) for a in (found, expected))
        np.testing.assert_array_equal(found, expected, name)


def is_too_large(cast, values):
    if values.dtype.kind == "f":
        return bool((np.isinf(cast) & np.isfinite(values)).any())
    return values.dtype.kind == "u" and bool((cast < 0).any())


class Served:
    """A workflow fitted on `chunk`, and its layer as a graph traced once."""

    def __init__(self, workflow, chunk, nullable=(), **options):
        self.workflow, self.nullable = workflow.fit(chunk), list(nullable)
        self.layer = workflow.to_keras(**options)
        signature = [self.layer.raw_inputs(self.nullable)]
        self.graph = tf.function(self.layer, input_signature=signature, autograph=False)
        self.transform = tf.function(
            lambda raw: columns_batch(
                {n: c for n, c in self.layer.transform(raw).items() if n in self.layer.schema},
                self.layer.schema,
                "nnzs",
            ),
            input_signature=signature,
            autograph=False,
        )

    def __call__(self, chunk):
        return self.graph(raw_tensors(self.layer, chunk, self.nullable))

    def check(self, chunk):
        """Every column has the bits of the workflow, and in a batch those of the loader."""
        schema = self.layer.schema
        out = self.workflow.transform(chunk).select(schema.names)
        raw = raw_tensors(self.layer, chunk, self.nullable)
        assert_same_bits(self.transform(raw), as_batch(out))
        with np.errstate(over="ignore"):
            want = in_batch_dtypes(as_batch(out), schema)
        if any(values.dtype.kind == "f" and np.isnan(values).any() for values in want.values()):
            with pytest.raises(tf.errors.InvalidArgumentError, match="comes out with a null"):
                self.graph(raw)
        elif any(is_too_large(want[name], values) for name, values in as_batch(out).items()):
            with pytest.raises(tf.errors.InvalidArgumentError, match="is too large for"):
                self.graph(raw)
        else:
            assert_same_bits(self.graph(raw), want)


def rows_of_all_kinds(count=500, seed=0):
    generator = np.random.default_rng(seed)
    return pa.table(
        {
            "user": generator.geometric(0.1, count),
            "word": pa.array(generator.choice(["a", "bb", "Müller", None], count)),
            "tags": [generator.integers(0, 9, n).tolist() for n in generator.integers(0, 4, count)],
            "count": pa.array(generator.geometric(0.01, count), mask=generator.random(count) < 0.2),
            "price": generator.lognormal(3, 4, count),
            "label": generator.integers(0, 2, count).astype(np.float32),
        }
    )


def workflow_of_all_kinds(lists=True):
    groups = [
        ["user"] >> Categorify(),
        ["word"] >> HashBucket(50),
        ["count"] >> FillMissing(0) >> LogOp() >> Normalize(),
        ["price", "label"] >> FillMissing(0.0),
    ]
    return Workflow(*groups, *([["tags"] >> Categorify()] if lists else []))
