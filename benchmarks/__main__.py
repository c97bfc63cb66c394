"""`python -m benchmarks NAME`: measure on this machine, or draw what was measured.

A benchmark is a `Benchmark` in a module of this folder, and a row of `MODULES`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from benchmarks import measure

MODULES = {  # command: (module, name of the `Benchmark` in it)
    "loader": ("loader", "LOADER"),
    "memory": ("memory", "MEMORY"),
    "layers": ("layers", "LAYERS"),
    "etl": ("etl", "ETL"),
    "ladder": ("ladder", "LADDER"),
    "train": ("train", "TRAIN"),
    "large-tables": ("train", "LARGE_TABLES"),
    "peers": ("peers", "PEERS"),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; each command has its `--help`."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure ways to do the same work in turns, print tables and write "
        f"benchmarks/results/. Without a command: {', '.join(MODULES)}.",
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    style = argparse.RawDescriptionHelpFormatter
    for name, (file, variable) in MODULES.items():
        module = importlib.import_module(f"benchmarks.{file}")
        benchmark = getattr(module, variable)
        command = commands.add_parser(
            name, help=benchmark.summary, description=module.__doc__, formatter_class=style
        )
        measure.add_options(command, benchmark)
        command.set_defaults(run=measure.run)
    for name in ("gpu-check", "figures", "install"):
        module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
        command = commands.add_parser(
            name, help=module.SUMMARY, description=module.__doc__, formatter_class=style
        )
        module.add_options(command)
        command.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, or all that measure; return 0, or exit with a message."""
    top = parser()
    arguments = top.parse_args(argv)
    for run in [arguments] if arguments.command else [top.parse_args([n]) for n in MODULES]:
        run.run(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
