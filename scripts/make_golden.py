"""Write the golden archives of tests/conformance/golden/: scripts/generate golden FOLDER

Run it once per format version; files of a released version are never written again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import zstandard

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "conformance")]

import golden_samples as samples  # noqa: E402

import edcache  # noqa: E402
from edcache import format  # noqa: E402
from edcache.reader import Reader  # noqa: E402
from edcache.writer.appender import Appender  # noqa: E402
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
        appender = Appender.open(path, Reader(path).head, mode="a", sync="never")
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
    appender = Appender.open(path, Reader(path).head, mode="a", sync="never")
    seal(appender, order=Order(np.array(samples.KEYED), {"keys": "in another order"}))
    appender.close()


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
    "torn": _torn,
    "large": _dense(samples.large, 5),
    "images": _images,
    "empty": _dense(samples.fixed, 0),
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
