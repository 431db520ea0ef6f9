"""Guards of a block: what it began is undone, and an error of others' code has one of ours before it."""

import pytest

from edcache.base import OptionError, foreign_code, on_error


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_what_a_block_began_is_undone_after_any_error_and_that_goes_on(error):
    undone = []
    with pytest.raises(type(error)) as caught, on_error(lambda: undone.append(1)):
        raise error
    assert caught.value is error
    assert undone == [1]


def test_nothing_is_undone_where_a_block_ends_or_returns():
    undone = []

    def returned():
        with on_error(lambda: undone.append(1)):
            return 7

    assert returned() == 7
    assert undone == []


def test_an_error_of_others_is_the_cause_of_ours():
    cause = KeyError("lost")
    wrapped = foreign_code(lambda error: OptionError(f"it raised {error}"))
    with pytest.raises(OptionError, match="it raised 'lost'") as caught, wrapped:
        raise cause
    assert caught.value.__cause__ is cause


def test_an_error_that_is_to_stay_and_an_end_of_the_process_pass_as_they_are():
    stays = OptionError("stays")
    with pytest.raises(OptionError) as caught, foreign_code(lambda error: error):
        raise stays
    assert caught.value is stays
    assert stays.__cause__ is None
    with pytest.raises(KeyboardInterrupt), foreign_code(lambda error: OptionError("swallowed")):
        raise KeyboardInterrupt
