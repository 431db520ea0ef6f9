"""Whatever is done to an archive in whatever order, everyone sees what a dictionary says; see model.py."""

import pytest

pytest.register_assert_rewrite("model")
from model import Archive, play  # noqa: E402

pytestmark = pytest.mark.spread


class Plain(Archive):
    compressions = (None,)


def test_an_archive_is_a_dictionary_whatever_is_done_to_it(tally):
    play(Plain, 900, tally)
