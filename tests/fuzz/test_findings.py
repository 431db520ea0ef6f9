"""What fuzzing found, each as the smallest thing that shows it."""

from __future__ import annotations

from edcache import format
from edcache.contents import Chain
from edcache.format import Cursor, Head, Header


def test_an_amendment_with_an_infinite_number_says_nothing():
    text = b'{"length": 3, "lost": [1e999]}'
    crc = format.crc32(text)
    header = Header(3, bytes(16), 0, 4096, 0, len(text), crc, 8192, table_nbytes=len(text), table_crc=crc)
    chain = Chain(Head(bytes(16)), Cursor(4096, 0, 0), "a.zip")
    chain.note(lambda offset, nbytes: text, header)
    assert (chain.length, chain.lost) == (None, set())
