"""Four datasets, generated with fixed seeds and kept as plain .npy files that every system is built from."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

Sample = dict[str, Any]

FASHION = Path("/usr/share/datasets/fashion-mnist")
CHOSEN_LABEL = 3
"""The label that the systems which know labels are asked for."""


@dataclass(frozen=True)
class Shape:
    """What a workload is, before it is generated."""

    title: str
    count: int
    batch_size: int
    arrays: dict[str, tuple[str, tuple[int, ...]]]  # name: dtype, shape of one sample; {} for tokens


SHAPES = {
    "fashion": Shape("Fashion-MNIST, uint8 [28, 28]", 60_000, 256, {"image": ("uint8", (28, 28))}),
    "images": Shape("uint8 [3, 224, 224]", 4_000, 256, {"image": ("uint8", (3, 224, 224))}),
    "tokens": Shape("lists of 16 to 512 int64, with a text as long", 50_000, 256, {}),
    "volumes": Shape(
        "float32 [64, 128, 128] with a uint8 mask",
        200,
        4,
        {"image": ("float32", (64, 128, 128)), "mask": ("uint8", (64, 128, 128))},
    ),
}


class Workload:
    """A generated dataset: a sequence of dicts of torch tensors, text and an int label.

    Args:
        folder: where `generate` put it.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.labels: np.ndarray = np.load(folder / "label.npy")
        about = json.loads((folder / "about.json").read_text())
        self.title: str = about["title"]
        self.payload: int = about["payload"]
        """Bytes of all arrays, text and labels as they are."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def batch_size(self) -> int:
        """How many samples a batch has; a smoke run's dataset may be smaller than one."""
        return min(SHAPES[self.name].batch_size, max(1, len(self) // 4))

    @property
    def is_ragged(self) -> bool:
        """Whether samples differ in length, so that no array holds them all."""
        return not SHAPES[self.name].arrays

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Of a workload of fixed shapes: one mapped array [count, ...] per name, without the labels."""
        return {
            name: np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in SHAPES[self.name].arrays
        }

    @cached_property
    def fields(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Of a workload of fixed shapes: dtype and shape of one sample's arrays."""
        return {name: (array.dtype, array.shape[1:]) for name, array in self.arrays.items()}

    @cached_property
    def tokens(self) -> np.ndarray:
        """Of tokens: all of them, one sample behind the other, int64."""
        return np.load(self.folder / "input_ids.npy", mmap_mode="r")

    @cached_property
    def text(self) -> np.ndarray:
        """Of tokens: all ASCII text, as uint8; a sample has as many characters as tokens."""
        return np.load(self.folder / "text.npy", mmap_mode="r")

    @cached_property
    def ends(self) -> np.ndarray:
        """Of tokens: where sample i ends in `tokens` and in `text`; it begins where the one before ends."""
        return np.load(self.folder / "ends.npy")

    def __getitem__(self, index: int) -> Sample:
        """A sample in memory of its own, its label an int; index in [0, len(self))."""
        label = int(self.labels[index])
        if not self.is_ragged:
            arrays = {n: torch.from_numpy(np.array(array[index])) for n, array in self.arrays.items()}
            return {**arrays, "label": label}
        begin, end = int(self.ends[index - 1]) if index else 0, int(self.ends[index])
        return {
            "input_ids": torch.from_numpy(np.array(self.tokens[begin:end])),
            "text": bytes(self.text[begin:end]).decode("ascii"),
            "label": label,
        }

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    @cached_property
    def index_of(self) -> dict[int, int]:
        """From the digest of a sample to its index: tells which one a shuffled batch brought."""
        digests = np.load(self.folder / "digests.npy")
        return {int(digest): index for index, digest in enumerate(digests)}


def digest(sample: Sample) -> int:
    """The crc32 of a sample's first array."""
    array = sample["input_ids"] if "input_ids" in sample else sample["image"]
    return zlib.crc32(np.ascontiguousarray(array.numpy()).view(np.uint8).reshape(-1).data)


def generate(name: str, folder: Path, scale: float) -> Workload:
    """Make a workload's files; the same ones for the same scale."""
    folder.mkdir(parents=True)
    count = max(8, round(SHAPES[name].count * scale))
    random = np.random.default_rng(sorted(SHAPES).index(name))
    title = SHAPES[name].title
    if name == "tokens":
        payload = _generate_tokens(folder, count, random)
    elif name == "fashion":
        title = title if FASHION.is_dir() else "scikit-learn's digits, uint8 [8, 8]"
        images, labels = fashion_mnist() if FASHION.is_dir() else _digits()
        payload = _save(folder, image=images[:count], label=labels[:count].astype(np.int64))
    else:
        arrays = {n: _noise(random, d, (count, *s)) for n, (d, s) in SHAPES[name].arrays.items()}
        payload = _save(folder, **arrays, label=random.integers(0, 10, count))
    (folder / "about.json").write_text(json.dumps({"title": title, "payload": payload}))
    workload = Workload(name, folder)
    np.save(folder / "digests.npy", np.array([digest(sample) for sample in workload], np.int64))
    return workload


def _generate_tokens(folder: Path, count: int, random: np.random.Generator) -> int:
    ends = np.cumsum(random.integers(16, 513, count))
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     ", np.uint8)
    _save(folder, ends=ends)
    return _save(
        folder,
        # No token is 0, so that padding with 0 can be told from them.
        input_ids=random.integers(1, 50_000, ends[-1]),
        text=random.choice(letters, ends[-1]),
        label=random.integers(0, 10, count),
    )


def _noise(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "uint8":  # else float32
        return random.integers(0, 256, shape, np.uint8)
    return random.random(shape, np.float32)


def _save(folder: Path, **arrays: np.ndarray) -> int:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return sum(array.nbytes for array in arrays.values())


def fashion_mnist() -> tuple[np.ndarray, np.ndarray]:
    """The 60,000 training images of Debian's package dataset-fashion-mnist."""
    return _idx(FASHION / "train-images-idx3-ubyte.gz"), _idx(FASHION / "train-labels-idx1-ubyte.gz")


def _idx(file: Path) -> np.ndarray:
    # Two zero bytes, type 8, the number of dimensions, big-endian sizes.
    data = gzip.decompress(file.read_bytes())
    shape = np.frombuffer(data, ">i4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(np.uint8), digits.target
