"""What a program makes of a disk, for very many disks.

A program without threads, clock or chance is a function of what its calls to the disk return. So it is run
only where a disk answers one of its calls as none did before; everywhere else the answers lead, call by
call, to an outcome that is known. What is compared are the answers themselves, all of them; and of the known
outcomes some are looked at again, by a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import systems
from disk import MemoryDisk
from edcache.format.tables import ChunkTable
from systems import replace_system

from edcache import EdcacheError

# Those that a disk in memory has.
CALLS = tuple(name for name in systems.CALLS if name not in ("reserve", "touch", "share"))
# One in so many.
DOUBTED = 400

Children = dict[Any, "_Node | _Leaf"]


class _Node:
    __slots__ = ("answers", "arguments", "call", "has_lists", "method")

    def __init__(self, call: tuple[Any, ...]) -> None:
        self.call = call
        self.method, self.arguments = getattr(_Asked, call[0]), call[1:]
        self.has_lists = any(type(argument) is tuple for argument in self.arguments)
        self.answers: Children = {}


class _Leaf:
    __slots__ = ("outcome", "parts")

    def __init__(self, outcome: Any, parts: int) -> None:
        self.outcome = outcome
        self.parts: list[Children] = [{} for _ in range(parts)]


class Outcomes:
    """The outcomes of one program.

    program: called with a disk in the place of the system; returns its outcome.
    runs: how often it was run. asked: on how many disks its outcome was asked for. named: the paths that it
    named.
    """

    def __init__(self, program: Callable[[MemoryDisk], Any]) -> None:
        self.program = program
        self.runs = self.asked = 0
        self.named: set[str] = set()
        self._root: Children = {}

    def of(self, files: dict[str, bytes], rebooted: bool) -> tuple[Any, MemoryDisk]:
        """The program's outcome on a disk with these files, and the disk as it leaves it."""
        self.asked += 1
        disk = _Asked(files, rebooted)
        leaf = _followed(self._root, disk)
        if leaf is None:
            return self._run(files, rebooted)
        if not self.asked % DOUBTED:
            again = MemoryDisk(files, rebooted)
            with replace_system(again):
                assert self.program(again) == leaf.outcome
            assert again.files() == disk.files()
        return leaf.outcome, disk

    def _run(self, files: dict[str, bytes], rebooted: bool) -> tuple[Any, MemoryDisk]:
        self.runs += 1
        disk = _Traced(files, rebooted)
        with replace_system(disk):
            outcome = self.program(disk)
        self.named |= disk.named
        _plant(self._root, disk.trace, _Leaf(outcome, 0))
        return outcome, disk


class Parts:
    """The outcomes of a program that begins, and then does things that do not depend on each other.

    What is damaged in one place and whole in another is then run once for each place, not for each of all
    the ways in which the places can be damaged together.

    program: a context; it gives what it found at its beginning and how many parts there are. part: called
    with the number of one within the context.
    runs, asked, named: as in `Outcomes`.
    """

    def __init__(
        self, program: Callable[[], AbstractContextManager[tuple[Any, int]]], part: Callable[[int], Any]
    ) -> None:
        self.program = program
        self.part = part
        self.runs = self.asked = 0
        self.named: set[str] = set()
        self._root: Children = {}

    def of(self, files: dict[str, bytes], rebooted: bool) -> tuple[Any, list[Any]]:
        """What was found at the beginning, and the outcome of each part."""
        self.asked += 1
        disk = _Asked(files, rebooted)
        leaf = _followed(self._root, disk)
        parts = [None] if leaf is None else [_followed(root, disk) for root in leaf.parts]
        if leaf is None or None in parts or not self.asked % DOUBTED:
            return self._run(files, rebooted)
        return leaf.outcome, [part.outcome for part in parts if part is not None]

    def _run(self, files: dict[str, bytes], rebooted: bool) -> tuple[Any, list[Any]]:
        self.runs += 1
        disk = _Traced(files, rebooted)
        with replace_system(disk), self.program() as (outcome, count):
            leaf = _plant(self._root, disk.trace, _Leaf(outcome, count))
            parts = []
            for number, root in enumerate(leaf.parts):
                disk.trace = []
                parts.append(self.part(number))
                _plant(root, disk.trace, _Leaf(parts[-1], 0))
        self.named |= disk.named
        return outcome, parts


def _followed(children: Children, disk: _Asked) -> _Leaf | None:
    """Where the disk's answers lead; None where they lead to nothing that is known."""
    answer = None
    while True:
        node = children.get(answer)
        if node is None or type(node) is _Leaf:
            return node
        answer, children = _answer(disk, node), node.answers


