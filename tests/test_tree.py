"""The tree: imports point one way, nothing heavy at import, tutorlib works copied out."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
TUTORLIB = ROOT / "tutorlib"

# The rooms of tutorlib, lowest first: a room imports only rooms above it in this list.
ROOMS = [
    "checks", "schema", "arrays", "columns", "filesystems", "output", "keras_bridge",
    "memory", "hashing",
    "parquet", "loader", "ops", "layers", "models", "optimizers", "serving",
    "workflow", "callbacks", "diagnosis", "gpu",
]  # fmt: skip
NEEDED = {"numpy", "pyarrow", "keras", "tensorflow", "tutorlib"}
# Imported inside the functions that need them, if at all.
OPTIONAL = {
    "cudf", "pylibcudf", "cupy", "rmm", "dask", "distributed", "fsspec", "pandas", "matplotlib",
    "tf_keras", "IPython", "tensorboard", "tensorboard_plugin_profile", "jax", "torch",
}  # fmt: skip
WITHOUT_TENSORFLOW = ["columns", "gpu", "memory", "ops", "output", "parquet", "schema", "workflow"]

MODULES = sorted(TUTORLIB.rglob("*.py"))


def dotted(path: Path) -> str:
    """Return "tutorlib.ops.base" for tutorlib/ops/base.py, "tutorlib.ops" for its __init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


OURS = {dotted(module) for module in MODULES} - {"tutorlib"}


def imported(path: Path, *, only_at_start: bool) -> set[str]:
    """Return the dotted names that a module imports, `from x import y` as x and x.y."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()

    def visit(node):
        if only_at_start and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            assert not node.level, f"{path.name}: say `from tutorlib.x import y`, not `from .x`"
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return names


def imported_modules(path: Path) -> set[str]:
    """Return the modules of tutorlib that a file of it imports, anywhere in its code."""
    return imported(path, only_at_start=False) & OURS


def room_of(module: str) -> str:
    return module.split(".")[1]


def test_tutorlib_holds_the_rooms_in_the_list_and_nothing_else():
    entries = {path.stem for path in TUTORLIB.iterdir() if not path.name.startswith("__")}
    assert entries == set(ROOMS)
    assert len(ROOMS) <= 20


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_a_room_imports_only_rooms_below_its_own(path):
    if path.parent == TUTORLIB and path.stem == "__init__":
        assert not imported_modules(path)
        return
    room = room_of(dotted(path))
    at_start = {room_of(name) for name in imported(path, only_at_start=True) if name in OURS}
    assert room == "gpu" or "gpu" not in at_start  # which a copy may leave out
    rooms = {room_of(module) for module in imported_modules(path)} - {room, "gpu"}
    assert rooms <= set(ROOMS[: ROOMS.index(room)]), f"{path.name} of {room} imports {rooms}"


def test_no_module_has_the_name_of_something_that_its_package_exports():
    """Importing the module would put it in the place of the other."""
    packages = [
        importlib.import_module(dotted(path)) for path in MODULES if "__init__" in path.name
    ]
    exporting = [package for package in packages if hasattr(package, "__all__")]
    assert len(exporting) > 3
    for package in exporting:
        for path in Path(package.__file__).parent.iterdir():
            assert path.stem == "__init__" or path.stem not in package.__all__, path


def test_no_module_imports_itself_through_others():
    left = {dotted(path): imported_modules(path) for path in MODULES if path.stem != "__init__"}
    while left:
        free = [name for name, imports in left.items() if not imports & left.keys()]
        assert free, f"these import each other: {sorted(left)}"
        left = {name: imports for name, imports in left.items() if name not in free}


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_tutorlib_needs_four_packages_only(path):
    allowed = NEEDED | set(sys.stdlib_module_names)
    at_start = {name.split(".")[0] for name in imported(path, only_at_start=True)}
    anywhere = {name.split(".")[0] for name in imported(path, only_at_start=False)}
    assert at_start <= allowed
    assert anywhere <= allowed | OPTIONAL  # so never data_prep, tfrecords, benchmarks or notebooks


def test_pyproject_installs_every_folder_of_tutorlib_and_data_prep():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    files = [*MODULES, *(ROOT / "data_prep").rglob("*.py")]
    folders = {path.parent.relative_to(ROOT) for path in files}
    assert {".".join(folder.parts) for folder in folders} == set(listed)


def run_python(code: str, *, python: Path | str = sys.executable, **options):
    command = [str(python), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def test_importing_what_needs_no_tensorflow_does_not_start_it():
    code = (
        f"import importlib, sys\n"
        f"for name in ['tutorlib', *(f'tutorlib.{{room}}' for room in {WITHOUT_TENSORFLOW})]:\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'tensorflow', 'keras', 'jax', 'torch', 'cudf', 'dask'} & sys.modules.keys()\n"
        "    assert not heavy, f'{name} imports {heavy}'"
    )
    done = run_python(code, cwd=ROOT)
    assert done.returncode == 0, done.stderr


# --- Copying tutorlib out -----------------------------------------------------------------------


def with_dependencies(*names: str) -> set[str]:
    """Return the installed distributions that these need, themselves included; no extras."""
    closure, queue = set(), [canonicalize_name(name) for name in names]
    while queue:
        name = queue.pop()
        if name in closure:
            continue
        closure.add(name)
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(canonicalize_name(requirement.name))
    return closure


def link_distributions(names: set[str], target: Path) -> None:
    """Make `target` a site-packages with links to these installed distributions and no others.

    A top-level folder that other distributions share, a namespace package, is linked file by file.
    """
    owners: dict[str, set[str]] = {}
    files = []
    for distribution in importlib.metadata.distributions():
        owner = canonicalize_name(distribution.metadata["Name"])
        for file in distribution.files or []:
            if file.parts[0] in ("..", "__pycache__"):
                continue
            owners.setdefault(file.parts[0], set()).add(owner)
            if owner in names:
                files.append(file)
    for file in files:
        top = file.parts[0]
        part = Path(top) if owners[top] <= names else Path(*file.parts)
        link = target / part
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            depth = len(file.parts) - len(part.parts)
            place = Path(file.locate())
            link.symlink_to(place.parents[depth - 1] if depth else place)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """A Python that sees TensorFlow, Keras, NumPy, PyArrow, what they need, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    names = with_dependencies("tensorflow", "keras", "numpy", "pyarrow")
    link_distributions(names, folder / "lib" / version / "site-packages")
    return folder / "bin" / "python"


