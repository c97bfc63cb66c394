"""Columns may have any name: none of them is taken for a key, a part of one or a number."""

import itertools

import numpy as np
import pytest

from tests.support.ops import bits, chunk_of, learned, plain, through_disk
from tutorlib.ops import Categorify, FillMedian, TargetEncoding
from tutorlib.workflow import Workflow

NAMES = ["key", "key_", "key_0", "key_1", "key_x", "rows", "count", "sum", "value", "value_0",
         "joint", "mean", "priors"]  # fmt: skip
DATA = {"a": [7, 5, 7, 5], "b": [1, 1, 1, 2], "n": [1.0, 5.0, 2.0, 4.0]}


def groups_of(a, b, n):
    """Groups of two key columns and a column of numbers; each output once."""
    return {
        "JoinGroupby": [a, b] >> JoinGroupby([n], ["count", "mean", "std", "max"], dtype="float64"),
        "JoinGroupby, combo": [a, b] >> JoinGroupby([n], ["count", "min"], combo=True),
        "TargetEncoding": [a] >> TargetEncoding([n], b, folds=2, smoothing=1, prior=2),
        "Categorify, combo": [a, b] >> Categorify(combo=True),
        "Categorify": [a, b] >> Categorify(),
        "FillMedian": [n] >> FillMedian(),
    }


@pytest.mark.parametrize("op", groups_of("a", "b", "n"))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", ["a", "b", "n"])
def test_values_do_not_depend_on_the_names_of_columns(op, name, which):
    names = {**{k: k for k in DATA}, which: name}
    plain_group, group = groups_of("a", "b", "n")[op], groups_of(**names)[op]
    chunks = [chunk_of(**DATA), chunk_of(**{names[k]: values for k, values in DATA.items()})]
    outs = [learned(g, c).transform(c) for g, c in zip((plain_group, group), chunks, strict=True)]
    assert [plain(values) for values in outs[0].values()] == [
        plain(values) for values in outs[1].values()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_any_name_are_saved_spilled_and_loaded(tmp_path, name):
    random = np.random.default_rng(3)
    data = chunk_of(**{
        name: random.integers(0, 4000, 9000).tolist(),
        "b": random.integers(0, 3, 9000).tolist(),
        "n": random.random(9000).tolist(),
    })  # fmt: skip
    swapped = data.select(["n", "b"]).with_columns({"k": data[name]})
    for group, rows in (
        ([name, "b"] >> JoinGroupby(["n"], ["count", "std"], combo=True, name="j"), data),
        (["k"] >> JoinGroupby([name], ["count", "std"]), data.with_columns({"k": data["b"]})),
        (
            ["k"] >> TargetEncoding([name], "b", folds=3, prior=2),
            data.with_columns({"k": swapped["k"]}),
        ),
    ):
        whole = Workflow(group).fit(rows)
        spilled = Workflow(group).fit(
            [rows.slice(0, 4000), rows.slice(4000, 9000)], memory_budget=1
        )
        assert bits(whole.groups[0].ops[0]) == bits(spilled.groups[0].ops[0])
        through_disk(tmp_path, group, chunk=rows)


def test_two_outputs_of_one_name_are_refused_by_name():
    for a, b in itertools.permutations(("a", "a_x")):
        group = [a, b] >> JoinGroupby(["n", "x_n"], ["mean"])
        with pytest.raises(ValueError, match="a_x_n_mean"):
            Workflow(group)
