"""The labels of a sealed archive: those of the seal, and what the revisions behind it change."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from edcache import format
from edcache.base import CorruptArchiveError, once
from edcache.format import Extent, Revision, Seal, StoredLabels
from edcache.reader.extents import Extents


class SealedLabels:
    """The label columns of a sealed archive, read at their first use; the session is not held.

    Args:
        columns: those of labels.arrow, as `IndexTable.labels`; None without a revision before the seal.
        names: those of the head. where: the archive's path, and remedy: what helps, for messages.
    Raises: CorruptArchiveError, at the first use of what is damaged.
    """

    def __init__(
        self,
        extents: Extents,
        seal: Seal,
        columns: Sequence[tuple[str, bool]] | None,
        names: Sequence[str],
        where: str,
        remedy: str,
    ) -> None:
        self._extents, self._seal, self._where, self._remedy = extents, seal, where, remedy
        self._told_by = "the head" if columns is None else "index.pages"
        self._columns = [(name, False) for name in names] if columns is None else columns

    @once
    def _behind(self) -> Sequence[Revision]:
        """The revisions behind the seal, which are read together."""
        headers = self._seal.revisions
        extents = [Extent(header.payload_offset, header.table_nbytes, header.table_crc) for header in headers]
        revisions = []
        for header, data in zip(headers, self._extents.checked(extents) if extents else (), strict=True):
            if data is None:
                raise CorruptArchiveError(
                    f"{self._where}: {header.name} at offset {header.offset:,} fails its crc32{self._remedy}"
                )
            revisions.append(format.read_revision(partial(_given, bytes(data)), header, self._where))
        return revisions

    @property
    def columns(self) -> Sequence[tuple[str, bool]]:
        """(name, whether a revision has rows of it) of each column."""
        columns = dict(self._columns)
        for revision in self._behind:
            for name in revision.dropped:
                columns.pop(name, None)
            columns |= dict.fromkeys(revision.labels.column_names, True)
        return list(columns.items())

    def table(self) -> StoredLabels:
        """The columns."""
        names = [name for name, _ in self._columns]
        where = self._where, self._remedy
        stored = format.sealed_labels(self._extents.checked, self._seal.labels, *where, names, self._told_by)
        return stored.revised(self._behind) if self._behind else stored


def _given(data: bytes, offset: int, nbytes: int) -> bytes:
    """Bytes that were read, to who would read them."""
    return data
