"""A server, or a proxy before it, that answers wrongly now and then: all samples are right, and nothing is an error."""

import itertools
from contextlib import contextmanager

import numpy as np
import pytest
from damage import flip_record
from far import is_sample, make, sample
from range_server import serving
from scale import SEED, scaled, thinned

import edcache
from edcache.errors import CorruptArchiveError, CorruptRecordError, StaleArchiveError

COUNT, NBYTES = 1200, 12_000


def flipped(handler, start, end):
    body = bytearray(handler.served.data[start:end])
    body[len(body) // 2 :: 4096] = bytes(x ^ 1 for x in body[len(body) // 2 :: 4096])
    handler.answer(start, end, body=bytes(body))


def shifted(handler, start, end):
    handler.answer(start, end, body=(b"\0" + handler.served.data[start:end])[: end - start])


def html(handler, start, end):
    page = b"<html><body>502 Bad Gateway</body></html>"
    handler.answer(start, end, body=(page * ((end - start) // len(page) + 1))[: end - start])


def other_total(handler, start, end):
    total = len(handler.served.data) + 77
    handler.answer(start, end, headers={"Content-Range": f"bytes {start}-{end - 1}/{total}"})


KINDS = {"flipped": flipped, "shifted": shifted, "html": html, "other total": other_total}


@contextmanager
def wrong_now_and_then(data, kinds, first, step=10):
    """A server whose answer number `first`, and each `step`-th behind it, is wrong; the kinds take turns."""
    turns = itertools.cycle(kinds)
    with serving(data) as served:
        asked = itertools.count()

        def fault(handler, start, end):
            with served.lock:
                number = next(asked)
                wrong = next(turns) if number % step == first % step else None
            end = min(end, len(served.data))
            if wrong is not None:
                KINDS[wrong](handler, start, end)
            return wrong is not None

        served.faults.append(fault)
        yield served


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make(tmp_path_factory.mktemp("far") / "a.zip", COUNT, NBYTES, chunk=100)


def orders(ds):
    sampler = edcache.samplers
    yield "sequential", range(len(ds))
    yield "chunks", list(sampler.ChunkShuffle(ds, seed=SEED))
    yield "random", np.random.default_rng(SEED).permutation(len(ds)).tolist()


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("is_copied", [True, False])
@pytest.mark.parametrize("kind", thinned([*KINDS, "all"], 1))
def test_every_tenth_answer_is_wrong(data, tmp_path, kind, is_copied, order):
    local = tmp_path / "ssd" if is_copied else False
    with wrong_now_and_then(data, [*KINDS] if kind == "all" else [kind], first=order + 1) as served:
        ds = edcache.CachedDataset.from_cache(served.url, local=local)
        assert ds.labels["y"].tolist() == [i % 5 for i in range(COUNT)]
        _, indices = list(orders(ds))[order]
        for k in range(0, COUNT, 40):
            batch = ds.batch(indices[k : k + 40])
            assert batch["n"].tolist() == list(indices[k : k + 40])
            assert (batch["x"] == (batch["n"] % 251)[:, None]).all()
        assert len(served.requests) > 10
        # The head and the end come with each opening.
        assert served.sent - 3 * 69_632 <= 1.3 * len(data)
        ds.close()


# ------------------------------------------------------------------------------------------ each kind of bytes


def keyed(path):
    """Label columns, an index of more than 256 KiB, of which runs are fetched, and a table of keys."""
    with edcache.CacheWriter(path, in_memory_keys=["n", "key"], chunk_size=6000) as writer:
        writer.extend({"n": i, "key": f"k{i}", "x": np.full(40, i % 251, np.uint8)} for i in range(12_000))
    return path.read_bytes()


def grown(path):
    """A sealed archive to which chunks were added, without a seal."""
    make(path, 60, chunk=20)
    with edcache.CacheWriter(path, "a", chunk_size=20, in_memory_keys=["y"]) as writer:
        writer.extend(map(sample, range(60, 120)))
        writer.flush()
        return path.read_bytes()


def read_keyed(url, local, tmp_path):
    ds = edcache.CachedDataset.from_cache(url, local=local)
    assert ds.by_key("k7003")["n"] == 7003
    assert ds.labels["n"].tolist() == list(range(12_000))
    for k in (3, 7000, 11_999):
        assert ds[k]["n"] == k
        assert (ds[k]["x"] == k % 251).all()
    assert ds.batch(range(0, 12_000, 1000))["n"].tolist() == list(range(0, 12_000, 1000))
    ds.close()


def read_grown(url, local, tmp_path):
    ds = edcache.CachedDataset.from_cache(url, local=local, allow_partial=True)
    assert len(ds) == 120
    assert ds.labels["y"].tolist() == [i % 5 for i in range(120)]
    assert all(is_sample(ds[i], i) for i in range(0, 120, 7))
    ds.close()


def copy(url, local, tmp_path):
    target = tmp_path / "copied"
    assert edcache.verify(edcache.copy_to_local(url, f"{target}/", progress=False)).sound


def check(url, local, tmp_path):
    report = edcache.verify(url)
    assert report.problems == []


def check_digest(url, local, tmp_path):
    known = edcache.digest(url)
    assert len(edcache.CachedDataset.from_cache(url, local=False, expected_digest=known)) == COUNT


def read_arrays(url, local, tmp_path):
    with edcache.numpy.open(url, local=local) as ds:
        assert ds.batch(range(0, COUNT, 100))["n"].tolist() == list(range(0, COUNT, 100))


def read_joined(url, local, tmp_path):
    joined = edcache.concat([edcache.CachedDataset.from_cache(url, local=local) for _ in range(2)])
    assert joined.batch([5, COUNT + 5])["n"].tolist() == [5, 5]


def preload(url, local, tmp_path):
    ds = edcache.CachedDataset.from_cache(url, preload="shm")
    assert ds.batch(range(0, COUNT, 10))["n"].tolist() == list(range(0, COUNT, 10))
    ds.close()


def look_ahead(url, local, tmp_path):
    ds = edcache.CachedDataset.from_cache(url, local=local)
    seen = [batch["n"] for batch in ds.loader(50, shuffle=True)]
    assert sorted(np.concatenate(seen).tolist()) == list(range(COUNT))
    ds.close()


def save(url, local, tmp_path):
    ds = edcache.CachedDataset.from_cache(url, local=local)
    ds.save(tmp_path / "saved.zip", force=True)
    saved = edcache.CachedDataset.from_cache(tmp_path / "saved.zip")
    assert all(is_sample(saved[i], i, NBYTES) for i in range(0, COUNT, 50))


DOORS = {
    "keyed": (keyed, read_keyed),
    "grown": (grown, read_grown),
    **{
        use.__name__: (lambda path: make(path, COUNT, NBYTES, chunk=100), use)
        for use in (copy, check, check_digest, read_arrays, read_joined, preload, look_ahead, save)
    },
}


@pytest.mark.parametrize("is_copied", [True, False])
@pytest.mark.parametrize("kind", thinned(KINDS, 1))
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.filterwarnings("ignore::edcache.errors.PartialArchiveWarning")
def test_any_answer_may_be_wrong(tmp_path, door, kind, is_copied):
    """Answer 0, 1, 2, ... in turn, until more than are asked for; and each seventh one."""
    write_it, use = DOORS[door]
    data = write_it(tmp_path / "a.zip")
    for number in [*range(scaled(12, 3)), None]:
        local = str(tmp_path / f"ssd{number}") if is_copied else False
        first, step = (number, 1 << 40) if number is not None else (1, 7)
        with wrong_now_and_then(data, [kind], first, step) as served:
            use(served.url, local, tmp_path / f"out{number}")


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_damaged_object_is_an_error_that_names_it(data, tmp_path, is_copied):
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    flip_record(path, 17)
    local = tmp_path / "ssd" if is_copied else False
    with serving(path.read_bytes()) as served:
        ds = edcache.CachedDataset.from_cache(served.url, local=local)
        offset, nbytes = (
            int(ds._archive.reader.session.index.all_rows()[17][name]) for name in ("offset", "nbytes")
        )
        assert ds[16]["n"] == 16
        served.forget()
        with pytest.raises(
            CorruptRecordError, match=rf"^{served.url}: record 17 at offset .* fails its crc32"
        ):
            ds.batch([16, 17])
        asked = [one for one in served.requests if one[1] <= offset and offset + nbytes <= one[2]]
        assert len(asked) >= 5
        assert ds.batch([15, 18])["n"].tolist() == [15, 18], "the copy stays"
        with pytest.raises(CorruptArchiveError, match=rf"^{served.url}: .* however often it is asked for"):
            edcache.copy_to_local(served.url, f"{tmp_path}/copied/", progress=False)


def test_another_total_is_believed_if_it_comes_again(data, tmp_path):
    with serving(data) as served:
        ds = edcache.CachedDataset.from_cache(served.url, local=False)
        served.faults = [lambda handler, start, end: other_total(handler, start, end) or True]
        with pytest.raises(StaleArchiveError, match="bytes now"):
            ds[800]


def test_two_processes_share_a_copy_that_a_wrong_answer_was_written_to(data, tmp_path):
    with wrong_now_and_then(data, ["html"], first=3, step=1 << 40) as served:
        one = edcache.CachedDataset.from_cache(served.url, local=tmp_path / "ssd")
        assert one[600]["n"] == 600
        other = edcache.CachedDataset.from_cache(served.url, local=tmp_path / "ssd")
        for ds in (other, one):
            assert all(is_sample(ds[i], i, NBYTES) for i in range(590, 620))
