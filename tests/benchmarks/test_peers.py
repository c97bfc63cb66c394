"""Other libraries read in processes of their own; what they read is checked; absent ones named."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from benchmarks import figures, peer_readers, peers
from benchmarks.__main__ import main
from benchmarks.data import column_sums, criteo_shape

SERVER = """
import json, sys
settings = json.loads(sys.stdin.readline())
print(json.dumps({"readers": {"in order": "words"}, "versions": {"demo": "1.0"}}), flush=True)
done = []
for line in sys.stdin:
    request = json.loads(line)
    done.append(request["do"])
    if request["reader"] == "broken":
        raise KeyError("no such reader, " + settings["label"])
    answer = {"rows": len(done)} | ({"sums": {"label": 3.0}} if "sums" in done else {})
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return criteo_shape(tmp_path_factory.mktemp("rows"), 20_480)


@pytest.fixture
def server(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    peer = peers.Peer([sys.executable, str(script)], {"label": "label"})
    yield peer
    peer.close()


def test_a_peer_process_runs_an_epoch_on_request(server):
    assert (server.readers, server.versions) == ({"in order": "words"}, {"demo": "1.0"})
    assert [server.epoch("in order") for _ in range(3)] == [1, 2, 3]


def test_what_a_reader_needs_is_started_and_stopped_around_its_sums(server):
    assert server.sums("in order") == (2, {"label": 3.0})
    assert server.epoch("in order") == 4


def test_the_error_of_a_failing_peer_has_its_last_output(server, tmp_path):
    with pytest.raises(peers.PeerError, match=r"status 1 .*\n(.*\n)*KeyError: 'no such reader"):
        server.epoch("broken")
    with pytest.raises(peers.PeerError, match="ended with status 2"):
        peers.Peer([sys.executable, str(tmp_path / "absent.py")], {})


def test_a_peer_that_reads_wrong_values_is_refused(data):
    sums = column_sums(data.source, 100)
    peers.check_sums("honest", 100, sums, data.source)
    with pytest.raises(peers.PeerError, match="'C3'"):
        peers.check_sums("other", 100, {**sums, "C3": sums["C3"] + 1}, data.source)
    del sums["I2"]
    with pytest.raises(peers.PeerError, match="'I2': \\(None"):
        peers.check_sums("less", 100, sums, data.source)


def test_matrices_of_a_peer_are_summed_by_column(data):
    names = data.schema.names
    settings = {
        "cells": str(data.raw_rows() / "cells.bin"), "names": names, "label": "label",
        "continuous": data.schema.continuous.names, "categorical": data.schema.categorical.names,
    }  # fmt: skip
    rows = peer_readers.first_rows(settings, 1000)
    batches = [peer_readers.as_matrices(part.tobytes(), settings) for part in np.split(rows, 4)]
    reader = peer_readers.Reader("words", lambda: batches)
    answer = peer_readers.epoch(reader, True, settings)
    assert answer["rows"] == 1000
    peers.check_sums("matrices", 1000, answer["sums"], data.source)
    assert peer_readers.epoch(reader, False, settings) == {"rows": 1000}
    batches[1]["label"] = batches[1]["label"][:9]
    with pytest.raises(ValueError, match="9, 250"):
        peer_readers.epoch(reader, False, settings)


@pytest.mark.parametrize("library", peers.TITLES)
def test_an_installed_library_reads_the_same_rows(library, data):
    try:  # checks the sums
        peer = peers.start(library, peers.ENVIRONMENTS_FOLDER, data, 4000, 2, 1000)
    except peers.PeerError as error:
        if "no environment" not in str(error):
            raise
        pytest.skip(str(error))
    try:
        for reader in peer.readers:
            peer.ask(reader, "start")
            assert peer.epoch(reader) in (40_960, 20_480, 4000, 1000, 500, 250)
            peer.ask(reader, "stop")
    finally:
        peer.close()


def test_an_environment_that_pip_cannot_make_is_removed_and_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(peers, "ENVIRONMENTS", {"grain": ("no-such-package",), "ray": ()})
    (tmp_path / "ray").mkdir()
    assert main(["peers", "--install", "--environments", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"not made: {tmp_path / 'grain'}: pip ended with status 1" in said
    assert f"there: {tmp_path / 'ray'}" in said
    assert [path.name for path in tmp_path.iterdir()] == ["ray"]


def test_keras_arrays_in_memory_are_shuffled_as_fit_does(data):
    from benchmarks.readers import arrays_in_memory, as_fit_shuffles

    batches = as_fit_shuffles(arrays_in_memory(data.source, data.schema), 1000)
    ids = [np.concatenate([inputs["C1"] for inputs, _ in batches]).ravel() for _ in range(2)]
    stored = np.concatenate([chunk["C1"] for chunk in data.source.chunks()])
    assert not np.array_equal(ids[0], stored)
    assert all(np.array_equal(np.sort(each), np.sort(stored)) for each in ids)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Report of a run over few rows without other libraries: it shows only that it runs."""
    folder = tmp_path_factory.mktemp("peers")
    options = {
        "--rows": 20_480, "--slow-rows": 4000, "--copies": 2, "--batch-size": 1000, "--repeat": 1,
        "--train-rows": 4096, "--train-batch-size": 1024, "--data": folder,
        "--environments": folder / "none", "--out": folder / "peers-here.json",
    }  # fmt: skip
    assert main(["peers", *(str(word) for option in options.items() for word in option)]) == 0
    return folder / "peers-here.json"


def test_the_benchmark_measures_what_is_here_and_names_what_is_not(measured):
    result = json.loads(measured.read_text())
    rows = {entry["name"]: entry["rows"] for entry in result["candidates"]}
    reading, training = result["sections"]["read"], result["sections"]["train"]
    assert [*reading, *training] == list(rows)
    assert [rows[name] for name in reading] == [4000, 4000, 40_960, 20_480, 40_960, 40_960]
    assert {rows[name] for name in training} == {4096}
    assert len(training) == 5
    ratios = {entry["name"]: entry["ratio"] for entry in result["candidates"]}
    assert ratios[peers.NATIVE] == ratios[f"{peers.TRAIN}{peers.NATIVE}"] == 1
    said = result["not_measured"]
    assert [line.split(": ")[1] for line in said] == list(peers.TITLES.values())
    assert all("--install" in line for line in said)
    assert str(measured.parent) not in result["command"]


def test_what_is_faster_than_the_loader_is_said():
    from benchmarks.measure import Timing

    reading = {peers.NATIVE: 4.0, peers.COLUMNS: 2.0, peers.STACKED: 1.0, "other": 1.5}
    training = {peers.NATIVE: 4.0, peers.COLUMNS: 2.0, peers.FUSED: 1.0, "other": 1.5}
    training = {f"{peers.TRAIN}{name}": seconds for name, seconds in training.items()}
    timings = [Timing(name, 12, (seconds,)) for name, seconds in (reading | training).items()]
    sections = {"read": list(reading), "train": list(training)}
    assert peers.report(timings, "demo", {"sections": sections})["faster"] == ["other"]


def test_the_figure_shows_every_candidate_with_its_rate(measured, tmp_path):
    command = ["figures", "--only", "peers", "--results", str(measured.parent)]
    assert main([*command, "--images", str(tmp_path)]) == 0
    drawn = (tmp_path / "peers.svg").read_text(encoding="utf-8")
    for entry in json.loads(measured.read_text())["candidates"]:
        assert f"<!-- {figures.rate(entry)} -->" in drawn
