"""`Reading`: which samples a dataset has, and how it changes them; `SampleRoot`: where they are, in archives or parts.

Every dataset of a user holds one `Reading`: a selection, fields and a function over a root. A root is an archive, or it
joins readings: one after the other, fields side by side, one of them an epoch. `SampleRoot.shares` alone says where
samples lie. `stored` follows it down to archives; look-ahead, chunks, saving, keys and schemas are functions of its
shares.

- A *position* counts in a reading, an *index* in a root, a *place* among the samples of one request. All are from 0 on:
  `Reading.asked` is where a user's negative numbers end.
- Functions run from the inside out: of a part, then of the root, then of the reading. Each gets index, epoch and draw
  of its own root, so a seeded one gives the same numbers alone and joined.
- Fields limit the bytes that are read unless a part's function runs first; a transform of the root gets them alone.
- `Reading.one` gives the sample that `records` gives, without the cost of a batch: they change together.
- A transform of a root may be set at any time, and its views have it. So a read asks the root, and keeps no copy.
- Lengths of parts are counted once, when they are joined. Samples that a part gets later are never in the joined one:
  there the next part has their indices.
- Nothing here imports torch, since numpy's users read by it too (array_dataset.py).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from edcache import base
from edcache.base import EdcacheError, ImageError, Ints, MissingSampleError, OptionError, Transform
from edcache.codec import as_read
from edcache.dataset.selection import Selection
from edcache.dataset.transforms import Draw, Draws, Pipeline, extended, is_seeded
from edcache.format import KEY_COLUMN, Failure, key_hashes
from edcache.labels import Labels, checked_indices, origin
from edcache.reader import Made, Projection, Reader, Records, Session, Several

if TYPE_CHECKING:
    import torch

    from edcache.writer import LazyFiller

# Made anew in each process.
_OF_THIS_PROCESS = ("_labelled",)
# Characters of the calls that made a view, in its repr: the last ones.
_MOST_STEPS = 200


class Share(NamedTuple):
    """Samples of one part: its reading, their positions in it, and their places among all: int64 [n] both.

    change: None if they are read as they are stored; else the dataset that changes them, and how.
    """

    part: Reading
    positions: Ints
    places: Ints
    change: tuple[Reading | SampleRoot, str] | None = None

    @property
    def session(self) -> Session:
        """Session of the archive that has all of them."""
        (reader,) = self.part.root.readers
        return reader.session


class SampleRoot:
    """Samples by index, underneath datasets and views: of parts, or of an archive, which has none.

    A subclass says how long it is, where its samples are, which labels they have, and which keys.

    Attributes:
        called, shown: names of the function that joins the parts, and of its result.
        transform, batch_transform: functions of each sample, and of each collated batch.
        parts: the readings that it joins. ranges: the indices of each part's samples here; a part may have got more
            samples since.
        is_divided: False if a sample is of several parts, or of another one each epoch.
        is_seeded: True if a function of a part depends on index and epoch of its sample.
        epoch: int64 [], in memory that workers share; None until `set_epoch`.
        computes: True if it computes a missing sample at its read.
    """

    called: ClassVar[str] = ""
    shown: ClassVar[str] = ""
    is_divided: ClassVar[bool] = True
    transform: Transform = None
    batch_transform: Transform = None
    parts: Sequence[Reading] = ()
    ranges: Sequence[range] = ()
    is_seeded: bool = False
    computes: bool = False
    epoch: torch.Tensor | None = None
    _labelled: tuple[Sequence[Labels], Labels | None] = (), None

    def __init__(self, parts: Sequence[Reading]) -> None:
        if not parts:
            raise OptionError(f"{self.called}() takes at least one dataset")
        self.parts, self.batch_transform = parts, parts[0].root.batch_transform
        if any(part.root.batch_transform is not self.batch_transform for part in parts):
            raise OptionError(
                f"{self.called}(): the datasets have different batch_transforms; open all of them with the "
                "same one, or without"
            )
        if not self.is_divided and len(set(map(len, parts))) > 1:
            raise OptionError(
                f"{self.called}(): the datasets have {' and '.join(f'{len(part):,}' for part in parts)} samples;"
                " take the same ones of each"
            )
        self.is_seeded = self.is_seeded or any(part.is_seeded for part in parts)
        self.ranges = [range(len(parts[0]))] * len(parts)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in _OF_THIS_PROCESS}
        if get_spawning_popen() is None:
            state.pop("epoch", None)  # only workers of this process share its memory
        return state

    def __len__(self) -> int:
        return self.ranges[-1].stop

    def __repr__(self) -> str:
        return f"{self.shown}({len(self.parts):,} datasets, {len(self):,} samples)"

    def settings(self) -> dict[str, Any]:
        """Return what samples depend on beside their records."""
        of_parts = [part.settings() for part in self.parts]
        of_each = of_parts[0] if of_parts.count(of_parts[0]) == len(of_parts) else of_parts
        return {"each": of_each, "transform": self.transform}

    @property
    def readers(self) -> list[Reader]:
        """Archives underneath."""
        return [reader for part in self.parts for reader in part.root.readers]

    def skipping_damage(self) -> SampleRoot:
        """Copy this root; the copy reads archives without their damaged parts."""
        return type(self)([part.skipping_damage() for part in self.parts])

    def close(self) -> None:
        """Close the archives underneath; idempotent."""
        for part in self.parts:
            part.root.close()

    @property
    def complete(self) -> bool:
        """True if every archive underneath is complete."""
        return all(part.root.complete for part in self.parts)

    @property
    def missing(self) -> Ints:
        """Indices without a record in one of the parts: int64 [k], rising."""
        found = [(part.missing, own) for part, own in zip(self.parts, self.ranges, strict=True)]
        return np.unique(np.concatenate([absent[absent < len(own)] + own.start for absent, own in found]))

    @property
    def errors(self) -> list[Failure]:
        """Failures of samples, by index, part after part."""
        pairs = zip(self.parts, self.ranges, strict=True)
        found = [(failure, own) for part, own in pairs for failure in part.errors]
        return [replace(one, index=own[one.index]) for one, own in found if one.index < len(own)]

    @property
    def labels(self) -> Labels:
        """Label columns of all samples, made again if a part has other ones, or more."""
        known = [part.root.labels for part in self.parts]
        before, made = self._labelled
        if made is None or any(a is not b for a, b in zip(before, known, strict=True)):
            made = Labels(self.label_table, num_rows=len(self))
            self._labelled = known, made
        return made

    def tables(self) -> list[Any]:
        """Return the label columns of each part as a pyarrow Table, without rows that it got since."""
        pairs = zip(self.parts, self.ranges, strict=True)
        return [part.labels.table.slice(0, len(own)) for part, own in pairs]

    def label_table(self) -> Any:
        """Return the label columns of all samples as a pyarrow Table."""
        raise NotImplementedError

    def find_keys(self, texts: Sequence[str]) -> Ints:
        """Return the index of the first sample with each key, given as text: int64 [n], -1 for none."""
        raise OptionError(f"the samples of {self!r} are put together, and have no keys of their own")

    def shares(self, indices: Ints, draws: Draws | None = None) -> list[Share]:
        """Divide samples by part. draws: of each sample; needed if the epoch decides the part."""
        raise NotImplementedError

    def records(self, indices: Ints, fields: Projection | None, draws: Draws | None = None) -> Records:
        """Find the records of samples, or of some fields of them, before `transform`.

        draws: of each; None unless a function of a part is seeded.
        """
        found: list[tuple[Ints, Records]] = []
        for part, positions, places, _ in self.shares(indices, draws):
            own = None if draws is None else [draws[place] for place in places.tolist()]
            found.append((places, part.of_fields(fields).records(positions, own)))
        return found[0][1] if len(found) == 1 else Several(found)

    def one(self, index: int, fields: Projection | None) -> Any:
        """Read a sample, or some fields of it, before `transform`."""
        return self.records(np.array([index]), fields).samples()[0]


@dataclass(eq=False, repr=False)
class Archive(SampleRoot):
    """Root of the samples of an archive.

    Attributes:
        reader: of the archive. filler: computes missing samples at their read; None: they raise.
        copies: False reads single samples as views of the mapped file.
    """

    reader: Reader
    transform: Transform = None
    batch_transform: Transform = None
    copies: bool = True
    filler: LazyFiller | None = None

    def __getstate__(self) -> dict[str, Any]:
        state, is_filled = super().__getstate__(), self.filler is None or self.reader.session.complete
        return state | {"filler": None} if is_filled else state

    def __len__(self) -> int:
        return self.reader.session.length

    def __repr__(self) -> str:
        path = self.path
        try:
            self._look()
            session = self.reader.session
            names = base.printable(base.some_of(list(dict(session.label_columns))))
        except EdcacheError:  # a traceback may show a dataset that failed to open
            return f"CachedDataset({path!r}, {'closed' if self.reader.closed else 'not open'})"
        lack = "not sealed" if session.has_all else f"{len(self) - session.index.present:,} missing"
        state = "" if session.complete else f", {lack}"
        labels = f", labels: {names}" if names else ""
        return f"CachedDataset({path!r}, {len(self):,} samples{state}{labels})"

    def settings(self) -> dict[str, Any]:
        """Return the settings of a dataset over an archive: all that changes its samples, beside the stored records."""
        return {"decode": self.reader.decoding, "transform": self.transform}

    @property
    def path(self) -> str:
        """Path or URL of the archive."""
        return self.reader.path

    @property
    def computes(self) -> bool:  # type: ignore[override]
        """True if it computes a missing sample at its read."""
        return self.filler is not None

    @property
    def readers(self) -> list[Reader]:
        """Reader of the archive."""
        return [self.reader]

    def skipping_damage(self) -> Archive:
        """Copy this root; the copy reads the archive without its damaged parts."""
        other = copy.copy(self)
        other.reader = self.reader.skipping_damage()
        return other

    def _look(self) -> None:
        """Take in what other processes, such as workers of a DataLoader, have stored since in a lazy cache."""
        if self.filler is not None and not self.reader.session.complete:
            self.reader.refresh(in_order=True)

    def close(self) -> None:
        """Publish pending samples of the filler, and close the archive."""
        if self.filler is not None:
            self.filler.close()
        self.reader.close()

    @property
    def complete(self) -> bool:
        """True if it is sealed, and every sample has a record or is recorded as absent for good."""
        self._look()
        return self.reader.session.complete

    @property
    def missing(self) -> Ints:
        """Indices without a record: int64 [k], sorted."""
        self._look()
        session = self.reader.session
        try:
            return session.index.missing()
        finally:
            session.check_same()

    @property
    def errors(self) -> list[Failure]:
        """Failures of samples, by index."""
        return list(self.reader.session.index.failures)

    @property
    def labels(self) -> Labels:
        """Label columns of the whole archive."""
        return self.reader.session.labels

    def find_keys(self, texts: Sequence[str]) -> Ints:
        """Return the index of the first sample with each key, given as text: int64 [n], -1 for none."""
        session = self.reader.session
        try:
            table = session.keys
            if table is None:
                raise OptionError(
                    f"{self.path}: has no keys; they come from sample_key(index) of the source, or from a label "
                    f'column "{KEY_COLUMN}" of text, bytes or integers'
                )
            return table.find(key_hashes(texts))
        finally:
            session.check_same()

    def one(self, index: int, fields: Projection | None) -> Any:
        """Read a sample, or some fields of it."""
        try:
            return self.reader.session.read(index, fields, self.copies)
        except MissingSampleError:
            if self.filler is None:
                raise
        return self._computed([index], fields, self.filler)[0]

    def records(self, indices: Ints, fields: Projection | None, draws: Draws | None = None) -> Records:
        """Find the records of samples; a filler makes missing ones when they are read."""
        session, filler = self.reader.session, self.filler
        if filler is None:
            return session.group(indices, fields)
        there = session.index.are_present(indices)
        if there.all():
            return session.group(indices, fields)
        absent = indices[~there].tolist()
        made = Made(lambda: self._computed(absent, fields, filler))
        stored = session.group(indices[there], fields)
        return Several([(np.flatnonzero(there), stored), (np.flatnonzero(~there), made)])

    def _computed(self, indices: list[int], fields: Projection | None, filler: LazyFiller) -> list[Any]:
        """Return samples that had no record: read, if another process has stored them since, or else computed."""
        wanted = list(dict.fromkeys(indices))
        if filler.publish(wanted):
            self.reader.refresh(in_order=True)
        session = self.reader.session
        samples = {index: session.read(index, None) for index in wanted if session.index.has(index)}
        absent = [index for index in wanted if index not in samples]
        for index, sample in zip(absent, filler.get(absent) if absent else (), strict=True):
            try:
                samples[index] = as_read(sample, session.head.codec, self.reader.decoding)
            except ImageError as error:
                raise session.checks.placed(error, index) from error
        found = [samples[index] for index in indices]
        return found if fields is None else [fields.of_sample(sample) for sample in found]


@dataclass(eq=False, repr=False)
class Reading:
    """Some samples of a root in some order, with the fields that are read and a function.

    Attributes:
        selection: of the root's indices; None: all. fields: of each sample; None: all. transform: called after the
            root's; None: no function.
        repeats: True if it was made to have samples several times.
        steps: calls that made it, in short, such as ".filter(label=1)" and "[:3]"; for its repr.
    """

    root: SampleRoot
    selection: Selection | None = None
    fields: Projection | None = None
    transform: Transform = None
    repeats: bool = False
    steps: tuple[str, ...] = ()
    _labels: Labels | None = field(default=None, init=False)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_labels": None}

    def __len__(self) -> int:
        return len(self.root) if self.selection is None else len(self.selection)

    def __repr__(self) -> str:
        """Return the text of the dataset that reads so."""
        if self.is_whole:
            return repr(self.root)
        whole = getattr(self.root, "path", self.root)
        try:
            made = "".join(self.steps)
            made = made if len(made) <= _MOST_STEPS else f"...{made[-_MOST_STEPS:]}"
            return f"View({whole!r}, {len(self):,} samples{made and f': {made}'})"
        except EdcacheError:
            is_closed = any(reader.closed for reader in self.root.readers)
            return f"View({whole!r}, {'closed' if is_closed else 'not open'})"

    @property
    def is_whole(self) -> bool:
        """True if it reads all samples of the root, as the root gives them."""
        return self.selection is None and self.fields is None and self.transform is None

    @property
    def has_transform(self) -> bool:
        """True if a function of the user changes samples, in this reading or in its root. Parts are not asked."""
        return self.transform is not None or self.root.transform is not None

    @property
    def change(self) -> tuple[Reading | SampleRoot, str] | None:
        """See `Share.change`; of the parts nothing is known."""
        if self.has_transform:
            return self, "a transform changes them"
        return None if self.fields is None else (self, "only some of their fields are selected")

    @property
    def is_seeded(self) -> bool:
        """True if a function depends on index and epoch of its sample."""
        return self.root.is_seeded or (self.transform is not None and is_seeded(self.transform))

    def settings(self) -> dict[str, Any]:
        """Return the settings of the root, with fields and function of this reading if it has any."""
        own = {"fields": self.fields, "then": self.transform}
        return self.root.settings() | {name: one for name, one in own.items() if one is not None}

    def but(self, **changes: Any) -> Reading:
        """Copy this reading with other attributes. `dataclasses.replace` takes four times as long."""
        other = Reading(self.root, self.selection, self.fields, self.transform, self.repeats, self.steps)
        vars(other).update(changes)
        return other

    def skipping_damage(self) -> Reading:
        """Copy this reading; the copy reads archives without their damaged parts.

        A reading with a transform stays as it is, since its function would get other samples.
        """
        return self if self.has_transform else self.but(root=self.root.skipping_damage())

    # --- which samples

    @property
    def whole(self) -> Selection:
        """Selection of all samples."""
        return Selection(range(len(self))) if self.selection is None else self.selection

    def selections(self) -> list[Selection]:
        """List the selections of this reading and of its parts."""
        return [self.whole] + [one for part in self.root.parts for one in part.selections()]

    def indices_at(self, positions: Ints) -> Ints:
        """Convert positions to indices of the root."""
        return positions if self.selection is None else self.selection.take(positions)

    def stored(self, positions: Ints | None = None, epoch: int | None = None) -> list[Share]:
        """List the archives of samples at some positions, all by default; each share is of a whole archive.

        A root whose samples are not divided among its parts (`is_divided`) is one share, with a `change`. Without
        positions there is still the share of one archive, which tells how samples would be stored.

        epoch: of the read; then such a root is divided too, into the archives from which this epoch reads.
        """
        if positions is None:
            positions = np.arange(len(self))
        return list(_followed(self, positions, np.arange(len(positions)), epoch, None))

    @property
    def labels(self) -> Labels:
        """Label columns of all samples; see `Readable.labels`."""
        whole = self.root.labels
        if self.selection is None:
            return whole
        known = self._labels
        # Columns may have been added since.
        if known is None or origin(known)[0] is not origin(whole)[0]:
            known = self._labels = whole.take(self.whole.array())
        return known

    @property
    def missing(self) -> Ints:
        """Positions without a record: int64 [k], rising."""
        absent = self.root.missing
        return absent if self.selection is None else np.flatnonzero(np.isin(self.whole.array(), absent))

    @property
    def errors(self) -> list[Failure]:
        """Failures of samples, by position; at each one of a sample that is there several times."""
        failures = self.root.errors
        if self.selection is None or not failures:
            return failures
        failed: dict[int, list[Failure]] = {}
        for one in failures:
            failed.setdefault(one.index, []).append(one)
        absent = self.missing.tolist()
        indices = self.whole.take(np.array(absent, np.int64)).tolist()
        pairs = zip(absent, indices, strict=True)
        return [replace(one, index=position) for position, index in pairs for one in failed.get(index, [])]

    # --- reading

    def one(self, position: int) -> Any:
        """Read the sample at a position, which may be a Draw."""
        root, then, selection = self.root, self.transform, self.selection
        # A small sample takes 3 us, so each call counts.
        if root.is_seeded:
            return self.asked([position]).samples()[0]
        index = position if selection is None else selection.at(position)
        sample = root.one(index, self.fields)
        if root.transform is not None:
            sample = root.transform(sample)
        if then is None:
            return sample
        if not isinstance(then, Pipeline) or not then.is_seeded:
            return then(sample)
        # By `asked` this read takes 21 us, here 6 us.
        (draw,) = self._numbered(np.array([position]), self._draws([position], 1, False))
        return then(sample, index, *draw)

    def asked(self, given: Any, is_loader: bool = False) -> Records:
        """Find the records at a user's positions in [-len(self), len(self)), or at Draws.

        is_loader: True for a DataLoader, which must not read all epochs alike by mistake.
        Raises: SampleIndexError; OptionError, a DataLoader or a worker of one reads, and the epoch is unknown.
        """
        positions = checked_indices(given, len(self))
        draws = self._draws(given, len(positions), is_loader) if self.is_seeded else None
        return self.records(positions, draws)

    def records(self, positions: Ints, draws: Draws | None) -> Records:
        """Find the records at positions. draws: of each read, if known; None unless a function needs them."""
        root, then = self.root, self.transform
        draws = self._numbered(positions, draws) if draws is not None and self.is_seeded else None
        indices = positions if self.selection is None else self.selection.take(positions)
        first, records = root.transform, root.records(indices, self.fields, draws)
        if first is None and then is None:
            return records

        def make() -> list[Any]:
            samples = records.samples()
            if first is not None:
                samples = [first(sample) for sample in samples]
            if draws is not None and isinstance(then, Pipeline):
                places = zip(samples, indices.tolist(), draws, strict=True)
                return [then(sample, index, *draw) for sample, index, draw in places]
            return samples if then is None else [then(sample) for sample in samples]

        return Made(make)

    def of_fields(self, fields: Projection | None) -> Reading:
        """Select fields of the samples, so that reading the records is limited to them if possible."""
        if fields is None:
            return self
        own = self.fields
        if not self.has_transform and (own is None or (not own.as_tuple and {*fields.paths} <= {*own.paths})):
            return self.but(fields=fields)
        return self.but(transform=extended(self.transform, fields.of_sample))

    def _draws(self, given: Any, count: int, is_loader: bool) -> Draws:
        """Return epoch and draw of each read. given: positions, perhaps Draws."""
        if isinstance(given, list) and given and isinstance(given[0], Draw):
            return [(draw.epoch, draw.number) for draw in given]
        epoch = self.root.epoch
        if epoch is None:
            from torch.utils.data import get_worker_info

            if is_loader or get_worker_info() is not None:
                raise OptionError(
                    "a seeded transform depends on the epoch, and this DataLoader does not know it; call "
                    "set_epoch(epoch) of the dataset before each iteration, or give the DataLoader a sampler of "
                    "edcache.samplers that was made of this very dataset"
                )
        return [(0 if epoch is None else int(epoch), 0)] * count

    def _numbered(self, positions: Ints, draws: Draws) -> Draws:
        """Number draws that have no number by 1 + their position, if samples are repeated here."""
        if not self.repeats:
            return draws
        places = (positions + 1).tolist()
        return [(epoch, number or place) for (epoch, number), place in zip(draws, places, strict=True)]


def _followed(
    reading: Reading,
    positions: Ints,
    places: Ints,
    epoch: int | None,
    change: tuple[Reading | SampleRoot, str] | None,
) -> Iterator[Share]:
    """Yield the shares of `Reading.stored`, from a reading down to its archives.

    positions: in the reading. places: of each among the samples of the whole request.
    change: of a dataset around this one, which is why samples are not as stored; None if they are so far.
    """
    root, indices = reading.root, reading.indices_at(positions)
    change = change or reading.change
    if not root.parts or (epoch is None and not root.is_divided):
        several = (root, "they are made of several datasets") if root.parts else None
        yield Share(Reading(root), indices, places, change or several)
        return
    nothing = indices[:0]
    draws = None if epoch is None else [(epoch, 0)] * len(indices)
    for share in root.shares(indices, draws) or [Share(root.parts[0], nothing, nothing)]:
        yield from _followed(share.part, share.positions, places[share.places], epoch, change)


def set_transform(of: Reading | SampleRoot, function: Transform) -> None:
    """Set the function of each sample."""
    of.transform = base.checked_function("transform", function)
