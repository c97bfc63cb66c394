"""Workflow: preprocessing that is fitted once and applied the same everywhere.

`workflow` is the class for users, `graph` what engines see of it: `fit` on threads or on Dask,
`write` to Parquet, `saved_form`. `row_split` divides the rows.
"""

from tutorlib.workflow.row_split import split_rows
from tutorlib.workflow.workflow import Workflow

__all__ = [
    "Workflow",
    "split_rows",
]
