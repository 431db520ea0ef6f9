"""The samplers, wrappers and loaders of torch, torchdata and Lightning read a cache as they read a list."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from filled import computed, note
from likeness import same
from optional import Library, need
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)
from written import write

from edcache import CachedDataset
from edcache.samplers import Balanced, ByLength, ChunkShuffle, Shuffle, Weighted

torchdata = Library("torchdata.stateful_dataloader")

COUNT = 61

# Of torch 2.13, for what torchdata calls.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


def sample(k):
    return {"x": torch.full((4,), k / 8), "index": k, "label": k % 7 % 3, "name": f"n{k}"}


class InRam(Dataset):
    """What every loader is known to work on."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, position):
        return self.samples[position]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("ecosystem") / "a.zip"
    return write(path, map(sample, range(COUNT)), in_memory_keys=["index", "label"], chunk_size=8)


CHOSEN = [k for k in reversed(range(COUNT)) if k % 7 % 3]


@pytest.fixture(params=["cache", "view", "view of a view"])
def pair(request, archive):
    """A dataset, and the list of the same samples."""
    ds = CachedDataset.from_cache(archive)
    if request.param == "cache":
        return ds, InRam([sample(k) for k in range(COUNT)])
    view, chosen = ds[::-1].filter(label=[1, 2]), CHOSEN
    if request.param == "view of a view":
        view, chosen = view[4:30], chosen[4:30]
    return view, InRam([sample(k) for k in chosen])


def seeded():
    return torch.Generator().manual_seed(5)


def assert_alike(one, other):
    one, other = list(one), list(other)
    assert len(one) == len(other) > 0
    assert all(map(same, one, other))


# --- torch ------------------------------------------------------------------------------------------

TORCHS = {
    "Sequential": SequentialSampler,
    "Random": lambda ds: RandomSampler(ds, generator=seeded()),
    "Random with replacement": lambda ds: RandomSampler(ds, True, 90, generator=seeded()),
    "Weighted": lambda ds: WeightedRandomSampler(range(len(ds)), 90, generator=seeded()),
    "SubsetRandom": lambda ds: SubsetRandomSampler(range(3, len(ds), 2), generator=seeded()),
    "Distributed": lambda ds: DistributedSampler(ds, 3, 1, seed=2),
}


@pytest.mark.parametrize("sampler", TORCHS.values(), ids=TORCHS)
def test_torchs_samplers_read_it_as_a_list(pair, sampler):
    assert_alike(*(DataLoader(ds, 8, sampler=sampler(ds)) for ds in pair))


def test_torchs_samplers_read_it_as_a_list_with_workers(pair):
    assert_alike(*(DataLoader(ds, 8, sampler=TORCHS["Random"](ds), num_workers=2) for ds in pair))


def test_torchs_batch_sampler_reads_it_as_a_list(pair):
    one, other = (
        DataLoader(ds, batch_sampler=BatchSampler(RandomSampler(ds, generator=seeded()), 7, True))
        for ds in pair
    )
    assert_alike(one, other)
    one, other = (DataLoader(ds, batch_size=None, shuffle=True, generator=seeded()) for ds in pair)
    assert_alike(one, other)


def test_subset_random_split_and_concat_read_it_as_a_list(pair):
    for divide in (
        lambda ds: [Subset(ds, range(5, 20, 3)), Subset(Subset(ds, range(20)), [3, 1])],
        lambda ds: random_split(ds, [0.5, 0.3, 0.2], seeded()),
        lambda ds: [ConcatDataset([ds, Subset(ds, [2, 1]), ds])],
    ):
        for one, other in zip(*map(divide, pair), strict=True):
            assert_alike(one, other)
            assert_alike(DataLoader(one, 4), DataLoader(other, 4))
            assert_alike(*(DataLoader(d, 4, shuffle=True, generator=seeded()) for d in (one, other)))


RANK = """
import json, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from edcache import CachedDataset
from edcache.samplers import Balanced, ByLength, ChunkShuffle

path, meeting, rank = sys.argv[1:]
ds = CachedDataset.from_cache(path)
early = Balanced(ds, "label", seed=4)
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)

def read(loader):
    mine = [batch["index"].tolist() for batch in loader]
    gathered = [None, None]
    dist.all_gather_object(gathered, mine)
    return gathered

def torchs(epoch):
    sampler = DistributedSampler(ds, seed=3)
    sampler.set_epoch(epoch)
    return sampler

found = {
    "torchs": [read(DataLoader(ds, 8, sampler=torchs(epoch))) for epoch in (0, 1)],
    "Balanced": read(DataLoader(ds, 8, sampler=early)),
    "ChunkShuffle": read(DataLoader(ds, 8, sampler=ChunkShuffle(ds, 2))),
    "ByLength": read(DataLoader(ds, batch_sampler=ByLength(ds, "index", 8))),
    "loader": read(ds.loader(8, sampler=Balanced(ds, "label", seed=4))),
    "everything": read(DataLoader(ds, 8, sampler=ChunkShuffle(ds, 2, num_replicas=1, rank=0))),
}
dist.barrier()
dist.destroy_process_group()
if rank == "0":
    print(json.dumps(found))
"""


