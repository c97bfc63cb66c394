"""Draw imgs/waiting_light.svg and imgs/waiting_dark.svg, the moving picture of the first page.

It is lesson 00's recorded run: an epoch of `fit` with a tf.data.Dataset, red where it waits for a
batch, as long on the screen as it took; then the reader is swapped. Both bars are there at first,
for some seconds; then they are drawn twice, and stay. Who prefers less motion, and paper, has them
at once. A report has totals, so that all waits after the first are drawn equally long. The epochs
are single ones: the line below them has the medians of the lesson's turns, arrays in memory too.

The same page gives the same bytes. The animation is CSS, which GitHub shows in a picture.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import measure

LESSON = measure.ROOT / "notebooks" / "00_quickstart.ipynb"
OURS, THEIRS, WAITING = "#2f9e75", "#7a8fa6", "#d0605e"  # as in the lessons
LOOKS = {  # of a page: ground, frame, text
    "light": ("#f6f8fa", "#d1d9e0", "#1f2328"),
    "dark": ("#151b23", "#3d444d", "#f0f6fc"),
}
REPORT = re.compile(r"epoch 1: (\d+)% of ([\d.]+) s waiting for data \(first batch: (\d+)%\)")
MEDIANS = re.compile(r"training ([\d.]+) times .* row by row, ([\d.]+) times arrays in memory")

WIDTH, HEIGHT, LEFT, BAR = 720, 256, 24, 44  # of the picture, its margin, a bar's height
LONGEST = 590  # a bar that long is the longer epoch
LINES, BARS = (40, 140), (54, 154)  # where the lines of code stand, and the tops of the bars
BELOW = 236  # where the line below the bars stands
START, GATHER, REST = 0.7, 0.9, 6.0  # seconds before the first bar, to sort its parts, at the end
TURNS = 3  # the first begins with its rest; after the last, the picture is still


@dataclasses.dataclass(frozen=True)
class Epoch:
    """What a report says of an epoch, in seconds."""

    seconds: float
    waiting: float
    first_wait: float


def recorded(lesson: Path = LESSON) -> tuple[Epoch, Epoch, int, str]:
    """Return what a page reports of the dataset and of the loader.

    Returns:
        an epoch of each, their number of batches, and the medians of several, as a sentence.

    Raises:
        ValueError: if the page has no such reports.
    """
    cells = [cell for cell in json.loads(lesson.read_text("utf-8"))["cells"] if "outputs" in cell]
    outputs: Iterator[Mapping[str, Any]] = itertools.chain(*(cell["outputs"] for cell in cells))
    printed = "".join("".join(output.get("text", "")) for output in outputs).splitlines()
    epochs: list[Epoch] = []
    for from_loader in (False, True):
        lines = (line for line in printed if ("by stage of the loader" in line) is from_loader)
        found = next(filter(None, map(REPORT.match, lines)), None)
        if found is None:
            raise ValueError(f"{lesson} shows no report of epoch 1; run `make pages LESSONS=00`")
        share, seconds, first = map(float, found.groups())
        epochs.append(Epoch(seconds, seconds * share / 100, seconds * first / 100))
    medians = next(filter(None, map(MEDIANS.match, printed)), None)
    if medians is None:
        raise ValueError(f"{lesson} has no headline; run `make pages LESSONS=00`")
    rows_one_by_one, arrays = medians.groups()
    said = f"Median: {rows_one_by_one} times the dataset's speed, {arrays} times that of arrays"
    code = "\n".join("".join(cell["source"]) for cell in cells)
    rows, size = (
        int(re.search(rf"^{name} = ([\d_]+)", code, re.MULTILINE)[1])  # type: ignore[index]
        for name in ("ROWS", "BATCH_SIZE")
    )
    return epochs[0], epochs[1], -(-rows // size), said


def draw(images: Path, lesson: Path = LESSON) -> list[Path]:
    """Draw the picture for light and for dark pages; return the files."""
    slow, fast, batches, medians = recorded(lesson)
    paths = [images / f"waiting_{name}.svg" for name in LOOKS]
    for path, look in zip(paths, LOOKS.values(), strict=True):
        path.write_text(picture(slow, fast, batches, medians, *look), encoding="utf-8")
    return paths


class Motion:
    """The animation's keyframes; moments are seconds from its beginning, `total` its length.

    The page shows it from the moment `complete` on, since when nothing moves.
    """

    def __init__(self, total: float, complete: float) -> None:
        self.total, self.complete, self.rules = total, complete, list[str]()

    def add(self, frames: Mapping[float, str]) -> str:
        """Add keyframes {moment: declarations}; return the attribute of what moves so."""
        name = f"m{len(self.rules)}"
        lines = [f"{100 * at / self.total:.3f}%{{{frame}}}" for at, frame in frames.items()]
        self.rules.append(f"@keyframes {name}{{{''.join(lines)}}}.{name}{{animation-name:{name}}}")
        return f'class="{name}"'

    def appears(self, moment: float, then: float = 0.3) -> str:
        """Make something appear within some seconds."""
        return self.add({0: "opacity:0", moment: "opacity:0", moment + then: "opacity:1"})

    def style(self) -> str:
        """Return the style sheet: nothing moves where less motion is preferred, or on paper."""
        every = f"[class]{{animation:{self.total:.2f}s linear -{self.complete:.2f}s {TURNS}}}"
        rules = "\n".join([every, *self.rules])
        where = "@media screen and (prefers-reduced-motion:no-preference)"
        return f"<style>\n{where}{{\n{rules}\n}}\n</style>"


def picture(
    slow: Epoch, fast: Epoch, batches: int, medians: str, ground: str, frame: str, text: str
) -> str:
    """Return the picture as SVG, in the colours of a page."""
    scale = LONGEST / slow.seconds
    sorted_at = START + slow.seconds + 0.3
    swapped_at = sorted_at + GATHER + 0.6
    second_at = swapped_at + 1.4
    done_at = second_at + fast.seconds
    complete = done_at + GATHER + 0.3
    motion = Motion(complete + REST, complete)
    shown: list[str] = []

    def code(data: str, line: int, colour: str, extra: str = "") -> str:
        name = f'<tspan fill="{colour}" font-weight="bold">{data}</tspan>'
        place = f'x="{LEFT}" y="{LINES[line]}" fill="{text}"'
        return f"<text {place} {extra}>model.fit({name})</text>"

    def label(words: str, x: float, y: float, extra: str, look: str) -> str:
        return f'<text x="{x:.1f}" y="{y}" {extra} {look}>{words}</text>'

    bold = f'fill="{text}" font-weight="bold" font-size="24" font-family="sans-serif"'
    small = 'fill="#fff" font-size="20" font-family="sans-serif" text-anchor="middle"'
    shown.append(code("dataset", 0, THEIRS))
    shown += bar(slow, batches, scale, BARS[0], THEIRS, motion, START, sorted_at)
    after = motion.appears(sorted_at + GATHER)
    y, middle = BARS[0] + 30, LEFT + slow.waiting * scale / 2
    shown.append(label("waiting for data", middle, y, after, small))
    end = LEFT + slow.seconds * scale + 14
    shown.append(label(f"{slow.seconds:.1f} s", end, y, motion.appears(sorted_at - 0.3), bold))

    # The same line of code again; then its word changes.
    turning = swapped_at + 0.9
    new = motion.appears(turning + 0.2)
    old = motion.add({0: "opacity:1", turning: "opacity:1", turning + 0.2: "opacity:0"})
    shown.append(f"<g {motion.appears(swapped_at)}>")
    shown.append(code("dataset", 1, THEIRS, f'opacity="0" {old}'))
    shown.append(code("loader", 1, OURS, new) + "</g>")
    shown += bar(fast, 1, scale, BARS[1], OURS, motion, second_at, done_at)
    end = LEFT + fast.seconds * scale + 14
    shown.append(label(f"{fast.seconds:.1f} s", end, BARS[1] + 30, motion.appears(done_at), bold))
    look = f'fill="{text}" font-size="20" font-family="sans-serif"'
    shown.append(label(medians, LEFT, BELOW, motion.appears(done_at), look))
    said = f"An epoch takes {slow.seconds:.1f} seconds with a tf.data dataset, {_share(slow)} of "
    said += f"them waiting for data; {fast.seconds:.1f} seconds with the loader, {_share(fast)} "
    said += f"of them waiting. {medians}."
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-labelledby="title" font-size="22" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, Liberation Mono, monospace">'
    )
    card = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" '
    card += f'fill="{ground}" stroke="{frame}"/>'
    tracks = (
        f'<rect x="{LEFT}" y="{y}" width="{LONGEST}" height="{BAR}" fill="{frame}" opacity="0.4"/>'
        for y in BARS
    )
    title = f'<title id="title">{said}</title>'
    return "\n".join([head, title, motion.style(), card, *tracks, *shown, "</svg>", ""])


def _share(epoch: Epoch) -> str:
    return f"{epoch.waiting / epoch.seconds:.0%}"


def bar(
    epoch: Epoch,
    batches: int,
    scale: float,
    y: int,
    colour: str,
    motion: Motion,
    start: float,
    sorted_at: float,
) -> Iterator[str]:
    """Yield the parts of a bar: they grow in the order of the epoch, then red moves to the left.

    Args:
        epoch: seconds of the epoch.
        batches: parts that wait, each before one that computes.
        scale: units of the picture a second.
        y: top of the bar.
        colour: of computing.
        motion: takes the keyframes.
        start: moment at which the epoch begins.
        sorted_at: moment at which the parts begin to move.
    """
    first = epoch.first_wait if batches > 1 else epoch.waiting
    other = (epoch.waiting - first) / max(batches - 1, 1)
    step = (epoch.seconds - epoch.waiting) / batches
    waits = [first, *[other] * (batches - 1)]
    now = 0.0
    ends = {WAITING: 0.0, colour: epoch.waiting}  # before any part of the colour
    sharp = 'shape-rendering="crispEdges"'
    parts = [part for wait in waits for part in ((wait, WAITING), (step, colour))]
    for place, (seconds, shade) in enumerate(parts):
        there, here = (LEFT + moment * scale for moment in (ends[shade], now))
        frames = {0.0: 0, start + now: 0, start + now + seconds: 1, sorted_at: 1}
        moves = {at: f"transform:translate({here:.1f}px) scaleX({n})" for at, n in frames.items()}
        moves[sorted_at + GATHER] = f"transform:translate({there:.1f}px)"
        width = seconds * scale + (place < len(parts) - 2)  # under the next part: no seam
        look = f'y="{y}" width="{width:.1f}" height="{BAR}" fill="{shade}" {sharp}'
        yield f'<rect {look} transform="translate({there:.1f})" {motion.add(moves)}/>'
        now, ends[shade] = now + seconds, ends[shade] + seconds
    sums = (WAITING, 0.0, epoch.waiting), (colour, epoch.waiting, epoch.seconds)
    for shade, begin, end in sums:  # over the parts, between which some browsers show seams
        there, width = LEFT + begin * scale, (end - begin) * scale
        box = f'x="{there:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"'
        shown = motion.appears(sorted_at + GATHER, 0.1)
        yield f'<rect {box} fill="{shade}" {sharp} {shown}/>'
