"""ds.loader(resident=True): the batches of the loader without it, gathered from memory."""

import itertools
from collections import namedtuple

import numpy as np
import pytest
import torch
from damage import flip_record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import same
from pictures import jpeg
from written import write

import edcache
from edcache import CachedDataset
from edcache.dataset import resident
from edcache.errors import MissingSampleError, OptionError, SampleIndexError

COUNT = 61
Pair = edcache.register(namedtuple("Pair", "a b"))


def sample(k):
    rng = np.random.default_rng(k)
    return {
        "image": torch.from_numpy(rng.integers(0, 256, (3, 7, 5), np.uint8)),
        "label": k,
        "nested": {"half": torch.full((3,), k, dtype=torch.bfloat16), "is_odd": k % 2 == 1},
        "pair": (np.float32(k / 3), np.full((2, 2), k, np.int16)),
        "named": Pair(torch.tensor(complex(k, -k)), torch.full((4,), float("nan"), dtype=torch.float64)),
        "empty": torch.zeros(0, 3),
        "scalar": float(k),
    }


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("resident") / "a.zip"
    return write(path, map(sample, range(COUNT)), in_memory_keys=["label"], chunk_size=16)


@pytest.fixture(scope="module")
def zstd(tmp_path_factory):
    path = tmp_path_factory.mktemp("resident") / "z.zip"
    return write(path, map(sample, range(COUNT)), compression="zstd", in_memory_keys=["label"], chunk_size=16)


@pytest.fixture
def ds(archive):
    return CachedDataset.from_cache(archive)


def doubled(batch):
    return {**batch, "label": batch["label"] * 2}


DATASETS = {
    "whole": lambda ds, _: ds,
    "view": lambda ds, _: ds[5:50:3],
    "filtered": lambda ds, _: ds.filter("label > 20"),
    "fields": lambda ds, _: ds.select("label", "image"),
    "joined": lambda ds, zstd: edcache.concat([ds, zstd[10:20]]),
    "zipped": lambda ds, zstd: edcache.zip_fields(ds.select("image"), zstd.select("label")),
    "empty": lambda ds, _: ds[:0],
}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_it_gives_the_batches_orders_and_states_of_a_loader_without_it(archive, zstd, monkeypatch, data):
    draw = data.draw
    monkeypatch.setattr(resident, "_PART_NBYTES", draw(st.sampled_from([1, 2000, 1 << 26])))
    transform = draw(st.sampled_from([None, doubled]))
    whole = [CachedDataset.from_cache(path, batch_transform=transform) for path in (archive, zstd)]
    name = draw(st.sampled_from(sorted(DATASETS)))
    ds = DATASETS[name](*whole)
    options = {"drop_last": draw(st.booleans())}
    if draw(st.booleans()):
        options |= {"shuffle": True, "seed": draw(st.integers(0, 9))}
    elif draw(st.booleans()) and len(ds):
        options["sampler"] = draw(st.lists(st.integers(-len(ds), len(ds) - 1), min_size=1))
    size = draw(st.integers(1, 20))
    here, there = (ds.loader(size, resident=is_resident, **options) for is_resident in (True, False))
    for _ in range(2):
        taken = draw(st.integers(0, 8))
        for one, other in itertools.islice(zip(here, there, strict=True), taken):
            assert same(one, other)
            if "sampler" not in options:
                assert here.state_dict() == there.state_dict()
        if "sampler" not in options and draw(st.booleans()):
            state = there.state_dict()
            here, there = (ds.loader(size, resident=r, **options) for r in (True, False))
            here.load_state_dict(state)
            there.load_state_dict(state)
        for one, other in zip(here, there, strict=True):
            assert same(one, other)


def test_it_reads_the_archive_once(ds, archive, monkeypatch):
    loader = ds.loader(8, resident=True, shuffle=True)
    monkeypatch.setattr(type(ds._archive.reader.session), "group", None)
    assert sum(len(batch["label"]) for _ in range(2) for batch in loader) == 2 * COUNT


