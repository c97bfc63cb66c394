"""XSpace files, which TensorFlow's profiler writes: planes of lines of events.

TensorFlow itself contains their protocol buffer, so reading them needs no plugin.

Source: https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

PS_PER_MS = 1e9
NS_PER_MS = 1e6


class Event(NamedTuple):
    """Something that took time."""

    name: str
    start: float  # ms from the start of the profiler
    stop: float  # ms from the start of the profiler
    stats: dict[str, Any]  # {name: value} of the requested stats that the event has


class Line(NamedTuple):
    """Events one after the other, or one within the other: those of a thread or a GPU stream."""

    name: str
    events: list[Event]


class Plane(NamedTuple):
    """The lines of one device, or of the host."""

    name: str
    lines: list[Line]


def newest_file(path: Path) -> Path:
    """Return the newest `.xplane.pb` file under a folder; a file is returned as it is."""
    if path.is_file():
        return path
    found = list(path.glob("**/plugins/profile/*/*.xplane.pb"))
    if not found:
        raise FileNotFoundError(
            f"no trace (plugins/profile/*/*.xplane.pb) in {path}. Take one with "
            "ProfileSteps(log_dir, 10, 20) in fit, or with tf.profiler.experimental.Profile."
        )
    newest = max(found, key=lambda file: (file.stat().st_mtime_ns, file))
    hosts = sorted(file.name for file in found if file.parent == newest.parent)
    if len(hosts) > 1:
        raise ValueError(
            f"{newest.parent} is a trace of several hosts: give one of the files {hosts}"
        )
    return newest


def read_planes(path: Path, stats: Collection[str] = ()) -> list[Plane]:
    """Return the planes of an `.xplane.pb` file, with the named stats of the events."""
    from google.protobuf.message import DecodeError
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    try:
        space.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError(
            f"{path} is not a complete XSpace file: {error}. Take the trace again."
        ) from None
    return [_plane(plane, stats) for plane in space.planes]


def _plane(plane: Any, stats: Collection[str]) -> Plane:
    names = {number: entry.name for number, entry in plane.event_metadata.items()}
    stat_names = {number: entry.name for number, entry in plane.stat_metadata.items()}
    wanted = {number: name for number, name in stat_names.items() if name in stats}

    def value(stat: Any) -> Any:
        kind = stat.WhichOneof("value")
        content = getattr(stat, kind)
        return stat_names.get(content, "") if kind == "ref_value" else content

    lines = []
    for line in plane.lines:
        origin = line.timestamp_ns / NS_PER_MS
        events = []
        for event in line.events:
            start = origin + event.offset_ps / PS_PER_MS
            stop = start + event.duration_ps / PS_PER_MS
            found = [stat for stat in event.stats if stat.metadata_id in wanted]
            values = {wanted[stat.metadata_id]: value(stat) for stat in found}
            events.append(Event(names.get(event.metadata_id, ""), start, stop, values))
        lines.append(Line(line.name or line.display_name, events))
    return Plane(plane.name, lines)
