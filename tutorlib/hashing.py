"""One 64-bit hash of integers and strings, and a hash table of keys.

Everything is array operations, so that NumPy and a TensorFlow graph compute the same numbers.
`tests/support/hash_vectors.json` lists values with their hashes and buckets, for other
implementations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tutorlib.columns import Array, Strings, take

GAMMA, FACTOR_1, FACTOR_2 = (
    np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_BLOCK = 16_384  # values in a step: 128 KiB, which fits the second-level cache


def blocks_of(length: int) -> Iterable[slice]:
    """Return slices of the size of a cache that cover `length` values."""
    return (slice(start, start + _BLOCK) for start in range(0, length, _BLOCK))


def mix(h: Array) -> None:
    """Replace each uint64 of `h` by its splitmix64 output, in place."""
    spare = np.empty_like(h)
    h += GAMMA
    for shift, factor in ((30, FACTOR_1), (27, FACTOR_2), (31, None)):
        np.right_shift(h, np.uint64(shift), out=spare)
        h ^= spare
        if factor is not None:
            h *= factor


def hash_integers(values: Array) -> Array:
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


def _largest(lengths: Array) -> int:
    return int(lengths.max()) if len(lengths) else 0


def _as_words(data: Array) -> Array:
    """Return bytes as little-endian uint64, followed by at least one word of zeros."""
    padded = np.zeros((len(data) // 8 + 2) * 8, dtype=np.uint8)
    padded[: len(data)] = data
    return padded.view("<u8")


def _read_words(words: Array, starts: Array, remaining: Array) -> Array:
    """Return the 8 bytes at each byte position as uint64, zero after `remaining` >= 1 bytes."""
    index, shift = starts >> 3, ((starts & 7) << 3).astype(np.uint64)
    result = words[index] >> shift
    result |= (words[index + 1] << np.uint64(1)) << (np.uint64(63) - shift)
    unused = (64 - 8 * np.minimum(remaining, 8)).astype(np.uint64)
    result <<= unused
    result >>= unused
    return result


def hash_strings(strings: Strings) -> Array:
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
    words, rows = _as_words(strings.data), np.arange(len(lengths))
    for position in range(0, _largest(lengths), 8):
        rows = rows[lengths[rows] > position]
        part = _read_words(words, starts[rows] + position, lengths[rows] - position)
        part ^= hashes[rows]
        mix(part)
        hashes[rows] = part
    return hashes


def hash_values(values: Any) -> Array:
    """Return the 64-bit hash of integers or `Strings`, uint64 [n]."""
    return hash_strings(values) if isinstance(values, Strings) else hash_integers(values)


def to_buckets(hashes: Array, num_buckets: int) -> Array:
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

    It is built and searched with array operations only. A lookup takes 10 ns (few keys) to 90 ns (a
    million); memory is 32 to 56 bytes a key.

    Args:
        keys: integers [n] or `Strings`, each once.

    Raises:
        ValueError: if a key appears twice.

    Example:
        >>> KeyIndex(np.array([30, 10, 20])).find(np.array([10, 11, 30])).tolist()
        [2, 0, 1]
    """

    def __init__(self, keys: Any) -> None:
        if not isinstance(keys, Strings):
            wide = np.uint64 if np.asarray(keys).dtype == np.uint64 else np.int64
            keys = np.ascontiguousarray(keys, wide)
        self.keys = keys
        hashes = hash_values(self.keys)
        size = 1 << max(4, (2 * len(self.keys) - 1).bit_length())
        self._mask = np.uint64(size - 1)
        ranks = np.zeros(size, dtype=np.int32)
        slots = (hashes & self._mask).astype(np.int64)
        waiting = np.arange(len(self.keys))
        while len(waiting):
            free = waiting[ranks[slots[waiting]] == 0]
            free = free[::-1]  # the first key, the most frequent one, wins a slot
            ranks[slots[free]] = free + 1
            waiting = waiting[ranks[slots[waiting]] != waiting + 1]
            slots[waiting] = (slots[waiting] + 1) & (size - 1)
        stored = np.zeros(size, dtype=np.int64)
        stored[slots] = self._words(self.keys, hashes)
        self._tables = ranks, stored, self.keys
        twice = np.flatnonzero(self.find(self.keys) != np.arange(1, len(self.keys) + 1))
        if len(twice):
            key = take(self.keys, twice[:1]).tolist()[0]
            raise ValueError(f"keys must be unique, but {key!r} appears twice")

    @staticmethod
    def _words(keys: Any, hashes: Array) -> Array:
        if isinstance(keys, Strings):
            return hashes.view(np.int64)
        return keys.astype(np.int64, copy=False)

    def find(self, wanted: Any) -> Array:
        """Return the position of each wanted key, counted from 1, and 0 for unknown ones.

        Args:
            wanted: integers [n] or `Strings`, of the kind of the keys.

        Returns:
            int32 [n].
        """
        length = len(wanted)
        hashes = hash_strings(wanted) if isinstance(wanted, Strings) else None
        ranks, stored, keys = self._tables
        found = np.empty(length, dtype=ranks.dtype)
        for block in blocks_of(length):
            part = hash_integers(wanted[block]) if hashes is None else hashes[block]
            words = self._words(wanted[block] if hashes is None else wanted, part)
            found[block] = self._probe(ranks, stored, part, words)
        if hashes is not None:
            rows = np.flatnonzero(found)
            rows = rows[~_equal_strings(wanted, rows, keys, found[rows] - 1)]
            slots = (hashes[rows] & self._mask).astype(np.int64)
            found[rows] = 0
            while len(rows):  # of equal hash, but another string: the key may follow
                here, words = ranks[slots], hashes[rows].view(np.int64)
                hits = np.flatnonzero((here > 0) & (stored[slots] == words))
                hits = hits[_equal_strings(wanted, rows[hits], keys, here[hits] - 1)]
                found[rows[hits]] = here[hits]
                more = (here > 0) & (found[rows] == 0)
                rows, slots = rows[more], (slots[more] + 1) & np.int64(self._mask)
        elif (wanted.dtype == np.uint64) != (keys.dtype == np.uint64):
            found[wanted.astype(np.int64) < 0] = 0  # the same bits are two numbers
        return found

    def _probe(self, ranks: Array, stored: Array, hashes: Array, words: Array) -> Array:
        slots = (hashes & self._mask).astype(np.int64)
        found = ranks[slots]
        right = stored[slots] == words
        rows = np.flatnonzero((found > 0) & ~right)
        found *= right
        while len(rows):
            slots[rows] = (slots[rows] + 1) & np.int64(self._mask)
            here = ranks[slots[rows]]
            hit = stored[slots[rows]] == words[rows]
            found[rows[hit]] = here[hit]
            rows = rows[~hit & (here > 0)]
        return found


def _equal_strings(a: Strings, rows_a: Array, b: Strings, rows_b: Array) -> Array:
    """Return bool [m]: whether a[rows_a[i]] == b[rows_b[i]]."""
    starts = [a.offsets[rows_a], b.offsets[rows_b]]
    lengths = a.offsets[rows_a + 1] - starts[0]
    equal = lengths == b.offsets[rows_b + 1] - starts[1]
    words = [_as_words(a.data), _as_words(b.data)]
    rows = np.flatnonzero(equal)
    for position in range(0, _largest(lengths[rows]), 8):
        rows = rows[equal[rows] & (lengths[rows] > position)]
        left, right = (
            _read_words(w, s[rows] + position, lengths[rows] - position)
            for w, s in zip(words, starts, strict=True)
        )
        equal[rows] = left == right
    return equal
