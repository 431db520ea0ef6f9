"""Every page runs as written, from top to bottom, in a folder of its own (tests/kit/pages.py says how)."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest
from pages import PAGES, ROOT, program

PROGRAMS = {name: program(text) for name, text in PAGES.items()}
PROGRAM_OF = {"python": "", "edcache": "-m edcache", "torchrun": "-m torch.distributed.run"}
QUICK = ("README.md", "docs/quickstart.md")
SERVER = "redis://localhost:6379/0"


@contextmanager
def with_its_servers(code):
    """The program, and the environment that it needs, with the servers that it names on this machine.

    The address of a Redis server is the one thing that is replaced.
    """
    environment = {}
    if SERVER in code:
        from redis_server import Server

        server = Server()
        try:
            yield code.replace(SERVER, server.url()), environment
        finally:
            server.close()
    else:
        yield code, environment


@pytest.fixture
def folder(tmp_path):
    """Where a page runs, and the programs that it finds: those of this process."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, arguments in PROGRAM_OF.items():
        file = programs / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        file.chmod(0o755)
    (tmp_path / "page").mkdir()
    return tmp_path


def run(folder, code):
    """Run a page's program; what it printed."""
    page = folder / "page"
    with with_its_servers(code) as (text, extra):
        (page / "page.py").write_text(text)
        environment = os.environ | extra
        environment["PATH"] = f"{folder / 'programs'}:{environment['PATH']}"
        environment["PYTHONPATH"] = str(ROOT)
        environment["EDCACHE_DIR"] = environment["EDCACHE_SPOOL"] = str(folder / "home")
        command = [sys.executable, "page.py"]
        done = subprocess.run(command, cwd=page, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.spread
@pytest.mark.parametrize(
    "page",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.full)
        for name, code in PROGRAMS.items()
        if code
    ],
)
def test_a_page_runs_as_written(folder, page):
    run(folder, PROGRAMS[page])


@pytest.mark.parametrize("page", PAGES)
def test_a_link_to_a_file_leads_to_one(page):
    prose = re.sub(r"^(```+).*?^\1$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.full
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("furo")
    options = ["--fail-on-warning", "--quiet"]
    command = [sys.executable, "-m", "sphinx", *options, ROOT / "docs", tmp_path / "html"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "html" / "quickstart.html").exists()
