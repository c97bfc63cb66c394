"""Categorify of combinations, and FillMedian: counted exactly, whatever the chunks."""

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import bits, chunk_of, column, cut, learned, plain, through_disk
from tests.support.ops_strategies import CUTS, FEW, INTEGERS, NUMBERS, RANDOM, TEXTS
from tests.support.oracles import MASK, hash_text, mix
from tutorlib.chunk import Chunk
from tutorlib.ops import Categorify, FillMedian, HashedCross, LogOp, NormalizeMinMax
from tutorlib.ops.shared.keys import CombinationIndex
from tutorlib.workflow import Workflow

PAIRS = st.lists(st.tuples(INTEGERS, TEXTS, st.sampled_from([None, 0, 1])), min_size=1, max_size=40)

# -------------------------------------------------------------------------- Categorify(combo=True)


def triples(rows):
    n, t, b = zip(*rows, strict=True)
    return chunk_of(n=(n, pa.int64()), t=(t, pa.string()), b=(b, pa.int8()))


def hash_of(combination):
    crossed = 0
    for value in combination:
        hashed = hash_text(value) if isinstance(value, str) else mix((value or 0) & MASK)
        crossed = mix(crossed ^ (0 if value is None else hashed))
    return crossed


def in_order(combination):
    """How equally frequent combinations sort: part by part, nulls last, texts by their bytes."""
    return [
        (value is None, value.encode() if isinstance(value, str) else value or 0)
        for value in combination
    ]


def test_combinations_by_hand():
    chunk = chunk_of(day=[1, 1, 2, None, None, 1, None], shop=["a", "b", "a", "a", None, "a", "a"])
    group = learned(["day", "shop"] >> Categorify(combo=True), chunk)
    op = group.ops[0]
    assert group.output_names == ["day_X_shop"]
    want = [(1, "a"), (None, "a"), (1, "b"), (2, "a")]
    assert op.vocabulary("day_X_shop") == want
    assert op.transform(chunk)["day_X_shop"].tolist() == [3, 5, 6, 4, 1, 3, 4]
    new = chunk_of(day=[2, None, 3, None], shop=["b", "b", "a", None])
    assert op.transform(new)["day_X_shop"].tolist() == [2, 2, 2, 1]
    assert op.cardinality("day_X_shop") == 7


@FEW
@given(
    PAIRS, CUTS, RANDOM, st.integers(0, 2), st.one_of(st.none(), st.integers(5, 9)),
    st.integers(1, 3),
)  # fmt: skip
def test_combinations_equal_a_counter_of_tuples_whatever_the_chunks(
    rows, cuts, random, threshold, max_size, buckets
):
    chunk = triples(rows)
    op = Categorify(threshold, max_size, buckets, combo=True, name="all")
    group = learned(["n", "t", "b"] >> op, *cut(chunk, cuts), random=random)
    counts = Counter(row for row in rows if row != (None, None, None))
    kept = [row for row, n in counts.items() if n >= threshold]
    kept.sort(key=lambda row: (-counts[row], in_order(row)))
    kept = kept if max_size is None else kept[: max_size - 2 - buckets]
    ids = {row: place for place, row in enumerate(kept, 2 + buckets)}
    ids[None, None, None] = 1
    want = [ids.get(row, 2 + (((hash_of(row) >> 32) * buckets) >> 32)) for row in rows]
    assert group.ops[0].vocabulary("all") == kept
    assert group.transform(chunk)["all"].tolist() == want
    assert bits(learned(group, chunk).ops[0]) == bits(group.ops[0])


@FEW
@given(PAIRS)
def test_the_hash_of_a_combination_is_the_published_one(rows):
    crossed = (["n", "t", "b"] >> HashedCross(1000, "x")).transform(triples(rows))["x"]
    assert crossed.tolist() == [((hash_of(row) >> 32) * 1000) >> 32 for row in rows]


def test_given_combinations_are_not_learned_and_keep_their_order(tmp_path):
    given_pairs = [("b", 2), (None, 1), ("a", None), ("a", 1)]
    op = Categorify(vocabularies={"s_X_n": given_pairs}, combo=True, num_oov_buckets=2)
    group = ["s", "n"] >> op
    assert group.ops[0].unlearned(["s", "n"]) == []
    chunk = chunk_of(s=["a", None, "a", "b", "z", None], n=[1, 1, None, 2, 2, None])
    loaded = through_disk(tmp_path, group, chunk=chunk)
    out = loaded.transform(chunk)["s_X_n"].tolist()
    assert [*out[:4], out[5]] == [7, 5, 6, 4, 1]
    assert out[4] in (2, 3)
    assert loaded.groups[0].ops[0].vocabulary("s_X_n") == given_pairs
    refitted = loaded.fit(chunk_of(s=["q"], n=[9]))
    assert refitted.groups[0].ops[0].vocabulary("s_X_n") == given_pairs


