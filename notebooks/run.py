#!/usr/bin/env python
"""Run lessons without supervision, in order, and print a table of what they measured.

A lesson is a notebook with two tagged cells:

- `parameters`: one `NAME = value  # meaning, unit` per line, as papermill expects;
- `headline`: the last line that it prints becomes the lesson's row in the table.

Each lesson runs in the folder of the notebooks, with the Python that runs this script. The executed
notebook, its HTML and a log of its processes are saved, even if a cell fails.

Source: papermill, https://papermill.readthedocs.io/en/latest/usage-execute.html
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections import namedtuple
from pathlib import Path

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
# Of the HTML: code in a text has room around it, as in JupyterLab, and scrolls on a telephone.
STYLE = ".jp-RenderedMarkdown pre { margin: 1em 2em; overflow-x: auto; }"


class UsageError(ValueError):
    """A request that cannot be carried out. No lesson has run."""


# The result of one lesson: name of the notebook, without its extension; whether all its cells ran;
# seconds, None if it did not run; its headline, or the reason why it has none; claims about time
# that the run did not bear out.
Result = namedtuple("Result", "lesson passed seconds outcome not_borne_out", defaults=[()])


# ---- which lessons, with which parameters -------------------------------------------------------


def find_lessons(folder):
    """Return the lessons of a folder, `NN_name.ipynb`, sorted by number."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def select_lessons(lessons, wanted):
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


def load_profile(path):
    """Return a profile, {lesson: {NAME: value}}, from its YAML file.

    Raises:
        UsageError: if the file is missing.
    """
    if not path.is_file():
        raise UsageError(f"no profile {path.stem!r} in {path.parent}")
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def plan_parameters(lessons, known_lessons, profile):
    """Return the parameters of each lesson to run, {lesson: {NAME: value}}.

    Args:
        lessons: lessons to run.
        known_lessons: all lessons; a profile may name only these.
        profile: {lesson: {NAME: value}}.

    Raises:
        UsageError: if a name is not declared by a lesson. The message lists all such names.
    """
    declared = {path.stem: papermill.inspect_notebook(path) for path in known_lessons}
    unknown = [
        f"{lesson}: {name}"
        for lesson, values in profile.items()
        for name in set(values) - set(declared.get(lesson, ()))
    ]
    if unknown:
        raise UsageError(f"the profile has parameters that do not exist: {sorted(unknown)}")
    return {path: profile.get(path.stem, {}) for path in lessons}


# ---- one lesson ---------------------------------------------------------------------------------


class LoggedKernel(AsyncKernelManager):
    """A kernel whose processes print to the lesson's log; the notebook shows it as before.

    ipykernel copies what libraries and child processes write to file descriptors 1 and 2 to the
    notebook, and also to where it got them from: without this, to the terminal.
    """

    async def start_kernel(self, **options):
        """Start the kernel, with sockets that are files: two at once may choose the same port."""
        self.sockets = tempfile.TemporaryDirectory(prefix="lesson")
        self.transport, self.ip = "ipc", f"{self.sockets.name}/kernel"
        with open(os.environ["LESSON_LOG"], "ab") as log:
            await super().start_kernel(stdout=log, stderr=log, **options)


KERNEL = {
    "kernel_name": "python3",  # which ipykernel installs for the running Python
    "kernel_manager_class": LoggedKernel,
    "extra_arguments": ["--IPKernelApp.log_level=ERROR"],  # hides a warning about local TCP
    "progress_bar": False,
}


def solutions_of(lesson):
    """Return the path of the notebook that solves the exercises of a lesson."""
    return lesson.parent / "solutions" / lesson.name


def read_lesson(lesson, solutions):
    """Return the notebook of a lesson; with `solutions`, followed by these, if there are any."""
    page = nbformat.read(lesson, as_version=4)
    if solutions and solutions_of(lesson).is_file():
        cells = nbformat.read(solutions_of(lesson), as_version=4).cells
        page.cells += cells[[cell.cell_type for cell in cells].index("code") + 1 :]
    return page


def run_lesson(path, parameters, output, stream, solutions=False):
    """Run one lesson; save the executed notebook and its HTML, even if a cell fails.

    Args:
        path: the notebook; it runs in its own folder.
        parameters: {NAME: value}, checked by `plan_parameters`.
        output: folder for the lesson's `.ipynb`, `.html` and `.log`; created if missing.
        stream: where progress, a line for each section, and the report of a failure are printed.
        solutions: whether its solutions run after it, in its kernel; they are then part of what is
            saved.
    """
    output.mkdir(parents=True, exist_ok=True)
    path, executed = path.resolve(), output.resolve() / path.name
    log = executed.with_suffix(".log")
    log.unlink(missing_ok=True)
    os.environ["LESSON_LOG"] = str(log)
    nbformat.write(read_lesson(path, solutions), executed)
    started, failure, ended = time.monotonic(), "", "a cell ended the lesson"

    def show_section(cell, cell_index):
        headings = re.findall(r"(?m)^#+ (.+)$", cell.source) if cell.cell_type == "markdown" else []
        for section in headings[-1:]:
            elapsed_s, number = time.monotonic() - started, cell_index + 1
            print(f"  [cell {number:2}] {elapsed_s:6.1f} s  {section}", file=stream, flush=True)

    try:
        papermill.execute_notebook(
            executed, executed, parameters, cwd=path.parent, on_cell_start=show_section, **KERNEL
        )
    except PapermillExecutionError as error:
        frames = strip_color("\n".join(error.traceback)).splitlines()[-TRACEBACK_LINES:]
        place = f"cell {error.cell_index + 1}, In [{error.exec_count}]: "
        failure = "\n".join([f"{place}{error.ename}: {error.evalue}", *frames])
    except DeadKernelError:
        ended = "the kernel died. The usual reason is that memory ran out"
    for number, cell in enumerate(nbformat.read(executed, as_version=4).cells, 1):
        unfinished = cell.cell_type == "code" and cell.source.strip() and not cell.execution_count
        if unfinished and not failure:  # papermill regards `sys.exit()` as success
            last = log.read_text(errors="replace").splitlines()[-TRACEBACK_LINES:]
            failure = "\n".join([f"cell {number} was never finished: {ended}", *last])
    seconds = time.monotonic() - started
    _write_html(executed, path.parent)
    if not failure:
        headline = find_headline(executed) or "-"
        return Result(path.stem, True, seconds, headline, tuple(find_not_borne_out(executed)))
    print(f"{path.stem}: {failure}\nExecuted notebook: {executed}", file=stream, flush=True)
    return Result(path.stem, False, seconds, f"FAILED: {failure.splitlines()[0]}")


