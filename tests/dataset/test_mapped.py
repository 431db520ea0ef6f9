"""`map`: results of a function are stored as a loop over batches computes them, in any number of processes."""

import dataclasses
import functools
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter, OrderedDict, UserDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, StackDataset, Subset

import edcache
from edcache import CachedDataset, CacheWriter, OptionError, SourceError, StaleCacheError
from edcache.dataset.mapped import _copy
from edcache.writer import source as asked
from tests.kit.likeness import same
from tests.kit.scale import scaled
from tests.kit.systems import child_environ

COUNT = 60
SPAWN = multiprocessing.get_context("spawn")


class Images(Dataset):
    """Samples whose images have three sizes, in an order that repeats none for long."""

    def __init__(self, count=COUNT, sizes=3):
        self.count, self.sizes = count, sizes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = torch.arange(4.0 + index * index % self.sizes) + index
        return {"image": image, "label": index % 5, "name": f"image-{index}"}


def halves(batch):
    return {"half": batch["image"] / 2}


def half_of(index, sizes=3):
    return (torch.arange(4.0 + index * index % sizes) + index) / 2


def on(make, device):
    return make


a_batch_raises = pytest.mark.filterwarnings("ignore:.*a batch of .* raised")


WAYS = {
    "here": {},
    "two processes": {"num_workers": 2},
    "a device": {"devices": "cpu"},
    "a device with readers": {"devices": "cpu", "num_workers": 2},
    "two devices with readers": {"devices": ["cpu", "cpu"], "num_workers": 1},
}


def mapped(fn, source, path, batch_size=8, **options):
    """As `edcache.map`; with devices, the function of a batch is made by one of the device."""
    if "devices" in options and not isinstance(fn, torch.nn.Module):
        fn = functools.partial(on, fn)
    options |= {"progress": False, "spot_check": False}
    return edcache.map(fn, source, path, batch_size=batch_size, **options)


@pytest.mark.parametrize("way", WAYS)
def test_results_are_those_of_a_loop_and_fields_go_along(tmp_path, way):
    ds = mapped(halves, Images(), tmp_path / "m.zip", keep=["label", "name"], **WAYS[way])
    assert len(ds) == COUNT
    assert ds.complete
    for index in range(COUNT):
        assert same(ds[index], {"label": index % 5, "name": f"image-{index}", "half": half_of(index)})


FLOATS = torch.tensor([[1.5, -0.0, float("nan")], [float("inf"), 2.0**-130, 3.0]])
FORMS = {
    "dict": lambda rows: {"y": rows, "n": list(range(len(rows)))},
    "tuple": lambda rows: (rows, rows[:, 0]),
    "tensor": lambda rows: rows,
    "array": lambda rows: rows.numpy(),
    "list": lambda rows: [row[: 1 + k % 3] for k, row in enumerate(rows)],
    "ragged column": lambda rows: {"y": [row[: k % 3] for k, row in enumerate(rows)]},
    "nested tensor": lambda rows: {
        "y": torch.nested.nested_tensor([row[: 1 + k % 3] for k, row in enumerate(rows)], layout=torch.jagged)
    },
    "bfloat16": lambda rows: rows.bfloat16(),
    "float8": lambda rows: {"y": rows.to(torch.float8_e4m3fn)},
    "transposed": lambda rows: {"y": rows.T.contiguous().T},
    "a library's dict": lambda rows: type("Output", (OrderedDict,), {})(y=rows, z=(rows, rows + 1)),
}


def at(made, k):
    """Return sample k of a result, by a rule of its own."""
    if isinstance(made, dict):
        return {key: at(value, k) for key, value in made.items()}
    if isinstance(made, tuple):
        return tuple(at(value, k) for value in made)
    if isinstance(made, torch.Tensor) and made.is_nested:
        return made.unbind()[k]
    return made[k]


