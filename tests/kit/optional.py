"""Libraries that some tests take: `scripts/test --full` installs them, and `scripts/test` does not.

Nobody imports one while tests are collected. A test that takes one that is missing is skipped, with its name.
"""

import pkgutil
from importlib.util import find_spec

import pytest

MISSING = "{} is not installed; scripts/test --full installs it"


def need(*names):
    """Skip the test that runs, unless all of these are installed."""
    for name in names:
        if find_spec(name) is None:
            pytest.skip(MISSING.format(name))


def needs(*names):
    """Mark a test, or a file's `pytestmark`, that takes these."""
    missing = ", ".join(name for name in names if find_spec(name) is None)
    return pytest.mark.skipif(bool(missing), reason=MISSING.format(missing))


class Library:
    """A module, or with "module:name" an object in it, that is imported at its first use."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("_"):
            raise AttributeError(attribute)  # pytest looks for some of these while it collects
        need(self._name.partition(".")[0])
        return getattr(pkgutil.resolve_name(self._name), attribute)


class Later:
    """A case of a parametrised test that takes a library to make."""

    def __init__(self, make):
        self.make = make


def made(case):
    """The case itself, made now if it is Later."""
    return case.make() if isinstance(case, Later) else case
