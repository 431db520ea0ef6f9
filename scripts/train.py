"""Train a small network with Lightning on a cache of real images, of which half of the classes are rare."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytorch_lightning as lightning
import torch
from quickstart import DEBIAN, fashion_mnist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import edcache
from edcache.samplers import Balanced


class Smoothed(Dataset):
    """Images, smoothed along their edges; every seventh is for testing, and half of the classes are rare."""

    in_memory_keys = ("label", "split", "rare")

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict:
        image = torch.from_numpy(self.images[index].astype(np.float32))[None]
        for _ in range(5):
            flows = (torch.roll(image, shift, axis) - image for axis in (1, 2) for shift in (-1, 1))
            image = image + sum(flow * torch.exp(-((flow / 20) ** 2)) for flow in flows) / 8
        return {
            "image": image.clamp(0, 255).to(torch.uint8),
            "label": int(self.labels[index]),
            "split": "train" if index % 7 else "test",
            "rare": bool(self.labels[index] % 2 and index % 20),
        }


class Network(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
            *(nn.Flatten(), nn.Linear(512, 10)),
        )
        self.right = torch.zeros(10, 2)

    def training_step(self, batch: tuple, number: int) -> torch.Tensor:
        image, label = batch
        return nn.functional.cross_entropy(self.layers(image / 255), label)

    def test_step(self, batch: tuple, number: int) -> None:
        image, label = batch
        right = self.layers(image / 255).argmax(1) == label
        self.right.index_put_((label, right.long()), torch.ones(len(label)), accumulate=True)

    def on_test_end(self) -> None:
        share = self.right[:, 1] / self.right.sum(1).clamp(min=1)
        print(f"right: {share.mean():.1%} of a class on average, {share[1::2].mean():.1%} of the rare ones")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 2e-3)


def source(root: str | None) -> Smoothed:
    if root or DEBIAN.is_dir():
        return Smoothed(*fashion_mnist(root))
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Smoothed(digits.images * 16, digits.target)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", help="the folder of Fashion-MNIST's four files")
    parser.add_argument("--cache", default="cache", type=Path)
    parser.add_argument("--samples", type=int, help="only so many")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--shuffle", action="store_true", help="an ordinary shuffle instead of balanced classes"
    )
    parser.add_argument("--progress", action="store_true", help="show Lightning's bars")
    options = parser.parse_args(arguments)

    ds = edcache.CachedDataset(source(options.root), options.cache / "train.zip")[: options.samples]
    train = ds.filter(split="train", rare=False).select("image", "label", as_tuple=True)
    test = ds.filter(split="test").select("image", "label", as_tuple=True)
    print("training samples of each class:", dict(sorted(train.labels.counts("label").items())))

    lightning.seed_everything(0, verbose=False)
    order = {"shuffle": True} if options.shuffle else {"sampler": Balanced(train, "label")}
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=options.progress,
    )
    network = Network()
    trainer.fit(network, DataLoader(train, batch_size=64, **order))
    trainer.test(network, DataLoader(test, batch_size=256))


if __name__ == "__main__":
    main()