@pytest.mark.parametrize("way", ["here", "a device"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_result_comes_back_bit_by_bit(tmp_path, form, way):
    rows = FLOATS.repeat(5, 1) * torch.arange(1.0, 11.0)[:, None]
    ds = mapped(FORMS[form], list(rows), tmp_path / "m.zip", batch_size=4, **WAYS[way])
    for start in range(0, 10, 4):
        made = FORMS[form](rows[start : start + 4])
        for k in range(len(rows[start : start + 4])):
            assert same(ds[start + k], at(made, k))


def test_a_source_of_edcache_is_read_in_batches_and_its_labels_stay_labels(tmp_path):
    source = CachedDataset(Images(sizes=1), tmp_path / "s.zip", in_memory_keys=["label"], progress=False)
    view = source.filter(label=[1, 2])
    ds = mapped(
        halves,
        view,
        tmp_path / "m.zip",
        keep="label",
        in_memory_keys={"first": lambda sample: float(sample["half"][0])},
    )
    wanted = [index for index in range(COUNT) if index % 5 in (1, 2)]
    assert ds.labels["label"].tolist() == [index % 5 for index in wanted]
    assert ds.labels["first"].tolist() == [index / 2 for index in wanted]
    assert all(same(ds[k], {"label": i % 5, "half": half_of(i, 1)}) for k, i in enumerate(wanted))
    assert len(ds.filter(label=2)) == COUNT // 5


def test_labels_are_kept_exactly_where_no_field_has_them(tmp_path):
    names = [None if index % 4 == 0 else f"n{index}" for index in range(COUNT)]
    source = CachedDataset(Images(), tmp_path / "s.zip", progress=False).add_labels("who", names)
    ds = mapped(halves, source, tmp_path / "m.zip", keep="who", devices="cpu")
    assert [sample["who"] for sample in ds] == names
    assert ds.labels.to_list("who") == names


def test_without_batch_size_the_function_gets_samples(tmp_path):
    def shout(sample):
        assert not torch.is_grad_enabled()
        return {"name": sample["name"].upper()}

    ds = edcache.map(shout, Images(), tmp_path / "m.zip", keep="label", num_workers=2, progress=False)
    assert ds[7] == {"label": 2, "name": "IMAGE-7"}


@given(
    sizes=st.integers(1, 7),
    batch=st.integers(1, 20),
    count=st.integers(0, 40),
    way=st.sampled_from(sorted(WAYS)[:3]),
)
@settings(max_examples=scaled(25), deadline=None)
def test_any_batch_size_and_any_shapes_give_the_same_samples(tmp_path_factory, sizes, batch, count, way):
    path = tmp_path_factory.mktemp("map") / "m.zip"
    ds = mapped(halves, Images(count, sizes), path, batch_size=batch, **WAYS[way])
    assert len(ds) == count
    assert all(same(ds[index], {"half": half_of(index, sizes)}) for index in range(count))


class Logged:
    """A function of a batch that writes a line for each call, and may fail."""

    def __init__(self, log, most=None, bad=()):
        self._log, self._most, self._bad = log, most, bad

    def __call__(self, batch):
        numbers = [int(name.split("-")[1]) for name in batch["name"]]
        with open(self._log, "a") as file:
            file.write(" ".join(map(str, numbers)) + "\n")
        if self._most is not None and len(numbers) > self._most:
            raise torch.OutOfMemoryError(f"no room for {len(numbers)} samples")
        for number in numbers:
            if number in self._bad:
                raise ValueError(f"number {number} is bad")
        return {"half": batch["image"] / 2}


def calls(log):
    return [[int(number) for number in line.split()] for line in log.read_text().splitlines()]


@pytest.mark.parametrize("way", ["here", "a device", "a device with readers"])
def test_a_batch_without_room_is_halved(tmp_path, way):
    log = tmp_path / "log"
    ds = mapped(Logged(log, most=3), Images(sizes=1), tmp_path / "m.zip", **WAYS[way])
    assert all(same(ds[index], {"half": half_of(index, 1)}) for index in range(COUNT))
    computed = Counter(number for call in calls(log) if len(call) <= 3 for number in call)
    assert computed == Counter(range(COUNT))


@a_batch_raises
@pytest.mark.parametrize("way", WAYS)
def test_the_sample_that_raises_is_named_and_the_others_are_kept(tmp_path, way):
    path, log = tmp_path / "m.zip", tmp_path / "log"
    with pytest.raises(SourceError, match="at index 29: ValueError: number 29 is bad") as caught:
        mapped(Logged(log, bad=[29]), Images(), path, **WAYS[way])
    assert caught.value.index == 29
    ds = mapped(Logged(log, bad=[29]), Images(), path, on_error="skip", **WAYS[way])
    assert [failure.index for failure in ds.errors] == ds.missing.tolist() == [29]
    assert all(same(ds[index], {"half": half_of(index)}) for index in range(COUNT) if index != 29)


class Unreadable(Images):
    def __getitem__(self, index):
        if index == 11:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


WRONG = {
    "transposed": (lambda x: x.T, "fn returned 2 results for a batch of 4 samples; give one for each"),
    "a mean": (lambda x: {"y": x.mean(0, keepdim=True)}, "fn returned 1 result for a batch of 4 samples"),
    "a mean in a list": (lambda x: [x.mean(0)], "fn returned 1 result for a batch of 4 samples"),
    "a number": (lambda x: {"y": x.mean()}, r"fn returned a dict for a batch of 4 samples: columns\['y'\]"),
    "nothing": (lambda x: None, "fn returned None for a batch of 4 samples: columns: None"),
    "columns of two lengths": (
        lambda x: {"y": x, "mean": x.mean(0, keepdim=True)},
        r"for a batch of 4 samples: columns\['mean'\] has 1 samples, columns\['y'\] has 4",
    ),
}


@pytest.mark.parametrize(
    "options", [{}, {"devices": "cpu"}, {"num_workers": 2}, {"on_error": "skip"}], ids=str
)
@pytest.mark.parametrize("name", WRONG)
def test_another_number_of_results_than_samples_is_an_error_at_once(tmp_path, name, options):
    fn, message = WRONG[name]

    def called(x):
        with open(tmp_path / "log", "a") as file:
            file.write(f"{len(x)}\n")
        return fn(x)

    with pytest.raises(OptionError, match=message) as caught:
        mapped(called, list(torch.rand(4, 2)), tmp_path / "m.zip", batch_size=4, **options)
    assert caught.value.option == "fn"
    assert {*calls(tmp_path / "log")[0], *calls(tmp_path / "log")[-1]} == {4}
    lazy = mapped(called, list(torch.rand(4, 2)), tmp_path / "l.zip", batch_size=4, lazy=True)
    with pytest.raises(OptionError, match=message):
        lazy.__getitems__([0, 1, 2, 3])


def test_a_bucket_has_as_many_results_as_samples_though_the_sum_is_right(tmp_path):
    rows = [torch.ones(1 + k % 2) for k in range(6)]
    with pytest.raises(OptionError, match="fn returned 4 results for a batch of 3 samples"):
        mapped(lambda x: torch.ones(2 if x.shape[1] == 2 else 4), rows, tmp_path / "m.zip", batch_size=6)


@pytest.mark.parametrize("way", ["here", "a device"])
@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("CUDA error: out of memory"), torch.cuda.OutOfMemoryError()],
    ids=repr,
)
def test_only_want_of_memory_halves_a_batch(tmp_path, error, way):
    """Another error is tried sample by sample, and told once, the first one."""
    sizes = []

    def fn(error, x):
        sizes.append(len(x))
        if len(x) > 2:
            raise error
        return x

    rows = list(torch.rand(16, 3))
    ds = mapped(functools.partial(fn, error), rows, tmp_path / "a.zip", **WAYS[way])
    assert [size for size in sizes if size != 8] == [4, 2, 2, 4, 2, 2] * 2
    assert all(map(torch.equal, ds, rows))
    sizes.clear()
    with pytest.warns(RuntimeWarning) as told:
        ds = mapped(functools.partial(fn, ValueError(f"number {0}")), rows, tmp_path / "b.zip", **WAYS[way])
    assert [size for size in sizes if size != 8] == [1] * 16
    assert all(map(torch.equal, ds, rows))
    (text,) = [str(one.message) for one in told]
    assert "b.zip: a batch of 8 samples, from index 0 on, raised ValueError: number 0; its samples" in text


BUFFER = torch.zeros(64)
BUFFERS = {
    "views of a tensor": lambda sums: {"y": BUFFER[: len(sums)].copy_(sums)},
    "the rows of a tensor": lambda sums: [*BUFFER[: len(sums)].copy_(sums)],
    "views of an array": lambda sums: {"y": BUFFER[: len(sums)].copy_(sums).numpy()},
    "a tensor in a tree": lambda sums: {"y": ({"z": BUFFER[: len(sums)].copy_(sums)}, sums)},
}


@pytest.mark.parametrize("options", [*WAYS.values(), {"lazy": True}], ids=str)
@pytest.mark.parametrize("name", BUFFERS)
def test_results_are_taken_out_of_a_buffer_before_the_next_call(tmp_path, name, options):
    def fn(x):
        return BUFFERS[name](x.sum(1))

    source = [torch.ones(1 + k % 3) * k for k in range(30)]
    ds = mapped(fn, source, tmp_path / "m.zip", **options)
    read = ds.__getitems__([*range(30)])
    for samples in (read, CachedDataset.from_cache(tmp_path / "m.zip", allow_partial=True)):
        told = [sample if name == "the rows of a tensor" else sample["y"] for sample in samples]
        told = [value[0]["z"] if isinstance(value, tuple) else value for value in told]
        assert [float(value) for value in told] == [float(x.sum()) for x in source]


def test_a_lazy_cache_keeps_a_sample_before_the_next_one_is_computed(tmp_path):
    def fn(x):
        return BUFFER[:1].copy_(x)

    ds = edcache.map(fn, list(torch.arange(9.0)), tmp_path / "m.zip", lazy=True, progress=False)
    ds.__getitems__([*range(9)])
    ds.close()
    assert [float(x) for x in CachedDataset.from_cache(tmp_path / "m.zip")] == [*range(9)]


@a_batch_raises
@pytest.mark.parametrize("way", WAYS)
def test_a_sample_that_cannot_be_read_is_named(tmp_path, way):
    with pytest.raises(SourceError, match="at index 11: OSError: the disk is gone"):
        mapped(halves, Unreadable(), tmp_path / "m.zip", **WAYS[way])


class Unlucky(Images):
    """A source whose sample 11 raises what is no Exception, or what cannot be unpickled."""

    def __init__(self, raised):
        super().__init__()
        self.raised = raised

    def __getitem__(self, index):
        if index == 11:
            raise self.raised
        return super().__getitem__(index)


class OfTwo(Exception):
    def __init__(self, file, reason):
        super().__init__(f"{file} {reason}")


RAISED = [SystemExit("number 11"), OfTwo("number 11", "is bad")]


