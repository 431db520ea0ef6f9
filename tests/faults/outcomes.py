"""What a program makes of a disk, for very many disks.

A program without threads, clock or chance is a function of what its calls to the disk return. So it is run
only where a disk answers one of its calls as none did before; everywhere else the answers lead, call by
call, to an outcome that is known. What is compared are the answers themselves, all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from disk import MemoryDisk

from edcache import durable

CALLS = (
    *("open", "close", "stat", "stat_path", "map", "pread", "next_data", "pread_cached", "will_need"),
    *("write_back", "pwrite", "truncate", "sync", "sync_directory", "make_folders", "copy_permissions"),
    *("replace", "remove", "boot_time", "lock", "is_locked", "unlock"),
)


class _Node:
    __slots__ = ("answers", "arguments", "call", "has_lists", "method")

    def __init__(self, call: tuple[Any, ...]) -> None:
        self.call = call
        self.method, self.arguments = getattr(MemoryDisk, call[0]), call[1:]
        self.has_lists = any(type(argument) is tuple for argument in self.arguments)
        self.answers: dict[Any, _Node | _Leaf] = {}


class _Leaf:
    __slots__ = ("outcome",)

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome


class Outcomes:
    """The outcomes of one program.

    program: called with a disk in the place of the system; returns its outcome.
    runs: how often it was run. asked: on how many disks its outcome was asked for.
    """

    def __init__(self, program: Callable[[MemoryDisk], Any]) -> None:
        self.program = program
        self.runs = self.asked = 0
        self._root: dict[Any, _Node | _Leaf] = {}

    def of(self, files: dict[str, bytes], rebooted: bool) -> tuple[Any, MemoryDisk]:
        """The program's outcome on a disk with these files, and the disk as it leaves it."""
        self.asked += 1
        disk, answer, found = MemoryDisk(files, rebooted), None, self._root
        while True:
            node = found.get(answer)
            if node is None:
                return self._run(files, rebooted)
            if type(node) is _Leaf:
                return node.outcome, disk
            answer, found = _answer(disk, node), node.answers

    def _run(self, files: dict[str, bytes], rebooted: bool) -> tuple[Any, MemoryDisk]:
        self.runs += 1
        disk = _Traced(files, rebooted)
        with durable.replace_system(disk):
            outcome = self.program(disk)
        answer, found = None, self._root
        for call, given in disk.trace:
            node = found.setdefault(answer, _Node(call))
            assert type(node) is _Node, (
                f"the program ended once, and went on to {call[0]} with the same answers"
            )
            assert node.call == call, f"{node.call} once, {call} now, after the same answers"
            answer, found = given, node.answers
        assert answer not in found
        found[answer] = _Leaf(outcome)
        return outcome, disk


def _answer(disk: MemoryDisk, node: _Node) -> Any:
    arguments = node.arguments
    if node.has_lists:
        arguments = tuple(list(a) if type(a) is tuple else a for a in arguments)
    try:
        return _key(node.method(disk, *arguments))
    except OSError as error:
        return type(error).__name__, error.errno


def _key(result: Any) -> Any:
    kind = type(result)
    if kind is bytes:
        return hash(result)  # 64 bits tell a million answers apart
    return (result.st_size, result.st_ino) if kind is os.stat_result else result


def _kept(argument: Any) -> Any:
    """An argument as it is now: buffers change after the call, lists of descriptors within it."""
    if isinstance(argument, memoryview):
        return bytes(argument)
    return tuple(argument) if type(argument) is list else argument


class _Traced(MemoryDisk):
    """Writes down each call and its answer."""

    def __init__(self, files: dict[str, bytes], rebooted: bool) -> None:
        super().__init__(files, rebooted)
        self.trace: list[tuple[tuple[Any, ...], Any]] = []
        self._is_inside = False


def _traced(name: str) -> Callable[..., Any]:
    plain = getattr(MemoryDisk, name)

    def traced(self: _Traced, *arguments: Any) -> Any:
        if self._is_inside:  # one call of the disk by another
            return plain(self, *arguments)
        self._is_inside = True
        call = (name, *(_kept(argument) for argument in arguments))
        try:
            result = plain(self, *arguments)
            self.trace.append((call, _key(result)))
            return result
        except OSError as error:
            self.trace.append((call, (type(error).__name__, error.errno)))
            raise
        finally:
            self._is_inside = False

    return traced


for _name in CALLS:
    setattr(_Traced, _name, _traced(_name))
