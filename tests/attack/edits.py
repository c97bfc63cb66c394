"""Random edits of bytes, JSON and lines of text; equal generators make equal edits."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

NUMBERS = (
    0, -1, 1, 2, 127, 128, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    -(2**63), -(2**63) - 1, 10**400, -(10**400), 0.5, -0.0, 1e-320, 1e308, 1e17,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
STRINGS = (
    "", " ", "\0", "\ud800", "a" * 100_000, "../../etc/passwd", "/", "int8", "int64", "float32",
    "string", "object", "bool", "datetime64[s]", "mean", "tutorlib", "é", "nan", "1", "2", "2.0",
)  # fmt: skip
DEEP = "@deep@"  # becomes a list in a list in a list ...
DEPTH = 100_000
FIELDS = (
    b"", b"0", b"-1", b"1", b"5", b"7", b"-99", b"abc", b"ABCDEF01", b"nan", b"inf", b"1e400",
    b"0.5", b"9" * 25, b"-" + b"9" * 25, b"2147483648", b"9223372036854775808", b"\0", b"\xff\xfe",
    b'"', b'""', b'"a', b"a\nb", b"\r", b" 1", b"x" * 200_000, "é".encode(),
)  # fmt: skip


def edit_bytes(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Return changed bytes, and what was done to them."""
    if not data:
        return b"\0", "one byte into an empty file"
    # Half of the edits hit the last bytes: a footer decides how all the others are read.
    start = rng.randrange(max(0, len(data) - 600), len(data)) if rng.random() < 0.5 else None
    start = rng.randrange(len(data)) if start is None else start
    stop = min(len(data), start + rng.choice((1, 1, 2, 4, 8, 64, 1000)))
    kind = rng.choice(("flip", "flip", "flip", "random", "zeros", "ones", "cut", "drop", "twice"))
    part = data[start:stop]
    if kind == "flip":
        flipped = bytearray(part)
        for _ in range(rng.choice((1, 1, 2, 8))):
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        part = bytes(flipped)
    elif kind == "cut":
        return data[:start], f"cut off at byte {start:,}"
    else:
        parts = {"random": rng.randbytes(len(part)), "zeros": bytes(len(part))}
        parts |= {"ones": b"\xff" * len(part), "drop": b"", "twice": 2 * part}
        part = parts[kind]
    return data[:start] + part + data[stop:], f"{kind}: bytes {start:,} to {stop:,}"


def edit_json(text: str, rng: Random) -> tuple[str, str]:
    """Return JSON with one to three changed values, keys or elements, and what was changed."""
    root = [copy.deepcopy(json.loads(text))]
    done = [_edit_value(root, rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    changed = json.dumps(root[0], indent=1)
    return changed.replace(json.dumps(DEEP), "[" * DEPTH + "]" * DEPTH), "; ".join(done)


def _edit_value(root: list[Any], rng: Random) -> str:
    """Change one value somewhere below `root`."""
    container, key = rng.choice(_places(root, depth=0))
    before = container[key]
    kind = rng.choice(("replace", "replace", "replace", "remove", "wrap", "rename", "twice"))
    if kind == "remove" and container is not root:
        del container[key]
        return f"{key!r} removed"
    if kind == "rename" and isinstance(container, dict):
        container[rng.choice(STRINGS)] = container.pop(key)
        return f"{key!r} renamed"
    if kind == "twice" and isinstance(container, list) and container is not root:
        container.append(copy.deepcopy(before))
        return f"element {key} twice"
    if kind == "wrap":
        container[key] = rng.choice(([before], {"a": before}, [[[before]]]))
        return f"{key!r} wrapped"
    near = [before + 1, -before, before * 10**9] if type(before) in (int, float) else []
    new = rng.choice((*NUMBERS, *STRINGS, *near, None, True, False, [], {}, [None], DEEP))
    container[key] = new
    return f"{key!r}: {str(before)[:60]!r} to {str(new)[:60]!r}"


def _places(value: Any, depth: int) -> list[tuple[Any, Any]]:
    """Return (container, key or index) of every value below a value."""
    items = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    found = [(value, key) for key, _ in items]
    for _, below in items:
        found += _places(below, depth + 1) if depth < 50 else []
    return found


def edit_lines(data: bytes, separator: bytes, rng: Random) -> tuple[bytes, str]:
    """Return lines of fields with one to three edits: fields, separators, lines, or bytes."""
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        lines = data.split(b"\n")
        number = rng.randrange(len(lines))
        kind = rng.choice(("field", "field", "field", "fewer", "more", "line", "twice", "bytes"))
        fields = lines[number].split(separator)
        place = rng.randrange(len(fields))
        if kind == "bytes":
            data, what = edit_bytes(data, rng)
            done.append(what)
            continue
        if kind == "field":
            fields[place] = rng.choice(FIELDS)
        elif kind == "fewer":
            del fields[place]
        elif kind == "more":
            fields.insert(place, rng.choice(FIELDS))
        lines[number] = separator.join(fields)
        if kind == "line":
            del lines[number]
        elif kind == "twice":
            lines.insert(number, lines[number])
        done.append(f"{kind}: line {number + 1}, field {place + 1}")
        data = b"\n".join(lines)
    return data, "; ".join(done)
