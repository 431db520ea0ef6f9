"""Fill an archive from a source with keys: samples that it lacks are computed, and it gets the order of the source.

    first fill     chunks, whose samples have the indices of the source: readers see them at once. A sample that
                   equals one before it is not computed; the seal gives it the row of that one
    later fills    parts, each with the mark of its maker (`Header.maker`): readers see the old state. The seal names
                   the records of parts, of this fill and of fills that were killed, in the order of the source

`begun` looks keys and versions up once, and lists the samples to compute; `FillLoop` computes them as of any source, so
that processes that fill from one source share them. `order_of` looks them up again under the append lock.

A mark has two halves: of what makes the samples, and of the keys. Parts with one mark number their samples by one
source. Samples of parts that differ in the second half are found by key. Parts that differ in the first half are
passed over, since their samples may be other ones.

What must never happen: that a reader sees samples of the new order beside the old one; that a sample is taken over that
other code or another setting made.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from edcache import identity
from edcache.base import Ints
from edcache.format import KEY_COLUMN, Chain, Contents, Head
from edcache.identity import Keyed
from edcache.writer.appender import Appender, other_order, waiting_parts
from edcache.writer.job import Job, Known
from edcache.writer.loop import Presence
from edcache.writer.seal import Order

# Entries of a fingerprint that tell how samples are made. The others tell their number, and seconds.
_MAKING = "settings", "asks", "code"


def is_done(chain: Chain, keyed: Keyed) -> bool:
    """True if an archive is sealed for these samples, and a later fill tries none again."""
    root = chain.root
    if root is None or not chain.is_settled or chain.origin.keys_digest != keyed.digest:
        return False
    return root.present + sum(failure.final for failure in root.failures) == root.length


def begun(job: Job, keyed: Keyed, appender: Appender) -> tuple[Job, Known]:
    """Return the job with the samples that are to be computed, and the ones that the archive has.

    Raises: OptionError, the keys of the archive are of another type.
    """
    chain = appender.chain
    is_same = chain.origin.keys_digest == keyed.digest
    if chain.root is None and (is_same or chain.holds_nothing):
        return replace(job, todo=keyed.firsts), Known(None)
    maker = _mark(job, keyed, chain.origin)
    others = [one for one in waiting_parts(chain, maker) if one.maker != maker]
    contents = Contents(chain, appender.file.pread, appender.table, parts=others)
    places = _places(keyed, contents, job.path)
    todo = keyed.firsts[places[keyed.firsts] < 0]
    is_shown = (places >= 0) & (places < contents.length - contents.part_count)
    positions = np.flatnonzero(is_shown)
    return replace(job, todo=todo, maker=maker), Known(
        None if chain.root is None else chain.root.index, positions, places[positions]
    )


def order_of(job: Job, keyed: Keyed, appender: Appender, presence: Presence) -> Order:
    """Find the order of a source in its archive; none if another process has sealed it so. The append lock is held.

    Raises: StaleArchiveError, another process has given the samples another order since this fill began.
    """
    chain, maker = appender.chain, job.maker
    if is_done(chain, keyed):
        return Order()
    presence.update()
    parts, failures = waiting_parts(chain, maker), presence.failures
    places = _places(keyed, Contents(chain, appender.file.pread, appender.table, parts=parts), job.path)
    samples = places[keyed.first_equal]
    gaps = np.flatnonzero(samples < 0)
    firsts = zip(gaps.tolist(), keyed.first_equal[gaps].tolist(), strict=True)
    failed = [replace(failures[first][1], index=index) for index, first in firsts if first in failures]
    if maker and len(failed) < len(gaps):
        raise other_order(chain.where)
    return Order(samples, failed, parts, job.made_by(chain.origin.fingerprint) if maker else None)


def _mark(job: Job, keyed: Keyed, origin: Head) -> str:
    """Return the mark of the parts of a fill, as the top of this file says."""
    made = job.made_by(origin.fingerprint)
    making = json.dumps([made.get(name) for name in _MAKING])
    how = "any" if job.recipe is None else identity.digest_of(making)
    return f"{how}-{keyed.digest[:16]}"


def _places(keyed: Keyed, contents: Contents, path: str) -> Ints:
    """Find the number of each sample in an archive: int64 [n], -1 for none. Raises: OptionError, see `check_kind`."""
    names = contents.schema.names
    if KEY_COLUMN not in names:
        return np.full(len(keyed), -1)
    is_present = np.zeros(contents.length, np.bool_)
    is_present[contents.held()] = True
    columns = {name: contents.column(name) for name in identity.KEYED_COLUMNS if name in names}
    own, samples = Keyed.stored(columns, is_present)
    keyed.check_kind(own, path)
    return np.append(samples, -1)[keyed.places_in(own)]  # a place of -1 is the last one, which holds -1
