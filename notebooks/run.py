#!/usr/bin/env python
"""Run lessons without supervision, in order, and print a table of what they measured.

A lesson is a notebook with two tagged cells:

- `parameters`: one `NAME = value  # meaning, unit` per line, as papermill expects;
- `headline`: the last line that it prints becomes the lesson's row in the table.

Each lesson runs in the folder of the notebooks, with the Python that runs this script. The executed
notebook, its HTML and a log of its processes are saved, even if a cell fails.

Source: papermill, https://papermill.readthedocs.io/en/latest/usage-execute.html
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import nbformat
import papermill
import yaml
from jupyter_client import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from nbconvert import HTMLExporter
from papermill.exceptions import PapermillExecutionError, strip_color

from lesson import NOT_BORNE_OUT

HERE = Path(__file__).resolve().parent
RECORDED = "recorded-on"  # id of the cell in which pages.py names the machine of a page's outputs
TRACEBACK_LINES = 12  # lines of a traceback, or of a dead kernel's log, that are printed


class UsageError(ValueError):
    """A request that cannot be carried out. No lesson has run."""


@dataclass(frozen=True)
class Result:
    """The result of one lesson.

    Args:
        lesson: name of the notebook, without its extension.
        passed: whether all its cells ran without an error.
        seconds: run time; None if it did not run.
        outcome: its headline, or the reason why it has none.
        not_borne_out: claims about time that the run did not bear out.
    """

    lesson: str
    passed: bool
    seconds: float | None
    outcome: str
    not_borne_out: tuple[str, ...] = ()


# ---- which lessons, with which parameters -------------------------------------------------------


def find_lessons(folder: Path) -> list[Path]:
    """Return the lessons of a folder, `NN_name.ipynb`, sorted by number."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def select_lessons(lessons: Sequence[Path], wanted: Iterable[str]) -> list[Path]:
    """Return the wanted lessons in order; all lessons if `wanted` is empty.

    Args:
        lessons: all lessons, from `find_lessons`.
        wanted: numbers or names: `4`, `04`, `04_gpu_accelerated` or `gpu_accelerated`, with or
            without `.ipynb`.

    Raises:
        UsageError: if a wanted lesson does not exist.

    Example:
        >>> lessons = [Path("01_etl.ipynb"), Path("04_gpu_accelerated.ipynb")]
        >>> [path.stem for path in select_lessons(lessons, ["4"])]
        ['04_gpu_accelerated']
    """
    chosen = set()
    for name in wanted:
        key = Path(name).name.removesuffix(".ipynb").zfill(2)
        known = [path for path in lessons if key in (path.stem[:2], path.stem, path.stem[3:])]
        if not known:
            names = ", ".join(path.stem for path in lessons) or "none"
            raise UsageError(f"no lesson {name!r}. Pass a number or a name; there are: {names}.")
        chosen.update(known)
    return [path for path in lessons if path in chosen or not chosen]


