"""Serving: a fitted Workflow inside a TensorFlow graph, with the same results to the last bit.

`workflow_layer` is the layer and the export; `numbers` and `keys` hold the ops' graph versions;
`base` is what these share; `hashing` is the graph version of `tutorlib.hashing`.
"""

from tutorlib.serving.workflow_layer import ServedWorkflow, export_serving

__all__ = [
    "ServedWorkflow",
    "export_serving",
]
