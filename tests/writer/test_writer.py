"""CacheWriter: modes, what an exception leaves, growth, gaps, options, space and determinism."""

import errno
import os
import pickle
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import torch
from codec_samples import encoded_bytes
from damage import flip
from scale import scaled
from systems import Full, Rebooted, System, replace_system
from written import write

import edcache
from edcache import CachedDataset, CacheWriter, format
from edcache.codec.encoder import Encoder
from edcache.codec.plan import FlatPlan
from edcache.errors import (
    ArchiveError,
    ArchiveExistsError,
    CodecError,
    CorruptArchiveError,
    LabelError,
    MissingSampleError,
    OptionError,
    SampleIndexError,
    SourceError,
    StaleArchiveError,
    StorageError,
)
from edcache.labels.label_spec import LabelSpec
from edcache.reader import Reader
from edcache.writer import seal
from edcache.writer.appender import Appender
from edcache.writer.builder import ChunkBuilder


def contents(path):
    ds = CachedDataset.from_cache(path, allow_partial=True)
    missing = set(ds.missing.tolist())
    return {i: ds[i] for i in range(len(ds)) if i not in missing}


def test_x_refuses_a_path_that_exists(path):
    write(path, [1])
    with pytest.raises(ArchiveExistsError, match='exists already; use mode="a" to continue or grow it'):
        CacheWriter(path)
    with pytest.raises(OptionError, match="mode='r'; choose 'x' .new., 'a'"):
        CacheWriter(path, "r")


def test_a_continues_unsealed_and_grows_sealed_archives(path):
    for _ in range(3):
        w = CacheWriter(path, "a")
        w.extend([w.next_index, w.next_index + 1])
        w.abort()
        with CacheWriter(path, "a") as w:
            w.append(w.next_index)
    assert contents(path) == {i: i for i in range(9)}
    assert edcache.verify(path).sound


def test_the_next_index_is_known_while_samples_are_pending(path):
    with CacheWriter(path, publish_seconds=None) as w:
        told = []
        for change in (
            lambda: w.append("a"),
            lambda: w.write(7, "b"),
            lambda: w.write(3, "c"),
            lambda: w.append("d"),
            lambda: w.write(2, "e"),
            w.flush,
        ):
            change()
            told.append(w.next_index)
    assert told == [1, 8, 8, 9, 9, 9]
    assert contents(path) == {0: "a", 2: "e", 3: "c", 7: "b", 8: "d"}


def test_an_exception_leaves_an_unsealed_archive_that_opens_and_continues(path):
    with pytest.raises(RuntimeError, match="in the block"), CacheWriter(path) as w:
        w.extend(["a", "b", "c"])
        raise RuntimeError("in the block")
    assert not Reader(path, allow_partial=True).session.sealed
    assert contents(path) == {0: "a", 1: "b", 2: "c"}
    write(path, ["d"], "a")
    assert contents(path) == {0: "a", 1: "b", 2: "c", 3: "d"}
    assert Reader(path).session.sealed


def test_w_shows_the_old_archive_until_the_new_one_is_sealed(path):
    for text in ("old", "new"):
        reader = Reader(path)
        with CacheWriter(path, "w") as w:
            w.append(text)
            w.flush()
            if text == "new":
                assert contents(path) == {0: "old"}
                assert reader.session.read(0) == "old"
        assert contents(path) == {0: text}
        assert reader.session.read(0) in ("old", text)
    assert os.listdir(path.parent) == ["a.zip"]


def test_w_leaves_the_old_archive_and_a_resumable_one_beside_it_on_an_exception(path):
    write(path, ["old"])
    with pytest.raises(ValueError, match="no"), CacheWriter(path, "w") as w:
        w.append("new")
        raise ValueError("no")
    assert contents(path) == {0: "old"}
    assert contents(str(path) + ".edcache.new") == {0: "new"}


