"""JoinGroupby and TargetEncoding: against pandas and exact fractions, whatever the chunks."""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import bits, chunk_of, column, cut, learned, plain, through_disk
from tests.support.ops_strategies import CUTS, FEW, KEYED, NUMBERS, RANDOM, keyed_chunk
from tests.support.oracles import MASK, hash_text, mix
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Categorify, TargetEncoding
from tutorlib.ops.shared.exact import ratios
from tutorlib.workflow import Workflow

ALL = ["count", "sum", "mean", "std", "min", "max"]

# ------------------------------------------------------------------------------------- JoinGroupby


def test_join_groupby_by_hand():
    chunk = chunk_of(user=[7, 5, 7, None, 7], price=[1.0, 5.0, 2.0, 9.0, None])
    group = learned(["user"] >> JoinGroupby(["price"], ALL), chunk)
    out = group.transform(chunk_of(user=[5, 7, 6, None]))
    assert out.names == group.output_names
    assert {name: plain(values) for name, values in out.items()} == {
        "user_count": [1, 3, 0, 0],
        "user_price_sum": [5, 3, 0, 0],
        "user_price_mean": [5, 1.5, "nan", "nan"],
        "user_price_std": [0, 0.5, "nan", "nan"],
        "user_price_min": [5, 1, "nan", "nan"],
        "user_price_max": [5, 2, "nan", "nan"],
    }
    assert {values.dtype.name for values in out.values()} == {"float32"}


def test_join_groupby_of_a_key_without_values_knows_its_rows_only():
    chunk = chunk_of(user=["a", "a"], price=([None, None], pa.float32()))
    group = learned(["user"] >> JoinGroupby(["price"], ALL, dtype="float64"), chunk)
    out = group.transform(chunk_of(user=["a"]))
    assert [plain(values) for values in out.values()] == [[2], [0], *[["nan"]] * 4]
    assert out["user_count"].dtype == np.float64


def test_keys_in_a_narrow_range_and_far_apart_get_the_same_numbers():
    rng = np.random.default_rng(0)
    user, price = rng.integers(-50, 50, 1_000), rng.normal(size=1_000)
    outs = []
    for apart in (1, 10**15):
        chunk = Chunk({"user": user * apart, "day": user % 3 * apart, "price": price})
        alone = learned(["user"] >> JoinGroupby(["price"], ALL), chunk)
        pairs = learned(["user", "day"] >> TargetEncoding("price", None, combo=True), chunk)
        outs.append([*alone.transform(chunk).values(), *pairs.transform(chunk).values()])
    for narrow, wide in zip(*outs, strict=True):
        assert narrow.tobytes() == wide.tobytes()


@given(st.lists(st.tuples(st.integers(-(2**61), 2**61), st.integers(0, 2**30))), st.booleans())
def test_means_are_rounded_once(sums, small):
    totals = [total >> 10 if small else total for total, _ in sums]
    counts = [count for _, count in sums]
    fits = sum(map(abs, totals)) < 2**62
    found = ratios(np.array(totals, np.int64 if fits else object), np.array(counts, np.int64), 26)
    exact = [t / (n << 26) if n else math.nan for t, n in zip(totals, counts, strict=True)]
    assert np.array_equal(found, np.array(exact), equal_nan=True)


def test_the_mean_of_tiny_values_is_not_zero():
    assert ratios(np.array([3]), np.array([2]), 1040).tolist() == [3 / (2 << 1040)]


def test_join_groupby_takes_each_value_of_a_list_as_a_row():
    chunk = chunk_of(tags=[[1, 2], [], [2, None]], price=[10.0, 99.0, 20.0])
    group = learned(["tags"] >> JoinGroupby(["price"], ["count", "mean"]), chunk)
    out = group.transform(chunk)
    assert out["tags_count"].tolist() == [[1, 2], [], [2, 0]]
    assert str(out["tags_price_mean"].tolist()) == "[[10.0, 15.0], [], [15.0, nan]]"
    made = group.output_columns(Workflow(["tags"]).fit(chunk).output_schema)
    assert [c.name for c in made] == ["tags_count", "tags_price_mean"]
    assert all(c.multi_hot for c in made)


