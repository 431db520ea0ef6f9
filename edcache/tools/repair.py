"""From a damaged archive to a new one of all that proves good."""

from __future__ import annotations

import os
import uuid
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from edcache import base
from edcache.base import Ints
from edcache.reader import OnProgress
from edcache.storage import File, local_path
from edcache.tools.rewrite import RecordSelection, RewriteProgress, check_free, rewriting
from edcache.tools.salvage import Doubtful, Salvage

_SHOWN: Final = 20


@dataclass
class RepairReport(base.Tabular):
    """What `repair` found and kept.

    kept: samples in the new archive. lost: int64 [k], sorted: indices of samples that had a record and have
    none in the new archive. unlabelled: int64: indices of kept samples whose labels are lost, which are
    null now. lost_revisions: names of entries whose labels, added or dropped afterwards, are lost. doubtful:
    what hides, see there. head_lost: the fingerprint is unknown, and the options are
    guessed. length: of the dataset. nbytes: of the new archive. problems: one line each.
    """

    kept: int
    lost: Ints
    unlabelled: Ints
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
    """Copy every undamaged sample of a damaged archive into a new archive.

    A sample is copied if its newest record has the crc32 that an intact table gives: the table of its chunk,
    or the index of a seal. If the newest record is damaged, the sample is lost: an older record is never
    used instead. The new archive is sealed. It has a new uuid and the length of the old one, so filling it
    again computes only the missing samples. Options, labels, failures and dictionaries are kept.

    Args:
        path: the damaged archive. It is only read.
        target: the path of the new archive, which must not exist. Until it is on the disk, the new archive is
            `target + ".edcache.new"`.
        on_progress: a function that is called with (bytes of records read, bytes of records) now and then.
    Returns:
        A report of what was kept and what was lost.
    Raises:
        NotAnArchiveError, CorruptArchiveError: no part of the file can be read as an archive.
        FormatVersionError: the archive has a newer format.
        ArchiveNotFoundError, ArchiveExistsError, StorageError. After any error there is no new archive.
    Cost: reads every record once, and the bytes after damaged headers. It takes about 100 bytes of memory per
        sample, and twice the labels.
    """
    destination = local_path(target)
    damage: list[tuple[int, str]] = []
    with closing(File.open(local_path(path), "r")) as file:
        check_free(destination)
        salvage = Salvage(file)
        head = replace(salvage.head, uuid=uuid.uuid4().bytes)
        progress = RewriteProgress(on_progress, int(salvage.contents.index.records.nbytes.sum()))
        with rewriting(destination, head, file, progress) as new:
            selection = RecordSelection(file, salvage.contents)
            new.copy(selection, lambda rows, why: damage.extend((row, why) for row in rows.tolist()))
            # What was begun for fewer samples and grew is as long as it became, for who fills it too.
            chain = new.out.chain
            is_told = salvage.length == (chain.end_index if chain.length is None else chain.length)
            length = None if is_told else salvage.length
            new.publish(length, salvage.failures, salvage.revision, origin=salvage.origin)
    return _report(salvage, damage, new.nbytes)


def _report(salvage: Salvage, damage: list[tuple[int, str]], nbytes: int) -> RepairReport:
    records = salvage.contents.index.records
    problems = [
        f"{salvage.path}: at offset {records.offset[row]:,}: record {records.samples[row]} {why}"
        for row, why in damage[:_SHOWN]
    ]
    if len(damage) > _SHOWN:
        problems.append(f"{salvage.path}: and {len(damage) - _SHOWN:,} more records")
    lost = np.union1d(salvage.lost, records.samples[np.array([row for row, _ in damage], np.int64)])
    return RepairReport(
        kept=len(records.offset) - len(damage),
        lost=lost,
        unlabelled=salvage.unlabelled[~np.isin(salvage.unlabelled, lost)],
        doubtful=salvage.doubtful,
        head_lost=salvage.head_lost,
        length=salvage.length,
        nbytes=nbytes,
        problems=[*salvage.problems, *problems],
        lost_revisions=salvage.lost_revisions,
    )