def test_a_replacement_follows_a_link_and_replaces_no_pipe(tmp_path):
    (tmp_path / "big").mkdir()
    (tmp_path / "a.zip").symlink_to(tmp_path / "big" / "a.zip")
    for value in (1, 2):
        write(tmp_path / "a.zip", [value], "w")
        assert (tmp_path / "a.zip").is_symlink()
        assert list(CachedDataset.from_cache(tmp_path / "big" / "a.zip")) == [value]
    CachedDataset([3], tmp_path / "a.zip", keep_existing=False, progress=False)
    assert list(CachedDataset.from_cache(tmp_path / "big" / "a.zip")) == [3]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="pipe: not a regular file; an archive is an ordinary file"):
        CacheWriter(tmp_path / "pipe", "w")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_two_replacements_of_one_path_exclude_each_other(path):
    w = CacheWriter(path, "w")
    with pytest.raises(ArchiveError, match="a.zip.edcache.new: another process is writing it"):
        CacheWriter(path, "w")
    w.close()
    CacheWriter(path, "w").close()


def test_write_stores_at_any_index_and_the_later_wins(path):
    with CacheWriter(path, in_memory_keys={"y": 0}) as w:
        for i in (7, 2, 9, 2):
            w.write(i, (i, "first"))
        w.write(np.int64(7), (7, "second"))
    with CacheWriter(path, "a") as w:
        w.write(9, (9, "second"))
        w.append((10, "appended"))
    found = contents(path)
    assert found == {
        2: (2, "first"),
        7: (7, "second"),
        9: (9, "second"),
        10: (10, "appended"),
    }
    ds = CachedDataset.from_cache(path)
    assert ds.missing.tolist() == [0, 1, 3, 4, 5, 6, 8]
    assert not ds.complete
    assert ds.labels.table["y"].to_pylist() == [None, None, 2, None, None, None, None, 7, None, 9, 10]
    with pytest.raises(MissingSampleError, match="sample 3 has no record yet .4 of 11 have.; fill it"):
        ds[3]
    with (
        pytest.raises(SampleIndexError, match="index -1; write.. takes 0 and up"),
        CacheWriter(path, "a") as w,
    ):
        w.write(-1, 0)


def test_a_buffer_may_be_reused_after_append(path):
    buffer, tensor = np.zeros(3), torch.zeros(2)
    with CacheWriter(path) as w:
        for i in range(4):
            buffer[:], tensor[:] = i, i
            w.append([buffer, tensor, bytearray([i])])
    for i, (array, tensor, data) in contents(path).items():
        assert array.tolist() == [i] * 3
        assert tensor.tolist() == [i] * 2
        assert data == bytes([i])


def test_a_closed_writer_says_so(path):
    w = CacheWriter(path)
    w.close()
    w.close()
    w.abort()
    with pytest.raises(ArchiveError, match='this writer is closed; open the archive with mode="a"'):
        w.append(1)


def test_a_sample_that_cannot_be_stored_is_named_and_the_rest_stays(path):
    with CacheWriter(path, in_memory_keys=["y"]) as w:
        w.append({"y": 1, "boxes": None})
        message = (
            r'a.zip: sample 1: sample\["boxes"\]: cannot store set; convert it to tensors, arrays or plain'
        )
        with pytest.raises(CodecError, match=message):
            w.append({"y": 2, "boxes": {1}})
        with pytest.raises(LabelError, match='a.zip: label "y": sample 1 has no field "y"; .*"boxes"'):
            w.append({"boxes": None})
        with pytest.raises(LabelError, match='label "y": sample 1 is a str .*earlier samples are int64'):
            w.append({"y": "two", "boxes": None})
        w.append({"y": 3, "boxes": None})
    assert [s["y"] for s in contents(path).values()] == [1, 3]
    assert CachedDataset.from_cache(path).labels["y"].tolist() == [1, 3]


def test_options_that_contradict_the_archive_are_refused(path):
    CacheWriter(path, in_memory_keys=["y"], compression="zstd").close()
    for options, message in (
        ({"compression": "zstd:19"}, "compression='zstd:19', but the archive was begun with 'zstd'"),
        ({"codec": "pickle"}, "codec='pickle', but the archive was begun with 'native'"),
        ({"in_memory_keys": ["z"]}, r"in_memory_keys=\['z'\], but the archive was begun with \['y'\]"),
        ({"chunk_size": 0}, "chunk_size=0; give an integer of 1 or more"),
        ({"sync": "often"}, "sync='often'; choose one of 'never', 'seal', 'chunk'"),
    ):
        with pytest.raises(OptionError, match=message):
            CacheWriter(path, "a", **options)
    write(path, [{"y": 5}], "a")
    assert CachedDataset.from_cache(path).labels["y"].tolist() == [5]


