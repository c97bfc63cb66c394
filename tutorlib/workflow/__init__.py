"""Workflow: preprocessing that is fitted once and applied the same everywhere.

`workflow` is the class for users; `fit` fits its ops, and `write` makes Parquet of transformed
rows, both on threads or on a Dask cluster; `saved` makes files of a fitted workflow, and `split`
sources of training and validation rows.
"""

from tutorlib.workflow.split import split_rows
from tutorlib.workflow.workflow import Workflow

__all__ = ["Workflow", "split_rows"]
