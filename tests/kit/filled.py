"""What a fill did: which samples its source computed, in which processes, and which rows it stored."""

import os

import numpy as np

from edcache.format import Head
from edcache.writer import Appender


def note(log, index):
    """Say in the log that this process computes a sample; one write, so that processes do not mix."""
    with open(log, "ab", buffering=0) as file:
        file.write(f"{index} {os.getpid()}\n".encode())


def _lines(log):
    return [tuple(map(int, line.split())) for line in log.read_text().splitlines()] if log.exists() else []


def computed(log):
    """The samples that were computed, sorted, one entry for each time."""
    return sorted(index for index, _ in _lines(log))


def processes(log):
    """The processes that computed them."""
    return {pid for _, pid in _lines(log)}


def last_process(log):
    """The one that computed the last."""
    return _lines(log)[-1][1]


def stored_rows(path):
    """The index of every record that was ever stored, sorted."""
    appender = Appender.open(path, Head(bytes(16)), mode="a")
    try:
        return sorted(appender.indices_of(appender.chain.chunks).tolist())
    finally:
        appender.close()


def available(ds):
    """The view of the samples that have a record."""
    return ds[np.setdiff1d(np.arange(len(ds)), ds.missing)]