def test_labels_made_by_functions_must_be_given_again(path):
    keys = {"parity": lambda s: s % 2}
    write(path, [3], in_memory_keys=keys)
    with pytest.raises(OptionError, match=r"functions made its labels \['parity'\]; pass the same"):
        CacheWriter(path, "a")
    write(path, [4], "a", in_memory_keys=keys)
    assert CachedDataset.from_cache(path).labels["parity"].tolist() == [1, 0]


def test_the_same_samples_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        with CacheWriter(tmp_path / name, in_memory_keys=["y"], chunk_size=7, uuid=bytes(16)) as w:
            w.extend({"x": np.arange(i), "y": i, "t": "é" * i} for i in range(30))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("compression", ["zstd", "zstd:19"])
def test_compressed_samples_come_back_and_take_less_room(tmp_path, compression):
    samples = [{"text": "all work and no play " * (i % 5 + 1), "n": i} for i in range(400)]
    for name, option in (("plain", None), ("packed", compression)):
        write(tmp_path / name, samples, compression=option, chunk_size=100)
    assert list(CachedDataset.from_cache(tmp_path / "packed")) == samples
    nbytes = {
        name: int(Reader(tmp_path / name).session.index.all_rows()["nbytes"].sum())
        for name in ("plain", "packed")
    }
    assert nbytes["packed"] < 0.9 * nbytes["plain"]
    assert edcache.verify(tmp_path / "packed").sound


@pytest.mark.parametrize(
    ("nbytes", "count", "most"), [(792, 5000, 1.12), (10_000, 1000, 1.02), (150_528, 60, 1.02)]
)
def test_space_over_the_payload(path, nbytes, count, most):
    """12 % for 800-byte samples, 2 % from 10 kB up, labels included."""
    samples = np.zeros((count, nbytes), np.uint8)
    write(path, ((row, i) for i, row in enumerate(samples)), in_memory_keys={"y": 1})
    assert path.stat().st_size <= most * count * (nbytes + 8)


def test_a_sample_larger_than_a_chunk_is_a_chunk_of_its_own(path, monkeypatch):
    monkeypatch.setattr("edcache.writer.builder.CHUNK_NBYTES", 1000)
    write(path, [bytes(10), bytes(5000), bytes(10)])
    assert [len(s) for s in contents(path).values()] == [10, 5000, 10]


def test_a_foreign_file_is_left_alone(path):
    for data in (b"PK\3\4 a zip of somebody else" * 500, b"text", b"PK\3\4" + bytes(60)):
        path.write_bytes(data)
        with pytest.raises(
            edcache.errors.CorruptArchiveError, match="does not begin with a zip entry edcache.json"
        ):
            CacheWriter(path, "a")
        assert path.read_bytes() == data


def test_a_damaged_head_is_not_written_over(path):
    write(path, [1])
    flip(path, 500)
    data = path.read_bytes()
    with pytest.raises(CorruptArchiveError, match="the head's 3,904 bytes fail their crc32"):
        CacheWriter(path, "a")
    assert path.read_bytes() == bytes(data)


def test_an_empty_archive_is_an_empty_dataset(path):
    CacheWriter(path, in_memory_keys=["y"]).close()
    ds = CachedDataset.from_cache(path)
    assert (len(ds), list(ds), ds.complete) == (0, [], True)
    assert ds.labels["y"].tolist() == []
    assert len(ds.filter(y=3)) == 0


@pytest.mark.parametrize("mode", ["x", "a", "w"])
def test_a_writer_may_be_sealed_before_it_is_closed(path, mode):
    with CacheWriter(path, mode) as w:
        w.append(1)
        w.seal()
        assert contents(path) == {0: 1}
    assert contents(path) == {0: 1}
    assert edcache.verify(path).sealed


@pytest.mark.parametrize("mode", ["x", "a", "w"])
def test_a_writer_may_append_after_its_own_seal(path, mode):
    with CacheWriter(path, mode) as w:
        w.append(1)
        w.seal()
        w.append(2)
    assert contents(path) == {0: 1, 1: 2}
    assert edcache.verify(path).problems == []
    assert edcache.verify(path).sealed


