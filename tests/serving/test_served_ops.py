"""Every op in a graph gives what its transform gives, to the last bit."""

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.ops import column
from tests.support.ops_served import Served
from tutorlib.columns import Chunk
from tutorlib.ops import (
    Bucketize,
    Categorify,
    Clip,
    DateParts,
    FillMedian,
    FillMissing,
    HashBucket,
    JoinExternal,
    LambdaOp,
    ListSlice,
    LogOp,
    Normalize,
    NormalizeMinMax,
    Rename,
    TargetEncoding,
)
from tutorlib.ops.lists_dates import SIZES
from tutorlib.serving.base import round_to
from tutorlib.workflow import Workflow

FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


SMALLEST = 2.0**-126  # nearer to zero, TensorFlow takes a number for zero


integers = st.one_of(st.integers(-3, 12), st.integers(-(2**63), 2**63 - 1))


small_integers = st.integers(-128, 127)


unsigned = st.integers(0, 2**64 - 1)


texts = st.one_of(st.sampled_from(["a", "b", "", "Müller", "東京", "x" * 64]), st.text(max_size=90))


numbers = st.floats(width=32, allow_subnormal=False)


wide_numbers = st.one_of(
    st.floats(allow_subnormal=False).filter(lambda x: not 0 < abs(x) < SMALLEST),
    st.sampled_from([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan]),
)


from_zero = st.one_of(st.floats(0, 1e6, width=32, allow_subnormal=False), st.integers(0, 2**52))


LEARNED = Chunk(
    {
        "n": column([3, 3, 3, -1, 2**63 - 1, None, -(2**63)], pa.int64()),
        "u": column([3, 3, 3, 1, 2**63 - 1, None, 0], pa.uint64()),
        "i": column([3, 3, 3, -1, 127, None, -128], pa.int8()),
        "t": column(["a", "a", "Müller", "x" * 64, "", None, "b"], pa.string()),
        "x": column([1.5, -2.0, 0.0, None, 1e3, 7.0, 7.0], pa.float32()),
        "y": column([1.5, -2.0, 0.0, None, 1e9, 7.0, 7.0], pa.float64()),
        "h": column([1.5, -2.0, 0.0, None, 6e4, 7.0, 7.0], pa.float16()),
        "p": column([0.0, 1.5, 0.0, None, 1e6, 7.0, 7.0], pa.float64()),
        "b": column([True, False, None, True, True, True, True], pa.bool_()),
        "f": column([0, 1, 2, 3, 4, 5, 6], pa.int64()),
        "ns": column([[3, None], [], [5, 3], [3], [], [], None], pa.list_(pa.int32())),
        "ts": column([["a", None], [], ["b"], ["a"], [], [], None], pa.list_(pa.string())),
        "xs": column([[0.5, None], [], [2.5], [1.0], [], [], None], pa.list_(pa.float32())),
    }
)


STRATEGIES = {
    "n": (integers, pa.int64()),
    "u": (unsigned, pa.uint64()),
    "i": (small_integers, pa.int8()),
    "t": (texts, pa.string()),
    "x": (numbers, pa.float32()),
    "y": (wide_numbers, pa.float64()),
    "h": (st.floats(width=16), pa.float16()),
    "p": (from_zero, pa.float64()),
    "b": (st.booleans(), pa.bool_()),
    "ns": (st.lists(st.one_of(st.none(), small_integers)), pa.list_(pa.int32())),
    "ts": (st.lists(st.one_of(st.none(), texts), max_size=4), pa.list_(pa.string())),
    "xs": (st.lists(st.one_of(st.none(), numbers)), pa.list_(pa.float32())),
}


KEYS = ["n", "u", "i", "t", "b", "ns", "ts"]


INTEGERS = ["n", "u", "i", "ns"]


NUMBERS = ["n", "i", "x", "y", "h", "xs"]


TABLE = pa.table(
    {
        "key": pa.array([3, -1, 2**63 - 1], pa.int64()),
        "text": ["a", None, "東京"],
        "number": pa.array([1, None, 2**62], pa.int64()),
        "price": [0.5, None, -0.0],
        "words": pa.array([["a", "b"], None, ["b", None]], pa.list_(pa.string())),
        "sizes": pa.array([[1.5], [], [2.5, None]], pa.list_(pa.float32())),
    }
)


