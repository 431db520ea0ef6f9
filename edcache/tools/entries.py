"""The entries of a damaged archive that are whole, and what hides between them.

An entry counts when its header fits its own crc32, stands where it says, and its number goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from edcache import format
from edcache.format import PAGE, Cursor, Header
from edcache.storage import File

# An entry at the end of a file that was cut reaches beyond it; what is left of it is looked at.
ANYWHERE: Final = 1 << 62


class Gap(NamedTuple):
    """Entries that hide: the first's sequence number, where, how many that are no seal, and a sentence."""

    seq: int
    start: int
    hidden: int
    problem: str


class Entries:
    """The entries that are whole as runs, linked from header to header, and the gaps between and behind them.

    Where a run ends before the file does, the pages behind are searched for the next one.
    """

    def __init__(self, file: File, uuid: bytes, cursor: Cursor | None) -> None:
        self._file, self._pread, self._size, self._uuid = file, file.pread, file.size(), uuid
        self._is_anchored = cursor is not None
        # Where the first entry belongs.
        self._first = cursor or Cursor(PAGE, 0, 0)
        self.runs: list[list[Header]] = []
        if cursor is not None:
            self.runs.append(list(format.walk(self._pread, ANYWHERE, uuid, cursor)))
        for run in self._searched():
            self._take(run)
        self.gaps = list(self._gaps())

    def _searched(self) -> Iterator[list[Header]]:
        position = self._end(self.runs[0]) if self.runs else PAGE
        while position < self._size:
            headers = format.find_headers(self._file, position, self._size, self._uuid)
            # Two entries begin on a page at most: nobody has written a number beyond that.
            first = next((h for h in headers if h.seq <= 2 * h.offset // PAGE), None)
            if first is None:
                return
            cursor = Cursor(first.offset, first.seq, first.link)
            run = list(format.walk(self._pread, ANYWHERE, self._uuid, cursor))
            if not run and first.kind in (format.KIND_INDEX, format.KIND_LABELS):
                run = [first]  # one half of a seal
            if run:
                yield run
            position = max(first.offset + PAGE, self._end(run) if run else 0)

    def _end(self, run: list[Header]) -> int:
        """Where what follows a run belongs."""
        if not run:
            return self._first.offset
        last = run[-1]
        return last.payload_end if len(run) == 1 and last.kind == format.KIND_LABELS else last.next

    def _take(self, run: list[Header]) -> None:
        """Add a run, if its numbers go on; of two that exclude each other the longer one stays."""
        while not self._goes_on(run) and len(self.runs) > self._is_anchored:
            if len(self.runs[-1]) >= len(run):
                break
            self.runs.pop()
        if self._goes_on(run):
            self.runs.append(run)

    def _goes_on(self, run: list[Header]) -> bool:
        # The very next number would have been found at its place, with its link: it is of a history that
        # was cut off and written over.
        if self.runs and self.runs[-1]:
            return run[0].seq >= self.runs[-1][-1].seq + 2
        return run[0].seq >= int(self._is_anchored)

    def _gaps(self) -> Iterator[Gap]:
        """What hides before each run, and behind the last."""
        seq, start, labels_hide = 0, self._first.offset, False
        for run in filter(None, self.runs):
            first, last = run[0], run[-1]
            if first.seq > seq:
                seq += labels_hide
                hidden = first.seq - seq - (first.kind == format.KIND_LABELS)
                if hidden >= 2 and self._directory_in(start, first.offset) is not None:
                    hidden -= 2
                follows = f"{first.name} follows at offset {first.offset:,}"
                yield Gap(seq, start, hidden, f"no entry fits here, {follows}")
            seq, start, labels_hide = last.seq + 1, self._end(run), last.kind == format.KIND_INDEX
        if start >= self._size or labels_hide:
            return
        tail = self._directory_in(start, self._size)
        if tail is not None:
            hidden = int(tail.index_offset > start)
            yield Gap(seq, start, hidden, "a seal begins here or behind that is damaged")
        else:
            yield self._begun(seq, start)

    def _begun(self, seq: int, start: int) -> Gap:
        """The header of an entry goes last: where a part of one stands, it was whole once, or nearly."""
        data = self._pread(start, format.HEADER_NBYTES)
        name = data[30:]
        if name.startswith(b"index.pages"):
            return Gap(seq, start, 0, "a seal begins here that is damaged")
        if data.startswith(b"PK\x03\x04") or name.startswith((b"chunks/", b"zstd/", b"notes/", b"labels/")):
            return Gap(seq, start, 1, "an entry begins here that is damaged")
        nbytes = self._size - start
        return Gap(seq, start, 0, f"{nbytes:,} bytes behind the last entry are no entry: a torn tail")

    def _directory_in(self, start: int, end: int) -> format.Tail | None:
        """The end of a zip directory that lies behind `start`, and but for zeros right before `end`."""
        data = self._pread(max(start, end - 2 * PAGE), min(2 * PAGE, end - start))
        at = data.rfind(format.END_SIGNATURE)
        if at < 0:
            return None
        size = max(start, end - 2 * PAGE) + at + format.END_RECORD_NBYTES
        tail = format.parse_tail(self._pread(max(0, size - format.TAIL_NBYTES), format.TAIL_NBYTES), size)
        return tail if tail is not None and tail.index_offset >= start else None