@pytest.mark.parametrize("options", [{"chunk_size": 0}, {"sync": "often"}], ids=str)
@pytest.mark.parametrize("mode", ["x", "w"])
def test_a_refused_option_leaves_no_file(path, mode, options):
    with pytest.raises(OptionError):
        CacheWriter(path, mode, **options)
    assert os.listdir(path.parent) == []


def test_a_replacement_that_ends_just_before_the_next_one_locks_stays_whole(path):
    """The next one has opened the .new file by then, and must not empty what took the path's place."""
    first = CacheWriter(path, "w")
    first.append("first")

    class LateLock(System):
        def lock(self, fd, start, length, wait):
            if start == format.LOCK_SESSION:
                first.close()
            super().lock(fd, start, length, wait)

    with replace_system(LateLock()):
        second = CacheWriter(path, "w")
    assert contents(path) == {0: "first"}
    second.append("second")
    second.close()
    assert contents(path) == {0: "second"}


@pytest.mark.parametrize("sync", [0, -1, True, float("nan"), float("inf"), "often", None])
def test_what_is_no_choice_of_sync_is_refused(path, sync):
    with pytest.raises(OptionError, match="choose one of 'never', 'seal', 'chunk', or a number of seconds"):
        CacheWriter(path, sync=sync)
    assert not path.exists()


def test_a_replaced_or_deleted_archive_takes_no_more_chunks(path, tmp_path):
    """They would go to a file without a name."""
    for takes_place in (lambda: os.replace(tmp_path / "other.zip", path), path.unlink):
        w = CacheWriter(path, "w")
        w.append(0)
        w.seal()
        write(tmp_path / "other.zip", [7], "w")
        w.append(1)
        w.flush()  # it knows its own new name
        w.append(2)
        takes_place()
        with pytest.raises(StaleArchiveError, match="deleted, or another file has taken its place"):
            w.flush()
        with pytest.raises(StorageError, match="an append was broken off"):
            w.close()


def test_folders_above_the_path_are_made(tmp_path):
    write(tmp_path / "a" / "b" / "c.zip", [1])
    assert contents(tmp_path / "a" / "b" / "c.zip") == {0: 1}


def test_an_interrupt_in_the_block_keeps_what_was_appended(path):
    with pytest.raises(KeyboardInterrupt), CacheWriter(path) as w:
        w.append("kept")
        raise KeyboardInterrupt
    assert contents(path) == {0: "kept"}


def test_a_replacement_that_was_given_up_is_begun_anew(path):
    with pytest.raises(ValueError, match="no"), CacheWriter(path, "w") as w:
        w.append("given up")
        raise ValueError("no")
    reader = Reader(str(path) + ".edcache.new", allow_partial=True)
    assert reader.session.length == 1
    with CacheWriter(path, "w") as w:
        w.append("new")
        assert reader.session.read(0) == "given up"
    assert contents(path) == {0: "new"}
    assert os.listdir(path.parent) == ["a.zip"]


def write_without_a_file(path, error):
    with CacheWriter(path) as w:
        w.append(1)
        path.unlink()
        raise error


def test_what_was_not_published_is_said_beside_the_error_of_the_block(path):
    with pytest.raises(RuntimeError, match="of the block") as caught:
        write_without_a_file(path, RuntimeError("of the block"))
    message = f"The last samples could not be stored: {path}: deleted, or another file has taken its place"
    assert [note[: len(message)] for note in caught.value.__notes__] == [message]


def test_an_error_that_takes_no_notes_is_raised_with_a_warning(path):
    """As every error of Python 3.10."""

    class Plain(Exception):
        add_note = property()

    warned = pytest.warns(RuntimeWarning, match="The last samples could not be stored: .*: deleted, or")
    with warned, pytest.raises(Plain, match="of the block"):
        write_without_a_file(path, Plain("of the block"))


def test_fillers_see_each_other_until_they_close(path):
    """In one process too, where all begin to look for a place at the same number."""
    head = format.Head(bytes(16))
    one, two, other = (Appender.open(path, head, mode="a") for _ in range(3))
    assert not other.claims.has_fillers
    assert one.claims.join_fillers()
    assert not two.claims.join_fillers()
    assert one.claims.has_fillers
    one.close()
    assert other.claims.has_fillers
    assert not other.claims.join_fillers()
    other.close()
    two.close()
    other = Appender.open(path, head, mode="a")
    assert not other.claims.has_fillers
    assert other.claims.join_fillers()
    assert other.claims.join_fillers()
    other.close()


