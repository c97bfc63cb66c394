"""KerasSequenceValidater: the figures of a second data set in the logs of each epoch."""

from __future__ import annotations

from typing import Any

import keras


class KerasSequenceValidater(keras.callbacks.Callback):
    """Evaluates the model on a loader at the end of each epoch, as `validation_data` would.

    The figures are those of `model.evaluate(loader)`, since it is what runs. They are added to the
    epoch's logs, where History and all callbacks that stand behind this one (EarlyStopping,
    ModelCheckpoint) find them; the training figures of the epoch are already in the logs and stay
    as they are.

    Args:
        loader: anything `model.evaluate` takes as `x`, with labels.
        prefix: what goes before the metrics' names.

    Raises:
        ValueError: if the logs already hold such a name, as with `validation_data` given to `fit`.

    Example:
        >>> import numpy as np, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> data = tf.data.Dataset.from_tensors((np.ones((4, 2)), np.ones((4, 1))))
        >>> history = model.fit(data, verbose=0, callbacks=[KerasSequenceValidater(data)])
        >>> sorted(history.history)
        ['loss', 'val_loss']
    """

    def __init__(self, loader: Any, prefix: str = "val_") -> None:
        super().__init__()
        self.loader, self.prefix = loader, prefix

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluate, and add the results to the logs."""
        logs = {} if logs is None else logs
        results = self.model.evaluate(self.loader, return_dict=True, verbose=0)
        named = {self.prefix + name: value for name, value in results.items()}
        taken = sorted(set(named) & set(logs))
        if taken:
            raise ValueError(
                f"the logs already hold {taken}. Give fit either validation_data or a "
                "KerasSequenceValidater, or the callback another prefix."
            )
        logs.update(named)
