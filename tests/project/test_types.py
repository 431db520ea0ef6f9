"""Type checkers know options, parameters of a call and types of samples: tests/project/typed_example.py."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLE = str(HERE / "typed_example.py")


def run(*command):
    return subprocess.run(
        [sys.executable, "-m", *command, EXAMPLE], cwd=HERE.parents[1], capture_output=True, text=True
    )


@pytest.mark.full
def test_mypy_finds_what_the_example_says():
    """A comment that ignores an error is an error where there is none."""
    options = ("--strict", "--config-file=", "--python-version=3.10", "--follow-imports=silent")
    done = run("mypy", *options, "--ignore-missing-imports")
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_pyright_finds_what_the_example_says(tmp_path):
    config = tmp_path / "pyrightconfig.json"
    rules = {"typeCheckingMode": "standard", "reportUnnecessaryTypeIgnoreComment": True}
    # An editable installation is a hook of Python's import, which only running code follows.
    rules |= {"enableTypeIgnoreComments": False, "extraPaths": [str(HERE.parents[1])]}
    config.write_text(json.dumps(rules))
    done = run("basedpyright", "--project", str(config), "--pythonpath", sys.executable, "--level", "error")
    assert done.returncode == 0, done.stdout


MISTAKES = """
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import reveal_type
import edcache
from edcache import CachedDataset, cachable

class Slow(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 3
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        raise IndexError(index)

@cachable("{split}.zip", in_memory_keys=["label"], num_workers=2)
def train(split: str = "train") -> Slow:
    return Slow()

ds = CachedDataset(Slow(), "a.zip", on_error="skip", timeout=1.5)
old: CachedDataset[dict[str, Tensor]] = CachedDataset.from_cache("a.zip", decode="tensor")
reveal_type(train("val"))
reveal_type(ds.filter(label=3)[0]["image"])
edcache.verify("a.zip", quick=True)

CachedDataset.from_cache("a.zip", zero_cpy=True)  # wrong: a misspelt option
cachable("{split}.zip", num_worker=2)  # wrong: a misspelt option
CachedDataset(Slow(), "a.zip", timeout="3")  # wrong: the type of an option
CachedDataset.from_cache("a.zip", verify=3)  # wrong: the type of an option
CachedDataset(Slow(), "a.zip", sync="seel")  # wrong: not one of the literals
cachable("{split}.zip", on_error="ignore")  # wrong: not one of the literals
old[0].append(1)  # wrong: a sample is a dict
old[0]["image"] + "text"  # wrong: a field is a tensor
ds.build()  # wrong: there is no such method
train(3)  # wrong: the type of an argument
train(spilt="train")  # wrong: a misspelt argument
"""
WRONG = {number for number, line in enumerate(MISTAKES.splitlines(), 1) if "# wrong: " in line}


@pytest.mark.full
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_mistakes_of_a_user_are_found_and_nothing_else(tmp_path, checker):
    file = tmp_path / "user.py"
    file.write_text(MISTAKES)
    root = str(HERE.parents[1])
    if checker == "mypy":
        command = ["--strict", "--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
    else:
        rules = {"typeCheckingMode": "standard", "extraPaths": [root]}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(rules))
        command = ["--project", str(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run(
        [sys.executable, "-m", checker, *command, str(file)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"MYPYPATH": root},
    )
    errors = {int(line) for line in re.findall(r"user\.py:(\d+)(?::\d+)?(?::| -) error", done.stdout)}
    assert errors == WRONG, done.stdout + done.stderr
    types = re.findall(r'(?:Revealed type|Type of .*) is "([^"]+)"', done.stdout)
    short = [re.sub(r"[\w.]+\.", "", kind) for kind in types]
    assert short == ["CachedDataset[dict[str, Tensor]]", "Tensor"], done.stdout
