"""What tests/faults/test_sweeps.py leaves out: seals in windows, filters, arrays, and garbage at the end."""

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


def _label(name: str, i: int) -> Any:
    return i if name == "z" else SAMPLES[i][name]


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
            told = zip(self.labels, rows, strict=False)
            if cache._reader.sealed and any(row not in (known, dict.fromkeys(row)) for known, row in told):
                found.append("labels have other values")
            if any(
                value not in (None, _label(name, i))
                for i, row in enumerate(rows)
                for name, value in row.items()
            ):
                found.append("labels have values that nobody gave")
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
    for at in range(start, len(damaged.original), 97):
        with damaged.flipped(8 * at + at % 8):
            wrong = [*damaged.wrong_reads(), *_wrong_choices(damaged), damaged.unreported()]
        assert [what for what in wrong if what] == [], at


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
