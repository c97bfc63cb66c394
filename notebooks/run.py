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
import ast
import base64
import difflib
import mimetypes
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
import pyarrow.parquet as pq
import yaml
from jupyter_client import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from nbconvert import HTMLExporter
from papermill.exceptions import PapermillExecutionError, strip_color
from tqdm import tqdm

from lesson import NOT_BORNE_OUT

HERE = Path(__file__).resolve().parent
KERNEL = "python3"  # the kernel that ipykernel installs for the running Python
RECORDED = "recorded-on"  # id of the cell in which pages.py names the machine of a page's outputs
DEFAULT_ROWS = 1_028_572  # rows to train on of the Criteo data that `make data` makes
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
        stem = Path(name).name.removesuffix(".ipynb")
        key = stem.zfill(2)
        found = [path for path in lessons if key in (path.stem[:2], path.stem, path.stem[3:])]
        if not found:
            names = ", ".join(path.stem for path in lessons) or "none"
            raise UsageError(f"no lesson {name!r}. Pass a number or a name; there are: {names}.")
        chosen.update(found)
    return [path for path in lessons if path in chosen] if chosen else list(lessons)


def lesson_title(path: Path) -> str:
    """Return the first heading of a notebook, or its file name if it has none."""
    headings = map(_heading, nbformat.read(path, as_version=4).cells)
    return next(filter(None, headings), path.stem)


def load_profile(path: Path) -> dict[str, dict[str, Any]]:
    """Return a profile, {lesson: {NAME: value}}, from its YAML file.

    Raises:
        UsageError: if the file is missing or holds something else.
    """
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.yaml"))) or "none"
        raise UsageError(f"no profile {path.stem!r} in {path.parent}; there are: {known}.")
    profile = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if not isinstance(profile, dict):
        raise UsageError(f"{path}: a profile must map lessons to parameters, got {profile!r}.")
    for lesson, values in profile.items():
        if not isinstance(values, dict | None):
            raise UsageError(f"{path}: {lesson}: expected NAME: value pairs, got {values!r}.")
    return {str(lesson): values or {} for lesson, values in profile.items()}


def parse_override(text: str) -> tuple[str, Any]:
    """Return (NAME, value) of `NAME=VALUE`; the value is parsed as YAML, as papermill does.

    Raises:
        argparse.ArgumentTypeError: if there is no `=`, or no identifier before it.

    Example:
        >>> parse_override("ROWS=1_000")
        ('ROWS', 1000)
        >>> parse_override("DATA=../data")
        ('DATA', '../data')
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, yaml.safe_load(value)


def lesson_parameters(path: Path) -> dict[str, dict[str, str]]:
    """Return the parameters of a notebook: {NAME: {"default": its source, "help": its comment}}.

    Raises:
        UsageError: if the notebook names no kernel.
    """
    try:
        return papermill.inspect_notebook(path)
    except ValueError as error:
        raise UsageError(
            f"{path}: {error} Save it once in JupyterLab with a Python kernel."
        ) from None


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
        UsageError: if a name is not declared by a lesson, or a value has another type than its
            default. The message lists all problems.
    """
    declared = {path: lesson_parameters(path) for path in known_lessons}
    stems = {path.stem: path for path in known_lessons}
    problems = []
    for lesson, values in profile.items():
        if lesson not in stems:
            problems.append(f"the profile has lesson {lesson!r}, which does not exist")
            continue
        problems += _wrong_values(lesson, values, declared[stems[lesson]])
    here = {name for path in lessons for name in declared[path]}
    for name in overrides:
        if name not in here:
            where = ", ".join(path.stem for path in lessons)
            problems.append(f"-p {name}: no such parameter in {where}; {_suggest(name, here)}")
    plan = {}
    for path in lessons:
        mine = {name: value for name, value in overrides.items() if name in declared[path]}
        problems += _wrong_values(path.stem, mine, declared[path])
        plan[path] = {**profile.get(path.stem, {}), **mine}
    if problems:
        raise UsageError("no lesson was run:\n  " + "\n  ".join(problems))
    return plan


