"""Storage: outputs that are whole or absent, also after a crash or a full disk.

`atomic` writes a file or folder under another name, then renames it; `resumable` continues a folder
that an earlier run began; `checkpoints` numbers a training's folders and finds the newest. Long
writes run on `threads` and show their `progress`.
"""

from tutorlib.storage.atomic import refuse_existing, written_whole
from tutorlib.storage.checkpoints import Checkpoint, find_checkpoints, new_checkpoint, remove_old
from tutorlib.storage.progress import row_bar
from tutorlib.storage.resumable import METADATA_FILE, unfinished_folder, written_into
from tutorlib.storage.threads import map_on_threads

__all__ = [
    "METADATA_FILE",
    "Checkpoint",
    "find_checkpoints",
    "map_on_threads",
    "new_checkpoint",
    "refuse_existing",
    "remove_old",
    "row_bar",
    "unfinished_folder",
    "written_into",
    "written_whole",
]