@FEW
@given(KEYED, CUTS, RANDOM)
def test_join_groupby_equals_pandas_whatever_the_chunks(rows, cuts, random):
    chunk = keyed_chunk(rows)
    group = ["n", "t"] >> JoinGroupby(["x"], ALL, dtype="float64")
    both = ["n", "t"] >> JoinGroupby(["x"], ALL, combo=True, dtype="float64")
    frame = pd.DataFrame(rows, columns=["n", "t", "x", "row"]).astype({"x": float})
    frame["n"] = pd.array([row[0] for row in rows], dtype="Int64")
    for which, keys in ((group, ["n"]), (group, ["t"]), (both, ["n", "t"])):
        learned(which, *cut(chunk, cuts), random=random)
        out = which.transform(chunk)
        name = "_X_".join(keys)
        groups = frame.groupby(keys)["x"]
        size, spread = groups.transform("size"), groups.transform("std", ddof=0)
        np.testing.assert_array_equal(out[f"{name}_count"], size.fillna(0))
        total = groups.transform("sum").fillna(0)
        np.testing.assert_allclose(out[f"{name}_x_sum"], total, rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(
            out[f"{name}_x_mean"], groups.transform("mean"), rtol=1e-9, atol=1e-6
        )
        np.testing.assert_allclose(out[f"{name}_x_std"], spread, rtol=1e-6, atol=1e-5)
        np.testing.assert_array_equal(out[f"{name}_x_min"], groups.transform("min"))
        np.testing.assert_array_equal(out[f"{name}_x_max"], groups.transform("max"))
        once = bits(which.ops[0])
        assert bits(learned(which, chunk).ops[0]) == once


@FEW
@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1), st.data())
def test_join_groupby_of_lists_equals_pandas_on_their_values(lists, data):
    values = data.draw(st.lists(NUMBERS, min_size=len(lists), max_size=len(lists)))
    chunk = chunk_of(tags=(lists, pa.list_(pa.int64())), x=(values, pa.float64()))
    out = learned(["tags"] >> JoinGroupby(["x"], ["count", "mean"]), chunk).transform(chunk)
    frame = (
        pd.DataFrame({"tags": lists, "x": np.array(values, float)})
        .explode("tags")
        .dropna(subset=["tags"])
    )
    if len(frame):
        groups = frame.groupby("tags")["x"]
        np.testing.assert_array_equal(out["tags_count"].values, groups.transform("size"))
        np.testing.assert_allclose(
            out["tags_x_mean"].values, groups.transform("mean"), rtol=1e-5, atol=1e-5
        )


def test_join_groupby_sums_without_rounding():
    chunk = chunk_of(k=[1, 1, 1], x=[1e100, 1.0, -1e100])
    group = ["k"] >> JoinGroupby(["x"], ["sum", "std"], dtype="float64")
    assert learned(group, chunk).transform(chunk)["k_x_sum"].tolist() == [1.0] * 3
    near = chunk_of(k=[1, 1], x=[1e9 + 0.25, 1e9 + 0.75])
    assert learned(group, near).transform(near)["k_x_std"].tolist() == [0.25, 0.25]
    tiny = chunk_of(k=[1, 1], x=[5e-324, 2.0**300])
    assert learned(group, tiny).transform(tiny)["k_x_sum"].tolist() == [2.0**300] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"statistics": ["median"], "continuous": ["x"]}, "statistics are some of"),
        ({"statistics": ["mean"]}, r"\['mean'\] need continuous columns, got none"),
        ({"name": "pair"}, "name='pair' names a combination"),
        ({"dtype": "int32"}, "JoinGroupby: dtype must be float16"),
    ],
)
def test_join_groupby_refuses_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        JoinGroupby(**arguments)