def _wrong_values(
    lesson: str, values: Mapping[str, Any], declared: Mapping[str, Mapping[str, str]]
) -> list[str]:
    problems = []
    for name, value in values.items():
        if name not in declared:
            problems.append(f"{lesson}: no parameter {name!r}; {_suggest(name, declared)}")
        elif not _fits(value, declared[name]["default"]):
            default = declared[name]["default"]
            problems.append(f"{lesson}: {name} = {value!r} must have the type of {default}")
    return problems


def check_rows(
    plan: Mapping[Path, Mapping[str, Any]],
    needs: Mapping[str, Mapping[str, str]],
    rows: Mapping[str, int] | None = None,
) -> None:
    """Check that the data has the rows that the lessons need with their parameters.

    Args:
        plan: {lesson: {NAME: value}}, from `plan_parameters`.
        needs: {lesson: {data set: expression over its parameters}}, the content of `needs.yaml`.
        rows: {data set: rows to train on}; by default those of the data below DATA_DIR, or those
            that `make data` would make.

    Raises:
        UsageError: if they are too few; the message says how to have enough.
    """
    problems = []
    for path, given in plan.items():
        values = {name: _literal(each["default"]) for name, each in lesson_parameters(path).items()}
        values |= given
        for data, expression in needs.get(path.stem, {}).items():
            needed = eval(expression, {"__builtins__": {}}, values)
            exist = rows[data] if rows else _rows_below(path.parent / values["DATA_DIR"] / data)
            sizes = {name: values[name] for name in re.findall(r"[A-Z_]+", expression)}
            given_sizes = " and ".join(f"{name} = {size:,}" for name, size in sizes.items())
            rule = f"{path.stem}: {given_sizes} need {needed:,} training rows of {data}"
            if values.get("ROWS", needed) < needed:
                problems.append(f"{rule}, but ROWS = {values['ROWS']:,}; pass -p ROWS={needed:_}")
            elif exist < needed:
                more = -(-needed * 5 // 4 // 100_000) * 100_000  # a seventh of them validates
                problems.append(
                    f"{rule}; {exist:,} exist. `make data ROWS={more:_}` makes enough, "
                    f"or pass smaller sizes, such as -p {min(sizes, key=lambda n: sizes[n])}=..."
                )
    if problems:
        raise UsageError("no lesson was run:\n  " + "\n  ".join(problems))


def _rows_below(folder: Path) -> int:
    """Return the rows to train on of a data set, which lessons make if there is none."""
    files = [*(folder / "train").glob("*.parquet")]
    return sum(pq.read_metadata(file).num_rows for file in files) if files else DEFAULT_ROWS


def _suggest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name.upper(), names, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{hint}there are: {', '.join(names) or 'none'}"


def _fits(value: Any, default_source: str) -> bool:
    """Return whether a value may replace a default; a default that is not a literal allows any."""
    default = _literal(default_source)
    if default is None or value is None:
        return True
    if isinstance(default, list | tuple):
        return isinstance(value, list | tuple)
    if isinstance(default, float):
        return type(value) in (int, float)
    return type(value) is type(default)


def _literal(source: str) -> Any:
    """Return the value of a literal, None for anything else."""
    try:
        return ast.literal_eval(source)
    except (ValueError, SyntaxError):
        return None


class Progress:
    """Shows which section a lesson is in: as a bar in a terminal, otherwise one line per section.

    Args:
        lesson: name of the lesson.
        cells: number of its cells.
        stream: where the progress is printed.

    Attributes:
        cell_index: index of the cell that started last; -1 before the first.
        section: heading above that cell.
    """

    def __init__(self, lesson: str, cells: int, stream: TextIO) -> None:
        self.cell_index = -1
        self.section = ""
        self._cells = cells
        self._stream = stream
        self._start = time.monotonic()
        self._printed = ""
        self._bar = None
        if stream.isatty():
            self._bar = tqdm(total=cells, desc=lesson, unit="cell", file=stream, leave=False)

    def cell_start(self, cell: Any, cell_index: int) -> None:
        """Show the section of a cell that starts; papermill calls this for text cells too."""
        self.cell_index = cell_index
        self.section = _heading(cell) or self.section
        if self._bar is not None:
            self._bar.n = cell_index
            self._bar.set_postfix_str(self.section)
        elif cell.cell_type == "code" and self.section != self._printed:
            self._printed = self.section
            elapsed_s = time.monotonic() - self._start
            number = f"[cell {cell_index + 1:>{len(str(self._cells))}}/{self._cells}]"
            print(f"  {number} {elapsed_s:6.1f} s  {self.section}", file=self._stream, flush=True)

    def close(self) -> float:
        """Remove the bar; return the seconds since the start."""
        if self._bar is not None:
            self._bar.close()
        return time.monotonic() - self._start


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
        stream: where progress and the report of a failure are printed.
    """
    output.mkdir(parents=True, exist_ok=True)
    executed = output.resolve() / path.name
    log = executed.with_suffix(".log")
    log.unlink(missing_ok=True)
    os.environ["LESSON_LOG"] = str(log)
    # papermill inserts a cell with the given parameters
    cells = len(nbformat.read(path, as_version=4).cells) + bool(parameters)
    progress = Progress(path.stem, cells, stream)
    failure = None
    try:
        papermill.execute_notebook(
            path.resolve(),
            executed,
            parameters=dict(parameters),
            kernel_name=KERNEL,
            cwd=path.resolve().parent,
            progress_bar=False,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],  # hides a warning about local TCP
            kernel_manager_class=LoggedKernel,
            on_cell_start=progress.cell_start,
        )
        failure = _early_end(executed)
    except PapermillExecutionError as error:
        failure = _report(error.cell_index, error.exec_count, error.source, error)
    except DeadKernelError:
        source = nbformat.read(executed, as_version=4).cells[progress.cell_index].source
        failure = _report(progress.cell_index, "*", source, None)
        last = log.read_text(errors="replace").splitlines()[-TRACEBACK_LINES:]
        failure = "\n".join([failure, f"The last lines of {_relative(log)}:", *last])
    finally:
        seconds = progress.close()
    _finish(executed, path.resolve().parent)
    if failure is None:
        headline = find_headline(executed) or "-"
        return Result(path.stem, True, seconds, headline, tuple(find_not_borne_out(executed)))
    print(f"{path.stem}, section {progress.section!r}: {failure}", file=stream)
    print(f"Executed notebook: {_relative(executed)}", file=stream, flush=True)
    return Result(path.stem, False, seconds, f"FAILED: {failure.splitlines()[0].rstrip(':')}")


def _early_end(executed: Path) -> str | None:
    """Return why a lesson ended early, if it did: papermill regards `sys.exit()` as success."""
    for index, cell in enumerate(nbformat.read(executed, as_version=4).cells):
        if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None:
            return f"cell {index + 1} was never reached: an earlier cell ended the lesson"
    return None


def _report(
    index: int, count: int | str, source: str, error: PapermillExecutionError | None
) -> str:
    """Describe a failed cell: number, source, and the end of its traceback."""
    lines = [f"cell {index + 1}, In [{count}]:"]
    lines += [f"    {line}" for line in source.splitlines()]
    if error is None:
        lines.append("The kernel died in this cell. The usual reason is that memory ran out.")
        return "\n".join(lines)
    frames = strip_color("\n".join(error.traceback)).splitlines()
    if len(frames) > TRACEBACK_LINES:
        frames = ["...", *frames[-TRACEBACK_LINES:]]
    message = f"{error.ename}: {error.evalue}"
    if message.splitlines()[0] not in "\n".join(frames):
        frames.append(message)
    return "\n".join(lines + frames)


def _finish(executed: Path, folder: Path) -> None:
    """Write the HTML of an executed lesson, which does not name the machine of another run.

    Its pictures are part of it: links from the lesson's folder do not resolve elsewhere.
    """
    notebook = nbformat.read(executed, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id != RECORDED]
    nbformat.write(notebook, executed)
    for cell in notebook.cells:
        for link in re.findall(r"!\[[^]]*\]\(([^)\s]+)\)", cell.source):
            if cell.cell_type == "markdown" and (picture := folder / link).is_file():
                encoded = base64.b64encode(picture.read_bytes()).decode()
                kind = mimetypes.guess_type(link)[0] or ""
                cell.setdefault("attachments", {})[link] = {kind: encoded}
                cell.source = cell.source.replace(f"({link})", f"(attachment:{link})")
    resources = {"metadata": {"name": executed.stem}}  # its title
    page, _ = HTMLExporter().from_notebook_node(notebook, resources)
    executed.with_suffix(".html").write_text(page, encoding="utf-8")


def find_headline(executed: Path) -> str | None:
    """Return the last line that the cell tagged `headline` printed; None if there is none."""
    for cell in nbformat.read(executed, as_version=4).cells:
        if "headline" in cell.metadata.get("tags", []):
            lines = [line for text in map(_text, cell.outputs) for line in text.splitlines()]
            lines = [line.strip() for line in lines if line.strip()]
            return lines[-1] if lines else None
    return None


def find_not_borne_out(executed: Path) -> list[str]:
    """Return the claims about time (`lesson.check_measured`) that a run did not bear out."""
    cells = nbformat.read(executed, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    lines = [line for text in map(_text, outputs) for line in text.splitlines()]
    return [
        line.removeprefix(NOT_BORNE_OUT).strip() for line in lines if line.startswith(NOT_BORNE_OUT)
    ]


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return output.text if output.name == "stdout" else ""
    return output.get("data", {}).get("text/plain", "")


def _heading(cell: Any) -> str:
    """Return the last heading of a text cell without its hashes; empty if there is none."""
    found = ""
    if cell.cell_type == "markdown":
        for line in cell.source.splitlines():
            if line.startswith("#") and line.lstrip("#").startswith(" "):
                found = line.lstrip("#").strip()
    return found


def _relative(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


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
        lines += [
            "",
            "Not borne out by this run (another busy process may be the reason):",
            *claims,
        ]
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


def list_lessons(lessons: Sequence[Path], stream: TextIO) -> None:
    """Print each lesson with its title and parameters."""
    for path in lessons:
        print(f"{path.stem}: {lesson_title(path)}", file=stream)
        for name, parameter in lesson_parameters(path).items():
            print(f"    {name} = {parameter['default']}  # {parameter['help']}", file=stream)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="run.py",
        description="Run lessons with papermill and print a table of what they measured.",
    )
    parser.add_argument("lessons", nargs="*", metavar="lesson", help="number or name [all lessons]")
    parser.add_argument(
        "--profile", default="small", help="use the sizes in params/<profile>.yaml [small]"
    )
    parser.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        type=parse_override,
        metavar="NAME=VALUE",
        help="set a parameter in every lesson that has it, whatever the profile says; repeatable",
    )
    parser.add_argument("--list", action="store_true", help="list lessons and parameters")
    parser.add_argument("--folder", type=Path, default=HERE, help="folder of the notebooks")
    parser.add_argument(
        "--output",
        type=Path,
        default=HERE.parent / "build" / "notebooks",
        help="folder for executed notebooks and HTML [build/notebooks]",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if all lessons passed, 1 if one failed, 130 after Ctrl-C."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        known = find_lessons(options.folder)
        lessons = select_lessons(known, options.lessons)
        if options.list:
            list_lessons(lessons, sys.stdout)
            return 0
        profile = load_profile(options.folder / "params" / f"{options.profile}.yaml")
        plan = plan_parameters(lessons, known, profile, dict(options.parameter))
        needs = options.folder / "needs.yaml"
        check_rows(plan, load_profile(needs) if needs.is_file() else {})
    except UsageError as error:
        parser.error(str(error))
    prepare_environment()
    try:
        results = run_lessons(plan, options.output, sys.stdout)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if not results:
        parser.error(f"no lessons (NN_name.ipynb) in {options.folder}")
    print(f"\nExecuted notebooks and HTML: {_relative(options.output.resolve())}")
    return 0 if all(result.passed for result in results) else 1


def prepare_environment() -> None:
    """Let kernels find programs such as tensorboard, and move TensorFlow's first messages aside.

    They go to the log next to the executed notebook; `startup.py` says which.
    """
    programs = str(Path(sys.executable).parent)
    if programs not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = programs + os.pathsep + os.environ.get("PATH", "")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["PYTHONSTARTUP"] = str(HERE / "startup.py")


if __name__ == "__main__":
    sys.exit(main())
