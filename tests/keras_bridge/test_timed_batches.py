"""TimedBatches train as their dataset does, and count the seconds of waiting for it."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import compiled_model, data
from tutorlib.keras_bridge import TimedBatches


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("steps_per_execution", [1, 3])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_training_on_timed_batches_equals_training_on_the_dataset(known, steps_per_execution):
    dataset = data() if known else data().filter(lambda x, y: True)
    timed = TimedBatches.of_dataset(dataset)
    model = compiled_model(steps_per_execution=steps_per_execution)
    plain = compiled_model(steps_per_execution=steps_per_execution)
    given = model.fit(timed, epochs=2, verbose=0, shuffle=False).history["loss"]
    assert given == pytest.approx(plain.fit(dataset, epochs=2, verbose=0).history["loss"])
    assert timed.batches == 10
    assert timed.wait_s > 0


def test_a_pass_continues_over_epochs_of_some_steps():
    timed = TimedBatches.of_dataset(data().repeat())
    compiled_model().fit(timed, epochs=3, steps_per_epoch=2, verbose=0)
    assert timed.batches == 6


def test_what_keras_would_ignore_is_refused():
    timed = TimedBatches.of_dataset(data())
    for given in ({"class_weight": {0: 1.0}}, {"batch_size": 8}, {"sample_weight": np.ones(70)}):
        with pytest.raises(ValueError, match=f"{next(iter(given))}.* with timed batches has"):
            compiled_model().fit(timed, verbose=0, **given)
    with (
        tf.distribute.MirroredStrategy(["CPU:0"]).scope(),
        pytest.raises(ValueError, match=r"needs the tf\.data\.Dataset itself"),
    ):
        TimedBatches.of_dataset(data())
