"""The code on a page of the documentation, for the tests that run it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def code_below(page, heading, language="python"):
    """Return the code in a section of a page, all blocks of the language one after the other."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]
    blocks = re.findall(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)
    assert blocks, f"{page} has no {language} code below {heading!r}"
    return "\n".join(blocks)
