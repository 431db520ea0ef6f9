"""Feed a GPU, train on it, and run frozen models once: scripts/bench gpu [--help]

Rows are samples a second that reach the device, and their share of what the device does alone: of the copy from pinned
memory, of a training step whose data is there, of a model whose data is there, of decoding without batches. Each way
runs once to start its workers, and counts in its second epoch, for at most --seconds. Images are uint8 [3, 224, 224],
random; models have random weights.

Without a GPU it takes --device cpu, for a try. Files are read from the page cache.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import bench_images
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import edcache

BATCH, CLASSES = 256, 1000


class Memmap(Dataset[Any]):
    """The images by batches of indices, each read at once: the fastest that a user writes in five lines."""

    def __init__(self, path: Path) -> None:
        self._path, self._images = path, None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def images(self) -> Any:
        if self._images is None:  # once a worker
            self._images = np.load(self._path, mmap_mode="r")
        return self._images

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.from_numpy(self.images[np.sort(indices)]), torch.tensor(indices) % CLASSES


class Trial:
    """Device, folder and size of a run."""

    def __init__(self, given: argparse.Namespace, work: Path) -> None:
        self.device, self.work, self.side = torch.device(given.device), work, given.side
        self.count, self.seconds, self.most = given.count, given.seconds, given.workers
        self.is_gpu = self.device.type == "cuda"
        self.sync: Callable[[], object] = torch.cuda.synchronize if self.is_gpu else lambda: None

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.side, self.side

    def numbers(self, *wanted: int) -> list[int]:
        return [number for number in wanted if number <= self.most]

    def images(self) -> torch.Tensor:
        return torch.randint(0, 256, (BATCH, *self.shape), dtype=torch.uint8, device=self.device)

    def rate(self, batches: Iterable[Any], use: Callable[[Any], object] = lambda images: None) -> float:
        """Samples a second of the second epoch; `use` gets the images of each batch on the device."""
        rate = 0.0
        for _ in range(2):
            count, began = 0, None
            for batch in batches:
                images = batch["image"] if isinstance(batch, dict) else batch[0]
                use(images.to(self.device, non_blocking=True))
                if began is None:  # behind the first batch, whose wait is of the workers' start
                    self.sync()
                    began = time.perf_counter()
                    continue
                count += len(images)
                if time.perf_counter() - began > self.seconds:
                    break
            self.sync()
            rate = count / (time.perf_counter() - (began or 0))
        return rate

    def alone(self, do: Callable[[], object]) -> float:
        """Samples a second of a function of a batch."""
        for _ in range(3):
            do()
        self.sync()
        count, began = 0, time.perf_counter()
        while count < 4 or time.perf_counter() - began < self.seconds / 4:
            do()
            count += 1
            self.sync()
        return count * BATCH / (time.perf_counter() - began)


def tell(title: str, bound: str, alone: float, rows: Iterator[tuple[str, float]]) -> None:
    print(
        f"\n| {title} | samples/s | of {bound} |\n|---|---|---|\n| {bound} | {alone:,.0f} | 1 |", flush=True
    )
    for name, rate in rows:
        print(f"| {name} | {rate:,.0f} | {rate / alone:.2f} |", flush=True)


def fill(trial: Trial) -> edcache.CachedDataset:
    rng = np.random.default_rng(0)
    shape = (trial.count, *trial.shape)
    images = np.lib.format.open_memmap(trial.work / "x.npy", mode="w+", dtype=np.uint8, shape=shape)
    with edcache.CacheWriter(trial.work / "a.zip", in_memory_keys=["label"]) as writer:
        for start in range(0, trial.count, BATCH):
            part = images[start : start + BATCH]
            part[:] = rng.integers(0, 256, part.shape, np.uint8)
            labels = np.arange(start, start + len(part)) % CLASSES
            writer.extend_columns({"image": np.asarray(part), "label": labels})
    return edcache.CachedDataset.from_cache(trial.work / "a.zip")


# --- feeding ------------------------------------------------------------------------------------------


def fed(trial: Trial, ds: edcache.CachedDataset) -> Iterator[tuple[str, float]]:
    options = {"shuffle": True, "drop_last": True}
    for number in trial.numbers(1, 2, 4, 8):
        loader = ds.loader(BATCH, **options, num_threads=number, device=trial.device)
        yield f"ds.loader(device), {number} threads", trial.rate(loader)
    resident = ds.loader(BATCH, **options, device=trial.device, resident=True)
    yield "ds.loader(device, resident=True)", trial.rate(resident)
    options |= {"batch_size": BATCH, "pin_memory": trial.is_gpu}
    for number in trial.numbers(0, 4, 8, 12):
        yield f"DataLoader(ds), {number} workers", trial.rate(DataLoader(ds, num_workers=number, **options))
    memmap = Memmap(trial.work / "x.npy")
    for number in trial.numbers(0, 8, 12):
        loader = DataLoader(memmap, num_workers=number, collate_fn=lambda batch: batch, **options)
        yield f"DataLoader(memmap), {number} workers", trial.rate(loader)


def feed(trial: Trial, ds: edcache.CachedDataset) -> None:
    host = torch.empty((BATCH, *trial.shape), dtype=torch.uint8, pin_memory=trial.is_gpu)
    target = torch.empty_like(host, device=trial.device)
    copied = trial.alone(lambda: target.copy_(host, non_blocking=True))
    tell("feeding", "a pinned copy", copied, fed(trial, ds))
    whole = torch.from_numpy(np.load(trial.work / "x.npy")).to(trial.device)
    gathered = trial.alone(lambda: whole[torch.randperm(len(whole), device=trial.device)[:BATCH]])
    resident = ds.loader(BATCH, shuffle=True, drop_last=True, device=trial.device, resident=True)
    rows = [("ds.loader(device, resident=True)", trial.rate(resident))]
    tell("a dataset on the device", "tensor[indices]", gathered, iter(rows))


# --- models -------------------------------------------------------------------------------------------


def convolutions(side: int) -> nn.Module:
    """As much work as a small residual network."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((3, 64, 128, 256, 512)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


