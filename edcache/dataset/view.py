"""Views: every method that chooses samples or fields makes one, by index arithmetic alone."""

from __future__ import annotations

import itertools
import operator
import os
import reprlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import torch

from edcache import base, labels
from edcache.base import Draw, Ints, OptionError, Selection, Transform, repeated
from edcache.dataset import resample, split
from edcache.dataset.indexing import Readable, Root, T_co
from edcache.dataset.sampler_columns import warn_of_absent
from edcache.dataset.save import save
from edcache.dataset.transforms import Step, checked_step, extended, turns_of
from edcache.labels import Classes, checked_indices, classes_of, integers, is_array, sorted_rows
from edcache.reader import FieldPath, OnProgress, Projection, batch_for

if TYPE_CHECKING:
    from torch import Tensor

    from edcache.display import Viewer

_MOST_STEPS = 6


class Samples(Readable[T_co]):
    """The methods of a cache and of its views: a sequence of samples with labels.

    No sample is read to make a view. A view has an index array (int64, 8 bytes per sample), which views made
    from it share. The views of slices, take, skip, percent, repeat and shuffle have none. Random choices
    depend on the seed only, so they are equal in every process and on every platform. A label column that
    does not exist raises UnknownLabelError. A column whose values are lists or dicts raises LabelTypeError.
    A missing value counts as a value of its own.
    """

    @property
    def cache(self) -> Samples[Any]:
        """The dataset that this view was made from; for a cache, the cache itself."""
        return self._root  # type: ignore[return-value]  # every root is one

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Any: ...
    @overload
    def __getitem__(self, index: Sequence[int] | npt.NDArray[Any] | Tensor) -> View[T_co]: ...
    def __getitem__(self, index: Any) -> Any:
        """One sample for an integer; a view for a slice, an index array, a list or a bool mask [len(self)].

        If one field is selected and is a label column, a slice returns its values without reading a record:
        `ds.select("label")[:]` is the read-only numpy column, as `ds.labels["label"]`.

        Raises:
            SampleIndexError (an IndexError): "...: index 12 not in [-10, 10)".
            CorruptRecordError, MissingSampleError: as `Reader.read`.
        The caller owns the memory of the sample, unless the dataset was opened with zero_copy=True.
        """
        if type(index) is int and 0 <= index < len(self):
            return self._read(index)
        if isinstance(index, slice):
            column = self._label_column()
            if column is not None:
                return self.labels[column][index]
            ends = (index.start, index.stop) if index.step is None else (index.start, index.stop, index.step)
            step = f"[{':'.join('' if end is None else str(end) for end in ends)}]"
            return self._cut(range(len(self))[index], step)
        if is_array(index):
            length = len(self)
            # A copy: what is given may be changed later.
            positions = np.array(checked_indices(integers(np.asarray(index), length), length))
            return self._picked(positions, "[...]")
        position = self._position(index)
        return self._read(Draw(position, index.epoch, index.number) if isinstance(index, Draw) else position)

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        """The samples at several positions, read together, as torch's DataLoader asks for a batch.

        A DataLoader whose `collate_fn` is torch's `default_collate` or an `edcache.collate` gets something
        in their place that either collates by one gather a field, see `edcache/reader/batch.py`.
        """
        if type(indices) is list and indices and type(indices[0]) is list:
            raise OptionError("this sampler gives batches; pass it as batch_sampler= and no batch_size")
        positions = integers(indices, len(self))
        turns = turns_of(self, indices, positions, is_loader=True)
        return batch_for(sys._getframe(1), self, self._root_indices(positions), turns)

    # --------------------------------------------------------------------------------- by labels

    def filter(self, where: object = None, /, **conditions: object) -> View[T_co]:
        """A view of the samples whose labels fulfil all conditions; no sample is read.

        Args:
            where: a bool mask [len(self)], an index array, a pyarrow expression, a where-string such as
                "label in (0, 1) and split == 'train'", or a function that takes the label table (a pyarrow
                Table) and returns a mask.
            conditions: the name of a label column, with a value, a list of values, a range, None for missing
                values, or a function that takes the column and returns a mask.
        Raises:
            UnknownLabelError: 'no label "lable"; this archive has: label, split; did you mean label?'.
            WhereError: the where-string cannot be parsed.
            OptionError: a mask has the wrong length; a function raised.

        Cost: reads the label columns that are compared, and no sample.

        >>> train.filter(split="train", label=[0, 1])
        """
        rows = _matching(self, where, conditions)
        columns = [where, *conditions] if isinstance(where, str) else conditions
        warn_of_absent(self, "filter()", " ".join(columns), rows)
        return self._picked(rows, _conditions("filter", where, conditions))

    def exclude(self, where: object = None, /, **conditions: object) -> View[T_co]:
        """A view of the samples that `filter` does not choose, in their order.

        A missing value fulfils only the condition None, so its sample is in this view for all others.

        >>> ds.exclude(split="test")
        """
        rows = _matching(self, where, conditions)
        kept = np.ones(len(self), bool)
        kept[rows] = False
        return self._picked(np.flatnonzero(kept), _conditions("exclude", where, conditions))

    def sort_by(self, name: str, descending: bool = False) -> View[T_co]:
        """A view in the order of a label column. Equal values keep their order; text is in code point order.

        Missing values and nans are last, also with descending=True.
        """
        self._guard(32)
        order = sorted_rows(self.labels.singles(name, "sort_by"), descending)
        return self._picked(order, _call("sort_by", name, descending=descending or None))

    def unique(self, name: str) -> View[T_co]:
        """A view of the first sample of each value of a label column."""
        return self._picked(resample.firsts(self._classes(name, "unique")), _call("unique", name))

    def group_by(self, name: str) -> dict[Any, View[T_co]]:
        """A dict from each value of a label column to a view of its samples, in order of first occurrence.

        None is the key of the samples without a value. All views share one index array.
        """
        groups = self._classes(name, "group_by")
        order, ends = base.grouped(groups.codes, len(groups.values))
        runs = zip(groups.values, _runs(Selection(self._root_indices(order)), ends), strict=True)
        step = _call("group_by", name)
        return {value: self._view(f"{step}[{_SHORT.repr(value)}]", selection=run) for value, run in runs}

    def oversample(self, name: str, strategy: str = "exact", seed: int = 0) -> View[T_co]:
        """A view of all samples that repeats those of smaller classes. Copies of a sample are neighbours.

        Args:
            name: the label column with the class.
            strategy: "exact" makes all classes as large as the largest. Some samples, drawn by `seed`, are
                then repeated once more than others. "multiply" repeats all samples of a class equally often,
                as many times as the class does not become larger than the largest.
            seed: see strategy.
        """
        positions = resample.oversampled(self._classes(name, "oversample"), strategy, seed)
        oversampled = self._picked(positions, _call("oversample", name, strategy))
        oversampled._repeats = True
        return oversampled

    def undersample(self, name: str, count: int | None = None, seed: int = 0) -> View[T_co]:
        """A view of at most `count` samples of each value of a label column, in their order.

        The samples are drawn by `seed`. count=None is the size of the smallest class.
        """
        positions = resample.undersampled(self._classes(name, "undersample"), count, seed)
        return self._picked(positions, _call("undersample", name, count))

    def _classes(self, name: str, asked_by: str) -> Classes:
        self._guard(48)
        return classes_of(self.labels.singles(name, asked_by))

    # ------------------------------------------------------------------------------- by position

    def take(self, n: int) -> View[T_co]:
        """A view of the first n samples; of all samples if there are fewer."""
        return self._cut(range(len(self))[: _count("take", n)], _call("take", n))

    def skip(self, n: int) -> View[T_co]:
        """A view of the samples after the first n; it is empty if there are no more."""
        return self._cut(range(len(self))[_count("skip", n) :], _call("skip", n))

    def percent(self, start: float, stop: float) -> View[T_co]:
        """A view of the samples from one fraction of the dataset to another, such as 0.25 to 0.75.

        Both ends are rounded to samples, so `percent(0, x)` and `percent(x, 1)` together are all samples.
        """
        if not 0 <= start <= stop <= 1:
            raise OptionError(
                f"percent({start!r}, {stop!r}): give fractions between 0 and 1, the first not above the "
                "second: percent(0.25, 0.75)"
            )
        part = range(round(len(self) * start), round(len(self) * stop))
        return self._cut(part, _call("percent", start, stop))

    def repeat(self, n: int | None = None, *, min_size: int | None = None) -> View[T_co]:
        """A view that repeats the dataset n times, or until it has at least `min_size` samples."""
        if (n is None) == (min_size is None):
            raise OptionError(
                "repeat() needs a number of times, repeat(3), or a size, repeat(min_size=10_000)"
            )
        step = _call("repeat", n, min_size=min_size)
        if n is None:
            wanted = _count("repeat", min_size)
            if wanted and not len(self):
                raise OptionError(f"repeat(min_size={min_size}): the dataset has no samples to repeat")
            n = -(-wanted // max(len(self), 1))
        try:
            selection = repeated(self._whole_selection(), _count("repeat", n))
        except OverflowError:
            raise OptionError(f"repeat({n}): this is more samples than fit into 64 bits") from None
        return self._view(step, selection=selection, repeats=self._repeats or n > 1)

    def shuffle(self, seed: int) -> View[T_co]:
        """A view of all samples in a random order. It is the same for the same seed and length.

        The order stays the same in every epoch. For a new order in every epoch use `samplers.Shuffle`, or
        `shuffle=True` of a DataLoader or of `loader`.
        """
        order = base.shuffled(self._whole_selection(), base.checked_seed(seed))
        return self._view(_call("shuffle", seed), selection=order)

    # ------------------------------------------------------------------------------------- parts

    def split(
        self, *parts: float, seed: int | None = 0, stratify: str | None = None, group: str | None = None
    ) -> tuple[View[T_co], ...]:
        """Split all samples into views. Each sample is in exactly one view.

        Args:
            parts: fractions with the sum 1, or counts with the sum len(self). The size of a fraction is
                rounded down or up.
            seed: decides which samples are in which part. None takes the first samples for the first part,
                and so on.
            stratify: a label column. Each part then has the same share of each of its values, rounded down
                or up.
            group: a label column, such as the patient. All samples of one value are then in the same part.
                Sizes of parts and of classes are then approximate: within a few samples, and nearest with
                seed=None, which places the largest group first.
        Returns:
            One view for each part, in the order of this dataset.
        Raises:
            OptionError: "split(0.8, 0.1): the sum of the fractions is 0.9; ...".

        >>> train, val, test = ds.split(0.8, 0.1, 0.1, seed=0, stratify="label", group="patient")
        """
        weights = split.weights_of(parts, len(self))
        step = _call("split", *parts, seed=seed, stratify=stratify, group=group)
        if seed is None and stratify is None and group is None:
            runs = _runs(self._whole_selection(), np.cumsum([0, *split.sizes_of(len(self), weights)]))
        else:
            self._guard(48)
            strata, groups = self._codes(stratify, "split"), self._codes(group, "split")
            order, ends = split.parted(len(self), weights, seed, strata, groups)
            runs = _runs(Selection(self._root_indices(order)), ends)
        return tuple(self._view(f"{step}[{k}]", selection=run) for k, run in enumerate(runs))

    def kfold(
        self, n: int, *, seed: int | None = 0, stratify: str | None = None, group: str | None = None
    ) -> list[tuple[View[T_co], View[T_co]]]:
        """A pair of views (train, test) for each of n folds. Each sample is in exactly one test view.

        Args:
            seed, stratify, group: as in `split`.
        Raises:
            OptionError: there are fewer samples, or groups, than folds.

        A test view is in the order of this dataset. A train view has the folds after its test fold, one
        after the other. All views share one array with two indices per sample.
        """
        self._guard(64)
        strata, groups = self._codes(stratify, "kfold"), self._codes(group, "kfold")
        split.check_folds(n, len(self), group, groups)
        order, bounds = split.parted(len(self), [1] * n, seed, strata, groups)
        step = _call("kfold", n, seed=seed, stratify=stratify, group=group)
        twice = Selection(self._root_indices(np.concatenate([order, order])))
        folds = []
        for k, (start, end) in enumerate(itertools.pairwise(bounds.tolist())):
            train = self._view(f"{step}[{k}][0]", selection=twice.cut(range(end, start + len(order))))
            test = self._view(f"{step}[{k}][1]", selection=twice.cut(range(start, end)))
            folds.append((train, test))
        return folds

    def _codes(self, name: str | None, asked_by: str) -> npt.NDArray[Any] | None:
        """The value of a label column that each sample has, numbered from 0."""
        return None if name is None else self._classes(name, asked_by).codes

    # ------------------------------------------------------------------- what a sample consists of

    def select(self, *fields: FieldPath, as_tuple: bool = False) -> View[Any]:
        """A view whose samples have only some fields. Only the bytes of these fields are read.

        Args:
            fields: paths of fields, in the wanted order: "image", "target.boxes", 1 or ("target", 0).
            as_tuple: True makes samples tuples of the fields. False makes them dicts whose keys are the given
                paths.
        Raises:
            OptionError: a field is given twice; at the first read, the samples do not have the field.

        Fields that are label columns are taken from the labels, without reading a record. If `add_labels`
        changed labels, they are read from the records: samples keep the stored value. A `transform` of the
        cache gets the selected fields. After `with_transform`, the fields are those of its result, and
        complete samples are read.

        >>> ds.select("image", "label", as_tuple=True)[0]
        """
        chosen = Projection(fields, as_tuple, {})
        if self._added is not None:
            return self._view(f".{chosen}", added=extended(self._added, Step(chosen.of_sample)))
        if self._fields is not None:
            return self._view(f".{chosen}", fields=self._fields.narrowed(fields, as_tuple))
        return self._view(f".{chosen}", fields=Projection(fields, as_tuple, self._root._columns()))

    def _label_column(self) -> str | None:
        """The label column that is all of a sample, where one field is selected and nothing transforms it."""
        fields = self._fields
        if fields is None or len(fields.paths) > 1 or self._transform is not None:
            return None
        column = fields.columns.get(fields.paths[0])
        # Labels may have been revised since the field was selected.
        return column if self._root._columns().get(fields.paths[0]) == column else None

    def with_transform(
        self,
        fn: Callable[..., Any],
        *,
        field: FieldPath = None,
        return_ctx: bool = False,
        seed: int | None = None,
        seed_global: bool = False,
    ) -> View[Any]:
        """A view that calls a function for each sample at every read, such as a random augmentation.

        Args:
            fn: takes a sample and returns the sample to use instead. If it has a second parameter `ctx`, it
                also gets a dict, new for each read, in which it can note its random choices. All transforms
                of one sample share this dict.
            field: the path of one field, as in `select`. `fn` then gets and returns only this field.
            return_ctx: True makes samples pairs (sample, ctx). Later transforms get the sample alone.
            seed: makes the random choices of fn a function of seed, epoch and sample. fn then has a parameter
                `rng`, a `numpy.random.Generator` or, if annotated so, a `torch.Generator`.
            seed_global: True also seeds torch's, Python's and numpy's global generators for fn. Both are as
                of `edcache.Seeded`.
        Raises:
            OptionError: fn is not a function; it takes no rng, and there is a seed for it, or the other way
                round; at the first read, the samples do not have the field.

        Transforms run in the order in which they were added, after the `transform` of the cache. Worker
        processes that are started by spawn need an `fn` that can be pickled.

        >>> ds.with_transform(field="image", fn=augment)
        """
        step = _call("with_transform", fn, field=field, return_ctx=return_ctx or None, seed=seed)
        added = extended(self._added, checked_step(fn, field, seed, seed_global), return_ctx)
        return self._view(step, added=added)

    def ctx(self, fn: Callable[..., Any], *, field: FieldPath = None, seed: int | None = None) -> View[Any]:
        """Short for `with_transform(fn, ..., return_ctx=True)`: samples are (sample, ctx)."""
        return self.with_transform(fn, field=field, return_ctx=True, seed=seed)

    def set_epoch(self, epoch: int) -> None:
        """Tell the seeded transforms of a dataset, and of all its views, the epoch that is read.

        Args:
            epoch: 0 or more.

        It is for a DataLoader without a sampler of `edcache.samplers`: call it before each iteration. Workers
        see it, also persistent ones. A loader and such a sampler know their epoch themselves. Other reads are
        of the epoch that was set last, or of epoch 0.
        """
        base.check_count("epoch", epoch, 0)
        root = self._root
        if root._epoch is None:
            # Before any worker begins, since without one a DataLoader does not read.
            root._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        root._epoch.fill_(int(epoch))

    # ------------------------------------------------------------------------------------- keeping it

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        max_size: int | str | None = None,
        skip_damaged: bool = False,
        on_progress: OnProgress | None = None,
    ) -> list[str]:
        """Copy the stored samples of this dataset, in its order and with their labels, into a new archive.

        It works for views of one archive or of several, also behind URLs. Records are copied without decoding
        them, and the crc32 of each is checked. Sample i of the new archive is sample i of this dataset. A
        sample that failed for good stays without a record, and keeps the reason. If one archive is
        compressed, the records of the others are compressed too. All samples of one archive in their order
        take its fingerprint along, so `CachedDataset(source, path)` accepts the new one as the old one.

        Args:
            path: the new file. It may be that of the archive itself if all of its samples are saved in their
                order: `ds.save(ds.path)` rewrites it without replaced records, old seals and small chunks.
            max_size: writes several files of about this many bytes, as a number or a text such as "2GB":
                train-00000.zip, train-00001.zip, ... for the path train.zip.
            skip_damaged: True leaves out samples whose record is damaged or missing. They keep their place
                and labels; `missing` of the new archive has them.
            on_progress: a function that is called with (bytes of records copied, bytes of records).
        Returns:
            The paths of the new files; one without max_size.
        Raises:
            OptionError: samples are not as they are stored: a transform, selected fields or `zip_fields`
                changes them. `CachedDataset(view, path)` stores what such a view gives.
            PartialArchiveError: "save(): ...: 3 of 20 samples have no record; fill it first, or ...".
            CorruptRecordError: "train.zip: record 17 at offset 4,096 fails its crc32, ...".
            ArchiveExistsError: another file is at the path.
            ArchiveLockedError, StaleArchiveError: the archive that would be replaced is being written, or has
                changed since it was opened.
            StorageError: the disk is full or fails. After any error there is no new file, and an old one is
                as it was.
        Warns: PartialArchiveWarning, damaged samples were left out; it names them.

        Cost: reads and writes every record once. It takes about 100 bytes of memory per sample, and the
        labels.
        Safety: after a kill at any time the path has what was there before, or all of the new archive; with
            max_size the files that were finished. Open readers of a replaced archive keep the old file, and
            see the new one after `refresh`. Samples that others append meanwhile are not copied.

        >>> ds.filter(split="train", label=[0, 1]).save("small.zip")
        """
        return save(self, path, max_size, skip_damaged, on_progress)

    # -------------------------------------------------------------------------------- looking at it

    def view(
        self, *, port: int | None = None, open_browser: bool = True, block: bool | None = None
    ) -> Viewer:
        """Look at the samples in a browser, by a page that this process serves to this machine alone.

        Args:
            port: where to listen; None takes a free one.
            open_browser: show the page in a browser now, where there is a screen.
            block: serve until Ctrl-C. None does so in a script; in a notebook and at a prompt the page is
                served in the background.
        Returns:
            The server: `url`, which lets a browser in, and `close()`. A notebook shows it as a link.
        Raises:
            StorageError: the port is taken.

        Samples are shown as they are read, behind transforms.
        """
        from edcache import display

        path = getattr(self._root, "path", None)
        name = (self._root._chain() if path is None else os.path.basename(path)) + "".join(self._steps)
        one = display.Shown(name, repr(self), lambda: self.labels, lambda: self, "ds")
        return display.view([one], port=port, open_browser=open_browser, block=block)

    # ------------------------------------------------------------------------------- making views

    def _view(self, step: str, **changes: Any) -> View[Any]:
        """A view like this but for the selection, the fields or what is added."""
        state: dict[str, Any] = {"selection": self._selection, "fields": self._fields, "added": self._added}
        state |= {"repeats": self._repeats} | changes
        steps = (*self._steps, step)
        if len(steps) > _MOST_STEPS:
            steps = (*steps[:2], " ... ", *steps[-3:])
        return View(self._root, **state, steps=steps)

    def _cut(self, part: range, step: str) -> View[T_co]:
        """A view of the samples at the positions of a range, which holds no array of them."""
        return self._view(step, selection=self._whole_selection().cut(part))

    def _picked(self, positions: Ints, step: str) -> View[T_co]:
        """A view of the samples at positions in [0, len(self)); the array is its own now."""
        return self._view(step, selection=Selection(self._root_indices(positions)))

    def _with_files(self) -> Samples[Any]:
        """The same with image files that nothing decodes; what transforms them gets what it got."""
        whole: Any = self._root
        files = whole if self._transform is not None else whole._with_image_files()
        return (
            files
            if self is whole
            else View(files, self._selection, self._fields, self._added, self._steps, self._repeats)
        )


