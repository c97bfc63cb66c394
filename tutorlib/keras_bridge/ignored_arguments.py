"""A loader refuses what `fit`, `evaluate` and `predict` would ignore or get wrong with it.

Keras uses a data adapter as it is and silently drops `y`, `sample_weight`, `class_weight`,
`batch_size` and `shuffle`, so this function looks at the arguments of its callers. With a Keras in
which it finds nothing, they are ignored, and nothing else changes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from tutorlib.keras_bridge.processes import process_count


def refuse_ignored_arguments(
    adapter: Any,
    data: str,
    remedies: Mapping[str, str],
    accepted: Mapping[str, Sequence[Any]],
    *,
    disorder: str,
    labelled: bool,
) -> None:
    """Raise ValueError if Keras was given an argument that has no effect; for `num_batches` only.

    `predict` out of order is refused too: nobody could tell which row a prediction is of. So are
    `fit` and `evaluate` without labels if the model compares its output with labels.

    Keras asks for `num_batches` in the constructor of its `EpochIterator`, which has most of the
    arguments; `batch_size` and `shuffle` are those of the method that calls the constructor.

    Args:
        adapter: the data adapter that is asked for `num_batches`.
        data: what the adapter is called in the message.
        remedies: {argument of `fit`: what to do instead}; other arguments are not looked at.
        accepted: {argument: values that ask for what happens anyway}; None is always accepted.
        disorder: words for why rows do not come in the order of the files; "" if they do.
        labelled: whether the batches hold labels.
    """
    frame: FrameType | None = sys._getframe(2)
    given: dict[str, Any] = {}
    while frame is not None and frame.f_code.co_name == "__init__":
        if frame.f_locals.get("x") is adapter:
            given = dict(frame.f_locals)
        frame = frame.f_back
    if frame is None or not given:
        return
    if frame.f_code.co_name == "predict" and process_count() > 1:
        raise ValueError(
            f"predict with {data} cannot collect the predictions of several processes; "
            "loader.predict(model) gives those of all rows, on each process"
        )
    if disorder and frame.f_code.co_name == "predict":
        raise ValueError(
            f"predict with {data} {disorder} would give predictions in another order than that of "
            "the files. loader.predict(model) gives them in order, as a table with the columns "
            "id_names=[...]; model.predict needs shuffle=False, and no canonical_ranks."
        )
    if frame.f_locals.get("x") is adapter:
        validation = frame.f_locals.get("validation_data")
        if adapter is (validation[0] if isinstance(validation, tuple | list) else validation):
            raise ValueError(
                f"validation_data is {data}, the same that fit trains on: validation would take "
                "every other epoch of it. Give validation_data another one, made with the same "
                "arguments."
            )
        given |= {name: frame.f_locals.get(name) for name in ("batch_size", "shuffle")}
    else:  # validation data of `fit`, whose batch_size and shuffle are for the training data
        given |= {"batch_size": frame.f_locals.get("validation_batch_size"), "shuffle": None}
    for name, remedy in remedies.items():
        value = given.get(name)
        if value is not None and value not in accepted.get(name, ()):
            scalar = isinstance(value, int | str | dict)
            shown = f"={value!r}" if scalar else f" (a {type(value).__name__})"
            raise ValueError(f"{name}{shown} with {data} has no effect; {remedy}")
    if not labelled and _needs_labels(frame.f_locals.get("self"), frame.f_code.co_name):
        raise ValueError(
            f"{frame.f_code.co_name} with {data} that has no labels. Name them, "
            "KerasSequenceLoader(label_names=[...]), or map a Workflow that makes them "
            "(LabelEncoder, or label_names of the Workflow)."
        )


def _needs_labels(model: Any, method: str) -> bool:
    """Return whether a method of a model is Keras's own, and compares the output with labels."""
    steps = {"fit": "train_step", "evaluate": "test_step"}
    if method not in steps or getattr(model, "_compile_loss", None) is None:
        return False
    parts = (getattr(type(model), name) for name in (steps[method], "compute_loss"))
    return all(part.__module__.startswith("keras.") for part in parts)