def test_more_fillers_than_there_are_places_fill_all_the_same(path, monkeypatch):
    monkeypatch.setattr(format, "FILLERS", 2)
    appenders = [Appender.open(path, format.Head(bytes(16)), mode="a") for _ in range(4)]
    assert [appender.claims.join_fillers() for appender in appenders] == [True, False, False, False]
    for appender in appenders:
        appender.close()


def test_of_fillers_that_begin_at_once_one_is_the_first(path):
    head = format.Head(bytes(16))
    appenders = [Appender.open(path, head, mode="a") for _ in range(8)]
    start = threading.Barrier(len(appenders))

    def join(appender):
        start.wait(60)
        return appender.claims.join_fillers()

    with ThreadPoolExecutor(len(appenders)) as pool:
        assert sum(pool.map(join, appenders)) == 1
    for appender in appenders:
        appender.close()


def test_a_claim_is_waited_for_until_its_holder_lets_go(path):
    one, other = (Appender.open(path, format.Head(bytes(16)), mode="a") for _ in range(2))
    assert one.claims.claim(3)
    assert not other.claims.claim(3)
    waiting = threading.Thread(target=other.claims.wait, args=(3,), daemon=True)
    waiting.start()
    one.claims.release(3)
    waiting.join(30)
    assert not waiting.is_alive()
    assert not one.claims.claim(3)
    one.close()
    other.close()


def test_claims_are_taken_up_to_the_first_that_another_has(path):
    one, other = (Appender.open(path, format.Head(bytes(16)), mode="a") for _ in range(2))
    assert one.claims.claim(5)
    assert not other.claims.claim(5, 8)
    count = other.claims.claim(0, 16)
    assert 1 < count <= 5
    assert not any(one.claims.claim(number) for number in range(count))
    other.claims.release(1, count - 1)
    assert one.claims.claim(1, count - 1) == count - 1
    assert not one.claims.claim(0)
    other.close()
    assert one.claims.claim(0)
    one.close()


def test_most_claims_ahead_stay_free_for_samples_that_get_slow(path):
    class Slowing:
        def __len__(self):
            return 2000

        def __getitem__(self, i):
            if i in (20, 40):  # the first of the second and of the third claim
                with closing(Appender.open(path, format.Head(bytes(16)), mode="a")) as other:
                    is_free.append(other.claims.claim(4))
            if i == 40:
                raise ValueError
            time.sleep(0.03 * (i >= 20))
            return i

    is_free = []
    with pytest.raises(SourceError):
        CachedDataset(Slowing(), path)
    assert is_free == [1, 1]


def test_a_filler_that_finds_no_place_fills_unseen(path):
    class Crowded(System):
        def lock(self, fd, start, length, wait):
            if format.LOCK_FILLER <= start < format.LOCK_FILLER + format.FILLERS:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            super().lock(fd, start, length, wait)

    with replace_system(Crowded()):
        assert CachedDataset(range(5), path)[3] == 3


def test_a_record_larger_than_any_head_does_not_look_like_one_that_was_never_created(path):
    write(path, [np.zeros(6 << 20, np.uint8)])
    write(path, [1], "a")
    assert Reader(path).session.length == 2


def test_a_closed_appender_says_so(path):
    appender = Appender.open(path, format.Head(bytes(16)), mode="x")
    appender.close()
    for use in (lambda: seal(appender), appender.catch_up, lambda: appender.claims.claim(0)):
        with pytest.raises(ArchiveError, match=r"a\.zip: closed; open it again"):
            use()


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_chunks_made_without_the_archive_are_published_as_its_own(path, compression):
    head, spec = format.Head(bytes(16), compression=compression), LabelSpec.parse(None)
    builder, made = ChunkBuilder(head, "a.zip", spec, 3), []
    for k in range(7):
        builder.add(k, {"x": np.full(k, k), "k": k})
        if len(builder) == 3:
            made.append(pickle.loads(pickle.dumps(builder.take())))
    assert (len(made), len(builder)) == (2, 1)
    made.append(builder.take())
    assert [chunk.samples.tolist() for chunk in made] == [[0, 1, 2], [3, 4, 5], [6]]
    appender = Appender.open(path, head, mode="x")
    for chunk in made:
        appender.append(chunk.only(~np.isin(chunk.samples, [1, 3])))
    seal(appender)
    appender.close()
    assert edcache.verify(path).sound
    assert {k: v["x"].tolist() for k, v in contents(path).items()} == {k: [k] * k for k in (0, 2, 4, 5, 6)}