def _matching(ds: Samples[Any], where: object, conditions: dict[str, object]) -> Ints:
    ds._guard(17)
    rows = labels.matching_rows(ds.labels, conditions, where)
    # A copy: an index array that is given may be changed later.
    return rows if where is None else rows.copy()


class View(Samples[T_co]):
    """Some samples of a cache, in some order, perhaps with some fields only or with a transform.

    The methods of datasets return views. `cache` is the dataset of a view, and `indices` are the positions
    in it. A view is pickled with its index array, as its cache is, in less than 2 kB besides.
    """

    def __init__(
        self,
        root: Root,
        selection: Selection | None,
        fields: Projection | None,
        added: Transform,
        steps: tuple[str, ...],
        repeats: bool = False,
    ) -> None:
        # At once: `__setattr__` is for who sets an attribute of a view.
        vars(self).update(_whole=root, _selection=selection, _fields=fields, _added=added, _steps=steps)
        if repeats:
            self._repeats = True

    _whole: Root

    @property
    def _root(self) -> Root:
        return self._whole

    def add_labels(self, *arguments: Any, **options: Any) -> View[T_co]:
        """Raise OptionError, because labels belong to the complete dataset."""
        raise OptionError("labels of a view cannot be changed; change those of its dataset, view.cache")

    drop_labels = add_labels


