"""Names for archives in shared memory: "shm://digits" in the place of a path.

What has such a name is a file without one (a memfd), which the kernel frees when the last process that has it
open or mapped ends, however it ends. Its name is an *entry*, a small file in a folder of the user's. Whoever
has the memory open holds it, by locking the byte of the entry that says where: so the kernel's own table of
locks is the list of holders, and a killed process leaves nothing wrong in it.

    byte of an entry                    locked by
    0                                   whoever makes, joins or takes away the name, for that moment
    2**60 + process * 2**31 + number    the process, which has the memory open under that number

Another process joins by opening `/proc/<process>/fd/<number>` of any holder, and is one too from then on. The
entry's text says which file that has to be (device, inode), and in which namespace processes are numbered.
An entry that nobody holds says nothing; who next makes a name removes it. Names are a user's own, for the
processes that share its /dev/shm and its process numbers: on one host, outside containers or inside one.

Everything here is Linux's; elsewhere a name is refused.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from edcache import base, format
from edcache.backends import FileStore, copy_bytes
from edcache.base import ArchiveNotFoundError, OptionError, StorageError, human_bytes
from edcache.storage import ByteSource, File, Location, Naming, System, Wrapped, calls

PREFIX: Final = "shm://"
_TOP, _SUFFIX = "/dev/shm", ".entry"  # noqa: S108 - the folder in it is the user's own, which is checked
_MOST_NAME: Final = 200
_FLAGS: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_TURN: Final = 0
_COPYING: Final = 0
_HOLDERS: Final = 1 << 60
_NUMBER_BITS: Final = 31
_END: Final = (1 << 63) - 1
# The memory of a process that ends is given back before its locks are.
_ENDING_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.01
# To look at what is free costs as much as to write so much.
_UNLOOKED_NBYTES: Final = 1 << 20
_REMEDY: Final = (
    "end what else takes memory, store less (compression=, fewer samples), or give the path of a file"
)


class Holder(NamedTuple):
    """A process, and the number of the descriptor under which it has the memory open."""

    pid: int
    fd: int

    @property
    def path(self) -> str:
        """Where others open it."""
        return f"/proc/{self.pid}/fd/{self.fd}"

    @property
    def byte(self) -> int:
        """What it has locked."""
        return _HOLDERS + (self.pid << _NUMBER_BITS) + self.fd


# Held while descriptors are not in their File yet: a fork would leave them open in the child for ever.
_opening = threading.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release
    )


def entry(path: str) -> str:
    """The file that stands for a name: its entry; OptionError where no archive can have this name here."""
    if not (hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd") and os.path.isdir(_TOP)):
        raise OptionError(
            f"{path}: archives in memory take Linux with memfd_create, /proc and /dev/shm; elsewhere give "
            "the path of a file, on a RAM disk for instance"
        )
    if not path.startswith(PREFIX):
        raise OptionError(f'{path}: write it as text, "{PREFIX}name"; a Path has lost a slash')
    name = quote(path[len(PREFIX) :], safe="")
    if not 0 < len(name) <= _MOST_NAME or "\0" in path:
        raise OptionError(f'{path}: give 1 to {_MOST_NAME} letters after "{PREFIX}"')
    return os.path.join(_folder(), name + _SUFFIX)


def _folder() -> str:
    return os.path.join(_TOP, f"edcache-{os.geteuid()}")


def _hold(system: System, into: list[int]) -> None:
    """Lock the byte of a number under which the memory is open."""
    while True:
        try:
            system.lock(into[0], Holder(os.getpid(), into[-1]).byte, 1, False)
            break
        except BlockingIOError:
            # By a child that another thread has just forked, of what this process had under that number.
            # In one call, as is the closing below: an interrupt between two would leak a descriptor.
            into.extend(map(os.dup, into[-1:]))
    while len(into) > 2:
        list(map(os.close, map(into.pop, (1,))))


def holders(system: System, path: str) -> list[Holder]:
    """Who has open what has a name in memory; nobody where nothing has it."""
    with suppress(FileNotFoundError), _closing() as descriptors:
        descriptors.extend(map(os.open, (entry(path),), (_FLAGS,)))
        return sorted(_holders(system, descriptors[0]))
    return []


def names() -> list[str]:
    """Every name that has an entry, whether anybody holds it or not."""
    try:
        entries = os.listdir(_folder()) if hasattr(os, "memfd_create") else []
    except FileNotFoundError:
        return []
    return sorted(PREFIX + unquote(name[: -len(_SUFFIX)]) for name in entries if name.endswith(_SUFFIX))


# ------------------------------------------------------------------------------------------ entries


@contextmanager
def _turn_at(system: System, where: str, creates: bool, into: list[int]) -> Iterator[None]:
    """Open an entry, made if it is to be, and have its turn for the block. The caller closes it."""
    flags = _FLAGS | (os.O_CREAT if creates else 0)
    while True:
        into.extend(map(os.open, (where,), (flags,), (0o600,)))
        system.lock(into[0], _TURN, 1, True)
        # Its last holder may just have removed it.
        if _leads_to(where, into[0]):
            break
        _close(into)
    try:
        yield
    finally:
        system.unlock(into[0], _TURN, 1)


def _leads_to(where: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.lstat(where), os.fstat(fd))
    except FileNotFoundError:
        return False


def _holders(system: System, fd: int) -> Iterator[Holder]:
    """Who has locked its byte, in any order; some hundred may have."""
    ranges = [(_HOLDERS, _END)]
    while ranges:
        start, end = ranges.pop()
        byte = system.first_locked(fd, start, end - start) if start < end else None
        if byte is not None:
            yield Holder(*divmod(byte - _HOLDERS, 1 << _NUMBER_BITS))
            ranges += [(start, byte), (byte + 1, end)]


def _is_held(system: System, fd: int) -> bool:
    return next(_holders(system, fd), None) is not None


def _make(system: System, path: str, into: list[int]) -> None:
    """Make memory for the entry that has its turn, and remove entries that nobody holds."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    into.extend(map(os.memfd_create, (f"edcache:{path[len(PREFIX) :]}",), (flags,)))
    made = os.fstat(into[1])
    os.ftruncate(into[0], 0)
    os.pwrite(into[0], f"{made.st_dev} {made.st_ino} {process_namespace()}\n".encode("ascii"), 0)
    for where in (os.path.join(_folder(), name) for name in os.listdir(_folder())):
        # What cannot be opened or has its turn now is looked at another time.
        with suppress(OSError), _closing() as descriptors:
            descriptors.extend(map(os.open, (where,), (_FLAGS,)))
            system.lock(descriptors[0], _TURN, 1, False)
            _remove_unheld(system, where, descriptors[0])