def test_what_others_published_meanwhile_is_not_published_again(path):
    head = format.Head(bytes(16))
    appender = Appender.open(path, head, mode="x")
    builder = ChunkBuilder(head, "a.zip", LabelSpec.parse(None))
    for kept in ([True, False], [True, True]):
        builder.add(0, "a")
        builder.add(1, "b")
        appender.append(builder.take().only(np.array(kept)))
        assert len(builder) == 0
    appender.close()
    assert contents(path) == {0: "a", 1: "b"}


@pytest.mark.parametrize("spare", [0, -1])
def test_a_chunk_beyond_max_bytes_is_an_error_and_not_appended(path, spare):
    head, nbytes = format.Head(bytes(16)), []
    for limit in (None, lambda: nbytes[0] + spare):
        path.unlink(missing_ok=True)
        with closing(Appender.open(path, head, mode="x")) as appender:
            builder, before = ChunkBuilder(head, "a.zip", LabelSpec.parse(None)), path.stat().st_size
            builder.add(0, bytes(10_000))
            if limit is None or not spare:
                appender.append(builder.take(), max_bytes=limit and limit())
                nbytes.append(appender.chain.cursor.offset)
            else:
                with pytest.raises(
                    StorageError, match="a.zip: appending: the archive would grow beyond max"
                ) as caught:
                    appender.append(builder.take(), max_bytes=limit())
                assert (caught.value.errno, path.stat().st_size) == (errno.EFBIG, before)


def test_a_small_chunk_waits_for_more_samples_a_second_and_a_larger_one_does_not(path):
    head = format.Head(bytes(16))
    with closing(Appender.open(path, head, mode="x")) as appender:
        builder = ChunkBuilder(head, "a.zip", LabelSpec.parse(None))
        builder.add(0, "a")
        time.sleep(0.4)
        assert not builder.is_due
        builder.add(1, bytes(64 << 10))
        assert builder.is_due
        builder.publish(appender)
        builder.add(2, "a")
        time.sleep(1.1)
        assert builder.is_due


def test_what_lies_between_the_leaves_of_a_record_is_zero_whatever_was_there(path):
    """The buffer of large records is used again."""
    encoder = Encoder()
    samples = [{"x": np.full(n, 255, np.uint8), "y": "a" * (n % 7)} for n in (90_001, 80_003, 70_005, 60_001)]
    encoded = [encoded_bytes(encoder.encode(sample)) for sample in samples]
    write(path, samples, chunk_size=1)
    reader = Reader(path)
    assert [bytes(reader.session.fetch(k)[0]) for k in range(4)] == encoded


