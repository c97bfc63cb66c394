"""Categorify, HashBucket: equal to pandas and Python, however rows are divided."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import chunk_of, column, cut, fit
from tests.support.ops_strategies import CUTS, FEW, INTEGERS, TEXTS
from tests.support.oracles import hash_text, mix
from tutorlib.columns import Chunk
from tutorlib.ops import Categorify, HashBucket


def oracle_ids(values, threshold):
    """Ids by pandas: frequency falling, then value; bytes for texts."""
    counts = pd.Series([v for v in values if v is not None], dtype=object).value_counts()
    kept = [(v, n) for v, n in counts.items() if n >= threshold]
    kept.sort(key=lambda one: (-one[1], one[0].encode() if isinstance(one[0], str) else one[0]))
    ids = {value: place for place, (value, _) in enumerate(kept, 3)}
    return [1 if v is None else ids.get(v, 2) for v in values], 3 + len(kept)


@FEW
@given(
    st.one_of(st.lists(INTEGERS, min_size=1), st.lists(TEXTS, min_size=1)), st.integers(0, 3), CUTS
)
def test_categorify_equals_pandas_however_the_rows_are_divided(values, threshold, cuts):
    kind = pa.string() if any(isinstance(v, str) for v in values) else pa.int64()
    ids, cardinality = oracle_ids(values, threshold)
    for chunk in (
        chunk_of(x=(values, kind)),
        chunk_of(x=([values[k : k + 2] for k in range(0, len(values), 2)], pa.list_(kind))),
    ):
        op = fit(Categorify(freq_threshold=threshold), *cut(chunk, cuts))
        out = op.transform(chunk)["x"]
        assert getattr(out, "values", out).tolist() == ids
        assert getattr(out, "values", out).dtype == np.int32
        assert op.cardinality("x") == cardinality


def test_categorify_uses_given_vocabularies_in_their_order_and_does_not_learn_them():
    op = Categorify(vocabularies={"c": ["z", "a"], "n": [9, 3]})
    assert op.unlearned(["c", "n", "other"]) == ["other"]
    out = op.transform(Chunk({"c": column(["a", "z", "q"]), "n": np.array([3, 9, 1])}))
    assert out["c"].tolist() == [4, 3, 2]
    assert out["n"].tolist() == [4, 3, 2]
    op = fit(op, Chunk({"c": column(["q"]), "other": np.array([1])}))
    assert op.vocabulary("c") == ["z", "a"]
    assert op.vocabulary("other") == [1]


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_an_unsigned_key_is_not_a_negative_key_of_the_same_bits(dtype):
    signed, unsigned = np.array([-1, 5]), np.array([2**64 - 1, 5], np.uint64)
    known = signed if dtype == "int64" else unsigned
    op = Categorify(vocabularies={"k": known})
    for keys in (signed, unsigned):
        first = 3 if keys.dtype == known.dtype else 2
        assert op.transform(Chunk({"k": keys}))["k"].tolist() == [first, 4]


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
    later = ["lists"] >> HashBucket(1000, first_id=7)
    ids = later.transform(chunk)["lists"]
    assert ids.tolist() == [[7 + bucket for bucket in row] for row in out["lists"].tolist()]
    assert later.ops[-1].cardinality("lists") == 1007


def counted(**times):
    """Texts, each so many times."""
    return [text for text, count in times.items() for _ in range(count)]


def test_by_default_the_rarest_values_up_to_a_hundredth_of_the_rows_train_the_unknown_id():
    values = counted(a=700, b=290, c=5, d=3, e=2)
    for chunks in ([values], [values[:3], values[3:], []], [values[::-1]]):
        op = fit(Categorify(), *(Chunk({"x": column(part, pa.string())}) for part in chunks))
        assert op.vocabulary("x") == ["a", "b"]
        assert op.transform(chunk_of(x=["b", "c", "e", "new"]))["x"].tolist() == [4, 2, 2, 2]
    assert fit(Categorify(), chunk_of(x=[values, values])).vocabulary("x") == ["a", "b"]
    several = counted(a=400, b=300, c=250, d=20, e=10, f=10, g=10)
    assert fit(Categorify(), chunk_of(x=several)).vocabulary("x") == ["a", "b", "c", "d"]
    for threshold, known in ((0, "abcde"), (1, "abcde"), (3, "abcd"), (6, "ab")):
        op = fit(Categorify(threshold), chunk_of(x=values))
        assert op.vocabulary("x") == list(known)


def test_of_fifty_values_and_more_the_rarest_trains_the_unknown_id_and_of_fewer_none_need():
    sizes = ((1, 1), (26, 26), (49, 49), (50, 49), (99, 98), (100, 95), (300, 290), (2000, 1980))
    for size, known in sizes:
        op = fit(Categorify(), Chunk({"x": np.arange(size)[::-1]}))
        assert op.vocabulary("x") == list(range(known))
    assert fit(Categorify(), chunk_of(x=([None], pa.int64()))).vocabulary("x") == []


def test_a_null_is_unknown_where_training_has_rare_values_and_no_null():
    """Row 1 of an embedding table is then never trained; row 2 is."""
    whole, holes = counted(a=99, b=1), [*counted(a=99, b=1), None]
    given = {"given": ["a"]}
    op = Categorify(vocabularies=given)
    op = fit(op, chunk_of(whole=whole, few=["a"] * 100, given=whole), chunk_of(holes=holes))
    nulls = {name: column([None, "a"]) for name in ("whole", "few", "holes", "given")}
    ids = {name: made.tolist() for name, made in op.transform(Chunk(nulls)).items()}
    assert ids == {"whole": [2, 3], "few": [1, 3], "holes": [1, 3], "given": [1, 3]}
    every = fit(Categorify(freq_threshold=0), chunk_of(x=whole))
    assert every.transform(chunk_of(x=[None, "b"]))["x"].tolist() == [1, 4]
    late = fit(Categorify(), chunk_of(x=whole), chunk_of(x=([None], pa.string())))
    assert late.transform(chunk_of(x=[None, "b"]))["x"].tolist() == [1, 2]


ERRORS = [
    (lambda: Categorify(freq_threshold=-1), r"freq_threshold must be in \[0, "),
    (lambda: Categorify(vocabularies={"x": [1, 2, 1]}), "'x': Categorify .* 1 appears twice"),
    (
        lambda: fit(Categorify(), chunk_of(x=[1])).transform(chunk_of(x=["1"])),
        "'x': Categorify has keys of int64, got string",
    ),
    (
        lambda: fit(Categorify(), chunk_of(x=[1]), chunk_of(x=["1"])),
        "'x': Categorify found keys of int64 and of large_string. Give the column one type",
    ),
    (
        lambda: Categorify().partial(Chunk({"x": np.array([2**63], np.uint64)})),
        r"'x': Categorify takes integers below 2\*\*63",
    ),
    *[
        (lambda n=n: HashBucket(n), r"HashBucket: num_buckets .*2\*\*31")
        for n in (0, 2**31, 1.5, {"a": 0})
    ],
    (lambda: HashBucket(9, first_id=-1), r"HashBucket: first_id must be in \[0, 2\*\*31\), got -1"),
    (lambda: HashBucket({"a": 2**31 - 1}, 1), r"HashBucket: first_id \+ num_buckets .*2\*\*31"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_what_makes_no_sense_is_refused_by_column(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
