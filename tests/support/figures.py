"""What the tests of figures share."""

from benchmarks import figures
from benchmarks.__main__ import main


def assert_reproducible(name, draw, results, images):
    """The SVG that the command draws has the bytes of a second one, and a PNG can be drawn too."""
    command = ["figures", "--only", name, "--results", results, "--images", images]
    assert main([*map(str, command)]) == 0
    result = figures.newest(name, results)
    for file in ("other.svg", "one.png"):
        draw(result, images / file)
    assert (images / f"{name}.svg").read_bytes() == (images / "other.svg").read_bytes()
    assert b"<svg" in (images / f"{name}.svg").read_bytes()
    assert (images / "one.png").read_bytes().startswith(b"\x89PNG")
