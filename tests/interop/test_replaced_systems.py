"""Each feature of a replaced system, as docs/migrating.md gives it, made by two processes, of which some are killed.

A row runs in two processes at once. Once they have begun, one or both get SIGKILL, and begin again. All of them must
read what the source has. Behind them the same call computes nothing, and files are sound; what is only in memory is
gone.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import object_servers
import pytest
import torch
from filled import computed, note, stored_rows
from likeness import same
from old_caches import edflow_zip, killed, with_index, xla_folder
from optional import need

import edcache
from edcache import import_cache
from edcache.compat import edflow, kappadata, torch_xla
from edcache.errors import ArchiveNotFoundError, MissingSampleError, PartialArchiveWarning, StaleCacheError

COUNT, KILLED_AFTER = 40, 6
OLD_COUNT = 1_500  # samples of an old cache, which is read fast
PARENT = os.getpid()


def digit(i):
    return {"image": np.full((4,), i, np.float32), "label": i % 3}


def indexed(i):
    return with_index(digit(i), i)


class Digits:
    """A dataset as edflow's and torch_xla's."""

    root, name, in_memory_keys = "data", "digits", ["label"]
    sample = staticmethod(digit)

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        note("computed", i)
        time.sleep(0.005)
        return self.sample(i)


class Others(Digits):
    sample = staticmethod(lambda i: {"image": np.full((4,), -i, np.float32), "label": 0})


class Bad(Digits):
    def __getitem__(self, i):
        if i == 7:
            raise ValueError("cannot be read")
        return super().__getitem__(i)


def odd(i):
    """None, arrays, and a view of a large tensor."""
    return (None, (np.arange(i), i), torch.zeros(500, 100)[0] + i)[i % 3]


class Odd(Digits):
    in_memory_keys, sample = [], staticmethod(odd)


class Items:
    """A KDDataset."""

    def __len__(self):
        return COUNT

    def getitem_x(self, idx, ctx=None):
        note("computed", idx)
        time.sleep(0.005)
        ctx["flipped"] = idx % 2 == 1
        return torch.full((4,), idx)

    def getitem_class(self, idx, ctx=None):
        return idx % 10 // 4


def x(i):
    return torch.full((4,), i)


def read(ds, sample=digit, length=COUNT):
    """Read all of a dataset, in an order of this process, and compare it with the source."""
    assert len(ds) == length
    order = [*range(length)] if os.getpid() % 2 else [*range(length)][::-1]
    for i in order:
        assert same(ds[i], sample(i)), (i, ds[i])
        note("read", i)
    with pytest.raises(IndexError):
        ds[length]
    return ds


# ---------------------------------------------------------------------------------------------- rows
# A row takes the URL of a server, in a folder that both processes have; it makes a dataset, reads it, and may return
# it. prepare: runs before both. stays: False of what the same call computes again, when both have ended.

ROWS, PREPARED, STAYS = {}, {}, {}


def row(name, prepare=None, stays=True):
    def add(function):
        ROWS[name], PREPARED[name], STAYS[name] = function, prepare, stays
        return function

    return add


def filled():
    edcache.CachedDataset(Digits(), "data/cached/digits.zip", progress=False, spot_check=False)


# edflow


@row("edflow, CachedDataset(data)")
def edflow_lazy(url):
    ds = read(edflow.CachedDataset(Digits()), indexed)
    assert same(ds.get_example(3), indexed(3))
    return ds


@row("edflow, force_cache, labels")
def edflow_forced(url):
    ds = read(edflow.CachedDataset(Digits(), force_cache=True, progress=False), indexed)
    assert ds.labels["label"].tolist() == [i % 3 for i in range(COUNT)]
    return ds


@row("edflow, chunk_size=1")
def edflow_chunks(url):
    return read(edflow.CachedDataset(Digits(), True, True, True, 1, progress=False), indexed)


@row("edflow, cache_dataset()")
def edflow_cache_dataset(url):
    return read(edflow.CachedDataset(Digits()).cache_dataset(progress=False), indexed)


@row("edflow, workers")
def edflow_workers(url):
    options = {"num_workers": 2, "multiprocessing_context": "fork", "progress": False}
    return read(edflow.CachedDataset(Digits(), force_cache=True, **options), indexed)


def filled_with_others():
    edflow.CachedDataset(Others(), force_cache=True, progress=False)


@row("edflow, keep_existing=False", filled_with_others)
def edflow_anew(url):
    is_kept = os.getpid() == PARENT
    return read(edflow.CachedDataset(Digits(), True, is_kept, progress=False), indexed)


@row("edflow, PathCachedDataset")
def edflow_path(url):
    return read(edflow.PathCachedDataset(Digits(), "cached/path.zip", progress=False), indexed)


@row("edflow, cachable")
def edflow_cachable(url):
    @edflow.cachable("cached/{split}.zip", progress=False)
    def decorated(split):
        return Digits()

    return read(decorated("train"), indexed)


@row("edflow, from_cache", filled)
def edflow_from_cache(url):
    return read(edflow.CachedDataset.from_cache("data", "digits"))


@row("edflow, sums, multiples, subsets", filled)
def edflow_sums(url):
    ds = edflow.CachedDataset.from_cache("data", "digits")
    read(ds + ds[:5], lambda i: digit(i % COUNT), COUNT + 5)
    read(2 * ds, lambda i: digit(i % COUNT), 2 * COUNT)
    read(ds[[5, 3]], lambda i: digit(5 - 2 * i), 2)
    assert ds[[5, 3]].labels["label"].tolist() == [2, 0]
    return ds


@row("edflow, labels = {...}", filled)
def edflow_labels(url):
    warnings.simplefilter("ignore", PartialArchiveWarning)  # of a seal that was broken off
    ds = edflow.CachedDataset.from_cache("data", "digits")
    for k in range(6):
        ds.add_labels(f"split{k}", [f"{k} of {i}" for i in range(COUNT)])
        note("read", k)
    read(ds)
    for k in range(6):
        assert ds.labels[f"split{k}"].tolist() == [f"{k} of {i}" for i in range(COUNT)]
    return ds


@row("edflow, a bad sample")
def edflow_bad(url):
    """It hung edflow's server."""
    ds = edcache.CachedDataset(Bad(), "cached/bad.zip", on_error="skip", progress=False)
    for i in [k for k in range(COUNT) if k != 7]:
        assert same(ds[i], digit(i))
    with pytest.raises(MissingSampleError, match="cannot be read"):
        ds[7]
    return ds


