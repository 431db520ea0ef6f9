"""Compression: round trips, and frames that lie."""

from __future__ import annotations

import contextlib
import pickle

import numpy as np
import pytest
import zstandard
from systems import in_threads

import edcache
from edcache import CachedDataset
from edcache.codec import Encoder, compression, decoder_of
from edcache.codec import decoder as decoder_file
from edcache.codec.compression import compressor, content_nbytes, decompress_into
from edcache.errors import CorruptRecordError, OptionError


def decompress(frame):
    return compression.decompress(frame, content_nbytes(frame))


DATA = b"an example of a record, " * 40


@pytest.mark.parametrize(("text", "level"), [("zstd", 3), ("zstd:1", 1), ("zstd:22", 22)])
def test_a_text_names_the_level(text, level):
    frame = zstandard.ZstdCompressor(level).compress(DATA)
    assert compressor(text)(DATA) == frame


def test_no_compression():
    assert compressor(None) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "gzip", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "zstd:x", "zstd+dict", "ZSTD", 3, "zstd:1e"),
        "zstd:٣",
    ],
)
def test_parse_refuses(text):
    with pytest.raises(OptionError, match='choose None, "zstd" or "zstd:LEVEL", with LEVEL from 1 to 22'):
        compressor(text)


@pytest.mark.parametrize("data", [b"", b"x", DATA, bytes(1 << 20), bytearray(DATA), np.arange(99)], ids=len)
def test_round_trip(data):
    raw = memoryview(data).cast("B")
    frame = compressor("zstd:5")(data)
    assert decompress(frame) == raw
    assert decompress(memoryview(bytearray(frame))) == raw
    assert content_nbytes(frame) == raw.nbytes


def test_lies_about_the_size():
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(DATA)
    with pytest.raises(CorruptRecordError, match=r"a zstd frame of \d+ bytes says that it has -1"):
        decompress(unsized)
    # More than a frame can hold is refused before it is allocated.
    with pytest.raises(CorruptRecordError, match=r"a zstd frame of 1,614 bytes says that it has 1,152,9"):
        decompress(zeros(400, 1 << 60))


def zeros(blocks, said):
    """A frame of so many blocks of 128 KiB of zeros, which says that it holds so many bytes."""
    header = bytes.fromhex("28b52ffdc0") + bytes([20 - 10 << 3]) + said.to_bytes(8, "little")
    block = 1 << 1 | 1 << 17 << 3
    return (
        header
        + b"".join(block.to_bytes(3, "little") + b"\0" for _ in range(blocks - 1))
        + ((block | 1).to_bytes(3, "little") + b"\0")
    )


@pytest.mark.parametrize("said", [(400 << 17) - 1, (400 << 17) + 1, 399 << 17])
def test_a_bomb_ends_at_the_size_that_its_frame_states(said):
    assert decompress(zeros(400, 400 << 17)) == bytes(400 << 17)
    with pytest.raises(CorruptRecordError, match="zstd frame (says|does not decompress)"):
        decompress(zeros(400, said))


@pytest.mark.parametrize("threads", [0, 1, 3, 99])
def test_many_frames_are_decompressed_by_any_number_of_threads(threads):
    lengths = [1 << 17, 0, 5, 1 << 20, 77]
    raw = [bytes([k]) * length for k, length in enumerate(lengths)]
    places = [sum(lengths[:k]) for k in range(len(lengths))]
    frames = [compressor("zstd")(data) for data in raw]
    out = bytearray(b"\xff" * sum(lengths))
    decompress_into(memoryview(out), places, lengths, frames, threads)
    assert out == b"".join(raw)
    frames[2] = frames[4]
    with pytest.raises(CorruptRecordError, match="zstd frame says 5 bytes and has 77"):
        decompress_into(memoryview(out), places, lengths, frames, threads)


def test_a_frame_with_more_than_it_says():
    frame = bytearray(zstandard.ZstdCompressor().compress(DATA))
    honest = zstandard.get_frame_parameters(bytes(frame))
    assert honest.content_size == len(DATA)
    at = frame.index((len(DATA) - 256).to_bytes(2, "little"))
    for lie in (len(DATA) - 10, len(DATA) + 10):
        frame[at : at + 2] = (lie - 256).to_bytes(2, "little")
        with pytest.raises(CorruptRecordError, match="does not decompress"):
            decompress(bytes(frame))


def test_truncations_trailing_bytes_and_second_frames():
    frame = compressor("zstd")(DATA)
    for cut in range(len(frame)):
        with pytest.raises(CorruptRecordError):
            decompress(frame[:cut])
    for tail in (b"\0", b"x", frame, compressor("zstd")(b""), bytes.fromhex("502a4d1800000000")):
        with pytest.raises(CorruptRecordError, match="does not decompress"):
            decompress(frame + tail)


def test_flipped_bytes():
    frame = compressor("zstd")(DATA)
    for place in range(len(frame)):
        for bit in range(8):
            broken = bytearray(frame)
            broken[place] ^= 1 << bit
            with contextlib.suppress(CorruptRecordError):
                assert len(decompress(broken)) == content_nbytes(broken)


