"""Serving: the layer made of a Workflow gives what `transform` gives, to the last bit."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.oracles import hash_text, mix
from tutorlib.chunk import Chunk, Masked, Ragged, Strings, column_from_arrow
from tutorlib.hashing import hash_integers, to_buckets
from tutorlib.loader import KerasSequenceLoader
from tutorlib.models import DLRM, movielens_network
from tutorlib.ops import (
    OPS,
    Bucketize,
    Categorify,
    Clip,
    ColumnOp,
    FillMedian,
    FillMissing,
    HashBucket,
    HashedCross,
    JoinExternal,
    JoinGroupby,
    LambdaOp,
    ListSlice,
    LogOp,
    Normalize,
    NormalizeMinMax,
    Rename,
    TargetEncoding,
)
from tutorlib.parquet import ParquetSink
from tutorlib.serving import SERVED, ServedByColumn, export_serving
from tutorlib.serving import hashing as hashing_tf
from tutorlib.serving.base import as_string_tensor, round_to
from tutorlib.serving.tables import KeyTable
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


def column(values, kind):
    return column_from_arrow(pa.array(values, kind))


# ------------------------------------------------------------------------ raw tensors, and batches


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
        batch[name] = values[:, None]
    return batch


def assert_same_bits(got, want, *, signs_of_zero=True):
    assert got.keys() == want.keys()
    for name, expected in want.items():
        found = got[name].numpy() if hasattr(got[name], "numpy") else got[name]
        assert found.dtype == expected.dtype, name
        assert found.shape == expected.shape, name
        if found.dtype != object:
            found, expected = (np.where(a != a, np.nan, a) for a in (found, expected))
            if not signs_of_zero:
                found, expected = (np.where(a == 0, 0, a) for a in (found, expected))
            found, expected = (np.ascontiguousarray(a).view(np.uint8) for a in (found, expected))
        np.testing.assert_array_equal(found, expected, name)


class Served:
    """A workflow fitted on `chunk`, and its layer as a graph traced once."""

    def __init__(self, workflow, chunk, nullable=(), **options):
        self.workflow, self.nullable = workflow.fit(chunk).for_serving(), list(nullable)
        self.layer = workflow.to_keras(**options)
        signature = [self.layer.raw_inputs(self.nullable)]
        self.graph = tf.function(self.layer, input_signature=signature, autograph=False)

    def __call__(self, chunk):
        return self.graph(raw_tensors(self.layer, chunk, self.nullable))

    def check(self, chunk, **options):
        out = self.workflow.transform(chunk).select(self.layer.schema.names)
        assert_same_bits(self(chunk), as_batch(out), **options)


# -------------------------------------------------------------------------------------------- hash


def test_the_graph_gives_the_published_hashes():
    published = json.loads(
        (Path(__file__).parents[1] / "support" / "hash_vectors.json").read_text("utf-8")
    )
    for kind in ("integers", "strings"):
        vectors = published[kind]
        assert vectors
        values = [vector["value"] for vector in vectors]
        if kind == "integers":
            values = np.array([v % 2**64 for v in values], np.uint64).view(np.int64)
        hashes = hashing_tf.hash_values(tf.constant(values))
        assert [f"{h:016x}" for h in hashes.numpy().tolist()] == [v["hash"] for v in vectors]
        for num_buckets in map(int, vectors[0]["buckets"]):
            buckets = hashing_tf.to_buckets(hashes, num_buckets).numpy().tolist()
            assert buckets == [v["buckets"][str(num_buckets)] for v in vectors]


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


def test_a_long_text_among_short_ones():
    words = ["x" * 10_001, *["short"] * 10_000]
    hashes = tf.function(hashing_tf.hash_strings)(tf.constant(words)).numpy()
    assert hashes[[0, 1]].tolist() == [hash_text(words[0]), hash_text("short")]


def test_key_table_with_many_keys_finds_them_and_no_others():
    keys = np.random.default_rng(0).permutation(50_000) * 3 - 70_000
    table = KeyTable(keys)
    wanted = np.arange(-80_000, 90_000)
    found = table.find(tf.constant(wanted)).numpy()
    assert np.array_equal(keys[found[found > 0] - 1], wanted[found > 0])
    assert (found > 0).sum() == 50_000


# --------------------------------------------------------------------------------------- every op

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


# ------------------------------------------------------------------------------- inputs and outputs


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


@pytest.mark.parametrize(
    ("batch_layout", "multi_hot"),
    [("columns", "nnzs"), ("columns", "offsets"), ("columns", "padded"), ("stacked", "nnzs")],
)
def test_the_layer_gives_the_batches_of_the_loader(tmp_path, batch_layout, multi_hot):
    table = rows_of_all_kinds(100)
    with ParquetSink(tmp_path / "rows.parquet") as sink:
        sink.write(table)
    workflow = workflow_of_all_kinds(lists=batch_layout == "columns").fit(table)
    options = {"batch_layout": batch_layout, "multi_hot": multi_hot}
    names = [n for n in workflow.input_names if n != "label"]
    loader = KerasSequenceLoader(
        tmp_path / "rows.parquet", 100, label_names=["label"], shuffle=False, **options
    ).map(workflow)
    batch, _ = loader.peek()
    layer = workflow.to_keras(**options)
    got = layer(raw_tensors(layer, Chunk.from_arrow(table), names))
    want = {name: tensor.numpy() for name, tensor in batch.items()}
    if "price" in want:  # the loader narrows what the workflow leaves as it is
        got["price"] = tf.cast(got["price"], tf.float32)
    if "tags__offsets" in want:
        got["tags__offsets"] = tf.cast(got["tags__offsets"], want["tags__offsets"].dtype)
    assert_same_bits(got, want)


def test_lists_come_in_as_ragged_tensors_or_with_offsets_and_columns_as_lists_or_matrices():
    chunk = Chunk({"tags": column([[1, 2], [], [1]], pa.list_(pa.int64())), "x": np.arange(3.0)})
    workflow = Workflow(["tags"] >> Categorify(), ["x"]).fit(chunk)
    layer = workflow.to_keras(multi_hot="ragged")
    ragged = tf.ragged.constant([[1, 2], [], [1]], dtype=tf.int64)
    for tags in (
        {"tags": ragged},
        {"tags__values": [1, 2, 1], "tags__nnzs": [2, 0, 1]},
        {"tags__values": np.array([[1], [2], [1]]), "tags__offsets": np.array([0, 2, 2, 3])},
        {"tags": ragged.with_row_splits_dtype(tf.int32)},
        {"tags": [[1, 2], [], [1]]},
    ):
        for x in ([0, 1, 2], np.arange(3.0), np.arange(3.0)[:, None], np.arange(3, dtype="int32")):
            out = layer({**tags, "x": x})
            assert out["tags"].to_list() == [[3, 4], [], [3]]
            assert out["x"].numpy().tolist() == [[0.0], [1.0], [2.0]]


def test_only_the_columns_that_features_are_made_of_are_asked_for():
    workflow = workflow_of_all_kinds().fit(rows_of_all_kinds())
    assert "label" not in workflow.to_keras().types
    assert list(workflow.to_keras(columns=["tags", "count"]).types) == ["count", "tags"]
    assert list(workflow.to_keras(columns=["label"]).types) == ["label"]


@pytest.mark.parametrize(
    ("inputs", "rule"),
    [
        ({"user": np.arange(3)}, r"raw column 'word' is missing: give word"),
        (
            {"user": np.arange(3.0), "word": ["a", "b", "c"]},
            r"raw column 'user': the workflow was fitted on int64, got float64\. Cast it",
        ),
        ({"user": ["1", "2"], "word": ["a", "b"]}, r"'user'.* fitted on int64, got string"),
        ({"user": np.array([1, 2]), "word": np.array([1, 2])}, r"'word'.* on string, got int64"),
        (
            {"user": np.arange(3), "word": ["a"] * 3, "word__valid": np.arange(3)},
            r"'word__valid'.* fitted on bool, got int64",
        ),
        (
            {"user": np.arange(3), "word": ["a", "b"]},
            r"raw columns user and word must have the same number of rows",
        ),
        (
            {"user": np.arange(2), "word": ["a", "b"], "word__valid": [True]},
            r"word__valid must have the shape of the values of word",
        ),
        (
            {"user": np.zeros([2, 2], np.int64), "word": ["a", "b"]},
            r"column user must have the shape \[batch\] or \[batch, 1\]",
        ),
    ],
)
def test_wrong_inputs_are_refused_by_column_and_rule(inputs, rule):
    table = rows_of_all_kinds()
    workflow = Workflow(["user", "word"] >> HashBucket(9)).fit(table)
    layer = workflow.to_keras()
    inputs = {n: tf.constant(v) if n == "user" else v for n, v in inputs.items()}
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=rule):
        layer(inputs)


@pytest.mark.parametrize(
    ("parts", "rule"),
    [
        ({"nnzs": [1, 1]}, "the lengths of its lists"),
        ({"nnzs": [4, -1]}, "no list can have a negative length"),
        ({"offsets": [1, 2, 3]}, "the lengths of its lists"),
        ({"offsets": [0, 4, 3]}, "no list can have a negative length"),
    ],
)
def test_lists_that_do_not_add_up_are_refused(parts, rule):
    layer = Workflow(["tags"] >> HashBucket(9)).fit(rows_of_all_kinds()).to_keras()
    parts = {f"tags__{part}": np.array(numbers) for part, numbers in parts.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"raw column tags: {rule}"):
        layer({"tags__values": np.arange(3), **parts})


def test_a_python_list_that_is_no_column_is_refused_by_name():
    layer = Workflow(["word", "tags"] >> HashBucket(9)).fit(rows_of_all_kinds()).to_keras()
    with pytest.raises(ValueError, match=r"raw column 'word' .*and False in its place in word__va"):
        layer({"word": ["a", None], "tags": [[1], [2]]})
    with pytest.raises(ValueError, match=r"raw column 'tags' cannot be made of this list"):
        layer({"word": ["a", "b"], "tags": [[1], "two"]})


def test_a_list_column_of_which_a_part_is_missing_is_refused():
    layer = Workflow(["tags"] >> HashBucket(9)).fit(rows_of_all_kinds()).to_keras()
    with pytest.raises(ValueError, match=r"'tags' is missing: give tags__values with tags__nnzs"):
        layer({"tags__values": np.arange(3)})


def test_what_transform_refuses_the_graph_refuses():
    logs = Served(Workflow(["x"] >> LogOp()), Chunk({"x": np.array([1.0])}))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"x: LogOp takes values above -1"):
        logs(Chunk({"x": np.array([1.0, -1.0])}))
    nulls = Served(Workflow(["n"]), Chunk({"n": np.arange(3)}), nullable=["n"])
    assert nulls(Chunk({"n": np.arange(3)}))["n"].numpy().tolist() == [[0], [1], [2]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"n comes out with a null"):
        nulls(Chunk({"n": column([1, None], pa.int64())}))
    short = {"doubled": lambda values: values[1:]}
    function = Served(
        Workflow(["x"] >> LambdaOp(doubled)), Chunk({"x": np.array([1.0])}), functions=short
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"x: LambdaOp expects as many"):
        function(Chunk({"x": np.arange(3.0)}))


class Squared(ColumnOp):
    def transform_column(self, name, column):
        return column * column


class ServedSquared(ServedByColumn[Squared]):
    def column(self, name, column):
        return column.with_values(column.values * column.values, column.valid)


def test_an_op_of_ones_own_is_served_by_the_class_entered_for_it(monkeypatch):
    monkeypatch.setitem(SERVED, Squared, ServedSquared)
    rows = Chunk({"x": np.arange(-2.0, 3.0)})
    Served(Workflow(["x"] >> Squared()), rows).check(rows)


def test_every_op_of_this_library_has_a_served_version():
    assert SERVED.keys() == set(OPS.values())


def test_all_ops_that_cannot_be_served_are_named_at_once():
    groups = [
        ["a"] >> Squared(),
        ["b"] >> LogOp("float64"),
        ["c"] >> LambdaOp(doubled) >> Normalize(),
        ["d"] >> LambdaOp(lambda x: x),
    ]
    workflow = Workflow(*groups).fit(Chunk({name: np.arange(3.0) for name in "abcd"}))
    with pytest.raises(ValueError, match="cannot be served") as refused:
        workflow.to_keras()
    for part in (
        r"Squared of the columns ['a'] has no TensorFlow version in tutorlib.serving.SERVED",
        r"LogOp of the columns ['b'] gives float64",
        r"LambdaOp of the columns ['c'] calls the Python function 'doubled': pass",
        r"LambdaOp of the columns ['d'] has a function without a name",
    ):
        assert part in str(refused.value)


def test_an_op_of_a_label_need_not_be_served():
    groups = [["x"] >> Normalize(), ["label"] >> LambdaOp(lambda stars: stars > 3)]
    workflow = Workflow(*groups).fit(Chunk({"x": np.arange(3.0), "label": np.arange(3.0)}))
    assert list(workflow.to_keras()({"x": np.arange(3.0)})) == ["x"]
    with pytest.raises(ValueError, match=r"LambdaOp of the columns \['label'\]"):
        workflow.to_keras(columns=["label"])


def test_wrong_choices_and_an_unfitted_workflow_are_refused():
    workflow = workflow_of_all_kinds()
    with pytest.raises(ValueError, match="Call fit"):
        workflow.to_keras()
    workflow.fit(rows_of_all_kinds())
    with pytest.raises(ValueError, match=r"multi_hot must be one of .*, got 'csr'"):
        workflow.to_keras(multi_hot="csr")
    with pytest.raises(ValueError, match=r"one value per row, not lists: \['tags'\]"):
        workflow.to_keras(batch_layout="stacked")
    with pytest.raises(ValueError, match=r"nullable: \['nobody'\] are no raw columns"):
        workflow.to_keras().raw_inputs(["nobody"])


def test_the_layer_stands_in_a_functional_model():
    workflow = workflow_of_all_kinds(lists=False).fit(rows_of_all_kinds())
    layer = workflow.to_keras()
    inputs = {
        name: keras.Input((1,), name=name, dtype=spec.dtype.name)
        for name, spec in layer.raw_inputs(["count", "word"]).items()
    }
    model = DLRM(workflow.output_schema, 4, [8], [8])
    whole = keras.Model(inputs, model(layer(inputs)))
    raw = raw_tensors(layer, Chunk.from_arrow(rows_of_all_kinds(seed=1)), ["count", "word"])
    got = whole.predict({name: tensor[:, None] for name, tensor in raw.items()}, verbose=0)
    np.testing.assert_allclose(got, model(layer(raw)), rtol=1e-6, atol=1e-30)
    assert layer.trainable_variables == []
    with pytest.raises(NotImplementedError, match="export_serving"):
        layer.get_config()


# ---------------------------------------------------------------------------------------- exporting

SERVICE = """
import sys
sys.modules["keras"] = sys.modules["tutorlib"] = None  # neither can be imported
import numpy as np, tensorflow as tf
path, request, answer = sys.argv[1:]
serve = tf.saved_model.load(path).signatures["serving_default"]
raw = {n: a.astype(bytes) if a.dtype.kind == "S" else a for n, a in np.load(request).items()}
out = serve(**{name: tf.constant(array) for name, array in raw.items()})
out = {name: tensor.numpy() for name, tensor in out.items()}
np.savez(answer, **{n: a.astype("S") if a.dtype == object else a for n, a in out.items()})
"""


def served_elsewhere(folder, path, raw):
    """Return what a process with nothing but TensorFlow makes of raw tensors."""
    arrays = {name: tensor.numpy() for name, tensor in raw.items()}
    arrays = {n: a.astype("S") if a.dtype == object else a for n, a in arrays.items()}
    np.savez(folder / "request.npz", **arrays)
    files = [str(folder / name) for name in ("request.npz", "answer.npz")]
    command = [sys.executable, "-I", "-c", SERVICE, str(path), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(np.load(files[1]))


def as_they_are(batch):
    """Return a model that gives its inputs as they are."""
    inputs = {
        name: keras.Input(array.shape[1:], name=name, dtype=array.dtype.name)
        for name, array in batch.items()
    }
    return keras.Model(
        inputs, {n: keras.layers.Identity(dtype=x.dtype)(x) for n, x in inputs.items()}
    )


def criteo(count, seed):
    generator = np.random.default_rng(seed)
    table = {"label": generator.integers(0, 2, count).astype(np.float32)}
    for place in range(1, 14):
        mask = generator.random(count) < 0.2
        table[f"I{place}"] = pa.array(generator.geometric(0.01, count) - 3, mask=mask)
    for place in range(1, 27):
        ids = generator.geometric(0.02, count) * 7_919 + place
        mask = generator.random(count) < 0.1
        words = [f"{i:08x}" for i in ids]
        table[f"C{place}"] = pa.array(words if place % 2 else ids, mask=mask)
    return pa.table(table)


def criteo_workflow():
    numbers = [f"I{place}" for place in range(1, 14)]
    ids = [f"C{place}" for place in range(1, 27)]
    return Workflow(
        numbers >> FillMissing(0) >> Clip(min_value=0) >> LogOp() >> Normalize(),
        ids >> Categorify(freq_threshold=3, num_oov_buckets=4),
        ["label"],
    )


def movielens(count, seed):
    generator = np.random.default_rng(seed)
    return pa.table(
        {
            "userId": generator.geometric(0.02, count),
            "movieId": generator.geometric(0.05, count),
            "rating": (generator.random(count) < 0.5).astype(np.float32),
        }
    )


MOVIES = pa.table(
    {
        "movieId": np.arange(1, 60),
        "title": [f"Film {n} (19{n:02d}), 第{n}部" for n in range(1, 60)],
        "genres": [
            [["War", "Art", "Film-Noir"][k] for k in range(n % 4) if k < 3] for n in range(59)
        ],
    }
)


def movielens_workflow():
    films = ["movieId"] >> JoinExternal(MOVIES, on="movieId")
    return Workflow(
        ["userId", "movieId"] >> Categorify(),
        films["genres"] >> Categorify(),
        films["title"] >> HashBucket(100),
        ["rating"],
        label_names=["rating"],
    )


LESSONS = {
    "criteo": (
        criteo,
        criteo_workflow,
        [f"{c}{p}" for c, n in (("I", 13), ("C", 26)) for p in range(1, n + 1)],
    ),
    "movielens": (movielens, movielens_workflow, []),
}


@pytest.mark.parametrize("name", LESSONS)
def test_what_is_saved_gives_the_bits_of_transform_in_a_fresh_process(tmp_path, name):
    make_rows, make_workflow, nullable = LESSONS[name]
    workflow = make_workflow().fit(make_rows(2_000, 0))
    rows = Chunk.from_arrow(make_rows(300, 1))
    features = workflow.transform(rows).drop(workflow.label_names)
    layer = workflow.to_keras()
    raw = raw_tensors(layer, rows, nullable)
    want = as_batch(features)
    path = export_serving(as_they_are(want), workflow, tmp_path / "bits", nullable=nullable)
    assert_same_bits(served_elsewhere(tmp_path, path, raw), want)


@pytest.mark.parametrize("name", LESSONS)
def test_what_is_saved_predicts_in_a_fresh_process_as_transform_and_model_do(tmp_path, name):
    make_rows, make_workflow, nullable = LESSONS[name]
    table = make_rows(2_000, 0)
    workflow = make_workflow().fit(table)
    schema = workflow.output_schema
    model = movielens_network(schema, [16]) if name == "movielens" else DLRM(schema, 4, [8], [8])
    model.compile("adam", "binary_crossentropy")
    transformed = workflow.transform(Chunk.from_arrow(table))
    label = workflow.label_names[0]
    batch = as_batch(transformed.drop([label]))
    model.train_on_batch({n: tf.constant(a) for n, a in batch.items()}, transformed[label][:, None])
    rows = Chunk.from_arrow(make_rows(300, 1))
    batch = {n: tf.constant(a) for n, a in as_batch(workflow.transform(rows).drop([label])).items()}
    want = model(batch, training=False).numpy()
    assert want.std() > 0
    path = export_serving(model, workflow, tmp_path / "model", nullable=nullable)
    raw = raw_tensors(workflow.to_keras(), rows, nullable)
    got = served_elsewhere(tmp_path, path, raw)
    assert list(got) == ["predictions"]
    np.testing.assert_allclose(got["predictions"], want, rtol=1e-5)


def test_a_loaded_workflow_is_served_as_the_one_that_was_saved(tmp_path):
    table = rows_of_all_kinds()
    workflow = workflow_of_all_kinds().fit(table)
    loaded = Workflow.load(workflow.save(tmp_path / "workflow"))
    rows = Chunk.from_arrow(rows_of_all_kinds(seed=1))
    layers = [w.to_keras() for w in (workflow, loaded)]
    one, other = (layer(raw_tensors(layer, rows, ["word", "count"])) for layer in layers)
    assert_same_bits(one, {name: tensor.numpy() for name, tensor in other.items()})


def test_an_export_stands_whole_or_not_at_all(tmp_path):
    workflow = workflow_of_all_kinds(lists=False).fit(rows_of_all_kinds())
    model = DLRM(workflow.output_schema, 4, [8], [8])
    path = export_serving(model, workflow, tmp_path / "model")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        export_serving(model, workflow, path)
    before = sorted(p.name for p in path.rglob("*"))
    stacked = DLRM(workflow.output_schema, 4, [8], [8], batch_layout="stacked")
    with pytest.raises(ValueError, match=r"the model takes \['categorical', 'continuous'\], which"):
        export_serving(stacked, workflow, path, overwrite=True)
    assert sorted(p.name for p in path.rglob("*")) == before
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    export_serving(stacked, workflow, path, batch_layout="stacked", overwrite=True)
    assert json.loads(json.dumps(sorted(p.name for p in path.iterdir())))


def test_a_model_of_some_columns_asks_for_theirs_alone(tmp_path):
    workflow = workflow_of_all_kinds().fit(rows_of_all_kinds())
    model = movielens_network(workflow.output_schema.select(["user", "tags"]), [8])
    path = export_serving(model, workflow, tmp_path / "model")
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    assert set(signature.structured_input_signature[1]) == {"user", "tags__values", "tags__nnzs"}


class TenBest(keras.Model):
    """Films by title, best first; of raw ids, genres and titles, so nothing is known of dtypes."""

    def __init__(self, workflow, network):
        super().__init__()
        self.as_ids, self.network = workflow.to_keras(), network
        # In a list, where nothing but Keras finds it.
        self.tables = [keras.layers.StringLookup(vocabulary=["Film 3 (1903), 第3部"])]

    def call(self, raw):
        liked = self.network(self.as_ids({n: raw[n] for n in self.as_ids.raw_inputs()}))[:, 0]
        best = tf.math.top_k(liked, k=tf.minimum(10, tf.size(liked)))
        title = tf.gather(raw["title"][:, 0], best.indices)
        return {"title": title, "liked": best.values, "third": self.tables[0](title)}


def test_a_model_of_ids_and_genres_is_served_on_ids_alone_and_answers_titles(tmp_path):
    genres = pa.array([["War"], ["Art", "War"], [], ["Film-Noir"]] * 500)
    rated = movielens(2_000, 0).append_column("genres", genres)
    workflow = Workflow(
        ["userId", "movieId", "genres"] >> Categorify(), ["rating"], label_names=["rating"]
    ).fit(rated)
    network = movielens_network(workflow.output_schema, [16])
    joined = ["movieId"] >> JoinExternal(MOVIES, on="movieId")
    catalogue = Workflow(
        ["userId"], joined[["movieId", "genres"]], joined["title"] >> FillMissing("?")
    ).fit(rated)
    path = export_serving(TenBest(workflow, network), catalogue, tmp_path / "model")

    films = np.arange(1, 70)  # ten of them are in no catalogue
    raw = {"userId": tf.fill([69], np.int64(3)), "movieId": tf.constant(films)}
    got = served_elsewhere(tmp_path, path, raw)

    rows = catalogue.transform(Chunk({name: tensor.numpy() for name, tensor in raw.items()}))
    rows = rows.with_columns({"rating": np.zeros(69, np.float32)})
    batch = as_batch(workflow.transform(rows).drop(["rating"]))
    liked = network({n: tf.constant(a) for n, a in batch.items()}, training=False).numpy()[:, 0]
    best = np.argsort(-liked, kind="stable")[:10]
    titles = [*MOVIES["title"].to_pylist(), *["?"] * 10]
    assert [text.decode() for text in got["title"]] == [titles[place] for place in best]
    np.testing.assert_allclose(got["liked"], liked[best], rtol=1e-5)
    third = [int(titles[place].startswith("Film 3 ")) for place in best]
    assert got["third"].tolist() == third
