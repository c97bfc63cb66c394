"""A stand-in for CuPy on a machine without a GPU: NumPy arrays that refuse what CuPy refuses.

`cupy` is a module to be put in CuPy's place (`sys.modules["cupy"]`). It lets the code for a GPU run
on a CPU, and raises where a GPU would, or where one would go on with wrong values:

* what CuPy lacks: functions, methods and parameters that are not listed here, texts and objects;
* an array of NumPy among arrays of the device, other than by `asarray`, or as an index;
* a device's array where NumPy wants one of its own, or Python an index;
* several values written to one place, of which any may stay.

Work is queued on a thread's stream and done once that thread waits for it; `exported` tells whether
another library would read an array too early. Memory begins at a multiple of 64 bytes, and
DLPack gets the strides of views, as from CuPy and RMM. Memory that is given back is overwritten
(POISON), as by whoever gets it next, and stays in `freed`: whoever still reads it sees that.

Read from the sources of CuPy 14.2; tests marked gpu run the same with CuPy itself.
"""

import functools
import itertools
import operator
import threading
import types
import unittest.mock

import numpy as np

from tutorlib.memory import aligned_empty, is_aligned

cupy = types.ModuleType("cupy")
stream = threading.local()  # with `queue`: work that this thread has not waited for
exported = []  # for each array that went to another library, whether it is still to be made
freed = []  # memory that was given back: uint8 arrays full of POISON
POISON = 0xA5


def synchronize():
    """Wait for this thread's stream."""
    for work in vars(stream).pop("queue", ()):
        work.clear()


def _launch(work):
    work.add("queued")
    vars(stream).setdefault("queue", []).append(work)


class _Memory:
    """Memory of an array and of its views, and of tensors made of them: the last one frees it."""

    def __init__(self, shape, dtype):
        self._block = aligned_empty(shape, dtype)
        self.__array_interface__ = self._block.__array_interface__

    def __del__(self):
        block = self._block.reshape(-1).view(np.uint8)
        block.fill(POISON)
        freed.append(block)


# ---- arrays --------------------------------------------------------------------------------------


def _made(host, view_of=None):
    host = np.asarray(host)
    if host.dtype.kind not in "biuf":
        raise ValueError(f"Unsupported dtype {host.dtype}")
    array = object.__new__(ndarray)
    if view_of is not None and np.may_share_memory(host, view_of._host):
        array._host, array._work = host, view_of._work
        return array
    array._host, array._work = np.asarray(_Memory(host.shape, host.dtype)), set()
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


def _result(value):
    if isinstance(value, tuple):
        return tuple(map(_made, value))
    return _made(value)


def _quiet(function, *arguments, **options):
    with np.errstate(all="ignore"):  # a GPU does not tell
        return function(*arguments, **options)


class ndarray:
    """An array of the stand-in."""

    __slots__ = ("__weakref__", "_host", "_work")
    __hash__ = None

    def __new__(cls, shape, dtype, memptr):
        """Return an array over memory of another library: that of pylibcudf's stand-in."""
        return _made(memptr.array.view(dtype).reshape(shape))

    dtype, shape, ndim, size, nbytes, itemsize = (
        property(operator.attrgetter(f"_host.{name}"))
        for name in ("dtype", "shape", "ndim", "size", "nbytes", "itemsize")
    )

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return (self[place] for place in range(len(self)))

    def __repr__(self):
        return f"device {self._host!r}"

    def __reduce__(self):
        return _made, (self.get(),)

    def __array__(self, *_, **__):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        function = getattr(cupy, ufunc.__name__, None) if method == "__call__" else None
        if function is None:
            return NotImplemented
        scalars = [isinstance(x, np.ndarray) and not x.ndim for x in inputs]  # as CuPy does
        inputs = [x.item() if bare else x for x, bare in zip(inputs, scalars, strict=True)]
        return function(*inputs, **options, **({"out": out[0]} if out else {}))

    def __array_function__(self, function, kinds, arguments, options):
        ours = getattr(cupy, function.__name__, None)
        return NotImplemented if ours is None else ours(*arguments, **options)

    def __dlpack__(self, stream=None):
        assert is_aligned(self._host), "TensorFlow would end the process"
        exported.append(self._work)
        return self._host.__dlpack__()

    def get(self):
        """Return a copy in the host's memory."""
        synchronize()
        return self._host.copy()

    def tolist(self):
        return self.get().tolist()

    def item(self):
        return self.get().item()

    def __bool__(self):
        return bool(self.get())

    def __int__(self):
        return int(self.get())

    def __float__(self):
        return float(self.get())

    def __format__(self, how):
        return format(self.get(), how)

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

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        if not copy and self.dtype == dtype:
            return self
        return _made(_quiet(self._host.astype, dtype))

    def view(self, dtype=None):
        return _made(self._host.view(dtype or self.dtype), self)

    def reshape(self, *shape, order="C"):
        return _made(self._host.reshape(*shape, order=order), self)

    def ravel(self, order="C"):
        return _made(self._host.ravel(order), self)

    def copy(self, order="C"):
        return _made(self._host.copy())

    def fill(self, value):
        self[...] = value

    def clip(self, min=None, max=None, out=None):
        return _made(self._host.clip(*map(_optional, (min, max))))

    @property
    def T(self):
        return _made(self._host.T, self)