@pytest.mark.parametrize("op", [JoinGroupby(["x"], ["mean"]), TargetEncoding("x", None)])
def test_ops_on_groups_name_op_and_column(op):
    name = type(op).__name__
    good = chunk_of(k=[1, 2], x=[1.0, 2.0])
    with pytest.raises(TypeError, match=f"'k': {name} takes integers or strings, got float64"):
        learned(["k"] >> op, chunk_of(k=[1.5], x=[1.0]))
    with pytest.raises(TypeError, match=f"'x': {name} takes numbers, got strings"):
        learned(["k"] >> op, chunk_of(k=[1], x=["a"]))
    with pytest.raises(TypeError, match=f"'x': {name} takes one value per row, got lists"):
        learned(["k"] >> op, chunk_of(k=[1], x=[[1.0]]))
    with pytest.raises(ValueError, match=f"'x': {name} takes values below .*, got inf"):
        learned(["k"] >> op, chunk_of(k=[1], x=[math.inf]))
    with pytest.raises(TypeError, match=f"'k': {name} has keys of int64, got string"):
        learned(["k"] >> op, good).transform(chunk_of(k=["a"]))
    with pytest.raises(TypeError, match=f"'k': {name} found keys of int64 and of large_string"):
        learned(["k"] >> op, good, chunk_of(k=["a"], x=[1.0]))
    with pytest.raises(ValueError, match=f"{name}: reads columns \\['x'\\] as the data has them"):
        ["k", "x"] >> op


def test_combinations_refuse_lists():
    op = JoinGroupby(["x"], ["mean"], combo=True)
    with pytest.raises(TypeError, match="'l': JoinGroupby takes one value per row, got lists"):
        learned(["k", "l"] >> op, chunk_of(k=[1], l=[[1]], x=[1.0]))


# ---------------------------------------------------------------------------------- TargetEncoding


def fold_of(value, folds, seed=0):
    hashed = hash_text(value) if isinstance(value, str) else mix(value & MASK)
    return ((mix(hashed ^ mix(seed & MASK)) >> 32) * folds) >> 32


def mean_of(keys, targets, key, smoothing, prior=None):
    """The encoding of one key by its definition; None where there is no target at all."""
    there = [(k, Fraction(t)) for k, t in zip(keys, targets, strict=True) if t is not None]
    if prior is None:
        if not there:
            return None
        prior = sum(t for _, t in there) / len(there)
    mine = [t for k, t in there if k == key and None not in k]
    weight = Fraction(smoothing)
    if not mine and not weight:
        return float(Fraction(prior))
    return float((sum(mine) + weight * Fraction(prior)) / (len(mine) + weight))


def test_target_encoding_by_hand():
    chunk = chunk_of(user=[7, 7, 5, None], label=[1, 0, 1, 1], row=[3, 0, 1, 2])
    folds = [fold_of(row, 2) for row in (3, 0, 1, 2)]
    assert folds == [0, 1, 1, 1]  # the first row is alone in its fold
    op = TargetEncoding("label", fold_column="row", folds=2, smoothing=1)
    fitted = Workflow(["user"] >> op).fit(chunk)
    assert fitted.input_names == ["user", "row"]
    out = fitted.transform(chunk.select(["user", "row"]))["user_label_mean"]
    # The first row sees the others: prior 2/3, user 7 has the target 0. They see it alone.
    want = [(0 + 2 / 3) / 2, (1 + 1) / 2, 1.0, 1.0]
    assert out.tolist() == np.array(want, np.float32).tolist()
    serving = fitted
    assert serving.input_names == ["user"]
    out = serving.transform(chunk_of(user=[7, 5, None, 9]))["user_label_mean"]
    want = [(1 + 0.75) / 3, (1 + 0.75) / 2, 0.75, 0.75]
    assert out.tolist() == np.array(want, np.float32).tolist()
    assert fitted.input_names == ["user", "row"]  # for_serving leaves the workflow as it is


