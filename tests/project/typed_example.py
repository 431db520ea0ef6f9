"""What type checkers know of a user's code: mypy --strict and pyright read this, no process runs it."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import assert_type

import edcache
from edcache import CachedDataset, CacheOptions, CacheWriter, View, cachable
from edcache.reader import Reader

Sample = dict[str, Tensor]


class Slow(Dataset[Sample]):
    def __init__(self, split: str) -> None:
        self.split = split

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Sample:
        raise IndexError(index)


@cachable("cache/{split}.zip", in_memory_keys=["label"], num_workers="auto", verify="always")
def digits(split: str = "train", *, size: int = 4) -> Slow:
    return Slow(split)


@cachable
def plain(split: str) -> list[int]:
    return [1, 2]


def a_call_keeps_its_parameters_and_samples() -> None:
    assert_type(digits("train", size=3), CachedDataset[Sample])
    assert_type(plain(split="train"), CachedDataset[int])
    assert_type(digits.cache_path("test"), str)
    digits(3)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    digits(spilt="train")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def views_keep_the_sample() -> None:
    ds = CachedDataset(Slow("train"), "train.zip", lazy=True, chunk_size=64, sync=1.5)
    assert_type(ds, CachedDataset[Sample])
    assert_type(ds[0], Sample)
    assert_type(ds[[0, 1]], View[Sample])
    assert_type(ds.filter(label=3).shuffle(0).take(2)[0], Sample)
    assert_type(ds.split(0.9, 0.1), tuple[View[Sample], ...])
    assert_type(next(iter(ds[ds.missing])), Sample)
    assert_type(ds.warmup(4, timeout=3), CachedDataset[Sample])
    assert_type(ds.missing.dtype, np.dtype[np.int64])


def options_are_known_by_name_and_type() -> None:
    options = CacheOptions(verify="never", on_error="skip")
    CachedDataset(None, "train.zip", options, verify="never")
    CachedDataset.from_cache("train.zip", decode="tensor", transform=len)
    CachedDataset(None, "train.zip", verfy="touch")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    CachedDataset(None, "train.zip", verify="often")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    CachedDataset.from_cache("train.zip", lazy=True)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]
    edcache.cachable("train.zip", timeout="3")  # type: ignore[call-overload] # pyright: ignore
    Reader("train.zip", verify="fast")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    CacheWriter("train.zip", chunk_size="3")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