def test_a_sample_that_is_packed_into_the_buffer_makes_the_bytes_of_one_that_is_not(monkeypatch):
    """Also behind one of which a part was written before it was refused, and in memory that is used again."""
    draw = np.random.default_rng(0)

    def sample(k):
        kind, sizes = draw.integers(7), (1, 3, 1023, 1024, 5_000)
        x = draw.integers(0, 256, sizes[k // 9 % 5], np.uint8)
        if kind == 0:
            return {"x": x, "label": 2**70}  # for which no struct has room
        if kind == 1:
            return {"x": torch.from_numpy(x), "label": int(kind)}
        if kind == 2:
            return {"x": x, "label": object()}  # refused
        return (
            {"x": x, "label": int(kind), "y": (1.5, None, True)}
            if kind == 3
            else {"x": x, "label": int(kind)}
        )

    samples = [sample(k) for k in range(scaled(2_000, 400))]
    packed, walked = [], []
    for chunks in (packed, walked):
        builder = ChunkBuilder(
            format.Head(bytes(16)),
            "a.zip",
            LabelSpec.parse(["label"]),
            failure_of=lambda index, error: format.Failure(index, False, "", "", ""),
        )
        if chunks is walked:
            monkeypatch.setattr(FlatPlan, "of", classmethod(lambda *_: None))
        for index, one in enumerate(samples):
            builder.add(index, one)
            if index % 97 == 96:
                buffer, dirty = builder._buffer, builder.nbytes
                chunk = builder.take()
                chunks.append(
                    (
                        bytes(chunk.data),
                        chunk.rows.tolist(),
                        chunk.schemas,
                        chunk.labels,
                        chunk.samples.tolist(),
                    )
                )
                builder._buffer, builder._dirty = buffer, dirty
        chunks.append([one.index for one in builder.failures])
    assert packed == walked
    assert len(packed) > 3


def test_memory_that_is_used_again_and_enlarged_leaves_zeros_between_records(path):
    """A second chunk's bytes do not depend on the first's."""
    head = format.Head(bytes(16))
    used, fresh = (ChunkBuilder(head, "a.zip", LabelSpec.parse(None)) for _ in range(2))
    for builder in (used, fresh):
        builder.add(0, np.full(4_500_000, 255, np.uint8))
    fresh.take()
    with closing(Appender.open(path, head, mode="x")) as appender:
        used.publish(appender)
    for builder in (used, fresh):
        builder.add(1, np.zeros(4_000_001, np.uint8))
        builder.add(2, np.zeros(2_000_000, np.uint8))
    assert bytes(used.take().data) == bytes(fresh.take().data)


def test_a_sample_whose_label_is_refused_leaves_no_bytes_between_the_next_ones():
    label = [0]
    tried, fresh = (
        ChunkBuilder(format.Head(bytes(16)), "a.zip", LabelSpec({"label": lambda sample: label[0]}))
        for _ in range(2)
    )

    five, three = [np.full(5, 255, np.uint8)], (np.full(3, 255, np.uint8),)
    for builder in (tried, fresh):
        builder.add(0, five)
    label[0] = "text"
    with pytest.raises(LabelError):
        tried.add(1, five)
    label[0] = 0
    for builder in (tried, fresh):
        builder.add(1, three)
        builder.add(2, three)
    assert bytes(tried.take().data) == bytes(fresh.take().data)


def test_a_sound_archive_is_opened_after_a_power_cut_as_it_was(path):
    w = CacheWriter(path, chunk_size=2, sync="never")
    w.extend(range(8))
    w.abort()
    data = path.read_bytes()
    with replace_system(Rebooted()):
        CacheWriter(path, "a").abort()
    assert path.read_bytes() == data


class Unsyncable(System):
    """A disk that fails every sync but that of the head."""

    def sync(self, fd):
        if os.fstat(fd).st_size > 4096:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


IN_DOUBT = (
    "a.zip: a sync failed, so what was written since the last one is in doubt; open it again, which checks"
)


def test_after_a_sync_that_failed_nothing_more_is_written(path):
    """To try again would prove nothing: the kernel takes the pages for clean."""
    with replace_system(Unsyncable()):
        w = CacheWriter(path, sync="chunk", chunk_size=1)
        with pytest.raises(
            StorageError, match="syncing it; what was written since the last sync is in doubt"
        ):
            w.append(0)
        for use in (lambda: w.append(1), w.close):
            with pytest.raises(StorageError, match=IN_DOUBT):
                use()
    write(path, [1], "a")
    assert contents(path) == {0: 0, 1: 1}


def test_a_replacement_that_cannot_be_begun_keeps_no_other_out(path):
    with (
        replace_system(Full()),
        pytest.raises(StorageError, match="a.zip.edcache.new: writing 4,096 bytes at"),
    ):
        CacheWriter(path, "w")
    write(path, [1], "w")
    assert contents(path) == {0: 1}


def test_of_two_writers_whose_labels_are_of_different_types_the_first_wins(path):
    """The other's samples could not be published by any later call, and are let go."""
    one, other = (CacheWriter(path, "a", in_memory_keys=["y"]) for _ in range(2))
    one.append({"y": 1})
    other.append({"y": "one"})
    one.flush()
    with pytest.raises(LabelError, match='a.zip: label "y"'):
        other.flush()
    other.append({"y": 2})
    other.flush()
    one.close()
    assert contents(path) == {0: {"y": 1}, 1: {"y": 2}}
    other.close()
