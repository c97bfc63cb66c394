"""Figures of the lessons: one look, values on bars, colours with one meaning.

NATIVE (grey) is TensorFlow's own way, LOADER (green) is tutorlib's loader, WAITING (red) is time
spent waiting for data.
"""

import matplotlib.pyplot as plt
import pandas as pd

from traces import LOADER, NATIVE, TEXT, WAITING

__all__ = ["LOADER", "NATIVE", "TEXT", "WAITING", "draw_bars"]


def draw_bars(values, unit, colours=None, *, axes=None, slowest=None):
    """Draw horizontal bars with their values, the first on top; return the matplotlib figure.

    Args:
        values: {name: value}; a DataFrame makes a panel for each column, all on one scale, and
            draws no bar where a value is missing.
        unit: what the axis says, such as "thousand rows per second".
        colours: {name: colour} of bars that are not NATIVE.
        axes: matplotlib axes to draw into, one for each column; by default, a new figure, 8 inches
            wide.
        slowest: the slowest turn, shaped as `values`; a line in a bar goes from it to the end.

    Example:
        >>> table = pd.DataFrame({"reading": [50.0, 7500.0], "training": [49.5, None]}, ["tf", "x"])
        >>> figure = draw_bars(table, "rows/s", {"x": LOADER}, slowest=table / 2)
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
        if slowest is not None:
            begin = slowest if isinstance(slowest, pd.Series) else slowest[title]
            panel.hlines(range(len(table)), begin.loc[table.index], column, "black", linewidth=1.5)
        panel.set(title=title, xlabel=unit, xmargin=0.25)
        panel.locator_params(axis="x", nbins=5)
        panel.spines[["top", "right"]].set_visible(False)
    return axes[0].figure
