"""Batches: one pass over an epoch, as the consumer's thread takes it, and where a loader stands.

`Batches` gives the batches; `BatchMaker` joins the parts of chunks to whole ones, and makes tensors
of them. What reader threads do is in chunks.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tutorlib.checks import check_integer, differences
from tutorlib.keras_bridge.backend import (
    cut_batch,
    cuts_batches,
    device_arrays,
    refuse_tracing,
    tensor_maker,
    unstacking_maker,
)
from tutorlib.loader.chunks import CONVERT_BATCHES, Gatherer, HandOver, Part
from tutorlib.loader.layout import PAD, Layout, Lists
from tutorlib.loader.pipeline import Pipeline, Stopwatch


class Position(NamedTuple):
    """Where a loader stands; all numbers count from 0."""

    epoch: int = 0
    first_batch: int = 0  # of the next pass over the epoch; above 0 after a resume
    next_batch: int = 0  # the one after the batch that was taken last


class EpochCursor:
    """The position of a loader.

    An epoch ends when its last batch is taken. Until then every pass over it begins at
    `position.first_batch`.

    Attributes:
        position: where the loader stands; may be set to an earlier position of the same loader.

    Example:
        >>> cursor = EpochCursor()
        >>> cursor.advance(epoch=0, next_batch=1, num_batches=2)
        >>> cursor.position
        Position(epoch=0, first_batch=0, next_batch=1)
        >>> cursor.advance(epoch=0, next_batch=2, num_batches=2)
        >>> cursor.position
        Position(epoch=1, first_batch=0, next_batch=0)
    """

    def __init__(self) -> None:
        self.position = Position()

    def set_epoch(self, epoch: int) -> None:
        """Go to the first batch of an epoch.

        Raises:
            ValueError: if `epoch` is not an integer in [0, 2**64).
        """
        self.position = Position(check_integer("epoch", epoch, 0, bits=64))

    def advance(self, epoch: int, next_batch: int, num_batches: int) -> None:
        """Record that a pass over `epoch` took the batch before `next_batch`.

        The last batch ends the epoch. A pass over another epoch than the current one changes
        nothing.
        """
        current, first_batch, _ = self.position
        if epoch != current:
            return
        ended = next_batch == num_batches
        self.position = Position(epoch + 1) if ended else Position(epoch, first_batch, next_batch)

    def state_dict(self) -> dict[str, int]:
        """Return the numbers of the epoch and of the next batch."""
        return {"epoch": self.position.epoch, "batch": self.position.next_batch}

    @staticmethod
    def position_of(
        state: Mapping[str, Any], identity: Mapping[str, Any], num_batches: int
    ) -> Position:
        """Return the position of a saved state.

        Args:
            state: what `state_dict()` of a loader returned.
            identity: what the state must have been saved with: JSON values that decide the order.
            num_batches: batches of an epoch.

        Raises:
            ValueError: if the state is none, or of other data or settings; says which.
        """
        needed = {*identity, "epoch", "batch"}
        missing = sorted(needed - {*state}) if isinstance(state, Mapping) else sorted(needed)
        if missing:
            raise ValueError(
                f"the state is not what state_dict() of a loader returned: lacks {missing}"
            )
        epoch = check_integer("epoch of a loader's state", state["epoch"], 0, bits=64)
        batch = check_integer("batch of a loader's state", state["batch"], 0, bits=64)
        changed = differences({name: state[name] for name in identity}, identity)
        if changed:
            raise ValueError(
                "the state belongs to other data or settings, with which the order of the rows "
                f"differs: {'; '.join(changed)}. Restore it with the data and settings it was "
                "saved with."
            )
        if batch >= max(1, num_batches):
            raise ValueError(f"the state is at batch {batch}, but an epoch has {num_batches}")
        return Position(epoch, batch, batch)


class Batches(Iterator[Any]):
    """One pass over the epoch at which a cursor stands. Threads end with the last batch.

    Batches can be taken by any thread, but by one at a time: ValueError otherwise.

    Args:
        cursor: gives the epoch and the first batch when the first batch is asked for; each batch
            moves it.
        begin: returns, for a pass, (pipeline, batches that the consumer's thread makes).
        num_batches: batches of an epoch.
    """

    def __init__(
        self,
        cursor: EpochCursor,
        begin: Callable[[Batches], tuple[Pipeline, Iterator[Any]]],
        num_batches: int,
    ) -> None:
        self._cursor = cursor
        self._begin = begin
        self._num_batches = num_batches
        self._pipeline: Pipeline | None = None
        self._made: Iterator[Any] = iter(())
        self._closed = False
        self._turn = {"free": True}  # the thread that took it takes a batch

    @property
    def __array__(self) -> Any:
        """Refuse to become an array, as which Keras takes an object that it does not know.

        Raises:
            TypeError: always; the message says what to give to Keras instead.
        """
        raise TypeError(
            "iter(loader) is one pass and cannot become an array: give fit the loader itself, or "
            "loader.to_tf_dataset()"
        )

    def __next__(self) -> Any:
        refuse_tracing()
        if self._closed:
            raise StopIteration
        batch = turn = None
        try:
            turn = self._turn.pop("free", None)
            if turn is not None:
                batch = self._take()
                if batch is None or self._next == self._num_batches:
                    self.close()
                else:
                    self._turn["free"] = turn
        except BaseException:  # an interrupt or an error: there are no more batches
            self.close()
            raise
        if turn is None and not self._closed:
            raise ValueError(
                "another thread is taking a batch of this pass. Take its batches in one thread and "
                "hand them to the others (queue.Queue), or give each thread a loader of its own"
            )
        if batch is None:
            raise StopIteration
        return batch

    def _take(self) -> Any:
        if self._pipeline is None:
            self._pipeline, self._made = self._begin(self)
            self._epoch, self._next, _ = self._cursor.position
        if self._pipeline.has_stopped():
            return None
        batch = next(self._made, None)
        if batch is None or self._pipeline.has_stopped():
            return None
        self._next += 1
        self._cursor.advance(self._epoch, self._next, self._num_batches)
        return batch

    def close(self) -> None:
        """Stop the threads of this pass; it then has no more batches."""
        self._closed = True
        self._made = iter(())
        if self._pipeline is not None:
            self._pipeline.close()


class BatchMaker:
    """Turns a `Part` into a list of (inputs, labels) or (inputs, labels, weights) of tensors.

    The consumer's thread makes them: a tensor is several small pieces of memory, which a thread
    takes and frees in less than half the time if no other thread does either.

    Args:
        layout: how the columns lie in a batch.
        stopwatch: adds up rows, batches and the seconds of "convert".
        pool: the memory of batches.
        as_numpy: whether batches are NumPy arrays instead of tensors; not on a GPU.

    Attributes:
        hand_over: gives the batches of a part to JAX at once; a compiled call then cuts each of
            them. None on other backends, on which a batch is a view of the part.
    """

    def __init__(
        self,
        layout: Layout,
        stopwatch: Stopwatch,
        pool: Any,
        *,
        as_numpy: bool = False,
    ) -> None:
        self._layout = layout
        self._stopwatch = stopwatch
        self._pool = pool
        self._on_gpu = pool.library is not np
        self._tensor: Callable[[Any], Any] = (lambda array: array) if as_numpy else tensor_maker()
        self._tensors: Callable[[Any], Sequence[Any]] = lambda a: list(map(self._tensor, a))
        give: Callable[[list[Any]], list[Any]] = device_arrays
        if self._on_gpu:
            from tutorlib.gpu.batches import gpu_tensor_maker

            self._tensor = gpu_tensor_maker()
            give = self._tensors
        elif not as_numpy:
            self._tensors = unstacking_maker(self._tensor)
        self.hand_over: HandOver | None = None
        if not as_numpy and cuts_batches(on_gpu=self._on_gpu):
            self.hand_over = functools.partial(_handed_over, layout, give)

    def batches(
        self, pipeline: Pipeline, gatherer: Gatherer, sizes: Sequence[int]
    ) -> Iterator[Any]:
        """Yield the batches of a pass.

        Args:
            pipeline: gives the parts of each chunk when they are made.
            gatherer: joins the pieces of a batch that has rows of several chunks.
            sizes: rows of each batch of the epoch.
        """
        pieces: list[Part] = []
        while (parts := pipeline.next_chunk()) is not None:
            while parts:
                part = parts.pop(0)
                if not part.segment.batches:
                    pieces.append(part)
                    if sum(piece.rows for piece in pieces) < sizes[part.segment.batch]:
                        continue
                    part, pieces = gatherer.joined(pieces), []
                    self._finish()
                    if self.hand_over is not None:
                        (part,) = self.hand_over(part)
                yield from self._batches_of(part)
                del part  # the consumer's batches alone hold its memory

    def _batches_of(self, part: Part) -> Iterator[Any]:
        whole = part.segment.batches
        most = CONVERT_BATCHES if self.hand_over is None else 1  # JAX queues few computations
        for first in range(0, whole, most):
            count = min(most, whole - first)
            with self._stopwatch.timing("convert"):
                made = self.of(part, first, count)
            self._stopwatch.add(rows=part.rows * count, batches=count)
            made.reverse()
            while made:
                yield made.pop()

    def of(self, part: Part, first: int, count: int) -> list[Any]:
        """Return some successive batches of a part, one where JAX cuts them."""
        layout = self._layout
        if self.hand_over is None:
            found = self._views(part.some(first, count))
        else:
            found = self._cut(part, first)
        # In this order, whichever thread was the first.
        tensors = {field.name: found[field.name] for field in layout.fields}
        weights = [tensors.pop(name) for name in layout.weights]
        labels = {name: tensors.pop(name) for name in layout.labels}
        inputs = _by_batch(tensors, count)
        for name in layout.ragged:
            lists = part.lists[name][first : first + count]
            for batch, one in zip(inputs, lists, strict=True):
                batch.update(self._list_tensors(name, one))
        targets: Iterable[Any] = [None] * count
        if labels:
            targets = labels.popitem()[1] if len(labels) == 1 else _by_batch(labels, count)
        return list(zip(inputs, targets, *weights, strict=True))

    def _views(self, part: Part) -> dict[str, Sequence[Any]]:
        """Return {name of a field: tensor of each batch}, over the memory of the part."""
        tensors = {}
        for names, arrays in part.scalars.items():
            for number, name in enumerate(names):
                array = arrays[:, number, : part.rows]
                rows = array[:, :, 0] if name in self._layout.weights else array
                tensors[name] = self._tensors(rows)
        return tensors

    def _cut(self, part: Part, number: int) -> dict[str, Sequence[Any]]:
        """Return {name of a field: its tensor alone} of a batch, cut out of what JAX was given."""
        names = [name for names in part.scalars for name in names]
        tensors = cut_batch(list(part.scalars.values()), number, part.rows)
        return {name: [tensor] for name, tensor in zip(names, tensors, strict=True)}

    def _finish(self) -> None:
        """Wait for what this thread has queued on a GPU: the stream of a backend does not."""
        if self._on_gpu:
            self._pool.library.cuda.get_current_stream().synchronize()

    def _list_tensors(self, name: str, lists: Lists) -> dict[str, Any]:
        if self._layout.multi_hot.form == "padded":
            arrays = {name: self._padded(lists)}
        else:
            lengths = lists.offsets[1:] - lists.offsets[:-1]
            nnzs = self._pool.empty((len(lists), 1), self._layout.min_int_dtype)
            nnzs[:, 0] = lengths
            arrays = {f"{name}__nnzs": nnzs, f"{name}__values": lists.values[:, None]}
        self._finish()
        return {name: self._tensor(array) for name, array in arrays.items()}

    def _padded(self, lists: Lists) -> Any:
        lengths = lists.offsets[1:] - lists.offsets[:-1]
        width = self._layout.multi_hot.max_length or max(1, int(lengths.max()))
        padded = self._pool.empty((len(lists), width), lists.values.dtype)
        padded[...] = PAD
        padded[self._pool.library.arange(width) < lengths[:, None]] = lists.values
        return padded


def _handed_over(layout: Layout, give: Callable[[list[Any]], list[Any]], part: Part) -> list[Part]:
    """Return the batches of a part in blocks, as arrays of JAX [batches, fields, rows, ...]."""
    blocks = []
    for block in part.blocks():
        arrays = []
        for names, array in block.scalars.items():  # weights have no axis of width
            arrays.append(array[..., 0] if names[0] in layout.weights else array)
        block.scalars = dict(zip(block.scalars, give(arrays), strict=True))
        blocks.append(block)
    return blocks


def _by_batch(tensors: Mapping[str, Sequence[Any]], count: int) -> list[dict[str, Any]]:
    """Return {name: tensor} of each batch, given the tensors of all batches by name."""
    if not tensors:
        return [{} for _ in range(count)]
    return [dict(zip(tensors, row, strict=True)) for row in zip(*tensors.values(), strict=True)]
