"""Archives as files: what is listed, of which call each is, which are deleted, and that no other is."""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import error_of, report, run
from damage import flip, flip_in_root
from systems import System, ended, in_child, replace_system
from written import write

from edcache import CachedDataset, CacheWriter, format
from edcache.errors import CorruptArchiveError, OptionError
from edcache.format.entries import Cursor
from edcache.reader import Reader
from edcache.storage import calls
from edcache.storage.file import File
from edcache.tools.housekeeping import Listed, archives_in, delete_unused, look_at, select
from edcache.writer.appender import Appender

DAY = 86_400.0
NOW = time.time()

DIGITS = """
    from edcache import cachable

    class Digits:
        def __init__(self, split, n):
            self.split, self.n = split, n
        def __len__(self):
            return self.n
        def __getitem__(self, i):
            return {"image": [i] * 3, "label": i % 3}

    def make(split, n=4):
        return Digits(split, n)

    def never(split, n=4):
        raise AssertionError("called")

    @cachable(in_memory_keys=["label"], version=2)
    def cached(split, n=4):
        return Digits(split, n)
"""


def listed(*arguments: Any) -> list[dict[str, Any]]:
    """What `edcache caches` prints with --json."""
    rows: list[dict[str, Any]] = report("caches", *arguments)
    return rows


