"""Ids that training never saw: a model scores their rows no worse than a constant does."""

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tutorlib.layers import DenseFeatures
from tutorlib.loader import KerasSequenceLoader
from tutorlib.models import keras_inputs
from tutorlib.ops import Categorify
from tutorlib.workflow import Workflow

USERS, ITEMS = 120, 300


@pytest.fixture(scope="module")
def ratings():
    """Ratings by time: (earlier, later) tables. A user rates 20 to 200 items within some days."""
    random = np.random.default_rng(7)
    counts = random.integers(20, 201, USERS)
    users = np.repeat(np.arange(USERS), counts)
    time = np.repeat(random.random(USERS), counts) + 0.02 * random.random(len(users))
    items = (ITEMS * random.random(len(users)) ** 2).astype(np.int64)
    stars = 3.5 + random.normal(0, 0.5, USERS)[users] + random.normal(0, 0.6, ITEMS)[items]
    stars += random.normal(0, 0.6, len(users))
    by_time = np.argsort(time)
    liked = (stars > 3.5).astype(np.float32)
    table = pa.table({"user": users, "item": items, "liked": liked})
    cut = int(0.7 * len(users))
    earlier, later = table.take(by_time[:cut]), table.take(by_time[cut:])
    known = np.isin(later["user"].to_numpy(), earlier["user"].to_numpy())
    assert known.mean() < 0.1
    return earlier, later


def test_rows_of_new_users_are_scored_no_worse_than_by_a_constant(ratings):
    earlier, later = ratings
    keras.utils.set_random_seed(1)
    workflow = Workflow(["user", "item"] >> Categorify(), ["liked"], label_names=["liked"])
    train = KerasSequenceLoader(earlier, 256, seed=1).map(workflow.fit(earlier))
    valid = KerasSequenceLoader(later, 1024, shuffle=False).map(workflow)
    inputs = keras_inputs(train.schema)
    hidden = keras.layers.Dense(32, "relu")(DenseFeatures(train.schema)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(0.005), "binary_crossentropy")
    model.fit(train, epochs=4, verbose=0)
    liked, constant = later["liked"].to_numpy(), earlier["liked"].to_numpy().mean()
    losses = [
        np.where(liked, -np.log(probability), -np.log(1 - probability)).mean()
        for probability in (model.predict(valid, verbose=0)[:, 0], constant)
    ]
    assert losses[0] < losses[1]


def test_a_null_where_training_had_none_is_the_trained_unknown_id_on_every_path(ratings, tmp_path):
    earlier, _ = ratings
    fitted = Workflow(["user", "item"] >> Categorify()).fit(earlier, threads=2)
    loaded = Workflow.load(fitted.save(tmp_path / "saved"))
    assert loaded.fingerprint == fitted.fingerprint
    rows = pa.table({"user": [None, 10**6], "item": pa.array([None, None], pa.int64())})
    for workflow in (fitted, loaded):
        written = pq.read_table(
            workflow.transform_to_parquet(rows, tmp_path / "out", overwrite=True)
        )
        assert written.to_pydict() == {"user": [2, 2], "item": [2, 2]}
        batch = KerasSequenceLoader(rows, 2, shuffle=False).map(workflow).peek()[0]
        raw = {"user": [0, 10**6], "user__valid": [False, True], "item": [0, 0]}
        served = workflow.to_keras()(raw | {"item__valid": [False, False]})
        for made in (batch, served):
            assert {n: np.ravel(ids).tolist() for n, ids in made.items()} == written.to_pydict()
