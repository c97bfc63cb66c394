"""Write the table of docs/performance.md: what each benchmark should reach, and what it measured.

The table stands between two comments, and the text around it stays as it is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import in_words, newest
from benchmarks.machine import ROOT, describe_hardware
from benchmarks.measure import RESULTS
from tutorlib.storage import new_file

SUMMARY = "write the table of docs/performance.md from benchmarks/results/"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- measured -->\n", "<!-- end of what was measured -->"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to a parser."""
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--page", type=Path, default=PAGE, help="page that has the two comments")


def run(arguments: argparse.Namespace) -> None:
    """Replace the table of the page."""
    page = arguments.page.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"benchmarks: {arguments.page} has no lines {BEGIN.strip()} and {END}")
    with new_file(arguments.page) as partial:
        partial.write_text(before + BEGIN + tables(arguments.results) + END + after, "utf-8")
    print(f"written: {arguments.page}")


def tables(results: Path = RESULTS) -> str:
    """Return a table in Markdown for the newest results of each benchmark that has bounds."""
    named = {json.loads(path.read_text("utf-8"))["benchmark"] for path in results.glob("*.json")}
    newest_of = {name: newest(name, results, "date") for name in sorted(named)}
    return "\n".join(_table(result) for result in newest_of.values() if result.get("claims"))


def _table(result: Mapping[str, Any]) -> str:
    date, machine = result["date"][:10], describe_hardware(result["hardware"])
    lines = [
        f"`{result['command']}`, {date}, {machine}:",
        "",
        "| measured | compared with | target | median (all turns) | reached |",
        "| --- | --- | --- | --- | --- |",
        *map(_row, result["claims"]),
    ]
    return "\n".join(lines) + "\n"


def _row(claim: Mapping[str, Any]) -> str:
    def text(value: float) -> str:
        return f"{value:,.3g}" if claim["other"] else f"{in_words(value)} rows/s"

    least, most = text(min(claim["values"])), text(max(claim["values"]))
    return " | ".join(
        [
            f"| {claim['name']}",
            claim["other"] or "",
            f"{'at least' if claim['of'] == 'rows_per_s' else 'at most'} {text(claim['bound'])}",
            f"{text(claim['median'])} ({least} to {most})",
            f"{'yes' if claim['holds'] else 'no'} |",
        ]
    )
