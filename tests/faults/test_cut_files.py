"""Files that were cut, or whose first page is another: whoever writes them keeps what was whole, or changes no byte.

The oracle knows nothing of the format. Each sample has a text of its own; a text that stood in a file before still
stands in it afterwards, or in a file beside. After an error all files are as before.
"""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from damage import flipped
from scale import scaled, seeded
from systems import Rebooted, System, replace_system

import edcache
from edcache import CachedDataset, CacheWriter, KeyedCache
from edcache.errors import CorruptArchiveError, EdcacheError, OptionError

PAGE, SECTOR = 4096, 512
BOOTS = {"same boot": System, "later boot": Rebooted}
MAGIC = b"PK\3\4"

pytestmark = [
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore::edcache.errors.PartialArchiveWarning"),
    pytest.mark.filterwarnings("ignore:.*says nothing about the source"),
]


def text_of(name: object) -> str:
    return f"<the text of {name}>" * 30


def sample(name: object) -> dict[str, Any]:
    return {"name": str(name), "text": text_of(name)}


class Named:
    """Samples with keys."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = [*names]

    def __len__(self) -> int:
        return len(self.names)

    def sample_key(self, index: int) -> str:
        return self.names[index]

    def __getitem__(self, index: int) -> dict[str, Any]:
        return sample(self.names[index])


OLD = [f"old {k}" for k in range(6)]
NEW = [*OLD[::-1], *(f"new {k}" for k in range(40))]
KEYS: dict[str, Any] = {"key": lambda made: made["name"], "version": lambda made: ""}
OPTIONS: dict[str, Any] = {"progress": False, "chunk_size": 8}


def keyed(path: Path) -> None:
    """A refill: new samples, and a new order."""
    CachedDataset(Named(OLD), path, **OPTIONS).close()
    CachedDataset(Named(NEW), path, **OPTIONS).close()


def grown(path: Path) -> None:
    """A seal, chunks behind it, and a second seal."""
    for names in (OLD, NEW[6:]):
        with CacheWriter(path, "a", in_memory_keys=KEYS, chunk_size=8, publish_seconds=None) as w:
            w.extend(map(sample, names))


def growing(path: Path) -> None:
    """A seal, and chunks behind it."""
    grown(path)
    w = CacheWriter(path, "a", in_memory_keys=KEYS, chunk_size=8, publish_seconds=None)
    w.extend(sample(f"later {k}") for k in range(20))
    w.abort()


def append(path: Path) -> None:
    with CacheWriter(path, "a", in_memory_keys=KEYS) as w:
        w.append(sample("appended"))


def refill(path: Path) -> None:
    CachedDataset(Named([*NEW, "another"]), path, **OPTIONS).close()


def label(path: Path) -> None:
    with closing(CachedDataset.from_cache(path, allow_partial=True)) as cache:
        cache.add_labels("number", [*range(len(cache))])


def add_value(path: Path) -> None:
    with KeyedCache(path) as cache:
        cache.get_or_create("a key", lambda: text_of("a value"))


def refuse_labels(path: Path) -> None:
    """Functions made the labels, and none are given."""
    with pytest.raises(EdcacheError):
        CacheWriter(path, "a")
    raise CorruptArchiveError("as it must")


def refuse_codec(path: Path) -> None:
    with pytest.raises(EdcacheError):
        CacheWriter(path, "a", in_memory_keys=KEYS, codec="pickle")
    raise CorruptArchiveError("as it must")


def refill_from_another(path: Path) -> None:
    """Refused, where the archive says what made it."""
    CachedDataset(Named(NEW), path, fingerprint={"made": "otherwise"}, **OPTIONS).close()


KINDS = {make.__name__: make for make in (keyed, grown, growing)}
WRITERS = {
    one.__name__: one
    for one in (append, refill, label, add_value, refuse_labels, refuse_codec, refill_from_another)
}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def headers(data: bytes) -> list[int]:
    return [at for at in range(0, len(data), PAGE) if data[at : at + 4] == MAGIC]


def of_seals(data: bytes) -> Iterator[bytes]:
    """The whole entries of seals: name, header and payload."""
    for at in headers(data):
        (name,) = struct.unpack_from("<H", data, at + 26)
        begin = data[at : at + 50 + name]
        (nbytes,) = struct.unpack_from("<Q", data.ljust(at + 192, b"\0"), at + 34 + name)
        header = -(-max(192, 146 + name) // 64) * 64
        if begin[30:40] in (b"index.rows", b"index.keys", b"labels/key") and at + header + nbytes <= len(
            data
        ):
            yield data[at : at + header + nbytes]


def readable(path: Path) -> list[str] | None:
    """The names of the samples that read; None if it does not open."""
    found = []
    try:
        with closing(CachedDataset.from_cache(path, allow_partial=True)) as cache:
            for index in range(len(cache)):
                try:
                    made = cache[index]
                except EdcacheError:
                    continue
                assert made["text"] == text_of(made["name"])
                found.append(made["name"])
    except EdcacheError:
        return None
    return sorted(found)


def kept(folder: Path, data: bytes, write: Callable[[Path], None], names: Iterable[str]) -> Iterator[str]:
    """What a writer lost of a file of these bytes."""
    for path in folder.iterdir():
        path.unlink()
    path = folder / "a.zip"
    path.write_bytes(data)
    before = {name for name in names if text_of(name).encode() in data}
    try:
        write(path)
    except EdcacheError:
        if files(folder) != {"a.zip": data}:
            yield f"it refused, and there is {[(name, len(one)) for name, one in files(folder).items()]}"
        return
    after = [*files(folder).values()]
    lost = [name for name in before if not any(text_of(name).encode() in one for one in after)]
    if lost:
        yield f"it went on, and lost {len(lost)} of {len(before)}"
    cut = sum(not any(entry in one for one in after) for entry in of_seals(data))
    if cut:
        yield f"it went on, and cut off {cut} entries of a seal"


@pytest.mark.parametrize("boot", BOOTS)
@pytest.mark.parametrize("kind", KINDS)
def test_of_an_archive_that_was_cut_no_writer_takes_what_is_whole(
    tmp_path: Path, kind: str, boot: str, tally: Any
) -> None:
    """At each page, and within headers, tables, records and the ends of seals."""
    made, folder = tmp_path / "made.zip", tmp_path / "folder"
    folder.mkdir()
    KINDS[kind](made)
    data, rng, problems = made.read_bytes(), seeded(f"cuts {kind} {boot}"), list[str]()
    first = data.index(b"edcache 3 root.json")
    starts = [at for at in headers(data) if at > first]
    cuts = {*range(first // PAGE * PAGE + PAGE, len(data), PAGE), *(at + 400 for at in starts), len(data) - 1}
    cuts |= {at + rng.randrange(PAGE) for at in starts} | {at + 100 for at in starts}
    # Samples of a growth that a power cut took a part of are kept first: then no seal is there to take labels.
    writers = [name for name in WRITERS if name != "label" or boot == "same boot"]
    tries = [(cut, name) for cut in sorted(cuts) if cut < len(data) for name in writers]
    names = [*OLD, *NEW, *(f"later {k}" for k in range(20))]
    for cut, name in rng.sample(tries, min(len(tries), scaled(500, 30))):
        with replace_system(BOOTS[boot]()):
            told = list(kept(folder, data[:cut], WRITERS[name], names))
        problems += [f"cut to {cut:,} of {len(data):,}, {name}: {one}" for one in told]
    assert not problems, "\n".join(problems)
    tally("archives that were cut", min(len(tries), scaled(500, 30)))


@pytest.mark.parametrize("name", ["append", "refill", "refuse_labels"])
@pytest.mark.parametrize("where", ["root.json", "index.rows"])
def test_a_copy_of_a_keyed_archive_that_broke_off_within_its_last_seal_is_refused(
    tmp_path: Path, where: str, name: str
) -> None:
    """A kill leaves no header of a seal before the ones behind it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    keyed(tmp_path / "made.zip")
    data = (tmp_path / "made.zip").read_bytes()
    at = [at for at in headers(data) if data[at + 30 : at + 40].startswith(where[:9].encode())][-1]
    cut = data[: at + (400 if where == "root.json" else 300)]
    assert not list(kept(folder, cut, WRITERS[name], NEW))
    with pytest.raises(CorruptArchiveError, match="the file ends within|a seal has begun|as it must"):
        WRITERS[name](folder / "a.zip")
    new = folder / "new.zip"
    with closing(CachedDataset.from_cache(folder / "a.zip", allow_partial=True)) as cache:
        cache.save(new, skip_damaged=True)
    found = readable(new)
    assert found is not None
    assert {*found} == {*NEW}
    assert any("the file ends within" in one for one in edcache.verify(folder / "a.zip").problems)


