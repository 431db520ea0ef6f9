"""Files with flipped bits."""

from pathlib import Path


def flip(path, *places, mask=1):
    """Flip bits of the bytes at these places in the file itself, which other processes may have open."""
    with open(path, "r+b") as file:
        for place in map(int, places):
            file.seek(place, 0 if place >= 0 else 2)
            (byte,) = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte ^ mask]))


def flip_in_root(path):
    """Flip a bit of the JSON of the newest root."""
    flip(path, Path(path).read_bytes().rindex(b'{"head"') + 9)


def flipped(data, place, mask=1):
    """Return a copy of the bytes with one flipped."""
    changed = bytearray(data)
    changed[place] ^= mask
    return bytes(changed)
