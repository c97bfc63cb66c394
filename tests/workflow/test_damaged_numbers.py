"""Every number of a saved workflow has bounds, which are checked before memory is taken."""

import copy
import json
import resource
import subprocess
import sys

import numpy as np
import pytest

from tests.support.ops import chunk_of
from tutorlib import ops
from tutorlib.workflow import Workflow

DATA = chunk_of(
    n=[3, 1, 3, 2], x=[0.5, 2.0, None, 1.0], t=["a", "b", None, "a"],
    lists=[[1, 2], [], [3], [1]], y=[1, 0, 1, 1], row=[0, 1, 2, 3],
)  # fmt: skip
GROUPS = [
    ["n"] >> ops.Categorify({"n": 1}, {"n": 9}, 2) >> ops.Rename({"n": "n1"}),
    ["n"] >> ops.HashBucket({"n": 9}) >> ops.Rename({"n": "n2"}),
    ["n", "t"] >> ops.HashedCross(99, "nt"),
    ["x"] >> ops.FillMedian() >> ops.Clip(0, 9.5) >> ops.Bucketize([1, 2.5]),
    ["x"] >> ops.FillMissing(1.5) >> ops.Normalize() >> ops.Rename({"x": "x1"}),
    ["x"] >> ops.NormalizeMinMax() >> ops.Rename({"x": "x2"}),
    ["lists"] >> ops.ListSlice(0, 2, pad=True, pad_value=7),
    ["t"] >> ops.TargetEncoding(["y"], "row", 3, 0.5, {"y": 0.25}, 7),
]
LOAD = """
import json, sys
from tutorlib.workflow import Workflow

folder = sys.argv[1]
for text in json.load(sys.stdin):
    open(f"{folder}/workflow.json", "w").write(text)
    try:
        Workflow.load(folder)
    except ValueError as error:
        print(str(error).replace("\\n", " "))
    else:
        print("loaded")
"""
LIMIT = 2**33  # bytes of memory of the process that loads


def places(value, place=()):
    """The way to every number: names and positions."""
    fields = value.items() if isinstance(value, dict) else enumerate(value)
    for name, field in fields:
        if isinstance(field, dict | list):
            yield from places(field, (*place, name))
        elif isinstance(field, int | float) and not isinstance(field, bool):
            yield (*place, name)


def edited(content, place, number):
    content = copy.deepcopy(content)
    field = content
    for name in place[:-1]:
        field = field[name]
    field[place[-1]] = number
    return json.dumps(content)


def limit_memory():
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))


def answers_to(texts, folder):
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)], input=json.dumps(texts),
        capture_output=True, text=True, preexec_fn=limit_memory,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    workflow = Workflow(*GROUPS, row_ops=[ops.Filter([("n", "in", [1, 2, 3]), ("y", "<", 7.5)])])
    folder = workflow.fit(DATA).save(tmp_path_factory.mktemp("numbers") / "saved")
    return folder, json.loads((folder / "workflow.json").read_text())


def test_every_number_of_a_saved_workflow_has_bounds_and_the_error_names_its_field(saved):
    folder, content = saved
    wrong = [10**400, -(10**400), 2**63, 2**64, float("nan"), float("inf"), [], "7", None]
    cases = [(place, number) for place in places(content) for number in wrong]
    assert len({place for place, _ in cases}) > 30
    answers = answers_to([edited(content, *case) for case in cases], folder)
    for (place, number), answer in zip(cases, answers, strict=True):
        got = (place, np.shape(number), str(number)[:20], answer)
        assert answer.startswith(f"{folder}"), got
        assert "workflow.json" in answer, got
        if number in (10**400, -(10**400), 2**64):
            field = next(name for name in reversed(place) if isinstance(name, str))
            assert field in answer, got
        if isinstance(number, int | float):
            assert "Error:" not in answer, got  # a rule of ours


def test_fields_nested_too_deeply_are_refused_by_name_of_the_file(saved):
    folder, content = saved
    whole = json.dumps({**content, "more": 0})
    texts = [whole[:-2] + "[" * depth + "]" * depth + "}" for depth in (20_000, 200_000)]
    for answer in answers_to(texts, folder):
        assert "workflow.json" in answer
        assert "nested too deeply" in answer


@pytest.mark.parametrize("version", [2.0, 3.0, "2", "3", True, None, 10**400, 2, -1, [3]])
def test_a_version_that_is_not_this_one_is_refused_with_one_rule(saved, version):
    folder, content = saved
    (answer,) = answers_to([json.dumps({**content, "format_version": version})], folder)
    assert "version" in answer
    assert str(version)[:9] in answer or repr(version)[:9] in answer
    assert not ("version 3," in answer and "reads version 3" in answer)
