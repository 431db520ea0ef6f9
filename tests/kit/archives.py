"""Random archives with what they hold in plain Python, and where each byte of it lies.

Where things lie is found by tests/conformance/reference.py alone, so that a test knows what damage has hit.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import reference

from edcache import CacheWriter
from edcache.format import Head
from edcache.writer import seal
from edcache.writer.appender import Appender

FAILURE = ["ValueError", "it has no image", "Traceback: ünd so"]


class Version(NamedTuple):
    """One record of a sample: the sample itself, and the extents of all bytes that prove it.

    seq: the number of its chunk's entry. table: of the chunk, with its header.
    """

    sample: Any
    seq: int
    record: tuple[int, int]
    table: tuple[int, int]


class Model(NamedTuple):
    """versions: of each index, oldest first. others: extents of head and notes."""

    length: int
    versions: dict[int, list[Version]]
    failed: dict[int, list[Any]]
    keys: list[str]
    others: list[tuple[int, int]]
    sealed: bool
    data: bytes

    def newest(self, index: int) -> Any:
        return self.versions[index][-1].sample

    def labels(self, sample: Any) -> dict[str, Any]:
        return {key: sample[key] for key in self.keys}


def sample(rng: random.Random) -> dict[str, Any]:
    """Small, of several schemas, with labels of several kinds."""
    made: dict[str, Any] = {
        "x": np.frombuffer(rng.randbytes(8 * rng.randrange(0, 40)), np.int64),
        "y": rng.randrange(-5, 5),
        "name": rng.choice([None, "a", "bb", "ünd"]),
        "tags": [rng.randrange(9) for _ in range(rng.randrange(3))] or None,
        "text": rng.choice(["word ", "other "]) * rng.randrange(30),
    }
    if rng.random() < 0.2:
        made[f"field{rng.randrange(6)}"] = rng.random()
    if rng.random() < 0.03:
        made["big"] = np.frombuffer(rng.randbytes(9000), np.uint8)
    return made


def make(
    path: Path,
    rng: random.Random,
    sealed: bool | None = None,
    compressions: Sequence[str | None] = (None, "zstd"),
) -> Model:
    """An archive of any kind: dense, sparse, compressed, overwritten, grown, with failures, unsealed."""
    keys = rng.choice([[], ["y"], ["y", "name", "tags"]])
    compression = rng.choice(compressions)
    sealed = rng.random() < 0.7 if sealed is None else sealed
    written: list[tuple[int, Any]] = []
    sessions = rng.choice([1, 1, 2, 3])
    for session in range(sessions):
        options: dict[str, Any] = {"compression": compression, "in_memory_keys": keys or None}
        options = options if session == 0 else {}
        size = rng.randrange(2, 12)
        writer = CacheWriter(path, "a", chunk_size=size, publish_seconds=None, sync="never", **options)
        for _ in range(rng.randrange(1, 4)):
            _write(writer, rng, written)
        is_last = session == sessions - 1
        writer.close() if (sealed if is_last else rng.random() < 0.7) else writer.abort()
    changes = _amended(written, rng)
    if changes:
        appender = Appender.open(path, Head(bytes(16)), mode="a", sync="never")
        appender.amend(**changes)
        if sealed:
            seal(appender)
        appender.close()
    return look(path, keys, written, sealed)


def _write(writer: CacheWriter, rng: random.Random, written: list[tuple[int, Any]]) -> None:
    kind = rng.choice(["append", "append", "sparse", "again"])
    if kind == "append":
        for _ in range(rng.randrange(1, 25)):
            made = sample(rng)
            writer.append(made)
            written.append((writer.next_index - 1, made))
        return
    known = [index for index, _ in written]
    for _ in range(rng.randrange(1, 10)):
        index = rng.choice(known) if kind == "again" and known else rng.randrange(80)
        written.append((index, sample(rng)))
        writer.write(*written[-1])


def _amended(written: list[tuple[int, Any]], rng: random.Random) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    known = {index for index, _ in written}
    if rng.random() < 0.3:
        changes["length"] = max(known) + rng.randrange(1, 20)
    absent = sorted(set(range(max(known))) - known)
    if absent and rng.random() < 0.5:
        chosen = rng.sample(absent, min(3, len(absent)))
        changes["failed"] = [[index, rng.random() < 0.5, *FAILURE] for index in chosen]
    return changes


def look(path: Path, keys: list[str], written: list[tuple[int, Any]], sealed: bool) -> Model:
    """What an archive holds, given what was written to it in order."""
    versions: dict[int, list[Version]] = {}
    others = []
    pending = iter(written)
    for entry in reference.entries(path):
        fields, data = entry.fields, entry.payload
        start = fields["offset"]
        payload = start + fields["nbytes"]
        if fields["kind"] == reference.CHUNK:
            count = int.from_bytes(data[:8], "little")
            samples = struct.unpack_from(f"<{count}q", data, 24)
            rows = struct.iter_unpack("<QQIHH", data[24 + 8 * count : 24 + 32 * count])
            for sample_index, (low, nbytes, *_) in zip(samples, rows, strict=True):
                index, made = next(pending)
                assert index == sample_index
                end = low + nbytes + (-(-nbytes // reference.BLOCK) * 4 if nbytes > reference.BLOCK else 0)
                table = start, payload + fields["table_nbytes"]
                versions.setdefault(index, []).append(Version(made, fields["number"], (low, end), table))
        elif fields["kind"] in (reference.HEAD, reference.NOTE):
            others.append((start, payload + len(data)))
    archive = reference.walk(path)
    return Model(archive.length, versions, archive.failed, keys, others, sealed, path.read_bytes())
