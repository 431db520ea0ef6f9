"""Progress: shown on a terminal or when asked for, one line about what was kept, silence elsewhere."""

import json
import logging
import os
import re
import subprocess
import sys

import pytest

from edcache.base import progress as progress_module
from edcache.base.progress import Progress


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
        with Progress("a.zip", show).begin(kept, kept + 3) as progress:
            for i in range(3):
                progress.advance(1, 1000 * (i + 1))
        return capsys.readouterr()

    return run


BAR = r"\n?.*caching a\.zip: 100%.* 3/3 .*"
LINE = r"a\.zip: 3 of 3 cached in 0:00:00\n"
OFF, ON = {"EDCACHE_PROGRESS": "0"}, {"EDCACHE_PROGRESS": "1"}


@pytest.mark.parametrize(
    ("show", "terminal", "environment", "expected"),
    [
        (None, False, {}, LINE),
        (None, False, OFF, ""),
        (None, False, ON, BAR),
        (None, True, {}, BAR),
        (None, True, OFF, ""),
        (None, True, {"RANK": "1"}, ""),
        (None, True, {"PJRT_LOCAL_PROCESS_RANK": "1"}, ""),
        (None, True, {"RANK": "0"}, BAR),
        (None, True, {"RANK": "0", "PJRT_LOCAL_PROCESS_RANK": "0"}, BAR),
        (None, True, {"RANK": "0", "PJRT_LOCAL_PROCESS_RANK": "1"}, BAR),
        (True, False, {}, BAR),
        (True, False, OFF, BAR),
        (True, False, {"RANK": "1"}, BAR),
        (False, True, {}, ""),
    ],
)
def test_a_bar_a_line_or_silence(shown, show, terminal, environment, expected):
    found = shown(show=show, terminal=terminal, environment=environment)
    assert re.fullmatch(expected, found.err, re.DOTALL)
    assert found.out == ""


@pytest.mark.parametrize(
    ("show", "environment", "expected"),
    [
        (None, {}, "a.zip: 2 of 5 already cached\n"),
        (None, OFF, ""),
        (False, {}, ""),
        (True, OFF, "a.zip: 2 of 5"),
    ],
)
def test_what_was_kept_is_said_first(shown, show, environment, expected):
    found = shown(show=show, kept=2, environment=environment).err
    assert found.startswith(expected) if expected else not found


def test_a_bar_begins_where_the_fill_resumes(shown):
    text = shown(show=True, kept=1000).err
    assert "a.zip: 1,000 of 1,003 already cached\n" in text
    assert "1000/1003 [00:00<?, ?/s]" in text
    assert "1003/1003" in text


@pytest.fixture
def log(capsys, monkeypatch):
    """Progress of so many samples, each of which takes so long, and the lines that it prints."""

    def run(samples, seconds, kept=0, name="a.zip"):
        clock = [0.0]
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: clock[0])
        with Progress(name, None).begin(kept, kept + samples) as progress:
            for _ in range(samples):
                clock[0] += seconds
                progress.advance(1, 5_000_000)
        return capsys.readouterr().err.splitlines()

    return run


def test_in_a_log_a_line_comes_every_half_minute(log):
    first, *lines, last = log(3600, 1, kept=100)
    assert first == "a.zip: 100 of 3,700 already cached"
    assert lines[0] == "a.zip: 130 of 3,700 cached, 1.0/s, 5 MB/s, 0:59:30 left"
    assert last == "a.zip: 3,700 of 3,700 cached in 1:00:00"
    counts = [int(line.split()[1].replace(",", "")) - 100 for line in lines]
    assert counts == list(range(30, 3600, 30))


def test_in_a_log_a_line_comes_every_tenth_where_that_is_sooner(log):
    *lines, last = log(100, 1)
    assert [line.split()[1] for line in lines] == [str(count) for count in range(10, 100, 10)]
    assert last == "a.zip: 100 of 100 cached in 0:01:40"


