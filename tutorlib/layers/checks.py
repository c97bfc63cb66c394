"""Checks that several layers make of their arguments. Does not belong here: checks of data."""

from __future__ import annotations

from collections.abc import Sequence

from tutorlib.schema import Schema


def refuse_multi_hot(features: Schema, who: str) -> None:
    """Raise ValueError that names all multi-hot columns, where there are some."""
    names = [column.name for column in features if column.multi_hot]
    if names:
        raise ValueError(
            f"{who} takes one value per row, but the columns {names} are multi-hot. "
            "Use DenseFeatures for them."
        )


def check_pairs_of_features(input_shape: Sequence[int | None], least: int) -> None:
    """Raise ValueError where a shape is not [batch, F, d] with F at least `least`."""
    if len(input_shape) != 3 or None in input_shape[1:]:
        raise ValueError(f"input must have a known shape [batch, F, d], got {tuple(input_shape)}")
    if input_shape[1] < least:
        raise ValueError(f"an interaction needs at least two features, got {tuple(input_shape)}")