@FEW
@given(KEYED, CUTS, RANDOM, st.integers(2, 4), st.sampled_from([0, 0.5, 20]), st.booleans())
def test_target_encoding_gives_each_row_what_the_other_folds_alone_would(
    rows, cuts, random, folds, smoothing, own_prior
):
    chunk = keyed_chunk(rows)
    prior = 0.25 if own_prior else None
    op = TargetEncoding(
        "x", "row", folds, smoothing, prior, seed=3, combo=True, name="pair", dtype="float64"
    )
    keys, targets = [row[:2] for row in rows], [row[2] for row in rows]
    fold = [fold_of(row[3], folds, seed=3) for row in rows]
    want, possible = [], True
    for held_out in range(folds):
        outside = [k for k, f in enumerate(fold) if f != held_out]
        left = [keys[k] for k in outside], [targets[k] for k in outside]
        possible &= mean_of(*left, None, smoothing, prior) is not None
    possible &= mean_of(keys, targets, None, smoothing, prior) is not None
    group = ["n", "t"] >> op
    if not possible:
        with pytest.raises(ValueError, match="'x': TargetEncoding found no value"):
            learned(group, *cut(chunk, cuts), random=random)
        return
    for key, mine in zip(keys, fold, strict=True):
        outside = [k for k, f in enumerate(fold) if f != mine]
        left = [keys[k] for k in outside], [targets[k] for k in outside]
        want.append(mean_of(*left, key, smoothing, prior))
    learned(group, *cut(chunk, cuts), random=random)
    assert group.transform(chunk)["pair_x_mean"].tolist() == want
    served = group.ops[0].transform(chunk.select(["n", "t"]))["pair_x_mean"]
    assert served.tolist() == [mean_of(keys, targets, key, smoothing, prior) for key in keys]
    assert bits(learned(group, chunk).ops[0]) == bits(group.ops[0])


def test_target_encoding_of_lists_takes_each_value_as_a_row():
    chunk = chunk_of(tags=[["a", "b"], [], ["a", None]], y=[1, 1, 0])
    op = TargetEncoding("y", None, smoothing=2, prior=0.5)
    out = learned(["tags"] >> op, chunk).transform(chunk)["tags_y_mean"]
    assert out.tolist() == [[0.5, np.float32(2 / 3)], [], [0.5, 0.5]]


def test_target_encoding_of_several_targets_and_columns_with_folds_of_texts():
    chunk = chunk_of(
        a=[1, 1, 2, 2], b=["x", "y", "x", None], y=[1, 0, 1, 1], z=[4.0, None, 2.0, 0.0],
        day=["mon", "tue", "wed", "thu"],
    )  # fmt: skip
    op = TargetEncoding(["y", "z"], "day", folds=3, smoothing=0, prior={"y": 0, "z": -1})
    group = learned(["a", "b"] >> op, chunk.slice(0, 1), chunk.slice(1, 4))
    assert group.output_names == ["a_y_mean", "a_z_mean", "b_y_mean", "b_z_mean"]
    out = group.transform(chunk)
    rows = list(zip(*(chunk[name].tolist() for name in "abyz"), strict=True))
    folds = [fold_of(day, 3) for day in chunk["day"].tolist()]
    for place, target, prior in ((2, "y", 0), (3, "z", -1)):
        for key, name in ((0, "a"), (1, "b")):
            want = []
            for row, fold in zip(rows, folds, strict=True):
                left = [r for r, f in zip(rows, folds, strict=True) if f != fold]
                targets = [None if r[place] != r[place] else r[place] for r in left]
                want.append(mean_of([(r[key],) for r in left], targets, (row[key],), 0, prior))
            assert out[f"{name}_{target}_mean"].tolist() == want


def test_the_fold_of_a_row_depends_neither_on_targets_nor_on_its_place():
    generator = np.random.default_rng(0)
    chunk = Chunk(
        {"k": generator.integers(0, 9, 300), "row": np.arange(300), "y": generator.random(300)}
    )
    fitted = Workflow(["k"] >> TargetEncoding("y", "row")).fit(chunk)
    order = generator.permutation(300)
    shuffled = fitted.transform(chunk.take(order))["k_y_mean"]
    assert shuffled.tolist() == fitted.transform(chunk)["k_y_mean"][order].tolist()
    again = Workflow(["k"] >> TargetEncoding("y", "row")).fit(chunk.take(order))
    assert again.fingerprint == fitted.fingerprint
    other = Workflow(["k"] >> TargetEncoding("y", "row", seed=1)).fit(chunk)
    assert other.fingerprint != fitted.fingerprint