def _remove_unheld(system: System, where: str, fd: int) -> None:
    if not _is_held(system, fd) and _leads_to(where, fd):
        os.unlink(where)


def process_namespace() -> int:
    """Which processes have the numbers that this one sees; containers have their own."""
    return os.stat("/proc/self/ns/pid").st_ino


def _join(system: System, flags: int, into: list[int]) -> bool:
    """Open the memory that an entry leads to; False where nobody holds it."""
    until = time.monotonic() + _ENDING_SECONDS
    while True:
        holder, why = None, ""
        for holder in _holders(system, into[0]):
            words = os.pread(into[0], 100, 0).split()
            if len(words) != 3 or not all(map(bytes.isdigit, words)):
                where = os.readlink(f"/proc/self/fd/{into[0]}")
                raise OSError(errno.EINVAL, f"{where} is damaged; choose another name")
            device, inode, namespace = map(int, words)
            if namespace != process_namespace():
                why = " (it is in another container)"
                break
            try:
                there = os.stat(holder.path)
                if (there.st_dev, there.st_ino) == (device, inode):
                    into.extend(map(os.open, (holder.path,), (flags | os.O_CLOEXEC,)))
                    return True
            except FileNotFoundError:
                continue  # it ends, or closes it
            except PermissionError as error:
                why = f" ({error.strerror})"
        if holder is None:
            return False
        if why or time.monotonic() > until:
            text = f"process {holder.pid} has it, which this one cannot look into{why}; choose another name"
            raise OSError(errno.EACCES, text)
        time.sleep(_LOOK_SECONDS)


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


