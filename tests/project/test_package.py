"""What is published: the sdist has what a clone has, the wheel has the package, and the metadata is true."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from test_scripts import SETUP

import edcache

ROOT = Path(__file__).parents[2]


def texts():
    """What names extras: the documentation and the messages of the package."""
    for file in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "edcache").rglob("*.py")):
        yield file.read_text(encoding="utf-8")


def test_the_version_stands_in_one_place():
    assert SETUP["version"] == edcache.__version__
    assert re.search(
        rf"^## {re.escape(edcache.__version__)} ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert "version:" not in (ROOT / "CITATION.cff").read_text().replace("cff-version:", "")


def test_every_extra_that_a_text_names_is_there():
    named = {name for text in texts() for name in re.findall(r"\bedcache\[([\w,]+)\]", text)}
    assert {extra for names in named for extra in names.split(",")} - set(SETUP["extras_require"]) == set()
    assert "redis" in named


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The names in a clone, in its sdist and in its wheel."""
    if not (ROOT / ".git").exists():
        pytest.skip("which files a clone has is known where git is")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    out = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {name for name in out.split("\0") if name and (ROOT / name).is_file() and name != ".venv"}
    clone = tmp_path_factory.mktemp("clone")
    for name in names:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", clone / "dist", clone]
    done = subprocess.run(command, cwd=clone.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [sdist], [wheel] = (clone / "dist").glob("*.tar.gz"), (clone / "dist").glob("*.whl")
    with tarfile.open(sdist) as tar, zipfile.ZipFile(wheel) as archive:
        inside = {member.name.partition("/")[2] for member in tar if member.isfile()}
        return (
            names,
            inside,
            set(archive.namelist()),
            archive.read(f"edcache-{edcache.__version__}.dist-info/METADATA").decode(),
        )


@pytest.mark.full
def test_the_sdist_has_what_a_clone_has(built):
    clone, sdist, _, _ = built
    made = {name for name in sdist if name.startswith("edcache.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert sdist - made == clone


@pytest.mark.full
def test_the_wheel_has_the_package_and_nothing_else(built):
    clone, _, wheel, _ = built
    package = {name for name in wheel if ".dist-info/" not in name}
    assert package == {name for name in clone if name.startswith("edcache/")}
    assert {"edcache/py.typed", "edcache/__init__.pyi"} < package


@pytest.mark.full
def test_the_metadata_has_what_an_index_shows(built):
    lines = built[3].splitlines()
    assert {"Author: The edcache developers", "License-Expression: Apache-2.0"} < set(lines)
    assert "Description-Content-Type: text/markdown" in lines
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(lines))
    assert f"Requires-Python: >={pythons[0]}" in lines
    assert f"for version in {' '.join(pythons)}; do" in (ROOT / "scripts" / "release").read_text()
