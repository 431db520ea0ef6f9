"""A reader or an appender of a path, whatever it leads to: a file, an object, or a cache in Redis."""

from __future__ import annotations

import os
from typing import Any

from edcache.codec import STORED, Decode
from edcache.errors import OptionError
from edcache.format import Head
from edcache.places import Where
from edcache.reader import AnyReader, Reader
from edcache.redis.appender import RedisAppender
from edcache.redis.reader import RedisReader
from edcache.servers import Server, is_server, served
from edcache.writer import AnyAppender, Appender, Sync


def reader_at(
    path: Where,
    *,
    verify: str = "touch",
    allow_pickle: bool = False,
    io: str = "auto",
    decode: Decode = STORED,
    expected_digest: str | None = None,
    preload: str | None = None,
    local: str | os.PathLike[str] | None = None,
    max_bytes: int | str | None = None,
) -> AnyReader:
    """What reads the samples at a path; arguments and errors as of `edcache.Reader`.

    Raises:
        OptionError: io=, expected_digest=, preload=, local= or max_bytes= for what is no file.
    """
    found = served(path) if isinstance(path, str) else path
    options: dict[str, Any] = {"allow_pickle": allow_pickle, "decode": decode}
    of_files: dict[str, Any] = {
        "io": io,
        "expected_digest": expected_digest,
        "preload": preload,
        "local": local,
        "max_bytes": max_bytes,
    }
    if not isinstance(found, Server):
        return Reader(found, verify=verify, **of_files, **options)
    for name, value in of_files.items():
        if value not in (None, "auto"):
            raise OptionError(f"{found}: {name}= is for an archive that is a file")
    return RedisReader(found, **options)


def appender_at(path: str, head: Head, sync: Sync) -> AnyAppender:
    """A path open for appending, made with `head` where nothing is there yet; as `Appender.open`."""
    if is_server(path):
        return RedisAppender.open(path, head)
    return Appender.open(path, head, create=False, sync=sync)
