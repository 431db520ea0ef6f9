"""`save(skip_damaged=True)` saves what the dataset shows, less what fails, under the same numbers.

The oracle reads each sample by `ds[i]` and each label column by itself, and compares what was saved with that. Every
sample tells its key and its version, so that a value under another key is found in whatever state an archive is.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scale import scaled, seeded

import edcache
from edcache import CachedDataset, CacheWriter, KeyedCache
from edcache.errors import CorruptArchiveError, EdcacheError, PartialArchiveWarning

PAGE, SECTOR = 4096, 512
ADDED = "more", "gone"
OPTIONS: dict[str, Any] = {"progress": False, "num_workers": 0, "chunk_size": 3, "spot_check": False}


class Source:
    """Samples with keys. given: a text a sample, as "key" or "key.version"."""

    def __init__(self, given: Sequence[str]) -> None:
        self.given = given

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return sample(self.given[index])


class Keyed(Source):
    def sample_key(self, index: int) -> str:
        return self.given[index].partition(".")[0]

    def sample_version(self, index: int) -> str:
        return self.given[index].partition(".")[2]


def sample(text: str) -> dict[str, Any]:
    """Of a size that its text decides; its labels follow from it."""
    return {"id": text, "y": len(text) * 7 % 5, "pad": text.encode() * (1 + sum(text.encode()) % 40)}


def names(start: int, stop: int, version: str = "") -> list[str]:
    return [f"k{k}{version}" for k in range(start, stop)]


def fill(path: Path, source: Source, **options: Any) -> None:
    given = OPTIONS | {"in_memory_keys": ["y"]} | options
    CachedDataset(source, path, fingerprint=False, **given).close()


def append(path: Path, given: Sequence[str], seals: bool, at: int | None = None, **options: Any) -> None:
    w = CacheWriter(path, "a", chunk_size=3, publish_seconds=None, **options)
    for k, text in enumerate(given):
        w.append(sample(text)) if at is None else w.write(at + k, sample(text))
    w.close() if seals else w.abort()


def change_labels(path: Path) -> None:
    with closing(CachedDataset.from_cache(path)) as ds:
        ds.add_labels("more", [f"m{one['id']}" for one in ds]).add_labels("gone", [1] * len(ds))
        ds.drop_labels("gone")


# --- archives of every kind


def unkeyed(path: Path) -> None:
    append(path, names(0, 14), True, in_memory_keys=["y"])


def compressed(path: Path) -> None:
    append(path, names(0, 14), True, in_memory_keys=["y"], compression="zstd")


def unsealed(path: Path) -> None:
    append(path, names(0, 8), False, in_memory_keys=["y"], sync="chunk")


def grown(path: Path) -> None:
    unkeyed(path)
    append(path, names(14, 20), False)


def relabelled(path: Path) -> None:
    unkeyed(path)
    change_labels(path)
    append(path, names(14, 18), True)


def dropped(path: Path) -> None:
    relabelled(path)
    with closing(CachedDataset.from_cache(path)) as ds:
        ds.drop_labels("y")


def written_again(path: Path) -> None:
    unkeyed(path)
    append(path, names(4, 9, ".2"), True, at=4)
    append(path, names(20, 23), True, at=20)


def refilled(path: Path) -> None:
    fill(path, Keyed(names(0, 12)))
    fill(path, Keyed(["new", *names(0, 5), "k9", "k7.2"]))


def refilled_twice(path: Path) -> None:
    refilled(path)
    fill(path, Keyed(["k7.2", "k11", "new", "last", "k3"]))


def reordered(path: Path) -> None:
    fill(path, Keyed(names(0, 12)))
    fill(path, Keyed(names(0, 12)[::-1]))


def relabelled_keys(path: Path) -> None:
    refilled(path)
    change_labels(path)


def keyed_cache(path: Path) -> None:
    for start in (0, 4, 8):
        with KeyedCache(path) as cache:
            for text in names(start, start + 5):
                cache.get_or_create(text, lambda text=text: sample(text))


def keyed_cache_grown(path: Path) -> None:
    """Of so many values that a few more are not worth a seal."""
    for given in (names(0, 210), ["last"]):
        with KeyedCache(path) as cache:
            cache.get_many(given, lambda missing: list(map(sample, missing)))


ARCHIVES: list[Callable[[Path], None]] = [
    *(unkeyed, compressed, unsealed, grown, relabelled, dropped, written_again),
    *(refilled, refilled_twice, reordered, relabelled_keys, keyed_cache, keyed_cache_grown),
]


# --- damage


def headers(data: bytes) -> list[int]:
    return [at for at in range(0, len(data), PAGE) if data[at : at + 4] == b"PK\x03\x04"]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Damage of one to three kinds: bits, sectors, headers, payloads behind headers, cuts, moves."""
    new = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        kind = rng.choice(
            ["bit", "payload", "payload", "sector", "garbage", "header", "header", "cut", "move"]
        )
        at = rng.randrange(PAGE, len(data))
        if kind == "bit":
            new[min(at, len(new) - 1)] ^= 1 << rng.randrange(8)
        elif kind == "payload":
            place = rng.choice(headers(data)[1:]) + 192 + rng.randrange(400)
            new[min(place, len(new) - 1)] ^= 1 << rng.randrange(8)
        elif kind in ("sector", "garbage", "header"):
            at = at if kind != "header" else rng.choice(headers(data)[1:])
            at = min(at, len(new) - 1) // SECTOR * SECTOR
            put = rng.randbytes(SECTOR) if kind == "garbage" else bytes(SECTOR)
            if kind == "header" and rng.random() < 0.5:
                new[min(at + rng.randrange(100), len(new) - 1)] ^= 1
                continue
            new[at : at + SECTOR] = put[: len(new[at : at + SECTOR])]
        elif kind == "cut":
            del new[rng.choice([at, len(new) - rng.randrange(1, 200)]) :]
        else:
            shift = rng.choice([-1, 1]) * rng.choice([1, 64, 100, SECTOR, PAGE])
            new[at : at + max(0, -shift)] = bytes(max(0, shift))
    return bytes(new)


