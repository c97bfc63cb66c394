"""Serving: a fitted Workflow inside a TensorFlow graph.

`ServedWorkflow` is the layer, `export_serving` saves it with a model; `SERVED` lists which class
serves which op. A saved graph needs TensorFlow alone.
"""

from tutorlib.serving.base import ServedByColumn, ServedColumn, ServedOp
from tutorlib.serving.export import export_serving
from tutorlib.serving.registry import SERVED
from tutorlib.serving.workflow_layer import ServedWorkflow

__all__ = [
    "SERVED",
    "ServedByColumn",
    "ServedColumn",
    "ServedOp",
    "ServedWorkflow",
    "export_serving",
]
