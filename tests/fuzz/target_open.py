"""A whole file: opened, read in every way, verified, and continued by a writer.

The input is a file, if it begins like one; else it chooses an archive, and the lies that are told in it
behind checksums that fit.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from fuzz_archives import BASES, assembled, base, drawn, in_memory, lie
from fuzz_draw import Draw
from systems import reading_by
from torch.utils.data import default_collate

from edcache import CachedDataset, CacheWriter, verify
from edcache.errors import EdcacheError
from edcache.reader import Reader

_READ = 5
# What is as long as the dataset is said to be takes memory accordingly: a sparse archive may be long.
_LONG = 1 << 16


def made(draw: Draw) -> bytes:
    """The file that the choices lead to."""
    archive = drawn(draw.below(BASES))
    for _ in range(draw.below(5)):
        lie(archive, draw)
    data = assembled(archive)
    behind = draw.below(8)
    if behind == 1:
        data = data[: draw.number() % (len(data) + 1)]
    elif behind == 2:
        data += draw.some()
    elif behind == 3:
        at = draw.number() % len(data)
        data = data[:at] + draw.changed(data[at : at + 64]) + data[at + 64 :]
    return data


def run(data: bytes) -> None:
    draw = Draw(data)
    if data[:2] == b"PK":
        check(data, range(len(_WAYS)))
        return
    way = draw.pick((0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 4, 5, 5))
    try:
        file = made(draw)
    except struct.error:
        return  # what is drawn cannot be written
    check(file, [way])


def check(file: bytes, ways: Any) -> None:
    with in_memory(file) as path:
        for way in ways:
            _WAYS[way](path)


@contextmanager
def _refused() -> Iterator[None]:
    with suppress(EdcacheError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _read(path: str, way: str = "mmap", **options: Any) -> None:
    with _refused(), reading_by(way):
        reader = Reader(path, **options, allow_partial=True)
        try:
            _read_all(reader, copy=options.get("verify") != "never")
        finally:
            reader.close()


def _read_all(reader: Reader, copy: bool) -> None:
    length = reader.session.length
    assert reader.session.index.present <= length
    assert (reader.session.sealed, reader.session.damaged, reader.session.nbytes) is not None
    for index in _ends(length):
        with _refused():
            reader.session.read(index, copy=copy)
    some = np.arange(min(length, _READ), dtype=np.int64)
    with _refused():
        reader.session.group(some).samples()
    if length <= _LONG:
        with _refused():
            assert len(reader.session.index.missing()) == length - reader.session.index.present
        with _refused():
            table = reader.session.labels.table
            assert not table.num_columns or table.num_rows == length


def _ends(length: int) -> list[int]:
    return sorted({*range(min(length, _READ)), length - 1} - {-1})


def _dataset(path: str) -> None:
    with _refused():
        cache = CachedDataset.from_cache(path, allow_partial=True)
        try:
            assert cache.complete in (True, False)
            if len(cache) > _LONG:
                return
            some = list(range(min(len(cache), _READ)))
            _batch(cache, some)
            for name in cache.labels:
                with _refused():
                    values = cache.labels[name]
                    assert len(values) == len(cache)
                with _refused():
                    cache.filter(f"col('{name}') == 1" if name.isidentifier() else None)
            with _refused():
                present = cache[np.setdiff1d(np.arange(len(cache)), cache.missing)]
                [present[k] for k in range(min(4, len(present)))]
        finally:
            cache.close()


def _batch(cache: CachedDataset, some: list[int]) -> None:
    """A batch is what torch makes of the samples, or fails as they do."""
    failed: type[Exception] | None = None
    try:
        default_collate([cache[i] for i in some])
    except Exception as error:
        failed = type(error)
    try:
        cache.batch(some)
        assert failed is None
    except Exception as error:
        if failed is None or not issubclass(type(error), failed):
            raise


def _verify(path: str) -> None:
    with _refused():
        report = verify(path)
        assert all(line.startswith(path) for line in report.problems)


def _continue(path: str) -> None:
    """A writer appends to what is there, seals it, and finds its own sample again."""
    with _refused():
        w = CacheWriter(path, "a", sync="never", publish_seconds=None)
        try:
            place = w.next_index
            if max(place, w._appender.chain.length or 0) > _LONG:
                return
            w.append({"x": np.full((2, 4), 7, np.float32), "y": 5, "s": "new"})
            w.seal()
        finally:
            with _refused():
                w.abort()
        reader = Reader(path, allow_partial=True)
        try:
            assert reader.session.read(place)["s"] == "new"
        finally:
            reader.close()


_WAYS: tuple[Callable[[str], None], ...] = (
    _read,
    lambda path: _read(path, "pread", verify="always"),
    _verify,
    lambda path: _read(path, verify="never"),
    _dataset,
    _continue,
)


def seeds() -> list[bytes]:
    plain = [bytes([way, number, 0]) for way in (0, 4, 7, 9, 13, 14) for number in range(BASES)]
    lies = [
        bytes([way, number, 1, what, number, what, 3])
        for way in (1, 3, 5, 7)
        for number in range(BASES)
        for what in range(12)
    ]
    return [*plain, *lies]


def files() -> list[bytes]:
    """Whole files, of which two go into the corpus."""
    return [base(0), base(5)]
