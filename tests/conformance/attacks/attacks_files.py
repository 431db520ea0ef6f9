"""What is at the path, if it is no ordinary file."""

import os
import socket

from catalogue import attack
from forge import PAGE, Forge

REGULAR = "not a regular file"


@attack("files", "a FIFO", "waits for a writer for ever", "open", "StorageError", REGULAR)
def fifo(f: Forge):
    os.mkfifo(f.path)


@attack(
    "files", "a folder", "IsADirectoryError", "open", "ArchiveNotFoundError", "no .zip file in this folder"
)
def folder(f: Forge):
    f.path.mkdir()


@attack("files", "a socket", "OSError of another kind", "open", "StorageError", "opening it")
def unix_socket(f: Forge):
    here = os.getcwd()
    os.chdir(f.path.parent)  # a socket's name is short
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(f.path.name)
    finally:
        os.chdir(here)


@attack("files", "a symbolic link to a device", "reads zeros for ever", "open", "StorageError", REGULAR)
def device(f: Forge):
    f.path.symlink_to("/dev/zero")


@attack("files", "a symbolic link to a FIFO", "waits for a writer for ever", "open", "StorageError", REGULAR)
def link_to_fifo(f: Forge):
    os.mkfifo(f.path.with_suffix(".fifo"))
    f.path.symlink_to(f.path.with_suffix(".fifo"))


@attack("files", "a symbolic link to itself", "OSError of another kind", "open", "StorageError", "opening it")
def link_to_itself(f: Forge):
    f.path.symlink_to(f.path)


@attack(
    "files", "a symbolic link to nowhere", "FileNotFoundError", "open", "ArchiveNotFoundError", "no such file"
)
def link_to_nowhere(f: Forge):
    f.path.symlink_to(f.path.with_suffix(".nothing"))


@attack("files", "an empty file", "an IndexError", "open", "CorruptArchiveError", "it is empty")
def empty(f: Forge):
    return b""


@attack("files", "one byte", "struct.error", "open", "CorruptArchiveError", "not an edcache archive")
def one_byte(f: Forge):
    return b"P"


@attack(
    "files",
    "a zip file of somebody else",
    "takes its entries for chunks",
    "open",
    "CorruptArchiveError",
    "not an edcache archive",
)
def another_zip(f: Forge):
    return b"PK\3\4" + bytes(26) + b"word/document.xml" + bytes(5000)


@attack(
    "files",
    "nothing but end records",
    "a negative offset of the directory",
    "open",
    "CorruptArchiveError",
    "not an edcache archive",
)
def ends_only(f: Forge):
    return f.build()[-98:]


@attack(
    "files",
    "a terabyte of hole",
    "reads a terabyte of zeros",
    "open",
    "CorruptArchiveError",
    "not an edcache archive",
)
def hole(f: Forge):
    f.path.write_bytes(b"")
    os.truncate(f.path, 1 << 40)


@attack(
    "files",
    "a head, and a terabyte of hole behind it",
    "looks for entries in all of it",
    "sample 0",
    "SampleIndexError",
    "not in [-0, 0)",
    longer=True,
)
def head_and_hole(f: Forge):
    f.entries = []
    f.path.write_bytes(f.unsealed().build()[:PAGE])
    os.truncate(f.path, 1 << 40)


@attack("files", "an archive, and a terabyte of hole behind it", "maps and reads a terabyte", None)
def archive_and_hole(f: Forge):
    """A torn tail; the chain before it is read."""
    f.path.write_bytes(f.build())
    os.truncate(f.path, 1 << 40)


@attack(
    "files",
    "an archive with a terabyte of hole before its end records",
    "the directory is a terabyte away",
    None,
)
def hole_inside(f: Forge):
    """No seal ends like that; the chain before it is read."""
    data = f.build()
    f.path.write_bytes(data)
    os.truncate(f.path, 1 << 40)
    with open(f.path, "r+b") as file:
        file.seek((1 << 40) - 98)
        file.write(data[-98:])
