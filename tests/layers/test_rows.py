"""Rows: which row each value belongs to, sums of rows, and whether XLA compiles a function."""

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tutorlib.layers.rows import compiled_by_xla, row_numbers, sum_rows


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(0, 3))
def test_row_numbers_and_sums_equal_a_loop(counts, surplus):
    size = sum(counts) + surplus
    expected = np.repeat(np.arange(len(counts) + 1), [*counts, surplus])
    numbers = row_numbers(tf.constant(counts), size)
    np.testing.assert_array_equal(numbers, expected)
    values = np.arange(size * 2, dtype=np.float32).reshape(size, 2)
    sums = [values[expected == row].sum(axis=0) for row in range(len(counts))]
    np.testing.assert_allclose(sum_rows(tf.constant(values), numbers, len(counts)), sums)


def test_a_function_knows_whether_xla_compiles_it():
    seen = {}

    def look(name):
        def body(x):
            seen[name] = compiled_by_xla()
            return x

        return body

    tf.function(look("plain"))(tf.constant(1))
    tf.function(look("xla"), jit_compile=True)(tf.constant(1))
    inner = tf.function(look("inside"))
    tf.function(lambda x: inner(x), jit_compile=True)(tf.constant(1))
    look("eager")(tf.constant(1))
    assert seen == {"plain": False, "xla": True, "inside": True, "eager": False}
