"""row_bar: a progress bar that counts rows, drawn by tqdm where that is installed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def row_bar(label: str, rows: int, progress: bool | None) -> Iterator[Callable[[int], None]]:
    """Give a function to call, from any thread, with a number of rows that are done.

    Args:
        label: text before the bar.
        rows: rows in total.
        progress: True draws a bar, False draws nothing, None draws one if tqdm is installed and
            the standard error output is a terminal.

    Raises:
        ImportError: for True, if tqdm is not installed.

    Example:
        >>> with row_bar("fit", 5, progress=False) as done:
        ...     done(5)
    """
    bar_class: Any = None
    if progress is not False:
        try:
            from tqdm import tqdm

            bar_class = tqdm
        except ImportError as error:
            if progress:
                raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    if bar_class is None:
        yield lambda rows: None
        return
    lock = threading.Lock()
    disable = None if progress is None else False  # None: unless the output is a terminal
    with tqdm(total=rows, desc=label, unit=" rows", unit_scale=True, disable=disable) as bar:

        def done(rows: int) -> None:
            with lock:
                bar.update(rows)

        yield done
