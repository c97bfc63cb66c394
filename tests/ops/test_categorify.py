"""Categorify, of columns and of combinations: equal to pandas and Python, whatever the chunks."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import column, fit
from tests.support.ops_strategies import FEW
from tests.support.oracles import mix
from tutorlib.columns import Chunk, Ragged
from tutorlib.ops import Categorify
from tutorlib.workflow import Workflow

integers = st.one_of(st.none(), st.integers(-3, 12), st.integers(-(2**63), 2**63 - 1))


texts = st.one_of(st.none(), st.sampled_from(["", "a", "b", "Müller"]), st.text(max_size=20))


def oracle_ids(values, threshold=0, max_size=None):
    """Ids by pandas: frequency falling, then value; bytes for texts."""
    counts = pd.Series([v for v in values if v is not None], dtype=object).value_counts()
    kept = [(v, n) for v, n in counts.items() if n >= threshold]
    kept.sort(
        key=lambda pair: (-pair[1], pair[0].encode() if isinstance(pair[0], str) else pair[0])
    )
    kept = kept if max_size is None else kept[: max_size - 3]
    ids = {value: place for place, (value, _) in enumerate(kept, 3)}
    return [1 if v is None else ids.get(v, 2) for v in values], 3 + len(kept)


@FEW
@given(
    st.one_of(st.lists(integers, min_size=1), st.lists(texts, min_size=1)),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(3, 8)),
)
def test_categorify_equals_the_pandas_oracle(values, threshold, max_size):
    kind = pa.string() if any(isinstance(v, str) for v in values) else pa.int64()
    chunk = Chunk({"x": column(values, kind)})
    op = fit(Categorify(freq_threshold=threshold, max_size=max_size), chunk)
    ids, cardinality = oracle_ids(values, threshold, max_size)
    assert op.transform(chunk)["x"].tolist() == ids
    assert op.cardinality("x") == cardinality
    assert op.transform(chunk)["x"].dtype == np.int32


@FEW
@given(
    st.one_of(
        st.lists(st.lists(integers, max_size=8), min_size=1, max_size=6),
        st.lists(st.lists(texts, max_size=8), min_size=1, max_size=6),
    ),
    st.randoms(use_true_random=False),
)
def test_categorify_does_not_depend_on_chunks_or_the_order_of_merging(parts, random):
    flat = [v for part in parts for v in part]
    kind = pa.string() if any(isinstance(v, str) for v in flat) else pa.int64()
    whole = fit(Categorify(), Chunk({"x": column(flat, kind)}))
    op = Categorify()
    states = [op.partial(Chunk({"x": column(part, kind)})) for part in parts]
    while len(states) > 1:
        random.shuffle(states)
        states.append(op.merge(states.pop(), states.pop()))
    op.finalize(states[0])
    assert op.vocabulary("x") == whole.vocabulary("x")
    counts = [o.learned_tables()["x"]["count"].tolist() for o in (op, whole)]
    assert counts[0] == counts[1]


def test_categorify_counts_the_values_of_lists_and_keeps_the_lists():
    genres = Ragged(column(["War", "Drama", "Drama", None, "Art"]), np.array([0, 2, 2, 5]))
    op = fit(Categorify(), Chunk({"genres": genres}))
    assert op.vocabulary("genres") == ["Drama", "Art", "War"]
    out = op.transform(Chunk({"genres": genres}))["genres"]
    assert out.tolist() == [[5, 3], [], [3, 1, 4]]


def test_categorify_gives_several_ids_to_values_out_of_vocabulary_by_their_hash():
    op = fit(Categorify(num_oov_buckets=4), Chunk({"x": np.array([7])}))
    values = np.arange(1000, 2000)
    out = op.transform(Chunk({"x": np.append(values, 7)}))["x"].tolist()
    assert out[:-1] == [2 + (((mix(v) >> 32) * 4) >> 32) for v in values.tolist()]
    assert out[-1] == 6
    assert op.cardinality("x") == 7


def test_categorify_uses_given_vocabularies_in_their_order_and_does_not_learn_them():
    op = Categorify(vocabularies={"c": ["z", "a"], "n": [9, 3]})
    assert op.unlearned(["c", "n", "other"]) == ["other"]
    out = op.transform(Chunk({"c": column(["a", "z", "q"]), "n": np.array([3, 9, 1])}))
    assert out["c"].tolist() == [4, 3, 2]
    assert out["n"].tolist() == [4, 3, 2]
    op = fit(op, Chunk({"c": column(["q"]), "other": np.array([1])}))
    assert op.vocabulary("c") == ["z", "a"]
    assert op.vocabulary("other") == [1]


def test_categorify_joint_columns_share_one_vocabulary():
    chunk = Chunk({"user": np.array([1, 2, 2]), "friend": np.array([3, 3, 3])})
    op = fit(Categorify(joint=True), chunk)
    assert op.vocabulary("user") == op.vocabulary("friend") == [3, 2, 1]
    out = op.transform(chunk)
    assert [out["user"].tolist(), out["friend"].tolist()] == [[5, 4, 4], [3, 3, 3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_oov_buckets": 0}, r"num_oov_buckets must be in \[1, 2\*\*31\), got 0"),
        ({"max_size": 2}, "max_size must be at least 3"),
        (
            {"vocabularies": {"x": [1, 2, 1]}},
            "'x': Categorify cannot use .* vocabulary: .*1 appears twice",
        ),
        ({"joint": True, "vocabularies": {"x": [1]}}, "joint=True takes no settings by column"),
    ],
)
def test_categorify_refuses_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        Categorify(**arguments)


def test_categorify_refuses_texts_where_it_learned_integers():
    op = fit(Categorify(), Chunk({"x": np.array([1])}))
    with pytest.raises(TypeError, match="'x': Categorify has keys of int64, got string"):
        op.transform(Chunk({"x": column(["1"])}))


def test_categorify_refuses_integers_that_int64_cannot_hold():
    with pytest.raises(ValueError, match=r"'x': Categorify takes integers below 2\*\*63"):
        Categorify().partial(Chunk({"x": np.array([2**63], np.uint64)}))


def test_ids_become_values_again_also_where_columns_share_a_vocabulary():
    rows = Chunk({"item": column(["b", "a", None, "b"]), "next": column(["c", "b", "b", None])})
    fitted = Workflow(["item", "next"] >> Categorify(joint=True), label_names=["next"]).fit(rows)
    ids = fitted.transform(rows)
    for name in ("item", "next"):
        assert fitted.decode(name, ids[name]).tolist() == rows[name].tolist()
    assert fitted.decode("next", np.eye(6, dtype=np.float32)[[5, 3, 2]]).tolist() == [
        "c",
        "b",
        None,
    ]
    for wrong in (np.array([6]), np.array([-1]), np.ones((2, 3)), np.array([0.5])):
        with pytest.raises(ValueError, match=r"column 'next': Categorify has ids in \[0, 6\)"):
            fitted.decode("next", wrong)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_an_unsigned_key_is_not_a_negative_key_of_the_same_bits(dtype):
    signed, unsigned = np.array([-1, 5]), np.array([2**64 - 1, 5], np.uint64)
    known = signed if dtype == "int64" else unsigned
    op = Categorify(vocabularies={"k": known})
    for keys in (signed, unsigned):
        first = 3 if keys.dtype == known.dtype else 2
        assert op.transform(Chunk({"k": keys}))["k"].tolist() == [first, 4]
