"""Those who come from NVTabular get today's form: from errors, and from a page that runs."""

import copy
import inspect
import pickle
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tutorlib import KerasSequenceLoader, Workflow, ops
from tutorlib.checks import FORMER_NAMES
from tutorlib.parquet import ParquetSink

PAGE = (Path(__file__).parents[1] / "docs/from_nvtabular.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.*?) \| (`.*) \|$", PAGE, flags=re.MULTILINE)
CLASSES = {"KerasSequenceLoader": KerasSequenceLoader, "Workflow": Workflow}
OF_CLASSES = [(cls, name) for owner, cls in CLASSES.items() for name in FORMER_NAMES[owner]]


@pytest.mark.parametrize(("cls", "name"), OF_CLASSES)
def test_a_former_name_of_a_class_is_answered_with_todays_form(cls, name):
    form = re.escape(FORMER_NAMES[cls.__name__][name])
    assert name not in inspect.signature(cls).parameters
    assert not hasattr(cls, name)
    with pytest.raises(TypeError, match=f"{name}.* of NVTabular: {form}"):
        cls("a", **{name: 1})
    with pytest.raises(AttributeError, match=f"{name}.* of NVTabular: {form}"):
        getattr(Workflow(["a"]) if cls is Workflow else cls.__new__(cls), name)


def test_a_former_name_of_ops_is_answered_with_todays_form():
    for name, form in FORMER_NAMES[ops.__name__].items():
        with pytest.raises(AttributeError, match=f"{name}.*{re.escape(form)}"):
            getattr(ops, name)


def test_other_names_get_pythons_own_errors():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        Workflow(["a"], colour=1)
    with pytest.raises(AttributeError, match=r"'Workflow' object has no attribute 'colour'$"):
        _ = Workflow(["a"]).colour
    with pytest.raises(AttributeError, match=r"module 'tutorlib.ops' has no attribute 'colour'$"):
        _ = ops.colour
    with pytest.raises(ImportError, match="colour"):
        from tutorlib.ops import colour  # noqa: F401


def test_a_workflow_can_be_copied_and_pickled():
    made = Workflow(["a"] >> ops.Normalize())
    assert repr(copy.deepcopy(made)) == repr(pickle.loads(pickle.dumps(made))) == repr(made)


def test_the_page_names_every_former_name():
    old = " ".join(before for before, _ in ROWS)
    names = {name for names in FORMER_NAMES.values() for name in names}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", old)] == []


def test_todays_side_of_every_row_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            **{name: rng.integers(0, 20, 500) for name in ("C1", "C2")},
            "I1": rng.normal(1, 1, 500).astype("float32"),
            "genres": [list(range(k % 5)) for k in range(500)],
            "label": rng.integers(0, 2, 500).astype("float32"),
        }
    )
    with ParquetSink("raw/a.parquet") as sink:
        sink.write(table)
    names = {}
    exec("from tutorlib import *; import numpy as np", names)
    assert len(ROWS) == PAGE.count("\n| ") - 2  # all but the heads of the tables
    for _, after in ROWS:
        exec(re.match(r"`(.*?)`", after)[1], names)
    inputs, labels = names["padded"].peek()
    assert inputs["genres"].shape == (64, 5)
    assert labels.shape == (64, 1)
    inputs, _ = names["online"].peek()
    assert set(inputs) == {"C1", "I1", "genres__values", "genres__nnzs"}
    assert names["sizes"] == names["workflow"].embedding_sizes()
    assert names["bounded"].describe()["budget_bytes"] == 10**9
