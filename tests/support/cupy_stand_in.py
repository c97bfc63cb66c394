"""A stand-in for CuPy on a machine without a GPU: NumPy arrays that refuse what CuPy refuses.

`cupy` is a module to be put in CuPy's place (`sys.modules["cupy"]`). It lets the code for a GPU run
on a CPU, and raises where a GPU would, or where one would go on with wrong values:

* what CuPy lacks: functions, methods and parameters that are not listed here;
* an array of NumPy among arrays of the device, other than by `asarray`, or as an index;
* a device's array where NumPy wants one of its own, or Python an index;
* several values written to one place, of which any may stay.

Work is queued on the one stream that all threads share, and done once a thread waits for it;
`exported` tells whether another library would read an array too early. Memory begins at a multiple
of 64 bytes, and DLPack gets the strides of views, as from CuPy and RMM. Memory that is given back
is overwritten (POISON), as by whoever gets it next, and stays in `freed`: whoever still reads it
sees that. `counts` has the numbers of kernels, allocations, views, exports, copies and waits.

Read from the sources of CuPy 14.2; tests marked gpu run the same with CuPy itself.
"""

import collections
import itertools
import operator
import types
import unittest.mock

import numpy as np

from tutorlib.memory import aligned_empty, is_aligned

cupy = types.ModuleType("cupy")
stream = collections.deque()  # work that nobody has waited for
counts = collections.Counter()
exported = []  # for each array that went to another library, whether it is still to be made
freed = []  # memory that was given back: uint8 arrays full of POISON
POISON = 0xA5


def synchronize():
    """Wait for all that is queued so far."""
    counts["waits"] += 1
    for _ in range(len(stream)):
        stream.popleft().clear()


def _launch(work):
    counts["kernels"] += 1
    work.add("queued")
    stream.append(work)


class Memory:
    """Memory of an array and of its views, and of tensors made of them: the last one frees it."""

    def __init__(self, shape, dtype):
        self._block = aligned_empty(shape, dtype)
        self.__array_interface__ = self._block.__array_interface__

    def __del__(self):
        block = self._block.reshape(-1).view(np.uint8)
        block.fill(POISON)
        freed.append(block)


class _Unowned:
    """Memory at an address, of an owner whom an array over it keeps alive."""

    def __init__(self, address, size, owner, device_id):
        self._owner = owner
        self.__array_interface__ = address


def _over(host):
    """An array of the device over memory whose values are not known yet."""
    array = object.__new__(ndarray)
    array._host, array._work = host, set()
    return array


def _made(host, view_of=None):
    host = np.asarray(host)
    if host.dtype.kind not in "biuf":
        raise ValueError(f"Unsupported dtype {host.dtype}")
    if view_of is not None and np.may_share_memory(host, view_of._host):
        counts["views"] += 1
        array = _over(host)
        array._work = view_of._work
        return array
    array = empty(host.shape, host.dtype)
    array._host[...] = host
    _launch(array._work)
    return array


def _value(x):
    """What an operation works with: the values of an array of the device, or a scalar."""
    if isinstance(x, ndarray):
        return x._host
    if isinstance(x, bool | int | float | np.generic):
        return x
    if isinstance(x, list | tuple):
        return type(x)(map(_value, x))
    raise TypeError(f"Unsupported type {type(x)}")


def _index(part):
    """An index as NumPy takes it; CuPy copies those of NumPy to the device."""
    if isinstance(part, ndarray):
        return _value(part)
    if part is None or isinstance(part, int | np.integer | slice | type(...) | list | np.ndarray):
        return part
    raise TypeError(f"Unsupported type {type(part)}")


class ndarray:
    """An array of the stand-in."""

    __slots__ = ("__weakref__", "_host", "_work")
    __hash__ = None

    def __new__(cls, shape, dtype, memptr):
        """Return an array over memory of `alloc`, or of pylibcudf's stand-in."""
        counts["wrapped"] += 1
        memory = np.asarray(memptr).reshape(-1).view(np.uint8)
        size = np.prod(shape, dtype=int) * np.dtype(dtype).itemsize
        return _over(memory[:size].view(dtype).reshape(shape))

    dtype, shape, ndim, size, nbytes, itemsize = (
        property(operator.attrgetter(f"_host.{name}"))
        for name in ("dtype", "shape", "ndim", "size", "nbytes", "itemsize")
    )

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return (self[place] for place in range(len(self)))

    def __array__(self, *_, **__):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def __dlpack_device__(self):
        return 1, 0  # what it is in truth: memory of the host

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        assert stream == -1, "it would wait for what all readers have queued"
        assert is_aligned(self._host), "TensorFlow would end the process"
        assert self._host.flags.c_contiguous, "TensorFlow and JAX refuse gaps between rows"
        counts["exports"] += 1
        exported.append(self._work)
        return self._host.__dlpack__()

    def get(self):
        """Return a copy in the host's memory."""
        counts["copies to the host"] += 1
        synchronize()
        return self._host.copy()

    def tolist(self):
        return self.get().tolist()

    def __bool__(self):
        return bool(self.get())

    def __int__(self):
        return int(self.get())

    def __getitem__(self, key):
        key = key if isinstance(key, tuple) else (key,)
        if all(part is None or isinstance(part, int | slice | type(...)) for part in key):
            return _made(self._host[key if ... in key else (*key, ...)], self)
        return _made(self._host[tuple(map(_index, key))])

    def __setitem__(self, key, value):
        value = _value(value)
        if isinstance(value, list | tuple):
            raise TypeError(f"Unsupported type {type(value)}")
        key = tuple(map(_index, key if isinstance(key, tuple) else (key,)))
        _launch(self._work)
        self._host[key] = value
        written = self._host[key]
        wanted = np.broadcast_to(np.asarray(value).astype(self.dtype), np.shape(written))
        if not np.array_equal(written, wanted, equal_nan=self.dtype.kind == "f"):
            raise AssertionError("several values for one place: on a GPU any of them may stay")

    def astype(self, dtype, copy=True):
        if not copy and self.dtype == dtype:
            return self
        with np.errstate(all="ignore"):  # a GPU does not tell
            return _made(self._host.astype(dtype))

    def reshape(self, *shape):
        return _made(self._host.reshape(*shape), self)

    def copy(self):
        return _made(self._host.copy())


