"""Tensors over memory of ours, and waiting for a backend; others than TensorFlow: test_backends."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from tutorlib.keras_bridge.backend import tensor_maker, unstacking_maker, wait_for_gpu
from tutorlib.memory import aligned_empty


def test_the_tensor_of_an_array_is_the_array():
    array = aligned_empty((5, 1), np.float32)
    tensor = tensor_maker()(array)
    array[:] = 7  # before the tensor's first use
    np.testing.assert_array_equal(tensor, np.full((5, 1), 7))
    assert np.shares_memory(np.from_dlpack(tensor), array)


@pytest.mark.parametrize("rows", [16, 9])  # the second leaves a gap before each part but the first
def test_each_of_the_tensors_made_together_is_its_part_and_keeps_the_memory(rows):
    array = aligned_empty((6, 16, 1), np.float32)
    tensors = unstacking_maker()(array[:, :rows])
    array[:] = np.arange(96).reshape(array.shape)  # before the tensors' first use
    expected = [part[:rows].copy() for part in array]
    for tensor, part in zip(tensors, array, strict=True):
        assert np.shares_memory(np.from_dlpack(tensor), part)
    kept = tensors[4]
    del array, tensors, tensor, part
    gc.collect()
    others = [np.full(96 + 16, -1, np.float32) for _ in range(100)]  # would use freed memory
    np.testing.assert_array_equal(kept, expected[4])
    del others


def test_the_backend_can_be_waited_for_while_a_function_is_traced():
    """The garbage collector may bring memory back at any moment."""
    waited = []

    @tf.function
    def doubled(x):
        wait_for_gpu()
        waited.append(True)
        return 2 * x

    assert int(doubled(tf.constant(3))) == 6
    assert waited
    operations = doubled.get_concrete_function(tf.constant(3)).graph.get_operations()
    assert "SyncDevice" not in [op.type for op in operations]