# --- the oracle


class Shown(NamedTuple):
    """samples: each that reads, by number. labels: each column that reads, by name. lost: columns that do not."""

    length: int
    samples: dict[int, Any]
    labels: dict[str, list[Any]]
    lost: list[str]


def shown(ds: Any) -> Shown:
    samples, labels, lost = {}, {}, []
    for i in range(len(ds)):
        try:
            samples[i] = ds[i]
        except EdcacheError:
            continue
    for name in ds.labels:
        try:
            labels[name] = ds.labels.to_list(name)
        except CorruptArchiveError:
            lost.append(name)
    return Shown(len(ds), samples, labels, lost)


def of_sample(name: str, one: Any) -> Any:
    """The label of a sample, which follows from it."""
    key, _, version = one["id"].partition(".")
    return {"y": one["y"], "key": key, "version": repr(version), "more": f"m{one['id']}", "gone": 1}[name]


def expect_saved(before: Shown, saved: Any, told: list[str], keyed: bool) -> None:
    after = shown(saved)
    assert (after.length, after.samples, after.lost) == (before.length, before.samples, [])
    assert all(one == sample(one["id"]) for one in after.samples.values())
    for name, values in before.labels.items():
        assert after.labels[name] == values
    for name in before.lost:
        if name in after.labels:  # the chunks have it
            assert name not in ADDED
        else:
            assert any(f"label column {name!r}" in text for text in told)
    for name in [*before.lost, *before.labels]:
        for i, one in after.samples.items():
            if name in after.labels and (name not in ADDED or after.labels[name][i] is not None):
                assert after.labels[name][i] == of_sample(name, one)
    if len(before.samples) < before.length and keyed:
        assert saved.missing.tolist() == sorted({*range(before.length)} - before.samples.keys())


def opened(path: Any) -> Any:
    return CachedDataset.from_cache(path, allow_partial=True)


def tried(path: Path, target: Path, view: Callable[[Any], Any], rng: random.Random) -> str:
    """Save one damaged state; returns what came of it."""
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        try:
            with closing(opened(path)) as ds:
                before = shown(view(ds))
        except EdcacheError:
            return "refused"
        with closing(opened(path)) as ds:
            view(ds).save(target, skip_damaged=True)
        told = [str(one.message) for one in record if one.category is PartialArchiveWarning]
    with closing(opened(target)) as saved:
        expect_saved(before, saved, told, True)
    assert edcache.verify(target).problems == []
    target.unlink()
    try:
        CachedDataset.from_cache(path, allow_partial=False).close()
    except CorruptArchiveError:
        assert any("read are" in text for text in told)
        return "older state"
    except PartialArchiveWarning:
        pass
    return "less" if len(before.samples) < before.length or before.lost else "all"


