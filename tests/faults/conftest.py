"""What makes a million runs of the real reader and writer affordable: pure functions are asked once."""

import gc
from functools import lru_cache

import pytest

from edcache import contents, format
from edcache.maintain import survey
from edcache.reader import hold


def remembering(function):
    """A function of bytes, asked once for the same ones; its results are changed by nobody."""
    remembered = lru_cache(1 << 14)(function)

    def ask(data, *rest):
        return remembered(bytes(data), *(tuple(r) if isinstance(r, list) else r for r in rest))

    return ask


@pytest.fixture(autouse=True, scope="module")
def remembered():
    """Functions of bytes alone answer from memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "_pack_header", lru_cache(1 << 16)(format._pack_header))
        patch.setattr(format, "parse_header", lru_cache(1 << 16)(format.parse_header))
        patch.setattr(contents, "parse_chunk_table", remembering(contents.parse_chunk_table))
        for module in (hold, survey):
            patch.setattr(module, "parse_index", remembering(module.parse_index))
            patch.setattr(module, "parse_labels", remembering(module.parse_labels))
        yield


@pytest.fixture(autouse=True)
def no_collector():
    """Millions of remembered answers would be looked at again and again for cycles."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()
