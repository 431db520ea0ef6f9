"""Photos of many shapes to batches of 224 x 224: scripts/bench images [--help]

Images a second of shuffled epochs, and images a second of processor time, that of workers included: the
first is of this machine and what else it does, the second hardly. All are medians of turns: each way once,
then each once again. A part of the bound is that of the same turn. Each way has a process of its own, and one
epoch before the first turn. All files are in memory. The short side of a photo becomes 224, and the middle is
cut out; FFCV cuts first, and resizes then.

The bound does nothing else: it decodes and resizes files that it holds in memory to [3, 224, 224], in the
fastest way of torch, and makes no batches.
It installs the peers. Without --peers there are none.
"""

from __future__ import annotations

import argparse
import functools
import io
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import edcache

BATCH, SIZE, QUALITY = 256, 224, 92
Epoch = Callable[[], Iterable[Any]]


def generate(folder: Path, count: int, shapes: int) -> None:
    """JPEGs of smoothed noise with grain, which take about as many bytes as photographs of their size."""
    rng, drawn, files = np.random.default_rng(0), set[tuple[int, int]](), list[bytes]()
    while len(drawn) < min(shapes, count):
        long = round(rng.normal(500, 40))
        short = round(long * rng.uniform(0.66, 0.8))
        drawn.add((long, short) if rng.random() < 0.7 else (short, long))
    for width, height in sorted(drawn):
        coarse = Image.fromarray(rng.integers(0, 256, (height // 16, width // 16, 3), np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.float32)
        grain = rng.normal(0, 14, smooth.shape)
        buffer = io.BytesIO()
        Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=QUALITY)
        files.append(buffer.getvalue())
    for k in range(count):
        file = folder / f"class{k % 10}" / f"{k:06d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(files[k % len(files)])


def photos(work: Path) -> list[Path]:
    return sorted((work / "tree").rglob("*.jpg"))


def label(file: Path) -> int:
    return int(file.parent.name.removeprefix("class"))


class Photos(Dataset[tuple[Any, int]]):
    """As torchvision's ImageFolder: (picture, label), read and decoded by Pillow."""

    def __init__(self, work: Path, transform: Callable[[Any], Any]) -> None:
        self.files, self.transform = photos(work), transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB")), label(self.files[index])


def cut(image: Any) -> torch.Tensor:
    """What torchvision's Resize, CenterCrop and PILToTensor make of a PIL image."""
    width, height = (side * SIZE // min(image.size) for side in image.size)
    left, top = round((width - SIZE) / 2), round((height - SIZE) / 2)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.array(image.crop((left, top, left + SIZE, top + SIZE)))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


# --- the ways: each opens what it reads, and gives what makes an epoch ---------------------------------


def bound(work: Path, threads: int) -> Epoch:
    files = [file.read_bytes() for file in photos(work)]

    def decode(files: list[bytes]) -> tuple[torch.Tensor]:
        torch.set_num_threads(1)
        memory, out = np.empty(1 << 22, np.uint8), torch.empty(1, 3, SIZE, SIZE, dtype=torch.uint8)
        for file in files:
            height, width, *_ = simplejpeg.decode_jpeg_header(file)
            # A side keeps 1.5 times the pixels that it needs.
            by = next((by for by in (8, 4, 2) if min(height, width) >= by * 1.5 * SIZE), 1)
            least = {"min_height": -(-height // by), "min_width": -(-width // by)}
            picture = torch.from_numpy(simplejpeg.decode_jpeg(file, strict=True, buffer=memory, **least))
            sides = [side * SIZE // min(height, width) for side in (height, width)]
            top, left = (round((side - SIZE) / 2) for side in sides)
            planes = picture[None].permute(0, 3, 1, 2)
            resized = torch.nn.functional.interpolate(planes, sides, mode="bilinear", antialias=True)
            out.copy_(resized[..., top : top + SIZE, left : left + SIZE])
        return (out.expand(len(files), -1, -1, -1),)

    def epoch() -> Iterable[Any]:
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(decode, [files[k::threads] for k in range(threads)])

    return epoch


def ours(work: Path) -> edcache.CachedDataset:
    decoding = edcache.Decoding("tensor", size=SIZE, crop="center")
    return edcache.CachedDataset.from_cache(work / "photos.zip", decode=decoding)


def loader(work: Path, threads: int) -> Epoch:
    loader = ours(work).loader(BATCH, shuffle=True, num_threads=threads)
    return lambda: ((batch["image"],) for batch in loader)


def data_loader(work: Path, workers: int) -> Epoch:
    loader = DataLoader(ours(work), BATCH, shuffle=True, num_workers=workers)
    return lambda: ((batch["image"],) for batch in loader)


def folder(work: Path, workers: int) -> Epoch:
    loader = DataLoader(Photos(work, cut), BATCH, shuffle=True, num_workers=workers)
    return lambda: loader


def ffcv(work: Path, workers: int) -> Epoch:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import CenterCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    # It encodes the pixels again, with the same quality.
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=QUALITY), "label": IntField()}
    path = str(work / "photos.beton")
    DatasetWriter(path, fields, num_workers=workers).from_indexed_dataset(Photos(work, np.array))
    image = [CenterCropRGBImageDecoder((SIZE, SIZE), ratio=224 / 256), ToTensor(), ToTorchImage()]
    loader = Loader(
        path,
        batch_size=BATCH,
        num_workers=workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": image},
    )
    return lambda: loader


def webdataset(work: Path, workers: int) -> Epoch:
    import webdataset as wds

    files, shards = photos(work), 8
    with wds.ShardWriter(str(work / "%02d.tar"), maxcount=-(-len(files) // shards), verbose=0) as sink:
        for index, file in enumerate(files):
            sink.write({"__key__": f"{index:08d}", "jpg": file.read_bytes(), "cls": label(file)})
    tars = sorted(map(str, work.glob("*.tar")))
    dataset = wds.WebDataset(tars, shardshuffle=len(tars)).shuffle(1000).decode("pil").to_tuple("jpg", "cls")
    dataset = dataset.map_tuple(cut).batched(BATCH, collation_fn=torch.utils.data.default_collate)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers)
    return lambda: loader


PEERS = {"ffcv": ffcv, "webdataset": webdataset}
WAYS = {
    "bound: decode and resize, threads": bound,
    "edcache, loader, threads": loader,
    "edcache, DataLoader, workers": data_loader,
    "FFCV, its loader, threads": ffcv,
    "webdataset, WebLoader, workers": webdataset,
    "files by Pillow, DataLoader, workers": folder,
}


# --- measured ---------------------------------------------------------------------------------------------

opened = functools.cache(lambda way, *where: WAYS[way](*where))


def processor_seconds() -> float:
    """Of this process, and of those of its children that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def epoch(way: str, work: Path, workers: int, count: int) -> tuple[float, float]:
    """Images a second of an epoch, and a second of processor time of this process and of workers."""
    multiprocessing.set_start_method("fork", force=True)
    batches = opened(way, work, workers)()
    wall, busy = time.perf_counter(), processor_seconds()
    seen = 0
    for batch in batches:
        assert batch[0].shape[1:] == (3, SIZE, SIZE)
        seen += len(batch[0])
    wall, busy = time.perf_counter() - wall, processor_seconds() - busy
    assert seen == count
    # A DataLoader has waited for its workers to end.
    return count / wall, count / busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--shapes", type=int, default=500, help="different ones")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="or threads, of each way")
    parser.add_argument("--work", type=Path, help="where the files go (default: a temporary folder)")
    parser.add_argument("--peers", nargs="*", default=[], choices=list(PEERS), help="to be installed")
    options = parser.parse_args()
    from benchmark.install import install
    from benchmark.peers import BY_NAME

    missing = install([BY_NAME[name] for name in options.peers])
    for name, reason in missing.items():
        print(f"without {name}: {reason}")
    left_out = [way for name, way in PEERS.items() if name not in options.peers or name in missing]
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="edcache-images-", dir=options.work) as place:
        work = Path(place)
        generate(work / "tree", options.count, options.shapes)
        nbytes = sum(file.stat().st_size for file in photos(work))
        edcache.CachedDataset(
            edcache.image_folder(work / "tree"), work / "photos.zip", progress=False
        ).close()
        over = (work / "photos.zip").stat().st_size / nbytes - 1
        print(f"{options.count:,} files of {nbytes / options.count / 1e3:.0f} kB; the archive: {over:+.2%}\n")
        todo = (work, options.workers, options.count)
        own = {name: ProcessPoolExecutor(1, spawn) for name, way in WAYS.items() if way not in left_out}
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in own}
        for turn in range(options.repeats + 1):
            for name, pool in own.items():
                rates = pool.submit(epoch, name, *todo).result()
                if turn:
                    taken[name].append(rates)
        for pool in own.values():
            pool.shutdown()
    bounds = [busy for _, busy in next(iter(taken.values()))]
    print(f"| {options.workers} threads or workers | images/s | a second of processor time | of the bound |")
    print("|---|---:|---:|---:|")
    for name, rates in taken.items():
        rate, busy = zip(*rates, strict=True)
        of = statistics.median(a / b for a, b in zip(busy, bounds, strict=True))
        print(f"| {name} | {statistics.median(rate):,.0f} | {statistics.median(busy):,.0f} | {of:.2f} |")


if __name__ == "__main__":
    main()