def test_in_a_log_a_fill_of_two_seconds_prints_its_first_and_its_last_line_alone(log):
    assert log(200, 0.01, kept=5) == ["a.zip: 5 of 205 already cached", "a.zip: 205 of 205 cached in 0:00:02"]
    assert len(log(2000, 0.01)) == 7  # of 20 seconds: every three


LONG = "imagenet-21k-winter-2021-train-512px-with-captions-and-boxes-split-0001-of-0128.zip"


def test_a_long_name_is_shortened_in_its_middle(log):
    first, *_ = log(3, 1, kept=1_281_167, name=LONG)
    assert first == "imagenet-2...of-0128.zip: 1,281,167 of 1,281,170 already cached"


WIDE = """
import sys
from edcache.base.progress import Progress
name, show = sys.argv[1], None if sys.argv[2] == "None" else True
with Progress(name, show).begin(600_000, 1_281_167) as progress:
    for _ in range(3):
        progress.advance(200_000, 10**9)
with Progress(name, show, doing="verifying", unit="B") as tell:
    tell(10**9, 3 * 10**9)
    tell(3 * 10**9, 3 * 10**9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="opens a terminal of Linux")
@pytest.mark.parametrize("columns", [0, 80, 120])
def test_no_bar_is_wider_than_its_terminal(columns):
    command = [sys.executable, "-c", WIDE, LONG, str(None if columns else True)]
    if columns:
        import fcntl
        import pty
        import struct
        import termios

        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        subprocess.run(command, stderr=child, check=True, timeout=60)
        os.close(child)
        text = os.read(parent, 100_000).decode()
        os.close(parent)
    else:  # asked for in a pipe
        text = subprocess.run(command, stderr=subprocess.PIPE, check=True, timeout=60, text=True).stderr
    drawn = [part for part in re.split(r"[\r\n]", text) if part.strip()]
    assert max(map(len, drawn)) <= (columns or 80)
    assert "1200000/1281167 [00:" in drawn[-3]
    assert drawn[-1].startswith("verifying imagenet-2...of-0128.zip")


def test_in_a_log_a_fill_of_unknown_length_says_how_many_there_are(capsys, monkeypatch):
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    with Progress("a.zip", None).begin(0, None) as progress:
        for _ in range(2):
            progress.advance(10)
            progress.advance(0)
    assert capsys.readouterr().err.splitlines() == [
        "a.zip: 20 samples cached, 0.5/s",
        "a.zip: 20 samples cached in 0:01:00",
    ]


def test_a_fill_that_fails_leaves_the_last_word_to_its_error(capsys):
    with pytest.raises(ValueError, match="stop"), Progress("a.zip", None).begin(0, 3):
        raise ValueError("stop")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_who_joins_a_fill_says_neither_what_was_kept_nor_how_it_goes_on(capsys, terminal, monkeypatch):
    if terminal:
        monkeypatch.setattr(sys, "stderr", Terminal(sys.stderr))
    with Progress("a.zip", None, is_first=False).begin(20, 200) as progress:
        progress.advance(180)
    text = capsys.readouterr().err
    assert "cached" not in text
    assert ("caching a.zip" in text) == terminal


def test_what_is_not_shown_is_logged(shown, caplog):
    with caplog.at_level(logging.INFO, "edcache"):
        shown(show=False, kept=2)
    assert caplog.messages == ["a.zip: 2 of 5 already cached"]


def test_a_function_is_told_of_all_that_is_there(capsys):
    told = []
    with Progress("a.zip", lambda present, total: told.append((present, total))).begin(1, 9) as progress:
        progress.advance(2, 10)
        progress.advance(0, 5)
        progress.advance(3)
    assert told == [(3, 9), (6, 9)]
    assert capsys.readouterr().err == ""


def test_without_a_known_length_the_bar_counts_upwards(capsys):
    with Progress("a.zip", True).begin(2, None) as progress:
        progress.advance(3, 10)
    found = capsys.readouterr().err
    assert "a.zip: 2 samples already cached" in found
    assert "5 samples [" in found


def test_an_exception_leaves_the_bar_closed(capsys):
    with pytest.raises(ValueError, match="stop"), Progress("a.zip", True).begin(0, 3) as progress:
        progress.advance(1, 10)
        raise ValueError("stop")
    assert capsys.readouterr().err.endswith("\n")


KILLED = """
import os, signal, sys
import edcache.base.progress
from tqdm.auto import tqdm