@contextmanager
def _closing() -> Iterator[list[int]]:
    """A list for descriptors, which are closed behind the block."""
    descriptors: list[int] = []
    try:
        yield descriptors
    finally:
        _close(descriptors)


# ------------------------------------------------------------------------------------------ backend


class MemoryNaming(Naming):
    """Files by their names in memory."""

    absent = "no process of this user has it open in memory; build the cache first, and keep it open there"
    is_volatile = True
    entry = staticmethod(entry)
    _unlooked_nbytes = _UNLOOKED_NBYTES

    def open(self, system: System, path: str, flags: int, into: list[int]) -> None:
        """Open what has a name in memory; with O_CREAT make it where nothing has.

        `into` gets the descriptor of the entry, then that of the memory: closed together, after `forget`.
        """
        where, folder, creates = entry(path), _folder(), bool(flags & os.O_CREAT)
        if creates:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
        with suppress(FileNotFoundError):
            status = os.lstat(folder)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                raise OSError(errno.EPERM, f"{folder} is not a folder of this user; delete it")
        try:
            with _opening, _turn_at(system, where, creates, into):
                if flags & os.O_EXCL and _is_held(system, into[0]):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
                if not _join(system, flags & ~(os.O_CREAT | os.O_EXCL), into):
                    if not creates:
                        os.unlink(where)
                        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                    _make(system, path, into)
                _hold(system, into)
        except BaseException:
            _close(into)
            raise

    def stat(self, system: System, path: str) -> os.stat_result:
        with _closing() as descriptors:
            self.open(system, path, os.O_RDONLY, descriptors)
            return os.fstat(descriptors[-1])

    @contextmanager
    def turn(self, system: System, path: str, *, creates: bool = False) -> Iterator[None]:
        where = entry(path)
        with _closing() as descriptors, _opening, _turn_at(system, where, creates, descriptors):
            yield

    def reserve(self, fd: int, offset: int, nbytes: int) -> None:
        """Take the memory of a range that is to be written; ENOMEM before the kernel has to end processes."""
        if offset + nbytes <= os.fstat(fd).st_size:
            return
        self._unlooked_nbytes += nbytes
        if self._unlooked_nbytes > _UNLOOKED_NBYTES:
            free = base.available()
            if nbytes > free:
                text = f"{os.strerror(errno.ENOMEM)}, {human_bytes(free)} are free; {_REMEDY}"
                raise OSError(errno.ENOMEM, text)
            self._unlooked_nbytes = 0
        try:
            os.posix_fallocate(fd, offset, nbytes)
        except OSError as error:
            raise OSError(error.errno, f"{os.strerror(error.errno or 0)}; {_REMEDY}") from None

    def forget(self, system: System, descriptors: list[int]) -> None:
        """Take the name away, before its descriptors are closed, where nobody else holds it."""
        if len(descriptors) < 2 or not _opening.acquire(blocking=False):
            return
        try:
            with suppress(OSError):
                # Not waiting: a garbage collection may come within the turn of this very thread.
                system.lock(descriptors[0], _TURN, 1, False)
                try:
                    _remove_unheld(system, os.readlink(f"/proc/self/fd/{descriptors[0]}"), descriptors[0])
                finally:
                    system.unlock(descriptors[0], _TURN, 1)
        finally:
            _opening.release()

    def inherit(self, system: System, descriptors: list[int]) -> None:
        """Hold, in a forked child, what the parent holds; the parent's own lock ends with the parent."""
        if len(descriptors) < 2:
            return
        # Without, the child still has the memory, but nobody finds it there.
        with suppress(OSError), _closing() as held:
            held.extend(map(os.open, (f"/proc/self/fd/{descriptors[0]}",), (os.O_RDWR | os.O_CLOEXEC,)))
            system.lock(held[0], Holder(os.getpid(), descriptors[1]).byte, 1, False)
            os.dup2(held[0], descriptors[0], inheritable=False)