@a_batch_raises
@pytest.mark.filterwarnings("error:a process that reads")
@pytest.mark.parametrize("raised", RAISED, ids=repr)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_a_source_raises_is_the_error_of_its_sample(tmp_path, way, raised):
    ds = mapped(halves, Unlucky(raised), tmp_path / "m.zip", on_error="skip", **WAYS[way])
    assert [(one.index, "number 11" in one.message) for one in ds.errors] == [(11, True)]
    assert len(ds.missing) == 1


@a_batch_raises
@pytest.mark.parametrize("way", WAYS)
def test_an_exit_that_the_function_asks_for_is_the_error_of_its_sample(tmp_path, way):
    def exits(batch):
        if "image-11" in batch["name"]:
            sys.exit("number 11")
        return halves(batch)

    ds = mapped(exits, Images(), tmp_path / "m.zip", on_error="skip", **WAYS[way])
    assert [one.index for one in ds.errors] == ds.missing.tolist() == [11]


class Deadly(Images):
    """A source whose sample 11 kills the process that reads it, unless the file `alive` exists."""

    def __init__(self, alive):
        super().__init__()
        self._alive = alive

    def __getitem__(self, index):
        if index == 11 and not os.path.exists(self._alive):
            if self._alive.parent.joinpath("once").exists():
                self._alive.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("readers", [1, 2])
def test_a_reader_that_is_killed_loses_nothing(tmp_path, readers):
    alive = tmp_path / "alive"
    (tmp_path / "once").touch()
    with pytest.warns(RuntimeWarning, match="computed one by one"):
        ds = mapped(halves, Deadly(alive), tmp_path / "m.zip", devices="cpu", num_workers=readers)
    assert alive.exists()
    assert all(same(ds[index], {"half": half_of(index)}) for index in range(COUNT))


def test_a_source_that_cannot_be_sent_to_readers_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", SPAWN)
    source = Images()
    source.made_here = lambda: None
    with pytest.raises(OptionError, match="cannot be sent to the processes.* use num_workers=0") as raised:
        mapped(halves, source, tmp_path / "m.zip", devices="cpu", num_workers=1)
    assert isinstance(raised.value.__cause__, AttributeError | pickle.PicklingError)


