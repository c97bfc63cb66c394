"""`python -m data_prep synthetic|movielens|criteo|adult|csv`: create data ready for training.

`csv` makes CSV files of your own ready for training. A command prints the terms of use of its data,
and turns errors that the user can fix into one line on stderr and exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from data_prep import (
    adult,
    criteo,
    csv_files,
    movielens,
    synthetic_adult,
    synthetic_criteo,
    synthetic_movielens,
    synthetic_nhot,
)
from data_prep.output import DataPrepError
from data_prep.terms import TERMS
from tutorlib.memory import thread_count

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; each command has its `--help`."""
    top = argparse.ArgumentParser(
        prog="python -m data_prep",
        description="Create the data of the lessons: synthetic, from local files, or by download. "
        "Make CSV files of your own ready for training. A command leaves its output unchanged if "
        "it exists with the same settings.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    synthetic = commands.add_parser(
        "synthetic", help="Draw data from a seed; needs no network and no licence"
    ).add_subparsers(dest="kind", required=True, metavar="KIND")
    _synthetic_criteo(synthetic)
    _synthetic_movielens(synthetic)
    _synthetic_nhot(synthetic)
    _synthetic_adult(synthetic)
    _movielens(commands)
    _criteo(commands)
    _adult(commands)
    _csv(commands)
    return top