def _plant(children: Children, trace: list[tuple[tuple[Any, ...], Any]], leaf: _Leaf) -> _Leaf:
    """Keep what a trace led to; returns what is kept, which may have been there."""
    answer = None
    for call, given in trace:
        node = children.setdefault(answer, _Node(call))
        assert type(node) is _Node, f"the program ended once, and went on to {call[0]} with the same answers"
        assert node.call == call, f"{node.call} once, {call} now, after the same answers"
        answer, children = given, node.answers
    kept = children.setdefault(answer, leaf)
    assert type(kept) is _Leaf, "the program went on once, and ended now with the same answers"
    assert kept.outcome == leaf.outcome, f"{kept.outcome} once, {leaf.outcome} now, after the same answers"
    return kept


def as_one_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of what is on the disk, such that its result is the answer and not all that it read.

    function: its first argument is a `storage.File`, the `pread` of one, or a method of what has a `file`;
    it may raise an EdcacheError.
    """

    def ask(place: Any, *rest: Any) -> Any:
        disk = systems.current()
        if not isinstance(disk, _Asked):
            return function(place, *rest)
        owner = getattr(place, "__self__", place)
        file = getattr(owner, "file", owner)
        fd = -1 if file._descriptor is None else int(file._descriptor)
        found = disk.ask(fd, callable(place), function, rest)
        return iter(found) if type(found) is tuple else found

    return ask


class _OpenFile:
    """What a function that is asked as one call needs of a file."""

    def __init__(self, disk: MemoryDisk, fd: int) -> None:
        self._disk, self._fd = disk, fd

    def pread(self, offset: int, nbytes: int) -> bytes:
        return self._disk.pread(self._fd, nbytes, offset)

    def next_data(self, offset: int) -> int:
        return self._disk.next_data(self._fd, offset)


class _Asked(MemoryDisk):
    def ask(self, fd: int, by_pread: bool, function: Callable[..., Any], rest: tuple[Any, ...]) -> Any:
        """The result of a function of an open file; of an iterator all it gives."""
        file = _OpenFile(self, fd)
        found = function(file.pread if by_pread else file, *rest)
        return tuple(found) if isinstance(found, Iterator) else found


def _answer(disk: MemoryDisk, node: _Node) -> Any:
    arguments = node.arguments
    if node.has_lists:
        arguments = tuple(list(a) if type(a) is tuple else a for a in arguments)
    try:
        return _key(node.method(disk, *arguments))
    except (OSError, EdcacheError) as error:
        return _failure(error)


def _failure(error: OSError | EdcacheError) -> tuple[str, Any]:
    return type(error).__name__, str(error) if isinstance(error, EdcacheError) else error.errno


def _key(result: Any) -> Any:
    kind = type(result)
    if kind is bytes:
        return hash(result)  # 64 bits tell a million answers apart
    if kind is os.stat_result:
        return result.st_size, result.st_ino
    return _Same(result) if kind is ChunkTable else result


class _Same:
    """Itself alone: of equal bytes the same table is made (conftest.py)."""

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.it is self.it


def _kept(argument: Any) -> Any:
    """An argument as it is now: buffers change after the call, lists of descriptors within it."""
    if isinstance(argument, memoryview):
        return bytes(argument)
    return tuple(argument) if type(argument) is list else argument


class _Traced(_Asked):
    """Writes down each call and its answer."""

    def __init__(self, files: dict[str, bytes], rebooted: bool) -> None:
        super().__init__(files, rebooted)
        self.trace: list[tuple[tuple[Any, ...], Any]] = []
        self.named: set[str] = set()
        self._is_inside = False


def _traced(name: str) -> Callable[..., Any]:
    plain = getattr(_Asked, name)

    def traced(self: _Traced, *arguments: Any) -> Any:
        if self._is_inside:  # one call of the disk by another
            return plain(self, *arguments)
        self._is_inside = True
        call = (name, *(_kept(argument) for argument in arguments))
        self.named.update(argument for argument in arguments if isinstance(argument, str))
        try:
            result = plain(self, *arguments)
            self.trace.append((call, _key(result)))
            return result
        except (OSError, EdcacheError) as error:
            self.trace.append((call, _failure(error)))
            raise
        finally:
            self._is_inside = False

    return traced


for _name in (*CALLS, "ask"):
    setattr(_Traced, _name, _traced(_name))
