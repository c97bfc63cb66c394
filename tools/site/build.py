"""Build a browsable site from the lessons as they ran, the guides and the docstrings.

    python tools/site/build.py [--lessons build/notebooks] [--output build/site]

The pages are those of the tree, so their links stay as they are: README.md is the first page, and a
link to a file that is no page becomes a download. A broken link or a missing picture is an error.

Source: Sphinx, https://www.sphinx-doc.org, with MyST-NB, https://myst-nb.readthedocs.io.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGES = ("*.md", "docs/*.md", "notebooks/README.md", "benchmarks/README.md")
FILES = (
    "LICENSE", "CITATION.cff", "imgs/*", "notebooks/*.py", "benchmarks/*.py",
    "benchmarks/results/*.json", "tests/**/*.py",
)  # fmt: skip

# The parts of the course: the numbers of the first lesson and of the first one after it.
COURSE = {
    "I See it, fix it": (0, 6), "II Your data": (6, 8), "III How it works, and beyond": (8, 13),
}  # fmt: skip

# The reference begins with what a reader uses first; the rest of tutorlib follows by name.
FIRST = (
    "loader", "workflow", "ops", "callbacks", "layers", "models", "optimizers", "parquet", "schema",
)  # fmt: skip

TOCTREE = """
```{{toctree}}
:hidden:
:caption: {caption}

{entries}
```
"""


def copy_pages(source: Path) -> None:
    """Copy the tree's pages, and the files to which they link, to the same places in `source`."""
    for path in itertools.chain.from_iterable(ROOT.glob(pattern) for pattern in PAGES + FILES):
        target = source / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def copy_lessons(executed: Path, source: Path) -> list[str]:
    """Copy the executed lessons and their solutions; return the names of the lessons' pages.

    Raises:
        SystemExit: if a lesson was not executed, or is older than the lesson of the tree.
    """
    pages = []
    for lesson in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        run = executed / lesson.name
        if not run.is_file() or run.stat().st_mtime < lesson.stat().st_mtime:
            raise SystemExit(f"{run} is missing or older than the lesson: run make tutorial first")
        notebook = json.loads(run.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if "injected-parameters" in cell["metadata"].get("tags", []):
                cell["metadata"]["tags"].append("remove-cell")
            if "".join(cell["source"]).startswith("%%writefile"):
                cell["outputs"] = []  # only the path of a temporary file
        solutions = lesson.parent / "solutions" / lesson.name
        if solutions.is_file():
            (source / "notebooks" / "solutions").mkdir(exist_ok=True)
            shutil.copy(solutions, source / "notebooks" / "solutions")
            entry = TOCTREE.format(caption="Solutions", entries=f"solutions/{lesson.stem}")
            contents = {"cell_type": "markdown", "id": "contents", "metadata": {}, "source": entry}
            notebook["cells"].append(contents)  # the side bar shows them below their lesson
        (source / "notebooks" / lesson.name).write_text(json.dumps(notebook), encoding="utf-8")
        pages.append(f"notebooks/{lesson.stem}")
    return pages


def write_reference(source: Path) -> list[str]:
    """Write a page of docstrings for each folder and file of tutorlib; return the pages' names."""
    (source / "reference").mkdir()
    pages = []
    order = {name: place for place, name in enumerate(FIRST)}
    paths = sorted((ROOT / "tutorlib").iterdir())
    for path in sorted(paths, key=lambda path: order.get(path.stem, len(order))):
        is_package = (path / "__init__.py").is_file()
        if path.name.startswith("__") or not (is_package or path.suffix == ".py"):
            continue
        title = f"tutorlib.{path.stem}"
        lines = [title, "=" * len(title), "", f".. automodule:: {title}"]
        lines += ["   :imported-members:"] * is_package  # those of its __all__
        text = "\n".join([*lines, ""])
        (source / "reference" / f"{path.stem}.rst").write_text(text, encoding="utf-8")
        pages.append(f"reference/{path.stem}")
    return pages


def write_contents(source: Path, lessons: list[str], reference: list[str]) -> None:
    """Add to the first page the lists of pages that the side bar shows."""
    paths = set(source.rglob("*.md")) - {source / "README.md"}
    names = sorted(path.relative_to(source).with_suffix("").as_posix() for path in paths)
    guides = [name for name in names if name.startswith("docs/")]
    project = [name for name in names if name not in guides]
    parts = {caption: lessons[first:end] for caption, (first, end) in COURSE.items()}
    parts |= {"Guides": guides, "Reference": reference, "Project": project}
    with open(source / "README.md", "a", encoding="utf-8") as page:
        for caption, entries in parts.items():
            page.write(TOCTREE.format(caption=caption, entries="\n".join(entries)))


def copy_pictures(source: Path, site: Path) -> None:
    """Copy the pictures that the first page shows in HTML, which Sphinx leaves as it is."""
    page = (source / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r'\b(?:src|srcset)="([\w/.]+)"', page):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, site / name)


def missing_links(site: Path) -> list[str]:
    """Return "page: target" for each link and picture of the site that leads to no file of it."""
    missing = []
    for page in sorted(set(site.rglob("*.html")) - set((site / "_static").rglob("*"))):
        text = page.read_text(encoding="utf-8")
        for target in set(re.findall(r'\b(?:href|src)="([^"#?]+)', text)):
            if re.match(r"[a-z]+:", target):
                continue  # another site, or data in the page
            if not (page.parent / target).exists():
                missing.append(f"{page.relative_to(site)}: {target}")
    return missing


def main() -> None:
    """Build the site."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lessons", type=Path, default=ROOT / "build" / "notebooks")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site")
    options = parser.parse_args()
    source = options.output.with_name(options.output.name + "-source")
    for folder in (source, options.output):
        shutil.rmtree(folder, ignore_errors=True)
    copy_pages(source)
    write_contents(source, copy_lessons(options.lessons, source), write_reference(source))
    faults = source / "faults.txt"  # stderr also has what TensorFlow says when it starts
    command = [sys.executable, "-m", "sphinx", "-q", "-w", faults, "-c", HERE]
    done = subprocess.run([*command, source, options.output], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    copy_pictures(source, options.output)
    if found := [*faults.read_text(encoding="utf-8").splitlines(), *missing_links(options.output)]:
        raise SystemExit("\n".join([*found, f"{len(found)} faults of the site"]))
    shutil.copy(options.output / "README.html", options.output / "index.html")
    print(f"open {options.output / 'index.html'}")


if __name__ == "__main__":
    main()
