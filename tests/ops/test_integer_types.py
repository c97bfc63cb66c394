"""Keys are equal if they are equal as numbers, whatever the types of integers they come in."""

import numpy as np
import pytest

from tests.support.ops import plain
from tests.support.ops_served import Served
from tutorlib.columns import Chunk
from tutorlib.ops import Categorify, FillMissing, JoinExternal, TargetEncoding
from tutorlib.workflow import Workflow

LARGEST = 2**64 - 1  # has the bits of int64 -1
SIGNED, UNSIGNED = np.array([-1, 5]), np.array([LARGEST, 5], np.uint64)
PAIR = np.array([7, 7])
LEARN = {
    "Categorify": ["k"] >> Categorify(),
    "Categorify, vocabulary": ["k"] >> Categorify(vocabularies={"k": [-1, 5]}),
    "Categorify, combo": ["k", "p"] >> Categorify(combo=True),
    "JoinGroupby": ["k"] >> JoinGroupby(),
    "JoinGroupby, combo": ["k", "p"] >> JoinGroupby(combo=True),
    "TargetEncoding": ["k"] >> TargetEncoding("y", None, smoothing=0),
}


def chunk_of_keys(keys):
    return Chunk({"k": keys, "p": PAIR, "y": np.array([1.0, 3.0])})


def joined(table_keys):
    table = Chunk({"k": table_keys, "v": np.array([10.0, 20.0])})
    return ["k"] >> JoinExternal(table, "k")


@pytest.mark.parametrize("group", LEARN.values(), ids=LEARN)
def test_an_unsigned_key_is_not_a_negative_key_of_the_same_bits(group):
    made = Workflow(group).fit(chunk_of_keys(SIGNED))
    known, other = (made.transform(chunk_of_keys(keys)) for keys in (SIGNED, UNSIGNED))
    new = made.transform(chunk_of_keys(np.array([99, 5])))
    for name in made.output_names:
        assert plain(other[name]) == plain(new[name])
        assert plain(other[name]) != plain(known[name])


@pytest.mark.parametrize("table", [SIGNED, UNSIGNED], ids=["int64", "uint64"])
@pytest.mark.parametrize("keys", [SIGNED, UNSIGNED], ids=["int64", "uint64"])
def test_join_external_compares_numbers_not_bits(tmp_path, table, keys):
    made = Workflow(joined(table)[["v"]]).fit(Chunk({"k": keys}))
    made.save(tmp_path / "saved")
    equal = table.dtype == keys.dtype
    for workflow in (made, Workflow.load(tmp_path / "saved")):
        out = workflow.transform(Chunk({"k": keys}))
        assert plain(out["v"]) == [10.0 if equal else "nan", 20.0]


@pytest.mark.parametrize("table", [SIGNED, UNSIGNED], ids=["int64", "uint64"])
@pytest.mark.parametrize("keys", [SIGNED, UNSIGNED], ids=["int64", "uint64"])
def test_a_served_join_compares_numbers_too(table, keys):
    workflow = Workflow(joined(table)[["v"]] >> FillMissing(0.5))
    Served(workflow, Chunk({"k": keys})).check(Chunk({"k": keys}))


def test_a_vocabulary_holds_integers_beyond_int64_if_it_is_given():
    op = Categorify(vocabularies={"k": np.array([LARGEST, 5], np.uint64)})
    assert op.vocabulary("k") == [LARGEST, 5]
    made = Workflow(["k"] >> op).fit(Chunk({"k": UNSIGNED}))
    assert made.transform(Chunk({"k": UNSIGNED}))["k"].tolist() == [3, 4]
    assert made.transform(Chunk({"k": SIGNED}))["k"].tolist() == [2, 4]
    Served(made, Chunk({"k": UNSIGNED})).check(Chunk({"k": UNSIGNED}))
