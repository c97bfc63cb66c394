"""XSpace files: what TensorFlow's profiler writes, as planes of lines of events.

They are read by the protocol buffer that TensorFlow itself comes with, so no plugin is needed.
Does not belong here: what the events mean (`trace.py`).

Source: https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

PS_PER_MS = 1e9
NS_PER_MS = 1e6


class Event(NamedTuple):
    """A named stretch of time.

    Args:
        name: what happened.
        start: ms from the start of the profiler.
        stop: the same.
        stats: {name: value} of the stats that were asked for.
    """

    name: str
    start: float
    stop: float
    stats: dict[str, Any]


class Line(NamedTuple):
    """What happened one after the other, or one within the other: a thread, or a GPU's stream."""

    name: str
    events: list[Event]


class Plane(NamedTuple):
    """The lines of one device, or of the host."""

    name: str
    lines: list[Line]


def newest_file(place: Path) -> Path:
    """Return the newest `.xplane.pb` file under a folder, or the file itself.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if the newest trace has a file for each of several hosts.
    """
    if place.is_file():
        return place
    found = list(place.glob("**/plugins/profile/*/*.xplane.pb"))
    if not found:
        raise FileNotFoundError(
            f"no trace (plugins/profile/*/*.xplane.pb) in {place}. Take one by "
            "ProfileSteps(log_dir, 10, 20) in fit, or by tf.profiler.experimental.Profile."
        )
    newest = max(found, key=lambda path: (path.stat().st_mtime_ns, path))
    hosts = sorted(path.name for path in found if path.parent == newest.parent)
    if len(hosts) > 1:
        raise ValueError(f"{newest.parent} is a trace of several hosts: give one file of {hosts}")
    return newest


def read_planes(path: Path, stats: Collection[str] = ()) -> list[Plane]:
    """Return the planes of a file.

    Args:
        path: an `.xplane.pb` file.
        stats: names of the stats that events shall carry, where they have them.

    Raises:
        ValueError: if the file is damaged.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    try:
        space.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError(f"{path} is no whole XSpace file: {error}. Take the trace anew.") from None
    return [_plane(plane, stats) for plane in space.planes]


def _plane(plane: Any, stats: Collection[str]) -> Plane:
    names = {number: entry.name for number, entry in plane.event_metadata.items()}
    stat_names = {number: entry.name for number, entry in plane.stat_metadata.items()}
    wanted = {number: name for number, name in stat_names.items() if name in stats}

    def value(stat: Any) -> Any:
        kind = stat.WhichOneof("value")
        found = getattr(stat, kind)
        return stat_names.get(found, "") if kind == "ref_value" else found

    lines = []
    for line in plane.lines:
        origin = line.timestamp_ns / NS_PER_MS
        events = []
        for event in line.events:
            start = origin + event.offset_ps / PS_PER_MS
            ours = {
                wanted[stat.metadata_id]: value(stat)
                for stat in event.stats
                if stat.metadata_id in wanted
            }
            stop = start + event.duration_ps / PS_PER_MS
            events.append(Event(names.get(event.metadata_id, ""), start, stop, ours))
        lines.append(Line(line.name or line.display_name, events))
    return Plane(plane.name, lines)