def test_combinations_through_disk_learned(tmp_path):
    chunk = chunk_of(day=[1, 1, None], shop=["a", "b", "a"], user=["x", "y", None])
    group = ["day", "shop"] >> Categorify(combo=True, freq_threshold={"pair": 1}, name="pair")
    joint = ["user"] >> Categorify(joint=True, max_size=4, num_oov_buckets=1)
    loaded = through_disk(tmp_path, group, joint, chunk=chunk)
    assert loaded.embedding_sizes() == {"pair": (6, 16), "user": (4, 16)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"joint": True, "combo": True}, "a combination is one column"),
        ({"name": "x"}, "name='x' names a combination"),
        ({"combo": True, "vocabularies": {"p": [(1, 2), (1,)]}}, "tuples of one length"),
        ({"combo": True, "vocabularies": {"p": [1, 2]}}, "tuples of one length"),
        ({"combo": True, "vocabularies": {"p": [(None, None)]}}, "a tuple of nulls alone"),
        (
            {"combo": True, "vocabularies": {"p": [(1, "a"), (2, "a"), (1, "a")]}},
            r"'p': Categorify: vocabulary: keys must be unique, \(1, 'a'\) stands twice",
        ),
    ],
)
def test_combinations_refuse_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        Categorify(**arguments)


def test_combinations_name_op_and_column():
    op = Categorify(combo=True)
    with pytest.raises(TypeError, match="'l': Categorify takes one value per row, got lists"):
        learned(["a", "l"] >> op, chunk_of(a=[1], l=[[1]]))
    with pytest.raises(TypeError, match="'x': Categorify takes integers or strings, got float64"):
        learned(["a", "x"] >> op, chunk_of(a=[1], x=[0.5]))
    with pytest.raises(ValueError, match="combo=True combines two columns or more"):
        ["a"] >> op
    group = learned(["a", "b"] >> op, chunk_of(a=[1], b=["x"]))
    with pytest.raises(TypeError, match="'b': Categorify has keys of string, got int64"):
        group.transform(chunk_of(a=[1], b=[2]))
    parts = chunk_of(a=[1], b=["x"]), chunk_of(a=["y"], b=["x"])
    with pytest.raises(
        TypeError, match="'a_X_b': Categorify found keys of int64 and of large_string"
    ):
        learned(group, *parts)
    joint = Categorify(joint=True)
    with pytest.raises(
        TypeError, match="'joint': Categorify found keys of int64 and of large_string"
    ):
        joint.partial(chunk_of(a=[1], b=["x"]))


# -------------------------------------------------------------------------------------- FillMedian


def test_fill_median_by_hand():
    chunk = chunk_of(
        odd=[5.0, None, 1.0, 9.0, None],
        even=([4, None, 1, 2, 9], pa.int16()),
        same=[0.5, 1.5, None, 0.5, 1.5],
        lists=[[1.0, None], [], [8.0, 3.0], [None], []],
        whole=[3, 1, 2, 5, 4],
    )
    group = learned(list(chunk) >> FillMedian(), chunk)
    assert group.ops[0].learned() == {
        "medians": {"odd": 5.0, "even": 2, "same": 1.0, "lists": 3.0, "whole": 3}
    }
    out = group.transform(chunk)
    assert [plain(values) for values in out.values()] == [
        [5, 5, 1, 9, 5],
        [4, 2, 1, 2, 9],
        [0.5, 1.5, 1, 0.5, 1.5],
        [[1, 3], [], [8, 3], [3], []],
        [3, 1, 2, 5, 4],
    ]
    assert [out["even"].dtype, out["odd"].dtype] == [np.int16, np.float64]


