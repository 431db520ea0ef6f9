"""No damaged bit is ever read as another value, and `verify` finds every one.

EDCACHE_ALL_FLIPS=1 tries every bit of every archive instead of a seeded sample of them.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scale import thinned

import edcache
from edcache import CachedDataset, CacheWriter, EdcacheError, format
from edcache.format import columns, contents

# What is left of a damaged archive is right, or an error too.
pytestmark = pytest.mark.filterwarnings("ignore::edcache.errors.PartialArchiveWarning")

ALL = os.environ.get("EDCACHE_ALL_FLIPS") == "1"
FLIPS = 500
COUNT = 14


def sample(i: int) -> dict[str, Any]:
    noise = np.random.default_rng(i).integers(0, 256, 150, np.uint8)
    return {
        "image": torch.from_numpy(noise),
        "text": f"text of sample {i} " * 3,
        "x": np.arange(4.0) + i,
        "y": i % 5,
    }


SAMPLES = [sample(i) for i in range(COUNT + 4)]


def same(found: Any, i: int) -> bool:
    expected = SAMPLES[i]
    return (
        isinstance(found, dict)
        and list(found) == list(expected)
        and torch.equal(found["image"], expected["image"])
        and np.array_equal(found["x"], expected["x"])
        and (found["text"], found["y"]) == (expected["text"], expected["y"])
    )


def _write(path: Path, seal: bool = True, **options: Any) -> None:
    w = CacheWriter(
        path,
        uuid=bytes(range(16)),
        in_memory_keys=["y", "text"],
        publish_seconds=None,
        sync="never",
        **options,
    )
    w.extend(SAMPLES[:COUNT])
    w.close() if seal else w.abort()


def _grown(path: Path) -> None:
    _write(path, chunk_size=5)
    with CacheWriter(path, "a", publish_seconds=None, sync="never") as w:
        w.extend(SAMPLES[COUNT:])


def _relabelled(path: Path) -> None:
    """A column added, one dropped, and one changed."""
    _write(path, chunk_size=5)
    with CachedDataset.from_cache(path) as ds:
        ds.add_labels("z", range(COUNT)).drop_labels("text").add_labels("y", {0: 0})


ARCHIVES: dict[str, Callable[[Path], None]] = {
    "plain": lambda path: _write(path, chunk_size=5),
    "zstd": lambda path: _write(path, chunk_size=5, compression="zstd"),
    "grown": _grown,
    "relabelled": _relabelled,
}


class Damaged:
    """One archive, damaged and restored again and again in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.original = path.read_bytes()
        self.count = len(CachedDataset.from_cache(path, allow_partial=True))
        self.labels = CachedDataset.from_cache(path, allow_partial=True).labels.table.to_pylist()
        assert all(
            same(found, i) for i, found in enumerate(CachedDataset.from_cache(path, allow_partial=True))
        )

    @contextmanager
    def flipped(self, bit: int) -> Iterator[None]:
        offset, mask = bit >> 3, 1 << (bit & 7)
        fd = os.open(self.path, os.O_RDWR)
        try:
            os.pwrite(fd, bytes([self.original[offset] ^ mask]), offset)
            yield
        finally:
            os.pwrite(fd, self.original[offset : offset + 1], offset)
            os.close(fd)

    def wrong_reads(self) -> list[str]:
        """What a reader got that it must not get: other values, or an exception of another family."""
        found: list[str] = []
        try:
            cache = CachedDataset.from_cache(self.path, allow_partial=True)
        except EdcacheError:
            return found
        except Exception as error:
            return [f"opening: {error!r}"]
        if len(cache) != self.count and cache._reader.sealed:
            found.append(f"{len(cache)} samples")
        for i in range(min(len(cache), self.count)):
            try:
                if not same(cache[i], i):
                    found.append(f"sample {i} has other values")
            except EdcacheError:
                pass
            except Exception as error:
                found.append(f"sample {i}: {error!r}")
        try:
            rows = cache.labels.table.to_pylist()
            if any(row not in (self.labels[i], dict.fromkeys(row)) for i, row in enumerate(rows)):
                found.append("labels have other values")
        except EdcacheError:
            pass
        except Exception as error:
            found.append(f"labels: {error!r}")
        cache.close()
        return found

    def unreported(self) -> str:
        """Why `verify` did not report the damage; empty where it did."""
        try:
            return "" if edcache.verify(self.path).problems else "verify says sound"
        except EdcacheError:
            return ""
        except Exception as error:
            return f"verify raises {error!r}"


