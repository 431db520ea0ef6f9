"""Reader: what it says of itself and of the samples that it does not have."""

import numpy as np
import pytest
import torch

from edcache import CacheWriter
from edcache.errors import (
    ArchiveError,
    CorruptArchiveError,
    MissingSampleError,
    OptionError,
    SampleIndexError,
)
from edcache.format import spec as format
from edcache.reader import Reader
from edcache.reader.checks import CheckedBlocks
from edcache.writer.appender import Appender


def sample(k):
    return {"x": torch.full((4,), k), "y": k}


@pytest.fixture
def path(tmp_path):
    """Samples 0 to 9 in chunks of 4, with their labels; 3 is missing, 5 and 7 failed."""
    path = tmp_path / "a.zip"
    with CacheWriter(path, in_memory_keys=["y"], chunk_size=4) as w:
        for k in (0, 1, 2, 4, 6, 8, 9):
            w.write(k, sample(k))
    appender = Appender.open(path, format.Head(bytes(16)), mode="a")
    failed = [[5, True, "ValueError", "no image", "Traceback of then"], [7, False, "OSError", "gone", "tb"]]
    appender.amend(failed=failed)
    appender.seal()
    appender.close()
    return path


def test_a_wrong_choice_is_refused(path):
    with pytest.raises(OptionError) as caught:
        Reader(path, verify="often")
    assert str(caught.value) == "verify='often'; choose one of 'touch', 'always', 'never'"


def test_it_says_what_it_reads(path):
    reader = Reader(path)
    assert repr(reader) == f"Reader({str(path)!r})"
    assert (len(reader), reader.present, reader.chunks, reader.declared_length) == (10, 7, 2, None)
    assert reader.nbytes == path.stat().st_size
    assert len(reader.schemas) == 1
    assert reader.session.damaged == []
    assert (reader.sealed, reader.complete) == (True, False)


def test_a_sample_that_is_not_there_says_why(path):
    reader = Reader(path)
    with pytest.raises(SampleIndexError, match=r"a.zip: index 10 not in \[0, 10\)"):
        reader.read(10)
    with pytest.raises(MissingSampleError, match=r"sample 3 has no record yet \(7 of 10 have\); fill it"):
        reader.read(3)
    with pytest.raises(MissingSampleError, match="sample 5 failed when it was made, it counts as absent for"):
        reader.read(5)
    with pytest.raises(MissingSampleError, match="sample 7 failed when it was made, a later fill"):
        reader.read(7)
    with pytest.raises(MissingSampleError, match="ValueError: no image\nTraceback of then$"):
        reader.read(5)
    assert reader.session.decoder_of(5) is None


def test_a_group_is_of_samples_that_are_there(tmp_path, path):
    reader = Reader(path)
    assert reader.session.group(np.array([0, 3])) is None
    assert reader.session.group(np.array([0, 9])) is not None
    with CacheWriter(tmp_path / "dense.zip") as w:
        w.extend(map(sample, range(5)))
    for archive in (reader, Reader(tmp_path / "dense.zip")):
        for indices in ([0, 10], [-11, 0]):
            with pytest.raises(SampleIndexError, match=f"{indices[1] or indices[0]}"):
                archive.session.group(np.array(indices))
    with pytest.raises(IndexError, match="arrays used as indices must be of integer"):
        Reader(tmp_path / "dense.zip").session.group(np.array([0.5, 1.0]))


def test_a_closed_reader_says_so(path):
    reader = Reader(path)
    assert reader.read(4)["y"] == 4
    for _ in range(2):
        reader.close()
        with pytest.raises(ArchiveError, match="a.zip: closed; open it again to read"):
            reader.read(4)


def test_damaged_labels_are_named_and_the_samples_read_on(path):
    data = bytearray(path.read_bytes())
    at = data.rindex(b"labels.arrow", 0, data.rindex(b"PK\1\2")) - 30
    labels = format.parse_header(bytes(data[at : at + format.MAX_HEADER_NBYTES]))
    data[labels.payload_end - 40] ^= 1
    path.write_bytes(data)
    reader = Reader(path)
    message = f"labels.arrow at offset {labels.offset:,} fails its crc32; the samples are not lost"
    with pytest.raises(CorruptArchiveError, match=message):
        reader.labels()
    assert reader.read(4)["y"] == 4


@pytest.mark.parametrize(
    "blocks", [np.empty((0, 3), np.int64), np.array([[0, 64, 100]]), np.array([[0, 64, 1 << 40]])], ids=str
)
def test_what_lies_in_no_known_chunk_counts_as_unchecked(blocks):
    """So that each record there is compared with its own crc32."""
    checked = CheckedBlocks(memoryview(bytes(4096)), blocks)
    starts, ends = np.array([0, 1000, 100]), np.array([8, 1008, 4096])
    assert checked.unsound(starts, ends).all()
    assert not any(map(checked.are_sound, starts.tolist(), ends.tolist()))
    assert not checked.done
