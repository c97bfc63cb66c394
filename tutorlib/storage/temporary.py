"""TemporaryFolder: a folder among the temporary files that lives as long as an object."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

from tutorlib.storage.atomic import discard_left
from tutorlib.storage.locks import lock_handle
from tutorlib.storage.owned import mark, remove


class TemporaryFolder:
    """An empty folder (in TMPDIR), removed when the last reference to this object is gone.

    What killed processes left under the same prefix is removed first. A pickled copy, and a process
    that was forked, use the folder but do not remove it.

    Args:
        prefix: how the folder's name begins.

    Attributes:
        path: the folder.

    Example:
        >>> folder = TemporaryFolder("tutorlib_example_")
        >>> path = folder.path
        >>> path.is_dir()
        True
        >>> del folder
        >>> path.exists()
        False
    """

    def __init__(self, prefix: str) -> None:
        discard_left(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        handle = lock_handle(self.path)
        mark(self.path)
        weakref.finalize(self, _remove, self.path, handle, os.getpid())

    def __deepcopy__(self, _: Any) -> TemporaryFolder:
        return self

    def __reduce__(self) -> Any:
        return _Used, (self.path,)


class _Used(TemporaryFolder):
    """The folder of an object in another process."""

    def __init__(self, path: Path) -> None:
        self.path = path


def _remove(folder: Path, handle: int | None, process: int) -> None:
    if os.getpid() != process:  # a forked child
        return
    remove(folder)
    if handle is not None:
        os.close(handle)