def run_copy(script: str, python: Path, folder: Path, path: str = "") -> str:
    """Run a script in a folder, with `path` as PYTHONPATH; return what it printed."""
    environment = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    done = run_python(script, python=python, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def copy_folder(name: str, target: Path) -> None:
    shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))


def code_of(page: str, language: str = "python") -> str:
    """Return the code of a page, all blocks of the language one after the other."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return "".join(re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL))


LOADER_ALONE_SCRIPT = """
import pathlib

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.loader import KerasSequenceLoader

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).standard_normal(8192).astype("float32")
table = pa.table({"x": x, "label": (x > 0).astype("float32")})
pq.write_table(table, "train.parquet", row_group_size=1024)
inputs = {"x": keras.Input((1,), name="x")}
model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy")
named = {"label_names": ["label"], "cat_names": [], "cont_names": ["x"]}
loader = KerasSequenceLoader("train.parquet", 256, **named)

def told(use):
    try:
        use()
    except (ModuleNotFoundError, ValueError) as error:
        return str(error)
"""
# What docs/using.md says files are for: code that uses them.
USES = {
    "": """
losses = model.fit(loader, epochs=3, verbose=0).history["loss"]
assert losses[-1] < 0.2 and losses[-1] < losses[0] / 2, losses
refusal = told(lambda: KerasSequenceLoader("train.parquet", 256, device="gpu", **named))
assert "the folder gpu/" in refusal and "Copy it too" in refusal, refusal
assert "tutorlib.loader.predict" in told(lambda: loader.predict(model))
""",
    "to write files, and for predictions joined to ids": """
from tutorlib import ParquetSink, ParquetSource
with ParquetSink("copy") as sink:
    sink.write(table)
assert ParquetSource("copy").num_rows == loader.predict(model, verbose=0).num_rows == 8192
""",
    "for a GPU": """
import tutorlib.gpu.batches
from tutorlib import limit_tensorflow_memory
assert limit_tensorflow_memory() is None
refusal = told(lambda: KerasSequenceLoader("train.parquet", 256, device="gpu", **named))
assert "CuPy cannot be imported" in refusal, refusal
""",
    "for the callbacks": """
