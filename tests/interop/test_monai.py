"""A MONAI dataset as the source of a cache, and MONAI's own caches read. MONAI itself says what is expected."""

from __future__ import annotations

import os

import pytest
import torch
from torch.utils.data import DataLoader

from edcache import CachedDataset, import_cache
from edcache.errors import ArchiveError, CodecError, StaleCacheError

# What MONAI deprecates is its own.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def parts():
    pytest.importorskip("monai")
    import monai_parts

    return monai_parts


def items(count, first=0):
    return [{"n": n} for n in range(first, first + count)]


def cached(path, data, transform, **options):
    import monai_parts as parts

    return CachedDataset(parts.theirs.Dataset(data, transform), path, progress=False, **options)


def drawing(transform):
    """A function of a sample and a generator that draws as a random transform of MONAI does."""

    def draw(sample, rng):
        return transform.set_random_state(int(rng.integers(2**32)))(sample)

    return draw


def test_deterministic_transforms_run_once_and_random_ones_at_each_read(tmp_path, parts):
    log = tmp_path / "log"
    prepare = parts.transforms.Compose([parts.Counted(log)])
    augment = parts.transforms.Compose([parts.Noise()])
    for _ in range(2):
        ds = cached(tmp_path / "a.zip", items(4), prepare, spot_check=False)
        for n, sample in enumerate(ds):
            assert type(sample["image"]) is parts.theirs.MetaTensor
            assert torch.equal(sample["image"].affine, parts.volume(n).affine)
            assert torch.equal(sample["image"].as_tensor(), parts.volume(n).as_tensor())
        seeded = ds.with_transform(drawing(augment), seed=0)
        drawn = [sample["noise"] for sample in seeded]
        assert [sample["n"] for sample in seeded] == [0, 1, 2, 3]
        assert len({float(noise) for noise in drawn}) == 4
        seeded.set_epoch(0)
        loader = DataLoader(seeded, batch_size=None, num_workers=2)
        assert [sample["noise"] for sample in loader] == drawn
        ds.close()
    assert log.stat().st_size == 4


def test_other_items_and_other_transforms_are_noticed(tmp_path, parts):
    scaled = [parts.transforms.ScaleIntensity(minv=None, maxv=None, factor=factor) for factor in (1.0, 2.0)]
    data = [torch.full((1, 2), float(n)) for n in range(3)]
    cached(tmp_path / "a.zip", data, scaled[0]).close()
    cached(tmp_path / "a.zip", data, scaled[0]).close()
    with pytest.raises(StaleCacheError):
        cached(tmp_path / "a.zip", data, scaled[1])
    with pytest.raises(StaleCacheError, match="attribute data"):
        cached(tmp_path / "a.zip", [*data[:2], data[0]], scaled[0])


# --- folders that MONAI's own PersistentDataset left


class Bomb:
    """What only unpickles where its author's code may run, and then raises what nobody expects."""

    def __reduce__(self):
        return exec, ("raise ConnectionError('no such host')",)


@pytest.fixture
def folder(tmp_path, parts):
    dataset = parts.theirs.PersistentDataset(items(3), parts.Volume(), tmp_path / "old", track_meta=True)
    assert [dataset[index]["n"] for index in range(3)] == [0, 1, 2]
    return tmp_path / "old"


def test_a_trusted_folder_is_imported_with_its_metatensors(tmp_path, folder, parts):
    ds = import_cache(folder, tmp_path / "a.zip", "monai", trust_pickle=True, progress=False)
    found = sorted(ds, key=lambda sample: sample["n"])
    for n, sample in enumerate(found):
        assert type(sample["image"]) is parts.theirs.MetaTensor
        assert torch.equal(sample["image"].affine, parts.volume(n).affine)
        assert torch.equal(sample["image"].as_tensor(), parts.volume(n).as_tensor())


def test_an_untrusted_folder_says_what_it_needs(tmp_path, folder):
    with pytest.raises(CodecError, match=r"needs .*; if you trust its author, trust_pickle=True"):
        import_cache(folder, tmp_path / "a.zip", "monai", progress=False)


def test_the_order_of_a_folder_is_given_at_once(tmp_path, folder):
    names = sorted(os.listdir(folder), reverse=True)
    ds = import_cache(folder, tmp_path / "a.zip", "monai", order=names, trust_pickle=True, progress=False)
    expected = [torch.load(folder / name, weights_only=False)["n"] for name in names]
    assert [sample["n"] for sample in ds] == expected


def test_whatever_a_trusted_pickle_raises_is_ours(tmp_path):
    (tmp_path / "old").mkdir()
    name = f"{'0' * 64}.pt"
    torch.save({"x": Bomb()}, tmp_path / "old" / name)
    with pytest.raises(ArchiveError, match=rf"{name} does not unpickle: ConnectionError: no such host"):
        import_cache(tmp_path / "old", tmp_path / "a.zip", "monai", trust_pickle=True, progress=False)
