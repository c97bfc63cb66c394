"""Samples per second of one click model from several readers, beside the most that one can reach.

These are the trainings of lesson 04 (`notebooks/ladder.py`), in a form of the model more, and in as
many turns as it takes. The sections (--only) are the panels of the picture: `plain`, `xla` and
`bits16`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.measure import Benchmark, GpuWatch, Way, claim, rates, ratios
from ladder import (
    CEILING,
    LOADER,
    ON_CPU,
    PANELS,
    READERS,
    SETTINGS,
    TURN_S,
    ClickLog,
    Panel,
    batches_of,
    first_weights,
    model_of,
    quality,
)
from turns import Epoch, cores_awake, fit_epoch


def ways_of(panel: Panel, log: ClickLog, readers: Sequence[str] = READERS) -> list[Way]:
    """Return the trainings of a panel, with the cores kept awake.

    As in the lesson, they share one model, the first turn begins with the first weights and is
    followed by loss and AUROC, and later turns repeat epochs until they have taken `TURN_S`.
    """
    import tensorflow as tf

    model = model_of(panel, log)
    begin_anew = first_weights(model)
    on_gpu = log.device == "gpu"

    def epoch(batches: Any, facts: dict[str, Any], has_reader: bool) -> Epoch:
        first = not facts
        if first:
            begin_anew()
        watch, epochs, seconds = GpuWatch(), 0, 0.0
        with cores_awake(), watch if on_gpu else contextlib.nullcontext():
            while not epochs or (seconds < TURN_S and not first):
                done = fit_epoch(model, batches, synchronise=tf.test.experimental.sync_devices)
                epochs, seconds = epochs + 1, seconds + (done.elapsed_s or 0)
        if first:
            facts["parameters"] = model.count_params()
            if has_reader:
                facts |= quality(model, log.loader(panel.layout, "valid", shuffle=False))
        values = {"busy_share": watch.busy_share} if on_gpu else {}
        return Epoch(done.rows, seconds / epochs, values)

    ways = []
    for name in readers:
        facts: dict[str, Any] = {}
        batches = batches_of(name, log, panel.layout)
        ways.append(
            Way(name, functools.partial(epoch, batches, facts, name != CEILING), facts=facts)
        )
    return ways


def trainings(report: Mapping[str, Any], panel: str) -> dict[str, Mapping[str, Any]]:
    """Return the trainings of a panel of a report, as the lesson's functions take them."""
    ways = (entry for entry in report["ways"] if entry["section"] == panel)
    return {entry["name"]: {**entry, "rates": rates(entry)} for entry in ways}


def section(name: str) -> Callable[[argparse.Namespace], list[Way]]:
    """Return the function that makes the trainings of a panel for the benchmark."""

    def ways(arguments: argparse.Namespace) -> list[Way]:
        from data_prep.criteo import prepared_rows

        settings = dataclasses.replace(
            SETTINGS, rows=arguments.rows, batch_size=arguments.batch_size
        )
        if arguments.widths == "published":
            settings = dataclasses.replace(
                settings,
                bottom_units=(1024, 512, 256),
                top_units=(1024, 1024, 512, 256),
                learning_rate=0.001,
            )
        log = ClickLog(prepared_rows(arguments.data), settings, arguments.device)
        readers = list(arguments.readers)
        if arguments.device == "gpu" and LOADER in readers:
            readers.insert(readers.index(LOADER), ON_CPU)
        return ways_of(PANELS[name], log, readers)

    return ways


def claims(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the loader's share of the ceiling in each panel, and its factors of the others."""
    for name in PANELS:
        by_name = trainings(result, name)
        if LOADER not in by_name:
            continue
        for other in by_name.values():
            if other["name"] != LOADER:
                least = 0.97 if other["name"] == CEILING else 1
                values = ratios(by_name[LOADER], other)
                yield claim(f"{name}: {LOADER} / {other['name']}", values, at_least=least)


LADDER = Benchmark(
    "ladder",
    "samples/s of one click model from each reader, beside the ceiling (6 minutes)",
    {name: section(name) for name in PANELS},
    {
        "rows": (SETTINGS.rows, "rows of an epoch, the first of the lessons' click log"),
        "batch_size": (SETTINGS.batch_size, "rows per batch"),
        "widths": (
            ("scaled", "published"),
            "of the network: scaled down so that two CPU cores compute about as fast as they read "
            "TFRecord, or those of the published model, for a GPU",
        ),
        "readers": (list(READERS), "readers to train from"),
    },
    claims,
    device=True,
)
