"""Properties that are computed once: in threads, and in forks of a process whose threads compute them."""

import ast
import os
import threading
from pathlib import Path

import pytest
from systems import ended, in_child, in_threads

import edcache
from edcache.base.process import ForkLock, once

FILES = sorted(Path(edcache.__file__).parent.rglob("*.py"))
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


class Slow:
    """Its property waits until it is let go."""

    def __init__(self, is_free):
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.count = 0
        if is_free:
            self.go_on.set()

    @once
    def value(self):
        """Some text."""
        self.count += 1
        self.begun.set()
        self.go_on.wait()
        return object()


def test_it_is_computed_once_and_kept_and_may_be_forgotten():
    slow = Slow(True)
    first = slow.value
    assert slow.value is first
    assert slow.count == 1
    assert Slow.value.__doc__ == "Some text."
    del slow.value
    assert slow.value is not first


def test_threads_that_compute_it_at_once_get_the_same():
    slow, found = Slow(False), []
    ask = [lambda: found.append(slow.value)] * 4
    in_threads(*ask, lambda: slow.begun.wait() and slow.go_on.set())
    assert found == [slow.value] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_amid_a_computation_computes_for_itself():
    slow, other = Slow(False), Slow(True)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    slow.begun.wait()

    def compute():
        slow.go_on = other.go_on
        assert other.value is not slow.value

    child = in_child(compute)
    slow.go_on.set()
    thread.join()
    assert ended(child) == 0


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_property_of_the_package_takes_a_lock_that_a_fork_would_inherit(file):
    decorators = [
        ast.unparse(decorator)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
    ]
    assert not [name for name in decorators if "cached_property" in name]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_lock_that_another_thread_holds_is_free_in_a_forked_child():
    lock, is_held, may_go = ForkLock(), threading.Event(), threading.Event()

    def hold():
        with lock.held(), lock.held():  # one thread may take it again
            is_held.set()
            may_go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(10)

    def take():
        with lock.held():
            pass

    try:
        assert ended(in_child(take)) == 0
    finally:
        may_go.set()
        thread.join()
