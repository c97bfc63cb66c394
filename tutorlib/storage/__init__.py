"""Storage: outputs that are whole or absent, also after a kill or on a full disk.

`atomic` writes a file or folder under a staging name, then renames it; `resumable` continues a
folder after a kill; `owned` says which folders may be removed; `locks` keeps other processes out;
`checkpoints` numbers a training's folders; a `temporary` folder lives as long as an object. Long
writes show their `progress`.
"""

from tutorlib.storage.atomic import new_file, new_folder, scratch_folder, temporary_folder
from tutorlib.storage.checkpoints import Checkpoint, find_checkpoints, new_checkpoint, remove_old
from tutorlib.storage.locks import locked_folder
from tutorlib.storage.owned import (
    MARK,
    is_ours,
    mark,
    refuse_existing,
    refuse_foreign,
    refuse_overlap,
    remove,
)
from tutorlib.storage.progress import row_bar
from tutorlib.storage.resumable import METADATA_FILE, new_file_in, resumable_folder
from tutorlib.storage.temporary import TemporaryFolder

__all__ = [
    "MARK",
    "METADATA_FILE",
    "Checkpoint",
    "TemporaryFolder",
    "find_checkpoints",
    "is_ours",
    "locked_folder",
    "mark",
    "new_checkpoint",
    "new_file",
    "new_file_in",
    "new_folder",
    "refuse_existing",
    "refuse_foreign",
    "refuse_overlap",
    "remove",
    "remove_old",
    "resumable_folder",
    "row_bar",
    "scratch_folder",
    "temporary_folder",
]
