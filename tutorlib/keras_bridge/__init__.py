"""Keras bridge: everything that depends on how Keras works inside, and nothing else.

`adapter` lets `fit`, `evaluate` and `predict` take a loader; `ignored_arguments` refuses what they
would ignore with it; `backend` makes tensors; `processes` knows what `keras.distribution` has
joined; `timed_batches` measures the wait for data.
"""

from tutorlib.keras_bridge.adapter import TESTED_KERAS, LoaderAdapter
from tutorlib.keras_bridge.backend import (
    eager_scope,
    gpu_tensor_maker,
    min_int_dtype_of_models,
    min_int_dtype_on_gpu,
    tensor_maker,
    unstacking_maker,
    wait_for_gpu,
)
from tutorlib.keras_bridge.processes import (
    batch_parts,
    data_share,
    gathered,
    process_count,
    process_index,
)
from tutorlib.keras_bridge.timed_batches import TimedBatches

__all__ = [
    "TESTED_KERAS",
    "LoaderAdapter",
    "TimedBatches",
    "batch_parts",
    "data_share",
    "eager_scope",
    "gathered",
    "gpu_tensor_maker",
    "min_int_dtype_of_models",
    "min_int_dtype_on_gpu",
    "process_count",
    "process_index",
    "tensor_maker",
    "unstacking_maker",
    "wait_for_gpu",
]
