"""What stands in several places stands in all of them: a change that forgets one fails here, and is told which one.

docs/architecture.md and CONTRIBUTING.md name these places.
"""

import json
import re
from pathlib import Path

import click
import pytest
import reference

import edcache
from edcache import samplers
from edcache.base.options import CacheOptions, FillOptions, WriteOptions
from edcache.cli import main
from edcache.codec.leaves import LEAVES
from edcache.labels import where

ROOT = Path(__file__).parents[2]
# Options without a flag: two are objects of Python; a command ends with its seal, which is synced, and reads nothing.
WITHOUT_FLAG = {"executor", "multiprocessing_context", "sync", "lazy"}


def kinds_in(node):
    """Yield the kind of every node of a schema."""
    kind = node if isinstance(node, str) else node[0]
    yield kind
    if kind in ("list", "tuple", "dict", "OrderedDict", "namedtuple", "dataclass", "object"):
        for child in node[-1]:
            yield from kinds_in(child)


def golden_kinds():
    found = set()
    for file in (ROOT / "tests" / "conformance" / "golden").glob("v*.zip"):
        if "-later-" not in file.name:
            schemas = map(json.loads, {*reference.walk(file).schemas.values()})
            found.update(kind for one in schemas if isinstance(one, list | str) for kind in kinds_in(one))
    return found


def test_every_kind_of_leaf_is_in_a_golden_archive():
    assert LEAVES.keys() - golden_kinds() == set(), (
        "no archive of tests/conformance/golden has such a leaf: give tests/conformance/golden_samples.py one, and "
        "add an archive made by scripts/generate golden"
    )


def test_the_reference_reader_knows_every_kind_of_leaf():
    known = {*reference.SIZES, *reference.VARIABLE, "array", "tensor", "scalar", "none"}
    assert LEAVES.keys() - known == set(), "tests/conformance/reference.py refuses such a leaf"


@pytest.mark.parametrize("function", where.FUNCTIONS)
@pytest.mark.parametrize(
    "place",
    [
        "edcache/labels/where.py",
        "edcache/cli/look.py",
        "docs/reference/labels.md",
        "tests/fuzz/target_where.py",
    ],
)
def test_every_function_of_a_where_string_is_told(place, function):
    text = (ROOT / place).read_text(encoding="utf-8")
    if place.endswith("where.py") and "fuzz" not in place:
        in_grammar = f'"{function}"' in where.__doc__
        in_errors = len(re.findall(rf'\b{function}\(name, "x"\)', text)) > 1
        assert in_grammar, "the grammar at the top of the file lacks it"
        assert in_errors, "_ALLOWED or _HINTS lacks it"
    else:
        assert re.search(rf"\b{function}\b", text)


@pytest.mark.parametrize("name", samplers.__all__)
def test_every_sampler_is_told(name):
    assert f"\n{name} " in samplers.__doc__
    assert re.search(rf"samplers .*\b{name}\b", edcache.__doc__.partition("verify")[0], re.DOTALL)
    pages = ROOT / "docs" / "reference"
    for page in ("api.md", "api/loaders.md"):
        assert f"edcache.samplers.{name}\n" in (pages / page).read_text(encoding="utf-8")
    table = (pages / "labels.md").read_text(encoding="utf-8")
    assert f"`{name}(" in table or name == "Mixture"  # docs/howto/mix.md has it


def test_every_option_of_a_fill_has_a_flag():
    options = WriteOptions.names() | FillOptions.names() | {"lazy", "keep_existing"}
    assert options < CacheOptions.names()
    flags = {one.name for one in main.commands["build"].params if isinstance(one, click.Option)}
    assert options - flags == WITHOUT_FLAG, (
        "a flag stands in edcache/cli/flags.py, and edcache/cli/build.py takes it"
    )
