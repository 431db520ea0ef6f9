"""Every script that the documentation names starts, and does a little."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from optional import Library

Image = Library("PIL.Image")
ROOT = Path(__file__).parents[2]
DOCS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RELIABILITY.md")),
    *(file for file in (ROOT / "docs").rglob("*.md") if "_build" not in file.parts),
]
NAMED = {
    path for file in DOCS for path in re.findall(r"\bscripts/[\w./-]*\w", file.read_text(encoding="utf-8"))
}
SCRIPTS = sorted(path.removeprefix("scripts/") for path in NAMED if not Path(path).suffix)

# What each does as a trial: its arguments, what it prints, and its exit status.
TRIALS = {
    "quickstart": ("--data photos", r"6 of 6 samples are there(.|\n)*second epoch: 6 samples", 0),
    "bench": (
        "--only fashion --peers edcache --scale 0.001 --repeats 1 --seconds 0.1 --out out",
        r"fashion: edcache",
        0,
    ),
    "bench scale": ("1000 5000", r"\| far open, requests \| \d", 0),
    "bench far": (
        "--mb 1 --ms 5 --samples 10000 --repeats 1 --only readers",
        r"\| 10 kB \| 5 ms \| 4 readers, ChunkShuffle \| [\d.]+ \|",
        0,
    ),
    "bench images": (
        "--count 12 --shapes 6 --repeats 1",
        r"\| edcache, loader, threads \| [\d,]+ \| [\d,]+ \| [\d.]+ \|",
        0,
    ),
    "bench first": ("--scale 0.01 --repeats 1", r"start, ms: \d", 0),
    "bench gpu": (
        "--device cpu --count 512 --side 32 --seconds 0.2 --workers 2",
        r"resident=True(.|\n)*the step alone(.|\n)*edcache.map, 2 readers(.|\n)*resizing alone",
        0,
    ),
    "bench map": (
        "--count 128 --keys 1000 --repeats 1 --milliseconds 1",
        r"\| edcache.map \| [\d.]+ \| [\d.]+ \|(.|\n)*\| edcache \| ([\d.]+ \|\s){5}",
        0,
    ),
    "coverage": (
        "tests/base/test_once.py",
        r"passed(.|\n)*Coverage failure: total of [\d.]+ is less than fail-under=100",
        2,
    ),
    "fuzz": ("where --runs 50", r"where +50 ", 0),
    "release": ("build", r"\.whl: .*PASSED(.|\n)*\.tar\.gz: .*PASSED", 0),
    "generate": ("golden out", r"v\d-fixed\.zip: [\d,]+ bytes", 0),
    "docs": ("", r"/docs/_build/html/index\.html", 0),
    "soak": ("0.0001", r"the time is over; not counted\n(.*\n)*no failure", 0),
}
# What CI runs, beside them.
IN_CI = {"test": "EDCACHE_TEST_SCALE=0.1 scripts/test --full\n"}
# Nobody tries it: it installs 7 GB.
UNTRIED = {"test-xla"}


def test_each_has_a_trial_here_or_runs_in_ci():
    assert sorted({*(trial.split()[0] for trial in TRIALS), *IN_CI, *UNTRIED}) == SCRIPTS
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(line in ci for line in IN_CI.values())


@pytest.mark.parametrize("path", sorted(NAMED))
def test_what_is_named_is_there(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("script", [*SCRIPTS, "../.ci/run", "venv.sh"])
def test_a_script_is_executable_and_parses(script):
    path = ROOT / "scripts" / script
    assert os.access(path, os.X_OK) == (script != "venv.sh")
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_linked_venv_is_used_as_it_is(tmp_path):
    """A worktree may link to the venv of its main checkout, in which that one is installed."""
    (tmp_path / "scripts").mkdir()
    shutil.copy2(ROOT / "scripts" / "venv.sh", tmp_path / "scripts")
    (tmp_path / "other").mkdir()
    (tmp_path / ".venv").symlink_to("other")
    said = subprocess.run(
        ["bash", "-c", "source scripts/venv.sh test; echo $PYTHONPATH"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": "more"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (said.stdout, said.stderr) == (f"{tmp_path}:more\n", "")
    assert not list((tmp_path / "other").iterdir())


@pytest.fixture
def tree(tmp_path):
    """The repository with venvs that hold what this process has, so that nothing is installed."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "scripts", tree / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", tree / "docs", ignore=shutil.ignore_patterns("_build"))
    shutil.copy2(ROOT / "setup.py", tree)
    packaged = ("pyproject.toml", "MANIFEST.in", "LICENSE", *(file.name for file in ROOT.glob("*.md")))
    for name in ("edcache", "tests", *packaged):
        (tree / name).symlink_to(ROOT / name)
    for venv in (".venv", ".venv-bench"):
        (tree / venv / "bin").mkdir(parents=True)
        for program, started in {"python": "", "coverage": "-m coverage"}.items():
            file = tree / venv / "bin" / program
            path = f'PYTHONPATH="{ROOT}${{PYTHONPATH:+:$PYTHONPATH}}"'
            file.write_text(f'#!/bin/sh\n{path} exec "{sys.executable}" {started} "$@"\n')
            file.chmod(0o755)
        for extra in EXTRAS:
            (tree / venv / f".installed-{extra}").touch()
    for name in ("cat/1", "cat/2", "cat/3", "dog/1", "dog/2", "dog/3"):
        (tree / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tree / "photos" / f"{name}.png")
    return tree


