"""Bytes that survive: files and what is like one, durably; locks; which backend has a path or a URL.

calls     The calls that reach the operating system, all of them, so that a test can put others in ...
file      `File`: one open file
keeping   Keeping what has a name in shared memory while it is made: it is gone with the last that ...
naming    How the system finds the file of a name: by its path, or as a backend has it
paths     Files by their paths: replaced, moved, deleted, looked for
refusals  What the operating system refuses, as errors of ours that keep its errno
registry  The registry of backends: which one has a path or a URL, decided once, by its scheme
source    `ByteSource`: the bytes of one archive, wherever they are
"""

from typing import Any

from edcache.storage import calls
from edcache.storage.calls import WHOLE_FILE_LOCK, System, system
from edcache.storage.file import File, Stamp, absolute, written_since_boot
from edcache.storage.keeping import kept
from edcache.storage.naming import PATHS, Naming
from edcache.storage.paths import (
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
from edcache.storage.refusals import refused
from edcache.storage.registry import (
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
from edcache.storage.source import ByteSource, Wrapped

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
    "scheme_of",
    "shown",
    "stamp",
    "sync_directory",
    "system",
    "touch",
    "written_since_boot",
]


def __getattr__(name: str) -> Any:
    # Another one within `replace_system`.
    if name == "system":
        return calls.system
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
