"""What makes a measurement honest: turns, clocks, equal rows, equal values, named failures."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import etl, measure, peer_readers, peers
from benchmarks.data import column_sums, criteo_shape, files_of
from benchmarks.measure import Epoch, Way
from benchmarks.readers import consume


class Clock:
    """A clock that a test advances."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def advance(self, seconds):
        self.now_s += seconds


def test_ways_take_turns_and_neither_warm_up_nor_hooks_nor_a_slow_end_are_timed():
    clock, order = Clock(), []
    seconds = {"slow": iter([99, 4.0, 2.0, 5.0]), "fast": iter([99, 1.0, 1.0, 0.5])}

    def way(name):
        def epoch():
            order.append(name)
            clock.advance(next(seconds[name]))
            ended = clock()
            clock.advance(7)  # the end of a tf.data iterator
            return Epoch(100, ended=ended, values={"peak_bytes": 3.0})

        hooks = {"before": lambda: clock.advance(5), "after": lambda: clock.advance(9)}
        return Way(name, epoch, **hooks, facts={"settings": "words"})

    slow, fast = measure.turns([way("slow"), way("fast")], repeat=3, clock=clock)
    assert order == ["slow", "fast"] * 4
    assert (slow["elapsed_s"], slow["warmup_s"]) == ([4.0, 2.0, 5.0], [99])
    assert measure.rates(slow) == [25, 50, 20]
    assert (slow["rows_per_s"], fast["rows_per_s"]) == (25, 100)
    assert measure.ratios(fast, slow) == [4, 2, 10]
    assert (slow["ratio"], fast["ratio"]) == (1, 4)  # the median of the turns
    assert (fast["values"], fast["settings"]) == ({"peak_bytes": [3.0] * 3}, "words")


def test_the_device_is_synchronised_before_each_reading_of_the_clock():
    clock, pending = Clock(), []

    def work():
        pending.append(3.0)  # seconds that the device still needs when the call returns
        return 1

    def synchronise():
        while pending:
            clock.advance(pending.pop())

    [entry] = measure.turns([Way("a", work)], repeat=2, synchronise=synchronise, clock=clock)
    assert entry["elapsed_s"] == [3.0, 3.0]


def test_a_time_that_another_process_measured_counts_instead_of_the_call():
    [entry] = measure.turns([Way("a", lambda: Epoch(8, elapsed_s=2.0))], repeat=2)
    assert entry["elapsed_s"] == [2.0, 2.0]


def test_a_way_whose_rows_change_between_turns_is_refused():
    rows = iter([5, 5, 4])
    with pytest.raises(ValueError, match="'moody' did 4 rows in turn 2, before it 5"):
        measure.turns([Way("moody", lambda: next(rows))], repeat=2)
    with pytest.raises(ValueError, match="at least one"):
        measure.turns([Way("idle", lambda: 0)], repeat=1)


def test_a_claim_holds_if_the_median_of_the_turns_meets_its_bound():
    entries = [
        {"section": "read", "name": "ours", "rows": 100, "elapsed_s": [1.0, 2.0, 4.0]},
        {"section": "read", "name": "theirs", "rows": 100, "elapsed_s": [3.0, 6.0, 4.0]},
    ]
    bounds = [("read", "ours", "theirs", 2.9), ("read", "ours", "theirs", 3.1)]
    met, not_met = measure.faster([*bounds, ("read", "ours", "absent", 1)])({"ways": entries})
    assert (met["values"], met["median"]) == ([3.0, 3.0, 1.0], 3.0)
    assert (met["holds"], not_met["holds"]) == (True, False)
    assert measure.claim("peak", [2, 3, 9], at_most=3)["holds"]
    assert not measure.claim("peak", [2, 4, 9], at_most=3)["holds"]
    assert not measure.claim("peak", [np.nan], at_most=3)["holds"]


def test_a_batch_whose_tensors_differ_in_rows_is_refused():
    import tensorflow as tf

    def tensor(*shape):
        return SimpleNamespace(shape=shape)

    batches = [({"a": tensor(3, 1)}, tensor(3, 1)), ({"a": tensor(2, 1)}, tensor(2, 1))]
    assert consume(batches).rows == 5
    with pytest.raises(ValueError, match="'a' has 2 rows, the label 3"):
        consume([({"a": tensor(2, 1)}, tensor(3, 1))])
    ids = tf.data.Dataset.range(5).batch(2)
    assert consume(ids.map(lambda row: ({"a": row}, row))).rows == 5
    with pytest.raises(tf.errors.InvalidArgumentError):
        consume(ids.map(lambda row: ({"a": row}, row[:1])))


