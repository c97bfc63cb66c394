"""LoaderSettings, source_of: what a KerasSequenceLoader was given, checked, with defaults."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras

from tutorlib.checks import check_choice, check_integer
from tutorlib.keras_bridge.backend import gpu_tensor_maker
from tutorlib.memory import (
    allocation_not_applied,
    gpu_not_used,
    has_gpu,
    memory_space,
    missing_for_gpu,
    thread_count,
)
from tutorlib.parquet import ParquetSource
from tutorlib.schema import BATCH_LAYOUTS, MULTI_HOT_FORMS

PLANNED_THREADS = 4  # for which a memory budget is divided, so that no order depends on the cores
REMOTE_THREADS = 2  # per core, because they wait for remote files; more cost CPU time
MOST_REMOTE_THREADS = 32

# The smallest value of each integer.
LEAST = {
    "batch_size": 1, "seed": 0, "limit_rows": 1, "parts_per_chunk": 1, "max_list_length": 1,
    "global_size": 1, "global_rank": 0, "canonical_ranks": 1,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """The settings of a loader, except for its files and columns.

    Each field is the argument of `KerasSequenceLoader` with that name and is described there.
    Integers are stored as Python's, which JSON can hold.

    Raises:
        ValueError: if an argument is out of range or contradicts another one.
    """

    batch_size: int
    engine: str
    shuffle: bool
    seed: int
    seed_fn: Callable[[], int] | None
    buffer_size: float | None
    parts_per_chunk: int | None
    memory_budget: int | None
    reader_kwargs: Mapping[str, Any] | None
    global_size: int | None
    global_rank: int | None
    canonical_ranks: int | None
    drop_last: bool
    limit_rows: int | None
    batch_layout: str
    multi_hot: str
    bucket_lists: bool
    check_ids: bool
    nulls: str | Mapping[str, float]
    max_list_length: int | None
    class_weight: Mapping[int, float] | None

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_integer(name, value, least))
        check_choice("engine", self.engine, ("parquet",))
        check_choice("batch_layout", self.batch_layout, BATCH_LAYOUTS)
        check_choice("multi_hot", self.multi_hot, MULTI_HOT_FORMS)
        if self.buffer_size is not None and not 0 < self.buffer_size < math.inf:
            raise ValueError(
                f"buffer_size must be above 0 and finite, got {self.buffer_size}; for a chunk of "
                "all rows, give their number"
            )
        if (self.global_size is None) != (self.global_rank is None):
            raise ValueError(
                "give both of global_size and global_rank, or neither; got "
                f"global_size={self.global_size}, global_rank={self.global_rank}"
            )
        if self.global_rank is not None and self.global_rank >= (self.global_size or 1):
            raise ValueError(
                f"global_rank must be in [0, global_size={self.global_size}), got "
                f"{self.global_rank}"
            )
        self._check_canonical_ranks()
        if not isinstance(self.nulls, Mapping) and self.nulls not in ("error", "fill"):
            raise ValueError(
                f"nulls must be 'error', 'fill' or {{column: value}}, got {self.nulls!r}"
            )
        self._check_ragged()
        _reader_threads(self.reader_kwargs)

    def _check_canonical_ranks(self) -> None:
        if self.canonical_ranks is None:
            return
        ranks, size, held = self.canonical_ranks, self.global_size or 1, self.ranks_held
        if ranks % size:
            sizes = [n for n in range(1, ranks + 1) if not ranks % n]
            raise ValueError(
                f"canonical_ranks={ranks} must be a multiple of the number of ranks, "
                f"global_size={size}, so that each gives the rows of equally many; use one of "
                f"{sizes} ranks, or canonical_ranks={size * max(1, round(ranks / size))}"
            )
        if held > 1 and (self.buffer_size or 1) < 1:
            raise ValueError(
                f"buffer_size={self.buffer_size} is a fraction of the memory, but this process "
                f"has the buffers of {held} canonical ranks (canonical_ranks={ranks}), whose order "
                "must not depend on it: give a number of rows from 1 on, or None"
            )
        if self.batch_size % held:
            least = self.batch_size // held * held
            better = f"{least} or {least + held}" if least else f"{held}"
            raise ValueError(
                f"batch_size={self.batch_size} must be a multiple of {held}: each of the {held} "
                f"canonical ranks of this process (canonical_ranks={ranks}, global_size={size}) "
                f"gives equally many rows of a batch; {better} would do"
            )

    def _check_ragged(self) -> None:
        if self.multi_hot != "ragged":
            return
        backend = keras.backend.backend()
        if backend != "tensorflow":
            raise ValueError(
                f"multi_hot='ragged' gives tensors of TensorFlow, but Keras runs on {backend!r}; "
                "use 'nnzs' or 'padded'"
            )
        if self.bucket_lists:
            raise ValueError(
                "bucket_lists=True pads after the last list, but multi_hot='ragged' gives a "
                "tf.RaggedTensor, whose values end with its last row; use 'nnzs', 'offsets' or "
                "'padded'"
            )

    @property
    def stacked(self) -> bool:
        """Whether a batch has one matrix for each role instead of one tensor for each column."""
        return self.batch_layout == "stacked"

    def plan_settings(self) -> dict[str, Any]:
        """Return what decides which rows a batch has, as JSON values: arguments of `EpochPlan`."""
        return {
            "batch_size": self.batch_size,
            "shuffle": bool(self.shuffle),
            "rank": self.global_rank or 0,
            "world_size": 1 if self.global_size is None else self.global_size,
            "drop_last": bool(self.drop_last),
            "limit_rows": self.limit_rows,
        }

    @property
    def ranks_held(self) -> int:
        """Number of canonical ranks whose rows this process gives."""
        return (self.canonical_ranks or 1) // (self.global_size or 1) or 1

    def of_one_rank(self) -> LoaderSettings:
        """Return the settings of the first canonical rank held, as those of a process of its own.

        They are the same for any number of processes if `memory_budget` grows with `ranks_held`.
        """
        held, budget = self.ranks_held, self.memory_budget
        if held == 1:
            return self
        return dataclasses.replace(
            self, batch_size=self.batch_size // held, global_size=self.canonical_ranks,
            global_rank=(self.global_rank or 0) * held,
            memory_budget=None if budget is None else max(1, budget // held),
        )  # fmt: skip

    def order_settings(self) -> dict[str, Any]:
        """Return what decides which rows a batch has, as JSON values.

        With `canonical_ranks`, all ranks have the same, whatever their number.
        """
        settings = self.plan_settings()
        if self.canonical_ranks is not None:
            world_size = settings.pop("world_size")
            settings["global_batch_size"] = settings.pop("batch_size") * world_size
            settings["canonical_ranks"] = self.canonical_ranks
            del settings["rank"]
        return settings

    def in_file_order(self) -> LoaderSettings:
        """Return settings with which one rank gives all rows, in order and without weights."""
        return dataclasses.replace(
            self, shuffle=False, drop_last=False, global_size=None, global_rank=None,
            canonical_ranks=None, class_weight=None,
        )  # fmt: skip

    def threads(self, *, on_device: bool, remote: bool) -> int:
        """Return the number of reader threads, at least 1.

        A memory budget is planned for four threads, and four keep a GPU busy. Threads that read
        remote files wait most of the time, so there are several per core.

        Args:
            on_device: whether batches are made in a device's memory.
            remote: whether files are on other machines.
        """
        threads = _reader_threads(self.reader_kwargs)
        if remote and "threads" not in (self.reader_kwargs or {}):
            threads = max(threads, min(REMOTE_THREADS * threads, MOST_REMOTE_THREADS))
        if self.memory_budget is not None or (on_device and self.reader_kwargs is None):
            return min(threads, PLANNED_THREADS)
        return threads


def _reader_threads(reader_kwargs: Mapping[str, Any] | None) -> int:
    given = dict(reader_kwargs or {})
    threads = given.pop("threads", None)
    if given:
        raise ValueError(f"reader_kwargs may hold only 'threads', got also {sorted(given)}")
    return thread_count(threads, "reader_kwargs['threads']")


def check_names(**arguments: Any) -> None:
    """Raise ValueError for an argument that is a name where a list of names is needed."""
    for argument, names in arguments.items():
        if isinstance(names, str):
            raise ValueError(f"{argument} must be a list of names: [{names!r}], not {names!r}")


def source_of(paths_or_source: Any, filters: Any, device: str | None) -> ParquetSource:
    """Return the source that a loader's arguments mean, on the device that was asked for."""
    if not isinstance(paths_or_source, ParquetSource):
        source = ParquetSource(paths_or_source, filters=filters)
    elif filters is not None:
        raise ValueError("filters have no effect on a ParquetSource: pass them to the source")
    else:
        source = paths_or_source
    if device is not None:
        space = memory_space(device)
        source = source if space is source.memory else source.at(space)
    elif source.memory is None and has_gpu():
        warnings.warn(gpu_not_used(missing_for_gpu()), stacklevel=3)
    if keras.backend.backend() == "tensorflow" and (doubt := allocation_not_applied()):
        warnings.warn(doubt, stacklevel=3)
    if source.memory is not None and source.memory.on_gpu:
        gpu_tensor_maker()  # refuses a Keras backend that cannot take batches from there
    return source
