"""Damaged files are read or refused by name; and the attack notices every kind of fault."""

import json
import os
import subprocess
import sys

import pytest

from tests.attack.attack import ENVIRONMENT, TARGETS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
SEED = os.environ.get("ATTACK_SEED", "1")  # another seed makes other cases


def run(root, *arguments):
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, **ENVIRONMENT}
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    ("target", "cases"),
    [
        *(("csv", 6), ("criteo", 6), ("workflow", 6), ("parquet", 6)),
        *(pytest.param(target, 200, marks=pytest.mark.slow) for target in TARGETS),
    ],
)
def test_damaged_files_are_read_or_refused_by_name(root, target, cases):
    done = run(root, "-m", "tests.attack.attack", SEED, cases, target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{target}: {cases} cases" in done.stdout


JUDGED = """
import json, os, zlib
from tests.attack.attack import fault, run_limited

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
    "touched memory": lambda: bytearray(b"1") * (3 << 28),
    "hidden memory": hides_memory,
    "loops": loops,
    "aborts": os.abort,
}
for name, work in WORKS.items():
    outcome = run_limited(work, 1 if work is loops else 60, 1 << 29)
    print(json.dumps([name, fault(outcome, ["data.parquet"])[:6]]))
"""


def test_every_kind_of_fault_is_noticed(root):
    done = run(root, "-c", JUDGED)
    assert done.returncode == 0, done.stderr
    faults = {"works": "", "names it": "", "names nothing": "ValueE", "raw": "raw er",
              "deep": "raw Re", "touched memory": "memory", "hidden memory": "memory",
              "loops": "hangs ", "aborts": "hangs "}  # fmt: skip
    assert dict(map(json.loads, done.stdout.splitlines())) == faults
