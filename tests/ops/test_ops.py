"""Ops: each against values computed by hand, and against a pandas or NumPy oracle."""

import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.oracles import hash_text, mix
from tutorlib.chunk import Chunk, Masked, Ragged, column_from_arrow
from tutorlib.ops import (
    Bucketize,
    Categorify,
    Clip,
    FillMissing,
    HashBucket,
    HashedCross,
    JoinExternal,
    LambdaOp,
    LogOp,
    Normalize,
    NormalizeMinMax,
    Rename,
    exact_sum,
)

FEW = settings(max_examples=40, deadline=None)
integers = st.one_of(st.none(), st.integers(-3, 12), st.integers(-(2**63), 2**63 - 1))
texts = st.one_of(st.none(), st.sampled_from(["", "a", "b", "Müller"]), st.text(max_size=20))


def column(values, kind=None):
    return column_from_arrow(pa.array(values, kind))


def fit(op, *chunks):
    states = [op.partial(chunk) for chunk in chunks]
    state = states[0]
    for other in states[1:]:
        state = op.merge(state, other)
    op.reset()
    op.finalize(state)
    return op


# -------------------------------------------------------------------------------------- HashBucket


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


@pytest.mark.parametrize("op", [HashBucket(3), Categorify(vocabularies={"x": [1]})])
def test_ops_on_keys_refuse_floats_and_name_op_and_column(op):
    with pytest.raises(TypeError, match=f"'x': {type(op).__name__} takes integers or strings"):
        (["x"] >> op).transform(Chunk({"x": np.array([1.0, 2.0])}))


@pytest.mark.parametrize(
    "op", [Clip(min_value=0), LogOp(), Bucketize([1]), FillMissing(0)], ids=lambda op: str(op)
)
def test_ops_on_numbers_refuse_texts_and_name_op_and_column(op):
    with pytest.raises(TypeError, match=f"'x': {type(op).__name__} "):
        (["x"] >> op).transform(Chunk({"x": column(["a"])}))


def test_hashed_cross_depends_on_every_value_and_their_order():
    a, b = column([1, 1, 2, None]), column(["x", "y", "x", "x"])
    crossed = (["a", "b"] >> HashedCross(2**30)).transform(Chunk({"a": a, "b": b}))["a_X_b"]
    swapped = (["b", "a"] >> HashedCross(2**30)).transform(Chunk({"a": a, "b": b}))["b_X_a"]
    assert len({*crossed.tolist(), *swapped.tolist()}) == 8
    assert crossed[0] == ((mix(mix(mix(1)) ^ hash_text("x")) >> 32) * 2**30) >> 32


# -------------------------------------------------------------------------------------- Categorify


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


def test_categorify_settings_by_column():
    chunk = Chunk({"a": np.array([1, 1, 2]), "b": np.array([1, 1, 2])})
    op = fit(Categorify(freq_threshold={"a": 2}, max_size={"b": 3}), chunk)
    assert [op.cardinality("a"), op.cardinality("b")] == [4, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_oov_buckets": 0}, "num_oov_buckets must be at least 1, got 0"),
        ({"max_size": 2}, "max_size must be at least 3"),
        ({"vocabularies": {"x": [1, 2, 1]}}, "'x': Categorify: vocabulary: .*1 stands twice"),
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


def test_bucketize_by_hand():
    chunk = Chunk(
        {"x": column([None, -1, 0, 9, 10]), "l": column([[0.0, None], [], [11.0], [], []])}
    )
    out = (["x", "l"] >> Bucketize([0, 10])).transform(chunk)
    assert out["x"].tolist() == [1, 2, 3, 3, 4]
    assert out["l"].tolist() == [[3, 1], [], [4], [], []]
    with pytest.raises(ValueError, match="boundaries must rise"):
        Bucketize([1, 1])


# -------------------------------------------------------------------------------------- continuous


@FEW
@given(st.lists(st.floats(-1e200, 1e200), min_size=1, max_size=60))
def test_exact_sum_is_exact(values):
    assert exact_sum(np.array(values)) == sum(map(Fraction, values))


def test_exact_sum_over_blocks():
    values = np.random.default_rng(0).standard_normal(40_000) * 10.0 ** np.arange(40_000).clip(0, 9)
    assert float(exact_sum(values)) == math.fsum(values.tolist())


@FEW
@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32) | st.just(math.nan), max_size=9),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_normalize_does_not_depend_on_chunks_or_order_to_the_last_bit(parts, random):
    flat = np.array([v for part in parts for v in part] + [0.5])
    whole = fit(Normalize(), Chunk({"x": flat}))
    op = Normalize()
    states = [op.partial(Chunk({"x": np.array(part, float)})) for part in [*parts, [0.5]]]
    while len(states) > 1:
        random.shuffle(states)
        states.append(op.merge(states.pop(), states.pop()))
    op.finalize(states[0])
    assert op.learned() == whole.learned()
    want = pd.Series(flat)
    assert op.learned()["mean"]["x"] == pytest.approx(want.mean(), rel=1e-12, abs=1e-9)
    assert op.learned()["std"]["x"] == pytest.approx(want.std(ddof=0), rel=1e-9, abs=1e-6)


