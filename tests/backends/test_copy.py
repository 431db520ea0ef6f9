"""A whole copy is byte for byte what was published, made once, continued after a kill, never half there."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import archives
import numpy as np
import pytest
from cli_runner import error_of, report, run
from damage import flip
from far import Far, is_sample, make
from scale import scaled, seeded
from systems import Full, Killing, Watching, ended, in_child, replace_system
from written import write

import edcache
from edcache import CachedDataset, copy_to_local, storage
from edcache.backends.mirror.blocks import BLOCK_NBYTES, RUN
from edcache.backends.mirror.copy import copy_from, copy_local
from edcache.backends.mirror.evict import Budget, copies_in, evict
from edcache.errors import (
    ArchiveError,
    ArchiveExistsError,
    ArchiveNotFoundError,
    CorruptArchiveError,
    OptionError,
    StaleArchiveError,
    StorageError,
)
from edcache.writer.temporary import SIDE

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]
PARTIAL = ".partial"


@pytest.fixture
def far(tmp_path: Path) -> Path:
    return tmp_path / "far" / "train.v1.zip"


@pytest.fixture
def ssd(tmp_path: Path) -> Path:
    return tmp_path / "ssd"


def copied(ssd: Path, far: Path | None = None) -> bytes:
    return (ssd / (far.name if far else "train.v1.zip")).read_bytes()


def kb(nbytes: int) -> str:
    return f"{nbytes / 1000:.1f} kB"


def from_object(origin: Any, copy: Path, **options: Any) -> tuple[int, int]:
    copy.parent.mkdir(exist_ok=True)
    return copy_from(origin, str(copy), **options)


# ------------------------------------------------------------------------------------------ what it is


def test_a_copy_of_any_sealed_archive_is_the_same_bytes(tmp_path, tally):
    rng = seeded("copies")
    for number in range(scaled(25)):
        path = tmp_path / f"a{number}.zip"
        model = archives.make(path, rng)
        if not model.sealed:
            with pytest.raises(OptionError) as caught:
                copy_to_local(path, tmp_path / "ssd")
            assert str(caught.value) == (
                f"{path}: it is not sealed, so it may still grow; copy it when its fill has ended, or seal "
                f'what is there with "edcache copy {path} -o NEW --skip-damaged"'
            )
            continue
        found = copy_to_local(path, tmp_path / "ssd")
        assert found == str(tmp_path / "ssd" / path.name)
        assert Path(found).read_bytes() == model.data
        tally("archives copied byte for byte")


def test_where_a_copy_goes(far, tmp_path):
    data = make(far, 20)
    new = tmp_path / "new.folder"
    (tmp_path / "there").mkdir()
    for target, place in [
        (new, new / far.name),
        (tmp_path / "other.zip", tmp_path / "other.zip"),
        (tmp_path / "there", tmp_path / "there" / far.name),
        (f"{tmp_path}/dotted.zip/", tmp_path / "dotted.zip" / far.name),
    ]:
        assert copy_to_local(far, target) == str(place)
        assert place.read_bytes() == data
        assert sorted(p.name for p in place.parent.glob(f"{place.name}*")) == [place.name, place.name + SIDE]


def test_a_copy_that_is_there_costs_one_look_at_each_side(far, ssd):
    make(far)
    assert copy_local(far, ssd).fetched == far.stat().st_size
    with replace_system(Watching()) as watching:
        again = copy_local(far, ssd)
    assert (again.fetched, again.nbytes) == (0, far.stat().st_size)
    assert sorted(watching.looked) == [str(far), str(ssd / far.name)]
    assert [Path(path).suffix for path, _ in watching.opened] == [SIDE]


def test_nothing_is_written_where_the_origin_is(far, ssd):
    make(far)
    with replace_system(Watching()) as watching:
        copy_to_local(far, ssd)
    there = [flags for path, flags in watching.opened if path.startswith(str(far.parent))]
    assert there
    assert not any(there)


def test_what_cannot_be_copied_is_said(tmp_path, far, ssd):
    (tmp_path / "none").mkdir()
    (tmp_path / "foreign.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(StorageError, match="none: not a regular file; an archive is an ordinary file"):
        copy_to_local(tmp_path / "none", ssd)
    with pytest.raises(ArchiveNotFoundError, match=r"gone\.zip: no such file"):
        copy_to_local(tmp_path / "gone.zip", ssd)
    with pytest.raises(CorruptArchiveError, match=r"foreign\.zip: not an edcache archive"):
        copy_to_local(tmp_path / "foreign.zip", ssd)
    make(far, 3)
    assert not list(ssd.glob("*.zip"))


@pytest.mark.parametrize("part", [0, 0.5])
def test_a_copy_that_was_cut_is_made_again(far, ssd, part):
    make(far, 30)
    copy_to_local(far, ssd)
    whole = copied(ssd, far)
    os.truncate(ssd / far.name, int(part * len(whole)))
    copy_to_local(far, ssd)
    assert copied(ssd, far) == whole == far.read_bytes()
    (ssd / far.name).write_bytes(bytes(len(whole) // 2))
    with pytest.raises(ArchiveExistsError, match="is not as it was copied"):
        copy_to_local(far, ssd)


def test_a_file_that_is_no_copy_is_not_overwritten(far, tmp_path, ssd):
    make(far, 30)
    ssd.mkdir()
    (ssd / far.name).write_bytes(b"mine")
    with pytest.raises(ArchiveExistsError) as caught:
        copy_to_local(far, ssd)
    assert str(caught.value) == (
        f"{ssd / far.name}: exists already, and is not as it was copied; give another path, or delete it"
    )
    assert copied(ssd, far) == b"mine"
    (ssd / far.name).unlink()
    copy_to_local(far, ssd)
    CachedDataset.from_cache(ssd / far.name).add_labels("mine", [1] * 30)
    far.touch()
    with pytest.raises(ArchiveExistsError, match=f"is not as it was copied from {far}; give another path"):
        copy_to_local(far, ssd)
    other = tmp_path / "other" / far.name
    make(other, 30)
    shutil.rmtree(ssd)
    copy_to_local(far, ssd)
    with pytest.raises(ArchiveExistsError) as caught:
        copy_to_local(other, ssd)
    assert str(caught.value) == (
        f"{ssd / far.name}: a copy of another archive, {far}; give {other} another path or folder"
    )


# ------------------------------------------------------------------------------------------- digests


def test_a_digest_is_that_of_the_copy(far, ssd):
    make(far, 50)
    digest = edcache.digest(far)
    with pytest.raises(ArchiveError, match=rf"ssd/{far.name}: its sha256 is [0-9a-f]+, expected 0000"):
        copy_to_local(far, ssd, expected_digest="0" * 64)
    assert os.listdir(ssd) == []
    copy_to_local(far, ssd)
    with pytest.raises(ArchiveError, match="it is not the file that was published"):
        copy_to_local(far, ssd, expected_digest="0" * 64)
    assert copy_to_local(far, ssd, expected_digest=digest) == str(ssd / far.name)
    (ssd / far.name).unlink()
    copy_to_local(far, ssd, expected_digest=digest)
    with replace_system(Watching()) as watching:
        copy_to_local(far, ssd, expected_digest=digest)
    assert not any(path == str(ssd / far.name) for path, _ in watching.opened), "it was hashed before"


# ------------------------------------------------------------------------------------ other states of it


def test_an_archive_that_changed_is_copied_anew_and_who_reads_the_old_copy_keeps_it(far, ssd):
    old = make(far)
    copy = copy_to_local(far, ssd)
    reader = CachedDataset.from_cache(copy)
    CachedDataset.from_cache(far).add_labels("z", list(range(400)))
    assert copy_local(far, ssd).fetched == far.stat().st_size
    assert copied(ssd) == far.read_bytes() != old
    assert all(is_sample(reader[i], i) for i in range(0, 400, 7))
    assert CachedDataset.from_cache(copy).labels["z"][7] == 7
    make(far, 90)
    assert copy_local(far, ssd).fetched == far.stat().st_size
    assert copied(ssd) == far.read_bytes()
    assert all(is_sample(reader[i], i) for i in range(400))


def test_an_archive_that_is_replaced_amid_a_copy_is_copied_as_it_was(far, ssd):
    old = make(far)

    def replace(done: int, total: int) -> None:
        if far.read_bytes() == old:
            make(far.with_name("new.zip"), 100)
            os.replace(far.with_name("new.zip"), far)

    copy_to_local(far, ssd, progress=replace)
    assert copied(ssd) == old
    copy_to_local(far, ssd)
    assert copied(ssd) == far.read_bytes() != old


def test_an_archive_that_is_overwritten_amid_a_copy_is_an_error(far, ssd, monkeypatch):
    monkeypatch.setattr("edcache.backends.mirror.complete._THREADS", 1)
    old = make(far, 800, 30_000)

    def overwrite(done: int, total: int) -> None:
        with open(far, "r+b") as file:
            file.write(b"other")

    with pytest.raises(StaleArchiveError, match=r"it has changed since it was opened; open it again"):
        copy_to_local(far, ssd, progress=overwrite)
    assert not (ssd / far.name).exists()
    far.write_bytes(old)
    copy_to_local(far, ssd)
    assert copied(ssd) == old


def test_an_archive_that_is_cut_amid_a_copy_is_an_error(ssd):
    data = make(ssd.parent / "a.zip", 2000, 30_000)
    origin = Far(data, delay=0.02)

    def cut(done: int, total: int) -> None:
        origin.data = data[: total // 2]

    with pytest.raises(StorageError, match=r"got [\d,]+ of [\d,]+ bytes at offset [\d,]+; read again"):
        from_object(origin, ssd / "a.zip", tell=cut)


# ------------------------------------------------------------------------------------- far and damaged


def test_a_read_that_comes_out_wrong_is_done_again(tmp_path, ssd):
    data = make(tmp_path / "a.zip")
    origin = Far(data)
    origin.damage = {len(data) // 2: 1, len(data) // 3: 1}
    assert from_object(origin, ssd / "a.zip")[1] == len(data)
    assert 0 in origin.damage.values()
    assert (ssd / "a.zip").read_bytes() == data


def test_an_archive_that_is_damaged_is_not_copied(far, ssd):
    flip(far, len(make(far)) // 2)
    with pytest.raises(CorruptArchiveError) as caught:
        copy_to_local(far, ssd)
    assert f'fails its crc32, however often it is asked for; run "edcache verify {far}"' in str(caught.value)
    assert not (ssd / far.name).exists()


def test_a_connection_that_is_lost_is_an_error_and_the_copy_goes_on_later(tmp_path, ssd):
    data = make(tmp_path / "a.zip", 800, 30_000)
    origin = Far(data)
    origin.fails_at = 4
    with pytest.raises(StorageError, match="far://bucket/train.zip: reading: connection lost"):
        from_object(origin, ssd / "a.zip")
    origin.fails_at = None
    nbytes, fetched = from_object(origin, ssd / "a.zip")
    assert 0 < fetched < nbytes == len(data)
    assert (ssd / "a.zip").read_bytes() == data


def test_reads_are_in_flight_together(tmp_path, ssd):
    data = make(tmp_path / "a.zip", 800, 30_000)
    inside, most = [0], [0]
    origin = Far(data)
    plain = origin._pread

    def pread(offset: int, nbytes: int) -> bytes:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        return plain(offset, nbytes)

    origin._pread = pread  # type: ignore[method-assign]
    from_object(origin, ssd / "a.zip")
    assert most[0] > 1


def test_a_large_entry_is_copied_in_pieces_by_several_threads(tmp_path, ssd):
    data = make(tmp_path / "a.zip", 1, 4 * (RUN * BLOCK_NBYTES))
    origin, told = Far(data), [0]
    plain, together = origin._pread, threading.Barrier(2)

    def pread(offset: int, nbytes: int) -> bytes:
        if nbytes == (RUN * BLOCK_NBYTES):
            together.wait(30)
        return plain(offset, nbytes)

    origin._pread = pread  # type: ignore[method-assign]
    from_object(origin, ssd / "a.zip", tell=lambda done, total: told.append(done))
    assert (ssd / "a.zip").read_bytes() == data
    assert told[-1] == len(data)
    assert all(0 < after - before <= (RUN * BLOCK_NBYTES) for before, after in pairwise(told))


def test_a_copy_of_a_large_entry_ends_where_it_is_interrupted(tmp_path, ssd, monkeypatch):
    data = make(tmp_path / "a.zip", 1, 14 * (RUN * BLOCK_NBYTES))
    origin, ended, parts = Far(data), threading.Event(), itertools.count()
    plain, shutdown = origin._pread, ThreadPoolExecutor.shutdown

    def parts_read() -> int:
        return sum(nbytes == (RUN * BLOCK_NBYTES) for _, nbytes in origin.read)

    def pread(offset: int, nbytes: int) -> bytes:
        if nbytes == (RUN * BLOCK_NBYTES) and next(parts) >= 4:
            assert ended.wait(60)  # or the others read the rest before the interrupt arrives
        return plain(offset, nbytes)

    def end(pool: ThreadPoolExecutor, **options: bool) -> None:
        ended.set()
        shutdown(pool, **options)

    def interrupt(done: int, total: int) -> None:
        if done > (RUN * BLOCK_NBYTES):
            raise KeyboardInterrupt

    origin._pread = pread  # type: ignore[method-assign]
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", end)
    ssd.mkdir()
    with pytest.raises(KeyboardInterrupt):
        from_object(origin, ssd / "a.zip", tell=interrupt)
    assert parts_read() < 14


def test_nothing_of_a_partial_copy_is_believed(far, ssd, tally):
    data = make(far)
    rng = seeded("partial copies")
    for _ in range(scaled(12)):
        shutil.rmtree(ssd, ignore_errors=True)
        ssd.mkdir()
        partial = bytearray(data)
        for _ in range(rng.randrange(1, 9)):
            at = rng.randrange(len(data))
            partial[at : at + rng.choice([1, 5000])] = rng.randbytes(rng.choice([1, 5000]))
        (ssd / (far.name + PARTIAL)).write_bytes(partial[: rng.randrange(1, 2 * len(data))])
        found = copy_local(far, ssd)
        assert copied(ssd, far) == data
        assert found.fetched <= len(data)
        tally("damaged partial copies continued")


# ------------------------------------------------------------------------------------------- killed


def test_a_copy_that_is_killed_at_any_operation_is_continued(far, ssd, tally):
    data = make(far, 240, chunk=30)
    at, code, less = 0, -9, 0
    while code != 0:
        at += 1
        shutil.rmtree(ssd, ignore_errors=True)
        code = ended(in_child(lambda: copy_to_local(far, ssd), Killing(at)))
        assert code in (0, -signal.SIGKILL)
        if (ssd / far.name).exists():
            assert copied(ssd, far) == data, "it has its name when it is whole, not before"
        less += copy_local(far, ssd).fetched < len(data)
        assert copied(ssd, far) == data
        assert sorted(os.listdir(ssd)) == [far.name, far.name + SIDE]
        tally("copies killed at an operation")
    assert at > 9
    assert less


@pytest.mark.full
def test_a_copy_that_replaces_another_is_killed_at_any_operation(far, tmp_path, ssd, tally):
    """A copy that has its name is whole, of the old state or the new one, and no step by hand is needed."""
    states = []
    for count in (120, 200):
        make(far, count, chunk=20)
        shutil.copy2(far, tmp_path / f"{count}.zip")
        states.append(far.read_bytes())
    at, code = 0, -9
    while code != 0:
        at += 1
        shutil.rmtree(ssd, ignore_errors=True)
        os.replace(shutil.copy2(tmp_path / "120.zip", tmp_path / "t"), far)
        copy_to_local(far, ssd)
        os.replace(shutil.copy2(tmp_path / "200.zip", tmp_path / "t"), far)
        code = ended(in_child(lambda: copy_to_local(far, ssd), Killing(at)))
        assert not (ssd / far.name).exists() or copied(ssd, far) in states
        copy_to_local(far, ssd)
        assert copied(ssd, far) == states[1]
        tally("copies killed at an operation")
    assert at > 10


# ------------------------------------------------------------------------------------- many processes


@pytest.mark.parametrize("count", [2, 8])
def test_processes_that_ask_for_one_copy_make_one(far, ssd, tmp_path, count):
    data = make(far)

    def ask() -> None:
        fetched = copy_local(far, ssd).fetched
        (tmp_path / f"{os.getpid()}.fetched").write_text(str(fetched))
        assert copied(ssd) == data

    pids = [in_child(ask) for _ in range(count)]
    assert [ended(pid) for pid in pids] == [0] * count
    fetched = sorted(int(p.read_text()) for p in tmp_path.glob("*.fetched"))
    assert fetched == [0] * (count - 1) + [len(data)]


def test_who_waits_for_a_copier_that_is_killed_goes_on_with_the_copy(far, ssd, tmp_path):
    data = make(far)

    def stopped(done: int, total: int) -> None:
        (tmp_path / "copying").touch()
        time.sleep(60)

    first = in_child(lambda: copy_to_local(far, ssd, progress=stopped))
    while not (tmp_path / "copying").exists():
        time.sleep(0.01)
    second = in_child(lambda: copy_to_local(far, ssd))
    time.sleep(0.1)
    assert os.waitpid(second, os.WNOHANG) == (0, 0), "it waits"
    assert not (ssd / far.name).exists()
    os.kill(first, signal.SIGKILL)
    assert (ended(first), ended(second)) == (-signal.SIGKILL, 0)
    assert copied(ssd) == data


# ------------------------------------------------------------------------------------------- no room


def test_too_little_space_is_said_before_anything_is_copied(far, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        make(far)
        with pytest.raises(StorageError) as caught:
            copy_to_local(far, small)
        assert str(caught.value).startswith(f"{small / far.name}: the copy takes 1.3 MB more, the disk has 5")
        assert str(caught.value).endswith(" left; free some, or copy it to another disk")
        assert caught.value.errno == errno.ENOSPC
        assert os.listdir(small) == [far.name + SIDE]
        data = make(far, 100)
        copy_to_local(far, small)
        assert copied(small, far) == data
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


def test_a_disk_that_is_full_amid_a_copy_is_an_error_at_any_write(far, ssd, tally):
    data = make(far, 160, chunk=20)
    for after in range(4):
        shutil.rmtree(ssd, ignore_errors=True)
        with replace_system(Full(after)), pytest.raises(StorageError, match="No space left on device"):
            copy_to_local(far, ssd)
        assert not (ssd / far.name).exists()
        copy_to_local(far, ssd)
        assert copied(ssd) == data
        tally("full disks amid a copy")


# ----------------------------------------------------------------------------------- making room


def used(copy: Path, seconds: float) -> None:
    """Say that a copy was last used so many seconds ago."""
    then = time.time() - seconds
    os.utime(f"{copy}{SIDE}", (then, then))


def test_copies_that_were_not_used_for_longest_go_first(tmp_path, ssd):
    sizes = {}
    for k, name in enumerate("abcd"):
        sizes[name] = len(make(tmp_path / f"{name}.zip", 100))
        if name != "d":
            copy_to_local(tmp_path / f"{name}.zip", ssd)
            used(ssd / f"{name}.zip", 1000 - k)
    make(ssd / "mine.zip", 100)
    copy_to_local(tmp_path / "a.zip", ssd)  # which uses it
    write(tmp_path / "d.zip", [{"x": np.zeros(3000, np.uint8), "n": 100, "y": 0}], "a")
    limit = sum(sizes[name] for name in "abc")
    Budget(str(ssd), limit).evict_others(str(ssd / "d.zip"), (tmp_path / "d.zip").stat().st_size)
    copy_to_local(tmp_path / "d.zip", ssd)
    assert sorted(p.name for p in ssd.glob("*.zip")) == ["a.zip", "d.zip", "mine.zip"]
    assert [Path(kept.path).name for kept in copies_in(str(ssd))] == ["a.zip", "d.zip"]
    assert sorted(p.name for p in ssd.glob(f"*{SIDE}")) == [f"a.zip{SIDE}", f"d.zip{SIDE}"]


def test_an_archive_that_came_to_lie_where_a_copy_was_does_not_go(far, ssd):
    make(far, 60)
    copy = copy_to_local(far, ssd)
    mine = make(ssd / "mine.zip", 90)
    os.replace(ssd / "mine.zip", copy)
    assert not evict(copy)
    assert copied(ssd, far) == mine


def test_who_waited_for_a_copy_compares_it_with_the_digest(far, ssd):
    make(far, 60)
    copy_to_local(far, ssd)
    origin = storage.located(far).open()
    assert from_object(origin, ssd / far.name, digest=edcache.digest(far))[1] == 0
    assert from_object(origin, ssd / far.name, digest=edcache.digest(far))[1] == 0
    with pytest.raises(ArchiveError, match="it is not the file that was published"):
        from_object(origin, ssd / far.name, digest="sha256:" + "0" * 64)
    origin.close()


def test_the_path_of_an_origin_has_to_fit(far, ssd):
    make(far, 10)
    origin = Far(far.read_bytes(), path="far://" + "x" * 20_000)
    with pytest.raises(
        StorageError, match=r"zip\.origin: no room for the path of the origin; give a shorter one"
    ):
        from_object(origin, ssd / "a.zip")


def test_a_copy_that_was_begun_counts_what_it_has_on_the_disk(far, tmp_path, ssd):
    data = make(far, 200)
    ended(in_child(lambda: copy_to_local(far, ssd), Killing(8)))
    (ssd / (far.name + PARTIAL)).write_bytes(data[: 1 << 16])
    os.truncate(ssd / (far.name + PARTIAL), len(data))
    assert [(kept.path, kept.nbytes) for kept in copies_in(str(ssd))] == [(str(ssd / far.name), len(data))]
    more = make(tmp_path / "b.zip", 60)
    assert Budget(str(ssd), len(data) + len(more) - 1).evict_others(str(ssd / "b.zip"), len(more)) == 1 << 16
    assert (ssd / (far.name + PARTIAL)).exists()
    assert Budget(str(ssd), len(more) + 99).evict_others(str(ssd / "b.zip"), len(more)) == 0
    assert os.listdir(ssd) == []


def test_a_copy_that_is_opened_was_used(tmp_path, ssd):
    for k, name in enumerate("ab"):
        make(tmp_path / f"{name}.zip", 60)
        used(Path(copy_to_local(tmp_path / f"{name}.zip", ssd)), 1000 - k)
    CachedDataset.from_cache(ssd / "a.zip").close()
    assert [Path(kept.path).name for kept in copies_in(str(ssd))] == ["b.zip", "a.zip"]


# ------------------------------------------------------------------------------- the command line


def test_a_copy_from_the_command_line(far, ssd, tmp_path):
    make(far, 100)
    digest, size = edcache.digest(far), kb(far.stat().st_size)
    assert run("copy", far, ssd, "--digest", digest).output == f"{ssd / far.name}: {size}, {size} fetched\n"
    assert run("copy", far, ssd).output == f"{ssd / far.name}: {size}, here already\n"
    assert error_of("copy", far.with_name("none.zip"), ssd).startswith(f"{far.parent}/none.zip: no such file")
    assert "copying" in run("copy", far, tmp_path / "other", "--progress").output


def test_copies_among_what_is_listed_and_deleted(far, ssd):
    make(far, 100)
    copy_to_local(far, ssd)
    ended(in_child(lambda: copy_to_local(far, ssd / "half"), Killing(7)))
    listed = {row["path"]: row["about"] for row in report("caches", ssd)}
    assert listed[far.name] == f"copy of {far}"
    half = listed[f"half/{far.name}{PARTIAL}"]
    assert half.startswith(f"a copy of {far} that is not whole yet: ")
    assert half.endswith(f" of {kb(far.stat().st_size)} are here; asked for, it goes on")
    ds = CachedDataset.from_cache(ssd / far.name)
    said = run("caches", ssd, "--max-size", "1kB", "--prune").output
    assert f"{ssd / far.name}: a process has this copy open; it stays" in said
    assert is_sample(ds[5], 5)
    ds.close()
    assert os.listdir(ssd / "half") == []  # by the same condition
    assert f"{ssd / far.name}" in run("caches", ssd, "--max-size", "1kB", "--prune").output
    assert os.listdir(ssd) == ["half"]


def test_a_copy_that_is_made_just_now_is_not_deleted(far, ssd, tmp_path):
    make(far)
    copy_to_local(far, ssd)
    CachedDataset.from_cache(far).add_labels("z", [1] * 400)

    def wait(done: int, total: int) -> None:
        (tmp_path / "copying").touch()
        time.sleep(60)

    pid = in_child(lambda: copy_to_local(far, ssd, progress=wait))
    while not (tmp_path / "copying").exists():
        time.sleep(0.01)
    partial = f"{ssd / far.name}{PARTIAL}"
    said = run("caches", ssd, "--max-size", "1B", "--prune").output
    os.kill(pid, signal.SIGKILL)
    ended(pid)
    assert f"{partial}: another process is copying it; it stays" in said
    run("caches", ssd, "--max-size", "1B", "--prune")
    assert os.listdir(ssd) == []
