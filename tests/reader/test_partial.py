"""Half an archive is never taken for a whole one: cut, zeroed or flipped, by path, list or URL.

For each of them: an error, or the warning, or everything is there and equal. The oracle is what was written.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference
from cli_runner import error_of, run
from damage import flipped
from range_server import Served, serving
from scale import SEED, scaled
from written import write

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import (
    ArchiveError,
    CorruptArchiveError,
    EdcacheError,
    MissingSampleError,
    OptionError,
    PartialArchiveWarning,
)
from edcache.reader import Reader

COUNT, PAGE = 40, 4096


def sample(index: int) -> dict[str, Any]:
    return {"x": np.arange(index, index + 60.0), "y": index}


class Source:
    """Fails at an index, or kills its process there."""

    def __init__(self, fails_at: int | None = None, dies_at: int | None = None) -> None:
        self.fails_at, self.dies_at = fails_at, dies_at

    def __edcache_fingerprint__(self) -> str:
        return "samples"

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.fails_at:
            raise ValueError("no such sample")
        if index == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample(index)


def by_writer(path: Path) -> None:
    write(path, map(sample, range(COUNT)), chunk_size=8, publish_seconds=None, in_memory_keys=["y"])


def by_fill(path: Path) -> None:
    CachedDataset(Source(), path, chunk_size=8, in_memory_keys=["y"])


MAKERS = {"writer": by_writer, "fill": by_fill}


class Whole(NamedTuple):
    data: bytes
    chunks: list[dict[str, Any]]  # offset, nbytes of the header and table_nbytes, of each chunk


@pytest.fixture(scope="module", params=list(MAKERS))
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    path = tmp_path_factory.mktemp("whole") / "a.zip"
    MAKERS[request.param](path)
    chunks = [entry.fields for entry in reference.entries(path) if entry.fields["kind"] == reference.CHUNK]
    assert len(chunks) == COUNT // 8
    return Whole(path.read_bytes(), chunks)


def unsealed(whole: Whole, chunks: int) -> bytes:
    """What is there up to the end of so many chunks."""
    ends = [chunk["offset"] for chunk in whole.chunks[1:]] + [end_of_log(whole)]
    return whole.data[: ends[chunks - 1]]


def end_of_log(whole: Whole) -> int:
    return int(whole.chunks[-1]["next"])


def damaged(whole: Whole, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Cut at every page and between, zeroed, with bits flipped in tables, headers and the seal."""
    data = whole.data
    cuts = {*range(0, len(data), PAGE), *(rng.randrange(len(data)) for _ in range(scaled(12)))}
    for size in sorted(cuts):
        yield f"cut to {size}", data[:size]
    for start in sorted(rng.sample(range(PAGE, len(data), PAGE), scaled(8))):
        yield f"zeros from {start}", data[:start] + bytes(len(data) - start)
        end = min(len(data), start + PAGE * rng.randrange(1, 4))
        yield f"zeros {start} to {end}", data[:start] + bytes(end - start) + data[end:]
    log = data[: end_of_log(whole)]
    for number in (len(whole.chunks) // 2, len(whole.chunks) - 1):
        chunk = whole.chunks[number]
        table = chunk["offset"] + chunk["nbytes"]
        for place in (chunk["offset"] + 60, table + 8, table + chunk["table_nbytes"] // 2):
            yield f"a bit at {place} of chunk {number}", flipped(log, place, 1 << rng.randrange(8))
            yield f"a bit at {place} of chunk {number}, sealed", flipped(data, place, 1 << rng.randrange(8))


def judge(opened: Callable[[], Any]) -> str:
    """ "error", "warning", "whole", or what is wrong."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ds = opened()
            if isinstance(ds, Reader):
                complete, count, read = ds.session.complete, ds.session.length, ds.session.read
            else:
                complete, count, read = ds.complete, len(ds), ds.__getitem__
            found = [read(index) for index in range(count)]
            ds.close()
        except EdcacheError:
            return "error"
    if any(issubclass(warning.category, PartialArchiveWarning) for warning in caught):
        return "warning" if not complete else "a warning, and complete"
    if count != COUNT or not all(equal(a, sample(i)) for i, a in enumerate(found)):
        return f"silent: {count} samples, complete={complete}"
    return "whole"


def equal(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a["x"], b["x"]) and a["y"] == b["y"])


def ways(path: Path, served: Served) -> dict[str, Callable[[], Any]]:
    return {
        "path": lambda: CachedDataset.from_cache(path),
        "list": lambda: CachedDataset.from_cache([path]),
        "http": lambda: CachedDataset.from_cache(served.url),
        "reader": lambda: Reader(path),
        "preload": lambda: CachedDataset.from_cache(path, preload="shm"),
    }


def test_damaged_archives_are_never_whole_and_silent(whole: Whole, path: Path, tally: Any) -> None:
    rng, wrong, tried = random.Random(SEED), [], 0
    outcomes: set[str] = set()
    with serving(b"") as served:
        for number, (what, data) in enumerate(damaged(whole, rng)):
            path.write_bytes(data)
            served.data, served.etag = data, f"v{number}"
            for way, opened in ways(path, served).items():
                if way == "preload" and number % 8:
                    continue
                tried += 1
                os.utime(path, ns=(tried, tried))  # each is another state, of which is warned again
                outcome = judge(opened)
                outcomes.add(outcome)
                if outcome not in ("error", "warning", "whole"):
                    wrong.append(f"{what}, {way}: {outcome}")
    assert not wrong, "\n".join(wrong)
    assert outcomes == {"error", "warning", "whole"}
    tally("damaged archives opened", tried)


def test_the_samples_of_a_damaged_last_chunk_are_missing_as_those_of_any_other(
    whole: Whole, path: Path
) -> None:
    rng = random.Random(SEED)
    for number, chunk in enumerate(whole.chunks):
        place = chunk["offset"] + chunk["nbytes"] + 9
        path.write_bytes(flipped(unsealed(whole, len(whole.chunks)), place, 1 << rng.randrange(8)))
        with pytest.warns(PartialArchiveWarning, match=rf"{chunk['name']} at offset .* fails its crc32"):
            ds = CachedDataset.from_cache(path)
        assert len(ds) == COUNT
        assert ds.missing.tolist() == list(range(8 * number, 8 * number + 8))
        with pytest.raises(MissingSampleError):
            ds[8 * number]
        with pytest.raises(CorruptArchiveError, match="fails its crc32"):
            CacheWriter(path, "a")


def test_the_warning_says_what_is_there_and_what_to_do(whole: Whole, path: Path) -> None:
    path.write_bytes(unsealed(whole, 2))
    with pytest.warns(PartialArchiveWarning) as caught:
        ds = CachedDataset.from_cache(path)
    declared = ds._archive.reader.session.head.length
    count = "16 samples" if declared is None else "16 of 40 samples"
    assert str(caught[0].message) == (
        f"{path}: not sealed: its writer was killed or is still at work, or the file was cut; {count} are "
        'there. Fill it again: CachedDataset(source, path), or CacheWriter(path, "a"); or keep what is there '
        f'in a sealed archive: "edcache copy {path} -o NEW --skip-damaged"; or take it as it is: '
        "allow_partial=True"
    )
    assert not ds.complete
    assert ds._archive.reader.session.has_all == (declared is None)
    assert ("not sealed" if declared is None else "24 missing") in repr(ds)
    with pytest.raises(OptionError, match="not sealed, so samples may|24 samples are missing"):
        ds.warmup()
    # Once a process: not again, nor by views, copies and pickles.
    again = CachedDataset.from_cache(path)
    assert len(pickle.loads(pickle.dumps(again))) == len(again[:]) == len(again)
    CachedDataset.from_cache([path])
    # Another state of it is told.
    path.write_bytes(unsealed(whole, 3))
    with pytest.warns(PartialArchiveWarning):
        CachedDataset.from_cache(path)
    CachedDataset.from_cache(path, allow_partial=True)


def test_who_writes_is_asked_and_a_living_writer_is_no_reason_to_warn(path: Path) -> None:
    writer = CacheWriter(path, chunk_size=4, publish_seconds=None)
    writer.extend(map(sample, range(8)))
    ds = CachedDataset.from_cache(path)
    assert (len(ds), ds.complete) == (8, False)
    assert edcache.verify(path).sound
    writer.abort()
    with pytest.warns(PartialArchiveWarning):
        CachedDataset.from_cache(path)
    assert not edcache.verify(path).sound
    write(path, [sample(8)], "a")
    assert CachedDataset.from_cache(path).complete
    assert ds.refresh()
    assert ds.complete


def test_a_killed_fill_goes_on_without_a_word(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    filler = context.Process(target=CachedDataset, args=(Source(dies_at=25), path), kwargs={"chunk_size": 8})
    filler.start()
    filler.join()
    assert filler.exitcode == -signal.SIGKILL
    with pytest.warns(PartialArchiveWarning, match="24 of 40 samples"):
        CachedDataset.from_cache(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = CachedDataset(Source(), path)
    assert ds.complete
    assert [s["y"] for s in ds] == list(range(COUNT))


def test_lazy_and_skipped_samples_are_told_by_the_call_that_makes_them(path: Path) -> None:
    ds = CachedDataset(Source(), path, lazy=True)
    ds[4]
    ds.close()
    CachedDataset(Source(3), path, on_error="skip").close()
    assert not CachedDataset(Source(3), path, on_error="skip").complete


def test_what_seals_asks_before_it_takes_half(whole: Whole, path: Path, tmp_path: Path) -> None:
    data = unsealed(whole, 2)
    path.write_bytes(data)
    ds = CachedDataset.from_cache(path, allow_partial=True)
    with pytest.raises(ArchiveError, match="have no record|is not sealed, so samples may be missing"):
        ds.save(path)
    assert path.read_bytes() == data
    with pytest.raises(OptionError, match="not sealed"):
        edcache.copy_to_local(path, tmp_path / "copies")
    with pytest.warns(PartialArchiveWarning, match="not sealed"):
        CachedDataset.from_cache(path, local=tmp_path / "copies")
    ds.save(path, skip_damaged=True)
    assert edcache.verify(path).sealed


def test_the_command_line_says_that_it_is_not_whole(whole: Whole, path: Path, tmp_path: Path) -> None:
    path.write_bytes(unsealed(whole, 2))
    said = run("verify", path, code=1).stdout
    assert "not whole" in said
    assert "not sealed" in said
    assert edcache.verify(path).problems == []
    out = tmp_path / "out"
    assert "--skip-damaged" in error_of("copy", path, "-o", out)
    assert not out.exists()
    run("copy", path, "-o", path, "--skip-damaged")
    run("verify", path)
    run("info", path)


@pytest.mark.parametrize(("data", "what"), [(b"", "it is empty"), (b"text" * 100, "not an edcache archive")])
def test_what_is_no_archive_is_refused_also_if_a_part_would_do(tmp_path, data, what):
    (tmp_path / "a.zip").write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CorruptArchiveError, match=f"a.zip: {what}"):
            CachedDataset.from_cache(tmp_path / "a.zip", allow_partial=True)


def test_an_empty_file_is_one_whose_writer_begins_and_can_be_filled(path):
    path.touch()
    with pytest.raises(
        CorruptArchiveError, match="its writer begins, or died before .* bytes; try again, or fill it"
    ):
        CachedDataset.from_cache(path)
    assert CachedDataset([1, 2, 3], path)[2] == 3
