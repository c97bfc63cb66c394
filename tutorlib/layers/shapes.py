"""Shapes: what layers require of the shape of their input."""

from __future__ import annotations

from collections.abc import Sequence


def known_columns(input_shape: Sequence[int | None], letter: str) -> int:
    """Return n of a shape [batch, n]; raise ValueError for any other shape or an unknown n."""
    if len(input_shape) == 2 and input_shape[1] is not None:
        return input_shape[1]
    raise ValueError(
        f"the input must have a known shape [batch, {letter}], got {tuple(input_shape)}"
    )


def known_features(input_shape: Sequence[int | None], at_least: int) -> tuple[int, int]:
    """Return (F, d) of a shape [batch, F, d]; raise ValueError unless F is at least `at_least`."""
    if len(input_shape) != 3 or input_shape[1] is None or input_shape[2] is None:
        raise ValueError(
            "the input must have a known shape [batch, F, d], F feature vectors of width d, got "
            f"{tuple(input_shape)}. Stack the features first, e.g. with aggregation='stack'."
        )
    if input_shape[1] < at_least:
        raise ValueError(
            f"the input must have at least {at_least} features, got {input_shape[1]} in shape "
            f"{tuple(input_shape)}"
        )
    return input_shape[1], input_shape[2]
