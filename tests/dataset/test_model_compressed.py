"""As test_model.py, of archives that compress; apart, so that two processes share the work."""

import pytest

pytest.register_assert_rewrite("model")
from model import Archive, play  # noqa: E402

pytestmark = pytest.mark.spread


class Compressed(Archive):
    compressions = ("zstd", "zstd:19")


@pytest.mark.full
def test_a_compressed_archive_is_a_dictionary_whatever_is_done_to_it(tally):
    play(Compressed, 900, tally)
