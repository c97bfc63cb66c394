"""`python -m data_prep synthetic|movielens|criteo`: make what the lessons read.

Reads the arguments, shows the terms, calls the functions, and turns what a user can mend into one
line on stderr and exit code 1. Does not belong here: anything that makes data.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from data_prep import criteo, movielens, synthetic_criteo, synthetic_movielens, synthetic_nhot
from data_prep.output import DataPrepError
from data_prep.terms import TERMS
from tutorlib.memory import thread_count

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; each command has its `--help`."""
    top = argparse.ArgumentParser(
        prog="python -m data_prep",
        description="Makes the data of the lessons: from nothing, from local files, or by download."
        " A command that finds its output finished with the same settings leaves it alone.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    synthetic = commands.add_parser(
        "synthetic", help="draw data from a seed: no network, no licence"
    ).add_subparsers(dest="kind", required=True, metavar="KIND")
    _synthetic_criteo(synthetic)
    _synthetic_movielens(synthetic)
    _synthetic_nhot(synthetic)
    _movielens(commands)
    _criteo(commands)
    return top


def _command(commands: argparse._SubParsersAction, name: str, text: str, output: str, terms: str):
    command = commands.add_parser(
        name,
        help=text.split(". ")[0],
        description=text,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("--output", metavar="FOLDER", default=output, help="where it goes")
    command.add_argument(
        "--overwrite", action="store_true", help="make it again, replacing what data_prep made"
    )
    command.set_defaults(terms=terms)
    return command


def _synthetic_criteo(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "criteo",
        "Draw click logs in the raw Criteo format, day_0.tsv, day_1.tsv, ... About 240 bytes a "
        "row and 6 s per million rows; memory (80 MB) does not grow with the rows.",
        "data/criteo/raw",
        "synthetic",
    )
    command.add_argument("--rows", type=int, default=1_200_000, help="rows over all days")
    command.add_argument("--days", type=int, default=7, help="files, one a day")
    _draw_options(command, largest="7.8 M")
    command.set_defaults(
        run=lambda a: synthetic_criteo.write_criteo(
            a.output, rows=a.rows, days=a.days, seed=a.seed, scale=a.scale, overwrite=a.overwrite
        )
    )


def _draw_options(command: argparse.ArgumentParser, largest: str | None = None) -> None:
    """Add what says which rows are drawn; `largest`: ids of the column that has most."""
    command.add_argument("--seed", type=int, default=0, help="0 to 2**63 - 1")
    if largest is not None:
        command.add_argument(
            "--scale", type=float, default=0.01,
            help=f"factor on the cardinalities ({largest} ids in the largest column)",
        )  # fmt: skip


def _synthetic_movielens(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "movielens",
        "Draw ratings.csv and movies.csv in the ml-25m schema. About 25 bytes and 10 us a rating.",
        "data/movielens/raw",
        "synthetic",
    )
    command.add_argument("--ratings", type=int, default=1_000_000, help="ratings over all users")
    command.add_argument("--users", type=int, default=6_500, help="users")
    command.add_argument("--movies", type=int, default=5_000, help="films")
    _draw_options(command)
    command.set_defaults(
        run=lambda a: synthetic_movielens.write_movielens(
            a.output, ratings=a.ratings, users=a.users, movies=a.movies, seed=a.seed,
            overwrite=a.overwrite,
        )
    )  # fmt: skip


def _synthetic_nhot(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "nhot",
        "Draw rows with lists of ids, ready for training: train/ and valid/, 10 numbers, 37 columns"
        " of one id, 3 of up to ten. About 112 bytes a row and 3 s per million rows; memory "
        "(130 MB) does not grow with the rows.",
        "data/nhot",
        "synthetic",
    )
    command.add_argument("--rows", type=int, default=400_000, help="rows of both parts")
    command.add_argument(
        "--valid-share", type=float, default=0.2, help="share of the rows that validate"
    )
    _draw_options(command, largest="6.6 M")
    command.set_defaults(
        run=lambda a: synthetic_nhot.write_nhot(
            a.output, rows=a.rows, valid_share=a.valid_share, seed=a.seed, scale=a.scale,
            overwrite=a.overwrite,
        )
    )  # fmt: skip


def _movielens(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "movielens",
        "Make MovieLens ready for training: train/, valid/, movies.parquet, workflow/. Downloads "
        "an archive from GroupLens (1 MB or 262 MB, checked, resumable) unless --from is given.",
        "data/movielens",
        "",
    )
    command.add_argument(
        "--variant", choices=sorted(movielens.SHA256), default="ml-latest-small",
        help="archive to download: 0.1 M or 25 M ratings",
    )  # fmt: skip
    command.add_argument(
        "--from", dest="source", metavar="ZIP_OR_FOLDER", default=None,
        help="local archive, or folder with ratings.csv and movies.csv; nothing is downloaded",
    )  # fmt: skip
    command.add_argument(
        "--split", choices=("random", "time"), default="random",
        help="which ratings validate: drawn (seed 42), or the latest",
    )  # fmt: skip
    command.add_argument(
        "--valid-share", type=float, default=0.2, help="share of ratings that validate"
    )
    command.set_defaults(run=_run_movielens)


def _run_movielens(a: argparse.Namespace) -> None:
    source = movielens.fetch(a.output, variant=a.variant, source=a.source, overwrite=a.overwrite)
    movielens.etl(source, a.output, split=a.split, valid_share=a.valid_share, overwrite=a.overwrite)


def _criteo(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "criteo",
        "Make raw click logs ready for training: parquet/ (the same values, checked), then "
        "train/, valid/ and workflow/. Streams; memory does not grow with the rows.",
        "data/criteo",
        "criteo",
    )
    command.add_argument(
        "--from", dest="source", metavar="FOLDER", required=True,
        help="folder with day_0.tsv, day_1.gz, ...",
    )  # fmt: skip
    command.add_argument(
        "--on-bad-lines", choices=("error", "skip"), default="error",
        help="malformed lines: refuse the data, or keep the lines out and report them",
    )  # fmt: skip
    command.add_argument("--valid-days", type=int, default=1, help="last days, which validate")
    command.add_argument(
        "--valid-share", type=float, default=0.2,
        help="share of the rows, the last ones, that validate if there is one day only",
    )  # fmt: skip
    command.add_argument(
        "--freq-threshold", type=int, default=15,
        help="a categorical value seen fewer times in training counts as unknown",
    )  # fmt: skip
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--workers", type=int, default=None, metavar="N",
        help="threads, each with a day file or a few parts in memory; all cores if left out",
    )  # fmt: skip
    where.add_argument(
        "--dask", default=None, metavar="ADDRESS",
        help="scheduler of a Dask cluster (tcp://host:8786) that sees the same folders",
    )  # fmt: skip
    command.set_defaults(run=_run_criteo)


