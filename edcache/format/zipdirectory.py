"""The end of a zip file, byte for byte: central directory, ZIP64 end record, locator, end record.

What local headers share with it is here too. All entries are stored, none has a comment or a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

EXTRA: Final = struct.Struct("<HH")
_CENTRAL: Final = struct.Struct("<4sHHHHHHIIIHHHHHII")  # 46 bytes
_END64: Final = struct.Struct("<4sQHHIIQQQQ")  # 56 bytes
_LOCATOR: Final = struct.Struct("<4sIQI")  # 20 bytes
_END: Final = struct.Struct("<4sHHHHIIH")  # 22 bytes
# The very last record of a zip file.
END_SIGNATURE: Final = b"PK\x05\x06"
END_RECORD_NBYTES: Final = _END.size
END_NBYTES: Final = _END64.size + _LOCATOR.size + _END.size

ZIP64_ID: Final = 0x0001
DATE: Final = 0x0021
MAX32: Final = 0xFFFFFFFF
_MAX16: Final = 0xFFFF
_MADE_BY: Final = (3 << 8) | 45  # Unix, so that the mode below is honoured
_MODE: Final = 0o100644 << 16


def pack_entry(name: str, crc: int, nbytes: int, offset: int, *, is_long: bool) -> bytes:
    """The directory's entry of a stored file.

    Args:
        offset: of its local header. is_long: takes the long form whatever its numbers, so that it has
            `long_nbytes` of its name, and ends with `offset`.
    """
    wide_size = is_long or nbytes >= MAX32
    wide_offset = is_long or offset >= MAX32
    values = [nbytes] * 2 * wide_size + [offset] * wide_offset
    zip64 = struct.pack(f"<HH{len(values)}Q", ZIP64_ID, 8 * len(values), *values) if values else b""
    version, lengths = 45 if values else 20, (len(name), len(zip64), 0)
    size, place = MAX32 if wide_size else nbytes, MAX32 if wide_offset else offset
    sizes = (crc, size, size, *lengths)
    fixed = _CENTRAL.pack(b"PK\x01\x02", _MADE_BY, version, 0, 0, 0, DATE, *sizes, 0, 0, _MODE, place)
    return fixed + name.encode("ascii") + zip64


def long_nbytes(name: str) -> int:
    """What the long form of an entry takes."""
    return _CENTRAL.size + len(name) + EXTRA.size + 24


def pack_end(count: int, offset: int, nbytes: int) -> bytes:
    """The end records behind a directory of so many entries: where it begins, how long it is."""
    end64 = _END64.pack(b"PK\x06\x06", 44, _MADE_BY, 45, 0, 0, count, count, nbytes, offset)
    locator = _LOCATOR.pack(b"PK\x06\x07", 0, offset + nbytes, 1)
    end = _END.pack(END_SIGNATURE, 0, 0, _MAX16, _MAX16, MAX32, MAX32, 0)
    return end64 + locator + end


def parse_end(end: bytes, size: int) -> int | None:
    """Where the directory begins; None where a file of `size` bytes does not end as `pack_end` has it.

    Args:
        end: its last `END_NBYTES` bytes.
    """
    fields = _END64.unpack_from(end)
    count, nbytes, offset = fields[6], fields[8], fields[9]
    # In this order: absurd numbers in foreign bytes would not pack.
    if offset + nbytes + END_NBYTES != size or end != pack_end(count, offset, nbytes):
        return None
    return int(offset)


def directory_offsets(directory: bytes) -> Iterator[int]:
    """Where the entries of a zip directory say that they begin: unchecked, a hint for reading ahead."""
    at = 0
    while at + _CENTRAL.size <= len(directory) and directory[at : at + 4] == b"PK\x01\x02":
        fields = _CENTRAL.unpack_from(directory, at)
        at += _CENTRAL.size + sum(fields[10:13])
        wide = fields[16] == MAX32
        yield int.from_bytes(directory[at - 8 : at], "little") if wide else fields[16]
