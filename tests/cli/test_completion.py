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

from edcache import CacheWriter
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
    with CacheWriter(tmp_path / "a.zip", in_memory_keys=["lemon"]) as writer:
        writer.append({"lemon": 1})
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
    "an old cache": (["import", "ol"], "file,ol"),
    "a folder": (["caches", "ca"], "dir,ca"),
    "images": (["images", "ph"], "dir,ph"),
}


# Words behind the path of an archive with the labels label, lemon, "$(date)", two lines, and the fields x, y.
NAMES = {
    "a condition": (["labels", "a.zip", "--where", "la"], ["label"]),
    "its second column": (["labels", "a.zip", "--where", "label == 1 and le"], ["label == 1 and lemon"]),
    "a count": (["labels", "a.zip", "--count", "l"], ["label", "lemon"]),
    "columns": (["labels", "a.zip", "--columns", "label,le"], ["label,lemon"]),
    "a drop": (["labels", "a.zip", "--drop", ""], ["label", "lemon"]),
    "a join": (["labels", "a.zip", "--on", "le"], ["lemon"]),
    "a copy": (["copy", "a.zip", "-o", "b.zip", "--where", "le"], ["lemon"]),
    "a field": (["export", "a.zip", "--field", ""], ["x", "y.z"]),
    "no archive": (["labels", "other.zip", "--count", "l"], []),
    "a folder": (["labels", ".", "--count", "l"], []),
    "no path": (["labels", "--count", "l"], []),
    "a server": (["labels", "redis://nowhere.invalid/0?prefix=x", "--count", "l"], []),
}


@pytest.mark.parametrize("words", NAMES)
def test_labels_and_fields_of_the_archive_complete_a_word(words, tmp_path, monkeypatch):
    """No name is offered that a shell would run, and nothing raises."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.zip").write_text("no archive")
    names = ("label", "lemon", "l$(date)", "l\nplain,rm")
    with CacheWriter("a.zip", in_memory_keys={name: lambda sample: sample["x"] for name in names}) as writer:
        writer.append({"x": 1, "y": {"z": 2.0}})
    (*before, incomplete), expected = NAMES[words]
    completion = BashComplete(main, {}, "edcache", "_EDCACHE_COMPLETE")
    assert [item.value for item in completion.get_completions(before, incomplete)] == expected


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
def test_a_tab_completes_the_name_of_an_archive_and_of_a_label(here, shell):
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
        os.write(terminal, b"\x15edcache labels a.zip --count le\t")
        until(r"--count le.*mon")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)
