"""What makes a million runs of the real reader and writer affordable: pure functions are asked once."""

import gc
from functools import lru_cache

import pytest

from edcache import contents, format


@pytest.fixture(autouse=True, scope="session")
def remembered():
    """Functions of bytes alone answer from memory; the same objects again, which nobody changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "_pack_header", lru_cache(1 << 16)(format._pack_header))
        patch.setattr(format, "parse_header", lru_cache(1 << 16)(format.parse_header))
        patch.setattr(contents, "parse_chunk_table", lru_cache(1 << 16)(contents.parse_chunk_table))
        yield


@pytest.fixture(autouse=True)
def no_collector():
    """Millions of remembered answers would be looked at again and again for cycles."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()