JOIN = ["n"] >> Rename({"n": "key"}) >> JoinExternal(TABLE, on="key")


def doubled(values):
    return values * 2


def joined_to_itself(values):
    return [2 * text.as_py() for text in values]


PARTS = [*SIZES, "year", "age_days", "age_seconds", "total_days", "total_seconds"]
FUNCTIONS = {
    "doubled": lambda values: values * 2,
    "joined_to_itself": lambda values: tf.strings.join([values, values]),
}


WORKFLOWS = {
    "HashBucket": [KEYS >> HashBucket(1000)],
    "HashedCross": [["n", "t", "b"] >> HashedCross(2**31 - 1), ["u", "i"] >> HashedCross(7, "c")],
    "Categorify": [KEYS >> Categorify()],
    "Categorify, frequent": [KEYS >> Categorify(freq_threshold=2)],
    "Categorify, small": [["n", "t"] >> Categorify(max_size=4)],
    "Categorify, buckets": [KEYS >> Categorify(num_oov_buckets=5)],
    "Categorify, given": [["n", "t"] >> Categorify(vocabularies={"n": [9, 3], "t": ["b", ""]})],
    "Categorify, nothing": [["n", "t"] >> Categorify(freq_threshold=99)],
    "Categorify, joint": [["n", "i", "ns"] >> Categorify(joint=True)],
    "Categorify, combined": [["n", "t", "b"] >> Categorify(combo=True)],
    "Categorify, combined, buckets": [
        ["n", "t"] >> Categorify(combo=True, num_oov_buckets=3, freq_threshold=2, name="both")
    ],
    "JoinGroupby": [KEYS >> JoinGroupby(["p", "x"], ["count", "sum", "mean", "std", "min"])],
    "JoinGroupby, combined": [["n", "t"] >> JoinGroupby(combo=True, dtype="float64")],
    "TargetEncoding": [KEYS >> TargetEncoding("p", "f", folds=2, prior=0.5)],
    "TargetEncoding, combined": [
        ["n", "t"] >> TargetEncoding(["p", "y"], None, combo=True, name="both", dtype="float16")
    ],
    "ListSlice": [["ns", "xs"] >> FillMissing(0) >> ListSlice(1, 3)],
    "ListSlice, from the end": [["ts"] >> ListSlice(-2) >> Categorify()],
    "ListSlice, but the last": [["xs"] >> ListSlice(0, -1)],
    "ListSlice, filled": [["ns", "xs"] >> ListSlice(0, 2, True, 7) >> FillMissing(1)],
    "ListSlice, filled, texts": [["ts"] >> ListSlice(-3, -1, True, "é") >> HashBucket(99)],
    "Bucketize": [[*NUMBERS, "u"] >> Bucketize([-2.0, 0.0, 1.5, 1e30])],
    "Bucketize, large": [[*NUMBERS, "u"] >> Bucketize([-(2**63), 2**53 + 1, 2**63 + 1])],
    "Bucketize, beyond": [[*NUMBERS, "u"] >> Bucketize([2**70])],
    "Normalize": [NUMBERS >> Normalize()],
    "Normalize, constant": [["p"] >> Clip(2.0, 2.0) >> FillMissing(2.0) >> Normalize()],
    "Normalize, float64": [NUMBERS >> Normalize("float64")],
    "Normalize, float16": [NUMBERS >> Normalize("float16")],
    "NormalizeMinMax": [NUMBERS >> NormalizeMinMax()],
    "LogOp": [["p"] >> LogOp()],
    "LogOp, integers": [INTEGERS >> FillMissing(0) >> Clip(min_value=0) >> LogOp()],
    "LogOp, float16": [["p"] >> LogOp("float16")],
    "FillMissing": [[*INTEGERS, "x", "y", "h", "b", "xs"] >> FillMissing(1)],
    "FillMedian": [[*INTEGERS, "x", "y", "h", "xs"] >> FillMedian()],
    "FillMedian, indicators": [["n", "x"] >> FillMedian(add_binary_cols=True)],
    "FillMissing, text": [["t", "ts"] >> FillMissing("nothing")],
    "FillMissing, indicators": [["n", "x"] >> FillMissing(1, add_binary_cols=True)],
    "Clip": [[*INTEGERS, "x", "y", "h", "xs"] >> FillMissing(0) >> Clip(0, 5)],
    "Clip, from below": [[*INTEGERS, "x", "y", "h", "xs"] >> FillMissing(0) >> Clip(min_value=-1)],
    "Clip, from above": [[*INTEGERS, "x", "y", "h", "xs"] >> FillMissing(0) >> Clip(max_value=0)],
    "Clip, nulls": [["x", "y", "h", "xs"] >> Clip(-1, 300)],
    "DateParts": [INTEGERS >> DateParts(PARTS, "2024-02-29T10:11:12.5", unit="ms")],
    "JoinExternal, texts": [JOIN[["text", "words"]] >> Categorify()],
    "JoinExternal, numbers": [JOIN[["number"]] >> FillMissing(5), JOIN[["price", "sizes"]]],
    "LambdaOp": [["x", "n"] >> LambdaOp(doubled)],
    "LambdaOp, texts": [["t"] >> LambdaOp(joined_to_itself, "string") >> HashBucket(1000)],
    "a chain": [["n"] >> FillMissing(0) >> Clip(min_value=0) >> LogOp() >> Normalize()],
    "as they are": [["x", "y", "xs"]],
}


