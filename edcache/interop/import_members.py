"""The members of a zip as a table, also where a killed writer left no directory; and the bytes of one."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from edcache.base import ForeignCacheError
from edcache.interop.import_source import foreign_errors, read_part

_HEADER: Final = struct.Struct("<4s2xHHxxxxIIIHH")
_SIGNATURE: Final = b"PK\x03\x04"
_MEMBERS_AWAY: Final = 0xFFFFFFFF
_ENCRYPTED, _SIZES_BEHIND = 1, 8
# What the standard library raises over a directory that is damaged, or that was half overwritten.
_NO_DIRECTORY = (
    *(zipfile.BadZipFile, struct.error, NotImplementedError, EOFError, OverflowError, ValueError),
)


class Member(NamedTuple):
    """One member: its name; where its local header lies; bytes stored and unpacked; checksum; method."""

    name: str
    offset: int
    nbytes: int
    size: int
    crc: int
    method: int

    def place(self, path: str) -> str:
        """What messages about it begin with."""
        return f"{path}: {self.name} at offset {self.offset:,}"

    def check_crc(self, path: str, crc: int) -> None:
        """Raise ForeignCacheError where its bytes have another checksum."""
        if crc != self.crc:
            place = self.place(path)
            raise ForeignCacheError(f"{place}: crc32 {crc:#010x}, its header says {self.crc:#010x}")


def zip_members(path: str) -> tuple[list[Member], bool]:
    """The members of a zip in the order of its directory, and whether it has one; else as their headers lie.

    Without one, what a killed writer left unfinished at the end is not among them.
    """
    with foreign_errors(path), open(path, "rb") as file:
        try:
            members, has_directory = _directory(file), True
        except _NO_DIRECTORY:
            members, has_directory = list(_headers(file)), False
        total, size = sum(member.nbytes for member in members), os.fstat(file.fileno()).st_size
    if total > size:
        raise ForeignCacheError(
            f"{path}: its members have {total:,} bytes and the file {size:,}: they share some, as in a bomb"
        )
    return members, has_directory


def read_member(path: str, member: Member, max_nbytes: int) -> bytes:
    """The unpacked bytes of a member, their length and crc32 checked; at most `max_nbytes`."""
    place = member.place(path)
    if member.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ForeignCacheError(f"{place}: packed by method {member.method}; pack it anew with zip")
    if max(member.size, member.nbytes) > max_nbytes:
        raise ForeignCacheError(
            f"{place}: claims {member.size:,} bytes, more than the {max_nbytes:,} allowed"
        )
    offset = data_offset(path, member)
    data = read_part(path, place, offset, member.nbytes)
    if member.method == zipfile.ZIP_DEFLATED:
        try:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.size + 1)
        except zlib.error as error:
            raise ForeignCacheError(f"{place}: does not unpack: {error}") from None
        if len(data) != member.size:
            raise ForeignCacheError(
                f"{place}: unpacks to other than the {member.size:,} bytes that it claims"
            )
    member.check_crc(path, zlib.crc32(data))
    return data


def data_offset(path: str, member: Member) -> int:
    """Where the stored bytes of a member begin; ForeignCacheError where no member begins."""
    signature, *_, name_nbytes, extra_nbytes = _HEADER.unpack(
        read_part(path, member.place(path), member.offset, _HEADER.size)
    )
    if signature != _SIGNATURE:
        raise ForeignCacheError(f"{member.place(path)}: no member begins there")
    return member.offset + _HEADER.size + int(name_nbytes) + int(extra_nbytes)


def check_member(path: str, member: Member) -> None:
    """Read the bytes of a stored member, and raise ForeignCacheError where they do not fit its checksum."""
    crc, left = 0, member.nbytes
    with open(path, "rb") as file:
        file.seek(data_offset(path, member))
        while left and (data := file.read(min(left, 1 << 20))):
            crc, left = zlib.crc32(data, crc), left - len(data)
    if left:
        raise ForeignCacheError(f"{member.place(path)}: the file ends in the middle of it")
    member.check_crc(path, crc)


def _directory(file: BinaryIO) -> list[Member]:
    with zipfile.ZipFile(file) as opened:
        return [
            Member(i.filename, i.header_offset, i.compress_size, i.file_size, i.CRC, i.compress_type)
            for i in opened.infolist()
            if not i.flag_bits & _ENCRYPTED
        ]


def _headers(file: BinaryIO) -> Iterator[Member]:
    """The members by their local headers, up to the first that is none or whose bytes are not all there."""
    end, offset = os.fstat(file.fileno()).st_size, 0
    while True:
        file.seek(offset)
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return
        signature, flags, method, crc, nbytes, size, name_nbytes, extra_nbytes = _HEADER.unpack(header)
        if signature != _SIGNATURE or flags & (_ENCRYPTED | _SIZES_BEHIND):
            return
        name, extra = file.read(name_nbytes), file.read(extra_nbytes)
        if _MEMBERS_AWAY in (nbytes, size):
            nbytes, size = _sizes64(extra)
        beyond = offset + _HEADER.size + name_nbytes + extra_nbytes + nbytes
        # The header of one that is being written says zero bytes until they are there.
        if beyond > end or not nbytes:
            return
        yield Member(name.decode("utf-8", "replace"), offset, nbytes, size, crc, method)
        offset = beyond


def _sizes64(extra: bytes) -> tuple[int, int]:
    """(stored, unpacked) bytes from the ZIP64 extra field of a local header; (0, 0) without one."""
    at = 0
    while at + 4 <= len(extra):
        kind, nbytes = struct.unpack_from("<HH", extra, at)
        if kind == 1 and nbytes >= 16 and at + 20 <= len(extra):
            size, stored = struct.unpack_from("<QQ", extra, at + 4)
            return stored, size
        at += 4 + nbytes
    return 0, 0