def test_normalize_does_not_lose_a_small_spread_beside_a_large_mean():
    op = fit(Normalize(), Chunk({"x": np.array([1e9 + 0.25, 1e9 + 0.75])}))
    assert op.learned() == {"mean": {"x": 1e9 + 0.5}, "std": {"x": 0.25}}


def test_normalize_by_hand():
    chunk = Chunk(
        {
            "x": np.array([1.0, 3.0, np.nan], np.float32),
            "same": np.array([4, 4, 4]),
            "nulls": column([2, None, 6]),
            "lists": column([[1.0], [3.0, None], []]),
        }
    )
    out = fit(Normalize(), chunk).transform(chunk)
    assert str(out["x"].tolist()) == "[-1.0, 1.0, nan]"
    assert out["same"].tolist() == [0, 0, 0]
    assert str(out["nulls"].tolist()) == "[-1.0, nan, 1.0]"
    assert str(out["lists"].tolist()) == "[[-1.0], [1.0, nan], []]"
    assert {c.dtype.name for c in (out["x"], out["same"], out["nulls"])} == {"float32"}
    assert fit(Normalize(dtype="float64"), chunk).transform(chunk)["x"].dtype == np.float64


def test_normalize_names_a_column_that_it_cannot_learn_from():
    with pytest.raises(ValueError, match="'x': Normalize found no value"):
        fit(Normalize(), Chunk({"x": np.array([np.nan])}))
    with pytest.raises(ValueError, match=r"'x': Normalize takes values .*, got inf"):
        Normalize().partial(Chunk({"x": np.array([1.0, np.inf])}))
    with pytest.raises(ValueError, match="dtype must be float16"):
        Normalize(dtype="int32")


def test_normalize_min_max_by_hand():
    chunk = Chunk({"x": column([2, None, 6, 3]), "same": np.array([5.0, 5, 5, np.nan])})
    out = fit(NormalizeMinMax(), chunk.slice(0, 2), chunk.slice(2, 4)).transform(chunk)
    assert str(out["x"].tolist()) == "[0.0, nan, 1.0, 0.25]"
    assert str(out["same"].tolist()) == "[0.0, 0.0, 0.0, nan]"


def test_fill_missing_by_hand():
    chunk = Chunk(
        {
            "f": np.array([np.nan, 2.0], np.float32),
            "n": column([None, 3], pa.int32()),
            "whole": np.array([1, 2]),
            "lists": column([[None, 4], []]),
        }
    )
    out = (list(chunk) >> FillMissing(7)).transform(chunk)
    assert [c.tolist() for c in out.values()] == [[7, 2], [7, 3], [1, 2], [[7, 4], []]]
    assert [out["f"].dtype, out["n"].dtype] == [np.float32, np.int32]
    texts = (["s"] >> FillMissing("?")).transform(Chunk({"s": column(["a", None])}))
    assert texts["s"].tolist() == ["a", "?"]


def test_fill_missing_adds_indicator_columns_behind_the_others():
    group = ["a", "b"] >> FillMissing(0, add_binary_cols=True)
    out = group.transform(Chunk({"a": np.array([np.nan, 1]), "b": column([1, None])}))
    assert out.names == group.output_names == ["a", "b", "a_filled", "b_filled"]
    assert [out["a_filled"].tolist(), out["b_filled"].tolist()] == [[1, 0], [0, 1]]
    assert out["a_filled"].dtype == np.float32


