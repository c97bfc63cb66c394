"""TargetEncoding: by its definition in exact fractions; serving values unless for training."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ops import chunk_of, cut, fit
from tests.support.ops_strategies import CUTS, FEW, KEYED, keyed_chunk
from tests.support.oracles import MASK, mix
from tutorlib.columns import Chunk
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import TargetEncoding
from tutorlib.workflow import Workflow


def fold_of(value, folds):
    return ((mix(mix(value & MASK)) >> 32) * folds) >> 32


def mean_of(rows, key, smoothing):
    """The encoding of a key by (key, target) of rows; None where there is no target at all."""
    rows = [(k, Fraction(t)) for k, t in rows if t is not None]
    if not rows:
        return None
    prior = sum(t for _, t in rows) / len(rows)
    mine = [t for k, t in rows if k == key and key is not None]
    weight = Fraction(smoothing)
    if not mine and not weight:
        return float(prior)
    return float((sum(mine) + weight * prior) / (len(mine) + weight))


def test_by_hand():
    chunk = chunk_of(user=[7, 7, 5, None], label=[1, 0, 1, 1], row=[1, 0, 3, 4])
    assert [fold_of(row, 2) for row in (1, 0, 3, 4)] == [0, 1, 1, 1]
    op = TargetEncoding("label", fold_column="row", folds=2, smoothing=1)
    fitted = Workflow(["user"] >> op).fit(chunk)
    assert fitted.input_names == ["user"]
    out = fitted.transform(chunk_of(user=[7, 5, None, 9]))["user_label_mean"]
    assert out.tolist() == np.float32([(1 + 0.75) / 3, (1 + 0.75) / 2, 0.75, 0.75]).tolist()
    training = fitted.for_training()
    assert training.input_names == ["user", "row"]
    out = training.transform(chunk.select(["user", "row"]))["user_label_mean"]
    # The first row sees the others: prior 2/3, user 7 has the target 0. They see it alone.
    assert out.tolist() == np.float32([(0 + 2 / 3) / 2, (1 + 1) / 2, 1, 1]).tolist()


@FEW
@given(KEYED, CUTS, st.integers(2, 4), st.sampled_from([0, 0.5, 20]), st.booleans())
def test_each_row_gets_what_the_other_folds_alone_would_tell(rows, cuts, folds, smoothing, texts):
    chunk, key = keyed_chunk(rows), "t" if texts else "n"
    op = TargetEncoding("x", "row", folds, smoothing, dtype="float64")
    known = [(row[texts], row[2]) for row in rows]
    fold = [fold_of(row[3], folds) for row in rows]
    outside = [[r for r, f in zip(known, fold, strict=True) if f != k] for k in range(folds)]
    parts = [part.select([key, "x", "row"]) for part in cut(chunk, cuts)]
    if any(mean_of(some, None, smoothing) is None for some in [known, *outside]):
        with pytest.raises(ValueError, match="'x': TargetEncoding found no value"):
            fit(op, *parts)
        return
    fit(op, *parts)
    out = op.for_training().transform(chunk.select([key, "row"]))[f"{key}_x_mean"]
    want = [mean_of(outside[f], k, smoothing) for (k, _), f in zip(known, fold, strict=True)]
    assert out.tolist() == pytest.approx(want, rel=1e-12, abs=1e-9)
    served = op.transform(chunk.select([key]))[f"{key}_x_mean"]
    want = [mean_of(known, k, smoothing) for k, _ in known]
    assert served.tolist() == pytest.approx(want, rel=1e-12, abs=1e-9)


def test_each_value_of_a_list_is_a_row():
    chunk = chunk_of(tags=[["a", "b"], [], ["a", None]], k=[1, 1, 2], y=[1, 1, 0])
    op = TargetEncoding("y", None, smoothing=2)
    out = fit(op, chunk.slice(0, 1), chunk.slice(1, 3)).transform(chunk.select(["tags", "k"]))
    assert out["tags_y_mean"].tolist() == [[0.5, np.float32(2 / 3)], [], [0.5, 0.5]]
    assert out["k_y_mean"].tolist() == np.float32([5 / 6, 5 / 6, 4 / 9]).tolist()


def test_a_fold_of_large_targets_leaves_the_others_their_digits():
    chunk = chunk_of(
        k=[1] * 40, row=list(range(40)), y=[1e15 if n == 7 else 0.1 for n in range(40)]
    )
    op = fit(TargetEncoding("y", "row", smoothing=0, dtype="float64"), chunk)
    out = op.for_training().transform(chunk.select(["k", "row"]))["k_y_mean"]
    assert out[7] == pytest.approx(0.1, rel=1e-12)


def test_a_mean_tells_nothing_of_a_rows_own_target_only_for_training():
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 4000)
    chunk = Chunk({"k": np.arange(4000) // 2, "row": np.arange(4000), "y": y})
    fitted = Workflow(["k"] >> TargetEncoding("y", "row", smoothing=1)).fit(chunk)
    assert np.corrcoef(fitted.transform(chunk)["k_y_mean"], y)[0, 1] > 0.6
    assert abs(np.corrcoef(fitted.for_training().transform(chunk)["k_y_mean"], y)[0, 1]) < 0.06


def test_validation_in_a_loader_gets_what_serving_gives(tmp_path):
    generator = np.random.default_rng(0)
    rows = pa.table(
        {"k": generator.integers(0, 5, 400), "row": np.arange(400), "label": generator.random(400)}
    )
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=100)
    workflow = Workflow(["k"] >> TargetEncoding("label", "row"), ["label"]).fit(tmp_path)
    means = {}
    for name, one in (("valid", workflow), ("train", workflow.for_training())):
        options = {"label_names": ["label"], "cont_names": ["k"], "shuffle": False}
        with KerasSequenceLoader(tmp_path / "rows.parquet", 100, **options) as loader:
            batches = [np.asarray(inputs["k_label_mean"]) for inputs, _ in loader.map(one)]
        means[name] = np.concatenate(batches)[:, 0]
        assert (
            means[name].tolist() == one.transform(Chunk.from_arrow(rows))["k_label_mean"].tolist()
        )
    served = workflow.to_keras()({"k": rows["k"].to_numpy()})["k_label_mean"].numpy()[:, 0]
    assert served.tolist() == means["valid"].tolist()
    assert served.tolist() != means["train"].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": ["y"]}, "target must be the name of a column"),
        ({"folds": 1}, r"folds must be in \[2, 2\*\*8\), got 1"),
        ({"smoothing": -1}, "smoothing must be a finite number of at least 0, got -1"),
        ({"fold_column": "y"}, "folds must not depend on the target 'y'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        TargetEncoding(**{"target": "y", "fold_column": "row", **arguments})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"row": [5, None]}, r"'row': TargetEncoding needs a value .* null at row 1"),
        ({"row": [0.5, 1.0]}, "'row': TargetEncoding takes integers or strings"),
        ({"row": [[1], [2]]}, "'row': TargetEncoding takes one value per row, got lists"),
        ({"y": ["a", "b"]}, "'y': TargetEncoding takes numbers, got strings"),
        ({"k": [0.5, 1.0]}, "'k': TargetEncoding takes integers or strings"),
    ],
)
def test_columns_that_it_cannot_take_are_named(columns, message):
    rows = chunk_of(**{"k": [1, 2], "y": [0, 1], "row": [1, 2], **columns})
    with pytest.raises((TypeError, ValueError), match=message):
        TargetEncoding("y", "row").partial(rows)


def test_training_without_folds_is_refused_with_the_remedy():
    fitted = Workflow(["k"] >> TargetEncoding("y", None)).fit(chunk_of(k=[1, 1], y=[0, 1]))
    with pytest.raises(ValueError, match=r"for_training\(\) needs folds: name a column"):
        fitted.for_training()