@pytest.mark.full
def test_ranks_of_a_process_group_share_an_epoch(archive, tmp_path):
    """Two processes and gloo; what they read is what the samplers say without a process group."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, archive, tmp_path / "meeting", str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    found = json.loads(outputs[0][0])
    ram, ds = InRam([sample(k) for k in range(COUNT)]), CachedDataset.from_cache(archive)

    def expected(make):
        return [[batch["index"].tolist() for batch in make(rank)] for rank in (0, 1)]

    def torchs(epoch, rank):
        sampler = DistributedSampler(ram, 2, rank, seed=3)
        sampler.set_epoch(epoch)
        return DataLoader(ram, 8, sampler=sampler)

    for epoch in (0, 1):
        assert found["torchs"][epoch] == expected(lambda rank, epoch=epoch: torchs(epoch, rank))
    of_two = [{"num_replicas": 2, "rank": rank} for rank in (0, 1)]
    balanced = [Balanced(ds, "label", seed=4, **told) for told in of_two]
    of_list = expected(lambda rank: DataLoader(ram, 8, sampler=balanced[rank]))
    assert found["Balanced"] == found["loader"] == of_list
    chunks = [ChunkShuffle(ds, 2, **told) for told in of_two]
    assert found["ChunkShuffle"] == expected(lambda rank: DataLoader(ram, 8, sampler=chunks[rank]))
    lengths = [ByLength(ds, "index", 8, **told) for told in of_two]
    assert found["ByLength"] == expected(lambda rank: DataLoader(ram, batch_sampler=lengths[rank]))
    everything = [index for batch in found["everything"][0] for index in batch]
    assert sorted(everything) == list(range(COUNT))
    assert found["everything"][0] == found["everything"][1]


# --- torchdata --------------------------------------------------------------------------------------

OURS = {
    "Balanced": lambda ds, **o: {"sampler": Balanced(ds, "label", seed=3, **o), "batch_size": 8},
    "Weighted": lambda ds, **o: {"sampler": Weighted(ds, "index", seed=3, **o), "batch_size": 8},
    "ChunkShuffle": lambda ds, **o: {"sampler": ChunkShuffle(ds, 2, seed=3, **o), "batch_size": 8},
    "ByLength": lambda ds, **o: {"batch_sampler": ByLength(ds, "index", 8, seed=3, **o)},
    "one by one": lambda ds, **o: {"sampler": Balanced(ds, "label", 9, seed=3, **o), "batch_size": None},
}


def indices(batches):
    return [
        batch["index"].tolist() if torch.is_tensor(batch["index"]) else batch["index"] for batch in batches
    ]


def told(loader, epoch):
    """The same loader, at an epoch."""
    for sampler in (loader.sampler, loader.batch_sampler):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
    return loader


def expected_of(ds, options):
    """What the sampler draws in epochs 1 and 2, in batches; positions are indices, of a whole cache."""
    sampler = options.get("batch_sampler") or options["sampler"]
    sampler = BatchSampler(sampler, 8, False) if options.get("batch_size") else sampler
    return [list(sampler) for _ in range(3)][1:]


@pytest.mark.full
@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_resumes_our_samplers_exactly(archive, make, workers, tally):
    def fresh():
        ds = CachedDataset.from_cache(archive)
        return torchdata.StatefulDataLoader(ds, **make(ds), num_workers=workers)

    ds = CachedDataset.from_cache(archive)
    this, following = expected_of(ds, make(ds))
    assert str(this) != str(following)
    for taken in (1, 5, len(this) - 1, len(this)) if workers == 0 else (4, len(this)):
        loader = told(fresh(), 1)
        head = indices(itertools.islice(loader, taken))
        state = loader.state_dict()
        other = fresh()
        other.load_state_dict(state)
        assert (
            head + indices(other) == this
        )  # nothing is left behind the last batch, as of torchdata's own samplers
        assert indices(other) == following
        tally("states of StatefulDataLoaders resumed")


@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "prefetch_factor": 99}])
def test_a_stateful_data_loader_that_finished_an_epoch_goes_on_with_the_next(archive, make, workers):
    # With the last one all draws of an epoch are made at once, also of the iteration that it throws away.
    ds = CachedDataset.from_cache(archive)
    this, following = expected_of(ds, make(ds))
    loader = told(torchdata.StatefulDataLoader(ds, **make(ds), **workers), 1)
    assert indices(loader) == this
    other = torchdata.StatefulDataLoader(ds, **make(ds), **workers)
    other.load_state_dict(loader.state_dict())
    assert indices(other) == following


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_resumes_its_own_shuffle_on_a_cache(pair, workers):
    found = []
    for ds in pair:
        loader = torchdata.StatefulDataLoader(ds, 8, shuffle=True, generator=seeded(), num_workers=workers)
        iterator = iter(loader)
        head = list(itertools.islice(iterator, 2))
        state = loader.state_dict()
        other = torchdata.StatefulDataLoader(ds, 8, shuffle=True, generator=seeded(), num_workers=workers)
        other.load_state_dict(state)
        found.append(head + list(other))
        assert sorted(flat(indices(found[-1]))) == sorted(s["index"] for s in pair[1])
    assert_alike(*found)


@pytest.mark.parametrize("ranks", [1, 3])
def test_accelerate_goes_on_amid_an_epoch_with_other_ranks(archive, tmp_path, ranks):
    """By its checkpoints, and by skipping batches."""
    need("accelerate")
    from accelerate import Accelerator, skip_first_batches

    ds = CachedDataset.from_cache(archive)

    def loaders(count):
        of = [{"num_replicas": count, "rank": rank} for rank in range(count)]
        return [ds.loader(None, sampler=Shuffle(ds, 5, global_batch_size=8, **each)) for each in of]

    accelerator = Accelerator(cpu=True)
    first = accelerator.prepare(loaders(2)[0])
    accelerator.register_for_checkpointing(first)
    assert len(list(itertools.islice(first, 3))) == 3
    accelerator.save_state(tmp_path / "state")
    found = []
    for rank, loader in enumerate(loaders(ranks)):
        accelerator = Accelerator(cpu=True)
        accelerator.register_for_checkpointing(loader)
        accelerator.load_state(tmp_path / "state")
        found.append(indices(loader))
        assert found[-1] == indices(skip_first_batches(loaders(ranks)[rank], 3))
    whole = loaders(1)[0].sampler
    steps = [sorted(flat(shares)) for shares in zip(*found, strict=True)]
    assert steps == [sorted(whole.which(step).tolist()) for step in range(3, 8)]


def flat(batches):
    return [index for batch in batches for index in batch]


# --- Lightning --------------------------------------------------------------------------------------

# Advice, whatever the dataset; and what torch 2.13 says of the Lightning before it.
quiet_lightning = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*LeafSpec.* is deprecated"
)


def batches_of(make_sampler, epochs=2):
    """What a fit sees, given a sampler of batches."""
    sampler = make_sampler()
    return [[epoch, batch] for epoch in range(epochs) for batch in list(sampler)]


@quiet_lightning
def test_lightning_trains_on_it_as_on_a_list(pair):
    from lightning_parts import Tiny, trainer

    ds, ram = pair
    labels = np.array([s["label"] for s in ram])
    for make in (
        lambda d: DataLoader(d, 8, shuffle=True, generator=seeded()),
        lambda d: DataLoader(d, 8, sampler=Balanced(d, labels, seed=2)),
        lambda d: DataLoader(d, batch_sampler=ByLength(d, labels, 8, seed=2)),
    ):
        one, other = Tiny(), Tiny()
        trainer().fit(one, make(ds))
        trainer().fit(other, make(ram))
        assert one.seen == other.seen
        assert len(one.seen) == 2 * -(-len(ds) // 8)
        batches = [entry[1] for entry in one.seen]
        assert batches[: len(batches) // 2] != batches[len(batches) // 2 :]
        assert same(one.layer.weight.data, other.layer.weight.data)
    own = Tiny()
    trainer().fit(own, ds.loader(8, sampler=Balanced(ds, labels, seed=2)))
    reference = Tiny()
    trainer().fit(reference, DataLoader(ram, 8, sampler=Balanced(ram, labels, seed=2)))
    assert own.seen == reference.seen


def seen_by_ranks(folder, loader, **options):
    from lightning_parts import Tiny, trainer

    folder.mkdir()
    trainer(devices=2, strategy="ddp_fork", **options).fit(Tiny(folder), loader)
    return [json.loads((folder / str(rank)).read_text()) for rank in (0, 1)]


@pytest.mark.full
@quiet_lightning
def test_lightnings_ranks_share_an_epoch_once(archive, tmp_path):
    """Lightning puts a DistributedSampler in the place of torch's samplers; ours share by themselves."""
    ds = CachedDataset.from_cache(archive)
    ram = InRam([sample(k) for k in range(COUNT)])

    def torchs(rank):
        sampler = DistributedSampler(ram, 2, rank, seed=0)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            yield from ([epoch, batch] for batch in BatchSampler(sampler, 8, False))

    found = seen_by_ranks(tmp_path / "torch", DataLoader(ds, 8, shuffle=True))
    assert found == [list(torchs(rank)) for rank in (0, 1)]

    found = seen_by_ranks(tmp_path / "ours", DataLoader(ds, 8, sampler=Balanced(ds, "label")))
    of_two = [{"num_replicas": 2, "rank": rank} for rank in (0, 1)]
    assert found == [
        batches_of(lambda told=told: BatchSampler(Balanced(ds, "label", **told), 8, False)) for told in of_two
    ]

    loader = DataLoader(ds, batch_sampler=ByLength(ds, "index", 8))
    found = seen_by_ranks(tmp_path / "batches", loader, use_distributed_sampler=False)
    assert found == [batches_of(lambda told=told: ByLength(ds, "index", 8, **told)) for told in of_two]


