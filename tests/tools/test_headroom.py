"""headroom: phases, random ones, the cut, the forecast; and that the run is the same afterwards."""

import copy
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cli_runner import RUNNER
from optional import need
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

import edcache
from edcache import headroom
from edcache.cli import main
from edcache.errors import MissingDependencyError, OptionError

ROOT = Path(__file__).parents[2]


class Compose:
    """As torchvision's."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, value):
        for transform in self.transforms:
            value = transform(value)
        return value


class Images(Dataset):
    def __init__(self, *transforms, count=200):
        self.transform, self.count = Compose(list(transforms)), count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.transform(torch.full((3, 16, 16), index % 256, dtype=torch.uint8)), index % 10


def half(image):
    return image[:, ::2, ::2].clone()


def scaled(image):
    return image.float() / 255


def flipped(image):
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def names(found):
    return [phase.name for phase in found.phases]


def randoms(found):
    return [phase.name for phase in found.phases if phase.random]


def slow(seconds, function):
    def call(value):
        time.sleep(seconds)
        return function(value)

    call.__name__ = function.__name__
    return call


def test_phases_stand_in_the_order_of_their_run_with_their_shares():
    source = Images(slow(0.008, half), slow(0.001, flipped), scaled)
    found = headroom(DataLoader(source, 8), lambda batch: time.sleep(0.032), samples=20)
    assert names(found) == ["read Images", "half", "flipped", "scaled", "collate", "step"]
    seconds = {phase.name: phase.median for phase in found.phases}
    # By far, as a loaded machine sleeps longer, but no less.
    assert max(seconds, key=seconds.get) == "half"
    assert seconds["half"] >= 0.008
    assert seconds["flipped"] >= 0.001 > seconds["scaled"]
    assert seconds["step"] >= 0.004
    assert seconds["read Images"] < seconds["half"] / 2
    assert (found.cut, randoms(found), found.samples, found.length) == ("half", ["flipped"], 20, 200)
    assert found.ceiling <= 1 / 0.004
    assert found.epoch_seconds > 200 * 0.013
    assert found.cached_epoch_seconds < found.epoch_seconds
    assert found.pays_at_epoch >= 1


class Module(torch.nn.Module):
    def forward(self, image):
        return image + torch.rand(())


class Held:
    def __init__(self, generator, draw):
        self.generator, self.draw = generator, draw

    def __call__(self, image):
        return image + self.draw(self.generator)


class Registering(type):
    """As the metaclass of albumentations."""


class Registered(metaclass=Registering):
    def __call__(self, image):
        return image + random.random()


class Count:
    made = 0

    def __call__(self, image):
        Count.made += 1
        return image + Count.made


RANDOM = {
    "torch": flipped,
    "numpy": lambda image: image + np.random.rand(),
    "python": lambda image: image + random.random(),
    "a module": Module(),
    "a class of a metaclass": Registered(),
    "a generator of numpy": Held(np.random.default_rng(0), lambda one: one.random()),
    "a RandomState": Held(np.random.RandomState(0), lambda one: one.rand()),
    "a Random": Held(random.Random(0), lambda one: one.random()),
    "a generator of torch": Held(torch.Generator(), lambda one: torch.rand((), generator=one)),
    "the system": lambda image: image + os.urandom(1)[0] + os.urandom(1)[0] / 256,
    "a count": Count(),
    "Sequential": torch.nn.Sequential(Module()),
}


@pytest.mark.parametrize("kind", RANDOM)
def test_a_random_transform_is_found_and_stays_behind_the_cut(kind):
    found = headroom(Images(half, RANDOM[kind], scaled))
    assert found.cut == "half"
    assert len(randoms(found)) == 1
    assert found.cached == 2 == names(found).index(randoms(found)[0])


@pytest.mark.parametrize("transform", [scaled, torch.nn.Flatten(), torch.nn.Sequential(torch.nn.Identity())])
def test_what_repeats_is_not_random(transform):
    found = headroom(Images(half, transform))
    assert (found.cached, randoms(found)) == (len(found.phases), [])


class Keyworded:
    """As albumentations: `__call__(**data)`, a dict; its Compose draws whether it is applied."""

    def __call__(self, **data):
        return {**data, "image": data["image"] + random.random()}


class Halved:
    def __call__(self, **data):
        return {**data, "image": half(data["image"])}


def test_a_compose_of_keywords():
    class Compose:
        def __init__(self, *transforms):
            self.transforms = transforms

        def __call__(self, **data):
            for transform in self.transforms if random.random() < 1 else ():
                data = transform(**data)
            return data

    class Keywords(Images):
        def __getitem__(self, index):
            return {**self.transform(image=torch.full((3, 16, 16), float(index))), "index": index}

    source = Keywords()
    source.transform = Compose(Halved(), Keyworded())
    found = headroom(source)
    assert (names(found), found.cut) == (["read Keywords", "Halved", "Keyworded"], "Halved")


class Around(Dataset):
    def __init__(self, inner, change):
        self.inner, self._held = inner, SimpleNamespace(change=change)  # no function of the dataset

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, label = self.inner[index]
        return self._held.change(image), label


def test_the_cut_may_be_a_dataset_inside():
    found = headroom(Subset(Around(Images(half, count=3000), flipped), range(2000)))
    assert names(found) == ["read Images", "half", "read Around", "read Subset"]
    assert (found.cut, randoms(found), found.length) == ("half", ["read Around"], 2000)
    assert "no forecast: read Around is random by itself; ask for the dataset inside" in str(found)


def test_no_cut_is_there_if_the_reading_is_random():
    class Drawing(Images):
        def __getitem__(self, index):
            return torch.rand(4) + index

    class Counting(Images):
        def __getitem__(self, index):
            return time.perf_counter_ns()

    for kind in (Drawing, Counting):
        found = headroom(kind())
        assert (found.cut, found.cached, found.nbytes, found.pays_at_epoch) == (None, 0, None, None)
        assert f"none: read {kind.__name__} is random" in str(found)


def filled(source):
    """Bytes of an archive of a whole source."""
    path = Path(os.environ["PYTEST_FOLDER"]) / f"{time.monotonic_ns()}.zip"
    edcache.CachedDataset(source, path, progress=False).close()
    return path.stat().st_size


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_FOLDER", str(tmp_path))
    monkeypatch.chdir(tmp_path)


class Tokens(Images):
    def __getitem__(self, index):
        words = random.Random(index).choices(["alpha", "beta", "gamma delta"], k=5 + index * 37 % 90)
        return {
            "ids": torch.tensor([len(word) for word in words]),
            "text": " ".join(words),
            "id": f"doc-{index}",
        }


@pytest.mark.parametrize(
    "source",
    [
        Images(half, count=3000),
        Images(half, scaled, count=3000),
        Tokens(count=3000),
        [(torch.zeros(2), 3)] * 20_000,
        [torch.zeros(100_000)] * 120,
    ],
    ids=["images", "floats", "tokens", "tiny", "large"],
)
def test_the_forecast_of_the_bytes(source):
    assert headroom(source).nbytes == pytest.approx(filled(source), rel=0.15)


def test_the_forecast_is_of_the_sample_at_the_cut():
    """Behind it the sample is one of floats, four times as large."""
    found = headroom(Images(half, flipped, scaled, count=2000))
    assert found.nbytes == pytest.approx(filled(Images(half, count=2000)), rel=0.15)
    assert found.nbytes < filled(Images(half, scaled, count=2000)) / 2


def test_code_behind_the_cut_that_takes_no_other_result_is_the_reason_of_no_forecast():
    class Changing(Images):
        def __getitem__(self, index):
            return super().__getitem__(index)[0].mean()  # of floats alone

    found = headroom(Changing(half, flipped, scaled))
    assert (found.nbytes, found.fill_seconds, found.cut) == (None, None, "half")
    assert "no forecast: the dataset takes no other result than of scaled: RuntimeError" in str(found)


def test_options_of_the_archive():
    plain, small = headroom(Images(count=2000)), headroom(Images(count=2000), compression="zstd")
    assert small.nbytes < plain.nbytes / 2
    with pytest.raises(OptionError, match=r"headroom\(\) takes no compresion; did you mean compression"):
        headroom(Images(), compresion="zstd")


def test_a_sample_that_cannot_be_stored():
    found = headroom([{"x": {1, 2}}] * 10)
    assert found.nbytes is None
    assert 'no forecast: sample["x"]: cannot store set' in str(found)


class Watched(torch.utils.data.Sampler):
    asked = 0

    def __iter__(self):
        self.asked += 1
        yield from range(10)

    def __len__(self):
        return 10


def test_the_run_is_the_same_afterwards():
    own = [random.Random(1), np.random.default_rng(1), np.random.RandomState(1), torch.Generator()]

    def draw(image):
        return (
            image
            + own[0].random()
            + own[1].random()
            + own[2].rand()
            + float(torch.rand((), generator=own[3]))
        )

    def step(batch):
        torch.rand(3), np.random.rand(3), random.random(), own[1].random()

    source, sampler = Images(half, draw, flipped), Watched()
    loader = DataLoader(source, 4, sampler=sampler, generator=torch.Generator())

    def states():
        return [
            *(random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
            *(own[0].getstate(), own[1].bit_generator.state, own[2].get_state()[1].tolist()),
            *(own[3].get_state().tolist(), loader.generator.get_state().tolist()),
        ]

    before, attributes = copy.deepcopy(states()), dict(vars(source))
    transforms = list(source.transform.transforms)
    headroom(loader, step)
    assert states() == before
    assert sampler.asked == 0
    assert dict(vars(source)) == attributes
    assert type(source) is Images
    assert source.transform.transforms == transforms


def test_states_are_restored_after_an_error():
    def step(batch):
        torch.rand(3)
        raise ZeroDivisionError("mine")

    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError, match="mine"):
        headroom(DataLoader(Images(), 4), step)
    assert torch.equal(before, torch.get_rng_state())


def test_an_error_of_the_users_code_is_raised_as_it_is():
    def fail(value):
        raise KeyError("mine")

    for source in (Images(fail), Around(Images(), fail), DataLoader(Images(), 4, collate_fn=fail)):
        with pytest.raises(KeyError, match="mine"):
            headroom(source)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: headroom(iter([1])), "the source is iterable, and has no [index]; give the dataset"),
        (lambda: headroom(Stream()), "the source is iterable"),
        (lambda: headroom([]), "the source has no sample"),
        (lambda: headroom(Images), "the source is the class Images"),
        (lambda: headroom("train.zip"), "the source is a str"),
        (lambda: headroom(Images(), print), "step= takes batches; give a DataLoader"),
        (lambda: headroom(Images(), device="cpu"), "device= takes batches; give a DataLoader"),
        (lambda: headroom(Images(), samples=0), "samples"),
        (lambda: headroom(edcache.CachedDataset([1], "a.zip", progress=False)), "the source is cached"),
    ],
)
def test_what_is_refused(call, text):
    with pytest.raises(OptionError, match=re.escape(text)):
        call()


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 3

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index + self.value


class Final(Images):
    def __init_subclass__(cls):
        raise RuntimeError("no subclass")


class Strict(Images):
    """Works as this class alone."""

    def __getitem__(self, index):
        assert type(self) is Strict
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "source", [[1] * 20, Slotted(), Final(half), Strict(half)], ids=lambda one: type(one).__name__
)
def test_a_dataset_without_a_twin_is_one_phase(source):
    found = headroom(DataLoader(source, 4))
    assert names(found) == [f"read {type(source).__name__}", "collate"]
    assert found.nbytes > 0


def test_two_datasets_of_one_kind_count_together():
    found = headroom(ConcatDataset([Images(half), Images(half)]))
    assert names(found) == ["read Images", "half", "read ConcatDataset"]


def test_the_users_batch_sampler_gives_the_batch():
    """Its batches are of one shape, and no other would collate."""

    class Shapes(Images):
        def __getitem__(self, index):
            return torch.zeros(index % 3 + 1)

    batches = [[k, k + 3, k + 6] for k in (1, 2, 0)]
    found = headroom(DataLoader(Shapes(), batch_sampler=batches))
    assert (found.batch_size, found.samples) == (3, 9)


def test_a_source_that_gives_batches_is_asked_for_them():
    class Many(Images):
        def __getitems__(self, indices):
            asked.append(len(indices))
            return [self[index] for index in indices]

    asked = []
    headroom(Many(half))
    assert max(asked) > 1


def test_time_ends_it():
    found = headroom(Images(slow(0.02, half)), seconds=0.05)
    assert 1 <= found.samples < 20


def test_a_page_of_text():
    text = str(headroom(DataLoader(Images(half, flipped), 8), lambda batch: None, device="cpu", samples=10))
    lines = text.splitlines()
    assert lines[0] == "Images: 200 samples, batches of 8, 0 workers; medians of 10 samples"
    assert re.search(r"^- - cut - -\nflipped  .*random: it draws random numbers$", text, re.MULTILINE)
    assert re.search(r"^copy to cpu +\d+\.\d+ ms +\d+ %", text, re.MULTILINE)
    assert "cut      cache the result of half; flipped is random, and stays behind the cache" in lines
    assert len(lines) < 25


def test_a_plot(tmp_path):
    need("matplotlib")
    headroom(DataLoader(Images(half, flipped), 8)).plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_plot_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match="a plot takes matplotlib; pip install matplotlib"):
        headroom(Images()).plot(tmp_path / "a.png")


SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset
import beside

class Numbers(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((4,), float(index))

def make(count=64):
    return Numbers()

if __name__ == "__main__":
    loader = DataLoader(Numbers(), 8, shuffle=True)
    next(iter(loader))
    for batch in loader:
        for other in DataLoader(Numbers(), 4):
            pass
    print("the end")
"""


