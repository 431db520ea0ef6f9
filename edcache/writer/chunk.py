"""Samples to one chunk in memory: encoded, aligned, checksummed, not yet anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edcache import format
from edcache.codec import Encoder
from edcache.errors import CodecError
from edcache.labels.columns import LabelCollector
from edcache.labels.spec import LabelSpec
from edcache.labels.tables import Records

CHUNK_NBYTES = 4 << 20


@dataclass(frozen=True)
class Chunk:
    """Encoded records of one chunk, before they have a place in the file.

    records: offset counts from `data`, which holds them at their alignment with zeros between.
    appended: the indices continue whatever the archive holds at the moment of publication.
    """

    records: Records
    labels: Any
    schemas: list[str]
    data: memoryview
    appended: bool

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.records.offset)


class ChunkBuilder:
    """Collects encoded samples until they are published together.

    Adding a sample either takes all of it, record and labels, or raises and leaves the builder as
    it was. The sample's memory is copied before `add` returns.
    """

    def __init__(self, encoder: Encoder, spec: LabelSpec, expected_nbytes: int = CHUNK_NBYTES) -> None:
        self._encoder = encoder
        self._collector = LabelCollector(spec)
        self._expected_nbytes = expected_nbytes
        self._clear()

    def _clear(self) -> None:
        # numpy's zeros come from the kernel untouched: padding is zero at no cost.
        self._buffer = _zeros(self._expected_nbytes)
        self._end = 0
        self._index: list[int] = []
        self._offset: list[int] = []
        self._nbytes: list[int] = []
        self._schema: list[int] = []

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Bytes of the records so far, before compression."""
        return self._end

    def add(self, index: int, sample: object) -> None:
        """Encode a sample and collect its labels.

        Raises:
            UnsupportedTypeError: 'sample 7: sample["boxes"]: cannot store set; ...'.
            LabelError, LabelTypeError: the label columns cannot take it.
        """
        try:
            encoded = self._encoder.encode(sample)
        except CodecError as error:
            raise type(error)(f"sample {index}: {error}") from error
        self._collector.add(index, sample)
        offset = format.align(self._end, format.record_alignment(encoded.nbytes))
        end = offset + encoded.nbytes
        if end > len(self._buffer):
            self._grow(end)
        for position, piece in encoded.pieces:
            flat: Any = piece if type(piece) is bytes else np.frombuffer(piece, np.uint8)
            start = offset + position
            self._buffer[start : start + len(flat)] = flat
        self._end = end
        self._index.append(index)
        self._offset.append(offset)
        self._nbytes.append(encoded.nbytes)
        self._schema.append(encoded.schema)

    def _grow(self, least: int) -> None:
        bigger = _zeros(least + least // 2)
        bigger[: self._end] = self._buffer[: self._end]
        self._buffer = bigger

    def raw_records(self) -> list[bytes]:
        """A copy of each record as it is before compression, to train a dictionary on."""
        return [bytes(self._buffer[o : o + n]) for o, n in zip(self._offset, self._nbytes, strict=True)]

    def take(self, compress: Any | None, appended: bool) -> Chunk:
        """Everything added so far as a chunk; the builder is empty afterwards.

        Args:
            compress: bytes-like -> bytes, applied to each record; None stores them as they are.
        """
        raw = self._buffer[: self._end]
        offset, nbytes, raw_nbytes = self._offset, self._nbytes, None
        data = raw
        if compress is not None:
            data, offset, nbytes = _compressed(raw, offset, nbytes, compress)
            raw_nbytes = np.array(self._nbytes, np.uint64)
        crc32 = format.crc32
        crcs = [crc32(data[o : o + n]) for o, n in zip(offset, nbytes, strict=True)]
        used = sorted(set(self._schema))
        local = {schema: position for position, schema in enumerate(used)}
        records = Records(
            offset=np.array(offset, np.uint64),
            nbytes=np.array(nbytes, np.uint64),
            crc32=np.array(crcs, np.uint32),
            schema=np.array([local[schema] for schema in self._schema], np.uint16),
            index=np.array(self._index, np.int64),
            raw_nbytes=raw_nbytes,
        )
        schemas = [self._encoder.schemas[schema] for schema in used]
        chunk = Chunk(records, self._collector.take(), schemas, data, appended)
        self._clear()
        return chunk


def _zeros(nbytes: int) -> memoryview:
    return np.zeros(nbytes, np.uint8).data


def _compressed(
    raw: memoryview, offset: list[int], nbytes: list[int], compress: Any
) -> tuple[memoryview, list[int], list[int]]:
    out = bytearray()
    new_offset, new_nbytes = [], []
    for start, length in zip(offset, nbytes, strict=True):
        frame = compress(raw[start : start + length])
        out.extend(bytes(format.align(len(out), format.record_alignment(len(frame))) - len(out)))
        new_offset.append(len(out))
        new_nbytes.append(len(frame))
        out += frame
    return memoryview(out), new_offset, new_nbytes
