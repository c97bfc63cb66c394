"""The hash and the key table in a graph give what those on the host give."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.oracles import hash_text, mix
from tutorlib.hashing import hash_integers, to_buckets
from tutorlib.serving import tensors as hashing_tf
from tutorlib.serving.tensors import KeyTable

FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


integers = st.one_of(st.integers(-3, 12), st.integers(-(2**63), 2**63 - 1))


texts = st.one_of(st.sampled_from(["a", "b", "", "Müller", "東京", "x" * 64]), st.text(max_size=90))


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


def test_texts_that_end_before_at_and_after_each_doubling_among_many_short_ones():
    lengths = [0, *(2**k + d for k in range(3, 15) for d in (-1, 0, 1))]
    words = [*("x" * n for n in lengths), *["short"] * 10_000]
    hashes = tf.function(hashing_tf.hash_strings)(tf.constant(words)).numpy().tolist()
    assert hashes[: len(lengths) + 1] == [hash_text(word) for word in words[: len(lengths) + 1]]
    assert set(hashes[len(lengths) :]) == {hash_text("short")}


def test_key_table_with_many_keys_finds_them_and_no_others():
    keys = np.random.default_rng(0).permutation(50_000) * 3 - 70_000
    table = KeyTable(keys)
    wanted = np.arange(-80_000, 90_000)
    found = table.find(tf.constant(wanted)).numpy()
    assert np.array_equal(keys[found[found > 0] - 1], wanted[found > 0])
    assert (found > 0).sum() == 50_000