def test_threads_and_pickles():
    compress = pickle.loads(pickle.dumps(compressor("zstd:7")))

    def work():
        for n in range(200):
            data = bytes([n]) * (n + 1)
            assert decompress(compress(data)) == data

    in_threads(*[work] * 4)


@pytest.mark.parametrize("varies", [False, True])
def test_a_schema_says_what_its_frames_may_hold(varies, monkeypatch):
    encoder = Encoder()
    encoded = encoder.encode({"x": np.arange(1000)})
    if varies:
        encoded = encoder.encode({"x": np.arange(99)})
    record = encoded.record()
    decoder = decoder_of(encoder.schemas[-1] if varies else encoder.schemas[0])
    assert decoder.decompressed(compressor("zstd")(record)) == record
    monkeypatch.setattr(decoder_file, "decompress", None)  # nothing is allocated
    wrong = [0, decoder.fixed_nbytes - 8] + [8008, 400 << 17] * (not varies)
    for nbytes in wrong:
        frame = zeros(400, nbytes) if nbytes > 8008 else compressor("zstd")(bytes(nbytes))
        with pytest.raises(CorruptRecordError, match=rf"it has {nbytes:,} bytes, its schema needs \d"):
            decoder.decompressed(frame)


READS = {
    "a sample": lambda path: CachedDataset.from_cache(path)[1],
    "a field": lambda path: CachedDataset.from_cache(path).select("x")[1],
    "a batch": lambda path: CachedDataset.from_cache(path).batch([0, 1]),
    "a loader": lambda path: list(CachedDataset.from_cache(path).loader(2)),
    "joined": lambda path: edcache.concat([CachedDataset.from_cache(path)] * 2).batch([0, 4]),
    "an array": lambda path: edcache.numpy.open(path)[1],
    "arrays": lambda path: edcache.numpy.open(path).batch([0, 1]),
    "a digest": lambda path: edcache.samples_digest(CachedDataset.from_cache(path)),
}


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("read", READS)
def test_a_bomb_is_refused_by_name_before_it_is_decompressed(tmp_path, monkeypatch, read, varies):
    path, bomb, compress = tmp_path / "a.zip", zeros(400, 400 << 17), compression._compress
    monkeypatch.setattr(
        compression, "_compress", lambda level, data: bomb if 1 in bytes(data) else compress(level, data)
    )
    with edcache.CacheWriter(path, compression="zstd") as writer:
        writer.extend({"x": np.full(1000, k), **({"y": "text"} if varies else {})} for k in range(3))
    decompress = compression.decompress

    def within(frame, nbytes):
        assert nbytes < 8100
        return decompress(frame, nbytes)

    monkeypatch.setattr(compression, "decompress", within)
    monkeypatch.setattr(decoder_file, "decompress", within)
    told = (
        "record of 52428800 bytes, its leaves end at"
        if varies
        else "it has 52,428,800 bytes, its schema needs"
    )
    with pytest.raises(CorruptRecordError, match=rf"a\.zip: record 1 at offset [\d,]+: {told} 8,?0"):
        READS[read](path)


def test_a_large_record_that_compresses_well_reads_as_it_was_written(tmp_path):
    sample = {"x": np.zeros(1 << 20), "y": "text" * 500_000, "z": [1, 2]}
    edcache.CachedDataset([sample] * 2, tmp_path / "a.zip", compression="zstd", progress=False)
    assert (tmp_path / "a.zip").stat().st_size < 1 << 16
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    assert (ds[1]["x"].tolist(), ds[1]["y"], ds[1]["z"]) == ([0] * (1 << 20), sample["y"], [1, 2])


def test_a_frame_that_ends_before_the_data_of_its_record():
    encoder = Encoder()
    encoder.encode({"x": np.zeros(100), "y": "text"})
    header, block = zeros(1, 2 << 20)[:-4], (1 << 17 << 3).to_bytes(3, "little")  # a raw block that is cut
    with pytest.raises(CorruptRecordError, match="record of 2097152 bytes, its schema needs at least 808"):
        decoder_of(encoder.schemas[0]).content_nbytes(memoryview(header + block + bytes(60)))


def test_a_bomb_in_a_keyed_cache_is_refused_by_name(tmp_path, monkeypatch):
    path, bomb, compress = tmp_path / "a.zip", zeros(400, 400 << 17), compression._compress
    monkeypatch.setattr(
        compression, "_compress", lambda level, data: bomb if 1 in bytes(data) else compress(level, data)
    )
    told = r"a\.zip: record 1 at offset [\d,]+: it has 52,428,800 bytes, its schema needs 8,000"
    with edcache.KeyedCache(path, compression="zstd") as cache:
        for _ in range(2):  # what was computed is read back
            with pytest.raises(CorruptRecordError, match=told):
                cache.get_many(["a", "b"], lambda keys: [np.full(1000, k) for k in range(2)])
        assert cache["a"].tolist() == [0] * 1000
