"""Equal samples have one digest, whatever wrote them; others have another one."""

import copy
import math

import numpy as np
import pytest
import torch
from cli_runner import run
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import scaled

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import CodecError, MissingSampleError


class Source:
    """Samples of two structures and many shapes."""

    def __len__(self):
        return 300

    def __getitem__(self, index):
        sample = {"x": torch.full((3, index % 5 + 1), float(index)), "label": index % 7}
        return sample | ({"more": [index, None]} if index % 3 else {})


def test_fills_of_one_source_have_its_digest(tmp_path):
    found = {edcache.samples_digest(Source())}
    ways = [{}, {"num_workers": 2}, {"chunk_size": 7}, {"compression": "zstd", "in_memory_keys": ["label"]}]
    for number, options in enumerate(ways):
        ds = CachedDataset(Source(), tmp_path / f"{number}.zip", progress=False, **options)
        found |= {edcache.samples_digest(ds), edcache.samples_digest(ds[::-1][::-1])}
    ds.save(tmp_path / "saved.zip")
    found.add(run("digest", "--samples", str(tmp_path / "saved.zip")).output.strip())
    assert len(found) == 1
    assert edcache.samples_digest(ds[::-1]) not in found
    assert edcache.samples_digest(ds[:-1]) not in found


SAMPLES = [
    {"a": 1},
    {"b": 1},
    {"a": 1.0},
    {"a": True},
    {"a": None},
    {"a": "1"},
    {"a": b"1"},
    {"a": [1]},
    {"a": (1,)},
    {"a": [1, 1]},
    {"a": np.int64(1)},
    {"a": np.array([1])},
    {"a": np.array([[1]])},
    {"a": np.array([1], np.int32)},
    {"a": torch.tensor([1])},
    {"a": torch.tensor([1, 0])},
    {"a": torch.tensor([[1, 0]])},
    {"a": math.nan},
    {"a": 1, "b": 1},
    {"b": 1, "a": 1},
]


@settings(max_examples=scaled(100))
@given(
    st.lists(st.integers(0, len(SAMPLES) - 1), max_size=4),
    st.lists(st.integers(0, len(SAMPLES) - 1), max_size=4),
)
def test_other_samples_have_another_digest(one, other):
    digests = [edcache.samples_digest([copy.deepcopy(SAMPLES[k]) for k in chosen]) for chosen in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)


def test_what_cannot_be_hashed_raises(tmp_path):
    with pytest.raises(CodecError, match=r'sample\["a"\]: cannot store set'):
        edcache.samples_digest([{"a": {1}}])
    with CacheWriter(tmp_path / "a.zip") as writer:
        writer.write(1, {"a": 1})
    with pytest.raises(MissingSampleError):
        edcache.samples_digest(CachedDataset.from_cache(tmp_path / "a.zip", allow_partial=True))
