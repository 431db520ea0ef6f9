"""`Shown`: requests of the viewer's page to a dataset: rows by a filter, windows of small pictures, one sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, lru_cache
from typing import Any, Final, Protocol

import numpy as np

from edcache.base import Ints, SampleIndexError, brief
from edcache.display import cells
from edcache.display.histogram import Histogram, histogram
from edcache.display.media import THUMBNAIL_SIDE, Detokenizer
from edcache.format import Failure
from edcache.labels import Labels, matching_rows, single_values, sorted_rows

_MOST_FILTERS: Final = 6
_MOST_SAMPLES: Final = 4
_MOST_HISTOGRAMS: Final = 40
_MOST_MISSING: Final = 500
_MOST_CAPTIONS: Final = 4
_LONGEST: Final = 300


class _Samples(Protocol):
    """Samples of the page, as a dataset has them."""

    @property
    def missing(self) -> Ints: ...
    @property
    def errors(self) -> Sequence[Failure]: ...
    def __getitem__(self, index: int, /) -> object: ...
    def __getitems__(self, indices: list[int], /) -> Sequence[object]: ...


class Shown:
    """Dataset on the page.

    Args:
        name: on the page.
        labels: returns its label columns, at the first use; it should import nothing heavy.
        dataset: opens it; the first threads that need it call it, until one succeeds.
        code: the line of Python that opens it.
        detokenizer: gives tokens their text.
    """

    def __init__(
        self,
        name: str,
        labels: Callable[[], Labels],
        dataset: Callable[[], _Samples],
        code: str,
        detokenizer: Detokenizer | None = None,
    ) -> None:
        self.name, self._code, self._detokenizer = name, code, detokenizer
        self._labels, self._dataset = cache(labels), cache(dataset)
        self._matching = lru_cache(_MOST_FILTERS)(lambda where: matching_rows(self._labels(), {}, where))
        self._matching_labels = lru_cache(1)(lambda where: self._labels().take(np.asarray(self.rows(where))))
        self._histogram = lru_cache(_MOST_HISTOGRAMS)(self._count)
        self._ordered = lru_cache(_MOST_FILTERS)(self._order)
        self._sample = lru_cache(_MOST_SAMPLES)(self._try_read)
        self._leaves = lru_cache(_MOST_SAMPLES)(lambda row: cells.sample_leaves(self._sample(row)))

    # ------------------------------------------------------------------------------ labels

    def about(self) -> dict[str, Any]:
        """Describe the dataset for the start of the page."""
        labels = self._labels()
        columns = [{"name": field.name, "type": str(field.type)} for field in labels.schema]
        return {
            "name": self.name,
            "samples": labels.num_rows,
            "columns": columns,
            "code": self._code,
        }

    def histogram(self, column: int) -> dict[str, Any]:
        """Count the values of a column, by its number."""
        return asdict(self._histogram(column))

    def _count(self, column: int) -> Histogram:
        labels = self._labels()
        names = list(labels)
        if column >= len(names):
            raise SampleIndexError(f"no label column {column}; there are {len(names)}")
        return histogram(labels, names[column])

    def kept(self, where: str, column: int) -> list[int | None]:
        """Count the samples of each bar of a histogram that fulfil a where-string; None if a bar has none."""
        bars, labels = self._histogram(column).bars, self._matching_labels(where)
        return [None if bar.where is None else len(matching_rows(labels, {}, bar.where)) for bar in bars]

    def rows(self, where: str, order: str = "") -> Ints | range:
        """Find the rows that fulfil a where-string; all for an empty one. Raises as `matching_rows`.

        order: "up NAME" or "down NAME" sorts by a label, as `sort_by`; "random SEED" shuffles; "" is as stored.
        """
        if order:
            return self._ordered(where, order)
        return self._matching(where) if where else range(self._labels().num_rows)

    def _order(self, where: str, order: str) -> Ints:
        word, _, rest = order.partition(" ")
        rows: Ints = np.array(self.rows(where), np.int64)
        if word == "random":
            shuffled: Ints = np.random.default_rng(int(rest)).permutation(rows)
            return shuffled
        column = single_values(self._matching_labels(where), rest, "sort_by")
        sorted_: Ints = rows[sorted_rows(column, descending=word == "down")]
        return sorted_

    def position(self, where: str, row: int, order: str = "") -> dict[str, Any]:
        """Find the position of a row in the rows of a filter, or of the next one, in an order of any one."""
        rows = self.rows(where, order)
        if not len(rows) or row >= self._labels().num_rows:
            raise SampleIndexError(f"no sample {row:,} here")
        if isinstance(rows, range):
            return {"position": row, "exact": True}
        places = np.flatnonzero(rows == row) if order else np.atleast_1d(np.searchsorted(rows, row))
        position = min(int(places[0]), len(rows) - 1) if len(places) else 0
        return {"position": position, "exact": int(rows[position]) == row}

    # ----------------------------------------------------------------------------- samples

    def cells(
        self,
        where: str,
        start: int,
        count: int,
        *,
        order: str = "",
        caption: int = 0,
        side: int = THUMBNAIL_SIDE,
    ) -> list[dict[str, Any]]:
        """Describe a window of the rows that fulfil a where-string, for the grid.

        caption: the number of the label column that "caption" has. side: the most pixels of a small picture.
        """
        window = [int(row) for row in self.rows(where, order)[start : start + count]]
        names = list(self._labels())
        labels = self._texts(window, names[:_MOST_CAPTIONS])
        captions = self._texts(window, names[caption : caption + 1])
        read = zip(window, labels, captions, self._read(window), strict=True)
        return [
            {"row": row, "labels": labels, "caption": "".join(chosen)} | self._cell(sample, side)
            for row, labels, chosen, sample in read
        ]

    def _cell(self, sample: object, side: int) -> dict[str, Any]:
        made = cells.tried(cells.cell, sample, side, self._detokenizer)
        return {"why": cells.error_text(made)} if isinstance(made, Exception) else made

    def _texts(self, rows: list[int], names: list[str]) -> list[list[str]]:
        """Return labels of rows as texts."""
        taken = self._labels().take(np.array(rows, np.int64))
        columns = list(map(taken.to_list, names))
        return [[brief(column[k])[:_LONGEST] for column in columns] for k in range(len(rows))]

    def _read(self, rows: list[int]) -> Sequence[object]:
        """Read the sample of each row, or return the error of reading it."""
        samples = cells.tried(lambda: self._dataset().__getitems__(rows))
        # One by one, each sample has its own error.
        return [self._try_read(row) for row in rows] if isinstance(samples, Exception) else samples

    def _try_read(self, row: int) -> object:
        """Read a sample, or return the error of reading it."""
        count = self._labels().num_rows
        if row >= count:
            raise SampleIndexError(f"no sample {row:,}; there are {count:,}")
        return cells.tried(self._dataset().__getitem__, row)

    def sample(self, row: int) -> dict[str, Any]:
        """Describe one sample: its labels, its leaves with pictures; or the error of reading it."""
        sample, labels = self._sample(row), self._labels()
        taken = labels.take(np.array([row], np.int64))
        document: dict[str, Any] = {
            "row": row,
            "labels": [[name, brief(taken.to_list(name)[0])[:_LONGEST]] for name in labels],
        }
        if isinstance(sample, Exception):
            return document | {"leaves": [], "error": cells.error_text(sample)}
        return document | {"leaves": cells.described_leaves(self._leaves(row), self._detokenizer)}

    def picture(self, row: int, leaf: int, axis: int, at: int, is_over: bool) -> bytes:
        """Encode an image, a frame or a slice as a PNG file."""
        return cells.picture(self._leaves(row), leaf, axis, at, is_over)

    def sound(self, row: int, leaf: int) -> bytes:
        """Encode a sound as a WAV file."""
        return cells.sound(self._leaves(row), leaf)

    def missing(self) -> dict[str, Any]:
        """List the rows without a record, and the errors of the rows that failed."""
        dataset = self._dataset()
        rows = dataset.missing.tolist()
        failed = {
            one.index: {"error": one.error, "message": one.message[:_LONGEST], "final": one.final}
            for one in dataset.errors
        }
        others = [row for row in rows if row not in failed]
        return {
            "count": len(rows),
            "failed": [{"row": row} | failure for row, failure in [*failed.items()][:_MOST_MISSING]],
            "more_failed": max(0, len(failed) - _MOST_MISSING),
            "others": others[:_MOST_MISSING],
            "more_others": max(0, len(others) - _MOST_MISSING),
        }
