"""Lists: in which form a column of lists is in a batch, and how long its arrays are.

XLA and JAX compile for every new shape. The number of values of a multi-hot column differs from
batch to batch, and so does the longest list: without padding, every step would compile.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tutorlib.checks import check_choice, check_integer

PARTS = {  # tensors of a list column g: g__values, ...; else one that is called g
    "nnzs": ("values", "nnzs"),
    "offsets": ("values", "offsets"),
    "ragged": (),
    "padded": (),
}
PAD = -1  # behind the ids of "padded" lists; floats end with 0
# 64, 72, 80, ..., 128, 144, ...: eight lengths until each doubling.
LENGTHS = np.array([m << k for k in range(3, 36) for m in range(8, 16)], np.int64)
SPREAD = 4  # standard deviations above the mean, of lists whose lengths deviate by their mean


@dataclasses.dataclass(frozen=True)
class MultiHot:
    """How columns of lists are in a batch: the argument `multi_hot` of `KerasSequenceLoader`.

    Args:
        form: of a list column g: "nnzs" gives `g__values` [nnz, 1] and `g__nnzs` [batch, 1];
            "offsets" gives `g__values` [nnz] and `g__offsets` [batch + 1]; "ragged" gives a
            tf.RaggedTensor g; "padded" gives g [batch, longest], padded with -1, which no id is
            (floats with 0).
        max_length: longest list that is accepted, at least 1, and the width of "padded"; None for
            any length.
        bucketed: whether list columns come in few different shapes. `g__values` is padded after
            the last list to a length that the files' mean list length predicts, nearly always the
            same one: a tenth more values at batches of 4,096 rows, a third at 256. Layers ignore
            the padding. "padded" without `max_length` becomes 1, 2, 3, 4, 6, 8, 12, ... wide. A
            last batch that is not full adds a shape: see `drop_last`.

    Raises:
        ValueError: if a field is out of range, or "ragged" is to be bucketed.

    Example:
        >>> MultiHot("padded", max_length=20).form
        'padded'
    """

    form: str = "nnzs"
    max_length: int | None = None
    bucketed: bool = False

    def __post_init__(self) -> None:
        check_choice("multi_hot", self.form, tuple(PARTS))
        if self.max_length is not None:
            length = check_integer("multi_hot: max_length", self.max_length, 1)
            object.__setattr__(self, "max_length", length)
        if self.form == "ragged" and self.bucketed:
            raise ValueError(
                "multi_hot: bucketed=True pads after the last list, but 'ragged' gives a "
                "tf.RaggedTensor, whose values end with its last row; use 'nnzs', 'offsets' or "
                "'padded'"
            )

    @property
    def parts(self) -> tuple[str, ...]:
        """Tensors of a list column g, as in `g__values`; none if it is one tensor g."""
        return PARTS[self.form]

    def num_values(self, mean: float, rows: int, count: int) -> int:
        """Return the length of the array for the `count` values of a list column in a batch.

        If each batch had the next bucket of its own number of values, some batch would differ in
        every epoch, and with several list columns every combination is a shape. So batches are
        padded to a length that one in thousands exceeds. A batch with more values, or fewer than
        half the mean, gets a bucket of its own.

        Args:
            mean: values of a row, over all files.
            rows: rows of the batch.
            count: values of the batch.

        Example:
            >>> few = MultiHot(bucketed=True)
            >>> [few.num_values(3.0, 1024, count) for count in (1000, 2900, 3100, 3500)]
            [1024, 3584, 3584, 3584]
        """
        if not self.bucketed or self.form == "padded":
            return count
        usual = math.ceil(mean * rows * (1 + SPREAD / math.sqrt(rows)))
        size = usual if mean * rows / 2 <= count <= usual else count
        return int(LENGTHS[np.searchsorted(LENGTHS, size)])

    def width(self, longest: int) -> int:
        """Return the width of a matrix with one list in each row, given the longest list.

        Two widths lie between a power of two and the next. They are coarser than the lengths of
        values because the longest list of a batch varies far more than the number of values.

        Example:
            >>> [MultiHot("padded", bucketed=True).width(n) for n in (0, 1, 3, 5, 7, 9, 100)]
            [1, 1, 3, 6, 8, 12, 128]
        """
        if self.max_length is not None or not self.bucketed:
            return self.max_length or max(1, longest)
        power = 1 << max(0, longest - 1).bit_length()
        return power * 3 // 4 if power > 2 and longest <= power * 3 // 4 else power


def values_per_row(source: Any) -> dict[str, float]:
    """Return {list column: mean number of values in a row} by the footers of a `ParquetSource`.

    Footers count an empty list as one value, and do not count lists of strings.
    """
    return {
        name: max(0.0, source.row_bytes(0, [name]) - 8) / np.dtype(kind).itemsize
        for name, (kind, is_list) in source.column_types.items()
        if is_list and kind in np.sctypeDict and len(source)
    }
