"""A relative path is of the folder that the process worked in when it was given, whatever becomes of that."""

import os
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
from written import write

import edcache
from edcache import CachedDataset, CacheWriter, cachable
from edcache.errors import OptionError
from tests.kit.systems import child_environ

COUNT = 30


class Wandering:
    """Works in another folder at each sample."""

    def __init__(self, top, count=COUNT):
        self.top, self.count = str(top), count

    def wander(self, name):
        folder = os.path.join(self.top, f"wander-{name}")
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)

    def __len__(self):
        self.wander("len")
        return self.count

    def __getitem__(self, i):
        self.wander(i)
        return {"x": i}


class Streaming:
    """The same, to be iterated."""

    def __init__(self, top):
        self.samples = Wandering(top)

    def __iter__(self):
        return map(self.samples.__getitem__, range(COUNT))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder that the test works in."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def check(ds, home, name="a.zip", count=COUNT):
    assert [ds[i]["x"] for i in range(len(ds))] == list(range(count))
    ds.close()
    archives = sorted(path for path in home.parent.rglob("*") if path.is_file())
    assert archives == [home / name]
    assert CachedDataset.from_cache(home / name).complete


WAYS = [
    {},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "spawn"},
    {"lazy": True},
    {"keep_existing": False},
    {"executor": ThreadPoolExecutor(1)},
]


@pytest.mark.full
@pytest.mark.parametrize("options", WAYS, ids=lambda options: "-".join(options) or "none")
def test_a_source_that_changes_the_folder_fills_the_archive_that_was_named(home, options):
    ds = CachedDataset(Wandering(home.parent), "a.zip", **options)
    assert ds.path == str(home / "a.zip")
    check(ds, home)


@pytest.mark.parametrize("keep_existing", [True, False])
def test_so_does_one_that_is_iterated(home, keep_existing):
    check(CachedDataset(Streaming(home.parent), "a.zip", keep_existing=keep_existing), home)


def test_a_factory_that_changes_the_folder(home):
    def make():
        source = Wandering(home.parent)
        source.wander("init")
        return source

    check(cachable("a.zip")(make)(), home)


def test_an_open_archive_stays_the_same_file(home, tmp_path):
    CachedDataset(Wandering(tmp_path), "a.zip").close()
    os.chdir(home)
    one, several = CachedDataset.from_cache("a.zip"), CachedDataset.from_cache(["a.zip"])
    CachedDataset([{"x": -1}] * COUNT, tmp_path / "a.zip").close()
    os.chdir(tmp_path)
    one.add_labels("y", range(COUNT))
    several.parts[0].refresh()
    for ds in (one, several):
        copy = pickle.loads(pickle.dumps(ds))
        assert [copy[i]["x"] for i in range(COUNT)] == list(range(COUNT))
        assert copy.labels["y"].tolist() == list(range(COUNT))
    assert list(CachedDataset.from_cache(tmp_path / "a.zip").labels) == []


@pytest.mark.parametrize("mode", ["x", "a", "w"])
def test_a_writer_goes_on_in_the_file_that_it_began(home, tmp_path, mode):
    with CacheWriter("a.zip", mode) as writer:
        for i in range(COUNT):
            writer.append({"x": i})
            os.chdir(tmp_path)
            writer.flush()
    check(CachedDataset.from_cache(home / "a.zip"), home)


def test_a_folder_above_a_link_is_not_that_above_its_name(home, tmp_path):
    (tmp_path / "far" / "inner").mkdir(parents=True)
    (home / "link").symlink_to(tmp_path / "far" / "inner")
    write("link/../a.zip", [1], "w")
    assert (tmp_path / "far" / "a.zip").exists()
    ds = CachedDataset.from_cache("link/../a.zip")
    assert ds.refresh() is False
    assert ds[0] == 1
    copy = edcache.copy_to_local("link/../a.zip", tmp_path / "copies", progress=False)
    assert CachedDataset.from_cache(copy)[0] == 1


@pytest.mark.parametrize("path", ["", "a\0b.zip", "a\ud800.zip"])
def test_what_is_no_path_is_refused(home, path):
    for call in (
        CachedDataset.from_cache,
        CacheWriter,
        edcache.verify,
        edcache.digest,
        edcache.reader.Reader,
    ):
        with pytest.raises(OptionError, match="empty path|not a path, because"):
            call(path)
    assert list(home.iterdir()) == []


def test_a_path_of_bytes_is_a_path(home):
    CachedDataset([1, 2], b"a.zip").close()
    assert CachedDataset.from_cache(b"a.zip")[1] == 2
    assert [path.name for path in home.iterdir()] == ["a.zip"]


# --- a folder that is gone ------------------------------------------------------------------------