def test_target_encoding_of_pure_noise_tells_nothing_of_a_rows_own_target():
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 4000)
    chunk = Chunk({"k": np.arange(4000) // 2, "row": np.arange(4000), "y": y})
    leaking = Workflow(["k"] >> TargetEncoding("y", None, smoothing=1)).fit(chunk)
    honest = Workflow(["k"] >> TargetEncoding("y", "row", smoothing=1)).fit(chunk)
    assert np.corrcoef(leaking.transform(chunk)["k_y_mean"], y)[0, 1] > 0.6
    assert abs(np.corrcoef(honest.transform(chunk)["k_y_mean"], y)[0, 1]) < 0.06


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targets": []}, "name each target once"),
        ({"folds": 1}, r"folds must be in \[2, 2\*\*12\), got 1"),
        ({"smoothing": -1}, "smoothing must be a finite number of at least 0, got -1"),
        ({"prior": {"z": 1}}, r"prior must name each of \['y'\], got \['z'\]"),
        ({"fold_column": "y"}, "folds must not depend on the target 'y'"),
    ],
)
def test_target_encoding_refuses_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        TargetEncoding(**{"targets": "y", "fold_column": "row", **arguments})


def test_target_encoding_names_the_fold_column_that_gives_no_fold():
    group = ["k"] >> TargetEncoding("y", "row")
    with pytest.raises(ValueError, match=r"'row': TargetEncoding needs a value .* null at row 1"):
        learned(group, chunk_of(k=[1, 2], y=[0, 1], row=[5, None]))
    with pytest.raises(TypeError, match="'row': TargetEncoding takes integers or strings"):
        learned(group, chunk_of(k=[1], y=[0], row=[0.5]))
    with pytest.raises(TypeError, match="'row': TargetEncoding takes one value per row, got lists"):
        learned(group, chunk_of(k=[1], y=[0], row=[[1]]))
    with pytest.raises(ValueError, match=r"columns \['y'\] are not in the data"):
        Workflow(group).fit(chunk_of(k=[1], row=[1]))


def test_groups_learn_from_ids_made_before_them_and_from_the_data_as_it_is(tmp_path):
    generator = np.random.default_rng(1)
    chunk = chunk_of(
        user=generator.choice(["u", "v", "w", None], 200).tolist(),
        item=generator.integers(0, 5, 200),
        price=generator.lognormal(size=200),
        label=generator.integers(0, 2, 200),
        row=np.arange(200),
    )
    loaded = through_disk(
        tmp_path,
        ["user", "item"] >> Categorify() >> TargetEncoding("label", "row", combo=True),
        ["user", "item"] >> JoinGroupby(["price"], ["count", "mean"]),
        ["item", "user"] >> JoinGroupby(["price", "label"], ["std", "max"], combo=True, name="iu"),
        ["label"],
        chunk=chunk,
    )
    assert loaded.output_schema.continuous.names == loaded.output_names[:-1]
    assert loaded.output_names[0] == "user_X_item_label_mean"
    parts = [chunk.slice(a, a + 40) for a in range(0, 200, 40)]
    assert loaded.fit(parts[::-1]).fingerprint == loaded.fit(chunk).fingerprint


def test_groups_without_any_key_give_every_row_what_a_new_key_gets():
    chunk = chunk_of(k=([None, None], pa.string()), x=[1.0, 3.0])
    group = learned(["k"] >> JoinGroupby(["x"], ["count", "mean"]), chunk)
    out = group.transform(Chunk({"k": column(["a", None])}))
    assert [plain(values) for values in out.values()] == [[0, 0], ["nan", "nan"]]
    op = learned(["k"] >> TargetEncoding("x", None), chunk).ops[0]
    assert op.transform(Chunk({"k": column(["a", None])}))["k_x_mean"].tolist() == [2.0, 2.0]


def test_a_loader_reads_the_fold_column_that_a_workflow_looks_at(tmp_path):
    generator = np.random.default_rng(0)
    rows = pa.table(
        {"k": generator.integers(0, 5, 400), "row": np.arange(400), "label": generator.random(400)}
    )
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=100)
    op = TargetEncoding("label", "row", dtype="float32")
    workflow = Workflow(["k"] >> op, ["label"]).fit(tmp_path / "rows.parquet")
    with KerasSequenceLoader(
        tmp_path / "rows.parquet", 100, label_names=["label"], cont_names=["k"], shuffle=False
    ) as loader:
        batches = [inputs["k_label_mean"] for inputs, _ in loader.map(workflow)]
    want = workflow.transform(Chunk.from_arrow(rows))["k_label_mean"]
    assert np.concatenate(batches)[:, 0].tolist() == want.tolist()
