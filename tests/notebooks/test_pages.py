"""The committed outputs of a lesson equal those of a run, compared as strict nbval does.

nbval's collector reads the page and its tags, and nbval's comparison decides. The run is the one of
`test_lessons.py`, because a second run would double the time. To compare in a run of nbval's own:
`pytest --nbval --nbval-current-env notebooks/`.
"""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbval.plugin import IPyNbFile, coalesce_streams


def differences(page, notebook, request) -> list[str]:
    """Return the differences between an executed notebook and the committed page, cell by cell.

    As in nbval's strict mode, a cell without the tag `nbval-ignore-output` must have exactly the
    outputs of the page, even if that is none. Cells without execution count are skipped.
    """
    collector = IPyNbFile.from_parent(request.session, path=page)
    expected = list(collector.collect())
    run = [cell for cell in notebook.cells if cell.cell_type == "code"]
    run = [cell for cell in run if "injected-parameters" not in cell.metadata.get("tags", [])]
    assert [item.cell.source for item in expected] == [cell.source for cell in run]
    found = []
    for item, cell in zip(expected, run, strict=True):
        if not item.options["check"] or (item.cell.execution_count is None and not cell.outputs):
            continue
        kept = coalesce_streams(item.cell.outputs)
        if not item.compare_outputs(coalesce_streams(cell.outputs), kept):
            text = "\n".join(str(line) for line in item.comparison_traceback)
            found.append(f"code cell {item.cell_num}:\n{cell.source}\n{text}")
    return found


@pytest.mark.notebook
def test_committed_outputs_equal_those_of_a_run(lesson, executed, stage, request):
    result, notebook, log = executed(lesson)
    assert result.passed, log
    page = stage / "notebooks" / lesson.name  # the version that ran
    found = differences(page, notebook, request)
    assert not found, "\n\n".join(["`make pages` updates the committed outputs.", *found])


@pytest.mark.parametrize(
    ("kept", "given", "tag", "equal"),
    [
        ("(3, 4)\n", "(3, 4)\n", "keep_output", True),
        ("(3, 4)\n", "(3, 5)\n", "keep_output", False),
        ("(3, 4)\n", "", "keep_output", False),
        ("", "0.31\n", "nbval-ignore-output", True),
        ("", "0.31\n", "untagged", False),
    ],
)
def test_the_comparison_is_strict(tmp_path, request, kept, given, tag, equal):
    def notebook(text):
        outputs = [new_output("stream", name="stdout", text=text)] if text else []
        cell = new_code_cell("f()", metadata={"tags": [tag]}, outputs=outputs, execution_count=1)
        return new_notebook(cells=[cell])

    nbformat.write(notebook(kept), tmp_path / "page.ipynb")
    found = differences(tmp_path / "page.ipynb", notebook(given), request)
    assert bool(found) != equal
