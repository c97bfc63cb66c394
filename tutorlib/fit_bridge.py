"""How a loader feeds Keras: tensors without a copy, and the adapter that `fit` takes as it is.

Keras turns generators, PyDatasets and torch loaders into `tf.data.Dataset.from_generator`, which
copies every tensor through NumPy. It passes an instance of its own `DataAdapter` through untouched,
and then loops over whatever `get_tf_dataset()` returns; a loader that is one hands its tensors to
the train step as they are. `DataAdapter` is not exported by Keras, so it is imported here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np

TESTED_KERAS = "3.15"

try:
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
except ImportError as error:  # pragma: no cover - needs another Keras
    raise ImportError(
        f"Keras {keras.__version__} has moved the DataAdapter that tutorlib was tested with (Keras "
        f"{TESTED_KERAS}). Install that version, or feed fit with loader.to_tf_dataset()."
    ) from error


def tensor_maker() -> Callable[[np.ndarray], Any]:
    """Return the function that makes a tensor of Keras's backend from a NumPy array, uncopied.

    The array must start at a multiple of 64 bytes (`batching.aligned_empty`): TensorFlow's DLPack
    import stops the process otherwise. The tensor keeps the array's memory alive.

    Raises:
        ValueError: for a backend without tensors of its own making here.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from tensorflow.experimental import dlpack

        def to_tensorflow(array: np.ndarray) -> Any:
            if not array.size:
                return keras.ops.convert_to_tensor(array)
            return dlpack.from_dlpack(array.__dlpack__())

        return to_tensorflow
    if backend == "torch":
        import torch

        return torch.from_numpy
    if backend in ("jax", "numpy"):
        return lambda array: array
    raise ValueError(f"no way to make tensors for the Keras backend {backend!r}")


class _Epochs(Iterable[Any]):
    """What Keras iterates over: every `iter()` is a pass over the loader's current epoch."""

    def __init__(self, loader: LoaderAdapter) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


class LoaderAdapter(DataAdapter):
    """The side of a loader that Keras sees; `KerasSequenceLoader` is one.

    A subclass has `__iter__`, `__len__`, `batch_size`, `partial_batch_size` and `check_for_fit`.
    Keras does not hand on what `fit` is given beside an adapter: `class_weight`, `sample_weight`,
    `batch_size` and `shuffle` of `fit` have no effect. They belong to the loader (`weight_name`,
    `batch_size`, `shuffle`).
    """

    def get_tf_dataset(self) -> Iterable[Any]:
        """Return the batches: an iterable of tensors that are already made."""
        self.check_for_fit()  # type: ignore[attr-defined]
        return _Epochs(self)

    get_jax_iterator = get_tf_dataset
    get_torch_dataloader = get_tf_dataset
    get_numpy_iterator = get_tf_dataset

    @property
    def num_batches(self) -> int:
        """Batches of an epoch, exact."""
        return len(self)  # type: ignore[arg-type]

    @property
    def has_partial_batch(self) -> bool:
        """Whether the last batch is smaller than the others."""
        return bool(self.partial_batch_size)
