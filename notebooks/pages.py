#!/usr/bin/env python
"""Renew the outputs that the pages of the lessons show before anything runs.

    make pages LESSONS=...                      # run with the small profile, renew the pages
    python notebooks/pages.py --executed 04     # take the outputs of the last run instead
    python notebooks/pages.py --strip FILE ...  # remove all other outputs (pre-commit does this)

A page keeps the outputs of two kinds of cells: `keep_output`, the same on every machine, and
`recorded_output`, the outputs of one run on the machine and day that the page names; `headline` is
of the second kind. The solutions run after their lesson, in its kernel, and keep all their outputs,
of the second kind too. What was written to stderr stands on no page.
"""

import argparse
import datetime
import sys
from pathlib import Path

import nbformat
import run
from nbformat.v4 import new_markdown_cell

KEPT = ("keep_output", "recorded_output", "headline")


def has_tag(cell, *tags):
    """Return whether a cell has one of the tags."""
    return not set(tags).isdisjoint(cell.metadata.get("tags", []))


def is_solutions(page):
    """Return whether a page solves the exercises of a lesson, which its first code cell runs."""
    return any(has_tag(cell, "lesson") for cell in page.cells)


def strip_page(page):
    """Remove what a page does not keep: other outputs, stderr, what an editor adds.

    Code cells are counted from 1, because nbval skips cells without a count. The version of Python
    is "3", as the kernels of `make lab` say it, so that JupyterLab finds nothing to save.
    """
    count, kept = 0, is_solutions(page)
    for cell in page.cells:
        cell.metadata = {key: cell.metadata[key] for key in cell.metadata if key == "tags"}
        if cell.cell_type != "code":
            continue
        count += bool(cell.source.strip())
        cell.execution_count = count if cell.source.strip() else None
        outputs = cell.outputs if kept or has_tag(cell, *KEPT) else []
        cell.outputs = [output for output in outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            output.pop("transient", None)
            if "execution_count" in output:
                output.execution_count = cell.execution_count
    language = {**page.metadata.get("language_info", {"name": "python"}), "version": "3"}
    page.metadata = {"kernelspec": page.metadata["kernelspec"], "language_info": language}


def take_outputs(page, executed, recorded_on):
    """Give the cells of a page the outputs that they have in an executed copy.

    Raises:
        ValueError: if the copy was made of another version of the page.
    """
    ran = {cell.id: cell for cell in executed.cells if not has_tag(cell, "injected-parameters")}
    page.cells = [cell for cell in page.cells if cell.id != run.RECORDED]
    for cell in page.cells:
        if cell.cell_type == "code" and not has_tag(cell, "lesson"):
            if cell.id not in ran or ran[cell.id].source != cell.source:
                raise ValueError(f"the run is not one of this page: another cell {cell.id}")
            cell.outputs = ran[cell.id].outputs
    varying = [cell for cell in page.cells if has_tag(cell, "recorded_output", "headline")]
    if is_solutions(page) or any(cell.outputs for cell in varying):
        line = f"*Recorded on {recorded_on}: what this page shows until you run it.*"
        page.cells.insert(1, new_markdown_cell(line, id=run.RECORDED))


def machine_and_date(executed):
    """Return this machine in words, with its GPU or "no GPU", and the date of a run."""
    from benchmarks.measure import describe_hardware, hardware

    machine, date = hardware(), datetime.date.fromtimestamp(executed.stat().st_mtime)
    return f"{describe_hardware(machine)}{'' if machine['gpus'] else ', no GPU'}, {date}"


def renew(path, executed):
    """Write into a page, and into its solutions if they ran with it, the outputs of the run.

    Claims about time that the run did not bear out are part of the page, as such: a page shows the
    first run on a quiet machine, not the first run in which all claims hold.

    Raises:
        ValueError: if the copy was made of another version of the page.
    """
    ran, recorded_on = nbformat.read(executed, as_version=4), machine_and_date(executed)
    for each in filter(Path.is_file, (path, run.solutions_of(path))):
        page = nbformat.read(each, as_version=4)
        if each == path or page.cells[-1].id in {cell.id for cell in ran.cells}:
            take_outputs(page, ran, recorded_on)
            strip_page(page)
            nbformat.write(page, each)


def main(arguments=None):
    """Run the command; return 1 if a lesson failed, or its page has changed since it ran."""
    parser = argparse.ArgumentParser(prog="pages.py", description=__doc__.splitlines()[0])
    parser.add_argument("lessons", nargs="*", metavar="lesson", help="number or name [all lessons]")
    parser.add_argument("--executed", action="store_true", help="use the last run, do not run")
    parser.add_argument("--strip", action="store_true", help="strip the given files, do not run")
    options = parser.parse_args(arguments)
    if options.strip:
        for path in map(Path, options.lessons):
            page = nbformat.read(path, as_version=4)
            strip_page(page)
            nbformat.write(page, path)
        return 0

    output = run.HERE.parent / "build" / "notebooks"
    arguments = ["--solutions", "--output", str(output), *options.lessons]
    if not options.executed and run.main(arguments):
        return 1
    failed = 0
    for path in run.select_lessons(run.find_lessons(run.HERE), options.lessons):
        try:
            renew(path, output / path.name)
            print(f"renewed: {path.name}")
        except ValueError as error:
            print(f"not renewed: {path.name}: {error}")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
