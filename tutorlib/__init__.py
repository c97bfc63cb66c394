"""A Parquet loader, preprocessing, layers and callbacks for Keras 3 on tabular data.

`from tutorlib import KerasSequenceLoader` works, and imports only the room in which it lives;
`import tutorlib` alone imports nothing, TensorFlow least of all. Before `keras.models.load_model`
import the rooms of what was saved: `import tutorlib.layers`, `import tutorlib.optimizers`.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_ROOMS = {  # room: its names
    "callbacks": [
        "KerasSequenceValidater",
        "LoaderCheckpoint",
        "StallReport",
        "ThroughputLogger",
    ],
    "columns": ["Chunk", "Masked", "Ragged", "Strings"],
    "gpu": ["limit_tensorflow_memory"],
    "layers": [
        "DenseFeatures",
        "DotProductInteraction",
        "EmbeddingBag",
        "FusedEmbedding",
        "LinearFeatures",
        "MLP",
        "ScalarDenseFeatures",
        "keras_inputs",
    ],
    "loader": ["KerasSequenceLoader", "MultiHot"],
    "models": ["DLRM", "WideAndDeep", "movielens_network"],
    "ops": [
        "Categorify",
        "Clip",
        "FillMedian",
        "FillMissing",
        "HashBucket",
        "LabelEncoder",
        "LogOp",
        "Normalize",
        "Rename",
    ],
    "optimizers": ["RowSparseAdam"],
    "parquet": ["ParquetError", "ParquetSink", "ParquetSource"],
    "diagnosis": ["diagnose"],
    "schema": ["Column", "Schema", "embedding_dim_for"],
    "serving": ["export_serving"],
    "workflow": ["Workflow", "split_rows"],
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = ["__version__", *sorted(_ROOM_OF)]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'tutorlib' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tutorlib.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
