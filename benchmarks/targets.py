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
from benchmarks.growth import BOUNDED, EXPONENT, START_S
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
    return "\n".join(_table(result) for result in newest_of.values() if _rows(result))


def _table(result: Mapping[str, Any]) -> str:
    date, machine = result["date"][:10], describe_hardware(result["hardware"])
    lines = [
        f"`{result['command']}`, {date}, {machine}:",
        "",
        "| measured | compared with | target | median (all turns) | reached |",
        "| --- | --- | --- | --- | --- |",
        *_rows(result),
    ]
    return "\n".join(lines) + "\n"


def _rows(result: Mapping[str, Any]) -> list[str]:
    rows = [_row(claim) for claim in result["claims"]]
    for section, part in result.get("also", {}).items():
        rows += [_row({**claim, "name": f"{section}: {claim['name']}"}) for claim in part["claims"]]
    if result["benchmark"] == "growth":
        rows += map(_growth_row, result["growth"])
        rows += map(_start_row, result["start_up"])
    return rows


def _growth_row(bound: Mapping[str, Any]) -> str:
    smaller, larger = bound["sizes"]
    series = bound["series"].replace("_", " ")
    return (
        f"| {BOUNDED[bound['cost']]}, {larger:,} {series} | {smaller:,} {series} | "
        f"growth with at most size ** {EXPONENT} | size ** {bound['exponent']:.2f} | "
        f"{_reached(bound)}"
    )


def _start_row(bound: Mapping[str, Any]) -> str:
    return (
        f"| seconds to the first batch, {bound['name']} |  | at most {START_S:.0f} s | "
        f"{bound['seconds']:.2f} s | {_reached(bound)}"
    )


def _reached(bound: Mapping[str, Any]) -> str:
    return "yes |" if bound["holds"] else "no |"


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
            _reached(claim),
        ]
    )
