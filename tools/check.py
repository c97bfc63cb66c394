"""`make check`: lint, types and the tests of what has changed.

A file has changed if it differs from the last commit in common with the main branch, committed or
not. A changed file of `tutorlib/loader/` means the tests in `tests/loader/` or
`tests/test_loader.py` and the doctests of the file itself; `tests/test_tree.py` always runs.
Lessons and what is marked slow are for `make test`.

    python tools/check.py [--base REVISION] [--list]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("tutorlib", "data_prep", "tfrecords", "benchmarks", "notebooks")
LINTERS = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["codespell"])


def changed_files(base: str) -> list[Path]:
    """Return the files that differ from `base`, and those git does not track yet."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"check: git {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.splitlines()

    start = git("merge-base", base, "HEAD")[0]
    names = {*git("diff", "--name-only", start), *git("ls-files", "--others", "--exclude-standard")}
    return sorted(path for name in names if (path := Path(name)).suffix == ".py")


def matching_tests(path: Path) -> set[Path]:
    """Return where the tests of a changed file may be: a folder or file named after its room.

    Example:
        >>> sorted(map(str, matching_tests(Path("tutorlib/loader/plan.py"))))
        ['tests/loader', 'tests/test_loader.py', 'tutorlib/loader/plan.py']
        >>> sorted(map(str, matching_tests(Path("benchmarks/measure.py"))))
        ['benchmarks/measure.py', 'tests/benchmarks', 'tests/test_benchmarks.py']
    """
    if path.parts[0] == "tests":
        return {path} if path.name.startswith("test_") else set()
    if path.parts[0] not in PACKAGES:
        return set()
    room = Path(path.parts[1] if path.parts[0] == "tutorlib" else path.parts[0]).stem
    return {Path("tests", room), Path("tests", f"test_{room}.py"), path}


def main() -> int:
    """Run the linters, then the tests; return 1 if one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base", default="main", help="revision that changes are counted from")
    parser.add_argument("--list", action="store_true", help="say what would be tested, and stop")
    arguments = parser.parse_args()
    tests = {Path("tests/test_tree.py")}
    for path in changed_files(arguments.base):
        tests |= {found for found in matching_tests(path) if (ROOT / found).exists()}
    names = sorted(map(str, tests))
    print("Tests of what has changed:", *names, sep="\n  ")
    if arguments.list:
        return 0
    tools = Path(sys.executable).parent
    failed = [
        linter[0]
        for linter in LINTERS
        if subprocess.run([str(tools / linter[0]), *linter[1:]], cwd=ROOT).returncode
    ]
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "--doctest-modules",
        "-m",
        "not notebook and not slow",
    ]
    pytest += ["-n", "2", "--dist", "loadfile", *names]
    if subprocess.run(pytest, cwd=ROOT).returncode:
        failed.append("pytest")
    print(f"check: {', '.join(failed)} failed" if failed else "check: passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
