"""What a loader says of itself, and what a notebook shows of it: its plan and its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tutorlib.display import html_table
from tutorlib.loader.batch_format import BatchFormat
from tutorlib.loader.layout import LIST_PARTS, STACKED_ROLES, Layout
from tutorlib.loader.pipeline import Stopwatch
from tutorlib.loader.planning import Planner
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Column

LIST_SHAPES = {  # of the tensors in LIST_PARTS
    "nnzs": ("values, 1", "batch, 1"),
    "offsets": ("values", "batch + 1"),
}


class Described:
    """The numbers of a loader: where its batches are made, its plan, what was done so far."""

    source: ParquetSource
    _planner: Planner
    _stopwatch: Stopwatch
    _format: BatchFormat

    @property
    def device(self) -> str:
        """Where batches are made: "cpu" or "gpu"."""
        return "cpu" if self.source.memory is None else "gpu"

    def describe(self) -> dict[str, Any]:
        """Return the plan in numbers: rows, batches, chunks, threads, and memory in bytes.

        Nothing is read for it. `peak_bytes` is planned, not measured. The shuffle of sorted files
        is poor if `row_groups_per_chunk` or `row_groups_per_rank` is below 4.
        """
        return self._planner.describe()

    def stats(self) -> dict[str, float]:
        """Return what was done so far: rows, batches, and seconds by stage.

        `read_s`, `transform_s`, `scatter_s` and `convert_s` are sums over all threads; most of
        `convert_s`, arrays to tensors, is time of the consumer's. `wait_s` is the time that the
        consumer waited for batches.
        """
        sums = self._stopwatch.sums()
        counts = {name: int(sums.pop(name, 0)) for name in ("rows", "batches")}
        stages = ("read", "transform", "scatter", "convert", "wait")
        return {**counts, **{f"{name}_s": sums.get(name, 0.0) for name in stages}}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({text_of_plan(self.describe())})"

    def _repr_html_(self) -> str:
        return html_of_loader(type(self).__name__, self.describe(), self.device, self._format)


def text_of_plan(plan: Mapping[str, Any]) -> str:
    """Return what `KerasSequenceLoader.describe` gives, in a line or two."""
    return (
        f"{plan['rows']:,} rows in {plan['batches']:,} batches of {plan['batch_size']:,}; "
        f"{plan['row_groups']:,} row groups of {plan['files']:,} files in {plan['chunks']:,} "
        f"chunks of up to {plan['chunk_rows']:,} rows; at most "
        f"{plan['peak_bytes'] / 2**20:,.0f} MiB"
    )


def html_of_loader(title: str, plan: Mapping[str, Any], device: str, form: BatchFormat) -> str:
    """Return tables of what `KerasSequenceLoader.describe` gives, and of a batch's columns."""
    return _html_of_plan(title, plan, device) + _html_of_batches(form)


def _html_of_batches(form: BatchFormat) -> str:
    head = ("column", "role", "tensor", "dtype", "cardinality")
    try:
        layout, title = form.layout, "Batches"
    except ValueError as error:  # strings, before a workflow is mapped
        rows = [(c.name, c.role, None, c.dtype, c.cardinality) for c in form.schema]
        return html_table(f"No batches yet: {error}", head, rows)
    return html_table(title, head, [_row(c, form, layout) for c in form.schema])


def _row(column: Column, form: BatchFormat, layout: Layout) -> tuple[object, ...]:
    name, settings, width = column.name, form.settings, column.length or 1
    if not column.multi_hot and settings.stacked and column.role in STACKED_ROLES:
        beside = [c for c in form.schema.with_role(column.role) if not c.multi_hot]
        widths = [c.length or 1 for c in beside]
        first = sum(widths[: beside.index(column)])
        where = first if width == 1 else f"{first}:{first + width}"
        tensor = f"{column.role}[:, {where}] of [batch, {sum(widths)}]"
    elif not column.multi_hot:
        tensor = f"{name} [batch]" if column.role == "weight" else f"{name} [batch, {width}]"
    elif parts := LIST_PARTS[settings.multi_hot]:
        shapes = zip(parts, LIST_SHAPES[settings.multi_hot], strict=True)
        tensor = "\n".join(f"{name}__{part} [{shape}]" for part, shape in shapes)
    else:
        tensor = f"{name} [batch, {settings.max_list_length or 'longest'}]"
    return name, column.role, tensor, layout.dtypes[name], column.cardinality


def _html_of_plan(title: str, plan: Mapping[str, Any], device: str) -> str:
    budget = plan["budget_bytes"]
    numbers = {
        "files": plan["files"],
        "row groups": plan["row_groups"],
        "rows": plan["rows"],
        "batches": plan["batches"],
        "rows of a batch": plan["batch_size"],
        "rows shuffled together": plan["shuffle_window_rows"],
        "threads": plan["threads"],
        "planned memory, MiB": round(plan["peak_bytes"] / 2**20),
        "memory budget, MiB": "none" if budget is None else round(budget / 2**20),
        "device": device,
    }
    return html_table(title, ("plan", ""), numbers.items())
