"""What several lessons need and none of them teaches."""

from __future__ import annotations


def check(claim: str, holds: object) -> None:
    """Print a claim that holds, or stop the lesson.

    Args:
        claim: what the text above the cell says, in a few words.
        holds: whether this run's numbers bear it out.

    Raises:
        AssertionError: if the claim does not hold.

    Example:
        >>> check("ids fit their tables", 3 < 4)
        ok: ids fit their tables
    """
    if not holds:
        raise AssertionError(f"this run does not bear out: {claim}")
    print("ok:", claim)
