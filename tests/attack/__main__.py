"""`python -m tests.attack`: damage what is read from outside, and report what is not refused well.

Each case has a number, and its seed decides everything: the same options give the same cases. The
files of each new kind of failure are kept, with the traceback, and `--again FOLDER` reads them
again. Linux only, because of the limit on memory.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

# Address space is then little more than memory, and this process has one thread to fork from.
ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OPENBLAS_NUM_THREADS": "1",
}
ROOT = Path(__file__).resolve().parents[2]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from tests.attack.targets import TARGETS

    top = argparse.ArgumentParser(
        prog="python -m tests.attack",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    top.add_argument("--minutes", type=float, default=1.0, help="time for all cases")
    top.add_argument("--cases", type=int, help="cases of each target instead of a time")
    top.add_argument("--seed", type=int, default=0, help="another seed makes other cases")
    top.add_argument("--only", nargs="+", choices=tuple(TARGETS), default=list(TARGETS))
    top.add_argument("--memory", type=int, default=512, help="MiB that a case may touch")
    top.add_argument("--seconds", type=float, default=20, help="processor time of a case")
    top.add_argument("--out", type=Path, default=ROOT / "build" / "attack", help="for failures")
    top.add_argument("--again", type=Path, metavar="FOLDER", help="read a kept failure again")
    return top


def main(argv: Sequence[str]) -> int:
    """Attack; return 1 if a case failed."""
    arguments = parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        if arguments.again:
            return again(arguments, Path(folder))
        return attack(arguments, Path(folder))


def attack(arguments: argparse.Namespace, folder: Path) -> int:
    """Run case 0 of each target, then case 1, ...; report the failures."""
    from tests.attack.targets import WITH_TENSORFLOW, damaged_copy

    if set(arguments.only) & {*WITH_TENSORFLOW}:
        importlib.import_module("tests.attack.training")  # once, in place of in every process
    pristine = {name: make(name, folder / name) for name in arguments.only}
    counts: Counter[tuple[str, str]] = Counter()
    failures: Counter[str] = Counter()
    for name, number in cases(arguments):
        seed, case = f"{arguments.seed}/{name}/{number}", folder / f"{name}-{number}"
        damage = damaged_copy(name, pristine[name], case, Random(seed))
        outcome, wrong = judged(name, case, arguments)
        shutil.rmtree(case)
        counts[name, "failed" if wrong else outcome["ended"]] += 1
        if not wrong:
            continue
        failure = f"{name}: {wrong} in {outcome['where']}"
        failures[failure] += 1
        if failures[failure] == 1:
            kept = arguments.out / seed.replace("/", "-")
            shutil.rmtree(kept, ignore_errors=True)
            damaged_copy(name, pristine[name], kept / "files", Random(seed))
            report = {"target": name, "seed": seed, "damage": damage, "fault": wrong, **outcome}
            (kept / "case.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
            print(f"{failure}\n  {damage[:300]}\n  kept: {kept}", flush=True)
    for name in arguments.only:
        works, refused, failed = (counts[name, kind] for kind in ("works", "raised", "failed"))
        print(f"{name:<11}{works:>7,} worked{refused:>7,} refused{failed:>7,} failed")
    for failure, count in failures.most_common():
        print(f"FAILED {count:,} times: {failure}")
    return int(bool(failures))


def make(name: str, folder: Path) -> Path:
    """Make the undamaged files of a target, which must be readable; return their folder."""
    from tests.attack.process import run_limited
    from tests.attack.targets import TARGETS

    for part, steps in (("tried", ("make", "read")), ("pristine", ("make",))):
        (folder / part).mkdir(parents=True)
        for step in steps:
            work = functools.partial(getattr(TARGETS[name], step), folder / part)
            made = run_limited(work, 120, 1 << 33)
            if made["ended"] != "works":
                raise SystemExit(f"tests.attack: cannot {step} the undamaged {name}: {made}")
    return folder / "pristine"


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield (target, number of the case) until there were enough or the time is over."""
    ends = time.monotonic() + 60 * arguments.minutes
    for number in itertools.count():
        for name in arguments.only:
            over = time.monotonic() > ends if arguments.cases is None else number >= arguments.cases
            if over:
                return
            yield name, number


def judged(name: str, case: Path, arguments: argparse.Namespace) -> tuple[dict, str]:
    """Return (outcome, what is wrong with it) of reading a damaged copy."""
    from tests.attack.process import fault, run_limited
    from tests.attack.targets import ALLOWED, TARGETS

    names = sorted({path.name for path in [case, *case.rglob("*")]})  # before it writes others
    names += TARGETS[name].named
    read = functools.partial(TARGETS[name].read, case)
    outcome = run_limited(read, arguments.seconds, arguments.memory << 20)
    return outcome, fault(outcome, ALLOWED, names)


def again(arguments: argparse.Namespace, folder: Path) -> int:
    """Read a kept failure again; print its outcome."""
    report = json.loads((arguments.again / "case.json").read_text())
    case = folder / "case"
    shutil.copytree(arguments.again / "files", case)
    outcome, wrong = judged(report["target"], case, arguments)
    print(outcome.get("traceback", ""), f"{outcome['ended']}: {wrong or 'as it should'}", sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    if not sys.platform.startswith("linux"):
        raise SystemExit("tests.attack: the limit on memory needs Linux")
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        command = [sys.executable, "-m", "tests.attack", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | ENVIRONMENT)
    sys.exit(main(sys.argv[1:]))
