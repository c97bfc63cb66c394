"""Fitting: as many passes over the data as the ops need, each on threads or on a Dask cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tutorlib.checks import check_bytes
from tutorlib.memory import map_on_threads, thread_count
from tutorlib.parquet import RowRange
from tutorlib.storage import row_bar
from tutorlib.workflow.dask_cluster import fit_on_cluster
from tutorlib.workflow.fit_pass import FitPass, Merger, next_pass
from tutorlib.workflow.inputs import RowSource
from tutorlib.workflow.nulls import columns_with_nulls
from tutorlib.workflow.spill import Runs

if TYPE_CHECKING:
    from tutorlib.workflow.workflow import Workflow


def fit_graph(
    graph: Workflow,
    source: RowSource,
    *,
    client: Any,
    threads: int | None,
    memory_budget: int | str | None,
    progress: bool | None,
) -> None:
    """Fit all ops of a graph, as `Workflow.fit` says; after an error no op is fitted."""
    if client is not None and not (threads is None and memory_budget is None):
        raise ValueError(
            "threads and memory_budget are for fitting in this process; with client=, set "
            "threads_per_worker and memory_limit of the cluster's workers"
        )
    budget = check_bytes("memory_budget", memory_budget)
    threads = thread_count(threads)
    types = source.column_types
    if missing := [name for name in graph.fit_names if name not in types]:
        raise ValueError(f"columns {missing} are not in the data, which has {[*types]}")
    _reset(graph)
    number, read, nulls = 0, set[str](), set[str]()
    try:
        while work := next_pass(graph, source):
            if source.num_rows == 0:
                raise ValueError("the data has no rows to fit on")
            number += 1
            with row_bar(f"fit, pass {number}", source.num_rows, progress) as done:
                if client is None:
                    _fit_on_threads(work, threads, budget, done)
                else:
                    fit_on_cluster(client, work, done)
            read.update(work.columns)
            nulls.update(work.null_columns.nulls)
        nulls |= columns_with_nulls(source, [n for n in graph.input_names if n not in read])
    except BaseException:
        _reset(graph)
        raise
    graph.input_types = {name: types[name] for name in graph.input_names}
    graph.nullable = [name for name in graph.input_names if name in nulls]


def _reset(graph: Workflow) -> None:
    graph.input_types, graph.nullable = {}, []
    for group in graph.groups:
        for op in group.ops:
            op.reset()


def _fit_on_threads(
    work: FitPass, threads: int, memory_budget: int | None, done: Callable[[int], None]
) -> None:
    """Fit the ops of a pass; `done` is called with the rows of each row range."""
    spilling: contextlib.AbstractContextManager[Runs | None] = contextlib.nullcontext()
    if memory_budget is not None:
        spilling = Runs(work.ops, memory_budget)
    with spilling as runs:
        merger = Merger(work, runs)

        def learn(row_range: RowRange) -> None:
            merger.add(work.learn_from(row_range))
            done(row_range.num_rows)

        map_on_threads(learn, work.row_ranges(), threads)
        for op, state in zip(work.ops, merger.result(), strict=True):
            op.finalize(state)
