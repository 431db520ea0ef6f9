"""What makes a million runs of the real reader and writer affordable: pure functions are asked once."""

import gc
from functools import lru_cache
from importlib import import_module

import pytest

from edcache import format
from edcache.format import chain, tables

verify = import_module("edcache.tools.verify")


def remembering(function):
    """A function of bytes, asked once for the same ones; its results are changed by nobody."""
    remembered = lru_cache(1 << 14)(function)

    def ask(data, *rest):
        return remembered(bytes(data), *(tuple(r) if isinstance(r, list) else r for r in rest))

    return ask


def remembering_chunks(check_chunk):
    """What is wrong within a chunk, asked once for the same bytes."""
    known = {}

    def ask(pread, header, table, table_bytes, on_problem):
        data = pread(header.payload_offset, header.payload_nbytes)
        # 64 bits tell some thousand chunks apart.
        key = header, id(table), hash(bytes(data)), hash(bytes(table_bytes))
        if key not in known:
            problems = []
            crc = check_chunk(pread, header, table, table_bytes, lambda *told: problems.append(told))
            known[key] = table, problems, crc
        _, problems, crc = known[key]
        for told in problems:
            on_problem(*told)
        return crc

    return ask


def remembering_fit(within):
    """Whether a table fits its header, asked once for the same two."""
    known = {}

    def ask(header, table):
        key = header, id(table)
        if key not in known:
            known[key] = within(header, table), table
        return known[key][0]

    return ask


def remembering_merge(merge):
    """Tables of chunks put together, once for the same ones."""
    known = {}

    def ask(chunks, tables, length, names, where, failures=(), before=None):
        found = [tables(header) for header in chunks]
        key = tuple(chunks), *map(tuple, (map(id, found), names, failures)), length, where
        if key not in known:
            read = dict(zip((header.seq for header in chunks), found, strict=True))
            how = length, names, where, failures, before
            # With `before` or without: test_contents.py, test_a_reader_that_follows_has_what_*.
            known[key] = found, merge(chunks, lambda header: read[header.seq], *how)
        return known[key][1]

    return ask


def remembering_revised(revised):
    """Labels with their revisions applied, once for the same ones."""
    known = {}

    def ask(labels, index, written, revisions, length, where):
        # What has an id here is kept, and its id with it.
        said = labels, tuple(revisions)
        key = id(labels), *((seq, id(revision)) for seq, revision in revisions), length, where
        rows = None if index is None else index.tobytes(), written.tobytes()
        if (key, rows) not in known:
            known[key, rows] = said, revised(labels, index, written, revisions, length, where)
        return known[key, rows][1]

    return ask


@pytest.fixture(autouse=True, scope="module")
def remembered():
    """Functions of bytes alone answer from memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "_pack_header", lru_cache(1 << 16)(format._pack_header))
        patch.setattr(format, "parse_header", lru_cache(1 << 16)(format.parse_header))
        for parse in ("parse_chunk_table", "parse_revision"):
            patch.setattr(tables, parse, remembering(getattr(tables, parse)))
        patch.setattr(chain, "_within", remembering_fit(chain._within))
        patch.setattr(chain, "revised", remembering_revised(chain.revised))
        patch.setattr(verify, "check_chunk", remembering_chunks(verify.check_chunk))
        patch.setattr(chain, "merge", remembering_merge(chain.merge))
        patch.setattr(verify, "parse_index", remembering(verify.parse_index))
        patch.setattr(verify, "checked_labels", remembering(verify.checked_labels))
        yield


@pytest.fixture(autouse=True)
def no_collector():
    """Millions of remembered answers would be looked at again and again for cycles."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()
