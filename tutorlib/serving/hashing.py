"""The hash of `hashing.py` and its table of keys, as TensorFlow operations for a served graph.

The same numbers to the last bit. What is looked up lies in variables, not in constants: a graph's
constants may take 2 GB at most, and variables are saved beside it. Does not belong here: what a
hash is used for (`serving_keys.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tutorlib.chunk import Strings
from tutorlib.hashing import hash_values as hash_on_host

_GAMMA, _FACTOR_1, _FACTOR_2 = (
    np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_PADDINGS = [b"\0" * n for n in range(8)]


def fixed(values: Any) -> tf.Variable:
    """Return learned numbers or texts as a variable that no training changes.

    A variable also keeps the graph optimiser from computing with the values ahead of time, which
    turns a division by a constant into a multiplication by its rounded inverse.
    """
    with tf.device("CPU"):
        return tf.Variable(values, trainable=False)


def as_string_tensor(strings: Strings) -> tf.Tensor:
    """Return the texts of a chunk's column, string [n]."""
    texts = strings.to_arrow().cast("large_binary").to_pylist()
    return tf.constant(texts, tf.string, [len(texts)])


def mix(h: tf.Tensor) -> tf.Tensor:
    """Return the splitmix64 output of each uint64."""
    h += _GAMMA
    for shift, factor in ((30, _FACTOR_1), (27, _FACTOR_2), (31, None)):
        h = tf.bitwise.bitwise_xor(h, tf.bitwise.right_shift(h, np.uint64(shift)))
        if factor is not None:
            h *= factor
    return h


def hash_integers(values: tf.Tensor) -> tf.Tensor:
    """Return the 64-bit hash of integers or booleans, uint64: see `hashing.hash_integers`.

    Example:
        >>> f"{int(hash_integers(tf.constant([0]))[0]):x}"
        'e220a8397b1dcdaf'
    """
    if values.dtype != tf.uint64:
        values = tf.bitcast(tf.cast(values, tf.int64), tf.uint64)
    return mix(values)


def hash_strings(texts: tf.Tensor) -> tf.Tensor:
    """Return the 64-bit hash of texts from their UTF-8 bytes, uint64: see `hashing.hash_strings`.

    All texts are laid end to end, each filled up to whole words, so that one long text does not
    take the memory of many; then the words at one place of every text enter at a time, as often as
    the longest text has words.

    Args:
        texts: string [n].

    Example:
        >>> [f"{int(h):016x}" for h in hash_strings(tf.constant(["", "a", "Toy Story (1995)"]))]
        ['e220a8397b1dcdaf', '5e025f9ade9eaf3e', '7e6aca372b4d7912']
    """
    lengths = tf.strings.length(texts)
    filled = tf.strings.join([texts, tf.gather(_PADDINGS, -lengths & 7)])
    words = tf.io.decode_raw(tf.strings.reduce_join(filled), tf.int64)
    words = tf.bitcast(tf.concat([words, [0]], axis=0), tf.uint64)  # a word to read if all is empty
    counts = (lengths + 7) // 8
    starts = tf.cumsum(counts, exclusive=True)
    longest = tf.reduce_max(tf.concat([counts, [0]], axis=0))

    def enter(place: tf.Tensor, hashes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        there = place < counts
        word = tf.gather(words, tf.where(there, starts + place, 0))
        return place + 1, tf.where(there, mix(tf.bitwise.bitwise_xor(hashes, word)), hashes)

    first = (tf.constant(0), hash_integers(lengths))
    return tf.while_loop(lambda place, _: place < longest, enter, first)[1]


def hash_values(values: tf.Tensor) -> tf.Tensor:
    """Return the 64-bit hash of integers or texts, uint64 [n]."""
    return hash_strings(values) if values.dtype == tf.string else hash_integers(values)


def to_buckets(hashes: tf.Tensor, num_buckets: int) -> tf.Tensor:
    """Return the bucket of each hash, int32 in [0, num_buckets): see `hashing.to_buckets`."""
    upper = tf.bitwise.right_shift(hashes, np.uint64(32)) * np.uint64(num_buckets)
    return tf.cast(tf.bitwise.right_shift(upper, np.uint64(32)), tf.int32)


class KeyTable(tf.Module):
    """Finds the place of keys in a list of keys, as `hashing.KeyIndex` does.

    By binary search in the sorted keys, in the sorted hashes where they are texts: two arrays, so
    that nothing has to be filled when a saved graph is loaded, and any device can do it.

    Args:
        keys: integers [n] or `Strings`, each once, no two of them of one hash (`KeyIndex` has seen
            to both).

    Example:
        >>> KeyTable(np.array([30, 10, 20])).find(tf.constant([10, 11, 30])).numpy().tolist()
        [2, 0, 1]
    """

    def __init__(self, keys: Any) -> None:
        super().__init__()
        texts = isinstance(keys, Strings)
        words = hash_on_host(keys).view(np.int64) if texts else np.asarray(keys, np.int64)
        order = np.argsort(words)
        wide = len(words) >= 2**31 - 1
        self._words = fixed(words[order])
        self._places = fixed((order + 1).astype(np.int64 if wide else np.int32))
        self._texts = fixed(as_string_tensor(keys.take(order))) if texts else None
        self.size = len(words)

    def find(self, wanted: tf.Tensor, hashes: tf.Tensor | None = None) -> tf.Tensor:
        """Return for each wanted key its place, counted from 1, and 0 where it is not there.

        Args:
            wanted: integers [n] or texts, as the keys are.
            hashes: of texts, if they are known already.
        """
        if self.size == 0:
            return tf.zeros_like(wanted, dtype=self._places.dtype)
        if self._texts is None:
            unsigned = wanted.dtype == tf.uint64
            words = tf.bitcast(wanted, tf.int64) if unsigned else tf.cast(wanted, tf.int64)
        else:
            words = tf.bitcast(hash_strings(wanted) if hashes is None else hashes, tf.int64)
        at = tf.minimum(tf.searchsorted(self._words, words), self.size - 1)
        right = tf.gather(self._words, at) == words
        if self._texts is not None:
            right &= tf.gather(self._texts, at) == wanted
        return tf.where(right, tf.gather(self._places, at), 0)
