"""From a damaged archive to a new one of all that proves good."""

from __future__ import annotations

import os
import uuid
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from edcache.digests import OnProgress
from edcache.durable import File, local_path
from edcache.maintain.copying import Copier, Ints, NewArchive, check_free, intact_dictionaries
from edcache.maintain.salvage import Doubtful, Salvage
from edcache.writer import Appender

_SHOWN: Final = 20


@dataclass
class RepairReport:
    """What `repair` found and kept.

    kept: samples in the new archive. lost: int64 [k], sorted: indices of samples that had a record and have
    none in the new archive. unlabelled: int64: indices of kept samples whose labels are lost, which are
    null now. lost_revisions: names of entries whose labels, added or dropped afterwards, are lost. doubtful:
    what hides, see there. head_lost: the fingerprint is unknown, and the options are
    guessed. length: of the dataset. nbytes: of the new archive. problems: one line each.
    """

    kept: int
    lost: npt.NDArray[np.int64]
    unlabelled: npt.NDArray[np.int64]
    doubtful: list[Doubtful]
    head_lost: bool
    length: int
    nbytes: int
    problems: list[str] = field(default_factory=list)
    lost_revisions: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether every sample that the damaged archive had is in the new one, with its labels."""
        return not (len(self.lost) or len(self.unlabelled) or self.lost_revisions or self.doubtful)


def repair(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    on_progress: OnProgress | None = None,
) -> RepairReport:
    """Write a new archive of every sample that proves good in a damaged one.

    A sample is kept when its newest record fits a crc32 that an intact table tells: the table of its
    chunk, or the index of a seal. Where the newest record is damaged the sample is lost: an older record
    of it is never taken instead. The new archive is sealed, has a uuid of its own and the length of the
    old one, so that filling it again computes only what is missing. Options, labels, failures and
    dictionaries are kept.

    Args:
        path: the damaged archive; it is opened for reading only.
        target: where the new one goes; nothing may be there. Until it is on the disk it is
            `target + ".edcache.new"`.
        on_progress: called with (bytes of records read, bytes of records) now and then.
    Raises:
        NotAnArchiveError, CorruptArchiveError: the file holds nothing of an archive that can be read.
        FormatVersionError: the head is of a newer format.
        ArchiveNotFoundError, ArchiveExistsError, StorageError. Then there is no new archive.
    Cost: reads every record once, and where headers are damaged the pages behind them; some 100 bytes of
        memory a sample, and its labels twice.
    """
    destination = local_path(target)
    with closing(File.open(local_path(path), "r")) as file:
        check_free(destination)
        salvage = Salvage(file)
        head = replace(salvage.head, uuid=uuid.uuid4().bytes)
        with NewArchive(destination, head, like=file) as new:
            mending = _Mending(file, salvage, new.appender, on_progress)
            mending.run()
            new.publish(replace=False)
    return mending.report(new.nbytes)


class _Mending:
    def __init__(self, file: File, salvage: Salvage, out: Appender, on_progress: OnProgress | None) -> None:
        self._file, self._salvage, self._out = file, salvage, out
        self._tell = on_progress or (lambda done, total: None)
        self._records = salvage.contents.index.records
        self._done, self._total = 0, int(self._records.nbytes.sum())
        self._bad: list[Ints] = []
        self._problems: list[str] = []

    def run(self) -> None:
        salvage = self._salvage
        self._tell(0, self._total)
        copier = Copier(self._file, self._out, self._advance, self._lose)
        copier.copy_dictionaries(salvage.dictionaries)
        if self._records.raw_nbytes is not None:
            whole = intact_dictionaries(self._file, salvage.dictionaries)
            self._known = {0, *(int.from_bytes(data[4:8], "little") for data in whole)}
            copier.accepts = self._has_dictionary
        copier.copy(salvage.contents)
        self._note_rest()

    def _has_dictionary(self, frame: memoryview) -> bool:
        return dictionary_of(frame) in self._known

    def _advance(self, nbytes: int) -> None:
        self._done += nbytes
        self._tell(self._done, self._total)

    def _lose(self, rows: Ints, why: str) -> None:
        assert self._records.index is not None
        shown = rows[: max(0, _SHOWN - sum(map(len, self._bad)))]
        self._bad.append(rows)
        for row in shown.tolist():
            place = f"{self._file.path}: at offset {self._records.offset[row]:,}"
            self._problems.append(f"{place}: record {self._records.index[row]} {why}")

    def _note_rest(self) -> None:
        salvage, out = self._salvage, self._out
        changes: dict[str, object] = {}
        if salvage.length != max(out.length or 0, out.end_index):
            changes["length"] = salvage.length
        index = np.array([failure.index for failure in salvage.failures], np.int64)
        assert self._records.index is not None
        stay = ~np.isin(index, self._records.index) & ~np.isin(index, salvage.lost)
        failed = [f.to_json() for f, stays in zip(salvage.failures, stay, strict=True) if stays]
        if failed:
            changes["failed"] = failed
        if changes:
            out.amend(**changes)
        if salvage.revision is not None:
            out.revise(salvage.revision)

    def report(self, nbytes: int) -> RepairReport:
        salvage, records = self._salvage, self._records
        assert records.index is not None
        bad = np.sort(np.concatenate([np.empty(0, np.int64), *self._bad]))
        lost = np.union1d(salvage.lost, records.index[bad])
        if len(bad) > _SHOWN:
            self._problems.append(f"{self._file.path}: and {len(bad) - _SHOWN:,} more records")
        return RepairReport(
            kept=len(records.index) - len(bad),
            lost=lost,
            unlabelled=salvage.unlabelled[~np.isin(salvage.unlabelled, lost)],
            doubtful=salvage.doubtful,
            head_lost=salvage.head_lost,
            length=salvage.length,
            nbytes=nbytes,
            problems=[*salvage.problems, *self._problems],
            lost_revisions=salvage.lost_revisions,
        )


def dictionary_of(frame: memoryview) -> int:
    """The id of the dictionary that a zstd frame needs, 0 for none (RFC 8878, section 3.1.1.1)."""
    if len(frame) < 5:
        return 0
    descriptor = frame[4]
    start = 5 if descriptor & 0x20 else 6  # a single segment has no window descriptor
    nbytes = (0, 1, 2, 4)[descriptor & 3]
    return int.from_bytes(frame[start : start + nbytes], "little")
