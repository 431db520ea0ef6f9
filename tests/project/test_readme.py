"""The README's Python runs as written, from top to bottom, in a folder of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


SERVER = "redis://localhost:6379/0"


@pytest.mark.full
def test_what_is_said_of_a_server_runs_as_written_but_for_its_address(tmp_path):
    from redis_server import Server

    snippets = [text for language, text in BLOCKS if language == "python"]
    [there] = [text for text in snippets if SERVER in text]
    server = Server()
    try:
        script = tmp_path / "readme.py"
        script.write_text(
            snippets[0]
            + there.replace(SERVER, server.url())
            + "\nassert len(shared) == 1000 and shared.complete and shared[17]['label'] == 7\n"
        )
        done = subprocess.run([sys.executable, "readme.py"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert len(server.records("val")) == 1000
        assert len(server.records("lazy")) == 3
        line = next(line for line in README.splitlines() if "edcache rm 'redis://" in line)
        assert line.split("`")[1] == "edcache rm 'redis://...?prefix=val'"
    finally:
        server.close()


def test_the_python_snippets_run_as_written(tmp_path):
    snippets = [text for language, text in BLOCKS if language == "python" and SERVER not in text]
    assert len(snippets) >= 3
    script = tmp_path / "readme.py"
    script.write_text(
        "\n".join(snippets)
        + "\nassert len(ds) == 1000 and len(small) == 200 and list(small.indices) == list(also.indices)\n"
        "assert lazy[3]['label'] == 3 and ds[5]['split'] == 'test'\n"
        "assert edcache.CachedDataset.from_cache('cache/pairs.zip').labels['label'][4] == 1\n"
    )
    done = subprocess.run([sys.executable, "readme.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_the_shell_lines_run_as_written(tmp_path):
    (tmp_path / "mymodule.py").write_text(
        "class Source:\n"
        "    def __init__(self, split): self.split = split\n"
        "    def __len__(self): return 30\n"
        "    def __getitem__(self, i): return {'label': i % 3, 'split': self.split}\n"
        "def slow(split): return Source(split)\n"
    )
    block = next(text for _, text in BLOCKS if "edcache build" in text)
    lines = block.strip().splitlines()
    archive = "cache/slow-train.zip"
    build = f"edcache build mymodule:slow -o {archive} --key label --key split --arg split=train"
    for line in [build, *lines]:
        command = line.replace("edcache", f"{sys.executable} -m edcache", 1)
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)
