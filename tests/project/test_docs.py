"""Every page runs as written, from top to bottom, in a folder of its own (tests/kit/pages.py says how)."""

import ast
import functools
import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
import urllib.request
from contextlib import ExitStack, closing, contextmanager

import pytest
from pages import PAGES, ROOT, comparable, printed, program

import edcache
from edcache.cli import main

PROGRAMS = {name: program(text) for name, text in PAGES.items()}
PROGRAMS_THERE = {
    "python": f'exec "{sys.executable}" "$@"',
    "edcache": f'exec "{sys.executable}" -m edcache "$@"',
    "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
    # Slurm's, of a job of one node: what it starts runs here.
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
}
OF_SLURM = {"SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2"}
QUICK = ("README.md", "docs/quickstart.md")
REPOSITORY = "https://github.com/edcache/edcache"
SERVER = "redis://localhost:6379/0"


@contextmanager
def with_its_servers(code, folder):
    """The program, and the environment in which it finds the servers that it names on this machine.

    The address of a Redis server is the one text that is replaced.
    """
    with ExitStack() as stack:
        environment = {}
        if SERVER in code:
            from redis_server import Server

            server = stack.enter_context(closing(Server()))
            code = code.replace(SERVER, server.url())
        if "s3://bucket/" in code:
            from object_servers import s3

            for name, value in stack.enter_context(s3(folder)).items():
                environment[f"FSSPEC_S3_{name.upper()}"] = value
            bucket = f"{environment['FSSPEC_S3_ENDPOINT_URL']}/bucket"
            urllib.request.urlopen(urllib.request.Request(bucket, method="PUT")).close()
        yield code, environment


@pytest.fixture
def folder(tmp_path):
    """Where a page runs, and the programs that it finds: those of this process."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, command in PROGRAMS_THERE.items():
        file = programs / name
        file.write_text(f"#!/bin/sh\n{command}\n")
        file.chmod(0o755)
    (tmp_path / "page").mkdir()
    return tmp_path


def run(folder, code):
    """Run a page's program; what it printed."""
    page = folder / "page"
    with with_its_servers(code, folder) as (text, extra):
        (page / "page.py").write_text(text)
        environment = os.environ | OF_SLURM | extra
        environment["PATH"] = f"{folder / 'programs'}:{environment['PATH']}"
        environment["PYTHONPATH"] = str(ROOT)
        environment["EDCACHE_DIR"] = str(folder / "home")
        command = [sys.executable, "page.py"]
        with open(folder / "output", "w+") as output:
            options = {"stdout": output, "stderr": subprocess.STDOUT, "timeout": 300}
            done = subprocess.run(command, cwd=page, env=environment, **options)
    text = (folder / "output").read_text()
    assert done.returncode == 0, text[-3000:]
    return text


EVERY_KIND = """
<!-- preamble
import there
-->
```python
# there.py
print("imported")
```
```sh
echo from 3 shells; edcache --version
```
```py
this never runs
```
<!-- check
print("done" if there else "")
-->
"""


def test_a_page_is_one_program_from_top_to_bottom(folder):
    """The preamble needs a file that is written after it: so it fails, and only then it does not."""
    with pytest.raises(AssertionError, match="No module named 'there'"):
        run(folder, program(EVERY_KIND))
    preamble, mark, rest = EVERY_KIND.partition("```python")
    lines = run(folder, program(mark + rest.replace("```sh", f"{preamble}```sh"))).splitlines()
    assert [lines[0], lines[1], lines[-1]] == ["imported", "from 3 shells", "done"]
    said = "<!-- printed -->\n```text\nfrom  17 shells\n```\n```text\nno output\n```\n"
    assert printed(said) == [comparable("from 3 shells")]


@pytest.mark.parametrize("page", PAGES)
def test_a_block_says_what_it_is(page):
    """Else a program that should run is only shown."""
    fences = re.findall(r"^```+(\S*)", PAGES[page], re.MULTILINE)
    assert all(fences[::2])
    assert not any(fences[1::2])


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
    output = {comparable(line) for line in run(folder, PROGRAMS[page]).splitlines()}
    missing = [line for line in printed(PAGES[page]) if line not in output]
    assert not missing, output


@pytest.mark.spread
@pytest.mark.full
@pytest.mark.parametrize("page", ["docs/howto/models.md", "docs/howto/recipes.md"])
def test_a_second_run_of_a_page_opens_what_the_first_computed(folder, page):
    def archives():
        return {path: path.read_bytes() for path in (folder / "page").rglob("*.zip")}

    run(folder, PROGRAMS[page])
    first = archives()
    assert first
    run(folder, PROGRAMS[page])
    assert archives() == first


