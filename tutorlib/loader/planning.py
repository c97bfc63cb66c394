"""Planner: from the settings and files of a loader to the plan of each epoch. Reads nothing."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

from tutorlib.loader.held_lists import HeldLists
from tutorlib.loader.joined_plan import JoinedPlan
from tutorlib.loader.pipeline import CONVERT_BATCHES
from tutorlib.loader.plan import EpochPlan
from tutorlib.loader.row_bytes import (
    ahead_row_bytes,
    budgeted_row_bytes,
    convert_batches,
    reads_in_steps,
    row_bytes,
    row_bytes_on_device,
    step_bytes,
)
from tutorlib.loader.settings import PLANNED_THREADS, LoaderSettings
from tutorlib.loader.shuffle_window import (
    row_groups_per_chunk,
    row_groups_per_rank,
    shuffle_doubts,
)
from tutorlib.loader.sizing import BudgetTooSmall, ChunkSize, RowBytes, chunk_size
from tutorlib.memory import host_memory_bytes
from tutorlib.parquet import ParquetSource
from tutorlib.schema import Schema


class Planner:
    """Chooses the sizes of partitions and chunks, and plans epochs with them.

    Sizes are those of one canonical rank, so that the order does not depend on the number of
    processes; what is held is planned for all ranks of this process.

    Args:
        settings: settings of the loader.
        source: the files.
        columns: names of the columns to read.
        schema: schema of the batches.
        min_int_dtype: "int32" or "int64": integers of a batch have at least this width.
        whole: whether all columns of a row range are read before its rows are scattered, as
            `loader.map` needs them.
    """

    def __init__(
        self,
        settings: LoaderSettings,
        source: ParquetSource,
        columns: Sequence[str],
        schema: Schema,
        min_int_dtype: str,
        *,
        whole: bool,
    ) -> None:
        self._given, self._count = settings, settings.ranks_held
        self._settings, self._source = settings.of_one_rank(), source
        self._columns, self._schema, self._whole = columns, schema, whole
        self._min_int_dtype = min_int_dtype
        self._row_counts = [group.num_rows for group in source.row_groups]
        self._latest: EpochPlan | None = None
        self._warned = False

    @functools.cached_property
    def threads(self) -> int:
        """Reader threads."""
        remote = not self._source.stored.is_local
        return self._settings.threads(on_device=self._source.memory is not None, remote=remote)

    @functools.cached_property
    def row_bytes(self) -> RowBytes:
        """Bytes of a row in the places where the loader holds it.

        Raises:
            ValueError: if nothing bounds the width of a padded column within a memory budget.
        """
        self._check_padded()
        return self._row_bytes(self._settings.memory_budget)

    def _row_bytes(self, budget: int | None) -> RowBytes:
        files = self._source, self._columns, self._schema
        if self._source.memory is not None and budget is not None:
            return row_bytes_on_device(*files, min_int_dtype=self._min_int_dtype)
        if budget is not None:
            return budgeted_row_bytes(*files, self._settings, budget, whole=self._whole)
        # Without a budget, a GPU must have the plan of the CPU.
        return row_bytes(*files, whole=self._whole, stacked=self._settings.stacked)

    def _check_padded(self) -> None:
        settings = self._settings
        if settings.memory_budget is None or settings.multi_hot != "padded":
            return
        lists = [column.name for column in self._schema if column.multi_hot]
        if lists and settings.max_list_length is None:
            raise ValueError(
                f"multi_hot='padded' with a memory_budget needs max_list_length: without it, one "
                f"long list of {lists} sets the width of its whole batch, which nothing bounds. "
                "Give the longest list that the data has, cut the lists (ListSlice in a Workflow), "
                "or use multi_hot='nnzs'"
            )

    @functools.cached_property
    def chunk_size(self) -> ChunkSize:
        """Rows of partitions and chunks: what `buffer_size` says, within the memory budget.

        Raises:
            BudgetTooSmall: if the budget cannot hold two batches; says what would do.
        """
        try:
            return self._chunk_size(self._settings.memory_budget, self.row_bytes)
        except BudgetTooSmall as error:
            rule, least = error.rule, error.least_bytes
        if self._count > 1:
            rule = f"each of the {self._count} canonical ranks of this process: {rule}"
        while True:  # a larger budget decodes more bytes at a time, so it may need more
            try:
                self._chunk_size(least, self._row_bytes(least))
            except BudgetTooSmall as error:
                least = error.least_bytes
            else:
                raise BudgetTooSmall(rule, least * self._count)

    def _chunk_size(self, budget: int | None, row_bytes: RowBytes) -> ChunkSize:
        settings, buffer_rows = self._settings, None
        if settings.buffer_size is not None:
            buffer_rows = int(settings.buffer_size)
            if settings.buffer_size < 1:
                space = self._source.memory
                memory = host_memory_bytes() if space is None else space.limit_bytes
                buffer_rows = max(1, int(settings.buffer_size * memory / row_bytes.batch))
        return chunk_size(
            self._row_counts,
            row_bytes,
            batch_size=settings.batch_size,
            # A budget is divided by a fixed number of threads: the order must not depend on them.
            threads=self.threads if budget is None else PLANNED_THREADS,
            shuffle=settings.shuffle,
            buffer_rows=buffer_rows,
            parts_per_chunk=settings.parts_per_chunk,
            budget_bytes=budget,
        )

    @property
    def total_rows(self) -> int:
        """Rows of all ranks, before `drop_last`."""
        return min(sum(self._row_counts), self._given.limit_rows or sum(self._row_counts))

    @property
    def peak_bytes(self) -> int:
        """Bytes that the loader holds at most, as planned."""
        return self.chunk_size.peak_bytes * self._count

    def plan_settings(self) -> dict[str, Any]:
        """Return all arguments of `EpochPlan` but row counts, seed and epoch, as JSON values."""
        return {**self._settings.plan_settings(), **self._sizes()}

    def _sizes(self) -> dict[str, int]:
        return {
            "partition_rows": self.chunk_size.partition_rows,
            "parts_per_chunk": self.chunk_size.parts_per_chunk,
            "group_rows": self.chunk_size.group_rows,
        }

    @property
    def open_row_groups(self) -> int:
        """Row groups that stay open between two slices: with a budget, as many as it was made for.

        Without one, those of the two chunks that are read at a time.
        """
        if self.step_bytes is None:
            return 2 * self.chunk_size.parts_per_chunk * self._count
        return self.chunk_size.opened * self._count

    @property
    def step_bytes(self) -> int | None:
        """Bytes of a slice that are decoded at a time; None without a budget of host memory."""
        if self._settings.memory_budget is None or self._source.memory is not None:
            return None
        return step_bytes(self._settings.memory_budget)

    @functools.cached_property
    def reads_in_steps(self) -> bool:
        """Whether each row range is read, transformed and scattered in steps of `step_bytes`."""
        return self.step_bytes is not None and reads_in_steps(
            self._source, self._columns, whole=self._whole
        )

    def held_lists(self) -> HeldLists:
        """Return what counts the lists of a pass: a budget plans with the mean of row groups.

        The plan has room for copies; beyond it, lists may take a tenth of the budget and 16 MiB.
        """
        budget = self._given.memory_budget
        if self.step_bytes is None or budget is None:
            return HeldLists()
        planned = self.chunk_size.held_rows * self.row_bytes.lists * self._count
        return HeldLists(int(planned + budget / 20 + 2**23), self._advice_for_lists)

    def _advice_for_lists(self) -> str:
        whole = self.chunk_size.whole_bytes * self._count
        remedy = "Write the files with smaller row groups (ParquetSink(row_group_rows=...))"
        if not self.chunk_size.opened or not whole:
            return f"{remedy}, or give a larger memory_budget"
        return (
            f"{remedy}, or give a memory_budget of at least {whole:,}, with which chunks hold "
            "whole row groups"
        )

    @functools.cached_property
    def convert_batches(self) -> int:
        """Batches that are converted at a time."""
        if self.step_bytes is None:
            return CONVERT_BATCHES
        files = self._source, self._columns, self._schema
        return convert_batches(self._settings, ahead_row_bytes(*files, self._settings))

    def plan(self, epoch: int, seed: int) -> EpochPlan:
        """Return the plan of an epoch; the latest one is kept."""
        latest = self._latest
        if latest is None or (latest.epoch, latest.seed) != (epoch, seed):
            settings = {**self.plan_settings(), "seed": seed, "epoch": epoch}
            costs, first = self.row_bytes.costs, settings.pop("rank")
            plans = [
                EpochPlan(self._row_counts, row_costs=costs, rank=first + k, **settings)
                for k in range(self._count)
            ]
            self._latest = latest = JoinedPlan(plans) if len(plans) > 1 else plans[0]
        return latest

    def any_plan(self) -> EpochPlan:
        """Return the plan of some epoch: all have the same number of rows and batches."""
        return self.plan(0, self._settings.seed) if self._latest is None else self._latest

    def warn_once(self) -> None:
        """Warn of columns left out by inference, and of files that allow for no good shuffle."""
        if self._warned:
            return
        self._warned = True
        settings = self._given
        if self._schema.left_out:
            warnings.warn(self._schema.left_out, stacklevel=2)
        doubts = shuffle_doubts(
            self.any_plan(),
            world_size=settings.global_size or 1,
            row_groups=len(self._source),
            automatic=settings.buffer_size is None and settings.parts_per_chunk is None,
            budget=settings.memory_budget is not None,
        )
        if doubts is not None:
            warnings.warn(doubts, stacklevel=2)

    def identity(self) -> dict[str, Any]:
        """Return everything that decides which rows each batch has, as JSON values."""
        settings = {**self._given.order_settings(), **self._sizes()}
        if self._given.seed_fn is None:
            settings["seed"] = self._given.seed
        return {
            "version": 1,
            "data": self._source.fingerprint(),
            "settings": settings,
            "columns": self._schema.names,
        }

    def describe(self) -> dict[str, Any]:
        """Return the plan in numbers (see `KerasSequenceLoader.describe`)."""
        plan = self.any_plan()
        rows = max((chunk.num_rows for chunk in plan.chunks), default=0)
        return {
            "files": len(self._source.files),
            "row_groups": len(self._source),
            "rows": sum(plan.batch_sizes),
            "batches": len(plan),
            "batch_size": self._given.batch_size,
            "chunks": len(plan.chunks),
            "chunk_rows": rows,
            "chunk_bytes": int(rows * self.row_bytes.batch),
            "shuffle_window_rows": rows if self._settings.shuffle else 0,
            "row_groups_per_chunk": round(row_groups_per_chunk(plan), 1),
            "row_groups_per_rank": round(row_groups_per_rank(plan), 1),
            "threads": self.threads,
            "budget_bytes": self._given.memory_budget,
            "peak_bytes": self.peak_bytes,
        }
