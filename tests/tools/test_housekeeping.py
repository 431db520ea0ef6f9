"""Archives as files: what is listed, of which call each is, what may be deleted, and that nothing else is."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import RUNNER
from systems import System, replace_system

from edcache import CachedDataset, CacheWriter
from edcache.cli import main
from edcache.errors import (
    ArchiveError,
    LabelTypeError,
    NotAnArchiveError,
    OptionError,
    StorageError,
)
from edcache.format import spec as format
from edcache.reader import Reader
from edcache.storage import calls
from edcache.storage.file import File
from edcache.tools.housekeeping import (
    Listed,
    archives_in,
    check_deletable,
    delete,
    look_at,
    plan_pruning,
    why_not_now,
)
from edcache.writer.appender import Appender

ROOT = str(Path(__file__).parents[2])
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

# Fills the archive of its first argument; says so by the file of its second, and computes for ever.
FILLER = """
import sys, time
from edcache import CachedDataset

class Waiting:
    def __len__(self):
        return 3
    def __getitem__(self, i):
        if i == 2:
            open(sys.argv[2], "w").close()
            time.sleep(600)
        return {"x": i}

if __name__ == "__main__":
    CachedDataset(Waiting(), sys.argv[1], chunk_size=1)
"""


def run(*arguments: Any, code: int = 0) -> Any:
    result = RUNNER.invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def error_of(*arguments: Any) -> str:
    """The one line that a failing command leaves."""
    result = run(*arguments, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("edcache: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr[len("edcache: ") : -1])


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


def damaged(path: Path, offset: int) -> Path:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
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


@pytest.fixture
def filled_by_another(tmp_path: Path) -> Iterator[Path]:
    """An archive that another process is filling."""
    path, computing = tmp_path / "cache" / "filling.zip", tmp_path / "computing"
    path.parent.mkdir(exist_ok=True)
    program = tmp_path / "filler.py"
    program.write_text(FILLER)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen([sys.executable, str(program), str(path), str(computing)], env=env)
    deadline = time.monotonic() + 60
    while not computing.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    yield path
    process.kill()
    process.wait()


# ------------------------------------------------------------------------------------------ caches


def test_caches_lists_archives_below_the_default_folder_least_recently_used_first(
    cache: Path, digits: Any
) -> None:
    old = archive(cache / "deep" / "er" / "old.zip", nbytes=50_000, days=3)
    digits.cached("train")
    (called,) = cache.glob("digits.cached-*.zip")
    used(called, read=2, written=1)
    used(partial(cache / "part.bin"), read=0)
    (cache / "notes.txt").write_text("no archive")
    (cache / "foreign.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    (cache / "empty.zip").touch()

    header, *rows, total = run("caches").stdout.splitlines()
    assert header.split() == ["path", "size", "present", "length", "complete", "last", "used", "call"]
    cells = [[cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows]
    assert [row[0] for row in cells] == ["deep/er/old.zip", called.name, "part.bin"]
    assert [row[2:5] for row in cells] == [["2", "2", "yes"], ["4", "4", "yes"], ["2", "3", "no"]]
    assert cells[0][5:] == [time.strftime("%Y-%m-%d %H:%M", time.localtime(NOW - 3 * DAY))]
    written = time.strftime("%Y-%m-%d %H:%M (written)", time.localtime(NOW - DAY))
    assert cells[1][5:] == [written, "digits:cached(split='train', n=4)"]
    sizes = [f.stat().st_size for f in (old, called, cache / "part.bin")]
    assert cells[0][1] == f"{sizes[0] / 1000:.1f} kB"
    assert total == f"{cache}: 3 archives, {sum(sizes) / 1000:.1f} kB"
    ends = {row.index(cells[i][1]) + len(cells[i][1]) for i, row in enumerate(rows)}
    assert len(ends) == 1, "sizes are aligned to the right"


def test_caches_as_json(cache: Path, tmp_path: Path) -> None:
    one = used(archive(tmp_path / "here" / "one.zip"), read=5, written=4)
    two = used(partial(tmp_path / "here" / "two.zip"), read=1, written=2)
    damaged(archive(tmp_path / "here" / "three.zip", days=9), offset=300)
    used(tmp_path / "here" / "three.zip", 9)
    said = json.loads(run("caches", tmp_path / "here", "--json").stdout)
    assert said["directory"] == str(tmp_path / "here")
    assert said["nbytes"] == one.stat().st_size + two.stat().st_size
    third, first, second = said["archives"]
    assert first == {
        "path": "one.zip",
        "nbytes": one.stat().st_size,
        "last_used": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(NOW - 4 * DAY)),
        "last_use": "written",
        "present": 2,
        "absent": 0,
        "length": 2,
        "complete": True,
        "sealed": True,
        "fingerprint": None,
        "origin": None,
        "problem": None,
    }
    assert (second["present"], second["length"], second["complete"], second["sealed"]) == (2, 3, False, False)
    assert second["last_use"] == "read"
    assert third["problem"].startswith(f"{tmp_path}/here/three.zip: the head")
    assert third["complete"] is False


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
    with CacheWriter(cache / "d.zip") as writer:
        writer.write(5, "x")
    CachedDataset(Gaps(), cache / "final.zip", on_error="skip_final")
    CachedDataset(Gaps(), cache / "again.zip", on_error="skip")
    with pytest.raises(KeyboardInterrupt):
        CachedDataset(Gaps(stops=True), cache / "stopped.zip", on_error="skip_final")
    with CacheWriter(cache / "stopped.zip", mode="a") as writer:
        writer.write(3, "made after all")
        writer.flush()
        writer.abort()
    found = {os.path.basename(listed.path): listed for listed in archives_in(cache)}
    assert (found["final.zip"].absent, found["final.zip"].complete) == (4, True)
    assert (found["again.zip"].absent, found["again.zip"].complete) == (0, False)
    assert (found["stopped.zip"].absent, found["stopped.zip"].sealed) == (2, False)
    for listed in archives_in(cache):
        reader = Reader(listed.path, allow_partial=True)
        assert (listed.present, listed.length, listed.sealed) == (reader.present, len(reader), reader.sealed)
        assert listed.complete == reader.complete
        assert listed.fingerprint == reader.head.fingerprint
    assert len(found) == 7


def test_samples_are_counted_where_labels_do_not_go_together(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / "a.zip"
    monkeypatch.setattr(Appender, "label_types", lambda appender: None)
    for mode, value in (("x", 1), ("a", "one")):
        with CacheWriter(path, in_memory_keys=["y"], mode=mode) as writer:
            writer.append({"y": value})
            writer.flush()
            writer.abort()
    with pytest.raises(LabelTypeError):
        Reader(path, allow_partial=True).labels()
    (listed,) = archives_in(cache)
    assert (listed.present, listed.length, listed.sealed, listed.problem) == (2, 2, False, None)


def test_caches_lists_what_is_damaged_or_unreadable_in_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(cache / "sound.zip")
    damaged(archive(cache / "head.zip"), offset=300)
    table = next(format.walk(*_chain(partial(cache / "chunk.zip")))).payload_offset
    damaged(cache / "chunk.zip", offset=table + 20)
    CachedDataset(Gaps(), cache / "index.zip", on_error="skip_final")
    damaged(cache / "index.zip", offset=(cache / "index.zip").read_bytes().rindex(b'{"length"') + 9)
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
        lines = run("caches").stdout.splitlines()
    assert lines[1].split()[0] == "sound.zip"
    problems = sorted(lines[2:-1])
    assert problems[0].startswith(f"{cache}/chunk.zip: chunk 0 at offset 4,096: its table fails its crc32; ")
    assert problems[1] == f"{cache}/closed: listing the folder: Permission denied"
    assert problems[2].startswith(f"{cache}/head.zip: the head's ")
    assert problems[3].startswith(f"{cache}/index.zip: index.pages at offset ")
    assert problems[3].endswith(f' fails its crc32; run "edcache verify {cache}/index.zip"')
    assert problems[4] == f"{cache}/secret.zip: opening it: Permission denied"
    size = (cache / "sound.zip").stat().st_size
    assert lines[-1] == f"{cache}: 1 archive, {size / 1000:.1f} kB, 5 more cannot be read"


def _chain(path: Path) -> tuple[Any, int, bytes, format.Cursor]:
    data = path.read_bytes()

    def pread(offset: int, nbytes: int) -> bytes:
        return data[offset : offset + nbytes]

    head, cursor = format.read_head(pread, str(path))
    return pread, len(data), head.uuid, cursor


@pytest.mark.skipif(not hasattr(os, "O_NOATIME"), reason="every read of this system leaves an access time")
def test_to_be_listed_or_explained_is_not_to_be_used(cache: Path) -> None:
    paths = [archive(cache / "sealed.zip", days=40), used(partial(cache / "part.zip"), 40)]
    run("caches")
    run("why", paths[0])
    run("prune", "--older-than", "30d", "--dry-run")
    assert [path.stat().st_atime for path in paths] == [pytest.approx(NOW - 40 * DAY)] * 2


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
    assert run("caches").stdout == f"{cache}: 0 archives, 0 bytes\n"
    cache.rmdir()
    assert run("caches").stdout == f"{cache}: 0 archives, 0 bytes\n"
    assert json.loads(run("caches", "--json").stdout)["archives"] == []
    assert error_of("caches", cache) == f"{cache}: no such folder; name one that holds archives"
    cache.write_text("")
    assert error_of("caches") == f"{cache}: no folder; name one that holds archives"


# ------------------------------------------------------------------------------------------ in use


@pytest.mark.parametrize(
    "start", [format.LOCK_APPEND, format.LOCK_SESSION, format.LOCK_CLAIM, format.LOCK_CLAIM + (1 << 40)]
)
def test_a_file_is_in_use_while_one_of_its_locks_is_held(tmp_path: Path, start: int) -> None:
    path = archive(tmp_path / "a.zip")
    assert why_not_now(str(path)) is None
    holder = File.open(path, "a")
    holder.lock(start)
    assert why_not_now(str(path)) == f"{path}: another process is filling it or appending to it"
    holder.unlock(start)
    assert why_not_now(str(path)) is None
    holder.lock(format.LOCK_APPEND, 1 << 61)  # nothing was kept
    holder.close()


def test_to_ask_makes_no_file(tmp_path: Path) -> None:
    assert why_not_now(str(tmp_path / "none.zip")) is None
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------- rm


def test_rm_deletes_archives_and_says_how_large_they_were(tmp_path: Path) -> None:
    one, two, three = (archive(tmp_path / f"{name}.zip") for name in ("one", "two", "three"))
    sizes = [path.stat().st_size / 1000 for path in (one, two)]
    reader = CachedDataset.from_cache(one)
    shown = run("rm", one, two, one).stdout
    assert shown == f"{one}: deleted, {sizes[0]:.1f} kB\n{two}: deleted, {sizes[1]:.1f} kB\n"
    assert sorted(tmp_path.iterdir()) == [three]
    assert reader[1] == {"text": "x" * 10}, "who has it open goes on reading"


def test_rm_deletes_none_where_one_is_no_archive(tmp_path: Path) -> None:
    good, foreign = archive(tmp_path / "good.zip"), tmp_path / "foreign.zip"
    foreign.write_text("mine")
    message = error_of("rm", "--yes", "--force", good, foreign)
    assert message == (f"{foreign}: not an edcache archive: it does not begin with a zip entry edcache.json")
    assert error_of("rm", good, tmp_path / "none.zip").startswith(
        f"{tmp_path}/none.zip: no such file; check the path, or build the cache first"
    )
    message = f"{tmp_path}: not a regular file; an archive is an ordinary file"
    assert error_of("rm", good, tmp_path).startswith(message)
    (tmp_path / "link.zip").symlink_to(good)
    assert error_of("rm", tmp_path / "link.zip") == (
        f"{tmp_path}/link.zip: a symbolic link; name the archive itself, {good}"
    )
    broken = damaged(archive(tmp_path / "broken.zip"), offset=300)
    assert error_of("rm", broken).startswith(f"{broken}: the head's ")
    for path in (good, foreign, broken, tmp_path / "link.zip"):
        assert path.exists()


@pytest.mark.full
def test_what_another_process_fills_is_deleted_by_force_only(cache: Path, filled_by_another: Path) -> None:
    path, other = filled_by_another, archive(filled_by_another.parent / "other.zip")
    reason = f"{path}: another process is filling it or appending to it"
    assert error_of("rm", "--yes", other, path) == (
        f"{reason}; wait for it to end, or force the deletion (--force)"
    )
    assert other.exists()
    used(path, 99)
    result = run("prune", "--older-than", "1d", "--yes", path.parent)
    assert result.stderr == f"{reason}; it stays\n"
    assert path.exists()
    assert "0 archives deleted, 0 bytes freed; 2 archives, " in result.stdout
    assert run("rm", "--force", path).stdout.startswith(f"{path}: deleted, ")
    assert not path.exists()


def test_rm_takes_along_what_a_killed_rebuild_left(tmp_path: Path) -> None:
    path, left = archive(tmp_path / "a.zip"), tmp_path / "a.zip.edcache.new"
    writer = CacheWriter(path, mode="w")
    writer.append(1)
    writer.abort()
    assert run("rm", path).stdout.splitlines()[1].startswith(f"{left}: deleted, ")
    assert list(tmp_path.iterdir()) == []

    archive(path)
    left.touch()  # killed before its head
    run("rm", path)
    assert list(tmp_path.iterdir()) == []


def test_rm_leaves_what_is_being_written(tmp_path: Path) -> None:
    path, left = archive(tmp_path / "a.zip"), tmp_path / "a.zip.edcache.new"
    with CacheWriter(path, mode="w") as writer:
        writer.append(1)
        result = run("rm", path, "--yes")
        assert result.stderr == f"{left}: another process is writing it; it stays\n"
        assert result.stdout.startswith(f"{path}: deleted, ")
    assert CachedDataset.from_cache(path)[0] == 1


def test_where_locks_cannot_be_looked_at_only_force_deletes(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip")

    class ReadOnly(System):
        def open(self, path: str, flags: int, mode: int) -> int:
            if flags & os.O_RDWR:
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return super().open(path, flags, mode)

    with replace_system(ReadOnly()):
        with pytest.raises(ArchiveError) as caught:
            check_deletable(path)
        assert str(caught.value) == (
            f"{path}: opening it: Permission denied, so nobody can tell whether it is being filled; wait for "
            "it to end, or force the deletion (--force)"
        )
        run("rm", "--force", path)
    assert not path.exists()


def test_a_deletion_that_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.zip")

    def unlink(name: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", name)

    with monkeypatch.context() as patch:
        patch.setattr(calls, "remove", unlink)
        assert error_of("rm", path) == f"{path}: deleting it: Permission denied"
        with pytest.raises(StorageError) as caught:
            delete(path)
        assert caught.value.errno == errno.EACCES
    assert delete(path) > 4096
    assert delete(path) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_on_a_terminal_rm_asks_first(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip")
    asked = f"delete {path}? [y/N]: "
    assert _on_a_terminal("n\n", "rm", path) == (1, f"{asked}edcache: nothing was deleted\n")
    assert path.exists()
    stopped = f"{asked}\nedcache: interrupted; nothing was deleted\n"
    assert _on_a_terminal("\x04", "rm", path) == (130, stopped)
    assert path.exists()
    assert _on_a_terminal("y\n", "prune", tmp_path, "--max-size", "1B")[0] == 0
    assert not path.exists()


def _on_a_terminal(answer: str, *arguments: Any) -> tuple[int, str]:
    """Exit code and stderr of a command whose stdin is a terminal at which this is typed."""
    import pty

    typing, terminal = pty.openpty()
    command = [sys.executable, "-m", "edcache", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        os.write(typing, answer.encode())
        _, err = process.communicate(timeout=60)
    finally:
        os.close(typing)
        os.close(terminal)
    return process.returncode, err


# ------------------------------------------------------------------------------------------- prune


def test_prune_by_age(cache: Path) -> None:
    old = archive(cache / "old.zip", days=31)
    read, written = archive(cache / "read.zip"), archive(cache / "written.zip")
    used(read, read=1, written=99)
    used(written, read=99, written=1)
    size = old.stat().st_size
    lines = run("prune", "--older-than", "30d").stdout.splitlines()
    assert lines[0].split() == ["path", "size", "last", "used"]
    assert lines[1].split()[0] == "old.zip"
    assert lines[2] == (
        f"1 archive deleted, {size / 1000:.1f} kB freed; 2 archives, {2 * size / 1000:.1f} kB stay"
    )
    assert sorted(cache.iterdir()) == [read, written]


def test_prune_by_size_takes_the_least_recently_used_until_it_fits(cache: Path) -> None:
    paths = [archive(cache / f"{days}.zip", nbytes=50_000, days=days) for days in (1, 4, 2, 3)]
    size = paths[0].stat().st_size
    (cache / "mine.txt").write_text("x" * 10**6)
    run("prune", "--max-size", f"{2 * size}B")
    assert sorted(path.name for path in cache.iterdir()) == ["1.zip", "2.zip", "mine.txt"]
    run("prune", "--max-size", f"{2 * size - 1}B")
    assert sorted(path.name for path in cache.iterdir()) == ["1.zip", "mine.txt"]


def test_prune_holds_both_conditions(cache: Path) -> None:
    for days in (1, 2, 40):
        archive(cache / f"{days}.zip", nbytes=50_000, days=days)
    run("prune", cache, "--max-size", "1GB", "--older-than", "5w")
    assert sorted(path.name for path in cache.iterdir()) == ["1.zip", "2.zip"]
    run("prune", cache, "--max-size", "120kB", "--older-than", "5w")
    assert sorted(path.name for path in cache.iterdir()) == ["1.zip"]


def test_a_dry_run_says_what_would_go_and_deletes_nothing(cache: Path) -> None:
    old, new = archive(cache / "old.zip", days=2), archive(cache / "new.zip")
    size = f"{old.stat().st_size / 1000:.1f} kB"
    lines = run("prune", "--older-than", "24h", "--dry-run").stdout.splitlines()
    assert lines[1].split()[:3] == ["old.zip", *size.split()]
    assert lines[-1] == f"1 archive, {size} to delete; 1 archive, {size} to stay"
    document = json.loads(run("prune", "--older-than", "24h", "--dry-run", "--json").stdout)
    assert (document["deleted"], document["to_delete"]) == ({}, {str(old): old.stat().st_size})
    assert document["kept"] == [str(new)]
    assert sorted(cache.iterdir()) == [new, old]
    assert run("prune", "--older-than", "8w", "--yes").stdout == (
        f"0 archives deleted, 0 bytes freed; 2 archives, {2 * old.stat().st_size / 1000:.1f} kB stay\n"
    )


def test_prune_neither_deletes_nor_counts_what_it_cannot_read(cache: Path) -> None:
    large = damaged(archive(cache / "large.zip", nbytes=500_000, days=9), offset=300)
    used(large, 9)
    small = archive(cache / "small.zip", days=5)
    shown = run("prune", "--max-size", "400kB", "--yes").stdout
    assert (
        shown == f"0 archives deleted, 0 bytes freed; 1 archive, {small.stat().st_size / 1000:.1f} kB stay\n"
    )
    assert sorted(cache.iterdir()) == [large, small]
    run("prune", "--older-than", "1d", "--yes")
    assert sorted(cache.iterdir()) == [large]


def test_what_somebody_began_to_fill_since_it_was_listed_stays(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = archive(cache / "first.zip", days=3), archive(cache / "second.zip", days=2)
    holder = File.open(second, "a")
    unlink = os.unlink

    def begin_then_unlink(name: str) -> None:
        holder.lock(format.LOCK_CLAIM + 3)
        unlink(name)

    monkeypatch.setattr(calls, "remove", begin_then_unlink)
    result = run("prune", "--older-than", "1d", "--yes")
    holder.close()
    assert result.stderr == f"{second}: another process is filling it or appending to it; it stays\n"
    assert "1 archive deleted, " in result.stdout
    assert (first.exists(), second.exists()) == (False, True)


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("--older-than", "30", '"30"; write a number with its unit, as in 12h, 30d or 8w'),
        ("--older-than", "3m", '"3m"; write a number with its unit, as in 12h, 30d or 8w'),
        ("--older-than", "-1d", "write a number with its unit"),
        ("--max-size", "200", '"200"; write a number with its unit, as in 500MB, 1.5GB or 1TiB'),
        ("--max-size", "nanGB", "write a number with its unit"),
        ("--max-size", "2 apples", "write a number with its unit"),
    ],
)
def test_quantities_that_do_not_read_are_wrong_usage(
    cache: Path, option: str, text: str, expected: str
) -> None:
    path = archive(cache / "a.zip", days=999)
    assert expected in " ".join(run("prune", f"{option}={text}", "--yes", code=2).stderr.split())
    assert path.exists()


def test_prune_without_a_condition_takes_what_was_left_alone(cache: Path) -> None:
    path = archive(cache / "a.zip", days=999)
    (cache / "a.zip.edcache.new").write_bytes(b"left")
    assert run("prune", "--yes").stdout.splitlines()[-1].startswith("1 archive deleted, 4 bytes freed; 1 ")
    assert os.listdir(cache) == [path.name]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("12B", 12),
        ("3kB", 3_000),
        ("500MB", 500 * 10**6),
        ("1.5gb", 1_500_000_000),
        ("1TiB", 1 << 40),
        ("2 KiB", 2048),
    ],
)
def test_sizes(text: str, nbytes: int, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "edcache.tools.plan_pruning",
        lambda archives, **limits: asked.append(limits) or plan_pruning(archives, **limits),
    )
    run("prune", "--max-size", text, "--older-than", "1.5d")
    assert asked == [{"older_than": 1.5 * DAY, "max_nbytes": nbytes}]


def test_the_plan_is_what_deleting_the_oldest_one_by_one_gives() -> None:
    chance = random.Random(5)
    for _ in range(300):
        archives = [
            Listed(f"/none/{i}", chance.randrange(100), float(chance.randrange(50)), True)
            for i in range(chance.randrange(8))
        ]
        older_than = chance.choice([None, float(chance.randrange(60))])
        most = chance.choice([None, chance.randrange(300)])
        plan = plan_pruning(archives, older_than=older_than, max_nbytes=most, now=50.0)
        left = sorted(archives, key=lambda a: (a.used, a.path))
        while left and (
            (older_than is not None and 50 - left[0].used > older_than)
            or (most is not None and sum(a.nbytes for a in left) > most)
        ):
            left.pop(0)
        assert plan.kept == left
        assert {a.path for a in plan.doomed} == {a.path for a in archives} - {a.path for a in left}
        assert all(a.used <= b.used for a, b in itertools.pairwise(plan.doomed))


# --------------------------------------------------------------------------------------------- why


def test_why_tells_the_fingerprint(digits: Any, cache: Path) -> None:
    path = Path(digits.cached("train", 5).path)
    lines = run("why", path).stdout.splitlines()
    assert [line.split(None, 1) for line in lines[:-1]] == [
        ["archive", str(path)],
        ["factory", "digits:cached"],
        ["argument", "split='train'"],
        ["argument", "n=5"],
        ["version", "2"],
    ]
    assert lines[-1].startswith("source digest  ")
    assert lines[0] == f"archive        {path}"


def test_why_of_an_archive_that_matches_a_call(digits: Any, tmp_path: Path) -> None:
    run("build", "digits:make", "-o", "a.zip", "--arg", "split=train")
    result = run("why", "a.zip", "digits:make", "--arg", "split=train")
    assert result.stdout.splitlines()[-1] == "matches digits:make(split='train', n=4)"
    run("build", "digits:cached", "-o", "b.zip", "--arg", "split=train", "--version", "5")
    run("why", "b.zip", "digits:cached", "--arg", "split=train", "--version", "5")
    run("why", "b.zip", "digits:cached", "--arg", "split=train", code=1)


def test_why_tells_each_difference_on_a_line(digits: Any, tmp_path: Path) -> None:
    run("build", "digits:make", "-o", "a.zip", "--arg", "split=train", "--version", "v1")
    result = run(
        "why", "a.zip", "digits:never", "--arg", "split=test", "--arg", "n=9", "--version", "v2", code=1
    )
    shown = result.stdout.split("\n\n")[1].splitlines()
    assert shown[:5] == [
        "differs from digits:never(split='test', n=9):",
        "  factory: 'digits:make' in the archive, 'digits:never' now",
        "  version: 'v1' in the archive, 'v2' now",
        "  argument split: 'train' in the archive, 'test' now",
        "  argument n: 4 in the archive, 9 now",
    ]
    assert len(shown) == 5
    assert result.stderr == "", "digits:never was not called"


def test_why_tells_a_source_that_changed(digits: Any, tmp_path: Path) -> None:
    run("build", "digits:make", "-o", "a.zip", "--arg", "split=train")
    source = tmp_path / "digits.py"
    source.write_text(source.read_text().replace("return Digits(split, n)", "return Digits(split, n + 1)", 1))
    sys.modules.pop("digits")
    shown = run("why", "a.zip", "digits:make", "--arg", "split=train", code=1).stdout.splitlines()
    assert shown[-2] == "differs from digits:make(split='train', n=4):"
    assert shown[-1] == "  code of digits:make: changed, of which a call in Python only warns"


def test_why_tells_labels_that_the_call_asks_for_and_the_archive_lacks(digits: Any, cache: Path) -> None:
    fingerprint = json.loads(run("info", digits.cached("train").path, "--json").stdout)["fingerprint"]
    CachedDataset(digits.make("train"), "bare.zip", fingerprint=fingerprint)
    lines = run("why", "bare.zip", "digits:cached", "--arg", "split=train", code=1).stdout.splitlines()
    assert lines[-1] == "  labels: none in the archive, the call asks for label too"


def test_why_of_archives_that_no_call_made(digits: Any, tmp_path: Path) -> None:
    archive(tmp_path / "writer.zip")
    call = ["digits:make", "--arg", "split=train"]
    lines = run("why", "writer.zip", *call, code=1).stdout.splitlines()
    assert lines[1].split(None, 1) == ["fingerprint", "none: the archive was written without a dataset"]
    assert lines[-1] == "  the archive says nothing about where its samples come from"
    CachedDataset(digits.make("train"), "object.zip")
    lines = run("why", "object.zip", *call, code=1).stdout.splitlines()
    assert lines[1].split() == ["type", "digits:Digits"]
    assert lines[-1] == "  made from an object of type digits:Digits"


def test_why_of_a_head_that_a_stranger_wrote(digits: Any, tmp_path: Path) -> None:
    odd = {"factory": ["\x1b[2J"], "arguments": 5, "version": [5], "source": {"a": "\n"}}
    CachedDataset(digits.make("train"), "odd.zip", fingerprint=odd)
    result = run("why", "odd.zip", "digits:make", "--arg", "split=train", code=1)
    assert "\x1b" not in result.stdout
    assert "  argument split: absent in the archive, 'train' now\n" in result.stdout
    assert run("caches", tmp_path).stdout.splitlines()[1].endswith("()")
    CachedDataset(digits.make("train"), "odder.zip", fingerprint={"type": 3, "arguments": {"a": [[1]]}})
    run("why", "odder.zip", "digits:make", "--arg", "split=train", code=1)


def test_why_errors(digits: Any, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip")
    assert error_of("why", tmp_path / "none.zip").startswith(f"{tmp_path / 'none.zip'}: no such file; ")
    assert error_of("why", path, "digits:nothing").startswith('cannot load "digits:nothing": no "nothing"')
    assert "name its MODULE:FACTORY too" in run("why", path, "--arg", "split=a", code=2).stderr
    assert "missing a required argument: 'split'" in run("why", path, "digits:make", code=2).stderr


# ---------------------------------------------------------------------------------- as a library


def test_errors_of_the_functions(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="/none: no such folder; name one that holds archives"):
        archives_in(tmp_path / "none")
    (tmp_path / "text").write_text("text")
    with pytest.raises(NotAnArchiveError, match="text: not an edcache archive"):
        look_at(tmp_path / "text")
    with pytest.raises(NotAnArchiveError, match="text: not an edcache archive"):
        check_deletable(tmp_path / "text", force=True)
