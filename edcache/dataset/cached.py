"""`CachedDataset`: a map-style torch dataset over an archive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, overload

from edcache import base, writer
from edcache.base import (
    CacheOptions,
    FillOptions,
    OpenOptions,
    OptionError,
    Workers,
    provisional,
    takes,
)
from edcache.dataset.archive_paths import StrPath, expand_paths
from edcache.dataset.build import Building
from edcache.dataset.combined import Joined, add, concat
from edcache.dataset.indexing import T_co
from edcache.dataset.root import Archive, Reading
from edcache.dataset.view import Samples
from edcache.identity import Other, Recipe
from edcache.labels import LabelSpec
from edcache.reader import Reader
from edcache.writer import Store, store_at

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Source(Protocol[T_co]):
    """Map-style dataset."""

    def __getitem__(self, index: int, /) -> T_co:
        """Return the sample at an index."""


@base.cut_traceback
@takes(CacheOptions)
class CachedDataset(Samples[T_co]):
    """Map-style dataset whose samples are computed once, stored in one archive, and read from it.

    Args:
        source: the dataset to cache, with __len__ and __getitem__(int); or an iterable, which is stored in its order
            until it ends. A KDDataset of KappaData is stored by its items: a dict of getitem_x, ... and "index". None
            opens an archive that exists.
        path: the archive file. Without a path it is `<root>/cached/<name>.zip`, where `root` and `name` are attributes
            of the source. "shm://name" is an archive in shared memory, for all processes of the user on this host; it
            is freed when the last of them closes it or ends.
        fingerprint: identifies the source, and must equal the archive's. By default it is made from the class of
            the source and its attributes, including the datasets that it wraps. A JSON-able dict replaces it.
            False compares nothing.
        options: all options as one object. Keywords replace single options of it.
        keywords: these options; expected_digest, local, allow_partial and allow_pickle are for `from_cache`.
    Raises:
        SourceError: "train.zip: the source raised at index 30: ValueError: ...; train.zip keeps 30 of 50 samples; the
            same call computes the rest".
        StaleCacheError: the archive was made from another source, or has another length.
        MissingSampleError: a read of a sample that is not stored, without a source to compute it.

    Cost: opening a complete archive takes milliseconds and does not use the source.
    Safety: the dataset can be used with fork, spawn, forkserver and threads. A complete one is pickled
    without its source.
    """

    path: str
    _archive: Archive
    _building: Building | None = None
    _sync: base.Sync = "seal"

    def __init__(
        self,
        source: Source[T_co] | Iterable[T_co] | None,
        path: str | os.PathLike[str] | Store | Reader | None = None,
        options: CacheOptions | None = None,
        *,
        fingerprint: dict[str, Any] | bool | Recipe | None = None,
        **keywords: Unpack[base.CacheKeywords],
    ) -> None:
        if isinstance(path, Reader):
            self._attach(options or CacheOptions(), path)
            return
        given = keywords.pop("storage_options", getattr(options, "storage_options", None))
        store = store_at(_path_of(source) if path is None else path, given)
        path, given = store.path, None  # a traceback with locals would show credentials
        options = CacheOptions.of(options, keywords, "CachedDataset")
        if source is None:
            self._attach(options, store.reader(options))
            return
        check_fillable(options)
        source = writer.by_items(source)
        writer.check_source(source, path)
        recipe = writer.chosen_recipe(source, fingerprint, options.num_workers)
        # Missing samples are computed, or were warned of; max_bytes limits the fill.
        reader = store.reader(replace(provisional(options), preload=options.preload))
        self._archive = own = Archive(reader, options.transform, options.batch_transform)
        self._reading, self.path = Reading(own), reader.path
        if options.preload and options.lazy:
            raise OptionError(f"{self.path}: preload= takes a complete archive, lazy=True has none yet")
        self._building = building = Building(store, source, options, recipe)
        with store.held():
            archive = building.completed(options.keep_existing)
            if archive is None:
                own.filler = building.filler()
                if own.filler is None:
                    building.fill(building.job.options, rebuild=not options.keep_existing)
            elif not options.preload:
                own.reader = archive
            own.reader.open()  # now, as in `_attach`
        self._sync = building.job.sync
        self._add_keys(building.job.spec)

    def _attach(self, options: CacheOptions, reader: Reader) -> None:
        spec = LabelSpec.parse(options.in_memory_keys)
        self._archive = Archive(reader, options.transform, options.batch_transform)
        self._reading, self.path = Reading(self._archive), reader.path
        # A wrong path fails here, and a later archive at the path is another one.
        reader.open_or_salvage() if options.allow_partial else reader.open()
        self._add_keys(spec)

    def _add_keys(self, spec: LabelSpec) -> None:
        """Compute the label columns of the options that a complete archive lacks, from its samples."""
        if not spec.names:
            return
        with base.on_error(self._archive.reader.close):
            # Dropped columns do not return.
            session = self._archive.reader.session
            known = {*dict(session.label_columns), *dict(session.head.labels)}
            absent = [name for name in spec.names if name not in known]
            if absent and self.complete:
                from edcache.dataset import relabel

                relabel.change(
                    self._archive, self._sync, lambda: relabel.of_keys(self._archive, spec.only(absent))
                )

    @classmethod
    @overload
    def from_cache(  # type: ignore[overload-overlap]  # a str is an iterable of str
        cls, path: StrPath, name: str | None = None, **keywords: Unpack[base.OpenKeywords]
    ) -> CachedDataset: ...

    @classmethod
    @overload
    def from_cache(
        cls, path: Iterable[StrPath], name: None = None, **keywords: Unpack[base.OpenKeywords]
    ) -> Joined: ...

    @classmethod
    @takes(OpenOptions)
    def from_cache(
        cls, path: StrPath | Iterable[StrPath], name: str | None = None, **keywords: Any
    ) -> CachedDataset | Joined:
        """Open an archive, or several as one dataset, without the source dataset.

        Args:
            path: the path or URL of an archive, or "shm://name". Several archives are given as a list, as a glob such
                as "part-*.zip", or as a folder: all .zip files in it and in the folders below it. The results of globs
                and folders are sorted by path, part-2 before part-10. A list may hold globs and folders too. With
                `name`, the path is edflow's root.
            name: opens `<path>/cached/<name>.zip`.
            keywords: these options. expected_digest is for one archive.
        Returns:
            A CachedDataset for one path. For a list, a glob or a folder the archives as joined by `edcache.concat`,
            even if it is one only. Its `parts` are the archives. Given transforms belong to the joined dataset.
        Raises:
            ArchiveNotFoundError: "train.zip: no such file"; no file matches a glob; a folder has no .zip.
            ArchiveError, CorruptArchiveError: the message names the archive.
            ArchiveError: the file is not the one that was published; see `expected_digest`.

        An archive that is not sealed can be opened, for example after a writer was killed. It gives a
        PartialArchiveWarning unless allow_partial=True, and is not `complete`. All stored samples can be read; a
        missing one raises MissingSampleError. If the length was never declared, len() may be too small.

        Behind a URL, or with `local`, only the bytes that reads need are fetched, once for all processes of this
        machine, into a copy that fills; see the guide to object stores. If the remote archive is replaced while it is
        open, the next read that fetches raises StaleArchiveError; open it again. With `local=False` nothing is kept,
        and refresh() opens the new state.
        """
        given = keywords.pop("storage_options", None)
        if name is not None:
            if not isinstance(path, str | os.PathLike):
                raise OptionError(f"from_cache(..., name={name!r}) takes one root, not a list")
            path = os.path.join(os.fspath(path), "cached", f"{name}.zip")
        names = expand_paths(path)
        is_one = names is None
        stores = [store_at(one, given) for one in names or [path]]  # type: ignore[list-item]
        path, names, given = "", None, None  # a traceback with locals would show credentials
        OpenOptions.of(None, keywords, "from_cache")
        if is_one:
            return cls(None, stores[0], **keywords)
        if keywords.get("expected_digest") is not None:
            raise OptionError(
                "expected_digest= is of one archive; open several one by one, and concat() them"
            )
        own = {name: keywords.pop(name, None) for name in ("transform", "batch_transform")}
        joined = concat(_open_all(lambda store: cls(None, store, **keywords), stores))
        joined.transform, joined.batch_transform = own["transform"], own["batch_transform"]
        return joined

    __add__ = add

    def __edcache_fingerprint__(self) -> dict[str, Any]:
        """Return the identity of the samples, for a cache of them: the archive is known by its uuid.

        Filled again by keys, an archive has other samples.
        """
        session = self._archive.reader.session
        archive = " ".join(filter(None, [session.head.uuid.hex(), session.origin.keys_digest]))
        return {"archive": archive, **self._archive.settings(), "columns": ["archive"]}

    def __getstate__(self) -> dict[str, Any]:
        is_needed = self._building is not None and not self._archive.reader.session.complete
        return vars(self) if is_needed else vars(self) | {"_building": None}

    def info(self) -> dict[str, Any]:
        """Return the state of the archive, and the memory that reading takes in this process.

        Returns:
            path, samples, present, sealed, labels (their names), nbytes (of the file), mapped (its mapped bytes, which
            all processes share, and which are freed when memory is short) and private (bytes of this process alone;
            they do not grow by reading).
        """
        session = self._archive.reader.session
        return {
            "path": self.path,
            "samples": session.length,
            "present": session.index.present,
            "sealed": session.sealed,
            "labels": [*dict(session.label_columns)],
            "nbytes": session.size,
            **session.memory(),
        }

    def refresh(self) -> bool:
        """Open later additions of other processes, or an archive saved over it; return True if anything changed."""
        return self._archive.reader.refresh()

    def add_labels(
        self,
        what: Any,
        values: Any = None,
        *,
        on: str | None = None,
    ) -> CachedDataset[T_co]:
        """Add label columns, or change some, in the archive; no sample is written again.

        Args:
            what: the column's name; or a pyarrow Table, a DataFrame or a dict of columns, to add all of them.
            values: one value per sample, as a numpy or Arrow array [len(self)], a Series or a list; None is a
                missing value. A dict {index: value} changes these samples only, and the column keeps its type if
                that holds the numbers exactly. A function is called with each sample as it is stored, without
                `transform`, in this process.
            on: a label column of this dataset and of the table, for a left join. A sample gets the row of the table
                with its value in this column. A sample without such a row gets None, and a warning counts them. In the
                table each value may stand once.
        Returns:
            This dataset. It has the new labels at once. Other open datasets have them after refresh().
        Raises:
            OptionError: 'label "cluster" got 9 values, but the dataset has 10 samples; ...'.
            LabelError: 'train.zip: label "y" is int64 in the archive and string in labels that were added; ...'.
                Samples that are written later have values of that type too.
            LabelError: the function raised; a value of `on` stands twice in the table, or no sample has one.
            StorageError: the archive cannot be written here.

        Samples that are appended later have None in a new column. In a column of `in_memory_keys` they have
        their own label.
        Cost: the changed columns, a new root, and some 90 bytes for each entry of the zip directory.
        Safety: any number of processes may add labels and append samples at the same time.

        >>> ds.add_labels("cluster", clusters)
        >>> ds.add_labels("bright", lambda sample: float(sample["image"].mean()) > 99)
        """
        from edcache.dataset import relabel

        relabel.change(self._archive, self._sync, lambda: relabel.given(self._archive, what, values, on))
        return self

    def drop_labels(self, *names: str) -> CachedDataset[T_co]:
        """Delete label columns from the archive; no sample is written again.

        A deleted column of `in_memory_keys` does not return when samples are written later.
        Raises:
            UnknownLabelError: 'no label "lable"; this archive has: label, split'.
            StorageError: the archive cannot be written here.
        """
        from edcache.dataset import relabel

        relabel.change(self._archive, self._sync, lambda: relabel.dropped(self._archive, names))
        return self

    def spot_check(self, source: Source[Any], samples: int = 8) -> dict[int, Other]:
        """Compute samples again and compare them with their records; nothing is written.

        Args:
            source: the dataset that made the archive.
            samples: their number; they are drawn, others each time.
        Returns:
            The samples that are other ones now, by index, each with a field that differs: `field` is its path,
            `distance` is relative to its norm, `before` and `now` are the values. {} if all are the same, or differ by
            the rounding that the fill measured.
        Raises:
            OptionError: 'train.zip: its samples are other ones each time that they are computed'.
            StaleCacheError: 'train.zip: begun for 20 samples, the source has 5 now; ...'.
            Exception: as the source raises it.

        Cost: one sample of the source for each.
        Safety: the global random generators are left as they were.

        >>> assert ds.spot_check(Digits("train")) == {}
        """
        base.check_count("samples", samples)
        source = writer.declared(writer.by_items(source))
        writer.check_source(source, self.path)
        return writer.compared(source, self._archive.reader.session, samples)

    @takes(FillOptions)
    def warmup(
        self, num_workers: Workers = None, **keywords: Unpack[base.FillKeywords]
    ) -> CachedDataset[T_co]:
        """Compute every missing sample now, with a progress bar, and seal the archive.

        Args:
            keywords: these options. Options that are not given, and num_workers=None, are as the dataset was made with.
        Returns:
            This dataset.
        Raises:
            OptionError: samples are missing, and the dataset was opened without its source.
            SourceError, StorageError: as the class raises them.
        """
        building = self._building
        given: dict[str, Any] = {} if num_workers is None else {"num_workers": num_workers}
        options = FillOptions.of(
            None if building is None else building.job.options, {**keywords, **given}, "warmup"
        )
        if building is None:
            if self.complete:
                return self
            count = len(self) - self._archive.reader.session.index.present
            lack = (
                f"{count:,} samples are missing" if count else "it is not sealed, so samples may be missing,"
            )
            raise OptionError(
                f"{self.path}: {lack} and there is no source to compute them; open it with "
                "CachedDataset(source, path)"
            )
        if self._archive.filler is not None:
            self._archive.filler.flush()
        if not self.complete:
            building.fill(options)
            self.refresh()
        return self


def _open_all(
    open_one: Callable[[Store], CachedDataset[Any]], stores: list[Store]
) -> list[CachedDataset[Any]]:
    """Open archives, eight at a time; after an error none stays open."""
    archives: list[CachedDataset[Any]] = []
    with ExitStack() as opened:
        base.in_threads(
            open_one, stores, lambda one: archives.append(opened.enter_context(one)), 8, "edcache-open"
        )
        opened.pop_all()
    return archives


def _path_of(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        raise OptionError(
            f"no path was given; open an archive without its source by CachedDataset.from_cache({source!r})"
        )
    root, name = getattr(source, "root", None), getattr(source, "name", None)
    if root is None or name is None:
        raise OptionError(
            "no path was given, and the source has no attributes `root` and `name` to make one from; "
            'pass path="somewhere.zip"'
        )
    return os.path.join(os.fspath(root), "cached", f"{name}.zip")


# Options of `from_cache` that a fill refuses.
OPENING: Final = ("expected_digest", "local", "allow_partial", "allow_pickle")


def check_fillable(options: CacheOptions) -> None:
    """Raise OptionError for options of an archive that is only opened."""
    reasons = {
        "expected_digest": "a new archive has no published digest",
        "local": "a new archive is on this machine already",
        "allow_partial": "a fill goes on with what is there",
    }
    if options.codec != "pickle":
        reasons["allow_pickle"] = 'codec="pickle" reads its own pickles'
    for name, reason in reasons.items():
        if getattr(options, name) not in (None, False):
            raise OptionError(f"{name}= is for CachedDataset.from_cache(); {reason}")