class Logged(Dataset):
    """A source that notes what it computes."""

    def __init__(self, log):
        self.log = log

    def __len__(self):
        return COUNT

    def __getitem__(self, k):
        note(self.log, k)
        return sample(k)


@pytest.mark.full
@quiet_lightning
def test_lightnings_spawned_ranks_fill_one_cache_together_and_share_its_epochs(tmp_path):
    from lightning_parts import Filled, Tiny, trainer

    filled = Filled(Logged(tmp_path / "log"), tmp_path / "a.zip")
    trainer(devices=2, strategy="ddp_spawn").fit(Tiny(tmp_path), filled)
    assert sorted(computed(tmp_path / "log")) == list(range(COUNT))
    seen = [json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1)]
    for epoch in (0, 1):
        indices = [flat(batch for number, batch in mine if number == epoch) for mine in seen]
        assert [len(own) for own in indices] == [31, 31]
        assert set(indices[0] + indices[1]) == set(range(COUNT))


@quiet_lightning
@pytest.mark.parametrize("name", ["Balanced", "ByLength"])
def test_a_lightning_checkpoint_amid_an_epoch_resumes_our_samplers(archive, tmp_path, name):
    from lightning_parts import Interrupted, Tiny, trainer

    ds = CachedDataset.from_cache(archive)
    whole, first, second = Tiny(), Tiny(), Tiny()
    trainer().fit(whole, torchdata.StatefulDataLoader(ds, **OURS[name](ds)))
    trainer(callbacks=[Interrupted(tmp_path / "c.ckpt")]).fit(
        first, torchdata.StatefulDataLoader(ds, **OURS[name](ds))
    )
    trainer().fit(second, torchdata.StatefulDataLoader(ds, **OURS[name](ds)), ckpt_path=tmp_path / "c.ckpt")
    assert first.seen[:11] + second.seen == whole.seen
    assert same(second.layer.weight.data, whole.layer.weight.data)


