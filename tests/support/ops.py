"""What the tests of ops share: columns from lists, learning in any order, saving and loading."""

import itertools
import json
import math

import pyarrow as pa

from tutorlib.columns import Chunk, column_from_arrow


def column(values, kind=None):
    return column_from_arrow(pa.array(values, kind))


def chunk_of(**columns):
    """A chunk of lists; {name: (values, Arrow type)} where a type cannot be guessed."""
    return Chunk({n: column(*v) if isinstance(v, tuple) else column(v) for n, v in columns.items()})


def fit(op, *chunks):
    """The op fitted on the chunks, their states merged in order."""
    states = [op.partial(chunk) for chunk in chunks]
    state = states[0]
    for other in states[1:]:
        state = op.merge(state, other)
    op.state = {}
    op.state = op.learned_from(state)
    return op


def learned(group, *chunks):
    """The group with its last op fitted on the chunks."""
    place = len(group.ops) - 1
    op = group.ops[place]
    op.state = {}
    op.state = op.learned_from(op.merge(*(group.partial(chunk, place) for chunk in chunks)))
    return group


def cut(chunk, places):
    """The chunk in pieces, which may be empty."""
    ends = [0, *sorted(place % (chunk.num_rows + 1) for place in places), chunk.num_rows]
    return [chunk.slice(a, b) for a, b in itertools.pairwise(ends)]


def plain(column):
    """A column as a list that compares by ==, NaN as "nan"."""
    return [repr(v) if isinstance(v, float) and math.isnan(v) else v for v in column.tolist()]


def bits(op):
    """Everything learned, to the last bit."""
    tables = {
        key: {name: plain(column) for name, column in table.items()}
        for key, table in getattr(op, "state", {}).items()
    }
    return json.dumps(tables, sort_keys=True)
