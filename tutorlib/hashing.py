"""One 64-bit hash of integers and strings, and a hash table of keys.

Everything is array operations, so that NumPy and a TensorFlow graph compute the same numbers.
`tests/support/hash_vectors.json` lists values with their hashes and buckets, for other
implementations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.columns import EncodedStrings, Strings, column_to_arrow

GAMMA = np.uint64(0x9E3779B97F4A7C15)
FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
FACTOR_2 = np.uint64(0x94D049BB133111EB)
_BLOCK = 16_384  # values in a step: 128 KiB, which fits the second-level cache
_VALUES_PER_KEY = 2  # from which on Arrow's table of the keys, made at each call, pays


def blocks_of(length: int) -> Iterator[slice]:
    """Yield slices of the size of a cache that cover `length` values."""
    for start in range(0, length, _BLOCK):
        yield slice(start, start + _BLOCK)


def mix(h: np.ndarray) -> None:
    """Replace each uint64 of `h` by its splitmix64 output, in place."""
    spare = np.empty_like(h)
    h += GAMMA
    for shift, factor in ((30, FACTOR_1), (27, FACTOR_2), (31, None)):
        np.right_shift(h, np.uint64(shift), out=spare)
        h ^= spare
        if factor is not None:
            h *= factor


def hash_integers(values: np.ndarray) -> np.ndarray:
    """Return the 64-bit hash of integers, the same for every integer width.

    The hash is the output function of the generator splitmix64. It is bijective, so that two
    integers never share a hash, and needs only additions, multiplications and shifts modulo 2**64,
    which NumPy and TensorFlow compute alike.

    Args:
        values: integers or booleans [n]; signed integers are extended to int64.

    Returns:
        uint64 [n].

    Example:
        >>> f"{int(hash_integers(np.array([0]))[0]):x}"  # first output of splitmix64, seed 0
        'e220a8397b1dcdaf'
        >>> int(hash_integers(np.array([1234567]))[0])  # first output, seed 1234567
        6457827717110365317

    Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators",
    OOPSLA 2014; constants of S. Vigna's splitmix64.c (variant 13 of D. Stafford).
    """
    hashes = np.empty(len(values), dtype=np.uint64)
    for block in blocks_of(len(values)):
        part = values[block]
        hashes[block] = part if part.dtype == np.uint64 else part.astype(np.int64).view(np.uint64)
        mix(hashes[block])
    return hashes


def _read_words(words: np.ndarray, starts: np.ndarray, remaining: np.ndarray) -> np.ndarray:
    """Return the 8 bytes at each byte position as uint64, zero after `remaining` >= 1 bytes."""
    index = starts >> 3
    shift = ((starts & 7) << 3).astype(np.uint64)
    result = words[index] >> shift
    result |= (words[index + 1] << np.uint64(1)) << (np.uint64(63) - shift)
    unused = (64 - 8 * np.minimum(remaining, 8)).astype(np.uint64)
    result <<= unused
    result >>= unused
    return result


def hash_strings(strings: Strings) -> np.ndarray:
    """Return the 64-bit hash of strings, from their UTF-8 bytes.

    The hash starts as `mix(number of bytes)`. Then `h = mix(h ^ word)` for each 8 bytes, read as a
    little-endian integer, the last padded with zeros. Each step hashes a word of all strings: a
    long string among short ones takes 20 us for 8 bytes.

    Returns:
        uint64 [n].

    Example:
        >>> import pyarrow as pa
        >>> titles = Strings.from_arrow(pa.array(["", "a", "Toy Story (1995)"]))
        >>> [f"{int(h):016x}" for h in hash_strings(titles)]
        ['e220a8397b1dcdaf', '5e025f9ade9eaf3e', '7e6aca372b4d7912']
    """
    starts = strings.offsets[:-1]
    lengths = strings.offsets[1:] - starts
    hashes = hash_integers(lengths)
    padded = np.zeros((len(strings.data) // 8 + 2) * 8, dtype=np.uint8)
    padded[: len(strings.data)] = strings.data
    words = padded.view("<u8")
    rows = np.arange(len(lengths))
    for position in range(0, int(lengths.max(initial=0)), 8):
        rows = rows[lengths[rows] > position]
        part = _read_words(words, starts[rows] + position, lengths[rows] - position)
        part ^= hashes[rows]
        mix(part)
        hashes[rows] = part
    return hashes


def hash_values(values: np.ndarray | Strings) -> np.ndarray:
    """Return the 64-bit hash of integers or `Strings`, uint64 [n]."""
    return hash_strings(values) if isinstance(values, Strings) else hash_integers(values)


def to_buckets(hashes: np.ndarray, num_buckets: int) -> np.ndarray:
    """Return bucket numbers: the upper 32 bits of each hash, scaled to [0, num_buckets).

    `((hash >> 32) * num_buckets) >> 32` avoids the slow division and also works in TensorFlow's
    int64. No bucket is more than 1 + num_buckets / 2**32 times as likely as with equal buckets.

    Args:
        hashes: uint64 [n]; overwritten.
        num_buckets: 1 to 2**31 - 1.

    Returns:
        int32 [n].

    Source: D. Lemire, "Fast random integer generation in an interval", ACM TOMACS 29 (2019).
    """
    buckets = np.empty(len(hashes), dtype=np.int32)
    for block in blocks_of(len(hashes)):
        part = hashes[block]
        part >>= np.uint64(32)
        part *= np.uint64(num_buckets)
        part >>= np.uint64(32)
        buckets[block] = part
    return buckets


class KeyIndex:
    """The position of each key in a list of keys: an open-addressing hash table in two arrays.

    It is built and searched with array operations only; memory is 32 bytes a key. A lookup takes 30
    ns (few keys) to 60 ns (a million), of strings 150 to 250 ns. `pyarrow.compute.index_in` makes a
    table at each call: of 1,000 keys it takes 10 ns a value (strings 20), and does it here; of a
    million, 170 ns for a million values (strings 410) and 1,800 for 65,536 (3,200).

    Args:
        keys: integers [n] or `Strings`, each once.

    Raises:
        ValueError: if a key appears twice.

    Example:
        >>> KeyIndex(np.array([30, 10, 20])).find(np.array([10, 11, 30])).tolist()
        [2, 0, 1]
    """

    def __init__(self, keys: np.ndarray | Strings) -> None:
        if not isinstance(keys, Strings):
            keys = np.ascontiguousarray(keys, np.uint64 if keys.dtype == np.uint64 else np.int64)
        self.keys: Any = keys
        hashes = hash_values(keys)
        words = hashes if isinstance(keys, Strings) else keys.view(np.uint64)
        # Every key takes the first free slot after that of its hash.
        size = 1 << max(4, (2 * len(keys) - 1).bit_length())
        self._mask = np.uint64(size - 1)
        self._ranks = np.zeros(size, dtype=np.int32)
        slots = (hashes & self._mask).astype(np.int64)
        waiting = np.arange(len(keys))
        while len(waiting):
            free = waiting[self._ranks[slots[waiting]] == 0]
            free = free[::-1]  # the first key, the most frequent one, wins a slot
            self._ranks[slots[free]] = free + 1
            waiting = waiting[self._ranks[slots[waiting]] != waiting + 1]
            slots[waiting] = (slots[waiting] + 1) & (size - 1)
        self._words = np.zeros(size, dtype=np.uint64)
        self._words[slots] = words
        same_words = self._find_words(hashes, words) != np.arange(1, len(keys) + 1)
        self._strings_share_hashes = bool(same_words.any())
        if self._strings_share_hashes:
            counts = pc.value_counts(column_to_arrow(keys))
            twice = counts.filter(pc.greater(counts.field("counts"), 1))
            if len(twice):
                key = twice.field("values")[0].as_py()
                raise ValueError(f"keys must be unique, but {key!r} appears twice")

    def find(self, values: np.ndarray | Strings) -> np.ndarray:
        """Return the position of each value, counted from 1, and 0 for unknown ones.

        Args:
            values: integers [n] or `Strings`, of the kind of the keys.

        Returns:
            int32 [n].
        """
        if isinstance(values, EncodedStrings):
            return self.find(Strings.from_arrow(values.dictionary))[values.codes]
        few_keys = _VALUES_PER_KEY * len(self.keys) <= len(values)
        if isinstance(values, Strings):
            if few_keys or self._strings_share_hashes:
                return _index_in(values.to_arrow(), self.keys.to_arrow())
            return self._find_by_hash(values)
        words = values.astype(np.int64, copy=False)
        if few_keys:
            positions = _index_in(pa.array(words), pa.array(self.keys.view(np.int64)))
        else:
            positions = self._find_words(hash_integers(words), words.view(np.uint64))
        if (values.dtype == np.uint64) != (self.keys.dtype == np.uint64):
            positions[words < 0] = 0  # the same bits are two numbers
        return positions

    def _find_by_hash(self, values: Strings) -> np.ndarray:
        hashes = hash_strings(values)
        positions = self._find_words(hashes, hashes)
        rows = np.flatnonzero(positions)  # whose hash is that of a key; nearly always, so are they
        keys = self.keys.to_arrow().take(pa.array(positions[rows] - 1))
        equal = pc.equal(keys, values.to_arrow().take(pa.array(rows)))
        positions[rows[~equal.to_numpy(zero_copy_only=False)]] = 0
        return positions

    def _find_words(self, hashes: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Return the position of the first key with each word, from 1; 0 if there is none."""
        result = np.empty(len(words), dtype=np.int32)
        for block in blocks_of(len(words)):
            slots = (hashes[block] & self._mask).astype(np.int64)
            positions = self._ranks[slots]
            right = self._words[slots] == words[block]
            rows = np.flatnonzero((positions > 0) & ~right)
            positions *= right
            while len(rows):  # up to a slot with the word, or a free one
                slots[rows] = (slots[rows] + 1) & np.int64(self._mask)
                here = self._ranks[slots[rows]]
                hit = self._words[slots[rows]] == words[block][rows]
                positions[rows[hit]] = here[hit]
                rows = rows[~hit & (here > 0)]
            result[block] = positions
        return result


def _index_in(values: pa.Array, keys: pa.Array) -> np.ndarray:
    """Return the position of each value among the keys, from 1; 0 if it is not there."""
    return pc.index_in(values, value_set=keys).fill_null(-1).to_numpy() + np.int32(1)
