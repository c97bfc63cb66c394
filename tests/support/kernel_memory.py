"""In which memory a GPU would have the tensors of a traced function, told without a GPU.

TensorFlow's wheels for CUDA know all their kernels on any machine: which ops have one for a GPU,
for which types, and which of its arguments and results it wants in the host's memory.
"""

import functools

import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

SMALL = 64  # elements: sizes and the like may be anywhere


@functools.cache
def _kernels(op_type):
    known = kernels.get_registered_kernels_for_op(op_type).kernel
    found = [kernel for kernel in known if kernel.device_type in ("GPU", "DEFAULT")]
    return sorted(found, key=lambda kernel: kernel.device_type == "DEFAULT")


def knows_gpu_kernels():
    """Return whether this TensorFlow is one for CUDA."""
    return any(kernel.device_type == "GPU" for kernel in _kernels("MatMul"))


def _kernel_of(op):
    def fits(constraint):
        given, allowed = op.get_attr(constraint.name), constraint.allowed_values.list.type
        return not allowed or given.as_datatype_enum in allowed

    return next((k for k in _kernels(op.type) if all(map(fits, k.constraint))), None)


def _on_host(op, arguments, host):
    """Return for each tensor that makes up the arguments whether it is among those on the host."""
    flags = []
    for argument in arguments:
        count = 1
        if argument.number_attr:
            count = op.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(op.get_attr(argument.type_list_attr))
        flags += [argument.name in host] * count
    return flags


def moves(function, *arguments):
    """Return what would be copied between a GPU and the host: {"op: dtype [shape], direction"}.

    Args:
        function: a `tf.function` that calls no other.
        arguments: int32 ones come in the host's memory, as TensorFlow has them, others on the GPU.
    """
    memory, found = {}, set()
    for op in function.get_concrete_function(*arguments).graph.get_operations():
        assert "PartitionedCall" not in op.type, f"{op.name} calls a function"
        if op.type == "Placeholder":
            where = "host" if op.outputs[0].dtype == tf.int32 else "GPU"
            memory[op.outputs[0].ref()] = where
            continue
        if op.type == "Const":
            continue
        definition, kernel = op_def_registry.get(op.type), _kernel_of(op)
        wanted, given = [True] * len(op.inputs), [True] * len(op.outputs)
        if kernel is not None:
            wanted = _on_host(op, definition.input_arg, kernel.host_memory_arg)
            given = _on_host(op, definition.output_arg, kernel.host_memory_arg)
        memory |= {
            tensor.ref(): "host" if on_host else "GPU"
            for tensor, on_host in zip(op.outputs, given, strict=True)
        }
        for tensor, on_host in zip(op.inputs, wanted, strict=True):
            here, there = memory.get(tensor.ref()), "host" if on_host else "GPU"
            size = tensor.shape.num_elements()
            small = tensor.dtype == tf.resource or (size is not None and size <= SMALL)
            if here not in (None, there) and not small:
                found.add(f"{op.type}: {tensor.dtype.name} {tensor.shape}, {here} to {there}")
    return found