class Hanging(Images):
    """A source whose sample 11 tells the process that reads it, and then ends no more."""

    def __init__(self, log):
        super().__init__()
        self._log = log

    def __getitem__(self, index):
        if index == 11:
            with open(self._log, "a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(600)
        return super().__getitem__(index)


_READ_BY_PROCESSES = """
import sys
from pathlib import Path
import edcache
from tests.dataset.test_mapped import Hanging, halves

def make(device):
    return halves

log, path = sys.argv[1:]
edcache.map(
    make, Hanging(Path(log)), path, batch_size=8, devices="cpu", num_workers=2, progress=False, spot_check=False
)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_that_read_end_with_their_parent_also_amid_a_sample(tmp_path, number):
    log = tmp_path / "log"
    log.touch()
    command = [sys.executable, "-c", _READ_BY_PROCESSES, str(log), str(tmp_path / "m.zip")]
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=child_environ())
    deadline = time.monotonic() + 60
    while not log.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        assert parent.poll() is None, parent.communicate()[1]
        time.sleep(0.02)
    reader = int(log.read_text())
    parent.send_signal(number)
    errors = parent.communicate(timeout=60)[1]  # a process that reads has this pipe open, too
    assert ("KeyboardInterrupt: interrupted" in errors) == (number == signal.SIGINT), errors
    with suppress(OSError):  # when the process is gone
        while "State:\tZ" not in Path(f"/proc/{reader}/status").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_sample_that_ends_every_process_is_set_aside(tmp_path):
    ds = mapped(
        halves, Deadly(tmp_path / "alive"), tmp_path / "m.zip", devices=["cpu", "cpu"], on_error="skip"
    )
    assert ds.missing.tolist() == [11]
    assert "ended its process 3 times" in ds.errors[0].message


@pytest.mark.parametrize("readers", [0, 2])
@pytest.mark.parametrize("sizes", [1, 3])
def test_a_cache_is_read_ahead_by_threads_and_a_transform_by_processes(tmp_path, readers, sizes):
    cache = CachedDataset(Images(100, sizes), tmp_path / "images.zip", progress=False)
    readings = set()

    def make(device):
        def compute(batch):
            readings.update(one.name[:11] for one in threading.enumerate())
            return halves(batch)

        return compute

    def results(source, name):
        readings.clear()
        return edcache.map(
            make, source, tmp_path / name, batch_size=8, devices="cpu", num_workers=readers, spot_check=False
        )

    view = cache.shuffle(3)[10:90]
    by_threads = results(view, "threads.zip")
    assert "edcache-map" in readings
    by_processes = results(view.with_transform(lambda sample: sample), "processes.zip")
    assert "edcache-map" not in readings
    expected = [{"half": half_of(int(index), sizes)} for index in view.indices]
    assert same([*by_threads], expected)
    assert same([*by_processes], expected)
    assert not any(one.name.startswith("edcache-map") for one in threading.enumerate())


def test_each_process_has_a_device_of_its_own_also_after_a_death(tmp_path):
    def on_device(log, device):
        def compute(batch):
            first = int(batch["name"][0].split("-")[1])
            time.sleep(0.02)
            with open(log, "a") as file:
                file.write(f"{os.getpid()} {device} {first}\n")
            if first == 16 and not os.path.exists(f"{log}.died"):
                open(f"{log}.died", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return {"half": batch["image"] / 2}

        return compute

    log = tmp_path / "log"
    ds = edcache.map(
        functools.partial(on_device, log),
        Images(200, 1),
        tmp_path / "m.zip",
        batch_size=8,
        devices=["cpu", "cpu:0"],
        multiprocessing_context="fork",
        progress=False,
        spot_check=False,
    )
    assert all(same(ds[index], {"half": half_of(index, 1)}) for index in range(200))
    devices = dict(line.split()[:2] for line in log.read_text().splitlines())
    assert len(devices) == 3
    assert {*devices.values()} == {"cpu", "cpu:0"}


def test_a_module_must_be_in_evaluation_mode(tmp_path):
    module = torch.nn.Linear(4, 2)
    for fn in (module, module.forward):
        with pytest.raises(
            OptionError, match=r"fn computes by a Linear in training mode; call .eval\(\) on it first"
        ):
            edcache.map(fn, list(torch.ones(3, 4)), tmp_path / "m.zip", batch_size=2)
    rows = list(torch.ones(3, 4))
    with pytest.raises(OptionError, match="Linear in training mode"):
        edcache.map(lambda device: module, rows, tmp_path / "m.zip", batch_size=2, devices="cpu")
    ds = edcache.map(lambda device: module.eval(), rows, tmp_path / "n.zip", batch_size=2, devices="cpu")
    assert len(ds) == 3


def test_weights_values_and_source_identify_the_results(tmp_path):
    def linear(seed):
        torch.manual_seed(seed)
        return torch.nn.Linear(4, 2).eval()

    rows, path = list(torch.ones(10, 4)), tmp_path / "m.zip"
    first = mapped(linear(0), rows, path)
    assert torch.allclose(first[3], linear(0)(rows[3]))
    assert mapped(linear(0), rows, path, batch_size=3, devices="cpu")[3].equal(first[3])
    for other in (
        lambda: mapped(linear(1), rows, path),
        lambda: mapped(linear(0), list(torch.zeros(10, 4)), path),
        lambda: mapped(linear(0), rows, path, version=2),
        lambda: mapped(halves, rows, path),
    ):
        with pytest.raises(StaleCacheError):
            other()


def test_the_decorator_makes_a_function_of_datasets(tmp_path):
    @edcache.mapped(tmp_path / "a.zip", batch_size=8, progress=False)
    def doubled(batch):
        """Double."""
        return {"twice": batch["image"] * 2}

    assert doubled.__doc__ == "Double."
    assert same(doubled(Images())[3]["twice"], half_of(3) * 4)
    assert doubled(Images(10), tmp_path / "b.zip").path == str(tmp_path / "b.zip")

    @edcache.mapped()
    def nowhere(sample):
        return sample

    with pytest.raises(OptionError, match=r"nowhere\(\) got no path"):
        nowhere(Images())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": None, "devices": "cpu"}, "devices= takes batch_size="),
        ({"devices": "gpu"}, "devices='gpu'"),
        ({"devices": []}, "at least one device"),
        ({"devices": "cpu", "num_workers": -1}, "num_workers=-1"),
        ({"devices": "cpu", "executor": ThreadPoolExecutor(1)}, "devices= are of this machine"),
    ],
)
def test_options_that_cannot_be(tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        edcache.map(halves, Images(), tmp_path / "m.zip", **{"batch_size": 8} | options)
    assert not (tmp_path / "m.zip").exists()


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (DataLoader(Images()), "the source is a DataLoader, .*give its dataset"),
        (None, "m.zip: the source is None"),
        (Images, "the source is the class Images; give an object of it"),
    ],
    ids=["DataLoader", "None", "class"],
)
def test_what_is_no_dataset_is_refused(tmp_path, source, message, batch_size):
    with pytest.raises(OptionError, match=message):
        edcache.map(halves, source, tmp_path / "m.zip", batch_size=batch_size)
    assert not (tmp_path / "m.zip").exists()


def test_keep_takes_a_dict(tmp_path):
    with pytest.raises(OptionError, match="keep= adds fields to those of fn, which returned"):
        mapped(lambda batch: batch["image"], Images(), tmp_path / "m.zip", keep="label")


def test_an_executor_and_a_lazy_cache_compute_the_same(tmp_path):
    with ThreadPoolExecutor(2) as executor:
        by_tasks = mapped(halves, Images(), tmp_path / "a.zip", executor=executor)
    lazy = mapped(halves, Images(), tmp_path / "b.zip", lazy=True, devices="cpu")
    for index in range(COUNT):
        assert same(by_tasks[index], {"half": half_of(index)})
        assert same(lazy[index], {"half": half_of(index)})


_KILLED = """
import random, sys, time
import torch, edcache
from tests.dataset.test_mapped import Images

log, path, ways = sys.argv[1:]

def fn(batch):
    with open(log, "a") as file:
        file.write(" ".join(batch["name"]) + chr(10))
    time.sleep(0.06)
    return {"half": batch["image"] / 2}

def make(device):
    return fn

if __name__ == "__main__":
    way = eval(ways)
    edcache.map(make if "devices" in way else fn, Images(400, 1), path, batch_size=16, progress=False, **way)
"""


@pytest.mark.full
@pytest.mark.parametrize("way", ["here", "a device with readers"])
def test_killed_processes_lose_at_most_the_batch_that_they_compute(tmp_path, way):
    script, log, path = tmp_path / "fill.py", tmp_path / "log", tmp_path / "m.zip"
    script.write_text(_KILLED)
    log.touch()
    draw, kills = random.Random(way), 0
    command = [sys.executable, str(script), str(log), str(path), repr(WAYS[way])]
    while True:
        # Two processes share the work, and both are killed once both have begun.
        pair = [
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=child_environ())
            for _ in range(2)
        ]
        began = len(calls_of_names(log))
        deadline = time.monotonic() + 60
        while len(calls_of_names(log)) < began + 3 and any(one.poll() is None for one in pair):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if kills < 4:
            time.sleep(draw.uniform(0, 0.2))
            for one in pair:
                if one.poll() is None:
                    one.kill()
                    kills += 1
        errors = [one.communicate()[1] for one in pair]
        if all(one.returncode == 0 for one in pair):
            break
        assert all(one.returncode in (0, -signal.SIGKILL) for one in pair), errors
    ds = CachedDataset.from_cache(path)
    assert ds.complete
    assert all(same(ds[index], {"half": half_of(index, 1)}) for index in range(400))
    computed = sum(map(len, calls_of_names(log)))
    # One batch that is computed, and one whose results were not appended yet.
    assert 400 <= computed <= 400 + kills * 2 * 16


def calls_of_names(log):
    return [line.split() for line in log.read_text().splitlines()]


class Prompts(Dataset):
    def __init__(self, texts):
        self.texts = list(texts)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return {"text": self.texts[index], "at": index}


class Lengths:
    """The function of a batch of prompts, which writes a line for each call."""

    def __init__(self, log):
        self._log = log

    def __call__(self, batch):
        with open(self._log, "a") as file:
            file.write(" ".join(batch["text"]) + "\n")
        return {"n": torch.tensor([len(text) for text in batch["text"]])}


@pytest.mark.parametrize("way", WAYS)
def test_equal_keys_are_computed_once_and_a_change_computes_what_is_new(tmp_path, way):
    log, path, draw = tmp_path / "log", tmp_path / "m.zip", random.Random(way)
    there = set()
    for _ in range(4):
        texts = ["x" * draw.randrange(1, 40) for _ in range(60)]
        log.write_text("")
        ds = mapped(Lengths(log), Prompts(texts), path, key="text", keep="text", **WAYS[way])
        assert Counter(" ".join(map(" ".join, calls_of_names(log))).split()) == Counter({*texts} - there)
        assert [sample["n"].item() for sample in ds] == list(map(len, texts))
        assert [sample["text"] for sample in ds] == list(ds.keys) == texts
        there = {*texts}


def test_a_cache_tells_its_keys_and_which_of_its_samples_changed(tmp_path):
    class Source(Prompts):
        def __init__(self, sizes):
            super().__init__(sizes)
            self.sizes = list(sizes.values())

        def sample_key(self, index):
            return self.texts[index]

        def sample_version(self, index):
            return self.sizes[index]

        def __getitem__(self, index):
            return {"text": self.texts[index], "size": self.sizes[index]}

    def twice(batch):
        with open(log, "a") as file:
            file.write(" ".join(batch["text"]) + "\n")
        return {"twice": batch["size"] * 2}

    log = tmp_path / "log"
    sizes = {"a": 1, "b": 2, "c": 3}
    for changes, computed in (({}, "abc"), ({"b": 5, "d": 7}, "bd"), ({"a": 4}, "a"), ({}, "")):
        sizes = dict(reversed({**sizes, **changes}.items()))
        log.write_text("")
        parent = CachedDataset(Source(sizes), tmp_path / "p.zip", progress=False)
        ds = mapped(twice, parent, tmp_path / "m.zip", keep="size")
        assert "".join(sorted(log.read_text().split())) == computed
        assert dict(zip(ds.keys, ds, strict=True)) == {
            key: {"size": size, "twice": torch.tensor(size * 2)} for key, size in sizes.items()
        }


def test_other_weights_are_no_new_samples(tmp_path):
    rows = [{"key": f"k{i}", "x": torch.ones(4) * i} for i in range(5)]
    # As many rows of weights as samples.
    first, second = (torch.nn.Linear(4, 5).eval() for _ in range(2))
    for module in (first, second):
        wrapped = torch.nn.Sequential(OnField(), module).eval()
        if module is first:
            edcache.map(wrapped, rows, tmp_path / "m.zip", batch_size=2, key="key", progress=False)
        else:
            with pytest.raises(StaleCacheError):
                edcache.map(wrapped, rows, tmp_path / "m.zip", batch_size=2, key="key", progress=False)


class OnField(torch.nn.Module):
    def forward(self, batch):
        return batch["x"]


def test_keys_of_a_cache_are_those_of_its_samples_whatever_their_type(tmp_path):
    keys = ["a", 1, b"a", ("a", 1), "\x001", "1"]

    def shown(sample):
        return {"shown": repr(sample["key"])}

    for count in (4, 6):
        with edcache.KeyedCache(tmp_path / "values.zip") as cache:
            cache.get_many(keys[:count], lambda missing: [{"key": key} for key in missing])
            cache.close(seal=True)
        values = CachedDataset.from_cache(tmp_path / "values.zip")
        for key in (None, "key"):
            path = tmp_path / f"{key}.zip"
            ds = edcache.map(shown, values, path, key=key, progress=False, spot_check=False)
            assert [*ds.keys] == keys[:count]
            assert [ds.by_key(key)["shown"] for key in keys[:count]] == [*map(repr, keys[:count])]
        for other in (values, ds):
            joined = edcache.concat([other, ds])
            assert joined.indices_of(keys[:count]).tolist() == [*range(count)]


def test_the_key_of_a_cache_may_be_kept_as_a_field(tmp_path):
    source = CachedDataset(Images(), tmp_path / "s.zip", in_memory_keys={"key": "name"}, progress=False)
    source.add_labels("version", [1.5] * COUNT)
    ds = mapped(halves, source, tmp_path / "m.zip", keep=["key", "version"])
    assert [sample["key"] for sample in ds] == list(ds.keys) == [f"image-{index}" for index in range(COUNT)]
    assert ds[3]["version"] == 1.5


def test_of_a_parent_that_is_made_anew_only_what_changed_is_computed(tmp_path):
    """Also of several parents, and of views; other decodings and transforms of it are other samples."""

    def fn(batch):
        with open(log, "a") as file:
            file.writelines(f"{x}\n" for x in batch["x"].tolist())
        return {"y": batch["x"] + 1}

    def parent(name, rows):
        with CacheWriter(tmp_path / name, mode="w", in_memory_keys=["key"]) as writer:
            writer.extend({"key": key, "x": x} for key, x in rows.items())
        return CachedDataset.from_cache(tmp_path / name)

    log, path = tmp_path / "log", tmp_path / "m.zip"
    first = parent("a.zip", {"a": 1, "b": 2})
    edcache.map(fn, first, path, batch_size=2, progress=False, spot_check=False)
    first = parent("a.zip", {"a": 1, "b": 5, "c": 3})
    edcache.map(fn, first, path, batch_size=2, progress=False, spot_check=False)
    assert log.read_text().split() == [*"1253"]
    both = edcache.concat([first, parent("b.zip", {"d": 4})])
    with pytest.raises(StaleCacheError):
        edcache.map(fn, first.with_transform(dict), path, batch_size=2, progress=False, spot_check=False)
    ds = edcache.map(fn, both, tmp_path / "n.zip", batch_size=2, progress=False, spot_check=False)
    both = edcache.concat([first, parent("b.zip", {"e": 6, "d": 4}), parent("c.zip", {"f": 7})])
    ds = edcache.map(fn, both, tmp_path / "n.zip", batch_size=2, progress=False, spot_check=False)
    assert log.read_text().split() == [*"1253153467"]
    ds = edcache.map(fn, first[[2, 0]], path, batch_size=2, progress=False, spot_check=False)
    assert [int(sample["y"]) for sample in ds] == [4, 2]
    assert len(log.read_text().split()) == 10


def test_samples_without_records_of_their_own_have_no_keys_unless_they_are_named(tmp_path):
    def fn(batch):
        return {"y": batch["x"] + batch["z"]}

    for name, field in (("a.zip", "x"), ("b.zip", "z")):
        with CacheWriter(tmp_path / name, in_memory_keys={"key": "k"}) as writer:
            writer.extend({"k": f"n{i}", field: i} for i in range(5))
    parts = [CachedDataset.from_cache(tmp_path / name) for name in ("a.zip", "b.zip")]
    zipped = edcache.zip_fields(parts[0].select("x"), parts[1])
    ds = edcache.map(fn, zipped, tmp_path / "m.zip", batch_size=2, progress=False)
    assert [int(sample["y"]) for sample in ds] == [0, 2, 4, 6, 8]
    assert "key" not in ds.labels
    ds = edcache.map(fn, zipped, tmp_path / "n.zip", key="k", batch_size=2, progress=False)
    assert int(ds.by_key("n3")["y"]) == 6

    # A record that moves to the part with the function is another sample.
    def negated(sample):
        return {"x": -sample["x"]}

    other = parts[0].select("x").with_transform(negated)
    for mixed, found in (
        (edcache.concat([parts[0].select("x")[:3], other[3:]]), [1, 2, 3, -2, -3]),
        (edcache.concat([parts[0].select("x")[:2], other[2:]]), [1, 2, -1, -2, -3]),
    ):
        path = tmp_path / f"{len(found)}{found[2]}.zip"
        ds = edcache.map(lambda sample: sample["x"] + 1, mixed, path, progress=False)
        assert ([*ds], "key" in ds.labels) == (found, False)
    ds = edcache.map(
        lambda sample: sample["x"] + 1,
        edcache.concat([other[:2], other[2:]]),
        tmp_path / "alike.zip",
        progress=False,
    )
    assert [*ds.keys] == [f"n{i}" for i in range(5)]

    lazy = CachedDataset(parts[0], tmp_path / "l.zip", lazy=True, progress=False)
    ds = edcache.map(lambda sample: sample["x"] + 1, lazy, tmp_path / "o.zip", progress=False)
    assert [*ds] == [1, 2, 3, 4, 5]


def test_without_keys_a_parent_that_is_filled_again_is_another(tmp_path):
    class Fields(list):
        def __getitem__(self, index):
            return {"text": list.__getitem__(self, index), "n": 1}

        def sample_key(self, index):
            return list.__getitem__(self, index)

    def joined(names):
        ds = CachedDataset(Fields(names), tmp_path / "a.zip", progress=False)
        both = edcache.zip_fields(ds.select("text"), ds.select("n"))
        return edcache.map(lambda sample: sample["text"], both, tmp_path / "m.zip", progress=False)

    assert [*joined(["a", "bb"])] == ["a", "bb"]
    with pytest.raises(StaleCacheError):
        joined(["bb", "a"])


@pytest.mark.parametrize("names", [{}, {"in_memory_keys": ["key"]}])
def test_a_label_that_was_changed_is_kept_anew(tmp_path, names):
    with CacheWriter(tmp_path / "a.zip", **names) as writer:
        writer.extend({"key": f"n{i}", "x": i} for i in range(5))
    source = CachedDataset.from_cache(tmp_path / "a.zip").add_labels("grade", [0] * 5)
    edcache.map(dict, source, tmp_path / "m.zip", keep="grade", progress=False)
    source.add_labels("grade", [0, 1, 0, 0, 0])
    if names:
        assert edcache.changes(
            CachedDataset.from_cache(tmp_path / "m.zip"), source, keep="grade"
        ).changed == [1]
        ds = edcache.map(dict, source, tmp_path / "m.zip", keep="grade", progress=False)
        assert ds.labels.to_list("grade") == [0, 1, 0, 0, 0]
    else:
        with pytest.raises(
            StaleCacheError, match=r"attribute labels: '\[\[0, 0, 0, 0, 0\]\]' in the archive"
        ):
            edcache.map(dict, source, tmp_path / "m.zip", keep="grade", progress=False)


@pytest.mark.parametrize("progress", [None, False])
def test_a_line_tells_how_long_the_device_waited(tmp_path, monkeypatch, capfd, progress):
    class Slow(Images):
        def __getitem__(self, index):
            time.sleep(0.004)
            return super().__getitem__(index)

    def make(device):
        return lambda batch: time.sleep(0.008) or {"half": batch["image"]}

    monkeypatch.setattr(sys.modules["edcache.dataset.devices"], "_TOLD_SECONDS", 0.1)
    edcache.map(make, Slow(80, 1), tmp_path / "m.zip", batch_size=8, devices="cpu", progress=progress)
    pattern = r"cpu: waited (\d+)% of 0:00:0\d for batches; more num_workers read faster"
    told = re.findall(pattern, capfd.readouterr().err)
    # To read takes four times as long as to compute.
    assert [30 < int(part) < 100 for part in told] == ([True] if progress is None else [])


class Pipeline:
    """No module, but it has one."""

    def __init__(self, module):
        self.vae, self.scale = module, 2


ENCODER = torch.nn.Linear(4, 2).eval()
PIPELINE = Pipeline(torch.nn.Linear(4, 2).eval())


def encoded(images):
    return ENCODER(images)


class Called:
    def __init__(self, module=None):
        self.module = module

    def __call__(self, batch):
        return {"y": encoded(batch["image"])}


BY_GLOBALS = {
    "an object": Called(),
    "a function": lambda batch: {"y": ENCODER(batch["image"])},
    "a helper": lambda batch: {"y": encoded(batch["image"])},
    "a part": lambda batch: {"y": PIPELINE.vae(batch["image"])},
    "without gradients": torch.no_grad()(lambda batch: {"y": ENCODER(batch["image"])}),
    "bound": functools.partial(on, lambda batch: {"y": encoded(batch["image"])}),
}


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("key", [None, "name"])
@pytest.mark.parametrize("name", BY_GLOBALS)
def test_other_weights_of_a_global_module_are_noticed(tmp_path, name, key, count):
    options = {"key": key, "devices": "cpu" if name == "bound" else None}
    path, source = tmp_path / "m.zip", Images(count, 1)
    for _ in range(2):
        edcache.map(BY_GLOBALS[name], source, path, batch_size=2, progress=False, **options)
    module = PIPELINE.vae if name == "a part" else ENCODER
    weight = module.weight.detach().clone()
    try:
        with torch.no_grad():
            module.weight[0, 0] += 1
        with pytest.raises(StaleCacheError, match="weights of Linear: "):
            edcache.map(BY_GLOBALS[name], source, path, batch_size=2, progress=False, **options)
    finally:
        with torch.no_grad():
            module.weight.copy_(weight)
    edcache.map(BY_GLOBALS[name], source, path, batch_size=2, progress=False, **options)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_how_it_is_computed_is_no_part_of_what_it_is(tmp_path, count):
    rows = [{"key": f"k{i}", "x": torch.ones(4) * i} for i in range(count)]
    wrapped = torch.nn.Sequential(OnField(), torch.nn.Linear(4, 5)).eval()
    for way in [*WAYS.values(), {"batch_size": 1}, {"progress": None}]:
        options = {"batch_size": 2, "progress": False, **way}
        for kind, key in (("plain", None), ("keyed", "key")):
            ds = edcache.map(wrapped, rows, tmp_path / f"{kind}.zip", key=key, **options)
            assert len(ds) == count
    # A dataset as long as a list of settings grows.
    more = [*rows, {"key": "new", "x": torch.zeros(4)}]
    assert (
        len(edcache.map(wrapped, more, tmp_path / "keyed.zip", key="key", batch_size=2, progress=False))
        == count + 1
    )


class Encoded(Images):
    def __getitem__(self, index):
        return encoded(super().__getitem__(index)["image"]).detach()


def encoded_images(count):
    return Encoded(count, 1)


@pytest.mark.parametrize("way", ["a source", "a factory"])
def test_other_weights_of_a_global_module_are_noticed_everywhere(tmp_path, monkeypatch, way):
    def run():
        if way == "a source":
            return len(CachedDataset(Encoded(5, 1), tmp_path / "a.zip", progress=False))
        return len(edcache.cachable(tmp_path / "f.zip", progress=False)(encoded_images)(5))

    run()
    run()
    monkeypatch.setattr(sys.modules[__name__], "ENCODER", torch.nn.Linear(4, 2).eval())
    with pytest.raises(StaleCacheError, match="weights of Linear: "):
        run()


class Locked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


LOCKED = Locked().eval()


def test_a_global_module_may_hold_what_has_no_content(tmp_path):
    for _ in range(2):
        ds = edcache.map(
            lambda sample: sample + len([*LOCKED.parameters()]), [1, 2], tmp_path / "m.zip", progress=False
        )
        assert [*ds] == [1, 2]


class Holding(Images):
    """Its attribute has the name of a global module."""

    def __init__(self):
        super().__init__(5, 1)
        self.ENCODER = Pipeline(None)

    def __getitem__(self, index):
        return {"scale": self.ENCODER.scale}


def test_an_attribute_with_the_name_of_a_global_module_is_another_thing(tmp_path, monkeypatch):
    for _ in range(2):
        ds = CachedDataset(Holding(), tmp_path / "a.zip", progress=False)
        assert ds[3] == {"scale": 2}
        monkeypatch.setattr(sys.modules[__name__], "ENCODER", torch.nn.Linear(4, 2).eval())


@pytest.mark.parametrize("form", ["a list", "a cache"])
def test_a_named_key_stands_for_what_the_function_reads(tmp_path, form):
    log = tmp_path / "log"

    def embed(batch):
        with open(log, "a") as file:
            file.writelines(f"{text}\n" for text in batch["prompt"])
        return {"length": [len(text) for text in batch["prompt"]]}

    def source(rows):
        samples = [{"prompt": prompt, "picture": picture} for prompt, picture in rows]
        if form == "a cache":
            with CacheWriter(tmp_path / "s.zip", "w") as writer:
                writer.extend(samples)
            return CachedDataset.from_cache(tmp_path / "s.zip")
        return samples

    def run(rows, **options):
        log.write_text("")
        ds = mapped(embed, source(rows), tmp_path / f"{len(options)}.zip", key="prompt", **options)
        assert [sample["length"] for sample in ds] == [len(prompt) for prompt, _ in rows]
        return sorted(log.read_text().split())

    rows = [("a", 1), ("bb", 2), ("a", 3), ("bb", 4)]
    assert run(rows) == ["a", "bb"]
    assert run(rows[::-1]) == []
    assert run([*rows, ("ccc", 5)]) == ["ccc"]
    # What goes along is of each sample.
    assert run(rows, keep="picture") == ["a", "a", "bb", "bb"]
    ds = mapped(embed, source(rows), tmp_path / "1.zip", key="prompt", keep="picture")
    assert [sample["picture"] for sample in ds] == [1, 2, 3, 4]


class Pictures(Dataset):
    """Pictures with prompts, which repeat."""

    def __init__(self, numbers=range(6)):
        self.numbers = list(numbers)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        image = torch.ones(2 + index % 2) * index
        return {"prompt": ["a cat", "a dog"][index % 2], "number": self.numbers[index], "image": image}


def prompt_lengths(batch):
    return {"length": [len(prompt) for prompt in batch["prompt"]]}


@pytest.mark.parametrize("form", ["a dataset", "a view with a transform", "a joined view"])
def test_samples_of_one_key_that_keep_something_else_are_not_one(tmp_path, form):
    class Labelled(Pictures):
        def __getitem__(self, index):
            return {**super().__getitem__(index), "label": index}

    def source(numbers):
        if form == "a dataset":
            return Labelled(numbers)
        ds = CachedDataset(
            Labelled(numbers),
            tmp_path / "s.zip",
            in_memory_keys=["label"],
            keep_existing=False,
            progress=False,
        )
        if form == "a joined view":
            return edcache.zip_fields(ds.select("prompt", "label"), ds.select("number", "image"))
        return ds.with_transform(lambda sample: {**sample, "extra": 1})

    def run(numbers, **options):
        ds = mapped(prompt_lengths, source(numbers), tmp_path / "m.zip", key="prompt", **options)
        assert [sample["number"] for sample in ds] == numbers
        assert [sample["label"] for sample in ds] == [*range(6)]

    run([5, 6, 7, 8, 9, 10], keep=["number", "label"])
    run([5, 6, 7, 8, 9, 11], keep=["number", "label"])
    ds = mapped(prompt_lengths, source([7] * 6), tmp_path / "i.zip", key="prompt", keep="image")
    assert all(torch.equal(sample["image"], torch.ones(2 + k % 2) * k) for k, sample in enumerate(ds))
    if form != "a dataset":  # of a label alone, which stays one
        ds = mapped(prompt_lengths, source([7] * 6), tmp_path / "l.zip", key="prompt", keep="label")
        assert ds.labels["label"].tolist() == [*range(6)]


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": index}

    def __getitems__(self, indices):
        with open(self.log, "a") as file:
            file.write(f"{len(indices)}\n")
        return [{"x": index} for index in indices]


class Added(Numbers):
    def __getitem__(self, index):
        return {"x": super().__getitem__(index)["x"] + 100}


class Wrapper(Dataset):
    def __init__(self, inner):
        self._inner = inner

    def __len__(self):
        return len(self._inner)

    def __getitem__(self, index):
        return {"x": self._inner[index]["x"] + 100}

    def __getattr__(self, name):
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


class Whole(Numbers):
    def __getitems__(self, indices):
        return {"x": torch.tensor(indices)}


class Own(Subset):
    """A subclass of torch's class, which asks a dataset for whatever has the name `__getitems__`."""


class Short(Numbers):
    def __getitems__(self, indices):
        return super().__getitems__(indices)[1:]


SOURCES = {
    "batches": (lambda: Numbers(), 0, True),
    "columns": (lambda: Whole(), 0, False),
    "one by one": (lambda: Added(), 100, False),
    "a wrapper": (lambda: Wrapper(Numbers()), 100, False),
    "a subset of batches": (lambda: Subset(Numbers(), range(8)), 0, True),
    "a subset": (lambda: Subset(Added(), range(8)), 100, False),
    "a subset of a wrapper": (lambda: Subset(Wrapper(Numbers()), range(8)), 100, False),
    "a class of its own": (lambda: Own(Added(), range(8)), 100, False),
    "a stack": (lambda: StackDataset(x=Added()), 100, False),
    "a wrong number": (lambda: Short(), 0, None),
}


@a_batch_raises
@pytest.mark.parametrize("options", [{}, {"devices": "cpu", "num_workers": 1}], ids=str)
@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_asked_for_batches_as_any_fill_asks_it(tmp_path, monkeypatch, name, options):
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setattr(Numbers, "log", log, raising=False)
    make, more, in_batches = SOURCES[name]

    def number(sample):
        return sample["x"] if isinstance(sample["x"], int | torch.Tensor) else number(sample["x"])

    ds = mapped(lambda batch: {"y": number(batch) * 1}, make(), tmp_path / "m.zip", batch_size=4, **options)
    assert [int(sample["y"]) for sample in ds] == [k + more for k in range(8)]
    assert in_batches is None or (log.read_text() != "") == in_batches
    stored = CachedDataset(make(), tmp_path / "c.zip", batch_size=4, progress=False)
    assert [int(number(sample)) for sample in stored] == [k + more for k in range(8)]


def test_a_stack_of_torch_is_asked_for_samples():
    """Its `__getitems__` asks its datasets for whatever has that name."""
    assert asked.batches_of(StackDataset(Numbers())) == (None, False)


class Shapes(Dataset):
    """Samples of two shapes with fields of every kind."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {
            "x": torch.ones(2 + index % 2) * index,
            "image": torch.full((2, 2), index),
            "array": np.full(3, index, np.int16),
            "text": f"text {index}",
            "number": index,
            "box": (index, index + 1, index + 2, float(index)),
            "tree": {"inner": torch.tensor(index), "names": [f"a{index}", f"b{index}"]},
        }


FIELDS = ["image", "array", "text", "number", "box", "tree"]


def changing(batch):
    """Change its input in place, all of it."""
    for name in FIELDS:
        field = batch.pop(name)
        fields = [*field.values()] if isinstance(field, dict) else [field]
        for part in fields:
            if isinstance(part, torch.Tensor | np.ndarray):
                part *= -1
            elif isinstance(part, list):
                part.clear()
    return {"y": [x.sum() for x in batch["x"]] if batch["x"].ndim > 1 else batch["x"].sum()}


@pytest.mark.parametrize("form", ["a dataset", "a cache"])
@pytest.mark.parametrize("options", [*WAYS.values(), {"batch_size": None}], ids=str)
def test_keep_takes_what_the_source_gave(tmp_path, form, options):
    source = Shapes()
    if form == "a cache":
        source = CachedDataset(source, tmp_path / "s.zip", progress=False)
    ds = mapped(changing, source, tmp_path / "m.zip", keep=FIELDS, **{"batch_size": 4} | options)
    for index, sample in enumerate(ds):
        given = Shapes()[index]
        assert same(sample, {name: given[name] for name in FIELDS} | {"y": given["x"].sum()})


def test_a_field_that_the_function_returns_is_not_kept_too(tmp_path):
    def same_name(batch):
        return {"name": batch["name"]}

    text = "fn returned a field 'name', and keep= adds one; give one of"
    with pytest.raises(OptionError, match=text) as caught:
        mapped(same_name, Images(), tmp_path / "m.zip", keep="name")
    assert caught.value.option == "keep"
    with pytest.raises(OptionError, match=text):
        mapped(same_name, Images(), tmp_path / "n.zip", keep="name", batch_size=None)


@pytest.mark.parametrize(
    "way", ["a closure", "a global", "itself", "an attribute", "a closure without gradients"]
)
def test_a_model_in_training_mode_is_refused_wherever_it_is_held(tmp_path, monkeypatch, way):
    inner = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout())
    loss = torch.nn.MSELoss()  # in training mode always
    inner.eval()
    inner[1].train()
    monkeypatch.setattr(sys.modules[__name__], "ENCODER", inner)
    ways = {
        "a closure": lambda x: inner(x),
        "a global": lambda x: ENCODER(x),
        "itself": inner,
        "an attribute": Called(inner),
        "a closure without gradients": torch.inference_mode()(lambda x: inner(x)),
    }
    with pytest.raises(OptionError, match=r"by a Sequential in training mode; call \.eval\(\) on it first"):
        edcache.map(ways[way], torch.ones(3, 4), tmp_path / "m.zip", batch_size=2, progress=False)
    ds = edcache.map(lambda x: {"y": loss(x, x)}, torch.ones(3, 4), tmp_path / "l.zip", progress=False)
    assert len(ds) == 3


def quantized(way, dropout=0.0):
    """A network with modules that are in training mode since they were converted, and one with parameters."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    if way == "a recurrent one":
        net = torch.nn.Sequential(
            torch.nn.LSTM(4, 4, 2, dropout=dropout), torch.nn.ParameterList([torch.ones(4)])
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has it in another package, too
        if way == "exported":
            any_batch = ({0: torch.export.Dim("batch")},)
            return torch.export.export(net.eval(), (torch.ones(2, 4),), dynamic_shapes=any_batch).module()
        made = torch.ao.quantization.quantize_dynamic(net.eval())
    if way == "a recurrent one":
        made[0].train()
        return lambda batch: made[0](batch[None])[0][0] * made[1][0]
    return made


@pytest.mark.parametrize("way", ["quantized", "exported", "a recurrent one"])
def test_a_module_without_modes_is_not_asked_for_one(tmp_path, way):
    fn, rows = quantized(way), torch.ones(4, 4)
    ds = edcache.map(fn, rows, tmp_path / "m.zip", batch_size=2, progress=False)
    assert torch.allclose(torch.stack(list(ds)), fn(rows), atol=1e-5)


def test_a_quantized_network_with_modules_in_training_mode_is_refused(tmp_path):
    dropping, recurrent = quantized("quantized").append(torch.nn.Dropout()), quantized("a recurrent one", 0.5)
    for fn in (dropping, recurrent):
        with pytest.raises(
            OptionError, match=r"by a Sequential in training mode; call \.eval\(\) on it first"
        ):
            edcache.map(fn, torch.ones(4, 4), tmp_path / "m.zip", batch_size=2, progress=False)


def test_a_function_that_counts_its_calls_is_the_same(tmp_path):
    calls = []

    def fn(sample):
        calls.append(1)
        return sample

    for _ in range(2):
        assert len(edcache.map(fn, [1, 2, 3], tmp_path / "m.zip", progress=False, spot_check=False)) == 3
    assert len(calls) == 3


class Versioned(Dataset):
    """Prompts that repeat, each with a version."""

    def __init__(self, versions):
        self.versions = versions

    def __len__(self):
        return len(self.versions)

    def __getitem__(self, index):
        return {"prompt": "ab" * (index % 3)}

    def sample_version(self, index):
        return self.versions[index]


@pytest.mark.parametrize("versions", [[None] * 6, [(1, None), (1, "a"), (1, 2), (1, "b"), (None, 1), (1, 2)]])
def test_versions_of_a_shared_key_may_be_of_any_types(tmp_path, versions):
    made = edcache.map(
        lambda sample: {"n": len(sample["prompt"])},
        Versioned(versions),
        tmp_path / "m.zip",
        key="prompt",
        progress=False,
    )
    assert [sample["n"] for sample in made] == [0, 2, 4, 0, 2, 4]


@dataclasses.dataclass
class Pair:
    """Sample of a class of the user."""

    x: np.ndarray
    more: list


def held(index):
    """Samples that a list holds, of each kind that a function can change."""
    x = np.full((2, 3), float(index)).T
    return {
        "tensor": {"x": torch.full((3,), float(index))},
        "array": {"x": x},
        "number": {"x": float(index)},
        "nested": {"a": [{"x": x}, (torch.tensor(index),)], "b": bytearray([index])},
        "a class": Pair(x, [index]),
        "a dict of a library": UserDict(x=torch.full((3,), float(index))),
        "shared": dict.fromkeys("ab", x),
    }


def add_one(sample):
    if isinstance(sample, Pair):
        sample.x += 1
        sample.more.append(sample.more.pop() + 1)
        return {"x": sample.x, "more": sample.more}
    if "a" not in sample:
        sample["x"] += 1
    elif "b" in sample and isinstance(sample["b"], bytearray):
        sample["a"][0]["x"] += 1
        sample["a"][1][0].add_(1)
        sample["b"][0] += 1
    else:
        sample["a"] += 1  # of which b is the same array
    return dict(sample)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 1},
        {"lazy": True},
        {"executor": ThreadPoolExecutor(1)},
        {"spot_check": False},
        {"key": lambda sample: str(sample)},
    ],
    ids=lambda options: ", ".join(options) or "here",
)
@pytest.mark.parametrize("kind", held(0))
def test_a_function_may_change_samples_that_its_source_keeps(tmp_path, kind, options, recwarn):
    source, right = ([held(index)[kind] for index in range(4)] for _ in range(2))
    right = [add_one(sample) for sample in right]
    for _ in range(2):  # and an open computes a sample to compare
        ds = edcache.map(add_one, source, tmp_path / "m.zip", progress=False, **options)
        assert same(list(ds), right)
    assert same([add_one(sample) for sample in source], right)
    assert not [str(told.message) for told in recwarn if told.category is RuntimeWarning]


