"""Files: written beside their place, then renamed, so that no half-written output looks whole.

Does not belong here: any format.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def refuse_existing(target: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise FileExistsError if `target` is there and may not be replaced."""
    if Path(target).exists() and not overwrite:
        raise FileExistsError(f"{target} is there already; pass overwrite=True to replace it")


@contextlib.contextmanager
def written_whole(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a free path beside `target`; what is there when the block ends well takes its place.

    The path is that of the target with `.partial` behind it; what an earlier run has left there is
    removed first, and what is there when the block ends by an error is removed too.

    Args:
        target: file or folder to be.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "numbers.txt"
        >>> with written_whole(target) as path:
        ...     _ = path.write_text("1 2 3")
        >>> target.read_text(), path.exists()
        ('1 2 3', False)
    """
    target = Path(target)
    partial = target.with_name(target.name + ".partial")
    remove(partial)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        replace(target, partial)
    finally:
        remove(partial)


def replace(target: Path, new: Path) -> None:
    """Rename `new`, a file or a folder, to `target`, which may be there already."""
    if target.is_dir() or (target.exists() and new.is_dir()):
        old = target.with_name(target.name + ".replaced")
        remove(old)
        target.rename(old)
        new.rename(target)
        remove(old)
    else:
        new.replace(target)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it; nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
