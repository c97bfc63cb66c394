"""Workflow: preprocessing that is fitted once and applied the same everywhere.

`workflow` is the class for users; `fit` fits it on threads or on a cluster, `write` makes Parquet
of transformed rows, `saved` files of a fitted workflow.
"""

from tutorlib.workflow.workflow import Workflow
from tutorlib.workflow.write import split_rows

__all__ = ["Workflow", "split_rows"]
