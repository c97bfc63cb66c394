"""Lengths: to how many values lists are padded, so that XLA and JAX compile few times.

Both compile anew for every shape. The values of a multi-hot column have another length in every
batch, and the longest list is another one, which would be a compilation a step. Does not belong
here: the padding (`batching.py`, `device_batches.py`, `tensors.py`, `layers/buckets.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

# 64, 72, 80, ..., 128, 144, ...: eight lengths until each doubling.
LENGTHS = np.array([m << k for k in range(3, 36) for m in range(8, 16)], np.int64)
SPREAD = 4  # standard deviations above the mean, of lists whose lengths spread as wide as they are


class ListLengths:
    """How long the arrays of lists in a batch are: as long as they must be."""

    def values(self, name: str, rows: int, count: int) -> int:
        """Return the length of the array with the values of all lists of a batch.

        Args:
            name: the list column.
            rows: of the batch.
            count: values of its lists.
        """
        return count

    def width(self, longest: int) -> int:
        """Return the columns of a matrix with a list in each row, given the longest."""
        return longest


class BucketedValues(ListLengths):
    """Arrays of values in few lengths, nearly always one for all batches of as many rows.

    The files tell how long lists are on average. What batches of so many rows have at most, but for
    one in thousands, is the length of all of them: with a bucket of its own, some batch would lie
    beside the others in every epoch, and of several columns every combination is a shape. It costs
    a tenth more with batches of 4,096 rows, a third with 256. A batch that has more, or not half of
    what it should, gets its own bucket.

    Args:
        values_per_row: {list column: mean number of values}; columns may be missing.

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
        """Return the usual length for so many rows, or the bucket of `count`."""
        mean = self._values_per_row.get(name, 0) * rows
        usual = math.ceil(mean * (1 + SPREAD / math.sqrt(rows)))
        return bucket_length(usual if mean / 2 <= count <= usual else count)


class BucketedWidths(ListLengths):
    """Matrices in few widths."""

    def width(self, longest: int) -> int:
        """Return the bucket of `longest`."""
        return bucket_width(longest)


def list_lengths(multi_hot: str, bucket_lists: bool, source: Any) -> ListLengths:
    """Return how long a loader makes the arrays of its lists.

    Args:
        multi_hot: the form of lists: "nnzs", "offsets", "ragged" or "padded".
        bucket_lists: whether they shall come in few shapes.
        source: the `ParquetSource`, whose footers tell the mean length of lists.

    Raises:
        ValueError: for ragged tensors in few shapes.
    """
    if not bucket_lists:
        return ListLengths()
    if multi_hot == "ragged":
        raise ValueError(
            "bucket_lists=True pads behind the last list, but multi_hot='ragged' gives a "
            "tf.RaggedTensor, whose values end with its last row. Use 'nnzs', 'offsets' or "
            "'padded'."
        )
    return BucketedWidths() if multi_hot == "padded" else BucketedValues(values_per_row(source))


def values_per_row(source: Any) -> dict[str, float]:
    """Return {list column: mean number of values in a row} of a `ParquetSource`, by its footers.

    They count an empty list as one value. Of lists of text they tell nothing.
    """
    numbers = {
        name: np.dtype(kind).itemsize
        for name, (kind, is_list) in source.column_types.items()
        if is_list and kind in np.sctypeDict
    }
    return {name: source.nbytes_per_row([name]) / size for name, size in numbers.items()}


def bucket_length(size: int) -> int:
    """Return the length to which `size` values are padded: the next of 64, 72, 80, ..., 128, 144.

    There are eight such lengths until each doubling, so at most an eighth is added, and a training
    whose batches differ by a factor of two in their number of values compiles at most nine times.

    Example:
        >>> [bucket_length(size) for size in (1, 64, 65, 1000)]
        [64, 64, 72, 1024]
    """
    return int(LENGTHS[np.searchsorted(LENGTHS, size)])


def bucket_width(longest: int) -> int:
    """Return the width of a matrix whose longest list is given: the next of 1, 2, 3, 4, 6, 8, 12.

    Two such widths until each doubling, at most half as much again. Coarser than `bucket_length`,
    for the longest of a batch's lists varies from batch to batch far more than their sum does; and
    beginning at 1, for most lists are short.

    Example:
        >>> [bucket_width(longest) for longest in (0, 1, 3, 5, 7, 9, 100)]
        [1, 1, 3, 6, 8, 12, 128]
    """
    power = 1 << max(0, longest - 1).bit_length()
    return power * 3 // 4 if power > 2 and longest <= power * 3 // 4 else power
