"""EpochCursor: where a loader stands, and how a saved position is checked and restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tutorlib.checks import check_integer
from tutorlib.display import differences


class Position(NamedTuple):
    """Where a loader stands; all numbers count from 0."""

    epoch: int = 0
    first_batch: int = 0  # of the next pass over the epoch; above 0 after a resume
    next_batch: int = 0  # the one after the batch that was taken last


class EpochCursor:
    """The position of a loader and the seed of its current epoch.

    An epoch ends when its last batch is taken. Until then every pass over it begins at
    `position.first_batch` and has the same seed.

    Args:
        seed: seed of every epoch, int, if there is no `seed_fn`.
        seed_fn: called once in each epoch for its seed; None uses `seed`.

    Attributes:
        position: where the loader stands; may be set to an earlier position of the same loader.

    Example:
        >>> cursor = EpochCursor(seed=7)
        >>> cursor.advance(epoch=0, next_batch=1, num_batches=2)
        >>> cursor.position
        Position(epoch=0, first_batch=0, next_batch=1)
        >>> cursor.advance(epoch=0, next_batch=2, num_batches=2)
        >>> cursor.position
        Position(epoch=1, first_batch=0, next_batch=0)
    """

    def __init__(self, seed: int, seed_fn: Callable[[], int] | None = None) -> None:
        self.position = Position()
        self._seed, self._seed_fn = seed, seed_fn
        self._drawn: tuple[int, int] | None = None  # (epoch, its seed)

    def draw_seed(self) -> int:
        """Return the seed of the current epoch; `seed_fn` is called the first time only.

        Raises:
            ValueError: if `seed_fn` returns something else than an integer in [0, 2**64).
            RuntimeError: if `seed_fn` raises StopIteration, which would end a loop silently.
        """
        epoch, seed = self.position.epoch, self._seed
        if self._drawn is None or self._drawn[0] != epoch:
            if self._seed_fn is not None:
                try:
                    given = self._seed_fn()
                except StopIteration as error:
                    raise RuntimeError(
                        f"seed_fn must return a seed for every epoch, but raised StopIteration for "
                        f"epoch {epoch}; return seeds from a function that does not end"
                    ) from error
                name = f"the seed that seed_fn returned for epoch {epoch}"
                seed = check_integer(name, given, 0, bits=64)
            self._drawn = epoch, seed
        return self._drawn[1]

    def set_epoch(self, epoch: int) -> None:
        """Go to the first batch of an epoch; its seed is drawn again.

        Raises:
            ValueError: if `epoch` is not an integer in [0, 2**64).
        """
        self.position, self._drawn = Position(check_integer("epoch", epoch, 0, bits=64)), None

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

    def state_dict(self) -> dict[str, Any]:
        """Return {"epoch", "batch", "seed"} as JSON values; seed is None before it is drawn."""
        epoch, _, batch = self.position
        drawn_epoch, seed = self._drawn or (None, None)
        return {"epoch": epoch, "batch": batch, "seed": seed if drawn_epoch == epoch else None}

    def load_state_dict(
        self, state: Mapping[str, Any], identity: Mapping[str, Any], num_batches: int
    ) -> None:
        """Go to the position of a saved state.

        Args:
            state: what `state_dict()` of a loader returned.
            identity: what the state must have been saved with: JSON values that decide the order.
            num_batches: batches of an epoch.

        Raises:
            ValueError: if the state is none, or of other data or settings; says which.
        """
        needed = {*identity, "epoch", "batch", "seed"}
        missing = sorted(needed - {*state}) if isinstance(state, Mapping) else sorted(needed)
        if missing:
            raise ValueError(
                f"the state is not what state_dict() of a loader returned: lacks {missing}"
            )
        numbers = {name: state[name] for name in ("epoch", "batch", "seed")}
        for name, value in numbers.items():
            if name == "seed" and value is None and numbers["batch"] == 0:
                continue  # the epoch has not begun
            if type(value) is not int or not 0 <= value < 2**64:
                raise ValueError(
                    f"{name} of a loader's state must be an integer in [0, 2**64), got {value!r}"
                )
        changed = differences({name: state[name] for name in identity}, identity)
        if changed:
            raise ValueError(
                "the state belongs to other data or settings, with which the order of the rows "
                f"differs: {'; '.join(changed)}. Restore it with the data and settings it was "
                "saved with."
            )
        epoch, batch, seed = numbers.values()
        if batch >= max(1, num_batches):
            raise ValueError(f"the state is at batch {batch}, but an epoch has {num_batches}")
        self.position = Position(epoch, batch, batch)
        self._drawn = None if seed is None else (epoch, seed)