@row("edflow, edcache -d ... -s")
def edflow_command(url):
    """Two shells, which share the work."""
    if os.getpid() != PARENT:
        with suppress(FileExistsError):
            os.symlink(__file__, f"{Path(__file__).stem}.py")
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        factory = f"{Path(__file__).stem}:Digits"
        os.execv(sys.executable, [sys.executable, "-m", "edcache", "build", factory, "-o", "built.zip"])
    return read(edcache.CachedDataset.from_cache("built.zip"))


def old_edflow():
    edflow_zip("old.zip", [digit(i) for i in range(OLD_COUNT)], ["label"])


@row("edflow, an old zip", old_edflow)
def edflow_import(url):
    ds = read(import_cache("old.zip", "new.zip", "edflow", chunk_size=8, progress=False), indexed, OLD_COUNT)
    assert ds.labels["label"].tolist() == [i % 3 for i in range(OLD_COUNT)]
    return ds


def killed_edflow():
    old = killed(edflow_zip("old.zip", [digit(i) for i in range(COUNT)], labels=0, skip=range(0, COUNT, 2)))
    if shutil.which("zip") is None:
        pytest.skip("takes Info-ZIP")
    subprocess.run(["zip", "-FF", old, "--out", "mended.zip"], input=b"y", capture_output=True)


@row("edflow, the zip of a killed server", killed_edflow)
def edflow_import_killed(url):
    """What it lacks is computed from the dataset."""
    import_cache("mended.zip", "new.zip", "edflow", in_memory_keys=["label"], progress=False).close()
    return read(edflow.PathCachedDataset(Digits(), "new.zip", progress=False), indexed)


# torch_xla


@row("torch_xla, CachedDataset(data, path)")
def xla_lazy(url):
    return read(torch_xla.CachedDataset(Digits(), "cached/xla", 1000, True))


@row("torch_xla, warmup()")
def xla_warmup(url):
    return read(torch_xla.CachedDataset(Digits(), "cached/xla").warmup(progress=False))


