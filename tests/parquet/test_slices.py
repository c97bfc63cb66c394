"""Columns one by one, and slices of row groups: the same rows, each decoded once."""

import contextlib
import itertools
import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutorlib.columns import Chunk, Ragged
from tutorlib.parquet import ParquetError, ParquetSource, files
from tutorlib.parquet.slices import Stream, Streams

ROWS = 5000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Two row groups of every kind of column, in pages of a few rows."""
    rng = np.random.default_rng(0)
    struct = pa.array([{"a": k, "b": k} for k in range(ROWS)])
    table = pa.table(
        {
            "i": np.arange(ROWS),
            "f": rng.random(ROWS, dtype="float32"),
            "n": pa.array([None if k % 3 == 0 else k for k in range(ROWS)]),
            "s": [f"tëxt {k % 17}" for k in range(ROWS)],
            "d": pa.array([f"d{k % 5}" for k in range(ROWS)]).dictionary_encode(),
            "g": [list(range(k % 4)) for k in range(ROWS)],
            "h": [[f"{k}"] * (k % 3) for k in range(ROWS)],
            "a.b": np.arange(ROWS) * 2,
            "a": struct,
        }
    )
    path = tmp_path_factory.mktemp("slices") / "x.parquet"
    pq.write_table(table, path, row_group_size=3000, data_page_size=2000)
    return path


NAMES = ["i", "f", "n", "s", "d", "g", "h", "a.b"]


def equal(chunk, other):
    assert list(chunk) == list(other)
    assert chunk.to_arrow().equals(other.to_arrow())


def opened(source):
    """Count the streams that a source opens, in a list that grows."""
    opens, original = [], source.stored._open_stream

    def open_stream(*arguments):
        opens.append(arguments)
        return original(*arguments)

    source.stored._open_stream = open_stream
    return opens


def test_columns_come_one_by_one_in_the_order_asked_for(path):
    source = ParquetSource(path)
    whole = Chunk.from_arrow(pq.read_table(path, columns=NAMES).slice(3000))
    asked = NAMES[::-1]
    got = dict(source.columns(1, asked))
    assert list(got) == asked
    equal(Chunk(got), whole.select(asked))
    assert isinstance(got["g"], Ragged)


def test_columns_of_a_small_row_group_are_decoded_together_and_the_faulty_one_is_named(
    path, tmp_path
):
    broken = tmp_path / "broken.parquet"
    spoil(path, broken, "n")
    with pytest.raises(ParquetError, match=r"row group 0 of .*broken\.parquet, column 'n'"):
        next(ParquetSource(broken).columns(0, ["i", "n", "f"]))


def test_a_column_of_a_large_row_group_is_decoded_only_when_it_is_asked_for(
    path, tmp_path, monkeypatch
):
    """The bytes of "n" are no page any more; the columns before it come nevertheless."""
    monkeypatch.setattr(files, "SMALL_BYTES", 1_000)
    broken = tmp_path / "broken.parquet"
    spoil(path, broken, "n")
    columns = ParquetSource(broken).columns(0, ["i", "n", "f"])
    name, values = next(columns)
    assert name == "i"
    assert values.tolist() == list(range(3000))
    with pytest.raises(ParquetError, match=r"row group 0 of .*broken\.parquet, column 'n'"):
        next(columns)


def test_reading_a_column_touches_no_other(path, tmp_path):
    broken = tmp_path / "broken.parquet"
    others = [name for name in NAMES if name != "f"]
    spoil(path, broken, *others)
    whole = ParquetSource(path).read(0, ["f"])
    source = ParquetSource(broken)
    equal(source.read(0, ["f"]), whole)
    equal(source.read(0, ["f"], 10, 20), whole.slice(10, 20))
    for name in others:
        with pytest.raises(ParquetError, match=f"column '{name}'"):
            source.read(0, [name])


def spoil(path, target, *names):
    """Copy a file with nothing but 0xFF in the pages of these columns in its first row group."""
    data, group = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(0)
    for k in range(group.num_columns):
        leaf = group.column(k)
        if leaf.path_in_schema in names or leaf.path_in_schema.split(".")[0] in names:
            start = leaf.dictionary_page_offset or leaf.data_page_offset
            data[start : start + leaf.total_compressed_size] = b"\xff" * leaf.total_compressed_size
    target.write_bytes(data)


def test_in_a_slice_too_the_column_at_fault_is_named(path, tmp_path):
    broken = tmp_path / "broken.parquet"
    spoil(path, broken, "s")
    with pytest.raises(ParquetError, match=r"row group 0 of .*broken\.parquet, column 's': cannot"):
        ParquetSource(broken).read(0, NAMES, 0, 100)


def test_a_type_without_place_in_a_chunk_is_named(path):
    with pytest.raises(ParquetError, match=r"row group 0 of .*, column 'a': Arrow type struct"):
        ParquetSource(path).read(0, ["i", "a"])


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 3000), max_size=8),
    names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    order=st.randoms(use_true_random=False),
    in_order=st.booleans(),
)
def test_slices_in_any_order_are_the_rows(path, cuts, names, order, in_order):
    source = ParquetSource(path)
    whole = source.read(0, names)
    slices = list(itertools.pairwise([0, *sorted(cuts), 3000]))
    if not in_order:
        order.shuffle(slices)
    for start, stop in slices:
        equal(source.read(0, names, start, stop), whole.slice(start, stop))


def test_slices_read_in_order_decode_the_row_group_once(path):
    source = ParquetSource(path)
    opens = opened(source)
    for start in range(0, 3000, 250):
        source.read(0, NAMES, start, start + 250)
        source.read(1, NAMES, start // 2, start // 2 + 125)  # another one, in between
    assert len(opens) == 2
    assert len(source.streams) == 1  # row group 0 has come to its end and is closed


def test_threads_that_take_slices_in_order_share_one_decoding(path):
    source = ParquetSource(path)
    opens = opened(source)
    whole = source.read(0, ["i", "g"])
    slices = [(start, start + 100) for start in range(0, 3000, 100)]
    started = threading.Event()

    def read(bounds):
        if bounds[0]:
            started.wait(10)
        chunk = source.read(0, ["i", "g"], *bounds)
        started.set()
        equal(chunk, whole.slice(*bounds))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, slices))
    assert len(opens) < 10  # 1, but for threads held up between taking and asking; 30 if alone


def test_of_those_that_wait_the_one_with_the_earliest_slice_goes_first():
    """Else the others would skip rows that then have to be decoded again."""
    batches = pa.table({"x": range(40)}).to_batches(max_chunksize=5)
    streams, going, opens = Streams(), threading.Event(), []

    def slow():
        for batch in batches:
            assert going.wait(10)
            yield batch

    def open_stream():
        opens.append(1)
        return Stream(slow(), lambda: None)

    def read(start):
        return streams.read("key", start, start + 5, 40, open_stream)["x"].to_pylist()

    def until(condition):
        for _ in range(1000):
            if condition():
                return
            threading.Event().wait(0.01)
        raise AssertionError("it never came to that")

    starts = [0, *range(35, 0, -5)]
    with ThreadPoolExecutor(len(starts)) as pool:
        results = [pool.submit(read, 0)]
        until(lambda: opens)
        for count, start in enumerate(starts[1:], 1):
            results.append(pool.submit(read, start))
            until(lambda count=count: len(streams._waiting) == count)
        going.set()
    assert [result.result() for result in results] == [[*range(k, k + 5)] for k in starts]
    assert len(opens) == 1


def test_few_streams_stay_open_and_close_leaves_none(path, tmp_path):
    table = pa.table({"i": np.arange(4000)})
    pq.write_table(table, tmp_path / "many.parquet", row_group_size=100)
    source = ParquetSource(tmp_path / "many.parquet")
    before = len(os.listdir("/proc/self/fd"))
    for position in range(40):
        source.read(position, ["i"], 0, 10)
    assert len(source.streams) == source.streams.limit == 16
    assert len(os.listdir("/proc/self/fd")) == before + 16
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert source.read(7, ["i"], 10, 20)["i"].tolist() == list(range(710, 720))
    del source
    assert len(os.listdir("/proc/self/fd")) == before


def test_columns_that_are_not_taken_leave_no_file_open(path, monkeypatch):
    monkeypatch.setattr(files, "SMALL_BYTES", 1_000)
    source = ParquetSource(path)
    before = len(os.listdir("/proc/self/fd"))
    columns = source.columns(0, NAMES)
    next(columns)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del columns
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_failed_slice_leaves_no_stream(path, tmp_path):
    broken = tmp_path / "broken.parquet"
    spoil(path, broken, "i")
    source = ParquetSource(broken)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(ParquetError):
            source.read(0, ["f", "i"], 0, 10)
    assert len(source.streams) == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_source_with_open_streams_is_pickled_without_them(path):
    source = ParquetSource(path)
    source.streams.limit = 3
    source.read(0, NAMES, 0, 10)
    copy = pickle.loads(pickle.dumps(source))
    assert len(copy.streams) == 0
    assert copy.streams.limit == 3
    equal(copy.read(0, NAMES, 10, 20), source.read(0, NAMES, 10, 20))


def _in_child(source, start, results):
    results.put((len(source.streams), source.read(0, ["i"], start, start + 50)["i"].tolist()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_begins_with_no_stream_and_disturbs_none(path):
    source = ParquetSource(path)
    source.read(0, ["i"], 0, 100)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with source.streams._changed:  # as if another thread were just taking a stream
        child = context.Process(target=_in_child, args=(source, 100, results))
        child.start()
    assert results.get(timeout=30) == (0, list(range(100, 150)))
    child.join(30)
    assert child.exitcode == 0
    opens = opened(source)
    assert source.read(0, ["i"], 100, 200)["i"].tolist() == list(range(100, 200))
    assert not opens


def test_rows_that_are_not_there_are_refused(path):
    source = ParquetSource(path)
    for bounds in ((-1, 5), (5, 4), (0, 3001)):
        with pytest.raises(IndexError, match=r"rows \[.*\) of the 3000 rows in row group 0 of"):
            source.read(0, ["i"], *bounds)
    empty = source.read(0, NAMES, 7, 7)
    assert empty.num_rows == 0
    equal(empty, source.read(0, NAMES, 0, 10).slice(5, 5))


def test_texts_in_a_dictionary_count_with_their_length(tmp_path):
    texts = pa.table({"s": ["0123abcd", "ffff0000"] * 5000, "b": [b"123456", b"65"] * 5000})
    pq.write_table(texts, tmp_path / "texts.parquet")
    stored = pq.ParquetFile(tmp_path / "texts.parquet").metadata.row_group(0)
    assert stored.column(0).total_uncompressed_size < 10_000
    assert ParquetSource(tmp_path / "texts.parquet").sizes.nbytes_per_row(["s"]) == 8
    assert ParquetSource(tmp_path / "texts.parquet").sizes.nbytes_per_row(["b"]) == 4


def test_a_slice_takes_the_memory_of_a_slice(tmp_path):
    """2 M rows of 10 columns are 160 MB; a process that reads slices of 65,536 needs a third."""
    rng = np.random.default_rng(0)
    rows = 1 << 21
    table = pa.table({f"c{k}": rng.integers(0, 1 << 40, rows) for k in range(10)})
    pq.write_table(table, tmp_path / "big.parquet", row_group_size=rows, use_dictionary=False)
    del table
    source = ParquetSource(tmp_path / "big.parquet")
    assert source.sizes.nbytes_per_row() == 80
    assert source.sizes.stream_nbytes() < 20e6
    pool = pa.default_memory_pool()
    held = []
    with contextlib.closing(source):
        for start in range(0, rows, 65_536):
            source.read(0, None, start, start + 65_536)
            held.append(pool.bytes_allocated())
    assert max(held) < 25e6
    peak = peak_of(
        "import sys; from tutorlib.parquet import ParquetSource; "
        "s = ParquetSource(sys.argv[1]); "
        "[s.read(0, None, k, k + 65_536) for k in range(0, 1 << 21, 65_536)]",
        tmp_path / "big.parquet",
    )
    least = peak_of(
        "import sys; from tutorlib.parquet import ParquetSource; "
        "s = ParquetSource(sys.argv[1]); s.read(0, None, 0, 1)",
        tmp_path / "big.parquet",
    )
    assert peak - least < 60e6


def peak_of(code, path):
    """Return the peak memory in bytes of a Python process that runs this code."""
    process = multiprocessing.get_context("spawn")
    queue = process.Queue()
    child = process.Process(target=_run, args=(code, str(path), queue))
    child.start()
    peak = queue.get(timeout=120)
    child.join()
    return peak


def _run(code, path, queue):
    import resource
    import sys

    sys.argv = ["-c", path]
    exec(code, {})
    queue.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