def _run_criteo(a: argparse.Namespace) -> None:
    thread_count(a.workers, "--workers")
    with _dask_client(a.dask) as client:
        criteo.prepare(
            a.source, a.output, on_bad_lines=a.on_bad_lines, overwrite=a.overwrite,
            workers=a.workers, client=client, valid_days=a.valid_days,
            valid_share=a.valid_share, freq_threshold=a.freq_threshold,
        )  # fmt: skip


@contextlib.contextmanager
def _dask_client(address: str | None) -> Iterator[Any]:
    """Give the client of a running Dask cluster, or None."""
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise DataPrepError("--dask needs Dask: pip install 'dask[distributed]'") from error
    try:
        client = Client(address, timeout=5)
    except (OSError, ValueError) as error:
        raise DataPrepError(f"--dask {address}: no scheduler answers there ({error})") from error
    with client:
        yield client


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 (said why on stderr), 130 (interrupted)."""
    arguments = parser().parse_args(argv)
    terms = arguments.terms or ("movielens" if arguments.source else arguments.variant)
    print(TERMS[terms].lines(), flush=True)
    try:
        arguments.run(arguments)
    except (DataPrepError, ValueError) as error:
        return _fail(str(error))
    except OSError as error:
        if error.errno in _NO_ROOM:
            return _fail(
                f"no room left while writing to {arguments.output} ({error.strerror}); nothing "
                "that looks finished was left. Free some space or choose another --output."
            )
        return _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted; nothing that looks finished was left. Run the same command again.")
        return 130
    return 0


def _fail(message: str) -> int:
    print("data_prep: " + " ".join(message.split()), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
