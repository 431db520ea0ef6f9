"""Completion in real shells, installed as `edcache --help` says: commands, options, the names of files."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from edcache.cli import main

ROOT = Path(__file__).parents[2]
LINE = re.search(r"eval .*", main.help)[0].strip()

# How a shell is started with nothing of the user's, and what it reads first.
SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], "PS1='> '; bind 'set bell-style none'; " + LINE),
    "zsh": (["-f", "-i"], "PS1='> '; autoload -U compinit; compinit -u -D; " + LINE.replace("bash", "zsh")),
    "fish": (
        ["--no-config", "-i"],
        "function fish_prompt; echo '> '; end; _EDCACHE_COMPLETE=fish_source edcache | source",
    ),
}


@pytest.fixture
def here(tmp_path):
    """A folder with archives, and `edcache` on the path."""
    (tmp_path / "cache").mkdir()
    for name in ("slow-train.zip", "other.zip"):
        (tmp_path / "cache" / name).touch()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "edcache"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m edcache "$@"\n')
    program.chmod(0o755)
    return tmp_path


def environment(here):
    path = os.pathsep.join([str(here / "bin"), os.environ["PATH"]])
    return os.environ | {
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "HOME": str(here),
        "TERM": "dumb",
        "INPUTRC": "",
    }


WORDS = {
    "a command": (["inf"], "plain,info"),
    "an option": (["info", "--js"], "plain,--json"),
    "a choice": (["export", "a.zip", "--to", "web"], "plain,webdataset"),
    "an archive": (["info", "cache/sl"], "file,cache/sl"),
    "one of several": (["copy", "a.zip", "cache/sl"], "file,cache/sl"),
    "a new archive": (["build", "digits:make", "-o", "cache/n"], "file,cache/n"),
}


@pytest.mark.parametrize("words", WORDS)
def test_what_completes_a_word(words):
    (*before, incomplete), expected = WORDS[words]
    completion = BashComplete(main, {}, "edcache", "_EDCACHE_COMPLETE")
    found = completion.get_completions(before, incomplete)
    assert [completion.format_completion(item) for item in found] == [expected]


def test_bash_is_told_what_completes_the_words_of_a_line(here):
    """What the function that bash calls gets."""
    asked = "COMP_WORDS='edcache info cache/sl' COMP_CWORD=2 _EDCACHE_COMPLETE=bash_complete edcache"
    done = subprocess.run(
        ["bash", "-c", f"{LINE}\ndeclare -F _edcache_completion\n{asked}"],
        cwd=here,
        env=environment(here),
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("_edcache_completion\nfile,cache/sl\n", "")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of:DeprecationWarning")
@pytest.mark.parametrize("shell", SHELLS)
def test_a_tab_completes_the_name_of_an_archive(here, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    arguments, setup = SHELLS[shell]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(here)
        os.execvpe(shell, [shell, *arguments], environment(here))
    text = ""

    def until(expected):
        nonlocal text
        deadline = time.monotonic() + 60
        while not re.search(expected, text):
            ready, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no {expected!r} in {text!r}"
            text += os.read(terminal, 4096).decode(errors="replace")
        text = ""

    try:
        os.write(terminal, f"{setup}; echo 're''ady'\n".encode())
        until("ready\r")
        os.write(terminal, b"edcache info cache/sl\t")
        until(r"slow-train\.zip")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)
