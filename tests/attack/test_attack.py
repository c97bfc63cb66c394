"""Damaged files are read or refused by name."""

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
        *(("criteo", 6), ("workflow", 6), ("parquet", 6)),
        *(pytest.param(target, 200, marks=pytest.mark.slow) for target in TARGETS),
    ],
)
def test_damaged_files_are_read_or_refused_by_name(root, target, cases):
    done = run(root, "-m", "tests.attack.attack", SEED, cases, target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{target}: {cases} cases" in done.stdout