@pytest.mark.parametrize("page", PAGES)
def test_a_link_to_a_file_leads_to_one(page):
    prose = re.sub(r"^(```+).*?^\1$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
        of_the_repository = re.fullmatch(rf"{REPOSITORY}/(?:blob|raw)/main/(.*)", target)
        if of_the_repository:
            assert (ROOT / of_the_repository[1]).exists(), target
        elif "://" not in target:
            assert page != "README.md", f"{target}: PyPI shows the README too; give the whole URL"
            assert ((ROOT / page).parent / target).exists(), target


def test_the_figures_of_the_readme_are_those_of_the_benchmarks():
    results = (ROOT / "scripts" / "benchmark" / "results.md").read_text(encoding="utf-8")
    figures = re.findall(r"\b[\d.]+ [kM]\b", PAGES["README.md"])
    assert len(figures) > 10
    assert [figure for figure in figures if figure not in results] == []


def test_the_diagrams_are_what_their_script_draws():
    drawn = runpy.run_path(str(ROOT / "docs" / "diagrams.py"))["drawn"]()
    images = ROOT / "docs" / "images"
    assert {f"{name}.svg" for name in drawn} == {file.name for file in images.glob("*.svg")}
    assert [name for name, svg in drawn.items() if (images / f"{name}.svg").read_text() != svg] == []


def test_the_reference_has_every_public_name_once():
    overview = PAGES["docs/reference/api.md"]
    documented = "".join(text for page, text in PAGES.items() if page.startswith("docs/reference/api/"))
    in_full = re.findall(r"^\.\. (?:auto\w+|py:module):: (edcache\.[\w.]+)$", documented, re.MULTILINE)
    assert len(in_full) == len(set(in_full))
    errors = dir(edcache.errors)  # of these, Sphinx finds all
    names = {f"edcache.{name}" for name in edcache.__all__ if name not in errors}
    assert names <= set(in_full)
    in_one_line = re.findall(r"^   (edcache\.[\w.]+)$", overview, re.MULTILINE)
    assert len(in_one_line) == len(set(in_one_line))
    names |= {f"edcache.errors.{name}" for name in errors if name.endswith(("Error", "Warning"))}
    modules = {"edcache.errors", "edcache.numpy", "edcache.samplers"}
    assert names - modules <= set(in_one_line)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, which is built once."""
    pytest.importorskip("furo")
    folder = tmp_path_factory.mktemp("site") / "html"
    options = ["--fail-on-warning", "--quiet"]
    command = [sys.executable, "-m", "sphinx", *options, ROOT / "docs", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.mark.full
def test_the_site_builds_without_a_warning(site):
    assert (site / "quickstart.html").exists()


@pytest.mark.full
def test_the_site_tells_each_option_once(site):
    pages = {
        page.stem: page.read_text(encoding="utf-8") for page in (site / "reference" / "api").glob("*.html")
    }
    for option in edcache.CacheOptions.names():
        assert pages["options"].count(f"<strong>{option}</strong> -- ") == 1, option
    for option in ("executor", "on_error", "sync", "verify"):  # no other call has a parameter of this name
        assert [page for page, text in pages.items() if f"<strong>{option}</strong> -- " in text] == [
            "options"
        ]


@pytest.mark.full
@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("delete cache disk", "howto/caches"),
        ("slow dataloader", "tuning"),
        ("resume killed", "howto/resume"),
        ("stale", "howto/stale"),
        ("filter by label", "howto/views"),
        ("out of memory", "tuning"),
    ],
)
def test_the_search_of_the_site_finds_a_page(site, query, page):
    node = shutil.which("node") or pytest.skip("node is not installed; it runs the search of the site")
    command = [node, ROOT / "tests" / "project" / "search.js", site, query]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert page in found[:5]


CALLS = (edcache.CachedDataset, edcache.map, edcache.CachedDataset.with_transform)
FOR_ASSISTANTS = ("docs/llms.txt", "docs/skills/edcache/SKILL.md")


@pytest.mark.parametrize("file", FOR_ASSISTANTS)
def test_what_assistants_read_names_what_exists(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    for name in {*re.findall(r"\bedcache\.([\w.]*\w)", text)}:
        functools.reduce(getattr, name.split("."), edcache)
    errors = {*re.findall(r"\b\w+(?:Error)\b", text)} - {"KeyError"}
    assert "StaleCacheError" in errors
    for name in errors:
        assert hasattr(edcache.errors, name), name
    for page in re.findall(r"\]\(([\w/-]+)\.html\)", text):
        assert (ROOT / "docs" / f"{page}.md").exists(), page
    for block in re.findall(r"\n\n((?:    .*\n)+)", text):
        ast.parse(textwrap.dedent(block))
    members = set(re.findall(r"\bds\.(\w+)", text))
    assert members
    assert all(hasattr(edcache.CachedDataset, name) for name in members)
    for command in re.findall(r"`edcache ([a-z]+)", text):
        assert command in main.commands, command
    for option in re.findall(r"`(\w+)=\w", text):
        assert any(option in inspect.signature(call).parameters for call in CALLS), option


def test_the_skill_begins_with_its_name_and_when_to_use_it():
    lines = (ROOT / "docs/skills/edcache/SKILL.md").read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[1], lines[3], len(lines) < 120) == ("---", "name: edcache", "---", True)
    assert 100 < len(lines[2].removeprefix("description: ")) < 1024
