"""Compression of records: one zstd frame each, with its content size, without a checksum: rows have one.

A frame that claims more content than its bytes can hold, or than records of its schema have
(codec/decoder.py:Decoder.content_nbytes), is refused before that is allocated.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

from edcache.base import CorruptRecordError, OptionError, once, shown

Buffer = Any

_DEFAULT_LEVEL = 3
_MAX_LEVEL = 22

_MIN_THREADED = 1 << 20
# zstd's block of one repeated byte: 4 bytes for 128 KiB.
_MOST_RATIO = 1 << 15
# Largest window that a frame may ask for.
_MOST_WINDOW = 1 << 31
_TEXT = re.compile(r"zstd(?::(?P<level>[0-9]{1,2}))?")


class _Contexts(threading.local):
    """Contexts of zstd, which threads cannot share, and which are costly to make."""

    @once
    def compressor(self) -> Any:
        import zstandard

        # By level; content size, but no checksum, is zstandard's default.
        return cache(zstandard.ZstdCompressor)

    @once
    def decompressor(self) -> Any:
        import zstandard

        return zstandard.ZstdDecompressor()


_contexts = _Contexts()


def compressor(text: str | None) -> Callable[[Buffer], bytes] | None:
    """Return the function from a C-contiguous buffer to its frame, for "zstd" or "zstd:19"; None for None.

    Raises: OptionError.
    Cost: its first call in a thread makes a context, which holds a few MiB at high levels.
    Safety: threads, fork, spawn and pickle may share it.
    """
    if text is None:
        return None
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    level = int(match["level"] or _DEFAULT_LEVEL) if match else 0
    if not 1 <= level <= _MAX_LEVEL:
        raise OptionError(
            f'compression={shown(text)}: choose None, "zstd" or "zstd:LEVEL", with LEVEL from 1 to {_MAX_LEVEL}'
        )
    return partial(_compress, level)


def _compress(level: int, data: Buffer) -> bytes:
    frame: bytes = _contexts.compressor(level).compress(data)
    return frame


def content_nbytes(frame: Buffer) -> int:
    """Read the content bytes of a zstd frame from its header. Raises: CorruptRecordError."""
    import zstandard

    try:
        nbytes = zstandard.frame_content_size(frame)
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"no zstd frame: {error}") from error
    if not 0 <= nbytes <= len(frame) * _MOST_RATIO:
        raise CorruptRecordError(f"a zstd frame of {len(frame):,} bytes says that it has {nbytes:,}")
    return int(nbytes)


def content_start(frame: Buffer, nbytes: int) -> bytes:
    """Return the first bytes of the content of a zstd frame; fewer if it has no more. Raises: CorruptRecordError."""
    import zstandard

    try:
        with zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW).stream_reader(frame) as reader:
            start: bytes = reader.read(nbytes)
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd frame does not decompress: {error}") from error
    return start


def decompress(frame: Buffer, nbytes: int) -> bytes:
    """Return the content of one whole zstd frame, which says that it has `nbytes`.

    Raises:
        CorruptRecordError: "zstd frame does not decompress: ...".
    """
    import zstandard

    try:
        raw: bytes = _contexts.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd frame does not decompress: {error}") from error
    except MemoryError:
        raise CorruptRecordError(f"its {nbytes:,} bytes do not fit into the memory of this process") from None
    if len(raw) != nbytes:
        raise CorruptRecordError(f"zstd frame says {nbytes:,} bytes and has {len(raw):,}")
    return raw


def decompress_into(
    out: memoryview, places: Sequence[int], raw_nbytes: Sequence[int], frames: Sequence[Buffer], threads: int
) -> None:
    """Write the content of many frames to their places in a buffer, by threads; raises as `decompress`."""

    def run(chosen: range) -> None:
        for k in chosen:
            at, length = places[k], raw_nbytes[k]
            out[at : at + length] = decompress(frames[k], length)

    # zstd releases the interpreter. For little data, starting threads takes longer.
    threads = min(threads, len(frames)) if sum(raw_nbytes) >= _MIN_THREADED else 1
    if threads <= 1:
        run(range(len(frames)))
        return
    with ThreadPoolExecutor(threads, "edcache-zstd") as pool:
        list(pool.map(run, [range(part, len(frames), threads) for part in range(threads)]))