def test_fill_missing_refuses_what_the_column_cannot_hold():
    with pytest.raises(ValueError, match=r"'n': FillMissing cannot put 0.5 into .* int64"):
        (["n"] >> FillMissing(0.5)).transform(Chunk({"n": column([None, 3])}))
    with pytest.raises(TypeError, match=r"'n': FillMissing cannot put 'x' into .* int64"):
        (["n"] >> FillMissing("x")).transform(Chunk({"n": column([None, 3])}))


def test_clip_by_hand():
    group = ["n"] >> Clip(min_value=0, max_value=255)
    assert group.transform(Chunk({"n": column([-5, None, 300])}))["n"].tolist() == [0, None, 255]
    small = (["b"] >> Clip(0, 255)).transform(Chunk({"b": np.array([-5, 100], np.int8)}))["b"]
    assert small.tolist() == [0, 100]
    assert small.dtype == np.int8
    floats = (["f"] >> Clip(max_value=0.5)).transform(Chunk({"f": np.array([np.nan, 2, -1])}))["f"]
    assert str(floats.tolist()) == "[nan, 0.5, -1.0]"


@pytest.mark.parametrize(
    ("arguments", "message"), [({}, "give min_value"), ({"min_value": 2, "max_value": 1}, "above")]
)
def test_clip_refuses_limits_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        Clip(**arguments)


def test_clip_refuses_a_fraction_for_integers():
    with pytest.raises(ValueError, match=r"'n': Clip cannot limit a column of int64 to 0.5"):
        (["n"] >> Clip(0.5)).transform(Chunk({"n": np.array([1])}))


def test_log_by_hand_and_its_error_names_column_value_and_place():
    out = (["x"] >> LogOp()).transform(Chunk({"x": column([0, None, 7])}))["x"]
    assert str(out.tolist()) == str([0.0, math.nan, float(np.float32(math.log(8)))])
    assert out.dtype == np.float32
    with pytest.raises(ValueError, match=r"'x': LogOp .* above -1, got -1.0 at value 2"):
        (["x"] >> LogOp()).transform(Chunk({"x": np.array([0, 1, -1])}))


# ---------------------------------------------------------------------------- tables and functions

MOVIES = pa.table(
    {
        "movieId": [30, 10, 20],
        "genres": [["War", "Art"], [], ["Art"]],
        "title": ["Thirty", None, "Twenty"],
        "year": [1990, 1991, None],
        "score": [0.5, None, 2.0],
    }
)


def test_join_external_by_hand():
    chunk = Chunk({"movieId": column([20, 99, None, 30, 10])})
    out = (["movieId"] >> JoinExternal(MOVIES, on="movieId")).transform(chunk)
    assert out.names == ["movieId", "genres", "title", "year", "score"]
    assert out["genres"].tolist() == [["Art"], [], [], ["War", "Art"], []]
    assert out["title"].tolist() == ["Twenty", None, None, "Thirty", None]
    assert out["year"].tolist() == [None, None, None, 1990, 1991]
    assert str(out["score"].tolist()) == "[2.0, nan, nan, 0.5, nan]"


@FEW
@given(st.lists(st.sampled_from([10, 20, 30, 31]), min_size=1))
def test_join_external_equals_pandas_merge(keys):
    rows = pd.DataFrame({"movieId": keys})
    want = rows.merge(MOVIES.to_pandas()[["movieId", "year", "title"]], on="movieId", how="left")
    group = ["movieId"] >> JoinExternal(MOVIES, "movieId", ["year", "title"])
    out = group.transform(Chunk.from_arrow(pa.Table.from_pandas(rows))).to_pandas()
    for name in ("year", "title"):
        assert out[name].astype(object).where(out[name].notna(), None).tolist() == (
            want[name].astype(object).where(want[name].notna(), None).tolist()
        )


