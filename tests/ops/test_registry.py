"""A saved Workflow refers to an op by module and name: ours and a user's are never exchanged."""

import json

import numpy as np
import pytest

from tutorlib import ops
from tutorlib.columns import Chunk
from tutorlib.workflow import Workflow

DATA = Chunk({"x": np.array([-1, 3, 9])})


def own_clip():
    """Define a user's op with the name and arguments of ours."""

    class Clip(ops.ColumnOp):
        def __init__(self, min_value=None, max_value=None):
            self.min_value, self.max_value = min_value, max_value

        def transform_column(self, name, column):
            return column * 0

    return Clip


def own_dropna():
    class Dropna(ops.RowOp):
        def __init__(self, names):
            self.names = names

        def keep(self, chunk):
            return np.zeros(chunk.num_rows, bool)

        def get_config(self):
            return {"names": self.names}

    return Dropna


def saved(folder, kind):
    return Workflow(["x"] >> kind(0, 5)).fit(DATA).save(folder)


def loaded(folder):
    return Workflow.load(folder).transform(DATA)["x"].tolist()


def test_a_users_op_of_the_same_name_does_not_replace_ours(tmp_path):
    own_clip()
    saved(tmp_path / "ours", ops.Clip)
    own_clip()
    assert loaded(tmp_path / "ours") == [0, 3, 5]


def test_ours_does_not_replace_a_users_op_of_the_same_name(tmp_path):
    saved(tmp_path / "theirs", own_clip())
    assert loaded(tmp_path / "theirs") == [0, 0, 0]


def test_a_users_row_op_of_the_same_name_is_told_apart(tmp_path):
    for name, kind, rows in (("ours", ops.Dropna, 3), ("theirs", own_dropna(), 0)):
        Workflow(["x"], row_ops=[kind(["x"])]).fit(DATA).save(tmp_path / name)
        own_dropna()
        assert Workflow.load(tmp_path / name).transform(DATA).num_rows == rows


def test_ops_of_the_same_name_have_different_fingerprints():
    ours, theirs = (Workflow(["x"] >> kind(0, 5)).fit(DATA) for kind in (ops.Clip, own_clip()))
    assert ours.fingerprint != theirs.fingerprint


def test_a_users_op_that_is_not_imported_is_refused_with_the_remedy(tmp_path, monkeypatch):
    folder = saved(tmp_path / "theirs", own_clip())
    name = json.loads((folder / "workflow.json").read_text())["groups"][0]["ops"][0]["op"]
    assert name == f"{__name__}.own_clip.<locals>.Clip"
    monkeypatch.delitem(ops.Op.registry, name)
    with pytest.raises(ValueError, match=r"Clip' is not known.* import the module that defines it"):
        Workflow.load(folder)


def test_a_group_cannot_be_saved_with_a_row_op_or_the_other_way_round():
    with pytest.raises(ValueError, match=r"'tutorlib\.ops\.Dropna' is not known"):
        ops.op_class("tutorlib.ops.Dropna")
    with pytest.raises(ValueError, match=r"'tutorlib\.ops\.Clip' is not known"):
        ops.row_op_class("tutorlib.ops.Clip")


@pytest.mark.parametrize("kind", [*ops.OPS.values(), *ops.ROW_OPS.values()])
def test_each_op_of_this_library_is_saved_by_its_public_name(kind):
    name = ops.saved_name(kind)
    assert name == f"tutorlib.ops.{kind.__name__}"
    assert getattr(ops, kind.__name__) is kind
    find = ops.op_class if issubclass(kind, ops.Op) else ops.row_op_class
    assert find(name) is kind


def test_the_tables_hold_every_op_of_this_library():
    for table, registry in ((ops.OPS, ops.Op.registry), (ops.ROW_OPS, ops.RowOp.registry)):
        ours = {kind for name, kind in registry.items() if name.startswith("tutorlib.ops.")}
        assert set(table.values()) == {kind for kind in ours if not kind.__abstractmethods__}