@FEW
@given(st.lists(st.tuples(NUMBERS, INTEGERS), min_size=1, max_size=40), CUTS, RANDOM)
def test_fill_median_equals_pandas_whatever_the_chunks(rows, cuts, random):
    x, n = [[*values, 1] for values in zip(*rows, strict=True)]
    chunk = chunk_of(x=(x, pa.float64()), n=(n, pa.int64()))
    group = learned(["x", "n"] >> FillMedian(), *cut(chunk, cuts), random=random)
    medians = group.ops[0].learned()["medians"]
    assert medians["x"] == pd.Series(x, dtype=float).median()
    whole = sorted(value for value in n if value is not None)
    assert medians["n"] == whole[(len(whole) - 1) // 2]
    out = group.transform(chunk)
    assert out["x"].tolist() == pd.Series(x, dtype=float).fillna(medians["x"]).tolist()
    assert out["n"].tolist() == [medians["n"] if value is None else value for value in n]


@FEW
@given(st.lists(st.integers(-1000, 1000), min_size=5, max_size=60), CUTS, RANDOM, st.integers(2, 6))
def test_fill_median_of_too_many_values_rounds_them_alike_whatever_the_chunks(
    values, cuts, random, max_values
):
    chunk = chunk_of(x=[value / 7 for value in values], n=values)
    op = FillMedian(max_values=max_values)
    group = learned(["x", "n"] >> op, *cut(chunk, cuts), random=random)
    once = bits(group.ops[0])
    state = op.partial(chunk)
    for _, rounded, kept, counts in state.values():
        assert len(kept) <= max_values
        assert counts.sum() == len(values)
        assert rounded or len(kept) == len(set(values))
    assert bits(learned(group, chunk).ops[0]) == once


def test_fill_median_beyond_its_limit_is_near():
    x = np.random.default_rng(0).lognormal(sigma=3, size=200_001)
    chunk = Chunk({"x": x, "n": (x * 1e6).astype(np.int64)})
    group = learned(["x", "n"] >> FillMedian(max_values=50_000), chunk)
    medians = group.ops[0].learned()["medians"]
    assert medians["x"] != np.median(x)
    assert medians["x"] == pytest.approx(np.median(x), rel=1e-3)
    exact = learned(["x"] >> FillMedian(max_values=10**6), chunk).ops[0].learned()
    assert exact["medians"]["x"] == np.median(x)


def test_fill_median_goes_with_other_ops_and_through_disk(tmp_path):
    chunk = chunk_of(x=[3.0, None, 1.0, 8.0], n=[4, None, 4, 5])
    group = ["x", "n"] >> FillMedian(add_binary_cols=True) >> LogOp()
    loaded = through_disk(tmp_path, group, chunk=chunk)
    out = loaded.transform(chunk)
    assert out.names == ["x", "n", "x_filled", "n_filled"]
    assert out["n"].tolist() == np.log1p([4, 4, 4, 5]).astype(np.float32).tolist()
    assert loaded.groups[0].ops[0].learned() == {"medians": {"x": 3.0, "n": 4}}


def test_fill_median_names_op_and_column():
    with pytest.raises(TypeError, match="'s': FillMedian takes numbers, got strings"):
        learned(["s"] >> FillMedian(), chunk_of(s=["a"]))
    with pytest.raises(ValueError, match="'x': FillMedian found no value"):
        learned(["x"] >> FillMedian(), chunk_of(x=([None], pa.float64())))
    with pytest.raises(ValueError, match=r"'x': FillMedian takes values below 2\*\*400, got inf"):
        learned(["x"] >> FillMedian(), chunk_of(x=[1.0, float("inf")]))
    with pytest.raises(TypeError, match="'x': FillMedian cannot take one median of integers and"):
        learned(["x"] >> FillMedian(), chunk_of(x=[1]), chunk_of(x=[0.5]))
    with pytest.raises(ValueError, match="max_values must be at least 2, got 1"):
        FillMedian(max_values=1)
    group = learned(["n"] >> FillMedian(), chunk_of(n=[1000]))
    with pytest.raises(ValueError, match="'n': FillMedian cannot put 1000 into a column of int8"):
        group.transform(Chunk({"n": column([1, None], pa.int8())}))


# ------------------------------------------------------------------------------------- and in other


def test_the_least_value_is_the_same_zero_whichever_came_first():
    zeros = Chunk({"x": np.array([0.0])}), Chunk({"x": np.array([-0.0, 1.0])})
    for parts in (zeros, zeros[::-1]):
        one = learned(["x"] >> NormalizeMinMax(), *parts).ops[0]
        assert str(one.learned()) == "{'min': {'x': 0.0}, 'range': {'x': 1.0}}"
    one = Workflow(["x"] >> FillMedian()).fit(list(zeros))
    assert one.fingerprint == Workflow(["x"] >> FillMedian()).fit(list(zeros[::-1])).fingerprint


def test_combinations_are_found_where_their_numbers_exceed_32_bits():
    """200,000 pairs and as many values of the next part make 4e10 numbers."""
    generator, count = np.random.default_rng(0), 200_000
    last = generator.permutation(count)
    index = CombinationIndex([np.arange(count), np.zeros(count, np.int64), last])
    first, other = generator.integers(0, count, (2, 1_000_000))
    other[:500] = last[first[:500]]
    found = index.find([first, np.zeros(len(first), np.int64), other])
    assert found.tolist() == np.where(last[first] == other, first + 1, 0).tolist()