@pytest.fixture(params=thinned(ARCHIVES, 1))
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Damaged:
    path = tmp_path / "damaged.zip"
    ARCHIVES[request.param](path)
    return Damaged(path)


def _bits(original: bytes, seed: str, count: int) -> list[int]:
    total = 8 * len(original)
    return list(range(total)) if ALL else sorted(random.Random(seed).sample(range(total), min(count, total)))


def _entries(original: bytes) -> list[int]:
    """Where the headers begin."""
    return [at for at in range(len(original)) if original[at : at + 4] == b"PK\x03\x04"]


def _described(original: bytes, complaints: dict[str, list[int]]) -> str:
    """What went wrong at which offsets, as runs, and what lies where."""
    lines = []
    for what, offsets in complaints.items():
        unique = sorted(set(offsets))
        starts = [o for o in unique if o - 1 not in unique]
        ends = [o for o in unique if o + 1 not in unique]
        runs = [f"{a}-{b}" if a != b else f"{a}" for a, b in zip(starts, ends, strict=True)]
        lines.append(f"{what}: {len(unique)} offsets: {', '.join(runs[:20])}")
    names = [original[at + 30 : at + 30 + original[at + 26]].decode() for at in _entries(original)]
    places = [f"{name} at {at}" for name, at in zip(names, _entries(original), strict=True)]
    return "\n".join([*lines, ", ".join(places) + f", end at {len(original)}"])


def _check(damaged: Damaged, bits: list[int], reads: bool = True, verify: bool = True) -> None:
    complaints: dict[str, list[int]] = {}
    for bit in bits:
        with damaged.flipped(bit):
            found = damaged.wrong_reads() if reads else []
            if verify and damaged.unreported():
                found.append(damaged.unreported())
        for what in found:
            complaints.setdefault(what, []).append(bit >> 3)
    assert damaged.path.read_bytes() == damaged.original
    assert not complaints, _described(damaged.original, complaints)