def _index(part):
    """An index as NumPy takes it; CuPy copies those of NumPy to the device."""
    if isinstance(part, ndarray):
        return _value(part)
    if part is None or isinstance(part, int | np.integer | slice | type(...) | list | np.ndarray):
        return part
    raise TypeError(f"Unsupported type {type(part)}")


def _optional(value):
    return None if value is None else _value(value)


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
BINARY += ("lshift", "rshift")
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def _define_operators():
    def binary(function, swapped, self, other):
        one, two = self._host, _value(other)
        return _made(_quiet(function, two, one) if swapped else _quiet(function, one, two))

    def in_place(function, self, other):
        other = _value(other)
        _quiet(function, self._host, other)
        _launch(self._work)
        return self

    for name in (*BINARY, *COMPARE):
        function = getattr(operator, f"__{name}__")
        setattr(ndarray, f"__{name}__", functools.partialmethod(_Call(binary), function, False))
        if name in BINARY:
            changed = getattr(operator, f"__i{name}__")
            reverse = functools.partialmethod(_Call(binary), function, True)
            setattr(ndarray, f"__r{name}__", reverse)
            setattr(ndarray, f"__i{name}__", functools.partialmethod(_Call(in_place), changed))
    for name in ("invert", "neg", "abs"):
        function = getattr(operator, f"__{name}__")
        setattr(ndarray, f"__{name}__", lambda self, f=function: _made(f(self._host)))


class _Call:
    """Puts `self` first again, which `partialmethod` puts before what it adds."""

    def __init__(self, function):
        self._function = function

    def __get__(self, instance, owner=None):
        return lambda *given: self._function(*given[:-1], instance, given[-1])


_define_operators()
ndarray.__module__ = "cupy"  # by which `chunk.is_array` knows one

# ---- functions -----------------------------------------------------------------------------------

ELEMENTWISE = ("abs", "isinf", "isnan", "log1p", "maximum", "minimum", "not_equal", "right_shift")
ELEMENTWISE += ("add", "equal", "greater", "left_shift", "less", "multiply", "subtract", "sqrt")
ELEMENTWISE += ("isfinite", "less_equal", "greater_equal")
REDUCTIONS = ("all", "any", "max", "min")
REDUCTIONS_WITH_DTYPE = ("argmax", "argmin", "sum")
PARAMETERS = {  # of CuPy's functions, as far as the project needs them
    **dict.fromkeys(ELEMENTWISE, "x1 x2 out dtype"),
    **dict.fromkeys(REDUCTIONS, "a axis out keepdims"),
    **dict.fromkeys(REDUCTIONS_WITH_DTYPE, "a axis dtype out keepdims"),
    "concatenate": "tup axis out dtype casting",
    "cumsum": "a axis dtype out",
    "diff": "a n axis prepend append",
    "flatnonzero": "a",
    "repeat": "a repeats axis",
    "sort": "a axis",
    "stack": "tup axis out dtype casting",
    "take": "a indices axis out",
    "where": "condition x y",
}
CREATION = ("arange", "empty", "empty_like", "full", "ones", "zeros", "zeros_like")
METHODS = (*REDUCTIONS, *REDUCTIONS_WITH_DTYPE, "take", "cumsum", "repeat")


