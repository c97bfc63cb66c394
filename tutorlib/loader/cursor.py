"""EpochCursor: where a loader stands, and how a saved position is checked and restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tutorlib.checks import check_integer, differences


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