def load_profile(path: Path) -> dict[str, dict[str, Any]]:
    """Return a profile, {lesson: {NAME: value}}, from its YAML file.

    Raises:
        UsageError: if the file is missing.
    """
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.yaml"))) or "none"
        raise UsageError(f"no profile {path.stem!r} in {path.parent}; there are: {known}.")
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def parse_override(text: str) -> tuple[str, Any]:
    """Return (NAME, value) of `NAME=VALUE`; the value is parsed as YAML, as papermill does.

    Raises:
        argparse.ArgumentTypeError: if there is no `=`, or no identifier before it.

    Example:
        >>> parse_override("ROWS=1_000"), parse_override("DATA=../data")
        (('ROWS', 1000), ('DATA', '../data'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, yaml.safe_load(value)


def plan_parameters(
    lessons: Sequence[Path],
    known_lessons: Sequence[Path],
    profile: Mapping[str, Mapping[str, Any]],
    overrides: Mapping[str, Any],
) -> dict[Path, dict[str, Any]]:
    """Return the parameters of each lesson to run, {lesson: {NAME: value}}.

    Args:
        lessons: lessons to run.
        known_lessons: all lessons; a profile may name only these.
        profile: {lesson: {NAME: value}}.
        overrides: {NAME: value} for every lesson to run that declares NAME; takes precedence over
            the profile.

    Raises:
        UsageError: if a name is not declared by a lesson. The message lists all such names.
    """
    declared = {path.stem: papermill.inspect_notebook(path) for path in known_lessons}
    names = sorted({name for path in lessons for name in declared[path.stem]})
    known = f"there are: {', '.join(names)}"
    problems = [f"-p {name}: no such parameter; {known}" for name in set(overrides) - set(names)]
    for lesson, values in profile.items():
        for name in set(values) - set(declared.get(lesson, {})):
            names = sorted(declared.get(lesson, ())) or ["no such lesson"]
            problems.append(f"{lesson}: no parameter {name!r}; there are: {', '.join(names)}")
    if problems:
        raise UsageError("no lesson was run:\n  " + "\n  ".join(sorted(problems)))
    return {
        path: {**profile.get(path.stem, {})}
        | {name: value for name, value in overrides.items() if name in declared[path.stem]}
        for path in lessons
    }


# ---- one lesson ---------------------------------------------------------------------------------


class LoggedKernel(AsyncKernelManager):
    """A kernel whose processes print to the lesson's log; the notebook shows it as before.

    ipykernel copies what libraries and child processes write to file descriptors 1 and 2 to the
    notebook, and also to where it got them from: without this, to the terminal.
    """

    async def start_kernel(self, **options: Any) -> None:
        """Start the kernel."""
        with open(os.environ["LESSON_LOG"], "ab") as log:
            await super().start_kernel(stdout=log, stderr=log, **options)


def run_lesson(path: Path, parameters: Mapping[str, Any], output: Path, stream: TextIO) -> Result:
    """Run one lesson; save the executed notebook and its HTML, even if a cell fails.

    Args:
        path: the notebook; it runs in its own folder.
        parameters: {NAME: value}, checked by `plan_parameters`.
        output: folder for the lesson's `.ipynb`, `.html` and `.log`; created if missing.
        stream: where progress, a line for each section, and the report of a failure are printed.
    """
    output.mkdir(parents=True, exist_ok=True)
    executed = output.resolve() / path.name
    log = executed.with_suffix(".log")
    log.unlink(missing_ok=True)
    os.environ["LESSON_LOG"] = str(log)
    # papermill inserts a cell with the given parameters
    cells = len(nbformat.read(path, as_version=4).cells) + bool(parameters)
    started, index, section, failure = time.monotonic(), 0, "", None

    def show_section(cell: Any, cell_index: int) -> None:
        nonlocal index, section
        index = cell_index
        headings = re.findall(r"(?m)^#+ (.+)$", cell.source) if cell.cell_type == "markdown" else []
        if headings and headings[-1] != section:
            section, place = headings[-1], f"cell {index + 1:2}/{cells}"
            elapsed_s = time.monotonic() - started
            print(f"  [{place}] {elapsed_s:6.1f} s  {section}", file=stream, flush=True)

    try:
        papermill.execute_notebook(
            path.resolve(),
            executed,
            parameters=dict(parameters),
            kernel_name="python3",  # which ipykernel installs for the running Python
            cwd=path.resolve().parent,
            progress_bar=False,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],  # hides a warning about local TCP
            kernel_manager_class=LoggedKernel,
            on_cell_start=show_section,
        )
        # papermill regards `sys.exit()` as success
        for number, cell in enumerate(nbformat.read(executed, as_version=4).cells, 1):
            if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None:
                failure = f"cell {number} was never reached: an earlier cell ended the lesson"
                break
    except PapermillExecutionError as error:
        frames = strip_color("\n".join(error.traceback)).splitlines()[-TRACEBACK_LINES:]
        place = f"cell {error.cell_index + 1}, In [{error.exec_count}]: "
        failure = "\n".join([f"{place}{error.ename}: {error.evalue}", *frames])
    except DeadKernelError:
        last = log.read_text(errors="replace").splitlines()[-TRACEBACK_LINES:]
        source = nbformat.read(executed, as_version=4).cells[index].source
        died = "the kernel died. The usual reason is that memory ran out"
        failure = "\n".join([f"cell {index + 1}: {died}", source, f"End of {log}:", *last])
    seconds = time.monotonic() - started
    _write_html(executed, path.resolve().parent)
    if failure is None:
        headline = find_headline(executed) or "-"
        return Result(path.stem, True, seconds, headline, tuple(find_not_borne_out(executed)))
    place = f"{path.stem}, section {section!r}"
    print(f"{place}: {failure}\nExecuted notebook: {executed}", file=stream, flush=True)
    return Result(path.stem, False, seconds, f"FAILED: {failure.splitlines()[0]}")


def _write_html(executed: Path, folder: Path) -> None:
    """Write the HTML of an executed lesson, which does not name the machine of another run.

    Its pictures are part of it: links from the lesson's folder do not resolve elsewhere.
    """
    notebook = nbformat.read(executed, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id != RECORDED]
    nbformat.write(notebook, executed)
    resources = {"metadata": {"name": executed.stem, "path": str(folder)}}
    page, _ = HTMLExporter(embed_images=True).from_notebook_node(notebook, resources)
    executed.with_suffix(".html").write_text(page, encoding="utf-8")


def find_headline(executed: Path) -> str | None:
    """Return the last line that the cell tagged `headline` printed; None if there is none."""
    cells = nbformat.read(executed, as_version=4).cells
    tagged = [cell for cell in cells if "headline" in cell.metadata.get("tags", [])]
    return next((line for cell in tagged for line in reversed(_printed(cell))), None)


def find_not_borne_out(executed: Path) -> list[str]:
    """Return the claims about time (`lesson.check_measured`) that a run did not bear out."""
    cells = nbformat.read(executed, as_version=4).cells
    lines = [line for cell in cells for line in _printed(cell) if line.startswith(NOT_BORNE_OUT)]
    return [line.removeprefix(NOT_BORNE_OUT).strip() for line in lines]


def _printed(cell: Any) -> list[str]:
    """Return the lines that a cell printed or returned, without stderr and empty ones."""
    lines: list[str] = []
    for output in cell.get("outputs", []):
        stdout = output.get("text", "") if output.get("name") == "stdout" else ""
        lines += (stdout + output.get("data", {}).get("text/plain", "")).splitlines()
    return [line.strip() for line in lines if line.strip()]


# ---- all lessons --------------------------------------------------------------------------------


def format_table(results: Sequence[Result]) -> str:
    """Return the results as a table: lesson, seconds, headline; then what was not borne out.

    Example:
        >>> print(format_table([Result("01_etl", True, 12.34, "9 M rows/s")]))
        lesson  seconds  measured
        01_etl     12.3  9 M rows/s
    """
    width = max([len("lesson"), *(len(result.lesson) for result in results)])
    lines = [f"{'lesson':{width}}  seconds  measured"]
    for result in results:
        seconds = "-" if result.seconds is None else f"{result.seconds:.1f}"
        lines.append(f"{result.lesson:{width}}  {seconds:>7}  {result.outcome}")
    claims = [f"  {each.lesson}: {claim}" for each in results for claim in each.not_borne_out]
    if claims:
        lines += ["", "Not borne out by this run (a busy machine may be the reason):", *claims]
    return "\n".join(lines)


def run_lessons(
    plan: Mapping[Path, Mapping[str, Any]], output: Path, stream: TextIO
) -> list[Result]:
    """Run lessons in order until one fails, and print the table; return all results."""
    results: list[Result] = []
    try:
        for number, (path, parameters) in enumerate(plan.items(), start=1):
            if results and not results[-1].passed:
                results.append(Result(path.stem, False, None, "not run"))
                continue
            given = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
            print(f"[{number}/{len(plan)}] {path.stem}  {given}".rstrip(), file=stream, flush=True)
            results.append(run_lesson(path, parameters, output, stream))
    finally:  # print the table also after Ctrl-C
        if results:
            print(f"\n{format_table(results)}", file=stream, flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if all lessons passed, 1 if one failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("lessons", nargs="*", metavar="lesson", help="number or name [all lessons]")
    add("--profile", default="small", help="use the sizes in params/<profile>.yaml [small]")
    add(
        "-p", "--parameter", action="append", default=[], type=parse_override, metavar="NAME=VALUE",
        help="set a parameter in every lesson that has it, whatever the profile says; repeatable",
    )  # fmt: skip
    add("--folder", type=Path, default=HERE, help="folder of the notebooks")
    output = HERE.parent / "build" / "notebooks"
    add("--output", type=Path, default=output, help="folder for what ran [build/notebooks]")
    options = parser.parse_args(arguments)
    try:
        known = find_lessons(options.folder)
        lessons = select_lessons(known, options.lessons)
        profile = load_profile(options.folder / "params" / f"{options.profile}.yaml")
        plan = plan_parameters(lessons, known, profile, dict(options.parameter))
    except UsageError as error:
        parser.error(str(error))
    prepare_environment()
    try:
        results = run_lessons(plan, options.output, sys.stdout)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(f"\nExecuted notebooks and HTML: {options.output}")
    return 0 if all(result.passed for result in results) else 1


def prepare_environment() -> None:
    """Let kernels find programs such as tensorboard; TensorFlow logs only what ends it."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # less: that there is no GPU, that oneDNN is on


if __name__ == "__main__":
    sys.exit(main())