from tutorlib import LoaderCheckpoint, StallReport
report = StallReport(loader)
model.fit(loader, callbacks=[report, LoaderCheckpoint("saved", loader)], verbose=0)
assert report.stalls and pathlib.Path("saved", "checkpoint.bin").is_file()
""",
}


def copy_listed(use: str, folder: Path) -> None:
    """Copy the files that docs/using.md lists for the loader alone, and those that a use adds."""
    page = (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
    listed = re.search(r"alone: begin -->(.*?)<!-- .*? -->\n(.*?)\n\n", page, re.DOTALL)
    named, more = listed.groups()
    lines = {line[2:].partition(" (")[0]: line for line in more.splitlines()}
    assert [*USES] == ["", *lines]
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", named + lines.get(use, "")):
        for path in TUTORLIB.glob(f"{name}*.py" if name.endswith("/") else name):
            target = folder / "tutorlib" / path.relative_to(TUTORLIB)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


@pytest.mark.parametrize("use", USES)
def test_the_files_that_using_md_names_for_each_use_suffice(bare_python, tmp_path, use):
    copy_listed(use, tmp_path)
    run_copy(LOADER_ALONE_SCRIPT + USES[use], bare_python, tmp_path)


def test_the_program_in_the_readme_prints_what_the_readme_shows_but_for_numbers(
    bare_python, tmp_path
):
    copy_folder("tutorlib", tmp_path)
    printed, shown = (
        # A remedy that gains less than a tenth has no line.
        {re.sub(r"[\s\d,.]+", " ", line) for line in text.splitlines()}
        for text in (
            run_copy(code_of("README.md"), bare_python, tmp_path),
            code_of("README.md", "text").partition("killed by signal")[0],
        )
    )
    optional = {line for line in shown if " times as fast ( to " in line}
    assert shown - optional <= printed <= shown


DATA_WITH_BLANKS = """
import os
import numpy as np, pyarrow as pa, pyarrow.parquet as pq

rng = np.random.default_rng(0)
for folder in ("train", "valid"):
    os.mkdir(folder)
    x1, x2, label = rng.random((3, 5000), dtype="float32")
    columns = {"x1": pa.array(x1, mask=x1 < 0.1), "x2": pa.array(x2, mask=x2 < 0.1)}
    pq.write_table(pa.table({**columns, "label": label}), f"{folder}/part.parquet")
with open("people.csv", "w") as file:
    file.write("person,city,age,income\\n")
    for n in range(600):
        city, age = rng.choice(["Lyon", "Oslo", ""]), rng.choice([20 + n % 50, ""])
        file.write(f"p{n},{city},{age},{['low', 'high'][n % 2]}\\n")
"""


def test_the_code_of_using_md_runs_beside_what_it_names_on_data_with_blanks(bare_python, tmp_path):
    """Beside tutorlib/: DuckDB for CSV files, JAX for a loop."""
    copy_folder("tutorlib", tmp_path)
    more = tmp_path / "more"
    link_distributions(with_dependencies("duckdb", "jax") - with_dependencies("tensorflow"), more)
    run_copy(DATA_WITH_BLANKS, bare_python, tmp_path)
    printed = run_copy(code_of("docs/using.md"), bare_python, tmp_path, str(more))
    assert "val_loss" in printed
    assert list((tmp_path / "checkpoints").iterdir())


ORDERS = """
import datetime
import numpy as np, pyarrow as pa, pyarrow.parquet as pq

