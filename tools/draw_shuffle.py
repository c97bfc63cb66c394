#!/usr/bin/env python
"""Draw the two pictures of lesson 09 into imgs/: shuffle.svg and chunk_to_batches.svg.

    python tools/draw_shuffle.py

Plain SVG, the same on every machine. Mid-tones on a transparent background are readable on light
and on dark pages. A colour is a time: blue rows are the first of the file, orange rows the last.
"""

from __future__ import annotations

import random
from pathlib import Path

IMAGES = Path(__file__).resolve().parent.parent / "imgs"
TEXT, FRAME = "#757f89", "#9aa3ab"
FIRST, LAST = (58, 122, 190), (214, 130, 44)  # red, green, blue
BLOCKS = 24  # runs of neighbouring rows in a file


def colour(block: int) -> str:
    """Return the colour of a place in the file."""
    share = block / (BLOCKS - 1)
    return "#" + "".join(
        f"{round(a + share * (b - a)):02x}" for a, b in zip(FIRST, LAST, strict=True)
    )


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    """Return a filled rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"/>'


def frame(x: float, y: float, width: float, height: float) -> str:
    """Return the outline of a rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="none" '
        f'stroke="{FRAME}" stroke-width="1.5"/>'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", bold: bool = False) -> str:
    """Return words at a place."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{words}</text>'


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return a line with a head."""
    return (
        f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{FRAME}" '
        'stroke-width="1.5" marker-end="url(#head)"/>'
    )


def file_of_blocks(x: float, y: float, blocks: int = BLOCKS) -> list[str]:
    """Return a file, its rows from left to right in time."""
    step = BLOCKS / blocks
    return [box(x + 26 * i, y, 24, 26, colour(int((i + 0.5) * step))) for i in range(blocks)]


def rows_of(x: float, y: float, places: list[int], columns: int) -> list[str]:
    """Return rows as small squares."""
    return [
        box(x + 12 * (i % columns), y + 12 * (i // columns), 10, 10, colour(place))
        for i, place in enumerate(places)
    ]


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return a whole picture."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="13" fill="{TEXT}">'
    )
    marker = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{FRAME}"/>'
        "</marker></defs>"
    )
    return "\n".join([head, f"<title>{title}</title>", marker, *parts, "</svg>", ""])


def draw_shuffle() -> str:
    """Return the picture of a window and a chunk over the same file."""
    draw = random.Random(1)
    parts = [text(10, 20, "Window (tf.data): the next rows of the file", bold=True)]
    parts += file_of_blocks(10, 34)
    parts += [frame(58, 29, 132, 36), arrow(124, 68, 124, 96)]
    near = [draw.choice([2, 3, 4, 5, 6]) for _ in range(48)]
    parts += rows_of(52, 102, near, 12)
    parts += [frame(47, 97, 154, 56), text(124, 170, "held in memory", anchor="middle")]
    parts += [arrow(206, 125, 256, 125), *rows_of(266, 108, near[:36], 12)]
    parts += [frame(261, 103, 154, 44), text(430, 122, "a batch: rows of one time;")]
    parts += [text(430, 140, "the window then moves on by a batch")]
    parts += [text(10, 214, "Chunk (loader): runs of rows from distant places", bold=True)]
    parts += file_of_blocks(10, 228)
    chosen = [1, 8, 13, 21]
    for i, block in enumerate(chosen):
        middle = 22 + 26 * block
        parts += [frame(middle - 15, 223, 30, 36), arrow(middle, 262, 66 + 39 * i, 290)]
    mixed = [chosen[i % 4] for i in range(48)]
    draw.shuffle(mixed)
    parts += rows_of(52, 296, mixed, 12)
    parts += [frame(47, 291, 154, 56), text(124, 364, "held in memory", anchor="middle")]
    parts += [arrow(206, 319, 256, 319), *rows_of(266, 302, mixed[:36], 12)]
    parts += [frame(261, 297, 154, 44), text(430, 316, "a batch: rows of four times;")]
    parts += [text(430, 334, "the next chunk has four other places")]
    title = "A window holds neighbouring rows of the file; a chunk holds rows from distant places"
    return svg(690, 374, title, parts)


def draw_chunk_to_batches() -> str:
    """Return the picture of row groups that become a chunk and then batches."""
    draw = random.Random(2)
    parts = [text(10, 20, "Parquet files: row groups in the order of time", bold=True)]
    parts += file_of_blocks(10, 34)
    chosen = [3, 9, 16, 22]
    columns = [96, 256, 416, 576]
    for block, x in zip(chosen, columns, strict=True):
        middle = 22 + 26 * block
        parts += [frame(middle - 15, 29, 30, 36), arrow(middle, 68, x, 100)]
        parts += [box(x - 60, 106, 120, 24, colour(block))]
    parts += [frame(26, 98, 620, 40), text(10, 92, "1. read")]
    parts += [text(336, 158, "a chunk: row groups drawn from all files", anchor="middle")]
    mixed = [chosen[i % 4] for i in range(36 * 4)]
    draw.shuffle(mixed)
    for i, x in enumerate(columns):
        parts += [arrow(x, 166, x, 190), *rows_of(x - 71, 200, mixed[36 * i : 36 * i + 36], 12)]
        parts += [frame(x - 76, 195, 154, 44), text(x, 258, f"batch {i + 1}", anchor="middle")]
    parts += [text(10, 184, "2. scatter")]
    title = "Row groups from distant places become one chunk; each batch has rows of all of them"
    return svg(690, 270, title, parts)


if __name__ == "__main__":
    (IMAGES / "shuffle.svg").write_text(draw_shuffle(), encoding="utf-8")
    (IMAGES / "chunk_to_batches.svg").write_text(draw_chunk_to_batches(), encoding="utf-8")
