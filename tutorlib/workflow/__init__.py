"""Workflow: preprocessing that is fitted once and applied the same everywhere.

`workflow` is the class; `fit` learns on threads, `dask_cluster` on a cluster, `spill` within a
budget; `write` transforms to Parquet; `saved_form` saves and loads; `inputs` are the data it takes.
"""

from tutorlib.workflow.row_split import split_rows
from tutorlib.workflow.workflow import Workflow

__all__ = [
    "Workflow",
    "split_rows",
]
