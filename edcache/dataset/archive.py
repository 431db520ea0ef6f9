"""`ArchiveDataset`: an open archive as a dataset, its samples and its state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edcache import base
from edcache.base import ImageError, Ints, MissingSampleError, OptionError
from edcache.codec import as_read
from edcache.dataset.ahead import Shares
from edcache.dataset.indexing import Readable, Root, T_co
from edcache.dataset.transforms import Draws
from edcache.dataset.view import Samples
from edcache.format import KEY_COLUMN, Failure, Key, key_hashes
from edcache.labels import Labels, checked_indices
from edcache.reader import Made, Projection, Reader, Records, Session, Several

if TYPE_CHECKING:
    from edcache.dataset.build import Building
    from edcache.writer import LazyFiller

Self = TypeVar("Self", bound="ArchiveDataset")

# Runs, and samples of each, that are probed to see if an archive is in order.
_PROBED_RUNS, _PROBED_SAMPLES = 8, 256


class ArchiveDataset(Root[T_co], Samples[T_co]):
    """Samples of an archive; a filler, if there is one, computes missing ones.

    A subclass sets the annotated attributes.
    """

    path: str
    _reader: Reader
    _filler: LazyFiller | None = None
    _building: Building | None = None

    def __len__(self) -> int:
        return self._reader.session.length

    def __edcache_fingerprint__(self) -> dict[str, Any]:
        """Return the identity of the samples, for a cache of them: the archive is known by its uuid.

        Filled again by keys, an archive has other samples.
        """
        session = self._reader.session
        archive = " ".join(filter(None, [session.head.uuid.hex(), session.origin.keys_digest]))
        return {"archive": archive, **self._settings(), "columns": ["archive"]}

    def _settings(self) -> dict[str, Any]:
        return {"decode": self._reader.decoding, "transform": self._transform}

    @property
    def labels(self) -> Labels:
        """Label columns of the whole archive; see the base class."""
        if self._labels is None:
            self._labels = Labels(lambda: self._reader.session.labels, num_rows=len(self))
        return self._labels

    def _one(self, index: int, fields: Projection | None) -> Any:
        position = index if index >= 0 else index + len(self)
        try:
            return self._reader.session.read(position, fields)
        except MissingSampleError:
            if self._filler is None:
                raise
        return self._computed([position], fields, self._filler)[0]

    def _far_sessions(self) -> list[Session]:
        if self._reader.local is None:
            return []
        session = self._reader.session
        return [session] if session.file.ahead is not None and session.index.present else []

    def _far_shares(self, indices: Ints) -> Shares:
        return [(session, indices) for session in self._far_sessions()]

    def _records(self, indices: Ints, fields: Projection | None, draws: Draws | None = None) -> Records:
        session = self._reader.session
        filler = self._filler
        if filler is None:
            return session.group(indices, fields)
        indices = checked_indices(indices, len(self))
        there = session.index.are_present(indices)
        if there.all():
            return session.group(indices, fields)
        absent = indices[~there].tolist()
        made = Made(lambda: self._computed(absent, fields, filler))
        stored = session.group(indices[there], fields)
        return Several([(np.flatnonzero(there), stored), (np.flatnonzero(~there), made)])

    @property
    def _computes(self) -> bool:  # type: ignore[override]
        return self._filler is not None

    def _plain_session(self) -> Session | None:
        return self._reader.session if self._transform is None and self._filler is None else None

    def _warn_of_absent(self, ds: Readable[Any], asked_by: str, columns: str, chosen: Any = slice(0)) -> None:
        session = self._reader.session
        if self._filler is None or session.has_all:
            return
        # Labels that were added later are known without a record.
        if any(name in columns for name in session.original_labels):
            absent = ~session.index.are_present(ds.indices)
            absent[chosen] = False
            text = f"{np.count_nonzero(absent):,} of {len(ds):,} samples, which have no record yet"
            if absent.any():
                base.warn(f"{asked_by} leaves out {text}; warmup() first", once=(self.path, "absent"))

    def _with_readers(self: Self, change: Callable[[Reader], Reader]) -> Self:
        other = copy.copy(self)
        other._reader = change(self._reader)
        return other

    def _find_keys(self, keys: Sequence[Key]) -> Ints:
        table = self._reader.session.keys
        if table is None:
            raise OptionError(
                f"{self.path}: has no keys; they come from sample_key(index) of the source, or from a label column "
                f'"{KEY_COLUMN}" of text, bytes or integers'
            )
        return table.find(key_hashes(keys))

    def _chunk_of(self, indices: Ints) -> Ints:
        session = self._reader.session
        # Equal parts of the file, in bytes: one for each chunk.
        rows, nbytes = session.index.rows(indices), -(-session.nbytes // max(1, session.chunks))
        numbers = rows["offset"].astype(np.int64) // nbytes
        numbers[rows["flags"] == 0] = -1
        return numbers

    def _chunk_size(self) -> int | None:
        session = self._reader.session
        index, chunks, count = session.index, session.chunks, len(self)
        if not chunks or not index.is_dense:
            return None
        size = -(-count // chunks)
        runs = np.arange(0, count, size * -(-chunks // _PROBED_RUNS))[:, None]
        probed = np.minimum(runs + np.arange(0, size, -(-size // _PROBED_SAMPLES)), count - 1)
        offsets = index.offsets(probed.reshape(-1)).reshape(probed.shape)
        return size if np.all(np.diff(offsets) >= 0) else None

    def _computed(self, positions: list[int], fields: Projection | None, filler: LazyFiller) -> list[Any]:
        """Return samples without a record: as another process has stored them meanwhile, or computed now."""
        wanted = list(dict.fromkeys(positions))
        if filler.publish(wanted) and self._reader.refresh():
            self._labels = None
        session = self._reader.session
        samples = {
            position: session.read(position, None) for position in wanted if session.index.has(position)
        }
        absent = [position for position in wanted if position not in samples]
        for position, sample in zip(absent, filler.get(absent) if absent else (), strict=True):
            try:
                samples[position] = as_read(sample, session.head.codec, self._reader.decoding)
            except ImageError as error:
                raise session.placed(error, position) from error
        found = [samples[position] for position in positions]
        return found if fields is None else [fields.of_sample(sample) for sample in found]

    @property
    def _readers(self) -> list[Reader]:
        return [self._reader]

    @property
    def complete(self) -> bool:
        """True if the archive is sealed, and every sample has a record or is recorded as absent for good."""
        return self._reader.complete

    @property
    def errors(self) -> list[Failure]:
        """Failures of samples, by index.

        Each has index, final (absent for good), error (the exception's name), message and traceback.
        """
        return list(self._reader.session.index.failures)

    def info(self) -> dict[str, Any]:
        """Return the state of the archive, and the memory that reading takes in this process.

        Returns:
            path, samples, present, sealed, labels (their names), nbytes (of the file), mapped (its mapped bytes, which
            all processes share, and which are freed when memory is short) and private (bytes of this process alone;
            they do not grow by reading).
        """
        return info_of(self._reader)

    @property
    def missing(self) -> Ints:
        """Indices without a record: int64 [k], sorted."""
        return self._reader.session.index.missing()

    def refresh(self) -> bool:
        """Open later additions of other processes, or an archive saved over it; return True if anything changed."""
        changed = self._reader.refresh()
        if changed:
            self._labels = None
        return changed

    def close(self) -> None:
        """Publish pending samples of a lazy cache, and close the archive."""
        if self._filler is not None:
            self._filler.close()
        self._labels = None  # they are views of the mapped file
        self._reader.close()


def info_of(reader: Reader) -> dict[str, Any]:
    """Return the state of an archive; see `ArchiveDataset.info`."""
    session = reader.session
    return {
        "path": reader.path,
        "samples": session.length,
        "present": session.index.present,
        "sealed": session.sealed,
        "labels": [*dict(session.label_columns)],
        "nbytes": session.size,
        **session.memory(),
    }