def _function(name, parameters):
    theirs, known = getattr(np, name), parameters.split()

    def function(*arguments, out=None, **options):
        wrong = set(options) - set(known)
        if wrong or len(arguments) > len(known):
            raise TypeError(f"cupy.{name} has no parameters {wrong or arguments[len(known) :]}")
        if not any(isinstance(x, ndarray) for x in _flat(arguments)):
            raise TypeError(f"cupy.{name} takes arrays of the device, got {arguments}")
        arguments = list(arguments)
        if name == "take":
            arguments[1] = _index(arguments[1])
            given = [_value(arguments[0]), *arguments[1:]]
        else:
            given = [None if x is None else _value(x) for x in arguments]
        made = _quiet(theirs, *given, **options)
        if out is None:
            return _result(made)
        if name == "take" and (out.dtype, out.shape) != (made.dtype, made.shape):
            raise TypeError("Output dtype or shape mismatch")
        if not np.can_cast(made.dtype, out.dtype, "same_kind"):
            raise TypeError(f"output of {made.dtype} cannot be cast to {out.dtype}")
        out[...] = _made(made)
        return out

    function.__name__ = name
    return function


def _flat(arguments):
    lists = (x if isinstance(x, list | tuple) else [x] for x in arguments)
    return itertools.chain.from_iterable(lists)


def asarray(a, dtype=None):
    if isinstance(a, ndarray):
        return a if dtype is None else a.astype(dtype, copy=False)
    return _made(np.array(a, dtype))  # a copy: the device has memory of its own


def append(arr, values, axis=None):
    return cupy.concatenate((asarray(arr).ravel(), asarray(values).ravel()))


def isin(element, test_elements):
    one, two = _value(element), _value(test_elements)
    if {one.dtype.kind, two.dtype.kind} == {"i", "u"}:
        raise AssertionError("compared as C++ does: a negative number equals a large one")
    return _made(np.isin(one, two))


def searchsorted(a, v, side="left", sorter=None):
    return _made(np.searchsorted(_value(a), _value(v), side))


def _creator(name):
    theirs = getattr(np, name)

    def create(*arguments, **options):
        given = [_value(x) if isinstance(x, ndarray) else x for x in arguments]
        return _made(theirs(*given, **options))

    return create


def _not_listed(name):
    raise AttributeError(
        f"the stand-in for CuPy has no {name!r}. If CuPy has it, add it to ELEMENTWISE or "
        "PARAMETERS in tests/support/cupy_stand_in.py."
    )


def get_array_module(*arguments):
    return cupy if any(isinstance(x, ndarray) for x in arguments) else np


def _fill():
    for name, known in PARAMETERS.items():
        setattr(cupy, name, _function(name, known))
    for name in CREATION:
        setattr(cupy, name, _creator(name))
    for function in (asarray, append, isin, searchsorted, get_array_module):
        setattr(cupy, function.__name__, function)
    cupy.ndarray, cupy.absolute = ndarray, cupy.abs
    cupy.__getattr__ = _not_listed
    cupy.cuda = unittest.mock.MagicMock()
    cupy.cuda.UnownedMemory = lambda ptr, size, owner, device_id: ptr
    cupy.cuda.MemoryPointer = lambda memory, offset: memory
    cupy.cuda.get_current_stream.return_value.synchronize = synchronize
    cupy.cuda.runtime.memGetInfo.return_value = 60 * 2**30, 80 * 2**30  # free, total
    for name in METHODS:
        function = getattr(cupy, name)
        setattr(ndarray, name, lambda self, *a, f=function, **options: f(self, *a, **options))


_fill()
