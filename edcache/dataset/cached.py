"""CachedDataset: a map-style torch dataset over an archive."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, overload

from edcache import base, storage
from edcache.base import CacheOptions, FillOptions, OpenOptions, OptionError, Workers, provisional, takes
from edcache.dataset.archive import ArchiveDataset
from edcache.dataset.archive_paths import Path, digests_of, expand_paths
from edcache.dataset.build import Building, identity
from edcache.dataset.concatenation import Several
from edcache.dataset.indexing import T_co
from edcache.labels import LabelSpec
from edcache.reader import AnyReader
from edcache.writer import Store, store_at

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Source(Protocol[T_co]):
    """A map-style dataset."""

    def __getitem__(self, index: int, /) -> T_co:
        """The sample at an index."""


@takes(CacheOptions)
class CachedDataset(ArchiveDataset[T_co]):
    """A dataset whose samples are computed once and read from one archive ever after.

    Args:
        source: the dataset to cache, with __len__ and __getitem__(int); or an iterable, which is stored in
            its order until it ends; None opens what is there.
        path: the archive. Without one it is `<root>/cached/<name>.zip`, from attributes of `source`.
            "shm://name" is in shared memory alone, for all processes of the user on this host, until the last
            that has it open closes it or ends. "redis://host:6379/0?prefix=name" (rediss:// for TLS, unix://
            for a socket) is in a Redis server, which several hosts share; `ttl=` seconds after which what is
            written expires; without `prefix=` one is made of the fingerprint. What is said of files (sync,
            io, verify, check_space, chunks) means nothing there.
        fingerprint: what must match the archive's. By default the class of the source and its attributes (of
            what it wraps and holds, too); or a JSON-able dict. False compares nothing.
        options: as an object; keywords stand in place of some.
        keywords: these options; expected_digest, local and allow_partial are for `from_cache`.
    Raises:
        SourceError: the source raised at an index; what was computed before is kept.
        StaleCacheError: the archive is of another source, or of another length.
        MissingSampleError: on a read, where nothing was filled and there is no source to ask.

    Cost: opening a complete archive takes milliseconds and does not touch the source.
    Safety: fork, spawn, forkserver and threads; a complete one pickles without its source.
    """

    def __init__(
        self,
        source: Source[T_co] | Iterable[T_co] | None,
        path: str | os.PathLike[str] | None = None,
        options: CacheOptions | None = None,
        *,
        fingerprint: dict[str, Any] | bool | None = None,
        **keywords: Unpack[base.CacheKeywords],
    ) -> None:
        options = CacheOptions.of(options, keywords, "CachedDataset")
        store = store_at(_path_of(source) if path is None else path, options.storage_options)
        if source is None:
            self._attach(store, options, store.reader(options))
        else:
            self._make(store, source, options, fingerprint)

    _fixed = base.FIXED

    def _attach(self, store: Store, options: CacheOptions, reader: AnyReader) -> None:
        spec = LabelSpec.parse(options.in_memory_keys)
        self._begin(store, options, reader)
        # Now: a wrong path fails here, and an archive that replaces it later is another one.
        reader.head  # noqa: B018
        self._add_keys(spec)

    def _begin(self, store: Store, options: CacheOptions, reader: AnyReader) -> None:
        # At once: `__setattr__` is for who sets an attribute of an open dataset.
        vars(self).update(_store=store, _reader=reader, path=reader.path, zero_copy=options.zero_copy)
        vars(self).update(_transform=options.transform, _batch_transform=options.batch_transform)

    def _make(
        self, store: Store, source: Any, options: CacheOptions, fingerprint: dict[str, Any] | bool | None
    ) -> None:
        check_fillable(options)
        origin = identity(source, options.num_workers, fingerprint)
        store = store.completed(lambda: origin)
        # What is missing is computed, or was told; max_bytes is of what is filled.
        self._begin(store, options, store.reader(replace(provisional(options), preload=options.preload)))
        if options.preload and options.is_lazy:
            raise OptionError(f"{self.path}: preload= takes a complete archive, lazy=True has none yet")
        self._building = Building(store, source, options, origin)
        # In memory it is there while somebody has it open: from here on this dataset's reader.
        with storage.kept(self.path) as keeper:
            self._filler, archive = self._building.start(options.keep_existing)
            # Who had made it meanwhile may have gone since, and the archive with him.
            while keeper.has_lost():
                filler, archive = self._building.start(keep_existing=True)
                self._filler = filler or self._filler
            if archive is not None and not options.preload:
                self._reader = archive
            self._reader.known_length = self._building.job.head.length or 0
            self._reader.head  # noqa: B018 - opened now, as in `_attach`
        self._add_keys(self._building.job.spec)

    def _add_keys(self, spec: LabelSpec) -> None:
        """Add the label columns that were asked for and that a complete archive lacks, from its samples."""
        if not spec.names:
            return
        try:
            # What was dropped stays away.
            known = {*self._reader.label_names, *(name for name, _ in self._reader.head.labels)}
            absent = [name for name in spec.names if name not in known]
            if absent and self.complete:
                from edcache.dataset import relabel

                relabel.publish(self, lambda: relabel.of_keys(self, spec.only(absent)))
        except BaseException:
            self._reader.close()
            raise

    @classmethod
    @overload
    def from_cache(  # type: ignore[overload-overlap]  # a str is an iterable of str
        cls, path: Path, name: str | None = None, **keywords: Unpack[base.OpenKeywords]
    ) -> CachedDataset: ...

    @classmethod
    @overload
    def from_cache(
        cls, path: Iterable[Path], name: None = None, **keywords: Unpack[base.OpenKeywords]
    ) -> Several: ...

    @classmethod
    @takes(OpenOptions)
    def from_cache(
        cls, path: Path | Iterable[Path], name: str | None = None, **keywords: Any
    ) -> CachedDataset | Several:
        """Open an archive, or several as one dataset, without the source dataset.

        Args:
            path: the archive, its URL, in memory "shm://name"; or, with `name`, edflow's root:
                `<path>/cached/<name>.zip`. Several archives are a list, a glob such as "part-*.zip", or a
                folder: all of its .zip files and those below it. Globs and folders are sorted by paths,
                part-2 before part-10, and may stand in a list.
            keywords: these options; expected_digest of several archives is a list in their order, or a dict
                by path.
        Returns:
            This class for one path. For a list, a glob or a folder, of one archive too, an
            `edcache.dataset.Several`: as `edcache.concat` of them, with `archives`, `refresh`, `info`,
            `missing`, `errors`, `available` and `close`. It holds a file descriptor an archive.
        Raises:
            ArchiveNotFoundError, NotAnArchiveError, FormatVersionError, CorruptArchiveError: each names the
                archive; a glob that nothing fits, a folder without .zip files.
            DigestError: the file is not the one that was published, see `expected_digest`.

        An archive that a killed writer left, or that was cut, opens too, with a PartialArchiveWarning unless
        allow_partial=True, and is not `complete`: what was published is there. Of the rest, samples that the
        archive knows of raise MissingSampleError; where no length was declared, len() may be too small.

        Behind a URL, an archive opens by four requests at most (three over http), of up to two million
        samples; an unsealed one takes one more for each chunk. A batch is one concurrent fetch of its
        records, with `select` of no more of them than the blocks of 16 KiB around the fields. The object
        stays the one that was opened, or a read is StaleArchiveError; refresh() goes on to its newer state.

        With `local`, blocks of 256 KiB are fetched once for all processes of the machine, and survive kills.
        When nearly all are there, the next call or refresh() fetches the rest and proves all of it: from then
        on the copy is an ordinary archive, mapped, which opens without the archive itself too. A record of
        the copy that fails its crc32 is fetched again before an error is raised. An archive that has changed
        (size, time or inode) is another copy; one that changes while it is open is a StaleArchiveError at the
        next missing block. With max_bytes, copies that nobody has open go, the least recently used first. A
        whole copy that `edcache.copy_to_local` made in the folder is used where it is there.
        """
        expected = keywords.pop("expected_digest", None)
        OpenOptions.of(None, keywords, "from_cache")
        if name is not None:
            if not isinstance(path, str | os.PathLike):
                raise OptionError(f"from_cache(..., name={name!r}) takes one root, not a list")
            path = os.path.join(os.fspath(path), "cached", f"{name}.zip")
        elif (paths := expand_paths(path)) is not None:
            with ExitStack() as opened:
                archives = [
                    opened.enter_context(cls(None, one, expected_digest=digest, **keywords))
                    for one, digest in zip(paths, digests_of(paths, expected), strict=True)
                ]
                opened.pop_all()
            return Several(archives)
        assert isinstance(path, str | bytes | os.PathLike)
        return cls(None, os.fsdecode(path), expected_digest=expected, **keywords)

    def __repr__(self) -> str:
        names = ", ".join(self._reader.label_names)
        lack = "not sealed" if self._reader.has_all else f"{len(self) - self._reader.present:,} missing"
        state = "" if self.complete else f", {lack}"
        labels = f", labels: {names}" if names else ""
        return f"CachedDataset({self.path!r}, {len(self):,} samples{state}{labels})"

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self._building is not None and self.complete and not (self._filler and self._store.may_lose):
            state |= {"_building": None, "_filler": None}
        return state

    def add_labels(
        self,
        what: Any,
        values: Any = None,
        *,
        on: str | None = None,
        fields: Sequence[Any] | None = None,
        num_workers: int = 0,
    ) -> CachedDataset[T_co]:
        """Add label columns, or change some, in the archive; no sample is written again.

        Args:
            what: the column's name; or a pyarrow Table, a DataFrame or a dict of columns, to add all of them.
            values: one value per sample, as a numpy or Arrow array, a Series or a list, None where there is
                none; {index: value}, which leaves the others as they are; or a function of a sample, as it is
                stored, without `transform`.
            on: a label column that the table has too, each value once: its rows go to the samples with
                that value. Samples without a row get None.
            fields: the function gets these fields alone, as `select(*fields)` gives them.
            num_workers: processes that call the function, as in a DataLoader; 0 calls it in this one.
        Returns:
            This dataset, which sees the labels at once; others who have it open do after refresh().
        Raises:
            OptionError: 'label "cluster" got 9 values, the dataset has 10 samples; ...', and the like.
            LabelTypeError: 'train.zip: label "y" is int64 in the archive and string in labels that were
                added; ...': samples that are written later have such values too.
            LabelError: the function raised; a key comes twice in the table.
            StorageError: the archive cannot be written here.

        Samples that are appended later have None in a new column, and their own label in one of
        `in_memory_keys`.
        Cost: of a sealed archive, writing its index and its labels again: 30 bytes a sample and the labels.
        Safety: any number of processes may add labels and append samples at once.

        >>> ds.add_labels("cluster", clusters)
        >>> ds.add_labels("bright", lambda s: float(s["image"].mean()) > 99, fields=("image",))
        """
        from edcache.dataset import relabel

        relabel.publish(self, lambda: relabel.given(self, what, values, on, fields, num_workers))
        return self

    def drop_labels(self, *names: str) -> CachedDataset[T_co]:
        """Take label columns away; as with `add_labels`, nothing is written again.

        A dropped column of `in_memory_keys` stays away: samples that are written later do not bring it back.
        Raises:
            UnknownLabelError: 'no label "lable"; this archive has: label, split'. StorageError.
        """
        from edcache.dataset import relabel

        relabel.publish(self, lambda: relabel.dropped(self, names))
        return self

    @takes(FillOptions)
    def warmup(
        self, num_workers: Workers = None, **keywords: Unpack[base.WarmupKeywords]
    ) -> CachedDataset[T_co]:
        """Compute every missing sample now, with a progress bar, and seal the archive.

        Args:
            keywords: these options; what is left out, and num_workers=None, are as the dataset was made with.
        Raises: as the class; OptionError where the dataset was opened without its source.
        """
        building = self._building
        given: dict[str, Any] = {} if num_workers is None else {"num_workers": num_workers}
        options = FillOptions.of(
            None if building is None else building.job.options, {**keywords, **given}, "warmup"
        )
        if building is None:
            if self.complete:
                return self
            count = len(self) - self._reader.present
            lack = (
                f"{count:,} samples are missing" if count else "it is not sealed, so samples may be missing,"
            )
            raise OptionError(
                f"{self.path}: {lack} and the source dataset is not here; construct "
                "CachedDataset(source, path)"
            )
        if self._filler is not None:
            self._filler.flush()
        if self._store.may_lose:
            self._reader.missing()  # what the server has lost
        if not self.complete:
            building.fill(options)
            self.refresh()
        return self

    cache_dataset = warmup

    def _unsealed(self) -> list[str]:
        return [] if self._building is not None or self._reader.sealed else [self.path]


def _path_of(source: Any) -> str:
    root, name = getattr(source, "root", None), getattr(source, "name", None)
    if root is None or name is None:
        raise OptionError(
            "no path given, and the source has no attributes `root` and `name` to make one from; "
            'pass path="somewhere.zip"'
        )
    return os.path.join(os.fspath(root), "cached", f"{name}.zip")


def check_fillable(options: CacheOptions) -> None:
    """Raise OptionError for options of an archive that is only opened."""
    reasons = {"expected_digest": "has no published digest", "local": "is here already"}
    for name, reason in reasons.items():
        if getattr(options, name) is not None:
            raise OptionError(f"{name}= is for CachedDataset.from_cache(): what is filled here {reason}")