def test_an_epoch_of_fit_has_the_rows_that_the_loss_counted():
    import keras

    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    done = measure.fit_epoch(model, np.ones((10, 1)), np.ones((10, 1)), batch_size=4)
    assert done.rows == 10
    assert done.values["loss"] > 0
    assert done.ended <= time.perf_counter()


def test_anonymous_memory_counts_until_it_is_freed_and_mapped_files_do_not(tmp_path):
    size, path = 2**26, tmp_path / "bytes"
    path.write_bytes(b"x" * size)
    with measure.MemoryWatch() as watch:
        ones = np.ones(size, np.uint8)
        time.sleep(0.05)
        del ones
    assert watch.peak_bytes > 0.9 * size
    with measure.MemoryWatch() as watch:
        assert np.memmap(path, np.uint8, "r").sum() == size * ord("x")
    assert watch.peak_bytes < 0.5 * size


def test_libraries_that_wrote_different_values_are_refused(tmp_path):
    rows = {"C3": np.arange(5, dtype=np.int32), "I2": np.ones(5, np.float32)}

    def folder(name, **changed):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({**rows, **changed}), tmp_path / name / "part.parquet")
        return tmp_path / name

    ours = folder("tutorlib")
    etl.check_equal(ours, folder("close", I2=rows["I2"] + np.float32(5e-6)), 5)
    for name, values in (("C3", rows["C3"][::-1]), ("I2", rows["I2"] + np.float32(3e-5))):
        with pytest.raises(ValueError, match=f"column '{name}': tutorlib wrote .* in row 0"):
            etl.check_equal(ours, folder(name, **{name: values}), 5)
    with pytest.raises(ValueError, match="wrote 5 rows"):
        etl.check_equal(ours, ours, 6)


# ---- processes of other libraries ---------------------------------------------------------------

SERVER = """
import json, sys
settings = json.loads(sys.stdin.readline())
print(json.dumps({"readers": {"in order": "words"}, "versions": {"demo": "1.0"}}), flush=True)
for number, line in enumerate(sys.stdin, 1):
    if json.loads(line)["reader"] == "broken":
        raise KeyError("no such reader, " + settings["label"])
    print(json.dumps({"rows": number}), flush=True)
"""


def test_a_peer_runs_an_epoch_on_request_and_its_error_has_its_last_output(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    peer = peers.Peer([sys.executable, str(script)], {"label": "label"})
    try:
        assert (peer.readers, peer.versions) == ({"in order": "words"}, {"demo": "1.0"})
        assert [peer.do("in order", "epoch")["rows"] for _ in range(3)] == [1, 2, 3]
        with pytest.raises(peers.PeerError, match=r"status 1 .*\n(.*\n)*KeyError: 'no such reader"):
            peer.do("broken", "epoch")
    finally:
        peer.close()
    with pytest.raises(peers.PeerError, match="ended with status 2"):
        peers.Peer([sys.executable, str(tmp_path / "absent.py")], {})


def test_a_peer_that_reads_other_values_than_the_files_hold_is_refused(tmp_path):
    data = criteo_shape(tmp_path, 2048)
    files, names = files_of(data.parquet), data.schema.names
    settings = {
        "cells": str(data.raw_rows() / "cells.bin"), "names": names, "label": "label",
        "continuous": data.schema.continuous.names, "categorical": data.schema.categorical.names,
    }  # fmt: skip
    rows = peer_readers.first_rows(settings, 1000)
    batches = [peer_readers.as_matrices(part.tobytes(), settings) for part in np.split(rows, 4)]
    reader = peer_readers.Reader("words", lambda: batches)
    answer = peer_readers.epoch(reader, True, settings)
    assert answer["rows"] == 1000
    peers.check_sums("honest", 1000, answer["sums"], files)
    sums = column_sums(files, 1000)
    with pytest.raises(peers.PeerError, match="'C3'"):
        peers.check_sums("other", 1000, {**sums, "C3": sums["C3"] + 1}, files)
    del sums["I2"]
    with pytest.raises(peers.PeerError, match="'I2': \\(None"):
        peers.check_sums("less", 1000, sums, files)
    batches[1]["label"] = batches[1]["label"][:9]
    with pytest.raises(ValueError, match="9, 250"):
        peer_readers.epoch(reader, False, settings)