def advised(*arguments):
    command = [sys.executable, "-m", "edcache", "advise", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_advise_of_a_script(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.py").write_text(SCRIPT)
    (tmp_path / "sub" / "beside.py").write_text("")
    done = advised("sub/train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Numbers: 64 samples, batches of 8, 0 workers")
    assert re.search(r"^step  .*\n\nnow ", done.stdout, re.MULTILINE)
    assert "the end" not in done.stdout


def test_advise_of_a_script_without_a_loader(tmp_path):
    (tmp_path / "none.py").write_text("print('the end')")
    done = advised("none.py")
    assert (done.returncode, done.stdout) == (1, "the end\n")
    assert "edcache: none.py ended before a second batch of a DataLoader; give MODULE:FACTORY" in done.stderr


def test_advise_of_a_script_that_raises(tmp_path):
    (tmp_path / "bad.py").write_text("1 / 0")
    done = advised("bad.py")
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_advise_of_a_factory(tmp_path, monkeypatch):
    (tmp_path / "factory_of_numbers.py").write_text(SCRIPT.replace("import beside", ""))
    done = RUNNER.invoke(main, ["advise", "factory_of_numbers:make", "--arg", "count=3"])
    assert done.exit_code == 0
    assert done.stdout.startswith("Numbers: 64 samples, batches of 1")
    document = json.loads(RUNNER.invoke(main, ["advise", "factory_of_numbers:make", "--json"]).stdout)
    assert (document["length"], document["cut"], document["phases"][0]["kind"]) == (
        64,
        "read Numbers",
        "read",
    )


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("none.py", "none.py: no such script"),
        ("a.zip", '"a.zip"; write it as package.module:factory'),
    ],
)
def test_advise_of_neither_a_script_nor_a_factory(what, text):
    done = RUNNER.invoke(main, ["advise", what])
    assert (done.exit_code, text in done.stderr) == (2, True)