rng, rows = np.random.default_rng(0), 4000
price = rng.lognormal(3, 1, rows)
age = rng.integers(18, 90, rows)
orders = pa.table({
    "order": [f"o{n}" for n in range(rows)],
    "user": rng.geometric(0.01, rows),
    "shop": rng.choice(["north", "south", "web"], rows),
    "day": pa.array(np.datetime64("2026-01-01") + np.arange(rows) // 50, pa.date32()),
    "age": pa.array(age, mask=rng.random(rows) < 0.1),
    "price": price,
    "kind": np.array(["book", "film", "food", "toy"])[(price > [[9], [20], [40]]).sum(axis=0)],
    "pages": [rng.choice(["home", "cart", "help"], n).tolist() for n in rng.integers(0, 9, rows)],
    "returned": rng.integers(0, 2, rows),
})
pq.write_table(orders, "orders.parquet", row_group_size=500)
new = orders.slice(0, 100).drop_columns(["kind", "price", "returned"])
pq.write_table(new.set_column(1, "user", pa.array(range(9900, 10000))), "new_orders.parquet")
"""

RIGHT_ANSWERS = """
assert sum(fold.num_rows for fold in folds.values()) == 4000 and train.source.num_rows > 0
assert len(prices) == earlier.num_rows and (prices > -1).all()
assert kinds.shape == (later.num_rows,) and {*kinds} <= {"book", "film", "food", "toy"}
assert (ids == 2).all() and table.column_names == ["order", "prediction"]
assert tutorlib.layers and table["order"][0].as_py() == "o0"
assert {"weekday", "age_missing", "shop_and_kind"} <= {*pq.read_schema("more_orders.parquet").names}
assert pq.read_table("sampled_orders.parquet")["returned"].to_numpy().mean() > 0.75
assert len(pq.read_table("mixed_orders.parquet")) == later.num_rows + later.num_rows // 3
assert {*pairs(0)["bought"].to_pylist()} == {0, 1} and pairs(0) != pairs(1)
first = vocabulary(Workflow.load("workflow"), "user")
assert longer["user"][: len(first)] == first and len(longer["user"]) > len(first)
assert larger.tables["user"].embedding_weights.shape[0] == len(longer["user"]) + 3
assert decade.shape == cross.shape == (None, 1) and crossing.count_params() > 8000
"""


def test_the_code_of_your_task_md_runs_on_a_table_of_orders(bare_python, tmp_path):
    copy_folder("tutorlib", tmp_path)
    more = tmp_path / "more"
    link_distributions({"duckdb"}, more)
    run_copy(ORDERS, bare_python, tmp_path)
    script = code_of("docs/your_task.md") + RIGHT_ANSWERS
    printed = run_copy(script, bare_python, tmp_path, str(more))
    assert "100% of the rows have an unknown user" in printed


def test_the_readme_is_short():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) <= 600  # words, bars of tables and code included


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and Sphinx make them."""
    headings = re.findall(r"^#+ (.*)", text, flags=re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in words}


def test_links_of_pages_and_lessons_lead_to_files_and_headings_that_the_site_has(tmp_path):
    site = runpy.run_path(str(ROOT / "tools/site/build.py"))
    site["copy_pages"](tmp_path)
    lessons = ROOT / "notebooks"
    shutil.copytree(lessons, tmp_path / "notebooks", dirs_exist_ok=True)
    pages = {page: page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.md")}
    for page in (tmp_path / "notebooks").rglob("*.ipynb"):
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        pages[page] = "\n".join(texts)
    assert len(pages) > 30
    for page, text in pages.items():
        links = re.findall(r"\]\(([^)#:\s]+)(?:#[\w-]+)?\)", text)
        links += re.findall(r'(?:src|srcset|href)="(\S+)"', text)  # of HTML
        assert [link for link in links if not (page.parent / link).exists()] == [], page
        for link, anchor in re.findall(r"\]\(([^)#:\s]*)#([\w-]+)\)", text):
            target = (page.parent / link).resolve() if link else page
            assert target not in pages or anchor in anchors_of(pages[target]), (page, link, anchor)


def test_blocks_of_code_in_docstrings_follow_two_colons():  # or Sphinx sets them as text
    for module in MODULES:
        nodes = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef
        text = "\n\n".join(
            ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)
        )
        blocks = re.findall(r"^( *)(\S.*[^:]:)\n\n\1    (?!\s|>>>)(.*)", text, flags=re.MULTILINE)
        assert [line for _, line, _ in blocks if not line[:-1].isalpha()] == [], module


def test_make_help_lists_the_targets_the_readme_names():
    help_text = subprocess.run(["make", "help"], capture_output=True, text=True, cwd=ROOT).stdout
    listed = set(re.findall(r"make (\w+)", help_text))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^|`)make (\w+)", readme, flags=re.MULTILINE))
    assert {"tutorial", "test"} <= named <= listed


def test_tensorflow_is_quiet_in_kernels_of_make_lab():
    code = f"""exec(open({str(ROOT / "tools/lab/startup.py")!r}).read())
import tensorflow as tf
print(tf.constant(1).numpy())"""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = run_python(code, cwd=ROOT, env=environment)
    assert (done.stdout, done.stderr) == ("1\n", "")


# --- Versions -----------------------------------------------------------------------------------


def test_pre_commit_uses_the_versions_of_constraints_txt():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    versions = dict(re.findall(r"^([\w.-]+)==([\w.]+)", "\n".join(lines), flags=re.MULTILINE))
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    revisions = {repo["repo"].rsplit("/", 1)[-1]: repo.get("rev") for repo in hooks["repos"]}
    assert revisions["ruff-pre-commit"].lstrip("v") == versions["ruff"]
    assert revisions["codespell"].lstrip("v") == versions["codespell"]
    local = next(repo for repo in hooks["repos"] if repo["repo"] == "local")
    assert local["hooks"][0]["additional_dependencies"] == [f"nbformat=={versions['nbformat']}"]
