"""What every test file shares."""

import gc
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest

# A busy machine is no failure.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")

_COUNTED = "counted"
_LEFT_OUT = pytest.StashKey[Counter]()


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="every test, at its full size (see scale.py)")


def pytest_configure(config):
    config.stash[_LEFT_OUT] = Counter()
    # Before a test file reads it, and for the processes that run the tests.
    os.environ.setdefault("EDCACHE_TEST_SCALE", "1" if config.option.full else "0.02")
    if not hasattr(config, "workerinput"):  # whose folder is its parent's
        folder = tempfile.TemporaryDirectory(prefix="edcache-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        os.environ["EDCACHE_DIR"] = folder.name


def is_full(item):
    """Whether the quick tier leaves a test out: by its marker, or because its processes import torch anew."""
    case = item.callspec.id.split("-") if hasattr(item, "callspec") else ()
    return bool(item.get_closest_marker("full") or {"spawn", "forkserver"}.intersection(case))


def pytest_collection_modifyitems(config, items):
    """Those that are `full` are left out, unless all are asked for.

    The tests of a file share a process, and what its fixtures made, but for those that are `spread`. Those
    come first: many of them fork thousands of times, which takes six times as long in a process that has
    imported what the other tests need.
    """
    if not config.option.full:
        left_out = [item for item in items if is_full(item)]
        config.hook.pytest_deselected(items=left_out)
        config.stash[_LEFT_OUT].update(item.path.stem.removeprefix("test_") for item in left_out)
        items[:] = [item for item in items if not is_full(item)]
    items.sort(key=lambda item: not item.get_closest_marker("spread"))
    for item in items:
        if not item.get_closest_marker("spread"):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def pytest_collection_finish(session):
    """What was imported is no garbage; a collection that looks at all of it takes a fifth of a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = dict(session.config.stash[_LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Every process that runs tests has collected, and left out, the same."""
    node.config.stash[_LEFT_OUT] |= Counter(getattr(node, "workeroutput", {}).get("left out"))


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
def unchecked(monkeypatch):
    """No fill computes a sample again: for tests of what one computes that cannot give it spot_check=False."""
    for name in ("_as_a_fill_does", "compute_again", "_check"):
        monkeypatch.setattr(f"edcache.writer.recheck.{name}", lambda *arguments: None)


@pytest.fixture
def clock(monkeypatch):
    """The time that a check measures: it stands still but for `clock.sleep(3)`, whatever else the machine does."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    made = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    for module in ("identity.samples", "writer.engine"):
        monkeypatch.setattr(f"edcache.{module}.time", made)
    return made


@pytest.fixture
def tally(request):
    """tally("crash states", 4096): counts what a family of faults has tried, for the table at the end."""

    def count(what, number=1):
        request.node.user_properties.append((_COUNTED, (what, int(number))))

    return count


def pytest_terminal_summary(terminalreporter, config):
    """The counts of all tests that passed, whichever process ran them; EDCACHE_TEST_COUNTS names a file for
    them, as JSON. And what was left out."""
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
    if not config.option.full:
        left_out, scale = config.stash[_LEFT_OUT], os.environ["EDCACHE_TEST_SCALE"]
        terminalreporter.section("left out; scripts/test --full has all")
        if left_out:
            terminalreporter.write_line(f"{left_out.total()} tests of {', '.join(sorted(left_out))}")
        terminalreporter.write_line(f"what is tried in many ways was tried at scale {scale}")
