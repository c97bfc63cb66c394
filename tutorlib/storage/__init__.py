"""Storage: outputs that are whole or absent, also after a kill or on a full disk.

`atomic` writes a file or folder under a staging name, then renames it; `resumable` continues a
folder after a kill; `owned` says which folders may be removed; `locks` keeps other processes out;
`checkpoints` numbers a training's folders; a `temporary` folder lives as long as an object. Long
writes show their `progress`. `filesystems` finds the filesystem of a URL, `remote` writes to it.
"""

from tutorlib.storage.atomic import new_file, new_folder, scratch_folder, temporary_folder
from tutorlib.storage.checkpoints import Checkpoint, find_checkpoints, new_checkpoint, remove_old
from tutorlib.storage.filesystems import (
    as_arrow_filesystem,
    etag_of,
    find_filesystem,
    store_errors,
    store_failure,
)
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
from tutorlib.storage.remote import (
    local_copy,
    output_path,
    read_text,
    remote_output,
    resumable_remote,
)
from tutorlib.storage.remote_path import METADATA_FILE, RemotePath, refuse_unfinished
from tutorlib.storage.resumable import new_file_in, resumable_folder
from tutorlib.storage.temporary import TemporaryFolder

__all__ = [
    "MARK",
    "METADATA_FILE",
    "Checkpoint",
    "RemotePath",
    "TemporaryFolder",
    "as_arrow_filesystem",
    "etag_of",
    "find_checkpoints",
    "find_filesystem",
    "is_ours",
    "local_copy",
    "locked_folder",
    "mark",
    "new_checkpoint",
    "new_file",
    "new_file_in",
    "new_folder",
    "output_path",
    "read_text",
    "refuse_existing",
    "refuse_foreign",
    "refuse_overlap",
    "refuse_unfinished",
    "remote_output",
    "remove",
    "remove_old",
    "resumable_folder",
    "resumable_remote",
    "row_bar",
    "scratch_folder",
    "store_errors",
    "store_failure",
    "temporary_folder",
]
