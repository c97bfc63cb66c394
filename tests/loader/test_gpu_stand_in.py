"""Without a GPU: what `device="gpu"` does with CuPy's arrays, by a stand-in for CuPy."""

import functools
import sys
import unittest.mock
import weakref

import jax
import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tests.loader.test_gpu_batches import FORMS, assert_same_batches, chunk_of, loader_of
from tests.support import cupy_stand_in
from tests.support.gpu import MISSING
from tutorlib.columns import Ragged
from tutorlib.gpu import memory as gpu
from tutorlib.gpu import tensors as bridge
from tutorlib.gpu.decoding import _cast
from tutorlib.keras_bridge.backend import tensorflow_maker
from tutorlib.memory import aligned_empty
from tutorlib.parquet import ParquetError, ParquetSource

pytestmark = pytest.mark.skipif(MISSING is None, reason="a GPU is there: see test_gpu_batches.py")
GIB = 2**30


@pytest.fixture
def rmm(monkeypatch):
    """Put stand-ins in the place of CuPy, cuDF and RMM, which notes what it is asked."""
    rmm = unittest.mock.MagicMock()
    rmm.mr.CudaMemoryResource = rmm.mr.get_current_device_resource = list
    for name in ("rmm", "rmm.allocators", "rmm.allocators.cupy", "pylibcudf"):
        monkeypatch.setitem(sys.modules, name, rmm)
    monkeypatch.setitem(sys.modules, "cupy", cupy_stand_in.cupy)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(gpu, "_left", {})
    for name in ("use_gpu", "gpu_memory_bytes"):
        monkeypatch.setattr(gpu, name, functools.cache(getattr(gpu, name).__wrapped__))
    return rmm


@pytest.mark.parametrize("rows", [0, 1, 2, 9, 16])
@pytest.mark.parametrize("library", ["tensorflow", "jax"])
def test_dlpack_shares_memory_without_gaps_and_refuses_gaps(library, rows):
    make = tensorflow_maker() if library == "tensorflow" else jax.dlpack.from_dlpack
    whole = aligned_empty((3, 64, 4), np.float32)
    whole[...] = np.arange(whole.size).reshape(whole.shape)
    column, batches = whole.ravel()[:rows], whole.reshape(3, 256, 1)[:, :rows]
    for array in (whole[:, :rows][1], batches[2], batches[:, :, 0][1], column, column[:, None]):
        tensor = make(array)
        assert tuple(tensor.shape) == array.shape
        np.testing.assert_array_equal(np.asarray(tensor), array)
        assert not rows or np.shares_memory(np.asarray(tensor), whole)
    for array in (whole[1, :rows, :1], column[::-1]) if rows > 1 else ():
        with pytest.raises(Exception, match=r"Invalid strides|trivial \(compact\) striding"):
            make(array)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch_size", [1, 7, 300])
def test_batches_are_those_of_the_cpu_and_made_before_they_are_used(rmm, form, batch_size):
    def finished(batches):
        for batch in batches:
            assert not any(cupy_stand_in.exported)
            cupy_stand_in.exported.clear()
            yield batch

    rows, settings = chunk_of(999), FORMS[form]
    with loader_of(rows, batch_size, device="gpu", **settings) as ours:
        assert_same_batches(finished(ours), loader_of(rows, batch_size, **settings))
    limit = rmm.mr.LimitingResourceAdaptor.call_args.kwargs["allocation_limit"]
    assert 0 <= 54 * GIB - limit < 256  # a tenth less than what is free


def test_batches_are_kept_until_the_steps_that_use_them_are_done(rmm, monkeypatch):
    waits, made, keep = [], [], bridge.batch_keeper()
    monkeypatch.setattr(bridge, "wait_for_gpu", lambda: waits.append(len(made)))
    for _ in range(7):
        batches = [np.zeros(3)]
        made.append(weakref.ref(batches[0]))
        keep(batches)
        del batches
        used = waits[-1] - 2 if waits else 0  # of the newest two a step may not be queued
        assert [one() is None for one in made] == [n < used for n in range(len(made))]
    del keep
    assert waits == [4, 6, 7]
    assert all(one() is not None for one in made[-2:])  # steps may use them


def test_memory_that_a_backend_will_take_is_not_free(rmm, monkeypatch):
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda *_: None)
    assert gpu.limit_tensorflow_memory(0.75) == 45 * GIB  # of 60 that are free of 80
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    put = unittest.mock.Mock()
    monkeypatch.setattr(jax, "device_put", put)
    assert gpu.gpu_memory_bytes() == int(15 * GIB * 0.9)
    put.assert_called_once()  # with its first array JAX takes its part


@pytest.mark.parametrize(("name", "value"), [("id", 97), ("x64", 1e39)])
def test_a_fault_is_named_as_on_the_cpu(rmm, name, value):
    rows, said = chunk_of(1000), set()
    rows[name][737] = value
    for device in ("cpu", "gpu"):
        with pytest.raises(ParquetError, match=f"column '{name}': .* at row 737") as error:
            list(loader_of(rows, device=device))
        said.add(str(error.value))
    assert len(said) == 1


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.float16()], ids=str)
def test_a_type_that_a_gpu_cannot_hold_is_refused_with_a_remedy(rmm, kind):
    with pytest.raises(ParquetError, match=r"column 'x': a GPU cannot decode .*device='cpu'"):
        ParquetSource(pa.table({"x": pa.array([1], kind)}), device="gpu").read(0)


def test_lists_get_the_type_that_all_files_share():
    lists = Ragged(np.arange(4, dtype=np.int32), np.array([0, 2, 4]))
    assert _cast(lists, pa.list_(pa.int64())).values.dtype == np.int64
    vectors = _cast(lists, pa.list_(pa.float32(), 2))
    assert (vectors.dtype, vectors.tolist()) == (np.float32, [[0, 1], [2, 3]])
