"""What several lessons need and none of them teaches."""

import json
import os
import shlex
import sys
from pathlib import Path

NUMBERS = Path(__file__).resolve().parents[1] / "build" / "numbers.json"
NOT_BORNE_OUT = "not borne out by this run:"  # run.py looks for lines that begin so


def check(claim, holds):
    """Print a claim that holds, or stop the lesson. `check_measured` is for claims about time.

    Args:
        claim: what the text above the cell says, in a few words.
        holds: whether this run's numbers bear it out.

    Raises:
        AssertionError: if the claim does not hold.

    Example:
        >>> check("ids fit their tables", 3 < 4)
        ok: ids fit their tables
    """
    if not holds:
        raise AssertionError(f"this run does not bear out: {claim}")
    print("ok:", claim)


def check_measured(claim, holds):
    """Print whether this run bears out a claim about time; the lesson goes on either way.

    A time also depends on what else the machine does, so one run cannot refute the claim.
    `make tutorial` lists at its end what a run did not bear out, and `make pages` records it like
    any other line: a claim stays in a lesson only if nine of ten quiet runs bear it out.

    Args:
        claim: what the text above the cell says, in a few words.
        holds: whether the times of this run bear it out.

    Example:
        >>> check_measured("the loader is faster", min([9.0, 8.0]) > max([4.0, 6.0]))
        ok: the loader is faster
        >>> check_measured("the loader is faster", min([9.0, 5.0]) > max([4.0, 6.0]))
        not borne out by this run: the loader is faster
    """
    print("ok:" if holds else NOT_BORNE_OUT, claim)


def criteo_rows(data_dir):
    """Return the folder with `train` and `valid` of the Criteo rows that lesson 01 prepares.

    Data that exists is kept; if there is none, synthetic rows are made.
    """
    from data_prep.criteo import prepared_rows  # lesson 07 imports a copy of tutorlib later

    return prepared_rows(data_dir)


def enlarge(schema, rows, width):
    """Give embedding tables more rows than the data has ids, and spread the ids over them.

    The ids of a large table lie far apart in memory. Those of synthetic data, at its start, would
    stay in the processor's cache.

    Args:
        schema: a Schema whose ids are 0 to cardinality - 1, without lists.
        rows: {column: rows of its table}; a column with more ids keeps its own number.
        width: of every embedding.

    Returns:
        (schema, spread): the schema with these tables, and a function from the inputs of a stacked
        batch to inputs with spread ids.

    Example:
        >>> import numpy as np
        >>> from tutorlib.schema import Column, Schema
        >>> ids = Schema([Column("C1", "categorical", cardinality=3)])
        >>> large, spread = enlarge(ids, {"C1": 12}, width=8)
        >>> large["C1"].cardinality, spread({"categorical": np.array([[2]])})
        (12, {'categorical': array([[8]])})
    """
    factors = []
    for column in schema.categorical:
        many = max(column.cardinality, int(rows[column.name]))
        factors.append(many // column.cardinality)
        schema = schema.replace(column.name, cardinality=many, embedding_dim=width)

    def spread(inputs):
        return inputs | {"categorical": inputs["categorical"] * factors}

    return schema, spread


def free_memory(models):
    """Free the numbers of models and their optimizers, which TensorFlow keeps as long as it runs.

    Args:
        models: compiled Keras models; they cannot be used any more.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        >>> model.compile("sgd", "mse")
        >>> free_memory([model])
    """
    import tensorflow as tf

    for model in models:
        for variable in (*model.variables, *model.optimizer.variables):
            if variable.dtype == "float32":  # a tensor of no numbers takes their place
                tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=tf.zeros(0))


def save_number(name, value):
    """Write down what was measured for later lessons, in build/numbers.json.

    One lesson measures a number, and later ones state it, so that pages agree.

    Args:
        name: what is measured, with its unit: "native reading, rows/s".
        value: the number, or lists and dicts of numbers and texts. It replaces what an earlier run
            wrote under this name.
    """
    from tutorlib.output import new_file  # lesson 07 imports a copy of tutorlib later

    text = json.dumps(_numbers() | {name: value}, indent=2, default=float)
    with new_file(NUMBERS) as part:  # written beside, then renamed
        part.write_text(text, "utf-8")


def saved_number(name):
    """Return what an earlier lesson saved, or None if it has not run here.

    Example:
        >>> saved_number("furlongs per fortnight")
    """
    return _numbers().get(name)


def _numbers():
    return json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.is_file() else {}


def loader_device():
    """Return where a loader can make its batches, "gpu" or "cpu", and print why.

    TensorFlow gets part of the GPU's memory and leaves the rest to the loader (lesson 04), so call
    this before anything uses the GPU.
    """
    import tensorflow as tf

    from tutorlib.gpu import limit_tensorflow_memory, missing_for_gpu

    if not tf.config.list_physical_devices("GPU"):
        print("no GPU: everything here runs on the CPU, and all numbers are CPU numbers")
        return "cpu"
    if missing := missing_for_gpu():
        print(f"the loader stays on the CPU: {missing}")
        return "cpu"
    print(f"TensorFlow may use {limit_tensorflow_memory() / 2**30:.1f} GiB of its memory")
    return "gpu"


def sliders(draw, **choices):
    """Return sliders that redraw a picture while they move; without a browser, None.

    Without ipywidgets, and in an unattended run, where nobody can move them, this prints a line:
    the page shows a few settings as saved pictures.

    Args:
        draw: function that draws with matplotlib, with a keyword argument for each slider.
        **choices: {argument: (values in order, the first to show)}.

    Example:
        >>> dials = sliders(draw_days, parts=([1, 2, 4], 2))  # doctest: +SKIP
    """
    try:
        import ipywidgets
    except ImportError:
        ipywidgets = None
    if ipywidgets is None or "LESSON_LOG" in os.environ:  # run.py sets it
        print("The sliders need ipywidgets and a browser: make lab")
        return None
    dials = {}
    for name, (values, first) in choices.items():
        options = [(f"{value:,}", value) for value in values]
        label = {"description": name.replace("_", " "), "style": {"description_width": "8em"}}
        dials[name] = ipywidgets.SelectionSlider(options=options, value=first, **label)
    # Not `draw` itself: ipywidgets would make a control of each argument that has a default.
    return ipywidgets.interactive(lambda **values: draw(**values), **dials)


def show_tensorboard(log_dir, show):
    """Open TensorBoard below the cell, or print the command that opens it.

    Args:
        log_dir: folder of the logs.
        show: whether to open it. The command waits up to a minute for its server, which then runs
            as long as the notebook's kernel: in an unattended run that would be wasted.
    """
    if not show:
        print(f"tensorboard --logdir {log_dir}")
        return
    from tensorboard import notebook

    os.environ.setdefault("TENSORBOARD_BINARY", str(Path(sys.executable).with_name("tensorboard")))
    notebook.start(f"--logdir {shlex.quote(log_dir)} --port 0")  # 0: any free port
