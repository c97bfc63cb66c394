"""`python -m benchmarks NAME`: measure on this machine, or draw what was measured.

A benchmark is a module of this folder with `SUMMARY`, `add_arguments(parser)` and `run(arguments)`,
and its name in `MEASURING`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

MEASURING = (
    "loader", "memory", "growth", "layers", "etl", "train", "large-tables", "peers", "scale",
)  # fmt: skip
COMMANDS = (*MEASURING, "gpu-host", "gpu-report", "figures", "targets")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; each command has its `--help`."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure candidates in turn on the same rows, print a table and write "
        f"benchmarks/results/. Without a command: {', '.join(MEASURING)}.",
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, or all that measure; return 0, or exit with a message."""
    top = parser()
    arguments = top.parse_args(argv)
    runs = [arguments] if arguments.command else [top.parse_args([n]) for n in MEASURING]
    for run in runs:
        run.run(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