def test_rows_of_a_tensor_that_a_function_changes_are_copied_alone(tmp_path):
    rows = torch.zeros(5, 4)
    ds = edcache.map(lambda row: row.add_(1), rows, tmp_path / "m.zip", progress=False)
    assert torch.equal(torch.stack(list(ds)), torch.ones(5, 4))
    assert not rows.any()
    copied = _copy((rows[0], "text"))
    assert copied[0].untyped_storage().nbytes() == 16
    array = np.zeros(4)
    array.flags.writeable = False
    assert _copy([array])[0] is array  # which may be a large file


def test_a_function_that_changes_no_sample_gets_no_copies(tmp_path):
    source, given = [{"x": torch.full((3,), float(index))} for index in range(20)], []

    def fn(sample):
        given.append(any(sample is one for one in source))
        return {"y": sample["x"] + 1}

    edcache.map(fn, source, tmp_path / "m.zip", progress=False)
    assert given.count(False) == 1


@pytest.mark.parametrize("way", ["batches", "on a device", "keep", "a chain"])
def test_other_ways_of_map_leave_what_a_source_keeps(tmp_path, way):
    source = [{"x": torch.full((3,), float(index)), "name": str(index)} for index in range(6)]

    def fn(batch):
        batch["x"] += 1
        return {"y": batch["x"]}

    options = {
        "batches": {"batch_size": 2},
        "on a device": {"batch_size": 4, "devices": "cpu", "num_workers": 0},
        "keep": {"keep": "x"},
        "a chain": {},
    }[way]
    given = (lambda device: fn) if way == "on a device" else fn
    ds = edcache.map(given, source, tmp_path / "m.zip", progress=False, **options)
    if way == "a chain":
        ds = edcache.map(lambda sample: {"y": sample["y"].add_(0)}, ds, tmp_path / "n.zip", progress=False)
    assert [sample["y"].tolist() for sample in ds] == [[index + 1.0] * 3 for index in range(6)]
    assert [sample["x"].tolist() for sample in source] == [[float(index)] * 3 for index in range(6)]
    if way == "keep":
        assert [sample["x"].tolist() for sample in ds] == [[float(index)] * 3 for index in range(6)]
