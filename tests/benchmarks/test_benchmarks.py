"""Each benchmark runs over a few rows, and each way reads or trains on exactly its rows."""

import ast
import contextlib
import dataclasses
import json
import re
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from types import SimpleNamespace

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ladder
from benchmarks import etl, figures, loader, measure, peer_readers, peers
from benchmarks import gpu_check as gpu_check_parts
from benchmarks.__main__ import MODULES, main
from benchmarks.data import TIME, column_sums, criteo_shape, files_of
from benchmarks.ladder import LADDER
from benchmarks.measure import Way
from benchmarks.readers import consume, worth
from benchmarks.train import TRAIN
from data_prep import synthetic_criteo
from tests.support import gpu
from turns import Epoch
from tutorlib.gpu import missing_for_gpu
from tutorlib.memory import usable_cores


@pytest.fixture(autouse=True, scope="module")
def gpu_hidden_by_benchmarks_only():
    """Restore the variable with which `--device cpu` hides GPUs from a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


ROWS = 4096
LOG_ROWS = 8192  # of the ladder
SMALL = {  # options of a run of seconds, and the number of ways that it measures
    "loader": ["--slow-rows 1000 --copies 2 --batch-size 1000", 32],
    "memory": [
        "--only series --budget-mib 64 --sizes 1 --batch-size 1024 --row-group-rows 4096",
        1,
    ],
    "layers": ["--batch-size 512 --table-rows 30000 --width 4", 20],
    "etl": ["--scale 0.01", 3],
    "train": ["--batch-size 1024 --only movielens", 6],
    "ladder": [f"--rows {LOG_ROWS} --batch-size 1024 --only xla", 6],
    "large-tables": ["--slow-rows 2048 --batch-size 512 --table-share 0.001", 4],
    "peers": ["--slow-rows 2048 --batch-size 1000 --train-batch-size 1024 --environments none", 8],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for rows, with a small click log for the ladder."""
    made = tmp_path_factory.mktemp("rows")
    synthetic_criteo.write_criteo(made / "criteo" / "raw", rows=15_000, days=3)
    return made


@pytest.fixture(scope="module")
def measured(folder):
    """Return the report of a benchmark over a few rows, measured once."""
    reports = {}

    def report(name):
        if name not in reports:
            path = folder / "results" / f"{name}-here.json"
            words = [name, *SMALL[name][0].split(), "--repeat", "1"]
            words += ["--data", str(folder), "--out", str(path)]
            if name in ("loader", "etl", "train", "large-tables", "peers"):
                words += ["--rows", str(ROWS)]
            assert main(words) == 0
            reports[name] = json.loads(path.read_text())
        return reports[name]

    return report


SLOW = {"peers", "large-tables", "train", "memory", "etl", "ladder"}  # minutes together


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MODULES],
)
def test_a_benchmark_runs_and_reports_every_way_with_its_claims(name, measured, folder):
    result = measured(name)
    assert len(result["ways"]) == SMALL[name][1]
    assert all(entry["rows_per_s"] > 0 < entry["ratio"] for entry in result["ways"])
    assert all(len(said["values"]) == 1 for said in result["claims"])
    assert str(folder) not in json.dumps({**result, "not_measured": {}})


