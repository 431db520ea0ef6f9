"""Work that threads share: results, warnings and errors come as of one thread that does it in order."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Any

import pytest

from edcache import base


def work(k: int) -> int:
    time.sleep(0.02 if k % 2 else 0.001)
    base.warn(f"warning {k}", UserWarning)
    return k


def test_results_come_in_order_and_warnings_at_the_line_of_the_caller() -> None:
    taken: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        base.in_threads(work, range(20), taken.append, 4, "test")
    assert taken == list(range(20))
    assert sorted(str(warning.message) for warning in caught) == sorted(f"warning {k}" for k in range(20))
    assert {warning.filename for warning in caught} == {__file__}


def test_the_first_error_in_order_is_raised_and_what_has_not_begun_never_does() -> None:
    begun, taken = [], list[int]()

    def fail(k: int) -> int:
        begun.append(k)
        time.sleep(0.02 if k == 3 else 0.005)
        if k in (3, 4):
            raise ValueError(f"error {k}")
        return k

    with pytest.raises(ValueError, match="^error 3$"):
        base.in_threads(fail, range(1000), taken.append, 4, "test")
    assert taken == [0, 1, 2]
    assert len(begun) < 100
    assert not any(thread.name.startswith("test_") for thread in threading.enumerate())


def test_a_warning_that_is_made_an_error_ends_it() -> None:
    taken = list[int]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="^warning [0-9]+$"):
            base.in_threads(work, range(20), taken.append, 4, "test")
    assert taken == []