def archive(path: Path, nbytes: int = 10, days: float = 0, present: int = 2) -> Path:
    """An archive of two samples with that many bytes of text each, last used so many days ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = CacheWriter(path)
    for _ in range(present):
        writer.append({"text": "x" * nbytes})
    writer.close()
    return used(path, days)


def used(path: Path, read: float, written: float | None = None) -> Path:
    """Make a file look read and written so many days ago."""
    os.utime(path, (NOW - read * DAY, NOW - (read if written is None else written) * DAY))
    return path


def partial(path: Path) -> Path:
    """Samples 0 and 2, the latter twice, of an archive that was never sealed."""
    writer = CacheWriter(path)
    for i in (0, 2, 2):
        writer.write(i, {"x": i})
        writer.flush()
    writer.abort()
    return path


def damaged(path: Path, offset: int | None = None) -> Path:
    """One bit is another one at an offset, or in the root."""
    flip_in_root(path) if offset is None else flip(path, offset)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default folder."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("EDCACHE_DIR", str(folder))
    return folder


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """digits.py in the current folder, imported."""
    (tmp_path / "digits.py").write_text(textwrap.dedent(DIGITS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "digits", raising=False)
    import digits

    yield digits
    sys.modules.pop("digits", None)


# ------------------------------------------------------------------------------------------ caches


def test_caches_lists_archives_below_the_default_folder_the_oldest_first(cache: Path, digits: Any) -> None:
    old = archive(cache / "deep" / "er" / "old.zip", nbytes=50_000, days=3)
    digits.cached("train")
    (called,) = cache.glob("digits.cached-*.zip")
    used(called, read=2, written=1)
    used(partial(cache / "part.bin"), read=0)
    damaged(archive(cache / "bad.zip", days=9))
    used(cache / "bad.zip", 9)
    (cache / "notes.txt").write_text("no archive")
    (cache / "foreign.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    (cache / "empty.zip").touch()
    bad, *rows = listed()
    names = ("path", "size", "present", "length", "complete", "written", "about")
    moments = [time.strftime("%Y-%m-%d %H:%M", time.localtime(NOW - days * DAY)) for days in (3, 1, 0)]
    sizes = [f.stat().st_size for f in (old, called, cache / "part.bin")]
    assert [tuple(row) for row in rows] == [names] * 3
    assert [tuple(row.values()) for row in rows] == [
        ("deep/er/old.zip", sizes[0], 2, 2, True, moments[0], ""),
        (called.name, sizes[1], 4, 4, True, moments[1], "cached(split='train', n=4)"),
        ("part.bin", sizes[2], 2, 3, False, moments[2], ""),
    ]
    assert (bad["path"], bad["complete"]) == ("bad.zip", False)
    assert bad["about"].startswith("root.json at offset ")
    header, *_, total = run("caches").stdout.splitlines()
    assert header.split() == ["path", "size", "samples", "written", "about"]
    assert total.startswith(f"{cache}: 4 archives, ")
    assert run("caches", "--csv").stdout.splitlines()[0] == ",".join(names)


class Gaps:
    """Ten samples, of which every third cannot be made; the last one stops whoever makes it, if asked to."""

    def __init__(self, stops: bool = False) -> None:
        self.stops = stops

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> int:
        if self.stops and i == 8:
            raise KeyboardInterrupt
        if i % 3 == 0:
            raise ValueError("broken")
        return i


def test_caches_counts_as_the_reader_does(cache: Path, digits: Any) -> None:
    partial(cache / "a.zip")
    archive(cache / "b.zip", present=0)
    used(cache / "b.zip", 1)
    CachedDataset(digits.make("train", 7), cache / "c.zip", lazy=True).close()
    write(cache / "d.zip", ["x"], indices=[5])
    CachedDataset(Gaps(), cache / "final.zip", on_error="skip_final")
    CachedDataset(Gaps(), cache / "again.zip", on_error="skip")
    with pytest.raises(KeyboardInterrupt):
        CachedDataset(Gaps(stops=True), cache / "stopped.zip", on_error="skip_final")
    with CacheWriter(cache / "stopped.zip", mode="a") as writer:
        writer.write(3, "made after all")
        writer.flush()
        writer.abort()
    found = {os.path.basename(listed.path): listed for listed in archives_in(cache)}
    assert found["final.zip"].complete
    assert not found["again.zip"].complete
    for listed in archives_in(cache):
        reader = Reader(listed.path, allow_partial=True)
        assert (listed.present, listed.length) == (reader.session.index.present, reader.session.length)
        assert listed.complete == reader.session.complete
        assert listed.fingerprint == reader.session.head.fingerprint
    assert len(found) == 7


def test_an_archive_of_which_labels_do_not_go_together_is_listed_with_its_problem(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / "a.zip"
    monkeypatch.setattr(Appender, "label_schema", lambda appender, maker="": None)
    for mode, value in (("x", 1), ("a", "one")):
        with CacheWriter(path, in_memory_keys=["y"], mode=mode) as writer:
            writer.append({"y": value})
            writer.flush()
            writer.abort()
    (listed,) = archives_in(cache)
    assert listed.problem is not None
    assert listed.problem.startswith(f'{path}: label "y" is int64 in one chunk and string in another; ')


def test_caches_lists_what_is_damaged_or_unreadable_in_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(cache / "sound.zip")
    damaged(partial(cache / "head.zip"), offset=300)
    table = next(format.walk(*_chain(partial(cache / "chunk.zip")), "chunk.zip"))[0].payload_offset
    damaged(cache / "chunk.zip", offset=table + 20)
    CachedDataset(Gaps(), cache / "index.zip", on_error="skip_final")
    damaged(cache / "index.zip")
    archive(cache / "secret.zip")
    (cache / "closed").mkdir()
    scan = os.scandir

    def scandir(path: Any = ".") -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    class Refusing(System):
        def open(self, path: str, flags: int, mode: int) -> int:
            if path.endswith("secret.zip"):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return super().open(path, flags, mode)

    monkeypatch.setattr(os, "scandir", scandir)
    with replace_system(Refusing()):
        said = {row["path"]: row["about"] for row in listed()}
    assert said.pop("sound.zip") == ""
    starts = {
        "chunk.zip": "chunks/00000001 at offset 4,096: its table fails its crc32; ",
        "closed": "listing the folder: Permission denied",
        "head.zip": "the head's ",
        "index.zip": "root.json at offset ",
        "secret.zip": "opening it: Permission denied",
    }
    assert said.keys() == starts.keys()
    assert [name for name, start in starts.items() if not said[name].startswith(start)] == []


def _chain(path: Path) -> tuple[Any, int, bytes, Cursor]:
    data = path.read_bytes()

    def pread(offset: int, nbytes: int, is_sound: object = None) -> bytes:
        return data[offset : offset + nbytes]

    head, header = format.read_head(pread, str(path))
    return pread, len(data), head.uuid, Cursor.behind(header)


def test_links_and_what_is_no_file_are_not_followed(cache: Path, tmp_path: Path) -> None:
    elsewhere = archive(tmp_path / "elsewhere" / "far.zip")
    (cache / "link.zip").symlink_to(elsewhere)
    (cache / "folder").symlink_to(elsewhere.parent)
    (cache / "gone.zip").symlink_to(tmp_path / "nothing")
    os.mkfifo(cache / "pipe.zip")
    assert archives_in(cache) == []


def test_a_file_that_goes_while_it_is_listed_is_left_out(cache: Path) -> None:
    archive(cache / "a.zip")
    doomed = archive(cache / "b.zip")

    class Racing(System):
        def open(self, path: str, flags: int, mode: int) -> int:
            if path == str(doomed):
                doomed.unlink(missing_ok=True)
            return super().open(path, flags, mode)

    with replace_system(Racing()):
        assert [listed.path for listed in archives_in(cache)] == [str(cache / "a.zip")]


def test_a_long_name_is_whole_and_a_strange_one_is_escaped(cache: Path) -> None:
    archive(cache / ("n" * 120 + ".zip"))
    archive(cache / "\x1b[31mred.zip")
    shown = run("caches").stdout
    assert "n" * 120 + ".zip  " in shown
    assert "\\x1b[31mred.zip" in shown
    assert "\x1b" not in shown


def test_without_archives_or_without_the_folder(cache: Path, tmp_path: Path) -> None:
    assert listed() == []
    cache.rmdir()
    assert listed() == []
    assert error_of("caches", cache) == f"{cache}: no such folder; name one that holds archives"
    cache.write_text("")
    assert error_of("caches") == f"{cache}: no folder; name one that holds archives"


# ------------------------------------------------------------------------------- choosing and deleting


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_conditions_choose_and_prune_deletes_the_chosen(cache: Path) -> None:
    old, new = archive(cache / "old.zip", days=31), archive(cache / "new.zip", days=29)
    sizes, reader = [one.stat().st_size for one in (old, new)], CachedDataset.from_cache(old)
    assert [row["path"] for row in listed("--older-than", 30)] == ["old.zip"]
    assert names(cache) == ["new.zip", "old.zip"]
    # Other tests may have left archives in shared memory, which go too.
    assert {"deleted": str(old), "size": sizes[0]} in listed("--older-than", 30, "--prune")
    assert names(cache) == ["new.zip"]
    assert reader[1] == {"text": "x" * 10}, "who has it open goes on reading"
    assert {"deleted": str(new), "size": sizes[1]} in listed(cache, "--max-size", "1B", "--prune")
    assert names(cache) == []


def test_to_be_listed_or_read_does_not_make_an_archive_young(cache: Path) -> None:
    used(archive(cache / "a.zip", days=40), read=0, written=40)
    assert len(listed("--older-than", 30)) == 1


def test_the_chosen_are_those_that_deleting_the_oldest_one_by_one_gives() -> None:
    chance = random.Random(5)
    for _ in range(300):
        archives = [
            Listed(f"/none/{i}", chance.randrange(100), NOW - chance.randrange(50) * DAY)
            for i in range(chance.randrange(8))
        ]
        archives.sort(key=lambda archive: (archive.written, archive.path))
        days, most = (
            chance.choice([None, chance.randrange(60) + 0.5]),
            chance.choice([None, chance.randrange(300)]),
        )
        left = list(archives)
        while left and (
            (days is not None and NOW - left[0].written > days * DAY)
            or (most is not None and sum(archive.nbytes for archive in left) > most)
        ):
            left.pop(0)
        chosen = select(archives, None if days is None else days * DAY, most)
        assert [*chosen, *left] == archives


def test_archives_that_cannot_be_read_are_neither_deleted_nor_counted(cache: Path) -> None:
    used(damaged(archive(cache / "large.zip", nbytes=500_000)), 9)
    archive(cache / "small.zip", days=5)
    (cache / "foreign.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    run("caches", "--max-size", "400kB", "--prune")
    assert names(cache) == ["foreign.zip", "large.zip", "small.zip"]
    run("caches", "--older-than", 0, "--prune")
    assert names(cache) == ["foreign.zip", "large.zip"]


def test_without_a_condition_only_the_leftovers_of_killed_processes_go(cache: Path) -> None:
    path, left = archive(cache / "a.zip", days=999), cache / "a.zip.edcache.new"
    left.write_bytes(b"left")
    assert {"deleted": str(left), "size": 4} in listed("--prune")
    with CacheWriter(path, mode="w") as writer:
        writer.append(1)
        run("caches", "--prune")
        assert names(cache) == [path.name, left.name]
    assert CachedDataset.from_cache(path)[0] == 1


@pytest.mark.parametrize(
    "start", [format.LOCK_APPEND, format.LOCK_SESSION, format.LOCK_CLAIM, format.LOCK_CLAIM + (1 << 40)]
)
def test_an_archive_stays_while_one_of_its_locks_is_held(tmp_path: Path, start: int) -> None:
    path = archive(tmp_path / "a.zip")
    holder = File.open(path, "a")
    holder.lock(start)
    reason = f"{path}: another process is filling it or appending to it"
    assert delete_unused(str(path)) == reason
    result = run("caches", tmp_path, "--max-size", "1B", "--prune")
    assert result.stderr == f"{reason}; it stays\n"
    assert path.exists()
    holder.close()
    assert delete_unused(str(path)) is None
    assert not path.exists()
    assert delete_unused(str(path)) is None
    assert names(tmp_path) == []


class Waiting:
    """Samples of which the second is never done."""

    def __init__(self, computing: Path) -> None:
        self.computing = computing

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> int:
        if i == 1:
            self.computing.touch()
            time.sleep(600)
        return i


def test_what_another_process_fills_stays_until_it_ends(cache: Path, tmp_path: Path) -> None:
    path, other, computing = cache / "filling.zip", archive(cache / "other.zip"), tmp_path / "computing"
    pid = in_child(lambda: CachedDataset(Waiting(computing), path, chunk_size=1, spot_check=False))
    try:
        while not computing.exists():
            time.sleep(0.01)
        result = run("caches", "--older-than", 0, "--prune")
    finally:
        os.kill(pid, signal.SIGKILL)
        ended(pid)
    assert result.stderr == f"{path}: another process is filling it or appending to it; it stays\n"
    assert (path.exists(), other.exists()) == (True, False)
    run("caches", "--prune")
    assert path.exists(), "the next run goes on with it"
    run("caches", "--older-than", 0, "--prune")
    assert names(cache) == []


def test_archives_that_the_system_refuses_to_open_or_delete_stay_and_others_go(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, locked = archive(cache / "kept.zip", days=3), archive(cache / "locked.zip", days=2)
    archive(cache / "other.zip")
    remove = calls.remove

    def refuse(name: str) -> None:
        if name == str(kept):
            raise PermissionError(errno.EACCES, "Permission denied", name)
        remove(name)

    class ReadOnly(System):
        def open(self, path: str, flags: int, mode: int) -> int:
            if path == str(locked) and flags & os.O_RDWR:
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return super().open(path, flags, mode)

    with replace_system(ReadOnly()):
        monkeypatch.setattr(calls, "remove", refuse)
        result = run("caches", "--max-size", "1B", "--prune")
    assert result.stderr.splitlines() == [
        f"{kept}: deleting it: Permission denied; it stays",
        f"{locked}: opening it: Permission denied; it stays",
    ]
    assert names(cache) == ["kept.zip", "locked.zip"]


@pytest.mark.parametrize(
    "condition", ["--older-than=x", "--older-than=-1", "--max-size=nanGB", "--max-size=2 apples"]
)
def test_conditions_that_do_not_read_are_wrong_usage(cache: Path, condition: str) -> None:
    path = archive(cache / "a.zip", days=999)
    run("caches", condition, "--prune", code=2)
    assert path.exists()


# ---------------------------------------------------------------------------------- as a library


def test_errors_of_the_functions(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="/none: no such folder; name one that holds archives"):
        archives_in(tmp_path / "none")
    (tmp_path / "text").write_text("text")
    with pytest.raises(CorruptArchiveError, match="text: not an edcache archive"):
        look_at(tmp_path / "text")