def _write_html(executed, folder):
    """Write the HTML of an executed lesson, which does not name the machine of another run.

    Its pictures are part of it: links from the lesson's folder do not resolve elsewhere. nbconvert
    embeds only what lies below a folder, so pictures are named from the folder that holds both
    `notebooks` and `imgs`.
    """
    notebook = nbformat.read(executed, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id != RECORDED]
    nbformat.write(notebook, executed)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"(!\[[^]]*\]\()\.\./", r"\1", cell.source)
    resources = {"metadata": {"name": executed.stem, "path": str(folder.parent)}}
    page, _ = HTMLExporter(embed_images=True).from_notebook_node(notebook, resources)
    page = page.replace("</head>", f"<style>{STYLE}</style></head>", 1)
    executed.with_suffix(".html").write_text(page, encoding="utf-8")


def find_headline(executed):
    """Return the last line that the cell tagged `headline` printed; None if there is none."""
    cells = nbformat.read(executed, as_version=4).cells
    tagged = [cell for cell in cells if "headline" in cell.metadata.get("tags", [])]
    return next((line for cell in tagged for line in reversed(_printed(cell))), None)


def find_not_borne_out(executed):
    """Return the claims about time (`lesson.check_measured`) that a run did not bear out."""
    cells = nbformat.read(executed, as_version=4).cells
    lines = [line for cell in cells for line in _printed(cell) if line.startswith(NOT_BORNE_OUT)]
    return [line.removeprefix(NOT_BORNE_OUT).strip() for line in lines]


def _printed(cell):
    """Return the lines that a cell printed or returned, without stderr and empty ones."""
    lines = []
    for output in cell.get("outputs", []):
        stdout = output.get("text", "") if output.get("name") == "stdout" else ""
        lines += (stdout + output.get("data", {}).get("text/plain", "")).splitlines()
    return [line.strip() for line in lines if line.strip()]


# ---- all lessons --------------------------------------------------------------------------------


def format_table(results):
    """Return the results as a table: lesson, seconds, headline; then what was not borne out.

    Example:
        >>> print(format_table([Result("01_etl", True, 12.34, "9 M rows/s")]))
        lesson  seconds  measured
        01_etl     12.3  9 M rows/s
    """
    rows = [("lesson", "seconds", "measured")]
    rows += [(r.lesson, f"{r.seconds:.1f}" if r.seconds else "-", r.outcome) for r in results]
    width = max(len(name) for name, *_ in rows)
    lines = [f"{name:{width}}  {seconds:>7}  {outcome}" for name, seconds, outcome in rows]
    claims = [f"  {each.lesson}: {claim}" for each in results for claim in each.not_borne_out]
    if claims:
        lines += ["", "Not borne out by this run (a busy machine may be the reason):", *claims]
    return "\n".join(lines)


def run_lessons(plan, output, stream, solutions=False):
    """Run lessons in order until one fails, and print the table; return all results."""
    results = []
    try:
        for number, (path, parameters) in enumerate(plan.items(), start=1):
            if results and not results[-1].passed:
                results.append(Result(path.stem, False, None, "not run"))
                continue
            given = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
            print(f"[{number}/{len(plan)}] {path.stem}  {given}".rstrip(), file=stream, flush=True)
            results.append(run_lesson(path, parameters, output, stream, solutions))
    finally:  # print the table also after Ctrl-C
        print(f"\n{format_table(results)}", file=stream, flush=True)
    return results


def main(arguments=None):
    """Run the command; return 0 if all lessons passed, 1 if one failed."""
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("lessons", nargs="*", metavar="lesson", help="number or name [all lessons]")
    add("--profile", default="small", help="use the sizes in params/<profile>.yaml [small]")
    add("--folder", type=Path, default=HERE, help="folder of the notebooks")
    add("--solutions", action="store_true", help="run the solutions after each lesson")
    output = HERE.parent / "build" / "notebooks"
    add("--output", type=Path, default=output, help="folder for what ran [build/notebooks]")
    options = parser.parse_args(arguments)
    try:
        known = find_lessons(options.folder)
        lessons = select_lessons(known, options.lessons)
        profile = load_profile(options.folder / "params" / f"{options.profile}.yaml")
        plan = plan_parameters(lessons, known, profile)
    except UsageError as error:
        parser.error(str(error))
    prepare_environment()
    results = run_lessons(plan, options.output, sys.stdout, options.solutions)
    print(f"\nExecuted notebooks and HTML: {options.output}")
    return 0 if all(result.passed for result in results) else 1


def prepare_environment():
    """Let kernels find programs such as tensorboard; TensorFlow logs only what ends it."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # less: that there is no GPU, that oneDNN is on
    os.environ["PYTHONSTARTUP"] = str(HERE.parent / "tools" / "lab" / "startup.py")  # the same


if __name__ == "__main__":
    sys.exit(main())
