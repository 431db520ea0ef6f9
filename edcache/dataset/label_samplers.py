"""Orders by labels: classes equally often, samples by their weight, batches of like lengths or of one shape."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edcache.base import Ints, OptionError, check_count, shown
from edcache.dataset.epoch import EpochSampler, SamplerKeywords, draws_of
from edcache.dataset.indexing import Readable, reading_of, warn_of_absent
from edcache.dataset.orders import Batches, EpochDraws
from edcache.dataset.permutation import stream
from edcache.dataset.split import grouped
from edcache.format import detached, fits_arrow, pa
from edcache.labels import classes_of, comparable

if TYPE_CHECKING:
    from typing_extensions import Unpack

Floats = npt.NDArray[np.float64]
LabelOrValues = str | npt.ArrayLike
"""A label's name, or one value for each sample."""


class Balanced(EpochSampler):
    """Sampler that draws every class equally often.

    Args:
        ds: a cache, a view, or any object with `len` and `.labels`.
        label: the name of the label column with the class, of any type of single values; or an array [len(ds)] of
            classes. Samples whose class is missing (None, nan, NaT) are not drawn.
        num_samples: the number of draws in an epoch, by all ranks together. None is the number of samples that have a
            class. The counts of two classes differ by at most one.
        seed, uneven, global_batch_size, num_replicas, rank: as in `EpochSampler`.
    Raises:
        UnknownLabelError: 'no label "lable"; this archive has: label, split; did you mean label?'.
        OptionError: an array has the wrong length; a number is below 1.

    With k classes, k consecutive draws have each class once, in a random order, so batches are balanced too. All
    samples of a class are drawn, in random order, before one is drawn again.

    Cost: 8 bytes a sample; 10 million samples take 0.3 s, with a million classes 2.5 s. The order of an epoch takes 8
    bytes and 0.07 us a draw, or 0.02 us a sample if that is more, and 40 bytes a draw while it is made.

    >>> DataLoader(ds, batch_size=64, sampler=edcache.samplers.Balanced(ds, "label"))
    """

    _may_repeat = True

    def __init__(
        self,
        ds: Sized,
        label: LabelOrValues,
        num_samples: int | None = None,
        seed: int = 0,
        **keywords: Unpack[SamplerKeywords],
    ) -> None:
        self._members, self._starts = self._arrays = by_class(column_of(ds, label))
        if num_samples and not len(self._members):
            text = "and no sample has a class to draw from"
            raise OptionError(f"num_samples={num_samples}, {text}", option="num_samples")
        super().__init__(ds, draws_of(num_samples, len(self._members)), seed, **keywords)

    def _drawn(self, epoch: int) -> EpochDraws:
        random, sizes = stream(self.seed, epoch), np.diff(self._starts)
        rounds = -(-self._count // max(len(sizes), 1))
        # In column k the draws of class k: orders of its samples, one after the other.
        # Classes of one size are permuted at once.
        members = np.empty((rounds, len(sizes)), np.int64)
        for size in np.unique(sizes).tolist():
            classes = np.flatnonzero(sizes == size)
            places = permuted_rows(random, len(classes) * -(-rounds // size), size)
            places = places.reshape(len(classes), -1)[:, :rounds] + self._starts[classes, None]
            members[:, classes] = self._members[places].T
        turns = permuted_rows(random, rounds, len(sizes))
        drawn = np.take_along_axis(members, turns, axis=1).reshape(-1)
        return drawn[: self._count]


class Weighted(EpochSampler):
    """Sampler whose probabilities are proportional to weights, as torch's WeightedRandomSampler.

    Args:
        ds: a cache, a view, or any object with `len` and `.labels`.
        weights: the name of a label column, or an array [len(ds)]. Weights are finite and not negative, and may
            have any sum.
        num_samples: the number of draws in an epoch, by all ranks together. None is len(ds).
        seed, uneven, global_batch_size, num_replicas, rank: as in `EpochSampler`.
    Raises:
        OptionError: "weights from -1.0 up that sum to 6.0; ..."; a sample has no weight.

    It takes any number of samples; torch's takes at most 2**24. A sample may be drawn again in an epoch: a view takes
    each once, `ds[numpy.random.default_rng(0).choice(len(ds), 100, replace=False, p=weights / weights.sum())]`.

    Cost: 8 bytes a sample; 10 million samples take 0.1 s. The order of an epoch takes 8 bytes and 0.1 us a draw, and 40
    bytes a draw while it is made.
    """

    _may_repeat = True

    def __init__(
        self,
        ds: Sized,
        weights: LabelOrValues,
        num_samples: int | None = None,
        seed: int = 0,
        **keywords: Unpack[SamplerKeywords],
    ) -> None:
        values = numbers_of(ds, weights).astype(np.float64)
        self._sums = np.cumsum(values)
        self._arrays = [self._sums]
        count = draws_of(num_samples, len(values))
        least, total = values.min(initial=0), self._sums[-1] if len(values) else 0.0
        # A draw below a smaller sum would be rounded up to it.
        if count and not (least >= 0 and sys.float_info.min <= total < math.inf):
            raise OptionError(
                f"weights from {least} up that sum to {total}; give finite ones of 0 or more, some above 0"
            )
        super().__init__(ds, count, seed, **keywords)

    def _drawn(self, epoch: int) -> EpochDraws:
        numbers = stream(self.seed, epoch).random_sample(self._count)
        # In nearly rising order, for the processor's cache. numpy sorts 16 bits eight times as fast as floats.
        rising = np.argsort((numbers * (1 << 16)).astype(np.uint16), kind="stable")
        drawn = np.empty(self._count, np.int64)
        drawn[rising] = np.searchsorted(self._sums, numbers[rising] * self._sums[-1:], side="right")
        return drawn


class _InBuckets(EpochSampler):
    """Batch sampler whose batches each have samples of one bucket; buckets are shuffled in each epoch, and batches.

    Args:
        positions: of samples, bucket by bucket. buckets: begin, end and batch size of each, in `positions`.
        is_full: True leaves out batches below global_batch_size, other samples in each epoch.
    """

    def __init__(
        self,
        ds: Sized,
        positions: Ints,
        buckets: Sequence[tuple[int, int, int]],
        is_full: bool,
        seed: int,
        **keywords: Unpack[SamplerKeywords],
    ) -> None:
        self._positions = positions
        self._buckets = np.array([(begin, end) for begin, end, _ in buckets], np.int64).reshape(-1, 2)
        none = np.empty(0, np.int64)
        self._begins = np.concatenate([none, *(np.arange(*bucket) for bucket in buckets)])
        self._ends = np.concatenate(
            [none, *(np.minimum(np.arange(*one) + one[2], one[1]) for one in buckets)]
        )
        shared = keywords.get("global_batch_size")
        if is_full:
            full = self._ends - self._begins == shared
            self._begins, self._ends = self._begins[full], self._ends[full]
        self._arrays = [self._positions, self._begins, self._ends, self._buckets]
        count = len(self._begins) if shared is None else int((self._ends - self._begins).sum())
        super().__init__(ds, count, seed, **keywords)
        self._gives_lists = True

    def _drawn(self, epoch: int) -> EpochDraws:
        size, random, positions = self.global_batch_size, stream(self.seed, epoch), self._positions.copy()
        for begin, end in self._buckets.tolist():
            random.shuffle(positions[begin:end])
        # A last step of all ranks that is not full stays at the end.
        batches = np.arange(len(self._begins))
        random.shuffle(batches[: None if size is None else self._count // size])
        begins, lengths = self._begins[batches], (self._ends - self._begins)[batches]
        bounds = np.append(0, np.cumsum(lengths))
        drawn = positions[np.repeat(begins - bounds[:-1], lengths) + np.arange(bounds[-1])]
        return Batches(drawn, bounds) if size is None else drawn


class ByLength(_InBuckets):
    """Batch sampler whose batches have samples of similar length.

    Args:
        ds: a cache, a view, or any object with `len` and `.labels`.
        lengths: the name of a label column, or an array [len(ds)]: integers, none missing.
        batch_size: the number of samples in a batch.
        max_tokens: used instead of batch_size. It is the largest size of a padded batch: the number of its samples
            times the length of the longest.
        global_batch_size: used instead of both. It is the number of samples in a batch of all ranks together, which
            they share. A last, smaller batch has the shortest samples; uneven="drop" leaves it out.
        bucket: the factor by which lengths in a bucket may differ, at least 1. The padding of a batch is less than 1 -
            1 / bucket, unless a bucket has too few samples for a batch. A larger factor mixes more.
        seed, uneven, num_replicas, rank: as in `EpochSampler`; the ranks divide batches.
    Raises:
        OptionError: 'sample 3 has length 600, max_tokens=512; ...'; not exactly one of batch_size, max_tokens and
            global_batch_size is given; the lengths are not integers.

    For lengths of texts (lognormal, sigma 1, up to 4,000) batches of 32 in random order are 81 % padding; with buckets
    of 1.1, batches of 32 out of 100,000 are 4 %. `len` counts batches, as many in every epoch. Lightning with several
    devices wants `Trainer(use_distributed_sampler=False)` beside any batch
    sampler: the ranks share by themselves.

    Cost: 8 bytes a sample; 10 million samples take 0.5 s. The order of an epoch takes 8 bytes and 0.04 us a sample, and
    5 us a bucket.

    >>> DataLoader(ds, batch_sampler=edcache.samplers.ByLength(ds, "n_tokens", max_tokens=8192))
    """

    def __init__(
        self,
        ds: Sized,
        lengths: LabelOrValues,
        batch_size: int | None = None,
        seed: int = 0,
        bucket: float = 1.1,
        *,
        max_tokens: int | None = None,
        **keywords: Unpack[SamplerKeywords],
    ) -> None:
        global_size = keywords.get("global_batch_size")
        sizes = {"batch_size": batch_size, "max_tokens": max_tokens, "global_batch_size": global_size}
        given = [(name, size) for name, size in sizes.items() if size is not None]
        if len(given) != 1:
            raise OptionError("give either batch_size, max_tokens or global_batch_size")
        check_count(*given[0])
        if not bucket >= 1:
            raise OptionError(f"bucket={bucket!r}; give 1 or more", option="bucket")
        values = numbers_of(ds, lengths)
        if values.dtype.kind not in "iu":
            raise OptionError(f"lengths of {values.dtype}; give integers")
        values = values.astype(np.int64)
        wrong = (values < 0) | (values > (max_tokens or math.inf))
        if wrong.any():
            at = int(wrong.argmax())
            most = "" if max_tokens is None else f", max_tokens={max_tokens:,}"
            raise OptionError(f"sample {at} has length {values[at]:,}{most}; filter() such samples out")
        rising = np.argsort(values, kind="stable")
        buckets = [*_buckets(values[rising], batch_size or global_size, max_tokens, bucket)]
        super().__init__(ds, rising[::-1].copy(), buckets, False, seed, **keywords)


class ByShape(_InBuckets):
    """Batch sampler whose batches have samples of one shape, so that they stack.

    Args:
        ds: a cache, a view, or any object with `len` and `.labels`.
        shapes: the name of a label column of any type of single values, such as "512x768"; or an array [len(ds)].
            Samples without a value are not drawn.
        batch_size: the number of samples in a batch. A shape's last batch in an epoch may be smaller.
        global_batch_size: used instead. It is the number of samples in a batch of all ranks together, which they
            share. All batches are full; the rest of a shape is left out, other samples in each epoch.
        seed, uneven, num_replicas, rank: as in `EpochSampler`; the ranks divide batches.
    Raises:
        UnknownLabelError: 'no label "size"; this archive has: shape; did you mean shape?'.
        OptionError: "give either batch_size or global_batch_size"; an array has the wrong length.

    Any label will do: latents of several resolutions, films of several lengths, texts of several languages.

    Cost: 8 bytes a sample, and as `Balanced` to make it. The order of an epoch takes 8 bytes and 0.04 us a sample, and
    5 us a shape.

    >>> DataLoader(ds, batch_sampler=edcache.samplers.ByShape(ds, "shape", 16))
    """

    def __init__(
        self,
        ds: Sized,
        shapes: LabelOrValues,
        batch_size: int | None = None,
        seed: int = 0,
        **keywords: Unpack[SamplerKeywords],
    ) -> None:
        shared = keywords.get("global_batch_size")
        if (batch_size is None) == (shared is None):
            raise OptionError("give either batch_size or global_batch_size")
        size = (
            check_count("global_batch_size", shared)
            if batch_size is None
            else check_count("batch_size", batch_size)
        )
        positions, starts = by_class(column_of(ds, shapes))
        buckets = [(begin, end, size) for begin, end in itertools.pairwise(starts.tolist())]
        super().__init__(ds, positions, buckets, shared is not None, seed, **keywords)


def permuted_rows(random: np.random.RandomState, rows: int, columns: int) -> Ints:
    """Permute 0 to columns - 1 anew in each row: int64 [rows, columns].

    Cost: 15 to 40 ns an element, and 5 us for each row or each column, for the ones that are fewer.
    """
    if rows <= columns:
        table = np.empty((rows, columns), np.int64)
        table[:] = np.arange(columns)
        for row in table:
            random.shuffle(row)
        return table
    # Shuffle all rows at once by Fisher and Yates: the places of a column lie one after the other.
    places, every = np.repeat(np.arange(columns), rows), np.arange(rows)
    for last in range(columns - 1, 0, -1):
        chosen = (random.random_sample(rows) * (last + 1)).astype(np.int64) * rows + every
        taken = places[chosen]
        places[chosen] = places[last * rows : (last + 1) * rows]
        places[last * rows : (last + 1) * rows] = taken
    return np.ascontiguousarray(places.reshape(columns, rows).T)


def _buckets(
    rising: Ints, batch_size: int | None, max_tokens: int | None, bucket: float
) -> Iterator[tuple[int, int, int]]:
    """Cut sorted lengths into buckets, the longest first. All but the last hold whole batches.

    Yields: begin, end and batch size of each, counted from the longest sample on.
    """
    count, begin = len(rising), 0
    while begin < count:
        longest = int(rising[count - 1 - begin])
        size = batch_size or (max_tokens or 0) // max(longest, 1)
        alike = count - begin - int(np.searchsorted(rising, math.ceil(longest / bucket)))
        end = min(begin + max(alike // size, 1) * size, count)
        yield begin, end, size
        begin = end


# ----------------------------------------------------------------------------------- columns


def column_of(ds: Sized, column: LabelOrValues) -> npt.NDArray[Any]:
    """Return one value per sample: [len(ds)]."""
    labels: Mapping[str, npt.NDArray[Any]] | None = getattr(ds, "labels", None)
    if isinstance(column, str) and labels is None:
        raise OptionError(f"{type(ds).__name__} has no labels; give an array, one value for each sample")
    if isinstance(column, str) and isinstance(ds, Readable):
        warn_of_absent(reading_of(ds), "a sampler by labels", column)
    try:
        values = labels[column] if isinstance(column, str) and labels else np.asarray(detached(column))
    except ValueError as error:
        raise OptionError(f"{_named(column)}: {error}; give one value for each sample") from error
    if values.shape != (len(ds),):
        shape = f"{_named(column)} of shape {list(values.shape)} for {len(ds):,} samples"
        raise OptionError(f"{shape}; give one value for each sample")
    return values


def numbers_of(ds: Sized, column: LabelOrValues) -> npt.NDArray[Any]:
    """Return one number per sample, none missing: [len(ds)], integers, floats or bools."""
    values = column_of(ds, column)
    if not len(values):
        return np.empty(0, np.int64)
    arrow = _in_arrow(values)
    at = arrow.is_null(nan_is_null=True).index(True).as_py()
    if at >= 0:
        text = "has no value; filter() such samples out, or give an array"
        raise OptionError(f"{_named(column)}: sample {at} {text}")
    numbers: npt.NDArray[Any] = arrow.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind not in "iufb":
        raise OptionError(f"{_named(column)} of {values.dtype}; give numbers")
    return numbers


def _named(column: LabelOrValues) -> str:
    return f'label "{column}"' if isinstance(column, str) else "an array"


def _in_arrow(values: npt.NDArray[Any]) -> pa.Array:
    """Convert values to Arrow. None and NaT are missing, and nan beside values that are no floats."""
    wanted = "give single values of one type"
    try:
        is_exact = fits_arrow(values)
        # In an array of floats a search for nan takes ten times as long as all else.
        arrow = pa.array(values if is_exact else values.astype(object), from_pandas=not is_exact)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
        raise OptionError(f"values such as {shown(values[0])}: {error}; {wanted}") from error
    if pa.types.is_nested(arrow.type):
        raise OptionError(f"values such as {shown(values[0])}; {wanted}")
    return arrow


def by_class(values: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Group positions by class, as `grouped`, without missing values.

    Numbers and times come by rising class, others as they appear.
    """
    codes, classes = classes_of(comparable(pa.chunked_array([_in_arrow(values)])))
    kept = [code for code, value in enumerate(classes) if value is not None and value == value]
    if values.dtype.kind in "iufbmM":
        kept.sort(key=classes.__getitem__)
    numbers = np.full(len(classes), len(kept), np.min_scalar_type(len(kept)))
    numbers[kept] = np.arange(len(kept))
    positions, ends = grouped(numbers[codes], len(kept) + 1)
    return positions[: ends[-2]], ends[:-1]
