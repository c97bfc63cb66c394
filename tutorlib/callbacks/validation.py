"""KerasSequenceValidater: metrics on a second data set in the logs of each epoch."""

from __future__ import annotations

from typing import Any

import keras

from tutorlib.keras_bridge import LoaderAdapter


class KerasSequenceValidater(keras.callbacks.Callback):
    """Logs the metrics of `model.evaluate(loader)` at the end of each epoch, prefixed by `val_`.

    The values are those that `validation_data=loader` gives. The training metrics in the logs stay
    unchanged. Callbacks after this one in the list, such as EarlyStopping or ModelCheckpoint, see
    the values. Evaluation is not part of `samples_per_s` or `stall`, and does not move the loader,
    which may be the one that `fit` trains with.

    Args:
        loader: what `model.evaluate` takes as `x`, with labels.
        prefix: put before the name of each metric.

    Raises:
        ValueError: from `fit`, if the logs already hold such a name, for example because `fit` was
            given `validation_data` too.

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
        """Evaluate the model and add the results to the logs."""
        logs = {} if logs is None else logs
        results = self._evaluate()
        named = {self.prefix + name: value for name, value in results.items()}
        taken = sorted(set(named) & set(logs))
        if taken:
            raise ValueError(
                f"the logs already hold {taken}. Give fit either validation_data or a "
                "KerasSequenceValidater, or give the callback another prefix."
            )
        logs.update(named)

    def _evaluate(self) -> dict[str, Any]:
        """Return the metrics; a loader stays where it is, also if the evaluation fails."""
        moves = isinstance(self.loader, LoaderAdapter)
        position = self.loader.position if moves else None
        try:
            return self.model.evaluate(self.loader, return_dict=True, verbose=0)
        finally:
            if moves:
                self.loader.return_to(position)