@pytest.mark.full
@pytest.mark.spread
@pytest.mark.parametrize("script", TRIALS)
def test_a_script_does_what_it_says(tree, script):
    if script == "bench far" and not (shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")):
        pytest.skip("nginx is not installed")
    arguments, expected, code = TRIALS[script]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "EDCACHE_TEST_JOBS": "1"}
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    done = subprocess.run(
        [*f"scripts/{script}".split(), *arguments.split()],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == code, done.stdout
    assert re.search(expected, done.stdout), done.stdout
    assert "installing edcache" not in done.stdout


@pytest.mark.full
def test_a_quickstart_of_nothing_says_so(tree):
    command = ["scripts/quickstart", "--data", "nosuchdir"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 1
    assert "--data nosuchdir: no such folder; or digits" in done.stderr
    assert "Traceback" not in done.stderr


# --- what they install ------------------------------------------------------------------------------


def declared():
    """The arguments of setup() in setup.py."""
    with pytest.MonkeyPatch.context() as patch:
        taken = {}
        patch.setattr("setuptools.setup", lambda **arguments: taken.update(arguments))
        runpy.run_path(str(ROOT / "setup.py"))
    return taken


SETUP = declared()
EXTRAS = SETUP["extras_require"]

# The extra that a script installs, and the files that run by it alone.
RUN_BY = {
    "quickstart": ["scripts/quickstart.py"],
    "docs": ["docs/conf.py"],
    "fuzz": [str(file.relative_to(ROOT)) for file in (ROOT / "tests" / "fuzz").glob("fuzz_*.py")],
    "test": [
        *(f"tests/kit/{name}.py" for name in ("filled", "scale", "xla_ranks")),
        *("tests/conftest.py", "tests/backends/test_xla.py"),
    ],
    "bench": [
        *("scripts/benchmark/__main__.py", "scripts/benchmark/plot.py", "scripts/benchmark/workloads.py"),
        *(
            "scripts/bench_far.py",
            "scripts/bench_first.py",
            "scripts/bench_gpu.py",
            "scripts/bench_images.py",
            "scripts/bench_map.py",
        ),
    ],
}


def test_every_extra_that_a_script_installs_is_there():
    installed = {
        extra
        for file in (ROOT / "scripts").iterdir()
        if file.is_file()
        for extra in re.findall(r'(?:/venv\.sh" |\bextra=)(\w+)', file.read_text(encoding="utf-8"))
    }
    assert installed == {*RUN_BY, "full", "release"}
    assert installed <= set(EXTRAS)


def imported(file):
    """The packages of others that a file imports; not what it can do without."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tried = {id(n) for block in ast.walk(tree) if isinstance(block, ast.Try) for n in ast.walk(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in tried:
            modules = (
                [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            )
            yield from (module.partition(".")[0] for module in modules)


@pytest.mark.full
@pytest.mark.parametrize("extra", RUN_BY)
def test_an_extra_brings_what_its_script_imports(extra):
    """Others may bring it too, for a while."""
    distributions = packages_distributions()
    required = [*SETUP["install_requires"], *EXTRAS[extra]]
    brought = {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in required}
    files = [ROOT / name for name in RUN_BY[extra]]
    modules = {module for file in files for module in imported(file)} - {"edcache", "torch_xla", "benchmark"}
    foreign = modules - set(sys.stdlib_module_names)
    foreign -= {file.stem for folder in ("scripts", "tests") for file in (ROOT / folder).rglob("*.py")}
    assert foreign
    for module in foreign:
        names = {name.lower().replace("_", "-") for name in distributions[module]}
        assert names & brought, f"{module} is of {names}, which edcache[{extra}] lacks"