@row(
    "torch_xla, CachedDataset(None, path)",
    lambda: torch_xla.CachedDataset(Digits(), "c").warmup(progress=False),
)
def xla_alone(url):
    return read(torch_xla.CachedDataset(None, "c"))


@row("torch_xla, None, arrays, views")
def xla_any(url):
    ds = read(torch_xla.CachedDataset(Odd(), "cached/odd"), odd)
    ds.warmup(progress=False)
    assert os.path.getsize(ds.path) < 100_000
    return ds


@row("torch_xla, an old folder", lambda: xla_folder("old", [digit(i) for i in range(OLD_COUNT)]))
def xla_import(url):
    import_cache("old", "new.zip", "torch_xla", chunk_size=8, progress=False).close()
    return read(torch_xla.CachedDataset(None, "new"), length=OLD_COUNT)


# KappaData


def doubled(sample):
    return {**sample, "image": sample["image"] * 2}


@row("KappaData, SharedDictDataset", stays=False)
def kappa_shared(url):
    return read(
        edcache.CachedDataset(Digits(), f"shm://{os.getcwd()}", lazy=True, transform=doubled),
        lambda i: doubled(digit(i)),
    )


@row("KappaData, SharedDictDataset, in a file")
def kappa_file(url):
    return read(edcache.CachedDataset(Digits(), "cached/kappa.zip", lazy=True))


@row("KappaData, RedisDataset")
def kappa_redis(url):
    read(
        kappadata.RedisDataset(Digits(), f"{url}?prefix={os.getcwd()}", transform=doubled),
        lambda i: doubled(digit(i)),
    )


