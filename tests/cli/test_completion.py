"""Completion in bash, installed as `edcache --help` says: commands, options, the names of files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from edcache.cli import main

ROOT = Path(__file__).parents[2]
LINE = re.search(r"eval .*", main.help)[0].strip()


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
    "a choice": (["import", "a.zip", "--from", "ed"], "plain,edflow"),
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
