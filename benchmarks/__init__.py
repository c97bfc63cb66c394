"""Benchmarks: what is measured, turn by turn in one process, with its machine and versions.

What the lessons train and measure is theirs: it lies in `notebooks/`, which is no package.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "notebooks"))
