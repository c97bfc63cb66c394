"""What the tests of figures share."""

from benchmarks import figures
from benchmarks.__main__ import main


def assert_drawn_alike(name, draw, results, images):
    """The command's figure is, byte for byte, what `draw` makes of the same report; so is a PNG."""
    command = ["figures", "--only", name, "--results", results, "--images", images]
    assert main([*map(str, command)]) == 0
    result = figures.newest(name, results)
    for file in ("other.svg", "one.png"):
        draw(result, images / file)
    assert (images / f"{name}.svg").read_bytes() == (images / "other.svg").read_bytes()
    assert b"<svg" in (images / f"{name}.svg").read_bytes()
    assert (images / "one.png").read_bytes().startswith(b"\x89PNG")
