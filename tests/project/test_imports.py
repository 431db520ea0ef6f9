"""What is heavy to import is imported where it is used: a first sample is not to wait for it."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from edcache import CachedDataset, CacheWriter

# Some versions of torch import one or another of these themselves; that is not counted.
HEAVY = ["pyarrow.compute", "pyarrow.acero", "pyarrow.dataset", "pandas", "tqdm.auto", "click", "pydoc"]

# The arguments: an archive, what to do with it, and names of modules.
SCRIPT = """
import sys
import numpy, torch
before = set(sys.modules)
import edcache
dataset = edcache.CachedDataset.from_cache(sys.argv[1])
exec(sys.argv[2])
print(*(name for name in sys.argv[3:] if name in sys.modules and name not in before))
"""


@pytest.fixture(params=["sealed", "growing"])
def path(request, tmp_path):
    """An archive of several chunks; to open a growing one merges their tables."""
    path = tmp_path / "a.zip"
    writer = CacheWriter(path, in_memory_keys=["label", "name", "score"], chunk_size=2)
    for i in range(6):
        writer.append({"x": [i] * 4, "label": i, "name": f"n{i}", "score": i / 2})
    writer.close() if request.param == "sealed" else writer.abort()
    return path


def imported(path, action):
    """Which of HEAVY a fresh process imports to open the archive and do the action."""
    command = [sys.executable, "-c", SCRIPT, str(path), action, *HEAVY]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_opening_an_archive_and_reading_a_sample_imports_nothing_heavy(path):
    assert imported(path, "assert dataset[1]['x'] == [1] * 4") == []


@pytest.mark.parametrize("path", ["sealed"], indirect=True)
def test_a_sample_of_a_sealed_archive_with_labels_takes_no_pyarrow(path):
    """Importing it takes 20 ms, opening the archive 3."""
    action = "dataset[1]; dataset.batch([1, 2]); assert not [name for name in sys.modules if name[:7] == 'pyarrow']"
    assert imported(path, action) == []


@pytest.mark.full
def test_naming_the_classes_does_not_load_pyarrow():
    code = (
        "import sys, torch; before = set(sys.modules); import edcache, edcache.labels\n"
        "edcache.CachedDataset, edcache.CacheWriter, edcache.labels.Labels, edcache.samplers.Balanced\n"
        "print('pyarrow' in set(sys.modules) - before)"
    )
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert answer.stdout == "False\n"


@pytest.mark.full
def test_a_label_column_of_numbers_imports_nothing_heavy(path):
    assert imported(path, "assert dataset.labels['label'][5] == 5; dataset.labels['score']") == []


@pytest.mark.full
def test_filtering_by_a_number_imports_nothing_heavy(path):
    assert imported(path, "assert len(dataset.filter(label=3)) == 1") == []


@pytest.mark.full
@pytest.mark.parametrize("path", ["sealed"], indirect=True)
def test_a_heavy_import_is_found(path):
    """Else the tests above would find nothing whatever is imported."""
    assert {"pyarrow.compute", "pandas"} <= {*imported(path, "import pyarrow.compute, pandas")}


BUILD = """
labels = dict(i=1, f=0.5, b=True, t="x", n=None, d=datetime.date(2020, 1, 2), l=[1, 2])
with edcache.CacheWriter(sys.argv[1] + ".new", in_memory_keys=list(labels)) as w:
    w.append({"x": torch.ones(3), **labels})
    w.append({"x": torch.ones(3), **dict.fromkeys(labels)})
"""


@pytest.mark.full
def test_writing_an_archive_with_labels_imports_nothing_heavy(path):
    assert imported(path, "import datetime\n" + BUILD) == []


# What a process has to wait for only when a call needs it. torch imports some of these in some versions.
LIBRARIES = [
    *("pyarrow", "zstandard", "simplejpeg", "PIL", "pandas", "fsspec", "aiohttp", "redis", "huggingface_hub"),
    *("click", "tqdm.auto", "dask", "ray", "torch_xla", "datasets"),
    *(
        "edcache.writer.fill",
        "edcache.writer.cache_writer",
        "edcache.writer.engine",
        "edcache.dataset.relabel",
    ),
    *("edcache.interop", "edcache.tools", "edcache.backends"),
]
CLASS_ALONE = """
import sys
import numpy, torch
before = set(sys.modules)
import edcache
edcache.CachedDataset
print(*(name for name in sys.argv[1:] if name in sys.modules and name not in before))
"""


def test_the_class_alone_imports_no_library_and_nothing_that_fills():
    assert all(find_spec(name) for name in LIBRARIES if name.startswith("edcache."))
    command = [sys.executable, "-c", CLASS_ALONE, *LIBRARIES]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == []


def test_what_an_archive_says_of_itself_takes_no_torch(path):
    code = (
        "import sys, edcache\n"
        "from edcache import display, labels\n"
        "import edcache.labels, edcache.reader\n"
        "session = edcache.reader.Reader(sys.argv[1], allow_partial=True).session\n"
        "assert labels.matching_rows(session.labels, {}, 'label >= 4').tolist() == [4, 5]\n"
        "fields = display.summary(session)['schemas'][0]['fields']\n"
        "assert {'x.0', 'label', 'name'} < {field['path'] for field in fields}\n"
        "assert (len(session.index.missing()), session.index.failures, session.complete) == (0, [], session.sealed)\n"
        "print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert answer.stdout == "False\n", answer.stderr


WHERES = ["label >= 4", "name == 'n3'", "label in (1, 2) or score is None", "not contains(name, '1')"]
COMMANDS = """
import sys
from edcache.cli import main
for command in sys.argv[2:]:
    main([word.replace("PATH", sys.argv[1]) for word in command.split("|")], standalone_mode=False)
print("torch" in sys.modules)
"""


def test_commands_that_read_no_sample_take_no_torch_and_filter_as_a_dataset_does(path):
    commands = [f"labels|PATH|--where|{where}|--columns|label|--csv" for where in WHERES]
    others = ["info|PATH", "info|PATH|--json", "labels|PATH|--count|name", "labels|PATH"]
    code = [sys.executable, "-c", COMMANDS, str(path), *commands, *others]
    answer = subprocess.run(code, capture_output=True, text=True)
    assert answer.stdout.endswith("\nFalse\n"), answer.stderr
    dataset = CachedDataset(None, path, allow_partial=True)
    rows = [dataset.filter(where).indices.tolist() for where in WHERES]
    expected = "".join("index,label\n" + "".join(f"{row},{row}\n" for row in part) for part in rows)
    assert answer.stdout.startswith(expected)


def test_what_reads_an_archive_anywhere_is_there_before_torch():
    modules = [f"edcache.backends.{name}" for name in ("mirror.copy", "remote.http", "shm")]
    code = f"import sys, {', '.join(modules)}; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "False\n", answer.stderr


def test_commands_that_read_samples_say_in_a_line_that_they_take_torch(path):
    code = "import sys; sys.modules['torch'] = None; from edcache.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "show", str(path), "0"]
    answer = subprocess.run(command, capture_output=True, text=True)
    line = "edcache: this command reads samples, which takes torch; install it with: pip install torch\n"
    assert (answer.returncode, answer.stderr) == (1, line)
