"""Files and bytes with flipped bits."""

from contextlib import closing
from pathlib import Path

from edcache.reader import Reader


def flip(path, *places, mask=1):
    """Flip bits of the bytes at these places in the file itself, which others may have mapped."""
    with open(path, "r+b") as file:
        for place in map(int, places):
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ mask]))


def flip_record(path, *indices, at=0):
    """Flip a bit of the records of these samples, `at` bytes behind their start."""
    with closing(Reader(path, allow_partial=True)) as reader:
        offsets = [int(reader.session.index.all_rows()["offset"][index]) for index in indices]
    flip(path, *(offset + at for offset in offsets))


def flip_in_root(path):
    """Flip a bit of the JSON of the newest root."""
    flip(path, Path(path).read_bytes().rindex(b'{"head"') + 9)


def flipped(data, place, mask=1):
    """Return the bytes with some bits of one of them flipped."""
    changed = bytearray(data)
    changed[place] ^= mask
    return bytes(changed)
