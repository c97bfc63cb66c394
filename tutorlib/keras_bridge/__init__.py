"""Keras bridge: everything that depends on how Keras works inside, and nothing else.

`adapter` lets `fit`, `evaluate` and `predict` take a loader; `fit_arguments` handles what they
are given beside it; `backend` makes tensors; `timed_batches` measures the wait for data.
"""

from tutorlib.keras_bridge.adapter import TESTED_KERAS, DataAdapter, LoaderAdapter, Pass
from tutorlib.keras_bridge.backend import (
    gpu_tensor_maker,
    min_int_dtype_of_models,
    min_int_dtype_on_gpu,
    tensor_maker,
    wait_for_gpu,
)
from tutorlib.keras_bridge.fit_arguments import ClassWeights
from tutorlib.keras_bridge.timed_batches import TimedBatches

__all__ = [
    "TESTED_KERAS",
    "ClassWeights",
    "DataAdapter",
    "LoaderAdapter",
    "Pass",
    "TimedBatches",
    "gpu_tensor_maker",
    "min_int_dtype_of_models",
    "min_int_dtype_on_gpu",
    "tensor_maker",
    "wait_for_gpu",
]