def _command(
    commands: argparse._SubParsersAction,
    name: str,
    text: str,
    output: str | None,
    run: Callable[..., Any],
) -> argparse.ArgumentParser:
    """Add a command: `run(output, **options)` is called with its options as keywords.

    Without a default `output`, the folder must be given.
    """
    command = commands.add_parser(
        name,
        help=text.split(". ")[0],
        description=text,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument(
        "--output", "--to", metavar="FOLDER", help="output folder",
        default=output, required=output is None,
    )  # fmt: skip
    command.add_argument(
        "--overwrite", action="store_true", help="replace an output made with other settings"
    )
    command.set_defaults(run=run)
    return command


def _seed_and_scale(command: argparse.ArgumentParser, largest: str | None = None) -> None:
    """Add --seed, and --scale if `largest`, the ids of the largest column at scale 1, is given."""
    command.add_argument("--seed", type=int, default=0, help="seed of the data, 0 to 2**63 - 1")
    if largest is not None:
        command.add_argument(
            "--scale", type=float, default=0.01,
            help=f"factor on the cardinalities (at 1, the largest column has {largest} ids)",
        )  # fmt: skip


def _synthetic_criteo(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "criteo",
        "Draw click logs in the raw Criteo format, day_0.tsv, day_1.tsv, ... Takes about 240 bytes "
        "per row and 6 s per million rows; memory (80 MB) does not grow with the rows.",
        "data/criteo/raw",
        synthetic_criteo.write_criteo,
    )
    command.add_argument("--rows", type=int, default=1_200_000, help="rows of all days together")
    command.add_argument("--days", type=int, default=7, help="number of files, one per day")
    _seed_and_scale(command, largest="7.8 M")


def _synthetic_movielens(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "movielens",
        "Draw ratings.csv and movies.csv in the ml-25m schema. Takes about 25 bytes and 10 us per "
        "rating.",
        "data/movielens/raw",
        synthetic_movielens.write_movielens,
    )
    command.add_argument("--ratings", type=int, default=1_000_000, help="ratings of all users")
    command.add_argument("--users", type=int, default=6_500, help="number of users")
    command.add_argument("--movies", type=int, default=5_000, help="number of films")
    _seed_and_scale(command)


def _synthetic_nhot(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "nhot",
        "Draw rows with lists of ids, ready for training: train/ and valid/ with 10 numbers, 37 "
        "columns of one id and 3 columns of up to ten. Takes about 112 bytes per row and 3 s per "
        "million rows; memory (130 MB) does not grow with the rows.",
        "data/nhot",
        synthetic_nhot.write_nhot,
    )
    command.add_argument("--rows", type=int, default=400_000, help="rows of both parts together")
    _valid_share(command, "share of the rows for validation")
    _seed_and_scale(command, largest="6.6 M")


def _synthetic_adult(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "adult",
        "Draw adult.data and adult.test in the format of UCI Adult: text labels, ? for missing "
        "values, no header. Takes about 120 bytes and 15 us per row.",
        "data/adult/raw",
        synthetic_adult.write_adult,
    )
    command.add_argument("--rows", type=int, default=48_842, help="rows of both files together")
    command.add_argument(
        "--valid-share", type=float, default=1 / 3, help="share of the rows in adult.test"
    )
    _seed_and_scale(command)


def _valid_share(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--valid-share", type=float, default=0.2, help=text)


def _movielens(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "movielens",
        "Make MovieLens ready for training: train/, valid/, movies.parquet, workflow/. Downloads "
        "an archive from GroupLens (1 MB or 262 MB, with checksum, resumable) unless --from is "
        "given.",
        "data/movielens",
        _run_movielens,
    )
    command.add_argument(
        "--variant", choices=sorted(movielens.SHA256), default="ml-latest-small",
        help="archive to download: 0.1 M or 25 M ratings",
    )  # fmt: skip
    command.add_argument(
        "--from", dest="source", metavar="ZIP_OR_FOLDER", default=None,
        help="local archive, or folder with ratings.csv and movies.csv, instead of a download",
    )  # fmt: skip
    command.add_argument(
        "--split", choices=("random", "time"), default="random",
        help="ratings for validation: drawn at random (seed 42), or the latest",
    )  # fmt: skip
    _valid_share(command, "share of the ratings for validation")


def _run_movielens(
    output: str, source: str | None, variant: str, overwrite: bool, **options: Any
) -> None:
    folder = movielens.fetch(output, variant=variant, source=source, overwrite=overwrite)
    movielens.etl(folder, output, overwrite=overwrite, **options)


def _criteo(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "criteo",
        "Make raw click logs ready for training: parquet/ (the same values, checked), then "
        "train/, valid/ and workflow/. Memory does not grow with the rows.",
        "data/criteo",
        _run_criteo,
    )
    command.add_argument(
        "--from", dest="source", metavar="FOLDER", required=True,
        help="folder with day_0.tsv, day_1.gz, ...",
    )  # fmt: skip
    command.add_argument(
        "--on-bad-lines", choices=("error", "skip"), default="error",
        help="malformed lines: refuse the data, or skip and report them",
    )  # fmt: skip
    command.add_argument("--valid-days", type=int, default=1, help="last days, for validation")
    _valid_share(command, "share of the rows for validation, the last ones, if there is one day")
    command.add_argument(
        "--freq-threshold", type=int, default=15,
        help="values with fewer occurrences in the training days count as unknown",
    )  # fmt: skip
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--workers", type=int, default=None, metavar="N",
        help="threads, each with a day file or some row groups in memory; None: one per core",
    )  # fmt: skip
    where.add_argument(
        "--dask", default=None, metavar="ADDRESS",
        help="scheduler of a Dask cluster (tcp://host:8786) that sees the same folders",
    )  # fmt: skip


def _run_criteo(
    output: str, source: str, dask: str | None, workers: int | None, **options: Any
) -> None:
    thread_count(workers, "--workers")
    with _dask_client(dask) as client:
        criteo.prepare(source, output, workers=workers, client=client, **options)


def _adult(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "adult",
        "Make UCI Adult ready for training: train/ and valid/. Downloads adult.data and adult.test "
        "(6 MB, with checksums, resumable) unless --from is given.",
        "data/adult",
        _run_adult,
    )
    command.add_argument(
        "--from", dest="source", metavar="PATH", default=None,
        help="local zip archive or folder with adult.data and adult.test, instead of a download",
    )  # fmt: skip


def _run_adult(output: str, source: str | None, overwrite: bool) -> None:
    folder = adult.fetch(output, source=source, overwrite=overwrite)
    adult.etl(folder, output, overwrite=overwrite)


def _csv(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "csv",
        "Make CSV files of your own ready for training: Parquet, with types inferred from all "
        "values. Plain or gzip. Memory (300 MB) does not grow with the files.",
        None,
        _run_csv,
    )
    command.add_argument("files", nargs="+", metavar="FILE", help="files with the same columns")
    header = command.add_mutually_exclusive_group()
    header.add_argument(
        "--names", nargs="+", metavar="NAME", help="columns of files that have no header"
    )
    header.add_argument(
        "--no-header", dest="header", action="store_false",
        help="the first line is a row; columns are called f0, f1, ...",
    )  # fmt: skip
    command.add_argument(
        "--types", nargs="+", default=[], metavar="NAME=TYPE", type=_named_type,
        help="types of columns, which are not inferred: zip=string amount=float32",
    )  # fmt: skip
    command.add_argument(
        "--null-values", nargs="+", default=[], metavar="TEXT",
        help="missing values of every column, besides the empty field",
    )  # fmt: skip
    command.add_argument(
        "--strip", default="", metavar="CHARS", help="characters removed at both ends of values"
    )
    command.add_argument(
        "--delimiter", type=lambda text: "\t" if text == "\\t" else text,
        help="character between fields, \\t for a tab; None: the most frequent of , ; | and tab",
    )  # fmt: skip
    command.add_argument("--quote", default='"', help="character around fields; '' for none")
    command.add_argument("--encoding", default="utf-8", help="such as latin-1 or utf-16")
    command.add_argument("--skip-lines", type=int, default=0, help="lines before the header")
    command.add_argument(
        "--on-bad-lines", choices=("error", "skip"), default="error",
        help="malformed lines: refuse the data, or leave them out and keep them in _rejected.csv",
    )  # fmt: skip


def _named_type(text: str) -> tuple[str, str]:
    name, equals, kind = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=TYPE, got {text!r}")
    return name, kind


def _run_csv(output: str, files: list[str], types: list[tuple[str, str]], **options: Any) -> None:
    made = csv_files.csv_to_parquet(files, output, types=dict(types), **options)
    print(csv_files.summary(output, made), flush=True)


@contextlib.contextmanager
def _dask_client(address: str | None) -> Iterator[Any]:
    """Yield a client of the Dask cluster at `address`, or None."""
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
    """Run a command; return 0, 1 after an error (printed on stderr), or 130 if interrupted."""
    options = vars(parser().parse_args(argv))
    command, kind, run = options.pop("command"), options.pop("kind", None), options.pop("run")
    terms = command
    if command == "movielens" and not kind and not options["source"]:
        terms = options["variant"]
    if terms in TERMS:
        print(TERMS[terms].lines(), flush=True)
    output = options.pop("output")
    try:
        run(output, **options)
    except (DataPrepError, ValueError) as error:
        return _fail(str(error))
    except OSError as error:
        if error.errno in _NO_ROOM:
            return _fail(
                f"no space left while writing to {output} ({error.strerror}); no incomplete output "
                "was left. Free some space or choose another --output."
            )
        return _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted; no incomplete output was left. Run the same command again.")
        return 130
    return 0


def _fail(message: str) -> int:
    print("data_prep: " + " ".join(message.split()), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
