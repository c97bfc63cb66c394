"""Traces for the tests of profiling: real ones, and files whose times are known."""

from tensorflow.tsl.profiler.protobuf import xplane_pb2
from tutorlib.profiling import ProfileSteps, read_trace


def profiled(dataset, model, log_dir, steps):
    """Return the trace of all steps but the first, which compiles."""
    model.fit(dataset, callbacks=[ProfileSteps(log_dir, 2, steps)], shuffle=False, verbose=0)
    return read_trace(log_dir)


def write_trace(path, planes):
    """Write an XSpace file: {plane: {line: [(name, start ms, stop ms, {stat: value})]}}."""
    space = xplane_pb2.XSpace()
    for plane_name, lines in planes.items():
        plane, ids = space.planes.add(name=plane_name), {}

        def number(table, name, ids=ids):
            if (id(table), name) not in ids:
                ids[id(table), name] = len(ids) + 1
                table[len(ids)].name = name
            return ids[id(table), name]

        events, stats = plane.event_metadata, plane.stat_metadata
        for line_name, entries in lines.items():
            line = plane.lines.add(name=line_name, timestamp_ns=1_000_000)  # 1 ms
            for name, start, stop, values in entries:
                event = line.events.add(
                    metadata_id=number(events, name),
                    offset_ps=int((start - 1) * 1e9),
                    duration_ps=int((stop - start) * 1e9),
                )
                for stat, value in values.items():
                    entry = event.stats.add(metadata_id=number(stats, stat))
                    if isinstance(value, str):
                        entry.ref_value = number(stats, value)
                    else:
                        entry.int64_value = value
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(space.SerializeToString())
    return path