def test_join_external_by_text_from_a_data_frame_and_from_a_file(tmp_path):
    frame = pd.DataFrame({"word": ["b", "a"], "n": [2, 1]})
    chunk = Chunk({"word": column(["a", "b", "c"])})
    frame.to_parquet(tmp_path / "words.parquet")
    for table in (frame, tmp_path / "words.parquet"):
        out = (["word"] >> JoinExternal(table, on="word")).transform(chunk)
        assert out["n"].tolist() == [1, 2, None]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"k": [1, 2, 1], "v": [1, 2, 3]}, "'k': JoinExternal .* unique keys: .*1 stands twice"),
        ({"k": [1, None], "v": [1, 2]}, "'k': JoinExternal found a null key"),
        ({"k": np.zeros(0, int), "v": np.zeros(0)}, "'k': JoinExternal needs a table with rows"),
        ({"v": [1, 2]}, r"columns \['k'\] cannot be joined; the table has \['v'\]"),
    ],
)
def test_join_external_refuses_tables_that_have_no_unique_key(table, message):
    with pytest.raises(ValueError, match=message):
        JoinExternal(pa.table(table), on="k")


def test_lambda_op_applies_the_function_to_values_that_are_there():
    chunk = Chunk({"x": column([1, None, 3]), "lists": column([[1, 2], [], []])})
    out = (["x", "lists"] >> LambdaOp(lambda x: x * 10)).transform(chunk)
    assert str(out["x"].tolist()) == "[10.0, nan, 30.0]"
    assert out["x"].dtype == np.float32
    assert out["lists"].tolist() == [[10, 20], [], []]
    out = (["x"] >> LambdaOp(lambda x: x + 1, dtype="int64")).transform(chunk)
    assert out["x"].tolist() == [2, None, 4]


def test_lambda_op_gets_texts_as_an_arrow_array():
    import pyarrow.compute as pc

    chunk = Chunk({"s": column(["ab", None, "c"])})
    out = (["s"] >> LambdaOp(pc.utf8_upper, dtype="string")).transform(chunk)
    assert out["s"].tolist() == ["AB", None, "C"]
    lengths = (["s"] >> LambdaOp(pc.utf8_length, dtype="int32")).transform(chunk)["s"]
    assert lengths.tolist() == [2, None, 1]


@pytest.mark.parametrize("dtype", ["float32", "int64", "string"])
def test_lambda_op_on_a_column_of_nulls_alone_gives_nulls(dtype):
    def refuse(values):
        raise AssertionError("there is no value to call the function with")

    chunk = Chunk({"x": column([None, None], pa.int64())})
    out = (["x"] >> LambdaOp(refuse, dtype)).transform(chunk)["x"]
    assert str(out.tolist()) == ("[nan, nan]" if dtype == "float32" else "[None, None]")


def test_lambda_op_refuses_another_number_of_values():
    with pytest.raises(ValueError, match=r"'x': LambdaOp gave 2 values .* and got 1 back"):
        (["x"] >> LambdaOp(lambda x: x[:1])).transform(Chunk({"x": np.arange(2)}))


# ------------------------------------------------------------------------------------------ groups


def test_groups_copy_their_ops_so_that_one_op_may_stand_in_several():
    op = Categorify()
    first, second = ["a"] >> op, ["b"] >> op
    assert first.ops[0] is not second.ops[0]


def test_rename_and_select():
    group = (["a", "b"] >> Rename({"a": "x"}))[["b", "x"]]
    assert group.output_names == ["b", "x"]
    out = group.transform(Chunk({"a": np.array([1]), "b": np.array([2])}))
    assert out.names == ["b", "x"]
    with pytest.raises(ValueError, match=r"no columns \['c'\] to select"):
        group["c"]


def test_a_class_instead_of_an_op_is_refused():
    with pytest.raises(TypeError, match="forget the brackets"):
        (["a"] >> LogOp()) >> Categorify


def test_ops_leave_the_chunk_that_they_get_as_it_is():
    given = {
        "f": np.array([np.nan, 2.0]),
        "n": Masked(np.array([1, 2]), np.array([True, False])),
    }
    ops = [FillMissing(0), Clip(0), LogOp(), LambdaOp(lambda x: x + 1), Bucketize([1])]
    for op in ops:
        chunk = Chunk({"f": given["f"].copy(), "n": Masked(np.array([1, 2]), given["n"].valid)})
        (["f", "n"] >> op).transform(chunk)
        assert str(chunk["f"].tolist()) == "[nan, 2.0]"
        assert chunk["n"].values.tolist() == [1, 2]


def test_importing_ops_does_not_start_tensorflow():
    code = "import sys, tutorlib.ops, tutorlib.workflow; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
