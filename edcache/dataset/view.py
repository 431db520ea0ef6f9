"""`Samples`, the methods of datasets, and `View`, made by index arithmetic alone."""

from __future__ import annotations

import itertools
import operator
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import torch

from edcache import base, labels
from edcache.base import Ints, OptionError, check_count
from edcache.dataset import split
from edcache.dataset.indexing import Readable, T_co, warn_of_absent
from edcache.dataset.keys import Keys, positions_of
from edcache.dataset.loader import Loader
from edcache.dataset.root import Reading
from edcache.dataset.save import save
from edcache.dataset.selection import Selection, repeated, shuffled
from edcache.dataset.split import oversampled
from edcache.dataset.state import view_text
from edcache.dataset.transforms import Draw, extended
from edcache.format import key_list, shown_key
from edcache.labels import checked_indices, classes_of, is_array, single_values, sorted_rows
from edcache.reader import FieldPath, OnProgress, Projection, batch_for

if TYPE_CHECKING:
    import typing_extensions
    from torch import Tensor

    from edcache.display import Viewer


# Most items and characters that the text of a view shows of an argument.
_MOST_ITEMS, _MOST_TEXT = 6, 120


@base.cut_traceback
class Samples(Readable[T_co]):
    """Methods of a cache and of its views: a sequence of samples with labels.

    No sample is read to make a view. A view has an index array (int64, 8 bytes per sample), which views made from it
    share; views of slices, take, repeat and shuffle have none. Random choices depend on the seed alone, so they are
    equal in every process and on every platform. An unknown label column raises UnknownLabelError; a column of lists
    LabelError. A missing value counts as a value of its own.
    """

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> T_co: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | npt.NDArray[Any] | Tensor) -> View[T_co]: ...
    def __getitem__(self, index: Any) -> Any:
        """Return a sample for an integer; a view for a slice, an index array, a list or a bool mask [len(self)].

        Raises:
            SampleIndexError (an IndexError): "...: index 12 not in [-10, 10)".
            CorruptRecordError, MissingSampleError: the sample is damaged, or has no record.
        The caller owns the memory of the sample.
        """
        try:
            reading = self._reading
            if type(index) is int and 0 <= index < len(reading):
                return reading.one(index)
            return self._item(index)
        except Exception as error:  # noqa: BLE001 - it is raised again
            raise base.cut_frames(error)  # noqa: B904 - the same error, with its cause

    def _item(self, index: Any) -> Any:
        reading = self._reading
        if isinstance(index, slice):
            given = (index.start, index.stop, index.step)
            ends = ":".join("" if part is None else str(part) for part in given).removesuffix(":")
            return self._cut(f"[{ends or ':'}]", range(len(self))[index])
        if is_array(index):
            # A copy: the user may change the array later.
            return self._picked(f"[{_brief(index)}]", np.array(checked_indices(index, len(self))))
        position = self._position(index)
        drawn = Draw(position, index.epoch, index.number) if isinstance(index, Draw) else position
        return reading.one(drawn)

    def by_key(self, key: str | bytes | int | tuple[Any, ...]) -> T_co:
        """Read the sample with a key; of several the first.

        Raises:
            UnknownLabelError (a KeyError): 'no sample of CachedDataset(...) has the key "b.png"'.
            OptionError: the archive has no keys.
        Cost: a look-up of some 20 microseconds in a mapped table, and the read.
        """
        return self[int(self.indices_of([key])[0])]

    def indices_of(self, keys: Iterable[str | bytes | int | tuple[Any, ...]]) -> Ints:
        """Find the positions of samples by their keys: int64 [n], of each key the first. Raises: as `by_key`.

        Cost: some 2 microseconds a key; nothing is built, and of the mapped table the parts are read that it touches.
        """
        keys = key_list(keys)
        positions = positions_of(self, keys)
        if len(positions) and positions.min() < 0:
            key = keys[int(np.argmin(positions))]
            raise base.UnknownLabelError(f"no sample of {self!r} has the key {shown_key(key)}")
        return positions

    @property
    def keys(self) -> Keys:
        """Keys of the samples, in their order: `key in ds.keys`, `len`, iteration.

        A source names its samples by `sample_key(index)`; a label column "key" of text, bytes or integers does, too.
        """
        return Keys(self)

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        """Read the samples at several positions together; torch's DataLoader calls it for a batch.

        A DataLoader whose `collate_fn` is torch's `default_collate` or an `edcache.collate` gets an object that both
        collate by one gather a field, see `edcache/reader/collation.py`.
        """
        if type(indices) is list and indices and type(indices[0]) is list:
            raise OptionError("this sampler gives batches; pass it as batch_sampler= and no batch_size")
        try:
            records = self._reading.asked(indices, is_loader=True)
            return batch_for(sys._getframe(1), records, self._reading.root.batch_transform)
        except Exception as error:  # noqa: BLE001 - it is raised again
            raise base.cut_frames(error)  # noqa: B904 - the same error, with its cause

    def _position(self, index: Any) -> int:
        """Convert a user's index to a position in [0, len(self))."""
        is_bool = isinstance(index, bool) or str(getattr(index, "dtype", "")) in ("bool", "torch.bool")
        try:
            position = operator.index(None if is_bool else index)  # type: ignore[arg-type]
        except TypeError:
            advice = f"; ds.labels[{index!r}] is a label column, ds.select({index!r}) is a view of this field"
            raise OptionError(
                f"index {reprlib.repr(index)} of type {type(index).__name__}; use an int, a slice, a list of "
                f"ints, an int array or a bool mask{advice if isinstance(index, str) else ''}"
            ) from None
        length = len(self)
        if not -length <= position < length:
            raise base.SampleIndexError(
                f"{self!r}: index {position} not in [-{length}, {length})", index=position
            )
        return position + length if position < 0 else position

    def loader(
        self,
        batch_size: int | None,
        *,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        num_threads: int = 2,
        prefetch: int = 2,
        pin_memory: bool = False,
        device: Any = None,
        resident: bool = False,
        **of_torch: typing_extensions.Never,
    ) -> Loader:
        """Iterate over collated batches, made by threads of this process.

        Args:
            batch_size: the number of samples in a batch; None if the sampler gives complete batches, as samplers
                with `global_batch_size` do.
            shuffle: True reads in a new order every epoch; seed and epoch determine it. One that you leave early
                (`break`) begins again, with the same order: call `loader.set_epoch(n)`, or keep one iterator.
            sampler: the positions to read, in its order, or batches of positions. A sampler divides an epoch among the
                ranks of a job; without one each rank reads all samples.
            drop_last: True leaves out a last batch that is not full.
            seed: an integer; None draws one from torch's generator.
            num_threads: the number of batches that are made at once. As many threads decode the pictures of one.
            prefetch: the number of finished batches that may wait.
            pin_memory: True uses page-locked memory, which is faster to copy to a GPU.
            device: copies batches to this device. "cuda" and "xla" are the current device of the thread that iterates.
            resident: True reads the whole dataset now, once, into the memory of the device (of the process without
                one), where each batch is gathered. Orders, states and batches are the same.
        Raises:
            OptionError: a number is below 1; shuffle and sampler are given both; batch_size is given and the sampler
                gives batches, or neither; the sampler is of another length. Iterating raises as `batch`.
            OptionError: "resident=True takes 3,010,560,000 bytes for 20,000 samples, and cuda:0 has 1,073,741,824
                free; ...", before they are copied; a field is no tensor, or varies in shape; a transform is set.
            MissingDependencyError: the device needs torch_xla, which is not installed.

        The memory of a batch is used again when nothing holds a part of it. Up to 32 small batches share theirs: clone
        one that stays. A `transform`, text and objects hold the interpreter's lock: take a DataLoader with workers.
        """
        if of_torch:
            raise OptionError(
                f"loader() takes no {', '.join(of_torch)}; its threads are num_threads=2. For num_workers=, "
                "collate_fn= and other options of torch take a DataLoader of this dataset"
            )
        return Loader(
            self,
            batch_size,
            shuffle=shuffle,
            sampler=sampler,
            drop_last=drop_last,
            seed=seed,
            num_threads=num_threads,
            prefetch=prefetch,
            pin_memory=pin_memory,
            device=device,
            resident=resident,
        )

    # --------------------------------------------------------------------------------- by labels

    def filter(self, where: object = None, /, **conditions: object) -> View[T_co]:
        """Filter by labels: a view of the samples that fulfil all conditions; no sample is read.

        Args:
            where: a bool mask [len(self)], an index array, a pyarrow expression, a where-string such as "label in (0,
                1) and split == 'train'", or a function that takes the label table (a pyarrow Table) and returns a mask.
            conditions: the name of a label column, with a value, a list of values, a range, None for missing values, or
                a function that takes the column and returns a mask.
        Raises:
            UnknownLabelError: 'no label "lable"; this archive has: label, split; did you mean label?'.
            OptionError: the where-string cannot be parsed.
            OptionError: a mask has the wrong length; a function raised.
        Warns: RuntimeWarning, no sample is found, and no row has a text of a condition: "filter() finds no sample:
        label "split" is 'trian' nowhere, but 'train', 'test'; did you mean train?".

        Cost: reads the label columns that are compared, and no sample.

        >>> train.filter(split="train", label=[0, 1])
        """
        rows = labels.matching_rows(self._reading.labels, conditions, where)
        columns = [where, *conditions] if isinstance(where, str) else conditions
        warn_of_absent(self._reading, "filter()", " ".join(columns), rows)
        # A copy: the user may change an index array later.
        given = () if where is None else (where,)
        return self._picked(_step("filter", *given, **conditions), rows if where is None else rows.copy())

    def sort_by(self, name: str, descending: bool = False) -> View[T_co]:
        """Sort by a label column. Equal values keep their order; text is in code point order.

        Missing values and nans are last, also with descending=True.
        """
        rows = sorted_rows(single_values(self.labels, name, "sort_by"), descending)
        return self._picked(_step("sort_by", name, **({"descending": True} if descending else {})), rows)

    def oversample(self, name: str, strategy: str = "exact", seed: int = 0) -> View[T_co]:
        """Repeat samples of smaller classes. Copies of a sample are neighbours.

        Args:
            name: the label column with the class.
            strategy: "exact" makes all classes as large as the largest. Some samples, drawn by `seed`, are then
                repeated once more than others. "multiply" repeats all samples of a class equally often, as many times
                as the class does not become larger than the largest.
            seed: see strategy.
        """
        classes = classes_of(single_values(self.labels, name, "oversample"))
        return self._picked(_step("oversample", name), oversampled(classes, strategy, seed), repeats=True)

    # ------------------------------------------------------------------------------- by position

    def take(self, n: int) -> View[T_co]:
        """Take the first n samples; all samples if there are fewer."""
        return self._cut(_step("take", n), range(len(self))[: check_count("n", n, 0)])

    def repeat(self, n: int | None = None, *, min_size: int | None = None) -> View[T_co]:
        """Repeat the dataset n times, or until it has at least `min_size` samples."""
        if (n is None) == (min_size is None):
            raise OptionError(
                "repeat() needs a number of times, repeat(3), or a size, repeat(min_size=10_000)"
            )
        if n is None:
            wanted = check_count("min_size", min_size, 0)
            if wanted and not len(self):
                raise OptionError(f"repeat(min_size={min_size}): the dataset has no samples to repeat")
            n = -(-wanted // max(len(self), 1))
        try:
            selection = repeated(self._reading.whole, check_count("n", n, 0))
        except OverflowError:
            raise OptionError(f"repeat({n}): this is more samples than fit into 64 bits") from None
        return self._view(_step("repeat", n), selection=selection, repeats=self._reading.repeats or n > 1)

    def shuffle(self, seed: int) -> View[T_co]:
        """Shuffle all samples. The order is the same for the same seed and length.

        It stays the same in every epoch. For a new order in every epoch use `samplers.Shuffle`, or `shuffle=True` of a
        DataLoader or of `loader`.
        """
        selection = shuffled(self._reading.whole, check_count("seed", seed, 0))
        return self._view(_step("shuffle", seed), selection=selection)

    # ------------------------------------------------------------------------------------- parts

    def split(
        self, *parts: float, seed: int | None = 0, stratify: str | None = None, group: str | None = None
    ) -> tuple[View[T_co], ...]:
        """Split all samples into views. Each sample is in exactly one view.

        Args:
            parts: fractions with the sum 1, or counts with the sum len(self). The size of a fraction is rounded
                down or up.
            seed: decides which samples are in which part. None takes the first samples for the first part, and so on.
            stratify: a label column. Each part then has the same share of each of its values, within two samples.
            group: a label column, such as the patient. All samples of one value are then in the same part. Sizes of
                parts and of classes are then approximate: within a few samples, and nearest with seed=None, which
                places the largest group first.
        Returns:
            One view for each part, in the order of this dataset.
        Raises:
            OptionError: "split(0.8, 0.1): the sum of the fractions is 0.9; ...".

        >>> train, val, test = ds.split(0.8, 0.1, 0.1, seed=0, stratify="label", group="patient")
        """
        weights = split.weights_of(parts, len(self))
        if seed is None and stratify is None and group is None:
            runs = _runs(self._reading.whole, np.cumsum([0, *split.sizes_of(len(self), weights)]))
        else:
            strata, groups = self._codes(stratify, "split"), self._codes(group, "split")
            order, ends = split.parted(len(self), weights, seed, strata, groups)
            runs = _runs(Selection(self._reading.indices_at(order)), ends)
        step = _step("split", *parts)
        return tuple(self._view(f"{step}[{k}]", selection=run) for k, run in enumerate(runs))

    def kfold(
        self, n: int, *, seed: int | None = 0, stratify: str | None = None, group: str | None = None
    ) -> list[tuple[View[T_co], View[T_co]]]:
        """Make a pair of views (train, test) for each of n folds. Each sample is in exactly one test view.

        Args:
            seed, stratify, group: as in `split`.
        Raises:
            OptionError: there are fewer samples, or groups, than folds.

        A test view is in the order of this dataset. A train view has the folds after its test fold, one after the
        other. All views share one array with two indices per sample.
        """
        strata, groups = self._codes(stratify, "kfold"), self._codes(group, "kfold")
        split.check_folds(n, len(self), group, groups)
        order, bounds = split.parted(len(self), [1] * n, seed, strata, groups)
        twice = Selection(self._reading.indices_at(np.concatenate([order, order])))
        return [
            (
                self._view(f".kfold({n})[{k}][0]", selection=twice.cut(range(end, start + len(order)))),
                self._view(f".kfold({n})[{k}][1]", selection=twice.cut(range(start, end))),
            )
            for k, (start, end) in enumerate(itertools.pairwise(bounds.tolist()))
        ]

    def _codes(self, name: str | None, asked_by: str) -> npt.NDArray[Any] | None:
        """Return the class of each sample by a label column, numbered from 0: [len(self)]; None without a name."""
        return None if name is None else classes_of(single_values(self.labels, name, asked_by)).codes

    # ------------------------------------------------------------------- fields and transforms

    def select(self, *fields: FieldPath, as_tuple: bool = False) -> View[Any]:
        """Select some fields. Only the bytes of these fields are read.

        Args:
            fields: paths of fields, in the wanted order: "image", "target.boxes", 1 or ("target", 0).
            as_tuple: True makes samples tuples of the fields. False makes them dicts whose keys are the given paths.
        Raises:
            OptionError: a field is given twice; at the first read, the samples do not have the field.

        Fields are as stored, even if `add_labels` changed the label column of a field: `ds.labels["label"]` is the
        column, and reads no record. A `transform` of the cache gets the selected fields. After `with_transform`, the
        fields belong to its result, and complete samples are read.

        >>> ds.select("image", "label", as_tuple=True)[0]
        """
        chosen, own, then = Projection(fields, as_tuple), self._reading.fields, self._reading.transform
        step = _step("select", *fields)
        if then is not None:
            return self._view(step, transform=extended(then, chosen.of_sample))
        return self._view(step, fields=chosen if own is None else own.narrowed(fields, as_tuple))

    def with_transform(
        self,
        fn: Callable[..., Any],
        *,
        field: FieldPath = None,
        seed: int | None = None,
    ) -> View[Any]:
        """Call a function for each sample at every read, such as a random augmentation.

        Args:
            fn: takes a sample and returns the sample to use instead.
            field: the path of one field, as in `select`. `fn` then gets and returns only this field.
            seed: an integer of 0 or more. `fn(sample, rng)` then gets a new `numpy.random.Generator` for each read. Its
                numbers depend on seed, epoch and index of the sample alone: not on worker, thread, rank, batch or
                resumption. Reads of a sample that comes several times in an epoch differ, and so do several functions
                of a sample. `loader` and samplers of `edcache.samplers` that were made of this dataset know the epoch;
                any other DataLoader needs `set_epoch`.
        Raises:
            OptionError: fn is not a function; at the first read, the samples do not have the field.

        Transforms run in the order in which they were added, after the `transform` of the cache. Worker processes that
        are started by spawn need an `fn` that can be pickled.
        Cost: with a seed 8 us a read.

        >>> ds.with_transform(field="image", fn=augment)
        """
        step = f".with_transform({getattr(fn, '__name__', type(fn).__name__)})"
        return self._view(step, transform=extended(self._reading.transform, fn, field, seed))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the seeded transforms of a dataset, and of all its views.

        Args:
            epoch: 0 or more.

        It is for a DataLoader without a sampler of `edcache.samplers`: call it before each iteration. Workers see it,
        also persistent ones. A loader and such a sampler know their epoch themselves. Other reads are of the epoch that
        was set last, or 0.
        """
        check_count("epoch", epoch, 0)
        root = self._reading.root
        if root.epoch is None:
            # Before any worker begins, since without one a DataLoader does not read.
            root.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        root.epoch.fill_(int(epoch))

    # ------------------------------------------------------------------------------------- copies

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        max_size: int | str | None = None,
        skip_damaged: bool = False,
        force: bool = False,
        on_progress: OnProgress | None = None,
    ) -> list[str]:
        """Copy the stored samples of this dataset, in its order and with their labels, into a new archive.

        It works for views of one archive or of several, also behind URLs. Records are copied without decoding them, and
        the crc32 of each is checked. Sample i of the new archive is sample i of this dataset. A sample that failed for
        good stays without a record, and keeps its failure. All samples of one archive in their order keep its
        fingerprint, so `CachedDataset(source, path)` accepts the new archive too.

        Args:
            path: the new file. It may be the archive itself if all of its samples are saved in their order:
                `ds.save(ds.path)` rewrites it without replaced records, old seals and small chunks.
            max_size: writes several files of about this many bytes, as a number or a text such as "2GB":
                train-00000.zip, train-00001.zip, ... for the path train.zip.
            skip_damaged: True leaves out samples whose record is damaged or missing, or needs a later release.
                They keep their place and labels; `missing` of the new archive has them. A damaged label column is left
                out too, unless the chunks have its values.
            force: True replaces the archive itself also by one that lacks samples which are damaged in it, or cut off.
            on_progress: a function that is called with (bytes of records copied, bytes of records).
        Returns:
            The paths of the new files; one without max_size.
        Raises:
            OptionError: samples are not as they are stored: a transform, selected fields or `zip_fields` changes
                them; or the archives have different codecs. `CachedDataset(view, path)` stores the samples of such a
                view.
            ArchiveError: "save(): ...: 3 of 20 samples have no record; fill it first, or ...".
            CorruptRecordError: "train.zip: record 17 at offset 4,096 fails its crc32, ...".
            ArchiveError: "train.zip: save() would leave at most 250 of the 300 samples that it has or had ...".
            ArchiveExistsError: another file is at the path.
            ArchiveError, StaleArchiveError: the archive that would be replaced is being written, or has changed since
                it was opened.
            StorageError: the disk is full or fails. After any error there is no new file, and an old one is unchanged.
        Warns: PartialArchiveWarning, damaged samples or labels were left out; it names them.

        Cost: reads and writes every record once. It takes about 100 bytes of memory per sample, and the labels.
        Safety: after a kill at any time the path has the old file, or all of the new archive; with max_size the
        finished files. Open readers of a replaced archive keep the old file, and see the new one after `refresh`.
        Samples that others append meanwhile are not copied.

        >>> ds.filter(split="train", label=[0, 1]).save("small.zip")
        """
        return save(self._reading, path, max_size, skip_damaged, force, on_progress)

    # -------------------------------------------------------------------------------- browser

    def view(
        self,
        *,
        port: int | None = None,
        open_browser: bool = True,
        block: bool | None = None,
        tokenizer: str | None = None,
    ) -> Viewer:
        """Show the samples in a browser, on a page that this process serves to this machine alone.

        Args:
            port: the port of the server; None takes a free one.
            open_browser: True opens a browser now, if there is a screen.
            block: True serves until Ctrl-C. None does so in a script; in a notebook and at a prompt the page is served
                in the background.
            tokenizer: of transformers, by its folder or the name of a downloaded one: tokens are shown as text too.
        Returns:
            The server: `url`, with the key of the page, and `close()`. A notebook shows it as a link.
        Raises:
            StorageError: the port is taken.
            OptionError: 'no tokenizer at "./tok"; ...'.

        Samples are shown as they are read, after transforms.
        """
        from edcache import display

        root = self._reading.root
        name = os.path.basename(getattr(root, "path", repr(root)))
        detokenizer = None if tokenizer is None else display.detokenizer(tokenizer)
        one = display.Shown(name, lambda: self.labels, lambda: self, "ds", detokenizer)
        return display.view([one], port=port, open_browser=open_browser, block=block)

    # ------------------------------------------------------------------------------- views

    def _view(self, step: str, **changes: Any) -> View[Any]:
        """Make a view that reads like this, but for another selection, other fields, a transform or repeats."""
        own = self._reading
        return View(self if self._of is None else self._of, own.but(steps=(*own.steps, step), **changes))

    def _cut(self, step: str, part: range) -> View[T_co]:
        """Make a view of the samples at the positions of a range, without an array."""
        own = self._reading.selection
        return self._view(step, selection=Selection(part or range(0)) if own is None else own.cut(part))

    def _picked(self, step: str, positions: Ints, **changes: Any) -> View[T_co]:
        """Make a view of the samples at some positions: int64 [n] in [0, len(self)), which the view may keep."""
        return self._view(step, selection=Selection(self._reading.indices_at(positions)), **changes)


@base.cut_traceback
class View(Samples[T_co]):
    """View of a dataset: some samples, in some order, perhaps with some fields only or with a transform.

    The methods of datasets return views. `indices` are the positions in the dataset of the view. A view is pickled with
    its index array and its dataset, which take less than 2 kB besides.
    """

    def __init__(self, of: Readable[Any], reading: Reading) -> None:
        self._of, self._reading = of, reading

    def __edcache_fingerprint__(self) -> dict[str, Any]:
        """Return the identity of the samples, for a cache of them."""
        reading = self._reading
        chosen = reading.selection
        # A range or an array has a value for each sample, by which a longer one is known to continue it.
        view = chosen.numbers if type(chosen) is Selection else view_text([reading.whole])
        return {"of": self._of, "view": view, **reading.settings(), "columns": ["of", "view"]}

    def add_labels(self, *arguments: Any, **options: Any) -> View[T_co]:
        """Raise OptionError: labels belong to the complete dataset."""
        raise OptionError("labels of a view cannot be changed; change those of the dataset that it is of")

    drop_labels = add_labels


def _step(name: str, /, *given: object, **options: object) -> str:
    """Write a call that makes a view, in short: `.filter('label == 1')`."""
    texts = [*map(_brief, given), *(f"{key}={_brief(value)}" for key, value in options.items())]
    return f".{name}({', '.join(texts)})"


def _brief(value: object) -> str:
    """Write an argument in short; an array by its length, so that no repr of it is made."""
    if isinstance(value, list | tuple) and len(value) <= _MOST_ITEMS:
        return f"[{', '.join(map(_brief, value))}]"
    if isinstance(value, range) or (isinstance(value, str) and len(value) <= _MOST_TEXT):
        return repr(value)
    if value is None or isinstance(value, str | int | float | np.generic):
        return base.shown(value)
    # An array of no dimension has the method `__len__`, which raises TypeError.
    kind, count = type(value).__name__, operator.length_hint(value, -1)
    return kind if count < 0 else f"{kind}[{count}]"


def _runs(selection: Selection, ends: Ints) -> list[Selection]:
    """Cut a selection into parts, from each of `ends` to the next one; all share one array."""
    return [selection.cut(range(start, end)) for start, end in itertools.pairwise(ends.tolist())]
