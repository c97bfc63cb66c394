"""A Parquet loader, preprocessing, layers and callbacks for Keras 3 on tabular data.

`from tutorlib import KerasSequenceLoader` works, and imports only the room in which it lives;
`import tutorlib` alone imports nothing, TensorFlow least of all. It is enough for
`keras.models.load_model`, which finds the layers and optimizers of a saved model here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_ROOMS = {
    "callbacks": [
        "KerasSequenceValidater",
        "LoaderCheckpoint",
        "MemoryLogger",
        "StallReport",
        "ThroughputLogger",
    ],
    "columns": ["Chunk", "Masked", "Ragged", "Strings"],
    "memory": ["limit_tensorflow_memory"],
    "layers": [
        "MLP",
        "Cross",
        "DenseFeatures",
        "DotProductInteraction",
        "EmbeddingBag",
        "FusedEmbedding",
        "LinearFeatures",
        "ScalarDenseFeatures",
        "keras_inputs",
    ],
    "loader": ["EpochPlan", "KerasSequenceLoader", "ShuffleQuality", "shuffle_quality"],
    "models": ["DLRM", "DCNv2", "DeepFM", "WideAndDeep", "movielens_network"],
    "ops": [
        "Bucketize",
        "Categorify",
        "Clip",
        "DateParts",
        "FillMedian",
        "FillMissing",
        "HashBucket",
        "JoinExternal",
        "LabelEncoder",
        "LambdaOp",
        "ListSlice",
        "LogOp",
        "Normalize",
        "NormalizeMinMax",
        "Rename",
        "TargetEncoding",
    ],
    "optimizers": ["RowSparseAdam", "RowWiseAdagrad"],
    "parquet": ["ParquetError", "ParquetSink", "ParquetSource"],
    "diagnose": ["ProfileSteps", "cores_awake"],
    "schema": ["Column", "Schema", "embedding_dim_for"],
    "serving": ["export_serving"],
    "workflow": ["Workflow", "split_rows"],
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = ["__version__", *sorted(_ROOM_OF)]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        checks = importlib.import_module("tutorlib.checks")
        form = checks.FORMER_NAMES["tutorlib"].get(name)
        raise checks.no_attribute("module 'tutorlib'", name, form)
    return getattr(importlib.import_module(f"tutorlib.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__


# Rooms with classes that a saved model may hold, and the module in which Keras looks them up.
_SAVED = ("layers", "optimizers")
_REGISTRY = "keras.src.saving.object_registration"


class _Registered(dict[str, Any]):
    """Keras's registered classes; it imports those of tutorlib when one of them is looked up."""

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name) and str(name).startswith("tutorlib>"):
            for room in _SAVED:
                if importlib.util.find_spec(f"tutorlib.{room}"):  # whoever copies may leave it out
                    importlib.import_module(f"tutorlib.{room}")
        return super().__contains__(name)


def _use_registered(registry: ModuleType) -> None:
    vars(registry)["GLOBAL_CUSTOM_OBJECTS"] = _Registered(vars(registry)["GLOBAL_CUSTOM_OBJECTS"])


class _AfterKeras:
    """Import hook: Keras, when it is imported after tutorlib, gets `_Registered`."""

    @classmethod
    def find_spec(cls, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != _REGISTRY:
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_use(module: ModuleType) -> None:
                execute(module)
                _use_registered(module)

            vars(spec.loader)["exec_module"] = execute_and_use
        return spec


if _REGISTRY in sys.modules:
    _use_registered(sys.modules[_REGISTRY])
else:
    sys.meta_path.insert(0, _AfterKeras)
