"""Several archives copied into one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from edcache.dataset import Path, expand_paths
from edcache.reader import OnProgress
from edcache.storage import local_path
from edcache.tools.rewrite import Progress, check_free
from edcache.tools.shares import Share, check_dictionaries, join, opened


@dataclass(frozen=True)
class MergeReport:
    """What `merge` did.

    path: the new archive. archives: how many went into it. samples: those with a record. length: of the
    dataset, with those that have none. nbytes: of the file.
    """

    path: str
    archives: int
    samples: int
    length: int
    nbytes: int


def merge(
    paths: Path | Iterable[Path],
    target: str | os.PathLike[str],
    on_progress: OnProgress | None = None,
    *,
    allow_partial: bool = False,
) -> MergeReport:
    """Copy the samples of several archives into a new one, one archive after the other, and seal it.

    It has the samples and labels of `edcache.concat`: samples that are missing stay missing, failures and
    labels that were added stay. Records are copied as they are stored, each checked by its crc32; those of
    archives that do not compress are compressed where another one does. Label columns that one lacks are
    null there.

    Args:
        paths: a list, a glob or a folder, as `CachedDataset.from_cache` takes them; URLs too.
        target: where the new one goes; nothing may be there. Until it is on the disk it is
            `target + ".edcache.new"`.
        on_progress: called with (bytes of records copied, bytes of records) now and then.
        allow_partial: take what there is of archives that are not sealed.
    Raises:
        PartialArchiveError: one is not sealed, so that samples may be missing.
        OptionError: 'merge(): a.zip is of codec="native", b.zip of codec="pickle"; ...'; compression
            dictionaries that contradict each other.
        LabelTypeError: 'merge(): label "y" is int64 in one dataset and string in another; ...'.
        CorruptArchiveError: one is damaged; the text has the first problem.
        ArchiveNotFoundError, ArchiveExistsError, ArchiveLockedError, StorageError.
        After any error there is no new archive, and the others are as they were.
    Cost: reads and writes every record once; some 100 bytes of memory a sample, and all labels.
    Safety: of an archive that others append to it takes what was there at the start. Killed, it leaves
        nothing at the path; a leftover `.edcache.new` is begun anew by the next run.

    The new archive has a uuid of its own and no fingerprint: `CachedDataset(source, path)` compares none.
    >>> edcache.merge("cache/part-*.zip", "cache/train.zip")
    """
    named = expand_paths(paths)
    if named is None:
        assert isinstance(paths, str | bytes | os.PathLike)
        named = [os.fsdecode(paths)]
    destination = local_path(target)
    check_free(destination)
    with opened(named, allow_partial) as sources:
        check_dictionaries(sources, "merge()")
        shares = [Share(source, range(source.length)) for source in sources]
        progress = Progress(on_progress, sum(share.nbytes for share in shares))
        piece = join(destination, shares, progress, "merge()")
    return MergeReport(piece.path, len(named), piece.samples, piece.length, piece.nbytes)
