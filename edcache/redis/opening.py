"""A reader or an appender of a path, whatever it leads to: a file, or a cache in Redis."""

from __future__ import annotations

from typing import Any

from edcache.codec import STORED, Decode
from edcache.errors import OptionError
from edcache.format import Head
from edcache.places import is_place
from edcache.reader import AnyReader, Reader
from edcache.redis.appender import RedisAppender
from edcache.redis.reader import RedisReader
from edcache.writer import AnyAppender, Appender, Sync


def reader_at(
    path: str,
    *,
    verify: str = "touch",
    allow_pickle: bool = False,
    io: str = "auto",
    decode: Decode = STORED,
    expected_digest: str | None = None,
) -> AnyReader:
    """What reads the samples at a path; arguments and errors as of `edcache.Reader`.

    Raises:
        OptionError: io= or expected_digest= for what is no file.
    """
    options: dict[str, Any] = {"allow_pickle": allow_pickle, "decode": decode}
    if not is_place(path):
        return Reader(path, verify=verify, io=io, expected_digest=expected_digest, **options)
    reader = RedisReader(path, **options)
    for name, is_given in (("io", io != "auto"), ("expected_digest", expected_digest is not None)):
        if is_given:
            raise OptionError(f"{reader.path}: {name}= is for an archive that is a file")
    return reader


def appender_at(path: str, head: Head, sync: Sync) -> AnyAppender:
    """A path open for appending, made with `head` where nothing is there yet; as `Appender.open`."""
    if is_place(path):
        return RedisAppender.open(path, head)
    return Appender.open(path, head, create=False, sync=sync)