def test_a_flipped_bit_is_never_read_as_another_value(damaged: Damaged) -> None:
    _check(damaged, _bits(damaged.original, "reads", FLIPS // 2), verify=False)


def test_verify_reports_every_flipped_bit(damaged: Damaged) -> None:
    _check(damaged, _bits(damaged.original, "verify", FLIPS // 2), reads=False)


@pytest.mark.full
def test_verify_reports_every_flipped_byte_of_the_directory(damaged: Damaged) -> None:
    start = damaged.original.index(b"PK\x01\x02", _entries(damaged.original)[-1])
    _check(damaged, [8 * offset + offset % 8 for offset in range(start, len(damaged.original))])


def test_verify_reports_every_flipped_byte_of_the_headers(damaged: Damaged) -> None:
    step = 1 if ALL else 5
    heads = _entries(damaged.original)
    _check(damaged, [8 * (at + k) + (at + k) % 8 for at in heads for k in range(0, 192, step)])


def _wrong_choices(damaged: Damaged) -> list[str]:
    """What a filter, and a reader without torch, got that they must not get."""
    wrong = []
    for least in (0, 3):
        expected = [i for i in range(COUNT) if SAMPLES[i]["y"] >= least]
        with suppress(EdcacheError), CachedDataset.from_cache(damaged.path, allow_partial=True) as ds:
            if ds.filter(f"y >= {least}").indices.tolist() != expected and ds._reader.sealed:
                wrong.append("a filter chooses others")
    with suppress(EdcacheError), edcache.numpy.open(damaged.path, allow_partial=True) as arrays:
        rows = arrays.where("y >= 3").tolist()
        if rows != expected or not np.array_equal(
            arrays.batch(rows)["x"], np.stack([SAMPLES[i]["x"] for i in rows])
        ):
            wrong.append("arrays are others")
    return wrong


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_flip_in_any_of_several_windows_and_batches_is_noticed_or_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    monkeypatch.setattr(contents, "WINDOW", 4)
    monkeypatch.setattr(columns, "BATCH_ROWS", 4)
    path = tmp_path / "windows.zip"
    _write(path, chunk_size=5, compression=compression)
    damaged = Damaged(path)
    with CachedDataset.from_cache(path) as ds:
        assert ds.labels.table["y"].num_chunks == 4
    assert _wrong_choices(damaged) == []
    start = damaged.original.index(b"index.rows") - 30
    for at in range(start, len(damaged.original), 1 if ALL else 97):
        with damaged.flipped(8 * at + at % 8):
            wrong = [*damaged.wrong_reads(), *_wrong_choices(damaged), damaged.unreported()]
        assert [what for what in wrong if what] == [], at


@pytest.mark.full
@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "unsealed"])
def test_flips_in_an_unsealed_archive_are_never_read_as_another_value(tmp_path: Path, seal: bool) -> None:
    path = tmp_path / "unsealed.zip"
    _write(path, seal, chunk_size=4)
    damaged = Damaged(path)
    _check(damaged, _bits(damaged.original, "unsealed", 600), verify=False)


def _boundaries(original: bytes) -> set[int]:
    found = {0, len(original), *range(0, len(original), 4096)}
    for at in range(0, len(original), 8):
        if original[at : at + 4] in (
            b"PK\x03\x04",
            b"PK\x01\x02",
            b"PK\x05\x06",
            b"PK\x06\x06",
            b"PK\x06\x07",
        ):
            found |= {at, at + 30, at + 192}
    return {at + k for at in found for k in (-1, 0, 1) if 0 <= at + k <= len(original)}


def test_a_truncated_archive_is_refused_or_reads_what_is_left(damaged: Damaged) -> None:
    original = damaged.original
    step = 1 if ALL else 97
    wrong = []
    for length in sorted({*range(0, len(original), step), *_boundaries(original)}):
        if original[length - 22 : length - 18] == b"PK\5\6":
            continue  # whole, as it was before it grew: nothing in the file can tell
        damaged.path.write_bytes(original[:length])
        wrong += [f"cut to {length}: {what}" for what in damaged.wrong_reads()]
        if length < len(original):
            try:
                report = edcache.verify(damaged.path)
                wrong += [f"cut to {length}: still sealed"] if report.sealed and report.sound else []
            except EdcacheError:
                pass
    assert wrong == []


def test_appended_garbage_changes_no_value(damaged: Damaged) -> None:
    rng = random.Random("garbage")
    lengths = [1, 2, 3, 4, 21, 22, 23, 97, 191, 192, 193, 4095, 4096, 4097, 5000]
    lengths += [rng.randrange(1, 5001) for _ in range(25)]
    wrong = []
    for length in lengths:
        kinds = {
            "noise": rng.randbytes(length),
            "zeros": bytes(length),
            "its own end": damaged.original[-length:],
            "its own beginning": damaged.original[:length],
        }
        for kind, garbage in kinds.items():
            damaged.path.write_bytes(damaged.original + garbage)
            cache = CachedDataset.from_cache(damaged.path, allow_partial=True)
            if len(cache) != damaged.count or cache.missing.size:
                wrong.append(f"{length} bytes of {kind}: {len(cache)} samples")
            cache.close()
            wrong += [f"{length} bytes of {kind}: {what}" for what in damaged.wrong_reads()]
            edcache.verify(damaged.path)
    assert wrong == []


def test_a_writer_makes_an_archive_with_garbage_behind_it_sound_again(damaged: Damaged) -> None:
    for garbage in (b"\0", bytes(5000), damaged.original[-200:], random.Random(1).randbytes(4096)):
        damaged.path.write_bytes(damaged.original + garbage)
        with CacheWriter(damaged.path, "a", sync="never"):
            pass
        assert damaged.path.read_bytes() == damaged.original


def test_the_checksums_are_ordinary_crc32() -> None:
    assert format.crc32(b"edcache") == zlib.crc32(b"edcache")