def test_a_file_that_grows_while_it_is_looked_at_is_not_damaged(path: Path) -> None:
    """A reader that saw half of a payload, and then its header."""
    w = CacheWriter(path, publish_seconds=None)
    w.append(sample("a"))
    w.flush()
    half = path.stat().st_size + 5_000

    class Late(System):
        """The size is that of a moment ago, once."""

        looks = 0

        def stat(self, fd: int) -> Any:
            found = super().stat(fd)
            self.looks += 1
            if self.looks >= 4:
                return found
            half_size = [*found[:6], min(half, found.st_size), *found[7:]]
            return type(found)(half_size, {"st_mtime_ns": found.st_mtime_ns})

    w.append(sample("b") | {"more": text_of("more") * 20})
    w.flush()
    assert path.stat().st_size > half
    with replace_system(Late()):
        assert readable(path) is not None
    w.abort()
    assert edcache.verify(path).problems == []


# --- what the next seal needs ---


@pytest.mark.parametrize("kind", ["index.rows", "labels/key.arrow", "index.keys"])
@pytest.mark.parametrize("writer", ["append", "refill", "add_value"])
def test_a_writer_asks_for_the_sums_of_all_that_its_seal_reads_before_it_changes_a_byte(
    tmp_path: Path, kind: str, writer: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    keyed(tmp_path / "made.zip")
    data = (tmp_path / "made.zip").read_bytes()
    place = (
        [at for at in headers(data) if data[at + 30 : at + 30 + len(kind)] == kind.encode()][-1] + 192 + 80
    )
    damaged = flipped(data, place, 4)
    (folder / "a.zip").write_bytes(damaged)
    before = readable(folder / "a.zip")
    for boot in BOOTS.values():
        with replace_system(boot()):
            assert not list(kept(folder, damaged, WRITERS[writer], NEW))
            with pytest.raises(EdcacheError):
                WRITERS[writer](folder / "a.zip")
    assert files(folder) == {"a.zip": damaged}
    assert readable(folder / "a.zip") == before
    if writer == "append":
        with pytest.raises(
            CorruptArchiveError, match=rf"{kind} at offset [\d,]+ fails its crc32, and the next seal"
        ):
            append(folder / "a.zip")


def test_a_seal_that_is_refused_gives_its_bytes_back(path: Path) -> None:
    with CacheWriter(path, in_memory_keys=["name"]) as w:
        w.extend(map(sample, OLD))
    before = path.read_bytes()
    with closing(CachedDataset.from_cache(path)) as cache, pytest.raises(EdcacheError):
        cache.add_labels("name", {0: 3.5})
    assert path.read_bytes() == before


# --- the first page ---


def first_pages(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """The same file with other bytes in its first page."""
    while True:
        start = rng.choice([0, 0, rng.randrange(0, PAGE, SECTOR), rng.randrange(PAGE)])
        count = min(PAGE - start, rng.choice([1, 4, 30, 64, 192, SECTOR, 2 * SECTOR, PAGE]))
        at = rng.choice([rng.choice(headers(data)), rng.randrange(0, len(data) - count, SECTOR)])
        other = rng.choice(
            [
                bytes(count),
                rng.randbytes(count),
                b" " * count,
                b"text " * (count // 5 + 1),
                data[at : at + count],
            ]
        )[:count]
        yield data[:start] + other + data[start + len(other) :]


@pytest.mark.parametrize("kind", ["plain", "keyed", "growing"])
def test_no_first_page_lets_an_archive_with_samples_be_begun_again(
    tmp_path: Path, kind: str, tally: Any
) -> None:
    def plain(path: Path) -> None:
        CachedDataset([sample(name) for name in OLD], path, fingerprint=False, **OPTIONS).close()

    def plainly(path: Path) -> None:
        with CacheWriter(path, "a") as w:
            w.append(sample("appended"))

    def refilled(path: Path) -> None:
        CachedDataset([sample(name) for name in [*OLD, "another"]], path, grow=True, **OPTIONS).close()

    folder = tmp_path / "folder"
    folder.mkdir()
    (plain if kind == "plain" else KINDS[kind])(tmp_path / "made.zip")
    data, rng, problems = (tmp_path / "made.zip").read_bytes(), seeded(f"first pages {kind}"), list[str]()
    writers = {"append": plainly, "refill": refilled, "label": label} if kind == "plain" else WRITERS
    count = scaled(270, 24)
    root = headers(data)[-1]
    pages = [
        data[root : root + SECTOR] + data[SECTOR:],
        bytes(SECTOR) + data[SECTOR:],
        bytes(PAGE) + data[PAGE:],
    ]
    for page, _ in zip(
        [*pages, *(next(first_pages(data, rng)) for _ in range(count))], range(count), strict=False
    ):
        boot = rng.choice([*BOOTS])
        for name, write in writers.items():
            (folder / "a.zip").write_bytes(page)
            before = readable(folder / "a.zip")
            with replace_system(BOOTS[boot]()):
                told = list(kept(folder, page, write, [*OLD, *NEW]))
            after = readable(folder / "a.zip")
            # A refill in the order of its source leaves out what the source has not.
            if before is not None and (after is None or not {*before} & {*OLD, *NEW} <= {*after}):
                told.append(f"{len(before)} samples before it, {after and len(after)} after it")
            problems += [f"{name}, {boot}: {one}" for one in told]
    assert not problems, "\n".join(problems)
    tally("first pages", count * len(writers))


@pytest.mark.parametrize("left", ["", "spaces", "text", "all but the end", "header"])
def test_a_head_of_which_a_power_cut_left_some_sectors_is_begun_again(path: Path, left: str) -> None:
    CacheWriter(path).abort()
    data = path.read_bytes()
    assert len(data) == PAGE
    end = data.rindex(b"}") // SECTOR * SECTOR + SECTOR
    parts = {
        "": b"",
        "spaces": bytes(end) + data[end:],
        "text": bytes(SECTOR) + data[SECTOR:end],
        "all but the end": bytes(SECTOR) + data[SECTOR : end - SECTOR],
        "header": data[:SECTOR],
    }
    path.write_bytes(parts[left].ljust(PAGE, b"\0"))
    assert readable(path) is None
    with CacheWriter(path, "a") as w:
        w.extend(map(sample, OLD))
    assert readable(path) == sorted(OLD)


@pytest.mark.parametrize(
    "data",
    [b'{"a": 1}' * 200, bytes(600) + b"a text\t" * 500, bytes(PAGE - 1) + b"\1", bytes(3000) + b"text"],
    ids=["JSON", "a tabulator", "a byte", "no page"],
)
def test_a_file_of_somebody_else_is_not_begun_again(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    for write in (lambda: CacheWriter(path, "a"), lambda: CachedDataset([1], path, progress=False)):
        with pytest.raises(CorruptArchiveError, match="not an edcache archive"):
            write()
    assert path.read_bytes() == data


# --- bytes behind the end ---


@pytest.mark.parametrize("kind", ["keyed", "grown"])
def test_bytes_of_its_own_end_behind_an_archive_are_told_and_cut_off(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.zip"
    KINDS[kind](path)
    data = path.read_bytes()
    expected, root = readable(path), headers(data)[-1]
    for start in (len(data) - 97, len(data) - 300, root + 192, root + 300):
        path.write_bytes(data + data[start:])
        report = edcache.verify(path)
        assert not report.sound
        assert readable(path) == expected
        with CacheWriter(path, "a", in_memory_keys=KEYS):
            pass
        assert path.read_bytes() == data
        assert edcache.verify(path).sound


# --- what is no iterable of samples ---


def test_extend_takes_neither_columns_nor_a_text(path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    columns = {"image": [1, 2], "label": [3, 4]}
    with CacheWriter(path) as w:
        w.append({"image": 0, "label": 0})
        for given in (columns, pandas.DataFrame(columns)):
            with pytest.raises(
                OptionError, match=r"a\.zip: extend\(\) got a .*give extend_columns\(\) a dict"
            ):
                w.extend(given)
        for text in ("abc", b"abc", bytearray(b"abc")):
            with pytest.raises(
                OptionError, match=r"takes an iterable of samples; give append\(\) what is one"
            ):
                w.extend(text)
        w.extend(iter(columns["image"]))
        w.extend(())
    with closing(CachedDataset.from_cache(path)) as cache:
        assert [cache[k] for k in range(len(cache))] == [{"image": 0, "label": 0}, 1, 2]


def test_no_warning_is_given_where_nothing_is_kept_beside(tmp_path: Path) -> None:
    """A torn tail has no header, and goes in silence."""
    path = tmp_path / "a.zip"
    grown(path)
    data = path.read_bytes()
    path.write_bytes(data.ljust(-(-len(data) // PAGE) * PAGE, b"\0") + bytes(192) + b"a payload" * 900)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        append(path)
    assert [*tmp_path.iterdir()] == [path]