class MemoryStore(FileStore):
    """A cache in shared memory."""

    is_volatile = True
    naming = MemoryNaming()

    def _free(self) -> int:
        return base.available()

    def check_deletable(self) -> None:
        held = held_at(self.path)
        if held is not None:
            who = ", ".join(map(str, held.pids))
            raise OptionError(
                f"{self.path}: in memory, where it is freed as soon as no process has it open; these have: "
                f"{who}"
            )


@dataclass(frozen=True, slots=True)
class Held:
    """An archive in shared memory, freed when the last of the processes `pids` closes it or ends."""

    path: str
    nbytes: int
    pids: tuple[int, ...]


def archives_in_memory() -> list[Held]:
    """The archives of this user in shared memory on this host, by name; those that `preload` made too."""
    return [held for held in map(held_at, names()) if held is not None]


def held_at(path: str) -> Held | None:
    """The archive that has a name in memory; None where nothing has."""
    who = holders(calls.system, path)
    for holder in who:
        with suppress(OSError):  # it ends at this moment
            return Held(path, os.stat(holder.path).st_size, tuple(sorted({holder.pid for holder in who})))
    return None


# ------------------------------------------------------------------------------------------ preload


class MemoryCopy(Wrapped):
    """The copy of an archive, open for reading; `token` is its name in memory. Messages name the archive."""

    def __init__(self, where: Location, name: str, data: File) -> None:
        super().__init__(data)
        self.path, self.token = where.path, name
        self._where = where

    def reopened(self) -> MemoryCopy:
        return open_copy(self._where)


def open_copy(where: Location, token: str | None = None) -> MemoryCopy:
    """Copy an archive to memory, once for a host, or join a copy that is there or is just made.

    The copy has the name of what it is a copy of: device, inode, size and time of the last write. A file
    that has changed is another one, and gets a copy of its own.

    Args:
        token: of the copy that another process reads, though the archive may have changed since.
    """
    joined = None if token is None else _join_copy(where, token)
    if joined is not None:
        return joined
    with closing(where.open()) as source:
        # Another container cannot be joined, though it may share the folder of the entries.
        tag = process_namespace(), *source.tag()
        name = PREFIX + "-".join(["preload", *map(str, tag)])
        return _join_copy(where, name) or _make_copy(where, source, name)


def _join_copy(where: Location, name: str) -> MemoryCopy | None:
    """Open a copy that is there already and complete; else None."""
    try:
        file = File.open(name, "r")
    except ArchiveNotFoundError:
        return None
    if file.is_frozen():
        return MemoryCopy(where, name, file)
    file.close()
    return None


def _make_copy(where: Location, source: ByteSource, name: str) -> MemoryCopy:
    with closing(File.open(name, "a")) as copy:
        copy.path = f"{source.path}: its copy in memory"
        with copy.locked(_COPYING):
            # Whoever was killed at it left some bytes, which are copied again.
            if not copy.is_frozen():
                format.read_head(source.pread, source.path)  # not gigabytes of what is no archive
                nbytes, free = source.size(), base.available() + copy.size()
                if nbytes > free:
                    error = StorageError(
                        f"{source.path}: takes {human_bytes(nbytes)} of memory, {human_bytes(free)} are "
                        "free; end what else takes memory, or read it from the disk, without preload"
                    )
                    error.errno = errno.ENOMEM
                    raise error
                copy_bytes(source, copy)
                copy.freeze()
        # Before it is closed here, or it might be gone.
        joined = _join_copy(where, name)
    assert joined is not None
    return joined
