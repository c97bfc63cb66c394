"""Figures of the lessons, bars and traces: one look, values on bars, colours with one meaning.

NATIVE (grey) is TensorFlow's own way, LOADER (green) is tutorlib's loader, WAITING (red) is time
spent waiting for data.
"""

import matplotlib.pyplot as plt
import pandas as pd

from traces import LOADER, NATIVE, TEXT, WAITING

__all__ = ["LOADER", "NATIVE", "TEXT", "WAITING", "draw_bars", "draw_epochs", "draw_turns"]


def draw_bars(values, unit, colours=None, *, axes=None):
    """Draw horizontal bars with their values, the first on top; return the matplotlib figure.

    Args:
        values: {name: value}; a DataFrame makes a panel for each column, all on one scale, and
            draws no bar where a value is missing.
        unit: what the axis says, such as "thousand rows per second".
        colours: {name: colour} of bars that are not NATIVE.
        axes: matplotlib axes to draw into, one for each column; by default, a new figure, 8 inches
            wide.

    Example:
        >>> table = pd.DataFrame({"reading": [50.0, 7500.0], "training": [49.5, None]}, ["tf", "x"])
        >>> figure = draw_bars(table, "rows/s", {"x": LOADER})
        >>> [[text.get_text() for text in panel.texts] for panel in figure.axes]  # from below
        [['7,500', '50'], ['', '49.5']]
        >>> from matplotlib.colors import to_hex
        >>> [to_hex(bar.get_facecolor()) for bar in figure.axes[0].patches] == [LOADER, NATIVE]
        True
    """
    table = values if isinstance(values, pd.DataFrame) else pd.Series(values).to_frame("")
    table = table.iloc[::-1]  # barh draws from the bottom up
    if axes is None:
        size = (8, min(0.4 * len(table) + 0.9, 3.5))
        grid = {"sharex": True, "sharey": True, "squeeze": False, "layout": "constrained"}
        axes = plt.subplots(1, len(table.columns), figsize=size, **grid)[1][0]
    axes = axes if len(table.columns) > 1 else [getattr(axes, "flat", [axes])[0]]
    for panel, (title, column) in zip(axes, table.items(), strict=True):
        shades = [(colours or {}).get(name, NATIVE) for name in table.index]
        bars = panel.barh([str(name) for name in table.index], column, 0.65, color=shades)
        texts = [f"{float(f'{x:.3g}'):,.15g}" if pd.notna(x) else "" for x in column]  # 3 digits
        panel.bar_label(bars, texts, padding=4)
        panel.set(title=title, xlabel=unit, xmargin=0.25)
        panel.locator_params(axis="x", nbins=5)
        panel.spines[["top", "right"]].set_visible(False)
    return axes[0].figure


def draw_turns(turns, unit, colours=None):
    """Draw turns, as `measure_rates` returns them: a bar is the median, its line the range.

    Args:
        turns: a row per turn and a column per bar.
        unit: what the axis says, such as "thousand rows per second".
        colours: {name: colour} of bars that are not NATIVE.

    Returns:
        The matplotlib figure.

    Example:
        >>> figure = draw_turns(pd.DataFrame({"tf": [1, 3, 2], "x": [9, 8, 4]}), "rows/s")
        >>> [text.get_text() for text in figure.axes[0].texts]  # from below
        ['8', '2']
    """
    figure = draw_bars(turns.median(), unit, colours)
    [panel], shown = figure.axes, turns[turns.columns[::-1]]
    low, high = shown.min(), shown.max()
    panel.hlines(range(len(low)), low, high, "black", linewidth=1.5)
    for text, end in zip(panel.texts, high, strict=True):
        text.xy = end, text.xy[1]  # beside the line
    return figure


def draw_epochs(epochs, wait_share, ceiling_s, figure, text="black"):
    """Draw how long an epoch takes with each reader, beside the same without any.

    Args:
        epochs: {reader: seconds of an epoch}, the first on top: what was diagnosed.
        wait_share: share of the first that waits for data, in red; of the others it is not known.
        ceiling_s: seconds without a reader, a dashed line.
        figure: an empty matplotlib figure, which gets as wide as a telephone.
        text: colour of all text.

    Example:
        >>> epochs = {"rows": 4.0, "arrays": 0.5, "loader": 0.45}
        >>> figure = draw_epochs(epochs, 0.75, 0.4, plt.figure())
        >>> [said.get_text() for said in figure.axes[0].texts]
        ['4.0 s', '0.50 s', '0.45 s', 'waiting']
    """
    figure.set_size_inches(5.6, 0.36 * len(epochs) + 0.8)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    for y, (reader, seconds) in enumerate(epochs.items()):
        axes.barh(y, seconds, 0.62, color=LOADER if reader == "loader" else NATIVE)
        said = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
        beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "color": text}
        axes.annotate(said, (max(seconds, ceiling_s), y), **beside)
    waiting = wait_share * next(iter(epochs.values()))
    axes.barh(0, waiting, 0.62, color=WAITING)
    axes.text(waiting / 2, 0, "waiting", color="white", va="center", ha="center")
    axes.axvline(ceiling_s, color=text, linestyle="--")
    axes.set_yticks(range(len(epochs)), list(epochs), color=text)
    axes.invert_yaxis()
    axes.set_xlabel("seconds of an epoch; dashed: without any reader", color=text)
    axes.set_xmargin(0.12)
    axes.tick_params(colors=text)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(text)
    return figure
