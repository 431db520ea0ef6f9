"""Progress: shown on a terminal or when asked for, one line about what was kept, silence elsewhere."""

import logging
import os
import subprocess
import sys

import pytest

from edcache.progress import Progress


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    for name in ("EDCACHE_PROGRESS", "RANK", "PJRT_LOCAL_PROCESS_RANK"):
        monkeypatch.delenv(name, raising=False)


class Terminal:
    def __init__(self, stream):
        self._stream = stream

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self._stream, name)


@pytest.fixture
def shown(capsys, monkeypatch):
    """Runs a progress of three samples and says what appeared."""

    def run(show=None, kept=0, environment=(), terminal=False):
        import sys

        for name, value in dict(environment).items():
            monkeypatch.setenv(name, value)
        if terminal:
            monkeypatch.setattr(sys, "stderr", Terminal(sys.stderr))
        with Progress("a.zip", kept, kept + 3, show) as progress:
            for i in range(3):
                progress.advance(1, 1000 * (i + 1))
        return capsys.readouterr()

    return run


def test_true_shows_a_bar_with_the_name_and_the_count(shown):
    text = shown(show=True).err
    assert "caching a.zip: 100%" in text
    assert "3/3" in text


def test_a_bar_counts_what_was_missing(shown):
    text = shown(show=True, kept=1000).err
    assert "a.zip: 1,000 of 1,003 already cached\n" in text
    assert "3/3" in text


def test_nothing_goes_to_stdout(shown):
    assert shown(show=True, kept=5).out == ""


def test_without_a_terminal_only_what_was_kept_is_said(shown):
    assert shown().err == ""
    assert shown(kept=2).err == "a.zip: 2 of 5 already cached\n"


def test_a_terminal_shows_a_bar(shown):
    assert "caching a.zip: 100%" in shown(terminal=True).err


def test_edcache_progress_1_shows_a_bar_without_a_terminal(shown):
    assert "caching a.zip: 100%" in shown(environment={"EDCACHE_PROGRESS": "1"}).err


@pytest.mark.parametrize(
    "environment",
    [{"EDCACHE_PROGRESS": "0"}, {"RANK": "1"}, {"PJRT_LOCAL_PROCESS_RANK": "1"}],
    ids=str,
)
def test_the_environment_silences_even_on_a_terminal(shown, environment):
    assert shown(kept=2, environment=environment, terminal=True).err == ""


@pytest.mark.parametrize(
    "more", [{}, {"PJRT_LOCAL_PROCESS_RANK": "0"}, {"PJRT_LOCAL_PROCESS_RANK": "1"}], ids=str
)
def test_rank_0_is_as_no_rank(shown, more):
    assert "caching a.zip: 100%" in shown(terminal=True, environment={"RANK": "0"} | more).err


def test_false_silences_even_on_a_terminal(shown):
    assert shown(show=False, kept=2, terminal=True).err == ""


@pytest.mark.parametrize("environment", [{"EDCACHE_PROGRESS": "0"}, {"RANK": "1"}], ids=str)
def test_true_overrules_the_environment(shown, environment):
    assert "caching a.zip: 100%" in shown(show=True, environment=environment).err


def test_what_is_not_shown_is_logged(shown, caplog):
    with caplog.at_level(logging.INFO, "edcache"):
        shown(show=False, kept=2)
    assert caplog.messages == ["a.zip: 2 of 5 already cached"]


def test_a_function_is_told_of_all_that_is_there(capsys):
    told = []
    with Progress("a.zip", 1, 9, lambda present, total: told.append((present, total))) as progress:
        progress.advance(2, 10)
        progress.advance(0, 5)
        progress.advance(3)
    assert told == [(3, 9), (6, 9)]
    assert capsys.readouterr().err == ""


def test_without_a_known_length_the_bar_counts_upwards(capsys):
    with Progress("a.zip", 2, None, True) as progress:
        progress.advance(3, 10)
    found = capsys.readouterr().err
    assert "a.zip: 2 samples already cached" in found
    assert "3 samples [" in found


def test_an_exception_leaves_the_bar_closed(capsys):
    with pytest.raises(ValueError, match="stop"), Progress("a.zip", 0, 3, True) as progress:
        progress.advance(1, 10)
        raise ValueError("stop")
    assert capsys.readouterr().err.endswith("\n")


KILLED = """
import os, signal, sys
import edcache.progress
from tqdm.auto import tqdm

tqdm(disable=True)
bar = tqdm if sys.argv[1] == "tqdm" else edcache.progress._bar_class()
child = os.fork()
if child == 0:
    bar.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
with edcache.progress.Progress("a.zip", 0, 3, True) as progress:
    progress.advance(3)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("whose", ["tqdm", "edcache"])
def test_a_child_killed_amid_drawing_a_bar_stops_no_fill(whose):
    done = subprocess.run([sys.executable, "-c", KILLED, whose], capture_output=True, timeout=60, check=True)
    assert b"caching a.zip: 100%" in done.stderr


FORKED = """
import os, threading
from edcache.progress import Progress, _bar_class

held, done = threading.Event(), threading.Event()
def draw():
    with _bar_class().get_lock():
        held.set()
        done.wait()
thread = threading.Thread(target=draw)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    with Progress("a.zip", 0, 3, True) as progress:
        progress.advance(3)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
done.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_amid_drawing_a_bar_may_draw_its_own():
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert b"caching a.zip: 100%" in done.stderr
