"""Keys of one column or several: found in a list, grouped and hashed.

A key of several columns is a combination: its parts are columns [n] of integers or strings, each
perhaps with nulls, and row i of all parts is combination i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.columns import (
    Array,
    EncodedStrings,
    Strings,
    column_from_arrow,
    column_to_arrow,
    strings_as_integers,
    take,
)
from tutorlib.hashing import KeyIndex, hash_values, mix
from tutorlib.ops.shared.columns import parts_of

_RANGE_PER_VALUE = 4
_KEYS_PER_STRING = 8  # with more, Arrow's table of the keys costs more than it saves


class CombinationIndex:
    """Finds the position of keys, of one part or several, in a list of keys.

    A `KeyIndex` numbers the values of each part. The numbers of two parts make one integer, which
    another `KeyIndex` numbers again, and so on: k parts cost 2 k - 1 exact lookups.

    Args:
        parts: columns [n] in host memory; each combination occurs once. Among several parts a null
            is a value like others; a single part has none.

    Attributes:
        parts: as given.
        part_indexes: `KeyIndex` of each part's values.
        pair_indexes: `KeyIndex` of the integers that two numbers make, one for each further part.

    Raises:
        ValueError: if a combination occurs twice.

    Example:
        >>> strings = column_from_arrow(pa.array(["x", None, "x"]))
        >>> index = CombinationIndex([np.array([7, 7, 8]), strings])
        >>> index.find([np.array([8, 8, 7]), strings.take(np.array([0, 1, 1]))]).tolist()
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
        for k, part in enumerate(self.parts[1:], 1):
            packed = self._packed(number, k, part)
            if k == len(self.parts) - 1:
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
            raise ValueError(f"keys must be unique, but {key!r} appears twice")
        return packed

    def _number(self, k: int, part: Any) -> Array:
        """Return the number of each value of part k: from 1, a null the last, 0 if not known."""
        values, valid = parts_of(part)
        number = find_keys(self.part_indexes[k], values).astype(np.int64)
        if valid is not None:
            number[~valid] = len(self.part_indexes[k].keys) + 1
        return number

    def _packed(self, number: Array, k: int, part: Any) -> Array:
        """Return one integer for each pair of a number so far and a value of part k."""
        following = self._number(k, part)
        packed = number.astype(np.int64) * (len(self.part_indexes[k].keys) + 2) + following
        packed[(number == 0) | (following == 0)] = -1
        return packed

    def find(self, parts: Sequence[Any]) -> Array:
        """Return the position of each key, from 1, int32 or int64 [n]; 0 if it is not in the list.

        The parts, columns [n], have the types of the keys.
        """
        if len(parts) == 1:
            values, valid = parts_of(parts[0])
            found = find_keys(self.part_indexes[0], values)
            if valid is not None:
                found[~valid] = 0
            return found
        number = self._number(0, parts[0])
        for k, (pair, part) in enumerate(zip(self.pair_indexes, parts[1:], strict=True), 1):
            number = pair.find(self._packed(number, k, part))
        return number


def find_keys(index: KeyIndex, wanted: Any) -> Array:
    """Return `index.find(wanted)`: positions counted from 1, 0 for a key that is not in the index.

    Arrow looks up strings in host memory, and dictionary-encoded ones once an entry: 10 to 30 ns a
    string where `index.find` takes 300 ns.
    """
    keys = index.keys
    if isinstance(keys, Strings):
        if isinstance(wanted, EncodedStrings):
            return _find_strings(index, keys, wanted.dictionary)[wanted.codes]
        if isinstance(wanted, Strings) and isinstance(wanted.offsets, np.ndarray):
            return _find_strings(index, keys, wanted.to_arrow())
    return index.find(wanted)


def _find_strings(index: KeyIndex, keys: Strings, strings: pa.Array) -> np.ndarray:
    if len(keys) > _KEYS_PER_STRING * len(strings):
        return index.find(Strings.from_arrow(strings))
    known, wanted = strings_as_integers(keys.to_arrow()), strings_as_integers(strings)
    if known is None or wanted is None:
        known, wanted = keys.to_arrow(), strings
    positions = pc.index_in(wanted, value_set=known)
    return positions.fill_null(-1).to_numpy() + np.int32(1)


def _distinct(part: Any) -> Any:
    """Return each value of a column once, without null."""
    array = pa.array(column_to_arrow(part))
    return column_from_arrow(array.unique().drop_null())


def combination_name(name: str | None, columns: Sequence[str]) -> str:
    """Return the name of a combination: the one given, else the columns' names joined by "_X_"."""
    return name or "_X_".join(columns)


def combined_hashes(parts: Sequence[Any]) -> Array:
    """Return the 64-bit hash of each combination of columns [n], uint64 [n].

    It is `mix(hash of the first part)`, then `mix(hash so far ^ hash of the part)` for each further
    part. A null has the hash 0.
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
    """Return the number of each row's combination, in some order of them, on the CPU.

    Returns:
        (integers [n] numbers, [parts] Arrow arrays [groups] of the combinations: integers as int64,
        strings as large strings).

    Example:
        >>> numbers, (keys, _) = group_rows([np.array([5, 3, 5]), np.array([1, 1, 1])])
        >>> numbers.tolist(), keys.tolist()
        ([1, 0, 1], [3, 5])
    """
    arrays = [_plain(part) for part in parts]
    numbers, groups = _numbered(arrays[0])
    for array in arrays[1:]:
        following, size = _numbered(array)
        numbers, groups = _numbered(pa.array(numbers.astype(np.int64) * size + following))
    one_of = np.empty(groups, dtype=np.int64)
    one_of[numbers] = np.arange(len(numbers))
    rows = pa.array(one_of)
    return numbers, [array.take(rows) for array in arrays]


def _numbered(array: pa.Array) -> tuple[np.ndarray, int]:
    """Return (the number of each value, how many values differ); null is a value like others."""
    values = None if array.null_count or not pa.types.is_integer(array.type) else array.to_numpy()
    narrow = None if values is None else narrow_range(values)
    if values is None or narrow is None:
        encoded = array.dictionary_encode(null_encoding="encode")
        return encoded.indices.to_numpy(), len(encoded.dictionary)
    lowest, size = narrow
    at = values - lowest
    met = np.zeros(size, dtype=bool)
    met[at] = True
    numbers = np.cumsum(met) - 1
    return numbers[at], int(numbers[-1]) + 1


def narrow_range(values: np.ndarray) -> tuple[int, int] | None:
    """Return (lowest, size) of a range of integers in which a table is faster than hashing.

    None if the range is wider than `_RANGE_PER_VALUE` times the number of values, or there are no
    values.
    """
    if not len(values):
        return None
    lowest = int(values.min())
    size = int(values.max()) - lowest + 1
    return (lowest, size) if size <= _RANGE_PER_VALUE * len(values) else None


def _plain(part: Any) -> pa.Array:
    """Return a column as an Arrow array of int64 or large strings."""
    array = part if isinstance(part, pa.Array) else column_to_arrow(part)
    strings = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    return array.cast(pa.large_string() if strings else pa.int64())
