"""Compression of records: one zstd frame each, with its content size and without a checksum of its own.

Records carry a crc32 outside, so a frame needs none. The index has the length of the record: a frame whose
header says otherwise is refused before its content is allocated.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from edcache.base import CorruptArchiveError, CorruptRecordError, OptionError, shown

Buffer = Any

DEFAULT_LEVEL = 3
MAX_LEVEL = 22

_KEPT_CONTEXTS = 8
_MIN_THREADED = 1 << 20
_MIN_SAMPLES = 8
_MIN_SAMPLE = 8
_MIN_TOTAL = 1024
_MIN_DICTIONARY = 256
_DICTIONARY_MAGIC = b"\x37\xa4\x30\xec"
_TEXT = re.compile(r"zstd(?P<dictionary>\+dict)?(?::(?P<level>[0-9]{1,2}))?")


class _Contexts(threading.local):
    """zstd contexts are not shared between threads, and are costly to make."""

    def __init__(self) -> None:
        self.compressor = lru_cache(_KEPT_CONTEXTS)(_compressor)
        self.decompressor = lru_cache(_KEPT_CONTEXTS)(_decompressor)


def _compressor(level: int, dictionary: bytes | None) -> Any:
    import zstandard

    # A frame says its content size and the id of its dictionary, and has no checksum: zstandard's defaults.
    data = None if dictionary is None else zstandard.ZstdCompressionDict(dictionary)
    return zstandard.ZstdCompressor(level=level, dict_data=data)


def _decompressor(dictionary: bytes | None) -> Any:
    import zstandard

    data = None if dictionary is None else zstandard.ZstdCompressionDict(dictionary)
    return zstandard.ZstdDecompressor(dict_data=data)


_contexts = _Contexts()


@dataclass(frozen=True)
class Compression:
    """How records are compressed: a value without handles, so threads, fork, spawn and pickle may share it.

    Attributes:
        level: of zstd, 1 to 22. dictionary: one is trained on the first records and shared by all.
    """

    level: int = DEFAULT_LEVEL
    dictionary: bool = False

    @classmethod
    def parse(cls, text: str | None) -> Compression | None:
        """Parse "zstd", "zstd:19", "zstd+dict", "zstd+dict:19", or None for none. Raises: OptionError."""
        if text is None:
            return None
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        level = int(match["level"] or DEFAULT_LEVEL) if match else 0
        if match is None or not 1 <= level <= MAX_LEVEL:
            raise OptionError(
                f'compression={shown(text)}: choose None, "zstd", "zstd:LEVEL", "zstd+dict" or '
                f'"zstd+dict:LEVEL", with LEVEL from 1 to {MAX_LEVEL}'
            )
        return cls(level, match["dictionary"] is not None)

    def __str__(self) -> str:
        return f"zstd{'+dict' if self.dictionary else ''}:{self.level}"

    def compress(self, data: Buffer, dictionary: bytes | None = None) -> bytes:
        """Return one frame of a C-contiguous buffer; CorruptArchiveError where its dictionary is damaged.

        Cost: the first call of a thread makes its context, which holds a few MiB at high levels.
        """
        import zstandard

        try:
            frame: bytes = _contexts.compressor(self.level, dictionary).compress(data)
        except zstandard.ZstdError as error:
            what = "" if dictionary is None else " with the archive's dictionary, which may be damaged"
            raise CorruptArchiveError(f"zstd cannot compress{what}: {error}") from error
        return frame


def decompress(frame: Buffer, raw_nbytes: int, dictionaries: Sequence[bytes] = ()) -> bytes:
    """Return the content of one whole zstd frame.

    Args:
        raw_nbytes: the length that the index states, and the content must have.
        dictionaries: those of the archive; the frame says by id which it needs.
    Raises:
        CorruptRecordError: "zstd frame says 9 bytes, the index 10".
    """
    view = memoryview(frame).cast("B")
    import zstandard

    dictionary_id, dictionary = _check_header(view, raw_nbytes), None
    if dictionary_id:
        dictionary = next((data for data in dictionaries if _dictionary_id(data) == dictionary_id), None)
        if dictionary is None:
            raise CorruptRecordError(
                f"zstd frame needs dictionary {dictionary_id}, the archive has "
                f"{', '.join(map(str, map(_dictionary_id, dictionaries))) or 'none'}"
            )
    try:
        context = _contexts.decompressor(dictionary)
        raw: bytes = context.decompress(view, max_output_size=raw_nbytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd frame does not decompress: {error}") from error
    except MemoryError:
        raise CorruptRecordError(
            f"its {raw_nbytes:,} bytes do not fit into the memory of this process"
        ) from None
    if len(raw) != raw_nbytes:  # pragma: no cover - zstd holds the content to what its header says
        raise CorruptRecordError(f"zstd frame holds {len(raw)} bytes, the index says {raw_nbytes}")
    return raw


def decompress_into(
    out: memoryview,
    places: Sequence[int],
    raw_nbytes: Sequence[int],
    frames: Sequence[Buffer],
    dictionaries: Sequence[bytes],
    threads: int,
) -> None:
    """Write the content of many frames to their places in a buffer, by threads; raises as `decompress`."""

    def run(chosen: range) -> None:
        for k in chosen:
            at, length = places[k], raw_nbytes[k]
            out[at : at + length] = decompress(frames[k], length, dictionaries)

    # zstd releases the interpreter. Starting threads takes longer than what little there is.
    threads = min(threads, len(frames)) if sum(raw_nbytes) >= _MIN_THREADED else 1
    if threads <= 1:
        run(range(len(frames)))
        return
    with ThreadPoolExecutor(threads, "edcache-zstd") as pool:
        list(pool.map(run, [range(part, len(frames), threads) for part in range(threads)]))


def _check_header(frame: memoryview, raw_nbytes: int) -> int:
    """Check a frame's header against the index; return the id of its dictionary, 0 for none."""
    import zstandard

    try:
        header = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"no zstd frame: {error}") from error
    if header.content_size != raw_nbytes:
        unknown = header.content_size == zstandard.CONTENTSIZE_UNKNOWN
        said = "nothing of its size" if unknown else f"{header.content_size} bytes"
        raise CorruptRecordError(f"zstd frame says {said}, the index {raw_nbytes}")
    return int(header.dict_id)


def _dictionary_id(dictionary: bytes) -> int:
    # zstd's dictionary head: magic, then the id. Without the magic it is raw content, which has none.
    return int.from_bytes(dictionary[4:8], "little") if dictionary[:4] == _DICTIONARY_MAGIC else 0


def train_dictionary(samples: Sequence[bytes], max_nbytes: int = 112_640) -> bytes | None:
    """Train a dictionary on records, the same on the same; None if they are too few or too small for one."""
    # zstd's trainer does not survive every set of few or tiny samples: below these bounds it was seen to
    # crash the process (test_too_little_to_train_on).
    useful: list[Any] = [sample for sample in samples if len(sample) >= _MIN_SAMPLE]
    if len(useful) < _MIN_SAMPLES or sum(map(len, useful)) < _MIN_TOTAL or max_nbytes < _MIN_DICTIONARY:
        return None
    import zstandard

    try:
        trained: bytes = zstandard.train_dictionary(max_nbytes, useful).as_bytes()
    except zstandard.ZstdError:  # pragma: no cover - it takes 4 GiB of samples
        return None
    return trained
