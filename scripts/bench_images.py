"""Images a second of each decoder, and of whole epochs beside torchvision's ImageFolder: all in one run.

    python scripts/bench_images.py [--count 2000] [--size 500x375] [--repeats 3] [--work DIR]

Medians of interleaved rounds, over files that are in memory. What is not installed is left out, and said.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

import edcache

BATCH = 256


def generate(folder: Path, count: int, width: int, height: int) -> None:
    """JPEGs of smoothed noise with grain, which take about as many bytes as photographs of their size."""
    rng = np.random.default_rng(0)
    files = []
    for _ in range(min(count, 64)):
        coarse = Image.fromarray(rng.integers(0, 256, (height // 16, width // 16, 3), np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.float32)
        pixels = (smooth + rng.normal(0, 14, smooth.shape)).clip(0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=92)
        files.append(buffer.getvalue())
    for k in range(count):
        file = folder / f"class{k % 10}" / f"{k:06d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(files[k % len(files)])


def decoders(archive: Path) -> dict[str, Callable[[], int]]:
    """One thread, one image after the other, to uint8 [C, H, W]; each gives the number of its images."""
    files = [s["image"].data for s in edcache.CachedDataset.from_cache(archive, decode=None)[:400]]

    def run(decode: Callable[[bytes], object]) -> Callable[[], int]:
        return lambda: sum(decode(file) is not None for file in files)

    def ours(library: str) -> Callable[[], int]:
        decoding = edcache.Decoding("tensor", library=library)
        return run(lambda file: edcache.ImageFile(file).decode(decoding))

    found = {"decode: Pillow": ours("pillow")}
    try:
        import simplejpeg  # noqa: F401

        found["decode: simplejpeg"] = ours("simplejpeg")
    except ImportError:
        print("simplejpeg is not installed")
    try:
        from torchvision.io import decode_jpeg

        found["decode: torchvision"] = run(
            lambda file: decode_jpeg(torch.frombuffer(bytearray(file), dtype=torch.uint8)).contiguous()
        )
    except (ImportError, RuntimeError) as error:
        print(f"torchvision is not installed: {error}")
    return found


def epochs(folder: Path, archive: Path, workers: int) -> dict[str, Callable[[], int]]:
    """Shuffled epochs of collated batches; each gives the number of its images."""

    def count(loader: object) -> int:
        return sum(len(batch["image"] if isinstance(batch, dict) else batch[0]) for batch in loader)

    ds = edcache.CachedDataset.from_cache(archive, decode="tensor")
    found = {
        f"epoch: edcache, loader, {workers} threads": lambda: count(
            ds.loader(BATCH, shuffle=True, num_threads=workers)
        ),
        f"epoch: edcache, DataLoader, {workers} workers": lambda: count(
            DataLoader(ds, BATCH, shuffle=True, num_workers=workers)
        ),
    }
    cut = edcache.Decoding("tensor", size=224, crop="center")
    sized = edcache.CachedDataset.from_cache(archive, decode=cut)
    found[f"epoch: edcache to 224, loader, {workers} threads"] = lambda: count(
        sized.loader(BATCH, shuffle=True, num_threads=workers)
    )
    try:
        from torchvision.datasets import ImageFolder
        from torchvision.transforms import PILToTensor

        theirs = ImageFolder(folder, PILToTensor())
        found[f"epoch: ImageFolder, DataLoader, {workers} workers"] = lambda: count(
            DataLoader(theirs, BATCH, shuffle=True, num_workers=workers)
        )
    except (ImportError, RuntimeError):
        pass
    return found


def measured(runs: dict[str, Callable[[], int]], repeats: int) -> dict[str, tuple[float, float]]:
    """Images a second, and processors that this process kept busy: medians."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            wall, busy = time.perf_counter(), time.process_time()
            images = run()
            wall = time.perf_counter() - wall
            found[name].append((images / wall, (time.process_time() - busy) / wall))
    return {
        name: (statistics.median(r for r, _ in taken), statistics.median(b for _, b in taken))
        for name, taken in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--size", default="500x375")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, help="where the files go (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edcache-images-", dir=options.work) as work:
        folder, archive = Path(work) / "tree", Path(work) / "images.zip"
        generate(folder, options.count, *map(int, options.size.split("x")))
        nbytes = sum(file.stat().st_size for file in folder.rglob("*.jpg"))
        began = time.perf_counter()
        edcache.CachedDataset(edcache.image_folder(folder), archive, progress=False).close()
        seconds, over = time.perf_counter() - began, archive.stat().st_size / nbytes - 1
        print(f"{options.count:,} files of {nbytes / options.count / 1e3:.1f} kB; archive {over:+.2%}")
        print(f"{'fill':42} {options.count / seconds:8,.0f} images/s")
        torch.set_num_threads(1)
        runs = decoders(archive) | epochs(folder, archive, options.workers)
        for name, (rate, busy) in measured(runs, options.repeats).items():
            own = f"{rate / busy:8,.0f} a second of processor time" if "workers" not in name else ""
            print(f"{name:42} {rate:8,.0f} images/s{own}")


if __name__ == "__main__":
    main()
