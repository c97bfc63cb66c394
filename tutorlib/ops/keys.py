"""Keys: combinations of values of several columns, found in a list, grouped, hashed.

A combination is a list of columns, its parts, of equal length: integers or texts, each perhaps with
nulls. One column alone is a combination of one part. Does not belong here: what is learned of a
group of rows (`groups.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.chunk import Array, Strings, column_from_arrow, column_to_arrow, take
from tutorlib.encoded_strings import EncodedStrings
from tutorlib.hashing import KeyIndex, hash_values, mix
from tutorlib.ops.columns import parts_of

_KEYS_A_TEXT = 8  # with more keys to each text, Arrow's table of them takes longer than it saves


class CombinationIndex:
    """Finds the place of combinations in a list of combinations; a null is a value of its own.

    A `KeyIndex` for each part gives it a number; two numbers make one, which a further `KeyIndex`
    numbers anew, and so on. So a lookup is exact, and costs 2 k - 1 lookups for k parts.

    Args:
        parts: columns [n], whose rows are the combinations, each once, in the CPU's memory.

    Raises:
        ValueError: if a combination stands twice.

    Example:
        >>> texts = column_from_arrow(pa.array(["x", None, "x"]))
        >>> index = CombinationIndex([np.array([7, 7, 8]), texts])
        >>> index.find([np.array([8, 8, 7]), texts.take(np.array([0, 1, 1]))]).tolist()
        [3, 0, 2]
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)
        self.pair_indexes: list[KeyIndex] = []
        if len(self.parts) == 1:
            self.part_indexes = [KeyIndex(self.parts[0])]
            return
        self.part_indexes = [KeyIndex(_distinct(part)) for part in self.parts]
        number = self._number(0, self.parts[0])
        for place, part in enumerate(self.parts[1:], 1):
            packed = self._packed(number, place, part)
            if place == len(self.parts) - 1:
                self.pair_indexes.append(KeyIndex(self._each_once(packed)))
            else:
                self.pair_indexes.append(KeyIndex(np.unique(packed)))
                number = self.pair_indexes[-1].find(packed)

    def __len__(self) -> int:
        return len(self.parts[0])

    def _each_once(self, packed: np.ndarray) -> np.ndarray:
        first = np.unique(packed, return_index=True)[1]
        if len(first) < len(packed):
            twice = int(np.setdiff1d(np.arange(len(packed)), first)[0])
            key = tuple(take(part, np.array([twice])).tolist()[0] for part in self.parts)
            raise ValueError(f"keys must be unique, {key!r} stands twice")
        return packed

    def _number(self, place: int, part: Any) -> Array:
        """Return the number of each value of a part: from 1, a null the last, 0 if not known."""
        values, valid = parts_of(part)
        number = find_keys(self.part_indexes[place], values).astype(np.int64)
        if valid is not None:
            number[~valid] = len(self.part_indexes[place].keys) + 1
        return number

    def _packed(self, number: Array, place: int, part: Any) -> Array:
        """Return one number for each pair of a number so far and a value of the next part."""
        following = self._number(place, part)
        packed = number.astype(np.int64) * (len(self.part_indexes[place].keys) + 2) + following
        packed[(number == 0) | (following == 0)] = -1
        return packed

    def find(self, parts: Sequence[Any]) -> Array:
        """Return for each combination its place, counted from 1, and 0 where it is not there.

        Args:
            parts: columns [n] of the types that the keys have.

        Returns:
            int32 or int64 [n].
        """
        if len(parts) == 1:
            values, valid = parts_of(parts[0])
            found = find_keys(self.part_indexes[0], values)
            if valid is not None:
                found[~valid] = 0
            return found
        number = self._number(0, parts[0])
        for place, (pair, part) in enumerate(zip(self.pair_indexes, parts[1:], strict=True), 1):
            number = pair.find(self._packed(number, place, part))
        return number


def find_keys(index: KeyIndex, wanted: Any) -> Array:
    """Return `index.find(wanted)`: of each key its place, counted from 1, and 0 where it is not.

    Texts in the CPU's memory are looked up by Arrow, and each entry of a dictionary once: that
    takes 10 to 30 ns a text in place of 300.
    """
    keys = index.keys
    if isinstance(keys, Strings):
        if isinstance(wanted, EncodedStrings):
            return _find_strings(index, keys, wanted.dictionary)[wanted.codes]
        if isinstance(wanted, Strings) and isinstance(wanted.offsets, np.ndarray):
            return _find_strings(index, keys, wanted.to_arrow())
    return index.find(wanted)


def _find_strings(index: KeyIndex, keys: Strings, texts: pa.Array) -> np.ndarray:
    if len(keys) > _KEYS_A_TEXT * len(texts):
        return index.find(Strings.from_arrow(texts))
    places = pc.index_in(texts, value_set=keys.to_arrow())
    return places.fill_null(-1).to_numpy() + np.int32(1)


def _distinct(part: Any) -> Any:
    """Return the values of a column, each once, without null."""
    array = pa.array(column_to_arrow(part))
    return column_from_arrow(array.unique().drop_null())


def combined_hashes(parts: Sequence[Any]) -> Array:
    """Return the 64-bit hash of each combination; a null counts as a value of its own.

    It is `mix(hash of the first)`, then for each further part `mix(so far ^ its hash)`, with the
    hash 0 for a null.

    Args:
        parts: columns [n].

    Returns:
        uint64 [n].
    """
    crossed = None
    for part in parts:
        values, valid = parts_of(part)
        hashes = hash_values(values)
        if valid is not None:
            hashes[~valid] = 0
        crossed = hashes if crossed is None else crossed ^ hashes
        mix(crossed)
    return crossed


def group_rows(parts: Sequence[Any]) -> tuple[np.ndarray, list[pa.Array]]:
    """Return which combination stands in each row, numbered as they first come; on the CPU.

    Args:
        parts: columns [n] or Arrow arrays [n].

    Returns:
        (int64 [n], number of the row's combination; its parts as Arrow arrays [groups], integers as
        int64, texts as large strings).

    Example:
        >>> numbers, (keys, _) = group_rows([np.array([5, 3, 5]), np.array([1, 1, 1])])
        >>> numbers.tolist(), keys.tolist()
        ([0, 1, 0], [5, 3])
    """
    arrays = [_plain(part) for part in parts]
    numbers, groups = np.zeros(len(arrays[0]), dtype=np.int64), 1
    for array in arrays:
        encoded = array.dictionary_encode(null_encoding="encode")
        packed = numbers * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
        together = pa.array(packed).dictionary_encode()
        numbers, groups = together.indices.to_numpy().astype(np.int64), len(together.dictionary)
    first = np.empty(groups, dtype=np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    rows = pa.array(first)
    return numbers, [array.take(rows) for array in arrays]


def _plain(part: Any) -> pa.Array:
    """Return a column as Arrow array of int64 or large strings."""
    array = part if isinstance(part, pa.Array) else column_to_arrow(part)
    texts = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    return array.cast(pa.large_string() if texts else pa.int64())
