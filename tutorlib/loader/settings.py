"""LoaderSettings and MultiHot: what a KerasSequenceLoader was given, checked once."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tutorlib.checks import check_bytes, check_choice, check_integer
from tutorlib.memory import usable_cores
from tutorlib.schema import BATCH_LAYOUTS, MULTI_HOT_FORMS

PLANNED_THREADS = 4  # for which a memory budget is divided, so that no order depends on the cores
REMOTE_THREADS = 2  # per core, because they wait for remote files; more cost CPU time
MOST_REMOTE_THREADS = 32
INTEGERS = {  # with the smallest value of each
    "batch_size": 1, "seed": 0, "parts_per_chunk": 1, "global_size": 1, "global_rank": 0,
    "threads": 1,
}  # fmt: skip
PAD = 0  # behind the values of "padded" lists; no id, as in Categorify and Keras's mask_zero


@dataclasses.dataclass(frozen=True)
class MultiHot:
    """How columns of lists are in a batch: the argument `multi_hot` of `KerasSequenceLoader`.

    XLA and JAX compile again for every new shape. With "nnzs" the number of values differs from
    batch to batch; "padded" with a `max_length` gives one shape.

    Args:
        form: of a list column g: "nnzs" gives `g__values` [nnz, 1] and `g__nnzs` [batch, 1];
            "padded" gives g [batch, width], padded with 0, which
            `keras.layers.Embedding(mask_zero=True)` masks. The id 0 in the data is refused; in
            lists of numbers 0 is a number too.
        max_length: longest list that is accepted, at least 1, and the width of "padded"; None for
            any length: "padded" is then as wide as the longest list of the batch.

    Raises:
        ValueError: if a field is out of range.

    Example:
        >>> MultiHot("padded", max_length=20).form
        'padded'
    """

    form: str = "nnzs"
    max_length: int | None = None

    def __post_init__(self) -> None:
        check_choice("multi_hot", self.form, MULTI_HOT_FORMS)
        if self.max_length is not None:
            length = check_integer("multi_hot: max_length", self.max_length, 1)
            object.__setattr__(self, "max_length", length)


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
    buffer_size: float | None
    parts_per_chunk: int | None
    memory_budget: Any  # bytes, once it is checked
    threads: int | None
    global_size: int | None
    global_rank: int | None
    drop_last: bool
    batch_layout: str
    multi_hot: MultiHot
    nulls: str

    def __post_init__(self) -> None:
        for name, least in INTEGERS.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_integer(name, value, least))
        object.__setattr__(self, "memory_budget", check_bytes("memory_budget", self.memory_budget))
        check_choice("engine", self.engine, ("parquet",))
        check_choice("batch_layout", self.batch_layout, BATCH_LAYOUTS)
        if self.buffer_size is not None and not 0 < self.buffer_size < math.inf:
            raise ValueError(
                f"buffer_size must be above 0 and finite, got {self.buffer_size}; for a chunk of "
                "all rows, give their number"
            )
        size, rank = self.global_size, self.global_rank
        if (size is None) != (rank is None) or (rank or 0) >= (size or 1):
            raise ValueError(
                "give both of global_size and global_rank, which must be in [0, global_size), or "
                f"neither; got global_size={size}, global_rank={rank}"
            )
        check_choice("nulls", self.nulls, ("error", "fill"))

    @property
    def stacked(self) -> bool:
        """Whether a batch has one matrix for each role instead of one tensor for each column."""
        return self.batch_layout == "stacked"

    def reader_threads(self, *, on_device: bool, remote: bool) -> int:
        """Return the number of reader threads, at least 1.

        A memory budget is planned for four threads, and four keep a GPU busy. Threads that read
        remote files wait most of the time, so there are several per core.

        Args:
            on_device: whether batches are made in a device's memory.
            remote: whether files are on other machines.
        """
        threads = self.threads
        if threads is None:
            threads = usable_cores()
            if remote:
                threads = max(threads, min(REMOTE_THREADS * threads, MOST_REMOTE_THREADS))
            if on_device:
                threads = min(threads, PLANNED_THREADS)
        return threads if self.memory_budget is None else min(threads, PLANNED_THREADS)
