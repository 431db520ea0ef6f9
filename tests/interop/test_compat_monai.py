"""MONAI's datasets over archives, and its own caches read. MONAI itself says what is expected."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from edcache import import_cache
from edcache.errors import ArchiveError, CodecError

# What MONAI deprecates is its own.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def parts():
    pytest.importorskip("monai")
    import monai_parts

    return monai_parts


@pytest.fixture(scope="module")
def ours(parts):
    from edcache.compat import monai

    return monai


def items(count, first=0):
    return [{"n": n} for n in range(first, first + count)]


def computed(log):
    return log.stat().st_size if log.exists() else 0


def check(dataset, expected):
    import monai_parts as parts

    assert len(dataset) == len(expected)
    for index, one in enumerate(expected):
        sample = dataset[index]
        assert sample["n"] == one["n"]
        assert torch.equal(torch.as_tensor(sample["image"]), parts.volume(one["n"]).as_tensor())
        assert sample["noise"].shape == (2,)


def test_a_persistent_dataset_computes_once_and_draws_anew(tmp_path, ours, parts):
    log = tmp_path / "log"
    for _ in range(2):
        dataset = ours.PersistentDataset(
            items(3), [parts.Counted(log), parts.Noise()], tmp_path / "cache", track_meta=True
        )
        check(dataset, items(3))
        assert isinstance(dataset, parts.theirs.PersistentDataset)
        assert type(dataset[1]["image"]) is parts.theirs.MetaTensor
        assert torch.equal(dataset[-1]["image"].affine, parts.volume(2).affine)
        assert not torch.equal(dataset[0]["noise"], dataset[0]["noise"])
        assert [sample["n"] for sample in dataset[1:]] == [1, 2]
        dataset._cache.close()
    assert computed(log) == 3
    assert len(list((tmp_path / "cache").glob("*.zip"))) == 1


def test_how_monai_pickles_is_without_meaning(tmp_path, ours, parts):
    log = tmp_path / "log"
    for options in ({"pickle_protocol": 2}, {"pickle_protocol": 5}, {"weights_only": False}):
        dataset = ours.PersistentDataset(items(2), parts.Counted(log), tmp_path / "cache", **options)
        assert [sample["n"] for sample in dataset] == [0, 1]
        dataset._cache.close()
    assert computed(log) == 2


def test_without_track_meta_a_persistent_dataset_gives_tensors_as_monai_does(tmp_path, ours, parts):
    transform = parts.transforms.Compose([parts.Volume()])
    folder = tmp_path / "theirs"
    parts.theirs.PersistentDataset(items(1), transform, folder)[0]
    expected = parts.theirs.PersistentDataset(items(1), transform, folder)[0]
    mine = ours.PersistentDataset(items(1), transform, tmp_path / "ours")
    for _ in range(2):
        assert type(mine[0]["image"]) is type(expected["image"]) is torch.Tensor
        assert torch.equal(mine[0]["image"], expected["image"])


def test_an_item_that_a_transform_changes_in_place_is_hashed_as_it_was(tmp_path, ours, parts):
    data = items(2)
    for _ in range(2):
        dataset = ours.PersistentDataset(data, parts.InPlace(), tmp_path)
        assert [sample["n"] for sample in dataset] == [1, 2]
        dataset._cache.close()
    assert data == items(2)


def test_a_persistent_dataset_without_a_folder_caches_nothing(tmp_path, ours, parts):
    log = tmp_path / "log"
    dataset = ours.PersistentDataset(items(2), [parts.Counted(log), parts.Noise()], None)
    check(dataset, items(2))
    check(dataset, items(2))
    assert computed(log) == 4


def test_set_data_takes_other_data_and_removes_the_cache_of_the_old(tmp_path, ours, parts):
    log = tmp_path / "log"
    dataset = ours.PersistentDataset(items(2), [parts.Counted(log), parts.Noise()], tmp_path / "cache")
    check(dataset, items(2))
    before = set((tmp_path / "cache").glob("*.zip"))
    dataset.set_data(items(3, first=7))
    check(dataset, items(3, first=7))
    assert computed(log) == 5
    assert not before & set((tmp_path / "cache").glob("*.zip"))


def test_hash_transform_tells_transforms_apart(tmp_path, ours, parts):
    from monai.data import json_hashing

    image = np.arange(6.0).reshape(1, 2, 3)
    made = [
        ours.PersistentDataset([image], transform, tmp_path, hash_transform=json_hashing)[0]
        for transform in (parts.transforms.Identity(), parts.transforms.Flip(1))
    ]
    assert torch.equal(torch.as_tensor(made[0]), torch.as_tensor(image))
    assert torch.equal(torch.as_tensor(made[1]), torch.as_tensor(image).flip(2))
    assert len(list(tmp_path.glob("*.zip"))) == 2


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"runtime_cache": True}], ids=str)
def test_a_cache_dataset_is_filled_once(tmp_path, ours, options, parts):
    log = tmp_path / "log"
    dataset = ours.CacheDataset(
        items(5), [parts.Counted(log), parts.Noise()], cache_rate=0.6, progress=False, **options
    )
    assert computed(log) == (0 if "runtime_cache" in options else 3)
    check(dataset, items(5))
    assert computed(log) == 5  # the last two are not cached
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert [sample["n"] for sample in loader] == [0, 1, 2, 3, 4]
    folders = [os.path.dirname(dataset._cache.path)]
    dataset.set_data(items(2, first=7))
    check(dataset, items(2, first=7))
    folders.append(os.path.dirname(dataset._cache.path))
    assert [os.path.exists(folder) for folder in folders] == [False, True]
    del dataset, loader
    assert not os.path.exists(folders[1])


@pytest.mark.usefixtures("unchecked")
def test_a_cache_dataset_with_a_folder_is_there_for_the_next_run(tmp_path, ours, parts):
    log = tmp_path / "log"
    for _ in range(2):
        dataset = ours.CacheDataset(
            items(3), [parts.Counted(log), parts.Noise()], progress=False, cache_dir=tmp_path / "c"
        )
        check(dataset, items(3))
    assert computed(log) == 3


@pytest.mark.usefixtures("unchecked")
def test_items_of_one_hash_are_cached_once(tmp_path, ours, parts):
    log = tmp_path / "log"
    data = [{"n": n} for n in (0, 1, 1, 0)]
    dataset = ours.CacheDataset(data, [parts.Counted(log), parts.Noise()], hash_as_key=True, progress=False)
    assert computed(log) == dataset.cache_num == 2
    check(dataset, [{"n": n} for n in (0, 1, 1, 0)])
    assert computed(log) == 2


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


def test_a_dataset_is_pickled(tmp_path, ours, parts):
    dataset = ours.PersistentDataset(items(2), parts.Volume(), tmp_path / "c", track_meta=True)
    assert dataset[0]["n"] == 0
    again = pickle.loads(pickle.dumps(dataset))
    assert [sample["n"] for sample in again] == [0, 1]
    dataset._cache.close()
