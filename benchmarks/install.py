"""Make an environment for each library of `peers`, with `venv` and pip; measure nothing.

Environments take 7 GB. merlin-dataloader needs Python 3.11 or older.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import ROOT

SUMMARY = "make the environments that peers needs (7 GB)"
ENVIRONMENTS = ROOT / "build" / "peers"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"  # PyTorch without CUDA's 3 GB
TORCH, ARROW = "torch==2.13.0", "pyarrow==26.0.1"
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "datasets": ("datasets==5.2.0", ARROW),
    "torch": (TORCH, "torchdata==0.11.0", ARROW, "numpy==2.4.6"),
    "grain": ("grain==0.2.18", "array-record==0.8.6", ARROW),
    "streaming": ("mosaicml-streaming==0.13.0", TORCH),
    "polars": ("polars==2.1.0", ARROW, "numpy==2.4.6"),
    "ray": ("ray[data]==2.60.0", "aiohttp==3.14.5", ARROW),  # its threads import it
    "merlin": (
        "merlin-dataloader==23.8.0", "merlin-core==23.8.0", "tensorflow-cpu==2.12.1",
        "numpy==1.23.5", "pandas==1.5.3", "pyarrow==14.0.2", "dask==2023.7.1",
        "distributed==2023.7.1", "dask-cuda==23.8.0", "setuptools==65.5.0",
    ),
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to a parser."""
    parser.add_argument(
        "--environments", type=Path, default=ENVIRONMENTS, metavar="FOLDER",
        help="folder with an environment for each library (default: build/peers)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Make the environments that are not there; name those that pip cannot install."""
    for library, requirements in REQUIREMENTS.items():
        path = arguments.environments / library
        if path.exists():
            print(f"there: {path}")
            continue
        try:
            subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
            pip = [str(path / "bin" / "python"), "-m", "pip", "install", "-q"]
            if TORCH in requirements:  # alone: offline, each package asked of this index takes 20 s
                wheels = ["--extra-index-url", CPU_WHEELS, "--no-deps"]
                subprocess.run([*pip, *wheels, TORCH], check=True)
            subprocess.run([*pip, *requirements], check=True)
            print(f"made: {path}")
        except subprocess.CalledProcessError as error:
            shutil.rmtree(path, ignore_errors=True)
            print(f"not made: {path}: pip ended with status {error.returncode}")