class Patches(nn.Module):
    """As much work as ViT-B/16."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 768, 16, stride=16)
        layer = nn.TransformerEncoderLayer(
            768, 12, 3072, batch_first=True, norm_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.cut(images).flatten(2).transpose(1, 2)).mean(1)


MODELS: dict[str, Callable[[int], nn.Module]] = {"transformer": Patches, "convolutions": convolutions}


class Encode:
    """Function of a device that makes a function of a batch."""

    def __init__(self, name: str, side: int) -> None:
        self.name, self.side = name, side

    def __call__(self, device: torch.device) -> Callable[[Any], Any]:
        torch.manual_seed(0)
        net = MODELS[self.name](self.side).to(device).eval()

        def encode(batch: Any) -> Any:
            with torch.autocast(device.type, torch.bfloat16), torch.no_grad():
                return {"z": net(batch["image"].float().div_(255))}

        return encode


def bare(trial: Trial, encode: Callable[[Any], Any], ds: edcache.CachedDataset, workers: int) -> float:
    """Samples a second of a loop that stores each batch by torch.save."""
    loader = DataLoader(ds, BATCH, num_workers=workers, pin_memory=trial.is_gpu)
    number = itertools.count()

    def store(images: torch.Tensor) -> None:
        torch.save(encode({"image": images})["z"].cpu(), trial.work / f"{next(number) % 8}.pt")

    return trial.rate(loader, store)


def mapped(trial: Trial, name: str, ds: edcache.CachedDataset) -> Iterator[tuple[str, float]]:
    function = Encode(name, trial.side)
    encode = function(trial.device)
    for number in trial.numbers(0, 8):
        yield f"bare loop, torch.save, {number} workers", bare(trial, encode, ds, number)
    for number in trial.numbers(0, 2, 8):
        path = trial.work / f"{name}{number}.zip"
        options = {
            "batch_size": BATCH,
            "devices": [str(trial.device)],
            "num_workers": number,
            "keep": "label",
        }
        began = time.perf_counter()
        made = edcache.map(function, ds, path, **options, progress=False)
        yield f"edcache.map, {number} readers", len(made) / (time.perf_counter() - began)
        made.close()


def models(trial: Trial, ds: edcache.CachedDataset) -> None:
    for name in MODELS:
        encode, images = Encode(name, trial.side)(trial.device), trial.images()
        alone = trial.alone(lambda encode=encode, images=images: encode({"image": images}))
        tell(f"a frozen model once: {name}", "the model alone", alone, mapped(trial, name, ds))


def train(trial: Trial, ds: edcache.CachedDataset) -> None:
    net = convolutions(trial.side).to(trial.device)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    labels = torch.zeros(BATCH, dtype=torch.long, device=trial.device)

    def step(images: torch.Tensor) -> None:
        with torch.autocast(trial.device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(net(images.float().div(255)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def rows() -> Iterator[tuple[str, float]]:
        options = {"shuffle": True, "drop_last": True}
        yield "ds.loader(device)", trial.rate(ds.loader(BATCH, **options, device=trial.device), step)
        for number in trial.numbers(0, 4):
            loader = DataLoader(ds, BATCH, num_workers=number, pin_memory=trial.is_gpu, **options)
            yield f"DataLoader(ds), {number} workers", trial.rate(loader, step)

    images = trial.images()
    tell("training", "the step alone", trial.alone(lambda: step(images)), rows())


# --- photos -------------------------------------------------------------------------------------------


def photos(trial: Trial) -> None:
    bench_images.generate(trial.work / "tree", max(4 * BATCH, trial.count // 4), 64)
    path, source = trial.work / "photos.zip", edcache.image_folder(trial.work / "tree")
    edcache.CachedDataset(source, path, progress=False).close()
    decoding = edcache.Decoding("tensor", size=bench_images.SIZE, crop="center")
    ds = edcache.CachedDataset.from_cache(path, decode=decoding)
    for number in trial.numbers(1, 4, 8, 16):
        turn = bench_images.bound(trial.work, number)
        [*turn()]
        began = time.perf_counter()
        count = sum(len(images) for (images,) in turn())
        alone = count / (time.perf_counter() - began)
        loader = ds.loader(BATCH, shuffle=True, drop_last=True, num_threads=number, device=trial.device)
        rows = [("ds.loader(device)", trial.rate(loader))]
        tell(f"photos, {number} threads", "decoding and resizing alone", alone, iter(rows))


PARTS: dict[str, Callable[[Trial, edcache.CachedDataset], None]] = {
    "feed": feed,
    "train": train,
    "map": models,
    "photos": lambda trial, ds: photos(trial),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--count", type=int, default=20_000, help="images")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a row, at most")
    parser.add_argument("--workers", type=int, default=16, help="threads or processes, at most")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "no GPU here; --device cpu --count 512 --side 32 --seconds 1 tries the script\n")
    name = torch.cuda.get_device_name() if given.device == "cuda" else given.device
    print(f"torch {torch.__version__}, {name}, {given.count:,} images of {given.side} x {given.side}")
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(given, Path(folder))
        ds = fill(trial)
        for part in given.only:
            PARTS[part](trial, ds)


if __name__ == "__main__":
    main()