@pytest.mark.full
@quiet_lightning
@pytest.mark.parametrize("workers", [None, 2])
def test_a_lightning_checkpoint_amid_an_epoch_goes_on_with_other_devices(archive, tmp_path, workers):
    from lightning_parts import Interrupted, Tiny, trainer

    ds = CachedDataset.from_cache(archive)

    def loader():
        sampler = Shuffle(ds, 5, global_batch_size=8)
        if workers is None:
            return ds.loader(None, sampler=sampler)
        return torchdata.StatefulDataLoader(ds, batch_sampler=sampler, num_workers=workers)

    def seen(devices, name, **options):
        folder = tmp_path / name
        folder.mkdir()
        checkpoint = options.pop("ckpt_path", None)
        many = {"devices": devices, "strategy": "ddp_fork"} if devices > 1 else {}
        many["use_distributed_sampler"] = workers is None
        trainer(**many, **options).fit(Tiny(folder), loader(), ckpt_path=checkpoint)
        ranks = [json.loads((folder / str(rank)).read_text()) for rank in range(devices)]
        return [
            [steps[0][0], sorted(flat(batch for _, batch in steps))]
            for steps in map(list, zip(*ranks, strict=True))
        ]

    whole = seen(1, "whole")
    first = seen(2, "first", callbacks=[Interrupted(tmp_path / "c.ckpt")])
    assert len(whole) == 2 * -(-COUNT // 8)
    assert first[:11] == whole[:11]
    for devices in (1, 3):
        assert seen(devices, f"on {devices}", ckpt_path=tmp_path / "c.ckpt") == whole[11:]