VIEWS: list[Callable[[Any], Any]] = [lambda ds: ds, lambda ds: ds, lambda ds: ds[::2], lambda ds: ds[::-1]]


@pytest.mark.parametrize("make", ARCHIVES, ids=lambda make: make.__name__)
def test_what_is_saved_is_what_is_shown(make: Callable[[Path], None], tmp_path: Path, tally: Any) -> None:
    path, target = tmp_path / "a.zip", tmp_path / "b.zip"
    make(path)
    data, rng, came = path.read_bytes(), seeded(f"salvage {make.__name__}"), Counter[str]()
    for _ in range(scaled(800, 16)):
        path.write_bytes(damaged(data, rng))
        came[tried(path, target, rng.choice(VIEWS), rng)] += 1
        tally("damaged archives saved")
    assert came["refused"] < came.total() / 4


def test_joined_archives_are_saved_each_as_it_is_shown(tmp_path: Path, tally: Any) -> None:
    paths, target, rng = (
        [tmp_path / "a.zip", tmp_path / "b.zip"],
        tmp_path / "c.zip",
        seeded("joined salvage"),
    )
    sound = [made(make, path) for make, path in zip((refilled, relabelled), paths, strict=True)]
    for _ in range(scaled(800, 16)):
        for path, data in zip(paths, sound, strict=True):
            path.write_bytes(damaged(data, rng))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with closing(opened(list(map(str, paths)))) as ds:
                    before = [shown(part) for part in ds.parts]
                    ds.save(target, skip_damaged=True)
            except CorruptArchiveError:
                continue
        with closing(opened(target)) as saved:
            found, first = shown(saved), 0
            for part in before:
                samples = {k - first: one for k, one in found.samples.items() if 0 <= k - first < part.length}
                assert samples == part.samples
                for name, values in part.labels.items():
                    assert found.labels[name][first : first + part.length] == values
                first += part.length
            assert found.length == first
        target.unlink()
        tally("joined archives saved")


def made(make: Callable[[Path], None], path: Path) -> bytes:
    make(path)
    return path.read_bytes()


# --- each part by itself


def entry(data: bytes, name: str) -> int:
    """The offset of the last entry of a name."""
    return next(at for at in reversed(headers(data)) if data[at + 30 :].startswith(name.encode()))


def saved_of(path: Path) -> Iterator[Any]:
    target = path.with_suffix(".saved")
    with closing(opened(path)) as ds:
        ds.save(target, skip_damaged=True)
    return closing(opened(target))


def test_a_row_of_the_index_is_one_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    data = bytearray(made(refilled, path))
    row = entry(data, "index.rows") + 192 + 3 * 24
    for at, mask in [
        (0, 1),
        (8, 1),
        (15, 128),
        (16, 1),
        (20, 1),
        (21, 128),
        (22, 1),
        (22, 2),
        (22, 4),
        (23, 64),
    ]:
        data[row + at] ^= mask
        path.write_bytes(data)
        with pytest.warns(PartialArchiveWarning, match="the records of 1 of 8 samples are damaged .*: 3"):
            saved = saved_of(path)
        with saved as ds:
            assert ds.missing.tolist() == [3]
            assert ds.labels.to_list("key") == ["new", *names(0, 5), "k9", "k7"]
        path.with_suffix(".saved").unlink()
        data[row + at] ^= mask
    data[row : row + 24] = bytes(24)
    path.write_bytes(data)
    with pytest.warns(PartialArchiveWarning, match="1 of 8 samples are damaged"):
        saved_of(path).__exit__()


def test_the_keys_of_an_archive_in_another_order_are_those_of_the_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    data = bytearray(made(refilled_twice, path))
    data[entry(data, "labels/key.arrow") + 400] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptArchiveError), closing(opened(path)) as ds:
        ds.labels["key"]
    with saved_of(path) as ds:
        assert ds.complete
        assert [ds.by_key(key)["id"] for key in ("k7", "last", "k3")] == ["k7.2", "last", "k3"]
    # The copy is filled on by keys.
    fill(path.with_suffix(".saved"), Keyed(["k3", "more", "k7.2"]))
    with closing(opened(path.with_suffix(".saved"))) as ds:
        assert [one["id"] for one in ds] == ["k3", "more", "k7.2"]


