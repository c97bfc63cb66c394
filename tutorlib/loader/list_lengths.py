"""List lengths: to how many values lists are padded, so that XLA and JAX compile few times.

Both compile for every new shape. The number of values of a multi-hot column differs from batch to
batch, and so does the longest list: without padding, every step would compile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

# 64, 72, 80, ..., 128, 144, ...: eight lengths until each doubling.
LENGTHS = np.array([m << k for k in range(3, 36) for m in range(8, 16)], np.int64)
SPREAD = 4  # standard deviations above the mean, of lists whose lengths deviate by their mean


class ListLengths:
    """The lengths of a batch's list arrays: here as long as they must be."""

    def values(self, name: str, rows: int, count: int) -> int:
        """Return the length of the array for the `count` values of a list column in a batch."""
        return count

    def width(self, longest: int) -> int:
        """Return the width of a matrix with one list in each row, given the longest list."""
        return longest


class BucketedValues(ListLengths):
    """Arrays of values in few lengths, nearly always one length for all batches of one size.

    The files tell how long lists are on average. Batches are padded to a length that one in
    thousands exceeds: if each had the next bucket of its own number of values, some batch would
    differ in every epoch, and with several list columns every combination is a shape. This adds a
    tenth to batches of 4,096 rows and a third to batches of 256. A batch with more values, or fewer
    than half the mean, gets a bucket of its own.

    Args:
        values_per_row: {list column: mean number of values in a row}; columns may be missing.

    Example:
        >>> lengths = BucketedValues({"g": 3.0})
        >>> [lengths.values("g", 1024, count) for count in (1000, 2900, 3100, 3500)]
        [1024, 3584, 3584, 3584]
        >>> BucketedValues({}).values("g", 1024, 3100)
        3328
    """

    def __init__(self, values_per_row: Mapping[str, float]) -> None:
        self._values_per_row = values_per_row

    def values(self, name: str, rows: int, count: int) -> int:
        """Return the usual length for this number of rows, or the bucket of `count`."""
        mean = self._values_per_row.get(name, 0) * rows
        usual = math.ceil(mean * (1 + SPREAD / math.sqrt(rows)))
        return bucket_length(usual if mean / 2 <= count <= usual else count)


class BucketedWidths(ListLengths):
    """Matrices in few widths."""

    def width(self, longest: int) -> int:
        """Return the bucket of `longest`."""
        return bucket_width(longest)


def list_lengths(multi_hot: str, bucket_lists: bool, source: Any) -> ListLengths:
    """Return the lengths of the list arrays that a loader makes with these settings."""
    if not bucket_lists:
        return ListLengths()
    return BucketedWidths() if multi_hot == "padded" else BucketedValues(values_per_row(source))


def values_per_row(source: Any) -> dict[str, float]:
    """Return {list column: mean number of values in a row} by the footers of a `ParquetSource`.

    Footers count an empty list as one value, and do not count lists of strings.
    """
    numbers = {
        name: np.dtype(kind).itemsize
        for name, (kind, is_list) in source.column_types.items()
        if is_list and kind in np.sctypeDict
    }
    return {name: source.sizes.nbytes_per_row([name]) / size for name, size in numbers.items()}


def bucket_length(size: int) -> int:
    """Return the length to which `size` values are padded: the next of 64, 72, 80, ..., 128, 144.

    Eight lengths lie between a power of two and the next, so padding adds at most an eighth (above
    64 values), and batches whose numbers of values differ by a factor of two have nine lengths.

    Example:
        >>> [bucket_length(size) for size in (1, 64, 65, 1000)]
        [64, 64, 72, 1024]
    """
    return int(LENGTHS[np.searchsorted(LENGTHS, size)])


def bucket_width(longest: int) -> int:
    """Return the width of a matrix whose longest list is given: the next of 1, 2, 3, 4, 6, 8, 12.

    Two widths lie between a power of two and the next, so padding adds at most half. They are
    coarser than `bucket_length` because the longest list of a batch varies far more than the number
    of values, and begin at 1 because most lists are short.

    Example:
        >>> [bucket_width(longest) for longest in (0, 1, 3, 5, 7, 9, 100)]
        [1, 1, 3, 6, 8, 12, 128]
    """
    power = 1 << max(0, longest - 1).bit_length()
    return power * 3 // 4 if power > 2 and longest <= power * 3 // 4 else power
