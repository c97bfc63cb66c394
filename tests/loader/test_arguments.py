"""Arguments of a loader that are refused, or accepted, before anything is read."""

import numpy as np
import pytest

from tests.support.loaders import loader_with
from tutorlib.columns import Ragged

loader_of = loader_with(10, label_names=["y"])


@pytest.fixture(scope="module")
def columns():
    rows = np.arange(100)
    lists = Ragged(rows, np.arange(101))
    names = dict.fromkeys(["g__values", "g__nnzs", "g__offsets"], rows)
    return {"g": lists, **names, "y": np.zeros(100, "float32")}


@pytest.mark.parametrize("name", ["buffer_size", "memory_budget"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0, -1])
def test_a_size_that_is_not_positive_and_finite_is_refused(folder, name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
        loader_of(folder, **{name: value})


def test_a_memory_budget_may_be_text_with_a_unit(folder):
    assert loader_of(folder, memory_budget="1.5GB").describe()["budget_bytes"] == 1_500_000_000
    with pytest.raises(ValueError, match=r"text such as '1\.5GB' or '512MiB', got '1 gig'"):
        loader_of(folder, memory_budget="1 gig")


TENSORS = {
    "nnzs": ["g__values", "g__nnzs"],
    "offsets": ["g__values", "g__offsets"],
    "ragged": [],
    "padded": [],
}


@pytest.mark.parametrize("form", TENSORS)
@pytest.mark.parametrize("beside", ["g__values", "g__nnzs", "g__offsets"])
def test_only_a_name_that_a_list_takes_in_the_batch_is_refused(folder, form, beside):
    loader = loader_of(folder, cat_names=["g", beside], cont_names=[], multi_hot=form)
    if beside in TENSORS[form]:
        with pytest.raises(ValueError, match=f"column '{beside}' has the name of a tensor that"):
            loader.peek()
    else:
        assert {beside, *(TENSORS[form] or ["g"])} == set(loader.peek()[0])
