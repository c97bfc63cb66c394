"""Progress: a bar that counts rows, drawn by tqdm where it is installed.

Does not belong here: what the rows are counted for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def row_bar(label: str, rows: int, progress: bool | None) -> Iterator[Callable[[int], None]]:
    """Give a function to call, from any thread, with the number of rows that are done.

    Args:
        label: what is being done.
        rows: how many there are to do.
        progress: False draws nothing, True draws a bar, None draws one if the standard error
            output is a terminal and tqdm is installed.

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
    disable = None if progress is None else False
    with bar_class(total=rows, desc=label, unit=" rows", unit_scale=True, disable=disable) as bar:

        def done(rows: int) -> None:
            with lock:
                bar.update(rows)

        yield done
