"""`Chain`: the entries of an archive that were walked, and the state that they add up to.

The last groups of the chain tell the state of an archive:

    only the head             empty
    ... chunk or note         not sealed: the last root, if there is one, and the entries behind it
    ... root                  as the root says; sealed for a reader if the zip directory is whole too
    ... root, parts           as the root says: parts, and notes that tell who made them, wait for a root that
                              names their records
    no whole group behind     torn tail, which the next writer cuts off; or damage (tail.py)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from edcache import base
from edcache.format.entries import (
    CHUNK,
    COLUMN,
    KEYS,
    NOTE,
    PART,
    ROOT,
    Cursor,
    Header,
    Place,
    PRead,
    column_name,
    read_sound,
    reported,
    walk,
)
from edcache.format.head import MORE, Head, check_known, is_count
from edcache.format.key_table import KEYS_NAME
from edcache.format.records import Failure, failures_of
from edcache.format.root import Root, pack_directory, parse_root

_NOTE_KEYS: Final = "length", "fingerprint", "failed", "maker", "lost", MORE


class Chain:
    """Entries of an archive in order.

    Attributes:
        head, with `head_header`. first, cursor: of the first entry behind the head, and of the next one. last: entry
            before the cursor. chunks: all and parts, in order. root: the last one, with `root_header`. behind: chunks
            that follow it. parts: that follow the last index, and wait for the next one.
        sealed: True if no entry follows the root. is_settled: True if the root tells all that counts: only
            parts, and notes of parts, follow it.
        length: of the dataset, if the head, the root or a note says it. origin: the head, with fingerprint and length
            of the last source that lengthened it. end_index: one more than the highest sample.
        lost: numbers of chunks that a power cut took something from. has_lost: True if it took samples behind the root.
        failures: by index, the failure and the number of its note or root; a record may follow. part_failures: the
            same of samples that wait with parts, by `maker` and by the index in the source that made them.
        durable: bytes of the file up to here were synced.
        unread: the last root or note whose payload fails its crc32, and the offset of its group; None behind
            a later root.
    """

    def __init__(self, head: Head, head_header: Header, where: str) -> None:
        self.head, self.head_header, self.where = head, head_header, where
        self.first = self.cursor = Cursor.behind(head_header)
        self.last = head_header
        self.root: Root | None = None
        self.root_header: Header | None = None
        self.chunks: list[Header] = []
        self.behind: list[Header] = []
        self.parts: list[Header] = []
        self.sealed = self.is_settled = False
        self.length = head.length
        self.origin = head
        self.end_index = 0
        self.lost: set[int] = set()
        self.has_lost = False
        self.failures: dict[int, tuple[int, Failure]] = {}
        self.part_failures: dict[str, dict[int, tuple[int, Failure]]] = {}
        self.durable = 0
        self.unread: tuple[Header, int] | None = None
        # The newest entry of each name, as a zip directory lists them.
        self.entries = {head_header.name: head_header}

    def copy(self) -> Chain:
        """Copy the state; either may go on without the other."""
        other = copy.copy(self)
        other.chunks, other.behind, other.parts = self.chunks.copy(), self.behind.copy(), self.parts.copy()
        other.entries, other.lost = self.entries.copy(), self.lost.copy()
        other.failures, other.part_failures = self.failures.copy(), copy.deepcopy(self.part_failures)
        return other

    @property
    def reads(self) -> Sequence[str]:
        """Names of the features that a reader of the archive must know."""
        return list(dict.fromkeys([*self.head.reads, *(() if self.root is None else self.root.reads)]))

    @property
    def writes(self) -> Sequence[str]:
        """Names of the features that a writer of the archive must know."""
        return list(dict.fromkeys([*self.head.writes, *(() if self.root is None else self.root.writes)]))

    @property
    def holds_nothing(self) -> bool:
        """True without a published sample or a seal, as a first fill that failed leaves it."""
        return self.root is None and not self.chunks

    def extend(self, pread: PRead, size: int) -> bool:
        """Add the groups behind the cursor in a file of `size` bytes; return True if there were any."""
        before = self.cursor
        for group in walk(pread, size, self.head.uuid, self.cursor, self.where):
            self.add(pread, group)
        return self.cursor != before

    def add(self, pread: PRead, group: list[Header]) -> None:
        """Add the group at the cursor.

        The cursor moves last: after an interrupt the same group is added again, which
        changes nothing (tests/faults/soak_interrupts.py).
        """
        last = group[-1]
        if last.kind in (CHUNK, PART):
            for chunks in (self.chunks, self.parts if last.kind == PART else self.behind):
                if not chunks or chunks[-1].number < last.number:
                    chunks.append(last)
        if last.kind == CHUNK:
            self.end_index = max(self.end_index, last.end)
            self.is_settled = False
        elif last.kind == NOTE:
            self._take_note(pread, last)
        if last.kind == ROOT:
            self._take_root(pread, last, group[0].offset)
        else:
            self.sealed = False
        for header in group:
            self.entries[header.name] = header
            self.durable = max(self.durable, header.durable)
        self.last = last
        self.cursor = Cursor.behind(last)

    def _take_note(self, pread: PRead, header: Header) -> None:
        data = read_sound(pread, header.payload)
        if data is None:
            self.unread = header, header.offset
            return
        with reported(f"{self.where}: {header.name} at offset {header.offset:,}", self.where):
            note = base.loads(data)
            check_known(note, _NOTE_KEYS, "a note", optional=True)
            length, fingerprint = note.get("length"), note.get("fingerprint")
            failed, lost, maker = failures_of(note.get("failed", [])), note.get("lost"), note.get("maker")
            sound = (
                (length is None or is_count(length))
                and isinstance(fingerprint, dict | None)
                and isinstance(maker, str | None)
                and (lost is None or (type(lost) is list and all(map(is_count, lost))))
            )
            if not sound:
                raise ValueError("it has values that this format version does not allow")
        is_of_parts = lost is not None and {one.number for one in self.parts}.issuperset(lost)
        if lost is not None:
            self.forget(lost)
        if length is not None:
            self.length = length
        if fingerprint is not None:
            self.origin = replace(self.head, length=length, fingerprint=fingerprint)
        numbered = {failure.index: (header.number, failure) for failure in failed}
        if maker is not None:
            self.part_failures.setdefault(maker, {}).update(numbered)
            return
        self.failures |= numbered
        self.is_settled = (
            self.is_settled and is_of_parts and length is None and fingerprint is None and not failed
        )

    @property
    def root_place(self) -> Place | None:
        """Place of the payload of the last root."""
        return None if self.root_header is None else self.root_header.payload

    @property
    def is_reordered(self) -> bool:
        """True if samples have other numbers than in the chunks before the last root."""
        return self.root is not None and self.root.is_reordered

    def forget(self, numbers: Iterable[int]) -> None:
        """Leave out the chunks of these numbers, which a power cut took something from: the rest stands in others."""
        self.has_lost = True
        self.lost |= {*numbers}
        for chunks in (self.chunks, self.behind, self.parts):
            chunks[:] = [one for one in chunks if one.number not in self.lost]
        counting = self.behind if self.is_reordered else [one for one in self.chunks if one.kind == CHUNK]
        known = self.root.length if self.root is not None and self.root.is_reordered else 0
        self.end_index = max(known, *(one.end for one in counting), 0)

    def _take_root(self, pread: PRead, header: Header, group: int) -> None:
        data = read_sound(pread, header.payload)
        if data is None:
            self.unread = header, group
            return
        self.unread = None
        before = self.root
        self.root, self.root_header = parse_root(data, header.payload_end, self.where), header
        self.behind, self.has_lost = [], False
        self.sealed = self.is_settled = True
        if before is None or before.index != self.root.index:  # else it changes labels alone
            self.parts, self.part_failures = [], {}
        self.failures = {failure.index: (header.number, failure) for failure in self.root.failures}
        self.length = self.root.length if self.head.length is not None else None
        if self.root.is_reordered:
            self.end_index = self.root.length
        if self.root.fingerprint is not None:
            self.origin = self.root.origin

    # --- the end of the file ---

    def listed(self, root: Root, new: Sequence[Header] = ()) -> list[Header]:
        """List the entries for a zip directory, the newest of each name.

        root: says which columns the archive has. new: entries to come.
        """
        newest = self.entries | {header.name: header for header in new}
        named = {*map(column_name, root.labels), *([] if root.keys is None else [KEYS_NAME])}
        return [
            one
            for one in sorted(newest.values(), key=lambda one: one.number)
            if one.number not in self.lost and (one.kind not in (COLUMN, KEYS) or one.name in named)
        ]

    def directory(self) -> bytes:
        """Pack the zip directory of a sealed archive."""
        assert self.root is not None
        assert self.root_header is not None
        return pack_directory(self.listed(self.root), self.root_header.payload_end)

    @property
    def end(self) -> int:
        """Bytes of the file without a torn tail."""
        if not self.sealed:
            return self.last.payload_end
        assert self.root_header is not None
        return self.root_header.payload_end + len(self.directory())