def test_what_does_not_fit_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = write(tmp_path / "a.zip", ({"x": torch.zeros(1000), "y": k} for k in range(20)))
    flip_record(path, 1)  # to read it would be another error
    monkeypatch.setattr(resident, "free_memory", lambda: 80_159)
    with pytest.raises(
        OptionError, match="takes 80,160 bytes for 20 samples, and cpu has 80,159 free"
    ) as error:
        CachedDataset.from_cache(path).loader(4, resident=True)
    assert error.value.option == "resident"
    monkeypatch.setattr(resident, "free_memory", lambda: None)  # the system does not tell
    with pytest.raises(edcache.errors.CorruptRecordError, match="record 1 at offset"):
        CachedDataset.from_cache(path).loader(4, resident=True)


def uneven(k):
    return {"x": torch.zeros(2 + (k == 15)), "label": k}


def mixed(k):
    return {"x": torch.zeros(3) if k < 12 else np.zeros(3, np.float32)}


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (uneven, {}, "samples of several|another structure or shape"),
        (mixed, {}, "samples of several|another structure"),
        (lambda k: {"x": f"n{k}"}, {}, r"takes tensors, and the samples have a str \('n0'\); select"),
        (lambda k: {"x": k}, {"transform": dict}, "has a transform"),
        (lambda k: {"x": k}, {"device": "meta"}, 'the device "cpu" or "cuda", not meta'),
    ],
)
@pytest.mark.parametrize("part_nbytes", [1, 1 << 26])
def test_what_would_differ_is_refused(tmp_path, monkeypatch, make, options, text, part_nbytes):
    monkeypatch.setattr(resident, "_PART_NBYTES", part_nbytes)
    path = write(tmp_path / "a.zip", map(make, range(20)))
    opening = {name: value for name, value in options.items() if name == "transform"}
    ds = CachedDataset.from_cache(path, **opening)
    with pytest.raises(OptionError, match=text) as error:
        ds.loader(4, resident=True, device=options.get("device"))
    assert error.value.option == "resident"


def test_samples_that_change_with_the_epoch_are_refused(ds, tmp_path):
    both = edcache.variants([ds, ds.take(COUNT)])
    with pytest.raises(OptionError, match="takes samples that stay"):
        both.loader(4, resident=True)
    with pytest.raises(OptionError, match="takes samples that stay"):
        ds.with_transform(lambda x, *, rng: x, seed=1).loader(4, resident=True)


def test_a_random_crop_is_refused_and_another_one_is_kept(tmp_path):
    pytest.importorskip("PIL")
    files = [edcache.ImageFile(jpeg(30 + k, 20, k)) for k in range(6)]
    path = write(tmp_path / "a.zip", ({"image": file} for file in files))

    def opened(crop):
        decode = edcache.Decoding("tensor", mode="RGB", size=8, crop=crop)
        return CachedDataset.from_cache(path, decode=decode)

    with pytest.raises(OptionError, match="takes samples that stay"):
        opened("random").loader(4, resident=True)
    ds = opened("center")
    assert all(map(same, ds.loader(4, resident=True), ds.loader(4)))


def test_what_is_missing_or_out_of_range_is_an_error(ds, tmp_path):
    with pytest.raises(SampleIndexError, match=f"{COUNT} not in"):
        list(ds.loader(4, sampler=[0, COUNT], resident=True))
    with edcache.CacheWriter(tmp_path / "b.zip") as w:
        w.write(1, {"x": 1})
    with pytest.raises(MissingSampleError, match="sample 0 has no record"):
        CachedDataset.from_cache(tmp_path / "b.zip").loader(2, resident=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_it_gives_the_same(ds):
    there = ds.loader(7, shuffle=True, seed=3, resident=True, device="cuda")
    for one, other in zip(ds.loader(7, shuffle=True, seed=3, device="cuda"), there, strict=True):
        assert same(one, other)
