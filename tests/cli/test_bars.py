"""Bars of counts on a terminal, and none in a pipe."""

import os
import pty
import subprocess
import sys

import pytest
from written import write

COUNTS = {"a": 40, "b": 20, "c": 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("bars") / "a.zip"
    samples = ({"y": y, "k": k} for y, count in COUNTS.items() for k in range(count))
    return write(path, samples, in_memory_keys=["y", "k"])


def on_terminal(*command, columns, **environment):
    """What a command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    shown = os.environ | {"COLUMNS": str(columns), "PYTHONIOENCODING": "utf-8"} | environment
    with subprocess.Popen(
        [sys.executable, "-m", "edcache", *map(str, command)], stdout=theirs, stderr=theirs, env=shown
    ) as process:
        os.close(theirs)
        printed = b""
        try:
            while more := os.read(ours, 1 << 16):
                printed += more
        except OSError:  # the terminal of a process that ended
            pass
        assert process.wait() == 0, printed
    os.close(ours)
    return printed.decode().replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize(("columns", "width"), [(200, 40), (40, 40 - 14), (25, 25 - 14)])
def test_counts_have_bars_as_wide_as_the_terminal_lets_them(path, columns, width):
    lines = on_terminal("labels", path, "--count", "y", columns=columns)
    assert lines[0] == "value  count"
    expected = [f"{y:5}  {n:5}  " + "\u2588" * max(1, round(width * n / 40)) for y, n in COUNTS.items()]
    assert lines[1:] == expected
    assert max(map(len, lines)) <= columns


def test_where_there_is_no_room_there_is_no_bar(path):
    assert on_terminal("labels", path, "--count", "y", columns=20)[1:] == [
        "a         40",
        "b         20",
        "c          1",
    ]


def test_a_terminal_without_unicode_has_plain_bars(path):
    lines = on_terminal("labels", path, "--count", "y", columns=40, PYTHONIOENCODING="ascii")
    assert lines[1] == "a         40  " + "#" * 26


def test_csv_and_json_have_no_bars(path):
    assert on_terminal("labels", path, "--count", "y", "--csv", columns=80)[1:] == ["a,40", "b,20", "c,1"]
    assert "\u2588" not in "".join(on_terminal("info", path, "--json", columns=80))


def test_info_has_bars_of_labels_on_a_terminal_alone(path):
    lines = on_terminal("info", path, columns=60)
    at = lines.index("y  count")
    assert [line.split()[:2] for line in lines[at + 1 : at + 4]] == [[y, str(n)] for y, n in COUNTS.items()]
    assert all("\u2588" in line for line in lines[at + 1 : at + 4])
    assert max(map(len, lines[at:])) <= 60
    lines = on_terminal("info", path, columns=400)
    command = [sys.executable, "-m", "edcache", "info", str(path)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "\u2588" not in piped
    assert piped.splitlines() == lines[: len(piped.splitlines())] != lines
