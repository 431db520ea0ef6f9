"""`variants`: epoch e reads dataset e mod k, in every way of reading, with any ranks and workers."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import edcache
from edcache import CachedDataset, CacheWriter, OptionError, samplers
from tests.kit.likeness import same

COUNT, VARIANTS = 23, 3


@pytest.fixture
def ds(tmp_path):
    """Sample i of variant v has x = 100 v + i; the shapes of "ragged" differ between samples and variants."""
    parts = []
    for variant in range(VARIANTS):
        with CacheWriter(tmp_path / f"{variant}.zip", in_memory_keys=["key", "odd"]) as writer:
            writer.extend(sample(variant, index) for index in range(COUNT))
        parts.append(CachedDataset.from_cache(tmp_path / f"{variant}.zip"))
    return edcache.variants(parts)


def sample(variant, index):
    ragged = torch.full((1 + (variant + index) % 3,), float(variant))
    return {"key": f"n{index}", "odd": index % 2, "x": 100 * variant + index, "ragged": ragged}


def test_an_epoch_reads_one_variant_in_every_way(ds):
    assert len(ds) == COUNT
    assert ds.labels.to_list("odd") == [index % 2 for index in range(COUNT)]
    odd = ds.filter(odd=1)
    for epoch in range(5):
        ds.set_epoch(epoch)
        variant = epoch % VARIANTS
        assert all(map(same, ds, (sample(variant, index) for index in range(COUNT))))
        assert ds.select("x").batch([3, -1, 3])["x"].tolist() == [
            100 * variant + i for i in (3, COUNT - 1, 3)
        ]
        assert same(ds.by_key("n7"), sample(variant, 7))
        assert odd.select("x", as_tuple=True)[2] == (100 * variant + 5,)
        assert [one["x"] for one in odd[::-1].take(2)] == [100 * variant + i for i in (21, 19)]
        added = ds.with_transform(lambda x, rng: x + int(rng.integers(2**30)) * 1000, field="x", seed=1)
        assert added[4]["x"] % 1000 == 100 * variant + 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_tells_the_epoch_and_its_state_goes_on_with_other_ranks(ds, workers):
    first = [samplers.Shuffle(ds, seed=5, num_replicas=2, rank=rank) for rank in range(2)]
    seen = []
    for sampler in first:
        loader = DataLoader(
            ds, 4, sampler=sampler, num_workers=workers, collate_fn=list, persistent_workers=workers > 0
        )
        for epoch in range(4):
            variant = epoch % VARIANTS
            found = [one["x"] for batch in loader for one in batch]
            assert {x // 100 for x in found} == {variant}
            seen.append(sorted(x % 100 for x in found))
        assert len(loader) == 3
    # Both ranks, three steps of the fifth epoch; three ranks go on.
    for sampler in first:
        items = iter(sampler)
        assert [draw.epoch for draw in (next(items) for _ in range(3))] == [4] * 3
    state = first[0].state_dict()
    rest = [samplers.Shuffle(ds, seed=0, num_replicas=3, rank=rank, uneven="allow") for rank in range(3)]
    found = []
    for sampler in rest:
        sampler.load_state_dict(state | {"uneven": "allow"} if "uneven" in state else state)
        found += [one["x"] for batch in DataLoader(ds, 2, sampler=sampler, collate_fn=list) for one in batch]
    whole = samplers.Shuffle(ds, seed=5).which(0, batch_size=len(ds), epoch=4).tolist()
    assert sorted(found) == sorted(100 + position for position in whole[6:])


def test_a_loader_of_its_own_and_one_that_does_not_know_the_epoch(ds):
    loader = ds.select("x").loader(5, seed=3)
    for epoch in range(4):
        xs = torch.cat([batch["x"] for batch in loader]).tolist()
        assert {x // 100 for x in xs} == {epoch % VARIANTS}
        assert sorted(x % 100 for x in xs) == [*range(COUNT)]
    with pytest.raises(OptionError, match="does not know it; call"):
        next(iter(DataLoader(ds.select("x"), 5)))


def test_refusals_and_missing_samples(ds, tmp_path):
    with pytest.raises(OptionError, match=r"variants\(\): the datasets have 23 and 5 samples"):
        edcache.variants([ds.parts[0], ds.parts[1].take(5)])
    with pytest.raises(OptionError, match="takes at least one dataset"):
        edcache.variants([])
    with pytest.raises(OptionError, match="made of several datasets"):
        ds.save(tmp_path / "s.zip")

    def broken(index):
        if index == 7:
            raise ValueError("7")
        return {"x": index}

    class Source(list):
        def __getitem__(self, index):
            return broken(list.__getitem__(self, index))

    lacking = CachedDataset(Source(range(COUNT)), tmp_path / "l.zip", on_error="skip", progress=False)
    both = edcache.variants([ds.parts[0], lacking])
    assert both.missing.tolist() == [7]
    assert [failure.index for failure in both.errors] == [7]
    assert both[7]["x"] == 7


@pytest.mark.parametrize("way", [{}, {"batch_size": 4, "devices": "cpu", "num_workers": 1}])
def test_a_cache_of_random_samples_is_of_epoch_0(tmp_path, way):
    with CacheWriter(tmp_path / "a.zip") as writer:
        writer.extend({"x": torch.zeros(2)} for _ in range(COUNT))
    source = CachedDataset.from_cache(tmp_path / "a.zip")

    def noised(sample, rng):
        return {"x": sample["x"] + torch.from_numpy(rng.standard_normal(2))}

    view = source.with_transform(noised, seed=1)
    wanted = list(view)
    view.set_epoch(3)
    fn = (lambda device: dict) if way else dict
    cached = edcache.map(fn, view, tmp_path / "m.zip", progress=False, **way)
    assert all(map(same, cached, wanted))
    assert not np.array_equal(view[0]["x"], wanted[0]["x"])
