"""Damaged files are refused by name; the attack itself is repeatable and notices every fault."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import pytest

from tests.attack.edits import edit_bytes, edit_json, edit_lines
from tests.attack.targets import TARGETS, WITH_TENSORFLOW

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")


def run(root, *arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("with_tensorflow", [False, True])
def test_damaged_files_are_read_or_refused_by_name(root, tmp_path, with_tensorflow):
    names = [name for name in TARGETS if (name in WITH_TENSORFLOW) == with_tensorflow]
    cases = 2 if with_tensorflow else 6  # it takes a second to start
    done = run(
        root,
        "-m",
        "tests.attack",
        "--cases",
        cases,
        "--seed",
        1,
        "--out",
        tmp_path,
        "--only",
        *names,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 failed") == len(names)


JUDGED = """
import json, os, zlib
from tests.attack.process import fault, run_limited

def raises(error):
    def work():
        raise error
    return work

def deep():
    return deep()

def loops():
    while True:
        pass

def hides_memory():
    try:
        bytearray(1 << 33)
    except MemoryError as error:
        raise ValueError("data.parquet is damaged") from error

WORKS = {
    "works": lambda: None,
    "names it": raises(ValueError("data.parquet is damaged")),
    "names nothing": raises(ValueError("it is damaged")),
    "raw": raises(zlib.error("incorrect header")),
    "deep": deep,
    "memory": lambda: bytearray(1 << 33),
    "touched memory": lambda: bytearray(b"1") * (3 << 28),
    "hidden memory": hides_memory,
    "loops": loops,
    "aborts": os.abort,
    "exits": lambda: os._exit(3),
}
for name, work in WORKS.items():
    outcome = run_limited(work, 1 if work is loops else 60, 1 << 29)
    print(json.dumps([name, fault(outcome, (ValueError, OSError), ["data.parquet"])]))
"""


def test_every_kind_of_fault_is_noticed(root):
    done = run(root, "-c", JUDGED)
    assert done.returncode == 0, done.stderr
    assert dict(map(json.loads, done.stdout.splitlines())) == {
        "works": "",
        "names it": "",
        "names nothing": "ValueError that names no file",
        "raw": "raw error",
        "deep": "raw RecursionError",
        "memory": "memory beyond the limit",
        "touched memory": "memory beyond the limit",
        "hidden memory": "memory beyond the limit",
        "loops": "hangs: more than 1 s",
        "aborts": "crashes: signal 6",
        "exits": "crashes: exit status 3",
    }


def test_equal_seeds_make_equal_damage():
    text = json.dumps({"a": [1, 2.5, {"b": None}], "c": "d"})
    for edit in (
        lambda rng: edit_bytes(bytes(range(256)) * 9, rng),
        lambda rng: edit_json(text, rng),
        lambda rng: edit_lines(b"1\ta\n2\tb\n", b"\t", rng),
    ):
        first, again = ([edit(Random(seed)) for seed in range(50)] for _ in range(2))
        assert first == again
        assert len({changed for changed, _ in first}) > 10


def test_a_kept_failure_is_read_again(root, tmp_path):
    (tmp_path / "files" / "raw").mkdir(parents=True)
    (tmp_path / "files" / "raw" / "day_0.tsv").write_text("1\t2\n")
    (tmp_path / "case.json").write_text(json.dumps({"target": "criteo"}))
    done = run(root, "-m", "tests.attack", "--again", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "DataPrepError" in done.stdout
    assert "raised: as it should" in done.stdout
