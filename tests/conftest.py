"""What every test file shares."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

_COUNTED = "counted"


def pytest_collection_modifyitems(items):
    """The tests of a file share a process, and what its fixtures made, but for those that are `spread`."""
    for item in items:
        if not item.get_closest_marker("spread"):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def pytest_make_parametrize_id(config, val, argname):
    """Ids without addresses: processes that share the suite must agree on its tests' names."""
    return type(val).__name__ if " at 0x" in repr(val) else None


@pytest.fixture
def path(tmp_path):
    """Where an archive may be made."""
    return tmp_path / "a.zip"


@pytest.fixture
def log(tmp_path):
    """Where a source may say what it computes (see filled.py)."""
    return tmp_path / "log"


@pytest.fixture
def tally(request):
    """tally("crash states", 4096): counts what a family of faults has tried, for the table at the end."""

    def count(what, number=1):
        request.node.user_properties.append((_COUNTED, (what, int(number))))

    return count


def pytest_terminal_summary(terminalreporter):
    """The counts of all tests that passed, whichever process ran them; EDCACHE_TEST_COUNTS names a file for
    them, as JSON."""
    counted = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == _COUNTED:
                counted[value[0]] += value[1]
    if "EDCACHE_TEST_COUNTS" in os.environ:
        Path(os.environ["EDCACHE_TEST_COUNTS"]).write_text(json.dumps(counted))
    if counted:
        terminalreporter.section("faults tried, none of which did harm")
        width = max(map(len, counted))
        for what, number in sorted(counted.items()):
            terminalreporter.write_line(f"{what:<{width}}  {number:>12,}")
