"""Write the golden archives of tests/conformance/golden/: scripts/generate golden FOLDER

Run it once per format version; files of a released version are never written again.
Those named later-* are as a later release may write them: what it adds to this version is made up here.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow
import zstandard

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "conformance"), str(ROOT / "tests" / "kit")]

import golden_samples as samples  # noqa: E402
from later import of_version  # noqa: E402

import edcache  # noqa: E402
from edcache import format  # noqa: E402
from edcache.labels import LabelSpec  # noqa: E402
from edcache.reader import Reader  # noqa: E402
from edcache.writer.appender import Appender  # noqa: E402
from edcache.writer.builder import ChunkBuilder  # noqa: E402
from edcache.writer.chunk import Chunk  # noqa: E402
from edcache.writer.entry_group import EntryGroup, linked  # noqa: E402
from edcache.writer.seal import Order, seal  # noqa: E402

VERSIONS = {"pyarrow": pyarrow.__version__, "zstd": ".".join(map(str, zstandard.ZSTD_VERSION))}


def _writer(path: Path, mode: str = "x", **options: Any) -> edcache.CacheWriter:
    options = {"uuid": samples.UUID, "publish_seconds": None, "sync": "never", "chunk_size": 8} | options
    return edcache.CacheWriter(path, mode, **options)


def _dense(make: Callable[[int], Any], count: int, **options: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with _writer(path, **options) as w:
            w.extend(make(i) for i in range(count))

    return write


def _sparse(path: Path) -> None:
    with _writer(path, in_memory_keys=["label"], chunk_size=3) as w:
        for i in (5, 3, 9, 100, 3, 20):
            w.write(i, samples.fixed(i if i != 3 else 33))
        w.write(3, samples.fixed(3))


def _grown(path: Path) -> None:
    with _writer(path, in_memory_keys=["label"]) as w:
        w.extend(samples.fixed(i) for i in range(10))
    with _writer(path, "a") as w:
        w.extend(samples.fixed(i) for i in range(10, 15))
        w.write(2, samples.fixed(202))


def _failed(path: Path) -> None:
    """Samples that failed: absent for good, to be tried again, and made after all."""
    with _writer(path, in_memory_keys=["label"]) as w:
        for i in (0, 2, 5):
            w.write(i, samples.fixed(i))
        w.flush()
        appender = Appender.open(path, Reader(path).session.head, mode="a", sync="never")
        appender.amend(length=7)
        appender.amend(failed=[[i, i == 4, *why] for i, why in samples.FAILED.items()])
        appender.close()
        w.write(3, samples.fixed(3))


def _images(path: Path) -> None:
    def file(data: bytes, *decoding: Any) -> edcache.ImageFile:
        return edcache.ImageFile(data, edcache.Decoding(*decoding))

    with _writer(path, in_memory_keys=["label"]) as w:
        w.extend(samples.picture(i, file) for i in range(9))


def _relabelled(path: Path) -> None:
    """A column added, also to a sample that is absent, one that is changed, and one that is dropped."""
    with _writer(path, in_memory_keys=["label", "score"], chunk_size=3) as w:
        for i in (0, 1, 2, 4):
            w.write(i, samples.fixed(i))
    cache = edcache.CachedDataset.from_cache(path)
    cache.add_labels("cluster", [f"c{i}" for i in range(5)])
    cache.add_labels("label", {1: 71, 2: 72}).drop_labels("score")
    with _writer(path, "a") as w:
        w.write(2, samples.fixed(2))


def _changed(path: Path) -> None:
    """A column that is changed for two samples, one of which has none then."""
    with _writer(path, in_memory_keys=["label", "text"]) as w:
        w.extend(samples.text(i) for i in range(24))
    edcache.CachedDataset.from_cache(path).add_labels("label", {1: 71, 5: None})


def _keyed(path: Path) -> None:
    """Samples with a column of keys, which are put in another order: one is left out, and one is there twice."""
    with _writer(path, in_memory_keys={"label": "label", "key": "label"}) as w:
        w.extend(samples.fixed(i) for i in range(10))
    appender = Appender.open(path, Reader(path).session.head, mode="a", sync="never")
    order = Order(np.array(samples.KEYED), fingerprint={"keys": "in another order"})
    seal(appender, find_order=lambda: order)
    appender.close()


def _appender(path: Path) -> closing[Appender]:
    return closing(Appender.open(path, format.Head(samples.UUID), mode="a", sync="never"))


def _chunk(head: format.Head, first: int, made: list[Any]) -> Chunk:
    builder = ChunkBuilder(head, "new", LabelSpec.parse(dict(head.labels)))
    for k, sample in enumerate(made):
        builder.add(first + k, sample)
    return builder.take()


def _parts(path: Path) -> None:
    """New samples that come in two parts with a new order, twice; one failed. Before the second a sample is added."""
    with _writer(path, in_memory_keys={"label": "label", "key": "label"}) as w:
        w.extend(samples.fixed(i) for i in range(6))
    for first, order in zip((6, 8), samples.PARTS, strict=True):
        with _appender(path) as appender:
            if first == 8:
                appender.append(_chunk(appender.head, 7, [samples.fixed(7)]))
            for numbers in (range(first, first + 2), range(first + 3, first + 4)):
                part = _chunk(appender.head, 0, [samples.fixed(number) for number in numbers])
                appender.append(replace(part, maker=f"how-{first}"))
            failures = [format.Failure(i, True, *samples.FAILED[4]) for i, one in enumerate(order) if one < 0]
            made = Order(np.array(order), failures, appender.chain.parts, {"keys": f"order {first}"})
            seal(appender, find_order=lambda made=made: made)


def _more(path: Path) -> None:
    """What an older release may ignore, in head, note and root; and a feature that writers must know."""
    head = format.Head(samples.UUID, labels=(("label", "label"),), more={"a": [1, None]})
    with closing(Appender.open(path, head, mode="x", sync="never")) as appender:
        appender.append(_chunk(head, 0, [samples.fixed(i) for i in range(5)]))
        appender.amend(more={"b": {}})
        seal(appender)
    _rerooted(path, more={"c": "text"}, writes=["ledger"])


def _fixed(path: Path) -> None:
    with _writer(path, in_memory_keys=["label"]) as w:
        w.extend(samples.fixed(i) for i in range(3))


def _rerooted(path: Path, **changes: Any) -> None:
    """Seal an archive again with a root that says something else."""
    with _appender(path) as appender:
        chain, file = appender.chain, appender.file
        assert chain.root is not None
        group = EntryGroup(file, chain)
        said = json.loads(format.pack_root(chain.root))
        for name, change in changes.items():
            said[name] = change(group, said[name]) if callable(change) else change
        group.entry(format.ROOT, "root.json").write(json.dumps(said, separators=(",", ":")).encode())
        headers = group.headers(0)
        root, listed = headers[-1], chain.listed(chain.root, headers)
        directory = format.pack_directory(listed, root.payload_end)
        file.pwrite(root.payload_end, directory)
        following = format.align(root.payload_end + len(directory), format.PAGE)
        group.publish([*headers[:-1], linked(replace(root, next=following))])


def _later_entry(path: Path, **fields: Any) -> None:
    """An archive that ends with an entry of another release."""
    with _writer(path, in_memory_keys=["label"]) as w:
        w.append(samples.fixed(0))
        w.flush()
        with _appender(path) as appender:
            group = EntryGroup(appender.file, appender.chain)
            group.entry(format.NOTE, f"notes/{appender.chain.cursor.number:08d}").write(b"{}")
            group.publish([replace(header, **fields) for header in group.headers(0)])
        w.abort()


def _later_record(path: Path, **row: int) -> None:
    """A record that is stored as only a later release knows: with another flag, or in another schema."""
    with (
        patch("edcache.format.records._KNOWN_FLAGS", 0xFFFF),
        closing(Appender.open(path, format.Head(samples.UUID), mode="x", sync="never")) as appender,
    ):
        chunk = _chunk(appender.head, 0, [samples.fixed(0), samples.fixed(1)])
        chunk.schemas.append('["ragged","<f4",2]')
        chunk = replace(chunk, rows=chunk.rows.copy())
        for name, value in row.items():
            chunk.rows[name][1] = value
        appender.append(chunk)
        seal(appender)


def _later_column(path: Path) -> None:
    """A label column of a type that only a later release knows."""

    def labels(group: EntryGroup, said: dict[str, Any]) -> dict[str, Any]:
        values = pyarrow.chunked_array([[Decimal(k) / 4 for k in range(3)]])
        file, entry = io.BytesIO(), group.entry(format.COLUMN, format.column_name("price"))
        format.write_column(file.write, "price", values.type, values.chunks)
        entry.write(file.getvalue())
        return said | {"price": [*entry.place, str(values.type), True]}

    _fixed(path)
    _rerooted(path, labels=labels)


def _later_root(path: Path, **changes: Any) -> None:
    _fixed(path)
    _rerooted(path, **changes)


def _later_head(path: Path, **changes: Any) -> None:
    path.write_bytes(format.pack_head(format.Head(samples.UUID, length=0, **changes)))


def _later_version(path: Path, *, is_sealed: bool) -> None:
    """Another version of the format, of which every entry says so."""
    with of_version(4):
        _fixed(path)
        if not is_sealed:
            with _writer(path, "a") as w:
                w.append(samples.fixed(3))
                w.abort()


def _torn(path: Path) -> None:
    """Three chunks, and what a writer leaves that dies before the header of its fourth."""
    w = _writer(path, in_memory_keys=["label"])
    w.extend(samples.fixed(i) for i in range(24))
    w.flush()
    whole = -(-path.stat().st_size // 4096) * 4096
    w.extend(samples.fixed(i) for i in range(24, 30))
    w.abort()
    data = bytearray(path.read_bytes())
    data[whole : whole + 4096] = bytes(4096)
    path.write_bytes(data[:-1000])


ARCHIVES: dict[str, Callable[[Path], None]] = {
    "fixed": _dense(samples.fixed, 24, in_memory_keys=["label", "score"]),
    "mixed": _dense(samples.mixed, len(samples.MIXED)),
    "schemas": _dense(samples.different, 70, in_memory_keys=["i"], chunk_size=40),
    "zstd": _dense(samples.text, 24, compression="zstd:19", in_memory_keys={"kind": "label"}),
    "sparse": _sparse,
    "grown": _grown,
    "failed": _failed,
    "relabelled": _relabelled,
    "changed": _changed,
    "keyed": _keyed,
    "parts": _parts,
    "more": _more,
    "torn": _torn,
    "large": _dense(samples.large, 5),
    "images": _images,
    "empty": _dense(samples.fixed, 0),
    "later-version": partial(_later_version, is_sealed=False),
    "later-sealed-version": partial(_later_version, is_sealed=True),
    "later-feature": partial(_later_head, reads=["long records"]),
    "later-codec": partial(_later_head, codec="protobuf"),
    "later-entry": partial(_later_entry, version=4),
    "later-kind": partial(_later_entry, kind=7),
    "later-root-feature": partial(_later_root, reads=["long records"]),
    "later-root-key": partial(_later_root, order=[0, 1]),
    "later-column": _later_column,
    "later-flag": partial(_later_record, flags=5),
    "later-leaf": partial(_later_record, schema=1),
}


def write(name: str, path: Path) -> None:
    """Write one golden archive."""
    for cls in samples.TO_REGISTER:
        edcache.register(cls)
    ARCHIVES[name](path)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ARCHIVES:
        path = folder / f"v{format.VERSION}-{name}.zip"
        path.unlink(missing_ok=True)
        write(name, path)
        print(f"{path}: {path.stat().st_size:,} bytes")
    (folder / f"v{format.VERSION}.json").write_text(json.dumps(VERSIONS, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "conformance" / "golden")
