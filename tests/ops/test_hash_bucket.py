"""HashBucket: the buckets follow from the published hash."""

import numpy as np
import pytest

from tests.support.ops import column
from tests.support.oracles import hash_text, mix
from tutorlib.columns import Chunk
from tutorlib.ops import (
    HashBucket,
)


def test_hash_bucket_by_hand():
    chunk = Chunk(
        {
            "n": column([5, None, 6]),
            "s": column(["x", None, "Müller"]),
            "lists": column([[5, 6], [], [None]]),
        }
    )
    out = (list(chunk) >> HashBucket({"n": 10, "s": 100, "lists": 1000})).transform(chunk)
    bucket = [((mix(v) >> 32) * 10) >> 32 for v in (5, 6)]
    assert out["n"].tolist() == [bucket[0], 0, bucket[1]]
    assert out["s"].tolist() == [
        ((hash_text("x") >> 32) * 100) >> 32,
        0,
        ((hash_text("Müller") >> 32) * 100) >> 32,
    ]
    assert out["lists"].tolist() == [[((mix(v) >> 32) * 1000) >> 32 for v in (5, 6)], [], [0]]
    assert out["n"].dtype == np.int32


@pytest.mark.parametrize("num_buckets", [0, -1, 2**31, 1.5, {"a": 0}])
def test_hash_bucket_refuses_a_number_of_buckets_that_it_cannot_have(num_buckets):
    with pytest.raises(ValueError, match=r"HashBucket: num_buckets .*2\*\*31"):
        HashBucket(num_buckets)


def test_hash_bucket_names_the_columns_without_buckets():
    with pytest.raises(ValueError, match=r"HashBucket.*\['b'\]"):
        ["a", "b"] >> HashBucket({"a": 3})
