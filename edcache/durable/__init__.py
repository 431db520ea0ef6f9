"""Bytes that survive: open, read, write, sync, lock and replace files, and nothing else.

    paths     files by their paths: replaced, moved, deleted, looked for
    keeping   who keeps what has a name in shared memory there, while it is made
    file      `File`: one open file: read and written at offsets, synced, locked
    refusals  what the system refuses, as errors of ours
    calls     `System`: the calls of the operating system, one method each
    naming    how the system finds the file of a name, where that is no path
    registry  which backend has a path or a URL; how another's is installed
    source    `ByteSource`: the bytes of one archive, wherever they are

Each imports only those below it. Every file operation of the package goes through `File` and the functions
of `paths`, and every one of those through `system`, so that a test can record the operations or fail the
n-th one (`replace_system`). What the operating system does *not* promise:

- A write is in the page cache when it returns, not on the disk; after a power loss any part of it
  may be absent. Only `sync` promises more, and only for what was written before it began.
- A failed sync leaves the pages marked clean: trying again proves nothing (fsyncgate, 2018).
- A new name is on the disk only after `sync_directory` of its folder.
- On Linux a pwrite to a descriptor opened with O_APPEND ignores its offset, so none is.
- A POSIX record lock vanishes when *any* descriptor of the file is closed in the process. Locks
  here are open-file-description locks, which end with the description that took them: at its last
  close, however the process dies. A fork shares them; so a child closes what its parent may lock.
"""

from typing import Any

from edcache.durable import calls
from edcache.durable.calls import WHOLE_FILE_LOCK, System, replace_system
from edcache.durable.file import File, Stamp, absolute, written_since_boot
from edcache.durable.keeping import kept
from edcache.durable.naming import PATHS, Naming
from edcache.durable.paths import (
    allocated,
    copy_permissions,
    exists,
    make_parent,
    move,
    names_in,
    remove,
    remove_tree,
    replace,
    stamp,
    sync_directory,
    touch,
)
from edcache.durable.refusals import refused
from edcache.durable.registry import (
    Location,
    backend_of,
    check_outlives,
    copies_on_disk,
    hidden,
    local_path,
    located,
    open_copy,
    scheme_of,
    shown,
)
from edcache.durable.source import ByteSource, Wrapped

__all__ = [
    "PATHS",
    "WHOLE_FILE_LOCK",
    "ByteSource",
    "File",
    "Location",
    "Naming",
    "Stamp",
    "System",
    "Wrapped",
    "absolute",
    "allocated",
    "backend_of",
    "check_outlives",
    "copies_on_disk",
    "copy_permissions",
    "exists",
    "hidden",
    "kept",
    "local_path",
    "located",
    "make_parent",
    "move",
    "names_in",
    "open_copy",
    "refused",
    "remove",
    "remove_tree",
    "replace",
    "replace_system",
    "scheme_of",
    "shown",
    "stamp",
    "sync_directory",
    "touch",
    "written_since_boot",
]


def __getattr__(name: str) -> Any:
    # Another one within `replace_system`.
    if name == "system":
        return calls.system
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