tqdm(disable=True)
bar = tqdm if sys.argv[1] == "tqdm" else edcache.base.progress._bar_class()
child = os.fork()
if child == 0:
    bar.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
with edcache.base.progress.Progress("a.zip", True).begin(0, 3) as progress:
    progress.advance(3)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("whose", ["tqdm", "edcache"])
def test_a_child_killed_amid_drawing_a_bar_stops_no_fill(whose):
    done = subprocess.run([sys.executable, "-c", KILLED, whose], capture_output=True, timeout=60, check=True)
    assert b"caching a.zip: 100%" in done.stderr


FORKED = """
import os, threading
from edcache.base.progress import Progress, _bar_class

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
    with Progress("a.zip", True).begin(0, 3) as progress:
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


FILLS = """
import os, sys
import edcache

class Source:
    def __init__(self, fails=False): self.fails = fails
    def __edcache_fingerprint__(self): return "samples"
    def __len__(self): return 300
    def __getitem__(self, i):
        if self.fails and i == 200: raise ValueError("stop")
        return {"x": i}

def fill(name, fails=False, environment=None, **options):
    print(f"[{name}]", file=sys.stderr)
    os.environ.pop("EDCACHE_PROGRESS", None)
    if environment is not None: os.environ["EDCACHE_PROGRESS"] = environment
    try: edcache.CachedDataset(Source(fails), f"{name}.zip", **options)
    except edcache.SourceError: pass

if __name__ == "__main__":
    fill("new")
    fill("new")
    fill("workers", num_workers=2)
    fill("stopped", fails=True)
    fill("stopped")
    fill("false", fails=True, progress=False)
    fill("false", progress=False)
    fill("zero", fails=True, environment="0")
    fill("zero", environment="0")
    fill("one", environment="1")
    fill("true", progress=True)
    print("[end]", file=sys.stderr)
"""


@pytest.mark.full
def test_what_fills_write_into_a_pipe(tmp_path):
    (tmp_path / "fills.py").write_text(FILLS)
    command = [sys.executable, "fills.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    parts = re.split(r"^\[(\w+)\]\n", done.stderr, flags=re.MULTILINE)[1:]
    assert parts[0::2][-1] == "end"
    texts = [re.sub(r"0:00:\d\d$", "T", text, flags=re.MULTILINE) for text in parts[1::2]]
    assert texts[:9] == [
        "new.zip: 300 of 300 cached in T\n",
        "",
        "workers.zip: 300 of 300 cached in T\n",
        "",
        "stopped.zip: 200 of 300 already cached\nstopped.zip: 300 of 300 cached in T\n",
        "",
        "",
        "",
        "",
    ]
    for name, text in zip(("one", "true"), texts[9:], strict=False):
        assert f"caching {name}.zip: 100%" in text
        assert "cached in" not in text


@pytest.mark.full
@pytest.mark.spread
@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_shows_a_bar(tmp_path, has_widgets):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipywidgets")
    (tmp_path / "fills.py").write_text(FILLS)
    cells = [
        "import sys; assert not sys.stderr.isatty()",
        "" if has_widgets else "sys.modules['ipywidgets'] = None",
        "from fills import fill; fill('new')",
        "fill('false', progress=False)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    *_, bar, silent = [json.dumps(cell.outputs) for cell in notebook.cells]
    assert ("application/vnd.jupyter.widget-view+json" in bar) == has_widgets
    bar = (bar + json.dumps(notebook.metadata.get("widgets"))).replace("\\u2007", " ")
    assert "caching new.zip:" in bar
    assert "300/300" in bar
    assert "cached in" not in bar
    assert "arning" not in bar
    assert "caching" not in silent
