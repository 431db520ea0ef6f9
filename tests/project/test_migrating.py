"""The new code of docs/migrating.md runs as written, from top to bottom."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")


@pytest.mark.full
def test_the_new_code_runs_as_written(tmp_path):
    snippets = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 7
    (tmp_path / "guide.py").write_text("\n".join(snippets))
    done = subprocess.run([sys.executable, "guide.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