@row("KappaData, ModeWrapper")
def kappa_modes(url):
    ds = edcache.CachedDataset(Items(), "cached/kd.zip", in_memory_keys=["class"], progress=False)
    read(ds.select("x", "class", as_tuple=True), lambda i: (x(i), i % 10 // 4))
    read(ds.select("index", "ctx.flipped", as_tuple=True), lambda i: (i, i % 2 == 1))
    assert ds.labels["class"].tolist() == [i % 10 // 4 for i in range(COUNT)]
    return ds


def items():
    edcache.CachedDataset(Items(), "kd.zip", in_memory_keys=["class"], progress=False)


@row("KappaData, wrappers", items)
def kappa_wrappers(url):
    ds = edcache.CachedDataset.from_cache("kd.zip").with_transform(lambda sample: sample["x"])
    classes = [i % 10 // 4 for i in range(COUNT)]
    for view, order in [
        (ds.filter(**{"class": [0, 1]}), [i for i in range(COUNT) if classes[i] < 2]),
        (ds.filter(~np.isin(ds.labels["class"], [0, 1])), [i for i in range(COUNT) if classes[i] == 2]),
        (ds.oversample("class", "multiply"), [i for i in range(COUNT) for _ in range(1 + (classes[i] == 2))]),
        (ds[int(0.25 * len(ds)) : int(0.75 * len(ds))], range(10, 30)),
        (ds[[5, 3]], [5, 3]),
        (edcache.concat([ds, ds]), [*range(COUNT)] * 2),
        (ds.repeat(min_size=100), [*range(COUNT)] * 3),
        (ds[np.random.default_rng(5).permutation(len(ds))], np.random.default_rng(5).permutation(COUNT)),
    ]:
        read(view, lambda i, order=order: x(int(order[i])), len(order))
    return edcache.CachedDataset.from_cache("kd.zip")


def large():
    with edcache.CacheWriter("large.zip") as writer:
        for i in range(COUNT):
            writer.append(torch.full((250_000,), i))


@row("KappaData, copy_folder_from_global_to_local", large)
def kappa_copy(url):
    ds = edcache.CachedDataset.from_cache(edcache.copy_to_local("large.zip", "new", progress=False))
    return read(ds, lambda i: torch.full((250_000,), i))


def images():
    need("PIL")
    from PIL import Image

    for i in range(COUNT):
        path = Path(f"images/{i % 2}/{i:02}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), i).save(path)


@row("KappaData, raw_image_folder_sample_to_pil_sample", images)
def kappa_images(url):
    ds = edcache.CachedDataset(edcache.image_folder("images"), "new.zip", decode="tensor", progress=False)
    labels = [k // (COUNT // 2) for k in range(COUNT)]
    read(
        ds.select("image", as_tuple=True),
        lambda k: (torch.full((1, 4, 4), 2 * k % COUNT + labels[k]).byte(),),
    )
    assert ds.labels["label"].tolist() == labels
    return ds


@row("KappaData, max_bytes", stays=False)
def kappa_limited(url):
    """A cache that is full computes the rest at each read."""
    warnings.simplefilter("ignore", RuntimeWarning)
    ds = edcache.CachedDataset(Odd(), "cached/few.zip", lazy=True, chunk_size=1, max_bytes=60_000)
    read(ds, odd)
    assert 0 < len(ds.missing) < COUNT
    assert os.path.getsize(ds.path) <= 60_000
    return ds


# SharedDataset


@row("SharedDataset, SharedDataset(data, name)", stays=False)
def shared(url):
    ds = edcache.CachedDataset(Digits(), f"shm://{os.getcwd()}", lazy=True)
    ds[3]["image"].fill(-1)
    with pytest.raises(StaleCacheError):
        edcache.CachedDataset(Others(), f"shm://{os.getcwd()}", lazy=True)
    return read(ds)


@row("SharedDataset, filled at once, of any tree", stays=False)
def shared_whole(url):
    return read(edcache.CachedDataset(Odd(), f"shm://{os.getcwd()}", progress=False), odd)


# ---------------------------------------------------------------------------------------- processes


def start(name, url):
    """A process that does a row; it is killed if it hangs."""
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(120)
            ds = ROWS[name](url)
            if ds is not None:
                ds.close()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        os._exit(1)
    return pid


def have_begun():
    """True if samples were computed or read, or a part of a new file is written."""
    nbytes = 0
    for path in Path().glob("new*/**/*" if os.path.isdir("new") else "new*"):
        with suppress(FileNotFoundError):
            nbytes += path.stat().st_size
    lines = [path.read_bytes().count(b"\n") for path in (Path("computed"), Path("read")) if path.exists()]
    return sum(lines) >= KILLED_AFTER or nbytes > 30_000


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("victims", [(0,), (0, 1)], ids=["one is killed", "both are killed"])
@pytest.mark.parametrize("name", ROWS)
def test_two_processes_are_killed_and_begin_again(tmp_path, monkeypatch, name, victims, redis_url):
    monkeypatch.chdir(tmp_path)
    if PREPARED[name]:
        PREPARED[name]()
        Path("computed").unlink(missing_ok=True)
    pids = [start(name, redis_url) for _ in range(2)]
    while not have_begun():
        assert os.waitpid(pids[0], os.WNOHANG) == (0, 0)
        time.sleep(0.0005)
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)
        assert os.waitpid(pids[victim], 0)[1] in (0, signal.SIGKILL)
        pids[victim] = start(name, redis_url)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    Path("computed").unlink(missing_ok=True)
    if not STAYS[name]:
        with pytest.raises(ArchiveNotFoundError):  # the memory is free
            edcache.CachedDataset.from_cache(f"shm://{tmp_path}")
        return
    ds = ROWS[name](redis_url)
    assert len(computed(tmp_path / "computed")) <= 1  # a sample that is compared with the archive
    if ds is not None:
        assert edcache.verify(ds.path).problems == []
        assert stored_rows(ds.path) == [i for i in range(len(ds)) if i not in ds.missing]
        ds.close()


@pytest.mark.full
def test_two_processes_upload_what_torch_xla_had_in_a_bucket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with object_servers.gs(tmp_path) as options:

        def xla_url(url):
            return read(
                torch_xla.CachedDataset(Digits(), "gs://bucket/xla", storage_options=options, progress=False)
            )

        monkeypatch.setitem(ROWS, "url", xla_url)
        pids = [start("url", None) for _ in range(2)]
        while not have_begun():
            assert os.waitpid(pids[0], os.WNOHANG) == (0, 0)
            time.sleep(0.0005)
        os.kill(pids[0], signal.SIGKILL)
        os.waitpid(pids[0], 0)
        pids[0] = start("url", None)
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
        xla_url(None)
        read(torch_xla.CachedDataset(None, "gs://bucket/xla", storage_options=options))


@pytest.fixture(scope="module")
def redis_url():
    redis_server = pytest.importorskip("redis_server")
    server = redis_server.Server()
    yield server.url("").partition("?")[0]
    server.close()