def test_every_reader_delivers_exactly_the_rows_of_the_files(folder):
    options = {"data": folder, "rows": ROWS, "slow_rows": 1000, "copies": 2, "batch_size": 1000}
    data = criteo_shape(folder, ROWS)
    schema, first = data.schema, pq.read_table(data.parquet)["C1"].to_numpy()[:1000]
    readers = [
        (section, way)
        for section in ("readers", "plain")
        for way in loader.LOADER.sections[section](Namespace(**options, device="cpu"))
        if way.name != loader.ARROW and not way.name.startswith(loader.FIT)
    ]
    assert len(readers) == 26
    for section, way in readers:
        rows, sums, order = 0, Counter(), []
        for inputs, label in way.epoch.args[0]:
            rows += label.shape[0]
            for name, tensor in {**inputs, "label": label}.items():
                totals = np.asarray(tensor).sum(axis=0, dtype=np.float64)
                roles = name in ("categorical", "continuous")
                names = schema.with_role(name).names if roles else [name]
                sums.update(dict(zip(names, totals, strict=True)))
            if "C1" in inputs or "categorical" in inputs:
                ids = inputs["C1"] if "C1" in inputs else inputs["categorical"][:, :1]
                order.extend(np.asarray(ids).ravel())
        times = max(1, rows // ROWS)
        assert rows in (1000, ROWS, 2 * ROWS), (section, way.name)
        once = column_sums(files_of(data.parquet), rows // times)
        expected = {column: times * total for column, total in once.items()}
        assert sums == pytest.approx(expected, rel=1e-6), (section, way.name)
        kept = np.array_equal(order[:1000], first)
        assert kept == ("not shuffled" in way.name), (section, way.name)


@pytest.mark.parametrize("name", figures.PICTURES)
def test_a_figure_can_be_drawn_again_with_the_same_bytes(name, measured, tmp_path):
    benchmark, draw = figures.PICTURES[name]
    drawn = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in drawn:
        draw(measured(benchmark), path)
    assert b"<svg" in drawn[0].read_bytes()
    assert drawn[0].read_bytes() == drawn[1].read_bytes()


def test_the_table_of_the_first_page_shows_every_panel_and_its_shares_divide(tmp_path):
    def entry(panel, name, *seconds):
        return {"section": panel, "name": name, "rows": 10**5, "elapsed_s": seconds, "loss": 0.4}

    seconds = {ladder.TFRECORD: (4, 4, 5), ladder.CEILING: (1, 1, 2)}
    ways = [entry("plain", name, *seconds.get(name, (2, 4, 1))) for name in ladder.READERS]
    ways += [entry("xla", name, *seconds.get(name, (2, 2, 2))) for name in ladder.READERS]
    machine = {"cpu": "words", "cores": 2, "memory_bytes": 2**30, "gpus": []}
    report = {"date": "2020-02-20T", "hardware": machine, "ways": ways}
    (tmp_path / "ladder-here.json").write_text(json.dumps(report))
    rows = figures.ladder_table(tmp_path).splitlines()
    assert rows[0].startswith("**How much of its speed does training lose to reading? 50% to 50%")
    assert "| loader | 50%<br><sub>25-100</sub> | 50%<br><sub>50-50</sub> |" in rows
    assert "| TFRecord | 25%<br><sub>20-25</sub> | 25%<br><sub>20-25</sub> |" in rows
    rates = " 100<br><sub>50 to 100</sub> |"
    assert rows[-3] == f"| {ladder.CEILING}, thousand samples/s |{rates * 2}"


@pytest.mark.slow
def test_readers_of_the_ladder_train_on_the_same_rows_from_the_same_weights(folder, measured):
    """With one step an epoch on all rows, each ends with the same loss, whatever its order."""
    entries = measured("ladder")["ways"]
    rows = {entry["rows"] for entry in entries}
    assert len(rows) == 1
    settings = ladder.Settings(rows=LOG_ROWS, batch_size=LOG_ROWS, valid_rows=1024)
    log = ladder.ClickLog(folder / "criteo", settings)
    readers = [name for name in ladder.READERS if name not in (ladder.LINES, ladder.CEILING)]
    trained = ladder.climb("plain", log, readers, 1)
    losses = [training["loss"] for training in trained.values()]
    assert len(losses) == 4
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-4)


def test_the_lessons_have_the_settings_of_the_ladder(root):
    """One place decides rows, batch size, widths, optimizer, shuffle and first weights."""
    settings = dataclasses.asdict(ladder.SETTINGS)
    found = {}
    for number in range(6):
        [path] = (root / "notebooks").glob(f"{number:02d}_*.ipynb")
        cells = json.loads(path.read_text("utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        [parameters] = [text for text in code if text.startswith("DATA_DIR")]
        names = dict(re.findall(r"^([A-Z_]+) = (.+?)  #", parameters, re.MULTILINE))
        values = {n.lower(): ast.literal_eval(text) for n, text in names.items()}
        found[number] = {n: v for n, v in values.items() if n in settings}
        rates = set(re.findall(r"Adam\((.*?)\)", "\n".join(code)))
        assert rates <= {"0.005", "LEARNING_RATE", "learning_rate"}, path.name
        buffers = set(re.findall(r"shuffle(?:_buffer_size=|\()([\d_]+)", "\n".join(code)))
        assert buffers <= {"10_000"}, path.name
    # Lesson 00 has a network, and rows, of its own.
    assert found.pop(0).items() >= {"batch_size": 4096, "seed": 0}.items()
    found.pop(1)  # trains no network of the ladder
    for number, values in found.items():
        expected = {n: list(v) if isinstance(v, tuple) else v for n, v in settings.items()}
        assert values == {name: expected[name] for name in values}, f"lesson {number:02d}"
        assert values.keys() >= {"rows", "batch_size", "seed", "bottom_units", "top_units"}
    for number in (8, 9):  # which train the network of the ladder, too
        [path] = (root / "notebooks").glob(f"{number:02d}_*.ipynb")
        assert f"TRAIN_ROWS = {settings['rows']:_}  #" in path.read_text("utf-8")
    assert LADDER.options["rows"][0] == TRAIN.options["rows"][0] == settings["rows"]
    assert LADDER.options["batch_size"][0] == TRAIN.options["batch_size"][0] == 4096


def test_tables_on_pages_are_those_of_the_results(root):
    pages = {
        "benchmarks/README.md": "table",
        "docs/compare.md": "peers_table",
        "README.md": "ladder_table",
    }
    for path, make in pages.items():
        page = root / path
        assert figures.filled(page, getattr(figures, make)()) == page.read_text(encoding="utf-8")


def test_the_first_pages_picture_is_that_of_lesson_00s_page(root, tmp_path):
    """`make figures` draws it again, after `make pages LESSONS=00`."""
    path = figures.draw_waiting(tmp_path / "waiting.svg")
    assert path.read_bytes() == (root / "imgs" / path.name).read_bytes(), "make figures renews it"


# ---- what makes a measurement honest: turns, clocks, equal rows and values, named failures -------


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
            elapsed_s = next(seconds[name])
            clock.advance(elapsed_s + 7)  # the end of a tf.data iterator
            return Epoch(100, elapsed_s=elapsed_s, values={"peak_bytes": 3.0})

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


def test_turns_go_on_until_the_median_is_known_to_15_percent():
    times = iter([9, 1, 1, 1, 1.3, 1, 1, 1, 1, 9])  # the first warms up
    [entry] = measure.turns([Way("a", lambda: Epoch(8, elapsed_s=next(times)))], most=13)
    assert entry["elapsed_s"] == [1, 1, 1, 1.3, 1, 1, 1, 1]
    assert [measure.bounds(range(n)) for n in (2, 7, 8, 13)] == [(0, 1), (0, 6), (1, 6), (3, 9)]


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
    assert (met["values"], met["holds"], not_met["holds"]) == ([3.0, 3.0, 1.0], True, False)
    peaks = [[2, 3, 9], [2, 4, 9], [np.nan]]
    assert [measure.claim("", p, at_most=3)["holds"] for p in peaks] == [True, False, False]


def test_what_a_shuffle_is_worth():
    """1 row for batches in order, as many as row groups in a chunk, all rows if it is uniform."""
    groups = np.random.default_rng(0).permutation(1024)[:, None] * 64 + np.arange(64)
    uniform = np.random.default_rng(1).permutation(65_536)
    for order, expected in [(np.arange(65_536), 1), (groups, 8), (uniform, 512)]:
        batches = order.reshape(128, 512)
        moments = [(batch.mean(), np.square(batch.astype(float)).mean()) for batch in batches]
        assert worth(moments) == pytest.approx(expected, rel=0.4)


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


def test_a_peer_that_reads_other_values_than_the_files_hold_is_refused(tmp_path):
    data = criteo_shape(tmp_path, 2048)
    files, names = files_of(data.parquet), data.schema.names
    settings = {
        "cells": str(data.raw_rows() / "cells.bin"), "names": names, "label": "label", "time": TIME,
        "continuous": data.schema.continuous.names, "categorical": data.schema.categorical.names,
    }  # fmt: skip
    rows = peer_readers.all_rows(settings)[:1000]
    batches = [peer_readers.as_matrices(part, settings) for part in np.split(rows, 4)]
    reader = peer_readers.Reader("words", "page", lambda: batches)
    answer = peer_readers.check(reader, settings)
    assert answer["rows"] == peer_readers.epoch(reader)["rows"] == 1000
    times = rows[:, names.index(TIME)].view(np.float32).reshape(4, 250).astype(float)
    assert np.allclose(answer["times"], [(t.mean(), np.square(t).mean()) for t in times])
    peers.check_sums("honest", 1000, answer["sums"], files)
    sums = column_sums(files, 1000)
    with pytest.raises(measure.Failed, match="'C3'"):
        peers.check_sums("other", 1000, {**sums, "C3": sums["C3"] + 1}, files)
    del sums["I2"]
    with pytest.raises(measure.Failed, match="'I2': \\(None"):
        peers.check_sums("less", 1000, sums, files)
    batches[1]["label"] = batches[1]["label"][:9]
    with pytest.raises(ValueError, match="9, 250"):
        peer_readers.check(reader, settings)


def test_a_way_that_fails_is_left_out_with_its_reason_and_the_others_go_on():
    def fail():
        raise measure.Failed("broken pipe")

    first, second = measure.turns([Way("a", fail), Way("b", lambda: 8)], repeat=2)
    assert (first["why"], second["ratio"]) == ("broken pipe", 1)
    with pytest.raises(measure.Failed, match=r"after 1 s, its limit, instead of answering"):
        peers.Peer([sys.executable, "-c", "import time; time.sleep(60)"], {}, limit_s=1)


# ---- what a card showed --------------------------------------------------------------------------


def test_pages_say_of_gpus_what_the_results_say(root, tmp_path):
    readme = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    assert figures.gpu_sentence() in readme
    page = root / "docs" / "gpu.md"
    assert figures.filled(page, figures.gpu_table()) == page.read_text(encoding="utf-8")
    report = figures.newest("gpu-check")
    jax = report["parts"].pop("jax")  # today two parts answer
    names = {"loader": "rows/s", "training": "samples/s of a DLRM"}
    report["parts"] |= {part: {name: jax[name]} for part, name in names.items()}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "gpu-check-here.json").write_text(json.dumps(report))
    assert figures.gpu_sentence(tmp_path / "results") == figures.gpu_sentence()
    assert figures.gpu_table(tmp_path / "results") == figures.gpu_table()
    none_yet = "No GPU has run this code yet."
    assert figures.gpu_sentence(tmp_path) == figures.gpu_table(tmp_path).strip() == none_yet


@pytest.mark.skipif(missing_for_gpu() is None, reason="a GPU is there")
def test_gpu_check_says_what_is_missing_and_ends(tmp_path):
    with pytest.raises(SystemExit, match=r"No GPU can be used here: .*docs/gpu\.md"):
        main(["gpu-check", "--out", str(tmp_path)])
    assert [*json.loads((tmp_path / "gpu-check.json").read_text("utf-8"))["parts"]] == ["machine"]


def gpu_check(root, tmp_path, *words):
    """Run `gpu-check` on the CPU; return its exit status and its report."""
    command = [sys.executable, "-m", "benchmarks", "gpu-check", "--device", "cpu"]
    command += ["--out", str(tmp_path / "out"), "--data", str(tmp_path / "data"), *words]
    status = subprocess.run(command, cwd=root).returncode
    return status, json.loads((tmp_path / "out" / "gpu-check.json").read_text("utf-8"))


def test_gpu_check_writes_what_each_part_answers(root, tmp_path):
    status, report = gpu_check(root, tmp_path, "--only", "calls", "decoding")
    calls, decoding = report["parts"].values()
    assert (status, calls["allocation, RMM and CuPy's pool"]) == (0, "needs a card")
    for name in ("take of a column", "compiled cut of 40 columns"):
        assert [*map(len, calls[name].values())] == [2, 2]
        assert min(map(min, calls[name].values())) > 0
    [times] = [answer for name, answer in decoding.items() if name.startswith("ms of a call")]
    assert len(times) == 8
    assert min(times.values()) > 0


@pytest.mark.slow
def test_gpu_check_measures_nothing_where_its_gate_fails(root, tmp_path):
    (tmp_path / "data").write_text("no folder")
    status, report = gpu_check(root, tmp_path, "--only", "gate", "loader")
    gate, loader = report["parts"].values()
    assert (status, loader) == (1, {"ended": "not run: the gate failed"})
    assert gate["ended"].startswith("failed after")
    assert gate["row groups in order"].startswith("NotADirectoryError")


@pytest.mark.slow
def test_gpu_check_runs_to_its_end_on_a_cpu(root, tmp_path):
    status, report = gpu_check(root, tmp_path)
    parts = report["parts"]
    assert (status, [*parts]) == (0, [*gpu_check_parts.PARTS])
    assert {part["ended"].partition(" ")[0] for part in parts.values()} == {"done"}
    same = [said for name, said in parts["gate"].items() if name.startswith("same batches")]
    assert same == ["yes"] * 6
    assert len(parts["loader"]["rows/s"]) == 4
    assert len(parts["training"]["samples/s of a DLRM"]) == 6


def test_gpu_check_takes_ten_minutes_at_most():
    assert sum(limit_s for limit_s, _ in gpu_check_parts.PARTS.values()) <= 600


def test_bytes_copied_are_counted_alike_with_jax_and_tensorflow(tmp_path):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    for name in ("/device:GPU:0", "/host:CPU"):
        plane = space.planes.add(name=name)
        plane.stat_metadata[1].name = "memcpy_details"
        for number, event in enumerate(("MemcpyH2D", "MemcpyD2H", "kernel")):
            plane.event_metadata[number].name = event
        line = plane.lines.add(name="stream")
        for number, size in ((0, 100), (1, 7), (2, 0), (0, 20)):
            text = f"kind_src:pageable kind_dst:device size:{size} dest:0 async:1"
            details = line.events.add(metadata_id=number, duration_ps=5).stats.add(metadata_id=1)
            details.str_value = text
    path = tmp_path / "here.xplane.pb"
    path.write_bytes(space.SerializeToString())
    ours, theirs = ([*read(path)] for read in (gpu.events_of_jax, gpu.events_of_tensorflow))
    assert ours == theirs
    assert len(ours) == 4
    assert gpu.copied_bytes(tmp_path) == {"MemcpyH2D": 120, "MemcpyD2H": 7}


# ---- cores_awake --------------------------------------------------------------------------------


def children(process):
    """Return {process id: priority} of the running child processes of a process."""
    found = {}
    for child in psutil.Process(process).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found[child.pid] = child.nice()
    return found


@pytest.mark.parametrize("killed", [False, True])
def test_processes_of_the_lowest_priority_end_with_the_block_or_the_process(killed):
    code = "import benchmarks, time\nfrom turns import cores_awake\nwith cores_awake():\n"
    code += f" print(flush=True)\n time.sleep({60 if killed else 2})\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        deadline = time.monotonic() + 30
        spinning = {}
        while list(spinning.values()) != [19] * usable_cores() and time.monotonic() < deadline:
            spinning = children(process.pid) or spinning
        assert list(spinning.values()) == [19] * usable_cores()
        if killed:
            process.kill()
    while any(map(psutil.pid_exists, spinning)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, spinning))