class _Short(reprlib.Repr):
    """Arguments in the repr of a view: short, whatever was given."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist, self.maxstring, self.maxother = 4, 40, 40

    def repr1(self, x: Any, level: int) -> str:
        """See the base class."""
        if hasattr(x, "__array__") and getattr(x, "ndim", None) != 0:
            kind = getattr(x, "dtype", None) or getattr(x, "type", None)
            return f"<{len(x):,} {'bools' if 'bool' in str(kind) else 'values'}>"
        if callable(x):
            return str(getattr(x, "__name__", type(x).__name__))
        if isinstance(x, int) and x.bit_length() > 128:  # of which Python may refuse to make digits
            return f"<{x.bit_length()} bits>"
        return super().repr1(x.item() if isinstance(x, np.generic) else x, level)

    def repr_set(self, x: Any, level: int) -> str:
        """Not sorted, as `reprlib` would: there may be a million values."""
        if len(x) <= self.maxset:
            return super().repr_set(x, level)
        first = ", ".join(self.repr1(item, level - 1) for item in itertools.islice(x, self.maxset))
        return f"{{{first}, ...}}"

    def repr_Expression(self, x: Any, level: int) -> str:
        """One of pyarrow."""
        return str(x)[: self.maxother]


_SHORT = _Short()


def _call(name: str, *arguments: object, **options: object) -> str:
    """A step of a view's repr: a call of a method, with the arguments that are not None."""
    given = [_SHORT.repr(value) for value in arguments if value is not None]
    given += [f"{key}={_SHORT.repr(value)}" for key, value in options.items() if value is not None]
    return f".{name}({', '.join(given)})"


def _conditions(name: str, where: object, conditions: dict[str, object]) -> str:
    """The same of filter or exclude; None is a condition there."""
    given = [] if where is None else [_SHORT.repr(where)]
    given += [f"{column}={_SHORT.repr(value)}" for column, value in conditions.items()]
    return f".{name}({', '.join(given)})"


def _runs(selection: Selection, ends: Ints) -> list[Selection]:
    """What is selected from each end to the next; all share one array."""
    return [selection.cut(range(start, end)) for start, end in itertools.pairwise(ends.tolist())]


def _count(name: str, n: Any) -> int:
    """A number of samples that a user gave."""
    try:
        count = operator.index(n)
    except TypeError:
        count = -1
    if count < 0 or isinstance(n, bool):
        raise OptionError(f"{name}({base.shown(n)}): give a number of samples, 0 or more")
    return count
