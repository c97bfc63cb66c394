"""Every op in a graph gives what its transform gives, to the last bit, and so does each hash."""

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ops.cases import CASES, chunk, table
from tests.support.ops_served import Served
from tests.support.oracles import hash_text, mix
from tutorlib.columns import Chunk
from tutorlib.hashing import hash_integers, to_buckets
from tutorlib.ops import Clip, FillMissing, LogOp, Normalize
from tutorlib.serving import export as hashing_tf
from tutorlib.workflow import Workflow

SMALLEST = 2.0**-126  # nearer to zero, TensorFlow takes a number for zero
TEXTS = ["a", "bc", "", "Müller", "東京", "x" * 64, "new", "Toy Story (1995)", "film 3"]


def strange_rows(seed, count=500):
    """The columns of the table of ops, with values that were not learned and limits of dtypes."""
    random = np.random.default_rng(seed)

    def flat(kind, size):
        if pa.types.is_string(kind):
            return pa.array(random.choice(TEXTS, size))
        if pa.types.is_boolean(kind):
            return pa.array(random.random(size) < 0.5)
        dtype = np.dtype(kind.to_pandas_dtype())
        values = np.frombuffer(random.bytes(size * dtype.itemsize), dtype).copy()
        if dtype.kind == "f":
            values[~(np.abs(values) >= SMALLEST)] = 0
            few = [0.0, -0.0, 1.0, -1.0, 3.0, np.inf, -np.inf, np.nan]
        else:
            few = [0, 1, 3, 5, 8, np.iinfo(dtype).min, np.iinfo(dtype).max]
        often = random.choice(np.array(few, dtype), size)
        return pa.array(np.where(random.random(size) < 0.7, often, values), kind)

    columns = {}
    for field, column in zip(table().schema, table(), strict=True):
        kind = field.type
        if pa.types.is_fixed_size_list(kind):
            values = pa.FixedSizeListArray.from_arrays(flat(kind.value_type, 3 * count), 3)
        elif pa.types.is_list(kind):
            offsets = np.cumsum([0, *random.integers(0, 5, count)])
            values = pa.ListArray.from_arrays(
                offsets.astype(np.int32), flat(kind.value_type, offsets[-1])
            )
        else:
            values = flat(kind, count)
            if column.null_count:
                values = pa.array(values.to_pylist(), kind, mask=random.random(count) < 0.2)
        columns[field.name] = values
    return Chunk.from_arrow(pa.table(columns))


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.served])
def test_the_layer_equals_transform_to_the_last_bit(name):
    workflow = Workflow(CASES[name].group())
    nullable = [name for name in workflow.input_names if table()[name].null_count]
    served = Served(workflow, chunk(), nullable)
    served.check(chunk())
    served.check(chunk().slice(0, 0))
    for seed in range(3):
        served.check(strange_rows(seed))


def test_numbers_next_to_zero_count_as_zero():
    served = Served(Workflow(["x"] >> Normalize()), Chunk({"x": np.array([-1.0, 1.0], "float32")}))
    tiny = np.array([SMALLEST / 2, -SMALLEST / 2, SMALLEST], np.float32)
    out = served(Chunk({"x": tiny}))["x"].numpy()[:, 0]
    np.testing.assert_array_equal(out, [0, 0, SMALLEST])


# --- hashes

FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


integers = st.one_of(st.integers(-3, 12), st.integers(-(2**63), 2**63 - 1))


texts = st.one_of(st.sampled_from(["a", "b", "", "Müller", "東京", "x" * 64]), st.text(max_size=90))


@FEW
@given(st.lists(texts), st.lists(integers), st.integers(1, 2**31 - 1))
def test_the_graph_hashes_as_the_definition_says(words, values, num_buckets):
    hashes = hashing_tf.hash_strings(tf.constant(words, tf.string, [len(words)]))
    assert hashes.numpy().tolist() == [hash_text(word) for word in words]
    values = np.array(values, np.int64)
    hashes = hashing_tf.hash_integers(tf.constant(values))
    assert hashes.numpy().tolist() == [mix(int(v) % 2**64) for v in values]
    want = to_buckets(hash_integers(values), num_buckets)
    assert np.array_equal(hashing_tf.to_buckets(hashes, num_buckets), want)


def test_texts_that_end_before_at_and_after_each_doubling_among_many_short_ones():
    lengths = [0, *(2**k + d for k in range(3, 15) for d in (-1, 0, 1))]
    words = [*("x" * n for n in lengths), *["short"] * 10_000]
    hashes = tf.function(hashing_tf.hash_strings)(tf.constant(words)).numpy().tolist()
    assert hashes[: len(lengths) + 1] == [hash_text(word) for word in words[: len(lengths) + 1]]
    assert set(hashes[len(lengths) :]) == {hash_text("short")}


@pytest.mark.parametrize("op", [FillMissing(0), Clip(0), LogOp()])
def test_an_op_of_numbers_refuses_times_as_it_does_offline(op):
    days = Chunk({"t": np.arange(3).astype("datetime64[D]")})
    fitted = Workflow(["t"] >> op).fit(days)
    for call in (lambda: fitted.transform(days), lambda: fitted.to_keras()({"t": np.arange(3)})):
        with pytest.raises((TypeError, ValueError), match=r"'t': .* datetime64\[D\]"):
            call()