served_once = {}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("name", WORKFLOWS)
@FEW
@given(st.data())
def test_the_layer_equals_transform_to_the_last_bit(name, data):
    if name not in served_once:
        workflow = Workflow(*WORKFLOWS[name])
        nullable = [n for n in workflow.input_names if n not in ("x", "xs", "f")]
        served_once[name] = Served(workflow, LEARNED, nullable, functions=FUNCTIONS)
    served = served_once[name]
    count = data.draw(st.integers(0, 20))
    rows = {}
    for column_name in served.workflow.input_names:
        strategy, kind = STRATEGIES[column_name]
        values = st.lists(st.one_of(st.none(), strategy), min_size=count, max_size=count)
        rows[column_name] = column(data.draw(values), kind)
    served.check(Chunk(rows), signs_of_zero=not name.startswith("Clip"))


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_the_layer_equals_transform_on_many_numbers():
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2**32, 300_000, dtype=np.uint32).view(np.float32)
    bits = bits[np.abs(bits) >= SMALLEST]
    rows = Chunk({"x": bits, "n": np.arange(len(bits)) * 7})
    learned = Chunk({"x": np.array([2.0, 3.5], np.float32), "n": np.arange(2)})
    groups = [
        ["x"] >> Normalize() >> Rename(postfix="_scaled"),
        ["x"] >> Normalize("float16") >> Rename(postfix="_half"),
        ["x"] >> Clip(min_value=0) >> FillMissing(0) >> LogOp() >> Rename(postfix="_log"),
        ["n"] >> LogOp(),
    ]
    Served(Workflow(*groups), learned).check(rows)


def test_float16_is_rounded_once():
    halves = np.arange(2**15 - 2**10, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (halves[1:] + halves[:-1]) / 2  # a tie; and what is next to it on both sides
    values = np.concatenate([middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf)])
    values = np.concatenate([values, -values, [np.inf, np.nan, 65519.99, 65520.0, 1e300]])
    with np.errstate(over="ignore"):
        want = values.astype(np.float16)
    np.testing.assert_array_equal(round_to(tf.constant(values), "float16"), want)


def test_numbers_next_to_zero_count_as_zero():
    served = Served(Workflow(["x"] >> Normalize()), Chunk({"x": np.array([-1.0, 1.0], "float32")}))
    tiny = np.array([SMALLEST / 2, -SMALLEST / 2, SMALLEST], np.float32)
    out = served(Chunk({"x": tiny}))["x"].numpy()[:, 0]
    np.testing.assert_array_equal(out, [0, 0, SMALLEST])