GONE = """
import os, shutil, sys
import edcache
from edcache import CachedDataset, CacheWriter, cachable
from edcache.errors import EdcacheError

class Source:
    def __len__(self):
        return 30

    def __getitem__(self, i):
        return {{"x": i}}

def told(call):
    try:
        call()
    except EdcacheError as error:
        return print(type(error).__name__, error)
    raise SystemExit("nothing was raised")

if __name__ == "__main__":
    top = sys.argv[1]
    gone = os.path.join(top, "gone")
    os.makedirs(gone)
    os.chdir(gone)
    shutil.rmtree(gone)
    {body}
"""


def without_folder(tmp_path, body):
    script = tmp_path / "script.py"
    script.write_text(GONE.format(body=textwrap.indent(textwrap.dedent(body), "    ").strip()))
    environment = child_environ()
    ended = subprocess.run(
        [sys.executable, script, str(tmp_path)], capture_output=True, text=True, env=environment, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.full
def test_full_paths_work_where_the_folder_is_gone(tmp_path):
    told = without_folder(
        tmp_path,
        """
        crew = {"num_workers": 2, "multiprocessing_context": "fork"}
        for number, options in enumerate([{}, crew, {"lazy": True}]):
            path = os.path.join(top, f"a{number}.zip")
            ds = CachedDataset(Source(), path, **options)
            assert [ds[i]["x"] for i in range(30)] == list(range(30))
            ds.close()
            assert CachedDataset.from_cache(path).complete
            assert CachedDataset.from_cache([path])[3] == {"x": 3}
            assert edcache.verify(path).sound
        with CacheWriter(os.path.join(top, "b.zip"), "w") as writer:
            writer.append(1)
        assert cachable(os.path.join(top, "c.zip"))(Source)()[7] == {"x": 7}
        CachedDataset.from_cache([path, os.path.join(top, "a0.zip")]).save(os.path.join(top, "d.zip"))
        whole = CachedDataset.from_cache(os.path.join(top, "d.zip"))
        whole.save(os.path.join(top, "part.zip"), max_size=1000)
        whole.save(os.path.join(top, "d.zip"))
        copy = edcache.copy_to_local(os.path.join(top, "d.zip"), os.path.join(top, "copies"), progress=False)
        near = CachedDataset.from_cache(os.path.join(top, "d.zip"), local=os.path.join(top, "near"))
        assert near[1] == {"x": 1}
        assert len(CachedDataset.from_cache(copy)) == 60
        """,
    )
    assert told == []


@pytest.mark.full
def test_relative_ones_are_refused_where_the_folder_is_gone(tmp_path):
    told = without_folder(
        tmp_path,
        """
        full = os.path.join(top, "full.zip")
        CachedDataset(Source(), full).close()
        told(lambda: CachedDataset(Source(), "a.zip"))
        told(lambda: CachedDataset.from_cache("a.zip"))
        told(lambda: CachedDataset.from_cache(["a.zip"]))
        told(lambda: CacheWriter("a.zip"))
        told(cachable("a.zip")(Source))
        told(lambda: edcache.verify("a.zip"))
        told(lambda: CachedDataset.from_cache(full).save("a.zip"))
        told(lambda: CachedDataset.from_cache(full).save("a.zip", max_size=1))
        told(lambda: edcache.copy_to_local(full, "a.zip"))
        told(lambda: CachedDataset.from_cache(full, local="a.zip"))
        """,
    )
    refused = (
        "StorageError a.zip: asking for the folder that this process works in; give an absolute path: "
        "No such file or directory"
    )
    assert told == [refused] * 10


@pytest.mark.full
def test_the_command_line_too(tmp_path):
    write(tmp_path / "full.zip", [{"x": 1}])
    told = without_folder(
        tmp_path,
        """
        from click.testing import CliRunner
        from edcache.cli import main
        full = os.path.join(top, "full.zip")
        for path in (full, "a.zip"):
            for command in (["info"], ["verify"], ["labels"], ["show", "0"]):
                ended = CliRunner().invoke(main, [command[0], path, *command[1:]])
                print(ended.exit_code, ended.output.splitlines()[0])
        """,
    )
    assert [line[0] for line in told] == ["0"] * 4 + ["1"] * 4
    refused = "edcache: a.zip: asking for the folder that this process works in; give an absolute path: "
    assert told[4:] == [f"1 {refused}No such file or directory"] * 4


@pytest.mark.full
def test_workers_that_cannot_start_there_say_so(tmp_path):
    told = without_folder(
        tmp_path,
        """
        full = os.path.join(top, "full.zip")
        told(lambda: CachedDataset(Source(), full, num_workers=2, multiprocessing_context="spawn"))
        """,
    )
    assert len(told) == 1
    assert told[0].startswith("StorageError ")
    assert "full.zip: starting a worker process" in told[0]
