"""SmallLoader, the file of lesson 08: each row once, in an order that anybody can compute."""

import tempfile

import keras
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notebooks.small_loader import SmallLoader
from tests.loader.reference import Reference
from tests.loader.test_against_reference import assert_same, files_drawn, write
from tutorlib.schema import Column, Schema

ROW = np.arange(3000)
TABLE = pa.table(
    {
        "row": ROW,
        "id": pa.array(ROW % 90, pa.int32()),
        "x": pa.array(ROW / 3, pa.float32()),
        "y": ROW / 7,
        "label": pa.array(ROW % 2, pa.float32()),
    }
)
ROLES = {"row": "categorical", "id": "categorical", "x": "continuous", "label": "label"}
REFERENCE = Reference(TABLE, Schema(Column(name, role) for name, role in ROLES.items()))


def order_of(files, parts, seed, epoch):
    """The rows of an epoch: distinct row groups in chunks, each chunk with its own permutation."""
    counts = [count for counts in files for count in counts]
    groups = np.split(ROW[: sum(counts)], np.cumsum(counts)[:-1])
    groups = [groups[i] for i in np.random.default_rng([seed, epoch]).permutation(len(groups))]
    rows = []
    for number, start in enumerate(range(0, len(groups), parts)):
        chunk = np.concatenate(groups[start : start + parts])
        rows += chunk[np.random.default_rng([seed, epoch, number]).permutation(len(chunk))].tolist()
    return rows


def arrays(batch):
    inputs, label = batch
    return {name: tensor.numpy() for name, tensor in inputs.items()}, label.numpy()


@settings(max_examples=30)
@given(
    files=files_drawn.filter(lambda files: sum(map(sum, files)) > 0),
    size=st.integers(1, 40) | st.integers(1, 400),
    parts=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    threads=st.sampled_from([1, 4]),
    taken=st.floats(0, 1, exclude_max=True),
)
def test_batches_are_those_of_the_order_also_after_a_resume(
    files, size, parts, seed, threads, taken
):
    with tempfile.TemporaryDirectory() as folder:
        total = write(folder, files, TABLE)
        paths = [f"{folder}/{number}.parquet" for number in range(len(files))]

        def loader():
            return SmallLoader(paths, size, parts=parts, seed=seed, threads=threads, columns=ROLES)

        whole, first = loader(), loader()
        epochs = [list(map(arrays, whole)) for _ in range(2)]
        batches, taken = iter(first), int(taken * len(first))
        begun = [arrays(next(batches)) for _ in range(taken)]
        batches.close()
        resumed = loader()
        resumed.load_state_dict(first.state_dict())
        rest = list(map(arrays, resumed))
    for epoch, batches in enumerate(epochs):
        order = order_of(files, parts, seed, epoch)
        assert sorted(order) == list(range(total))
        want = [order[start : start + size] for start in range(0, total, size)]
        assert len(batches) == len(want) == len(whole)
        for have, rows in zip(batches, want, strict=True):
            assert_same(have, REFERENCE.batch(rows))
    assert_same(dict(enumerate(begun + rest)), dict(enumerate(epochs[0])))
    assert resumed.state_dict() == {"seed": seed, "epoch": 1, "batch": 0}


def test_fit_trains_on_each_batch_and_after_a_resume_on_the_rest(tmp_path):
    write(tmp_path, [[70, 300], [200]], TABLE)
    paths = sorted(tmp_path.glob("*.parquet"))
    x = keras.Input((1,), name="x")
    model = keras.Model({"x": x}, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    loader = SmallLoader(paths, 64, columns=["x", "label"])
    model.fit(loader, epochs=2, verbose=0)
    assert model.optimizer.iterations == 2 * len(loader) == 2 * 9
    loader.load_state_dict({"seed": 0, "epoch": 2, "batch": 4})
    model.fit(loader, verbose=0)
    assert (model.optimizer.iterations, loader.epoch) == (18 + 5, 3)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1, None, 3]), "nulls"),
        (pa.array([1.0, np.nan, 3.0]), "NaN"),
        (pa.array([[1], [2], [3]]), "numbers"),
    ],
)
def test_columns_that_are_not_plain_numbers_are_refused(tmp_path, column, message):
    write(tmp_path, [[3]], pa.table({"x": column, "label": [0.0, 1.0, 0.0]}))
    with pytest.raises((TypeError, ValueError), match=message):
        list(SmallLoader([tmp_path / "0.parquet"], 2))