ndarray.__module__ = "cupy"


def _operator(name):
    def binary(self, other):
        return _made(getattr(operator, f"__{name}__")(self._host, _value(other)))

    return binary


def _in_place(name):
    def changed(self, other):
        getattr(operator, f"__i{name}__")(self._host, _value(other))
        _launch(self._work)
        return self

    return changed


PARAMETERS = {  # of CuPy's functions, as far as the project needs them
    **dict.fromkeys(("all", "max", "min"), "a axis out keepdims"),
    "concatenate": "tup axis out dtype casting",
    "cumsum": "a axis dtype out",
    "diff": "a n axis prepend append",
    "stack": "tup axis out dtype casting",
    "take": "a indices axis out",
}


def _function(name, parameters):
    theirs, known = getattr(np, name), parameters.split()

    def function(*arguments, out=None, **options):
        wrong = set(options) - set(known)
        if wrong or len(arguments) > len(known):
            raise TypeError(f"cupy.{name} has no parameters {wrong or arguments[len(known) :]}")
        lists = (x if isinstance(x, list | tuple) else [x] for x in arguments)
        if not any(isinstance(x, ndarray) for x in itertools.chain.from_iterable(lists)):
            raise TypeError(f"cupy.{name} takes arrays of the device, got {arguments}")
        values = [_value(arguments[0]), *map(_index, arguments[1:])]
        made = theirs(*values, **options)
        if out is None:
            return _made(made)
        if name == "take" and (out.dtype, out.shape) != (made.dtype, made.shape):
            raise TypeError("Output dtype or shape mismatch")
        if not np.can_cast(made.dtype, out.dtype, "same_kind"):
            raise TypeError(f"output of {made.dtype} cannot be cast to {out.dtype}")
        out._host[...] = made
        _launch(out._work)
        return out

    return function


def asarray(a):
    if isinstance(a, ndarray):
        return a
    counts["copies to the device"] += 1
    array = _made(np.array(a))
    synchronize()  # as from memory of the host that the system may move
    return array


class alloc:
    """A pointer to memory, which it keeps alive."""

    def __init__(self, size):
        counts["allocations"] += 1
        self._memory = Memory((size,), np.uint8)
        self.ptr = self._memory.__array_interface__


def empty(shape, dtype):
    counts["allocations"] += 1
    return _over(np.asarray(Memory(shape, dtype)))


def _creator(name):
    return lambda *arguments, **options: _made(getattr(np, name)(*arguments, **options))


def _not_listed(name):
    raise AttributeError(
        f"the stand-in for CuPy has no {name!r}. If CuPy has it, add it to PARAMETERS in "
        "tests/support/cupy_stand_in.py."
    )


def _fill():
    for name in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge"):
        setattr(ndarray, f"__{name}__", _operator(name))
    for name in ("add", "sub"):
        setattr(ndarray, f"__i{name}__", _in_place(name))
    for name, known in PARAMETERS.items():
        setattr(cupy, name, _function(name, known))
    for name in ("all", "max", "min"):
        setattr(ndarray, name, getattr(cupy, name))
    for name in ("arange", "ones", "zeros"):
        setattr(cupy, name, _creator(name))
    cupy.asarray, cupy.ndarray, cupy.__getattr__ = asarray, ndarray, _not_listed
    cupy.cuda, cupy.empty = unittest.mock.MagicMock(), empty
    cupy.cuda.alloc = alloc
    cupy.cuda.UnownedMemory = _Unowned
    cupy.cuda.MemoryPointer = lambda memory, offset: memory
    cupy.cuda.get_current_stream.return_value.synchronize = synchronize
    cupy.cuda.runtime.memGetInfo.return_value = 60 * 2**30, 80 * 2**30  # free, total


def install(modules):
    """Put stand-ins in the places of CuPy, pylibcudf and RMM; return that of RMM, a mock."""
    from tests.support import pylibcudf_stand_in

    rmm = unittest.mock.MagicMock()
    rmm.mr.CudaMemoryResource = rmm.mr.get_current_device_resource = list
    for name in ("rmm", "rmm.allocators", "rmm.allocators.cupy", "rmm.pylibrmm"):
        modules[name] = rmm
    modules["rmm.pylibrmm.stream"] = rmm
    modules["cupy"] = cupy
    modules["pylibcudf"] = pylibcudf_stand_in.pylibcudf
    pylibcudf_stand_in.calls.clear()
    freed.clear()
    counts.clear()
    return rmm


_fill()
