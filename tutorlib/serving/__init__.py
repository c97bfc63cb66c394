"""Serving: a fitted Workflow inside a TensorFlow graph.

`WorkflowLayer` is the layer, `export_serving` saves it with a model; `SERVED` lists which class
serves which op. A saved graph needs TensorFlow alone.
"""

from tutorlib.serving.export import (
    SERVED,
    ServedColumn,
    ServedOp,
    WorkflowLayer,
    export_serving,
)

__all__ = ["SERVED", "ServedColumn", "ServedOp", "WorkflowLayer", "export_serving"]
