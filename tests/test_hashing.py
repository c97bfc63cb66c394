"""Hashing: the published hash, the same for every width, and a table that finds keys."""

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.oracles import MASK, hash_text, mix
from tutorlib.columns import Chunk, Strings, column_from_arrow
from tutorlib.hashing import KeyIndex, hash_integers, hash_strings, hash_values, to_buckets
from tutorlib.ops import Categorify
from tutorlib.workflow import Workflow

FEW = settings(max_examples=40, deadline=None)
integers = st.one_of(st.none(), st.integers(-3, 12), st.integers(-(2**63), 2**63 - 1))


VECTORS = json.loads(
    (Path(__file__).parent / "support" / "hash_vectors.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("kind", ["integers", "strings"])
def test_hashes_and_buckets_are_the_published_vectors(kind):
    rows = VECTORS[kind]
    values = column_from_arrow(pa.array([row["value"] for row in rows]))
    assert [f"{h:016x}" for h in hash_values(values).tolist()] == [row["hash"] for row in rows]
    for buckets in (10, 1000, 2**31 - 1):
        want = [row["buckets"][str(buckets)] for row in rows]
        assert to_buckets(hash_values(values), buckets).tolist() == want


def test_the_vectors_follow_from_the_definition_and_begin_with_splitmix64s_own():
    """The file was made by the slow oracle; this holds it to that, so that it may be relied on."""
    for row in VECTORS["integers"]:
        assert int(row["hash"], 16) == mix(row["value"] & MASK)
    for row in VECTORS["strings"]:
        assert int(row["hash"], 16) == hash_text(row["value"])
    first = VECTORS["integers"][0]
    assert (first["value"], first["hash"]) == (0, "e220a8397b1dcdaf")


def test_integer_hash_does_not_depend_on_the_width_of_the_integer():
    values = np.array([-128, -1, 0, 1, 127])
    want = hash_integers(values).tolist()
    assert want == [mix(int(v) & MASK) for v in values]
    for dtype in (np.int8, np.int16, np.int32):
        assert hash_integers(values.astype(dtype)).tolist() == want


@FEW
@given(st.lists(st.text(max_size=40), min_size=1))
def test_string_hash_equals_its_definition(words):
    assert hash_strings(Strings.from_arrow(pa.array(words))).tolist() == list(map(hash_text, words))


LONG = [b"", b"a" * 7, b"b" * 8, b"c" * 20_001, bytes(range(128)) * 300, b"d" * 131_081]


@pytest.mark.parametrize("copies", [1, 9])
def test_long_strings_are_hashed_and_found_by_their_definition(copies):
    words = [word.decode() + str(k) for k in range(copies) for word in LONG]
    strings = Strings.from_arrow(pa.array(words))
    assert hash_strings(strings).tolist() == list(map(hash_text, words))
    assert KeyIndex(strings).find(strings).tolist() == list(range(1, len(words) + 1))
    other = Strings.from_arrow(pa.array([word[:-1] + "x" for word in words]))
    assert not KeyIndex(strings).find(other).any()


def colliding(count):
    """Return different strings of 16 characters that have one hash.

    The hash is `mix(mix(mix(16) ^ head) ^ tail)`, and `mix` gives every number once. So for any
    head there is one tail of the wanted hash; one in 256 is ASCII.
    """
    start, found = mix(16), [b"00000000abcdefgh"]
    head, tail = (int.from_bytes(found[0][k : k + 8], "little") for k in (0, 8))
    want = mix(start ^ head) ^ tail
    for number in itertools.count(1):
        head = b"%08d" % number
        tail = (mix(start ^ int.from_bytes(head, "little")) ^ want).to_bytes(8, "little")
        found += [head + tail] if tail.isascii() else []
        if len(found) == count:
            return [text.decode() for text in found]


COLLIDING = colliding(4)


def test_strings_of_equal_hash_are_different_keys():
    strings = Strings.from_arrow(pa.array([*COLLIDING, "other"]))
    assert len(set(hash_strings(strings).tolist())) == 2
    for order in ([0, 1, 2, 4], [3, 4, 0], [2], [4, 1]):
        index = KeyIndex(Strings.from_arrow(pa.array([strings.tolist()[k] for k in order])))
        want = [order.index(k) + 1 if k in order else 0 for k in range(5)]
        assert index.find(strings).tolist() == want
    with pytest.raises(ValueError, match="keys must be unique"):
        KeyIndex(Strings.from_arrow(pa.array([COLLIDING[1], COLLIDING[0], COLLIDING[1]])))


def test_ops_and_serving_tell_strings_of_equal_hash_apart():
    text = [*COLLIDING[:2] * 3, COLLIDING[2], *COLLIDING[:1]]
    table = pa.table({"c": text, "y": [float(k) for k in range(8)]})
    workflow = Workflow(["c"] >> Categorify(), ["y"]).fit(table)
    ids = workflow.transform(Chunk.from_arrow(table))["c"]
    one, two = (set(ids[[t == string for t in text]].tolist()) for string in COLLIDING[:2])
    assert len(one) == len(two) == len(one ^ two) - 1
    served = workflow.to_keras(columns=["c"])({"c": tf.constant(text)})
    np.testing.assert_array_equal(np.ravel(served["c"]), ids)


@FEW
@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True), st.lists(integers, min_size=1))
def test_key_index_finds_what_a_dict_finds(keys, wanted):
    wanted = np.array([w for w in wanted if w is not None] + keys[:3], dtype=np.int64)
    places = {key: place for place, key in enumerate(keys, 1)}
    found = KeyIndex(np.array(keys, dtype=np.int64)).find(wanted)
    assert found.tolist() == [places.get(w, 0) for w in wanted.tolist()]


def test_key_index_compares_signed_and_unsigned_integers_as_numbers():
    signed, unsigned = np.array([0, 1, -1]), np.array([0, 1, MASK], np.uint64)
    assert KeyIndex(signed).find(unsigned).tolist() == [1, 2, 0]
    assert KeyIndex(unsigned).find(signed).tolist() == [1, 2, 0]