def test_no_label_is_taken_from_the_record_that_a_damaged_row_names(tmp_path: Path) -> None:
    """The column fails, so that its values are taken from the chunks."""
    path = tmp_path / "a.zip"
    with CacheWriter(path, in_memory_keys=["y"], chunk_size=2) as writer:
        writer.extend({"y": k, "text": f"sample {k}"} for k in range(6))
    data = bytearray(path.read_bytes())
    rows = entry(data, "index.rows") + 192
    data[rows + 24 : rows + 48] = data[rows + 72 : rows + 96]  # the row of sample 3 in the place of 1
    data[entry(data, "labels/y.arrow") + 300] ^= 1
    path.write_bytes(data)
    with pytest.warns(PartialArchiveWarning, match="1 of 6 samples are damaged .*: 1"):
        saved = saved_of(path)
    with saved as ds:
        assert ds.missing.tolist() == [1]
        assert [ds[k]["y"] for k in (0, 2, 3, 4, 5)] == [0, 2, 3, 4, 5]
        assert [*ds.labels["y"]] == [0, None, 2, 3, 4, 5]


def test_a_chunk_whose_table_fails_is_named_by_who_saves_without_it(tmp_path: Path) -> None:
    path, out = tmp_path / "a.zip", tmp_path / "b.zip"
    writer = edcache.CacheWriter(path, chunk_size=2)
    writer.extend({"id": k} for k in range(6))
    writer.abort()
    data = bytearray(path.read_bytes())
    at = data.index(b"chunks/00000002") - 30
    data[at + 200] ^= 1
    path.write_bytes(data)
    with closing(opened(path)) as ds:
        shown = [k for k in range(6) if k not in ds.missing]
        with pytest.warns(PartialArchiveWarning, match=r"chunks/00000002 at offset .* were left out"):
            ds.save(out, skip_damaged=True)
    with closing(opened(out)) as ds:
        assert [ds[k]["id"] for k in range(6) if k not in ds.missing] == shown == [0, 1, 4, 5]


def test_an_older_state_is_named_with_what_was_found(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    data = bytearray(made(refilled, path))
    data[entry(data, "root.json") + 300] ^= 1
    path.write_bytes(data)
    told = (
        r"a\.zip: root\.json at offset [\d,]+ fails its crc32: it is damaged there; read are the seal at offset "
        r"[\d,]+ and 1 chunks, with 0 chunks found behind the damage: 14 of 14 samples; if a seal is lost, this"
    )
    with pytest.warns(PartialArchiveWarning, match=told):
        ds = opened(path)
    assert [one["id"] for one in ds] == [*names(0, 12), "new", "k7.2"]


def test_who_saves_a_keyed_cache_that_is_open_is_told_how_to_seal_it(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    keyed_cache_grown(path)
    with (
        closing(opened(path)) as ds,
        pytest.raises(EdcacheError, match=r"close\(seal=True\) of its KeyedCache"),
    ):
        ds.save(tmp_path / "b.zip")


def damaged_root(path: Path) -> bytes:
    data = bytearray(made(refilled, path))
    data[entry(data, "root.json") + 300] ^= 1
    path.write_bytes(data)
    return bytes(data)


OLDER = "if a seal is lost, this is an older state"


def test_numpy_shows_of_a_damaged_archive_what_a_dataset_shows(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    damaged_root(path)
    with pytest.raises(CorruptArchiveError):
        edcache.numpy.open(path)
    with pytest.warns(PartialArchiveWarning, match=OLDER):
        arrays = edcache.numpy.open(path, allow_partial=True)
    with pytest.warns(PartialArchiveWarning, match=OLDER):
        ds = opened(path)
    with arrays, closing(ds):
        assert [arrays[k]["id"] for k in range(len(arrays))] == [one["id"] for one in ds]
        assert arrays.labels["y"].tolist() == ds.labels["y"].tolist()


def test_a_damaged_archive_that_is_saved_over_by_a_damaged_one_is_read_with_a_warning(tmp_path: Path) -> None:
    path, other = tmp_path / "a.zip", tmp_path / "b.zip"
    other.write_bytes(damaged_root(path))
    with pytest.warns(PartialArchiveWarning, match=OLDER):
        ds = opened(path)
    with closing(ds):
        before = [one["id"] for one in ds]
        other.replace(path)
        with pytest.warns(PartialArchiveWarning, match=OLDER):
            assert ds.refresh()
        assert [one["id"] for one in ds] == before
