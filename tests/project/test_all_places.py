"""What stands in several places stands in all of them: a change that forgets one fails here, and is told which one.

docs/architecture.md and CONTRIBUTING.md name these places.
"""

import json
import re
from pathlib import Path

import click
import killed_jobs
import numpy as np
import pyarrow as pa
import pytest
import reference

import edcache
from edcache import samplers
from edcache.base.options import CacheOptions, FillOptions, WriteOptions
from edcache.cli import main
from edcache.codec.leaves import LEAVES
from edcache.errors import OptionError
from edcache.labels import where
from edcache.labels.labels import Labels

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


def test_the_suite_for_other_readers_says_how_every_kind_of_leaf_is_printed():
    told = (ROOT / "tests" / "conformance" / "README.md").read_text(encoding="utf-8")
    # Of these a document has the plain value of Python.
    plain = {"bool", "str", "bigint", "ints", "floats", "bools", "strs"}
    assert [kind for kind in sorted(LEAVES.keys() - plain) if f'{{"{kind}": ' not in told] == [], (
        "the table of values in tests/conformance/README.md lacks it"
    )


@pytest.mark.parametrize("place", ["docs/howto/samples.md", "tests/kit/codec_samples.py"])
def test_every_class_of_a_leaf_is_told(place):
    text = (ROOT / place).read_text(encoding="utf-8").lower()
    classes = {leaf.cls.__name__.lower() for leaf in LEAVES.values() if leaf.cls is not None}
    # A page has them as numpy scalars.
    assert sorted(name for name in classes - {"str_", "bytes_"} if name not in text) == []


# What the functions of where-strings mean, in Python's words.
MEANING = {"startswith": str.startswith, "contains": str.__contains__}
TEXTS = ["ab", "ba", "bab", "aba", "abba", "a", "b", "", "AB", "a.b", "b%"]


@pytest.mark.parametrize("function", where.FUNCTIONS)
@pytest.mark.parametrize("pattern", ["a", "ab", "ba", "", "%", "."])
def test_every_function_of_a_where_string_computes_what_it_means(function, pattern):
    assert function in MEANING, (
        "say in MEANING what it means; edcache/labels/compare.py: ComparedColumn.matches computes it, "
        "and what it does not know as another function"
    )
    labels = Labels(lambda: pa.table({"text": TEXTS}), num_rows=len(TEXTS))
    truth = where.where_truth(f"{function}(text, {pattern!r})", labels).to_pylist()
    assert truth == [MEANING[function](text, pattern) for text in TEXTS]


@pytest.mark.parametrize("function", where.FUNCTIONS)
def test_every_function_of_a_where_string_is_hinted_at_where_it_is_written_otherwise(function):
    labels = Labels(lambda: pa.table({"text": TEXTS}), num_rows=len(TEXTS))
    with pytest.raises(OptionError, match=rf'text is searched by .*{function}\(name, "x"\).*; allowed are'):
        where.where_truth(f"text {function} 'a'", labels)
    with pytest.raises(OptionError) as raised:
        where.where_truth(f"{function}(text, 'a') and", labels)
    assert "text is searched by" not in str(raised.value), "_HINTS has it as a word of another language"


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


def test_every_sampler_is_held_to_what_all_of_them_promise():
    golden = json.loads((ROOT / "tests" / "dataset" / "golden_orders.json").read_text())
    assert {*samplers.__all__} - golden.keys() == {"Sequential"}, (
        "tests/dataset/golden_orders.json has no order of it, and MAKE in tests/dataset/test_samplers.py no line"
    )
    assert {*samplers.__all__} - killed_jobs.ORDERS.keys() == {"Mixture"}, (  # edcache.mix makes it
        "ORDERS in tests/kit/killed_jobs.py has no line of it"
    )


@pytest.mark.parametrize("name", [name for name, make in killed_jobs.ORDERS.items() if make is not None])
def test_a_sample_that_a_sampler_draws_again_gets_other_random_numbers(name, tmp_path):
    with edcache.CacheWriter(tmp_path / "a.zip", in_memory_keys=["label", "weight", "n_tokens"]) as w:
        for k in range(killed_jobs.LENGTH):
            x = np.full(4, k, "f4")
            w.append({"k": k, "x": x, "label": k % 3, "weight": float(k % 4), "n_tokens": k * k % 97 + 1})
    with edcache.CachedDataset.from_cache(tmp_path / "a.zip") as ds:
        view = ds.with_transform(killed_jobs.noised, seed=5)
        order = killed_jobs.ORDERS[name](view, global_batch_size=killed_jobs.SIZE, uneven="drop")
        read = order.dataset if name == "mix" else view
        drawn = [x.tobytes() for batch in read.loader(None, sampler=order) for x in batch["x"].numpy()]
    assert len(drawn) > killed_jobs.LENGTH // 2
    assert len({*drawn}) == len(drawn), "a sampler that draws a sample twice an epoch sets _may_repeat"


@pytest.mark.parametrize("name", sorted(CacheOptions.names()))
def test_every_option_is_read(name):
    declared = {ROOT / "edcache" / "base" / "options.py", ROOT / "edcache" / "cli" / "flags.py"}
    files = {*(ROOT / "edcache").rglob("*.py")} - declared
    assert any(re.search(rf"options\.{name}\b", file.read_text(encoding="utf-8")) for file in files), (
        "no code does what it says: edcache/writer/fill.py, stream.py and lazy.py are the ways to fill"
    )


def test_every_option_of_a_fill_has_a_flag():
    options = WriteOptions.names() | FillOptions.names() | {"lazy", "keep_existing"}
    assert options < CacheOptions.names()
    flags = {one.name for one in main.commands["build"].params if isinstance(one, click.Option)}
    assert options - flags == WITHOUT_FLAG, (
        "a flag stands in edcache/cli/flags.py, and edcache/cli/build.py takes it"
    )
