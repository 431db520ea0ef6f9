"""The main job on real images: cache, be killed, resume, open, filter, read in batches."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import edcache

CACHE = Path(os.environ.get("EDCACHE_QUICKSTART_DIR", "cache"))


class Enlarged(Dataset):
    """Small images, enlarged and smoothed along their edges: a __getitem__ that is worth caching."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict:
        image = torch.from_numpy(self.images[index].astype(np.float32))[None, None]
        image = torch.nn.functional.interpolate(image, scale_factor=4, mode="bicubic")
        for _ in range(20):
            # Perona and Malik's diffusion: smooth, but not across edges.
            flows = (torch.roll(image, shift, axis) - image for axis in (2, 3) for shift in (-1, 1))
            image = image + sum(flow * torch.exp(-((flow / 20) ** 2)) for flow in flows) / 8
        return {"image": image[0].clamp(0, 255).to(torch.uint8), "label": int(self.labels[index])}


class Pictures(Dataset):
    """A folder of image files; the class is the name of the folder that a file lies in."""

    SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise SystemExit(f"--data {root}: no such folder; or digits")
        self.root = root
        self.files = sorted(p for p in root.rglob("*") if p.suffix.lower() in self.SUFFIXES)
        if not self.files:
            raise SystemExit(f"{root}: no image files ({', '.join(self.SUFFIXES)}) in it")
        self.classes = sorted({p.parent.name for p in self.files})

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict:
        from PIL import Image

        file = self.files[index]
        with Image.open(file) as picture:
            pixels = np.asarray(picture.convert("RGB").resize((224, 224)))
        return {
            "image": torch.from_numpy(pixels.transpose(2, 0, 1).copy()),
            "label": self.classes.index(file.parent.name),
            "file": str(file.relative_to(self.root)),
        }


@edcache.cachable(CACHE / "{data}.zip", in_memory_keys=["label"])
def images(data: str) -> Dataset:
    if data == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return Enlarged(digits.images * 16, digits.target)
    return Pictures(Path(data))


def fill_and_be_killed(arguments: list[str], path: str) -> float:
    """Start the same fill in another process and SIGKILL it half-way; returns the seconds it had."""
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, __file__, *arguments, "--only-fill"])
    while child.poll() is None and share_cached(path) < 0.5:
        time.sleep(0.1)
    child.send_signal(signal.SIGKILL)
    if child.wait() not in (0, -signal.SIGKILL):
        raise SystemExit("the fill failed; its error stands above")
    return time.perf_counter() - began


def share_cached(path: str) -> float:
    try:
        ds = edcache.CachedDataset.from_cache(path)
    except edcache.EdcacheError:
        return 0.0  # not created yet
    return 1 - len(ds.missing) / len(ds)


def epoch(ds: Dataset) -> tuple[int, float]:
    began = time.perf_counter()
    seen = sum(len(batch["label"]) for batch in DataLoader(ds, batch_size=256, shuffle=True))
    return seen, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits", help="digits, or a folder of images")
    parser.add_argument("--only-fill", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    # Two torch threads on a machine whose other core is busy are slower than one.
    torch.set_num_threads(1)
    if options.only_fill:
        images(options.data)
        return

    source = images.uncached(options.data)
    path = images.cache_path(options.data)
    Path(path).unlink(missing_ok=True)
    print(f"1. Caching {options.data} into {path}, and killing the fill half-way with SIGKILL")
    killed_after = fill_and_be_killed(sys.argv[1:], path)
    left = edcache.CachedDataset.from_cache(path, allow_partial=True)
    kept, total = len(left) - len(left.missing), len(left)
    print(
        f"   killed after {killed_after:.1f} s; the archive opens: {kept:,} of {total:,} samples are there\n"
    )

    print("2. The same call again")
    began = time.perf_counter()
    images(options.data)
    resumed = time.perf_counter() - began
    print(f"   {kept:,} samples kept, {total - kept:,} computed, {resumed:.1f} s\n")

    print("3. Opening the result without its source")
    began = time.perf_counter()
    ds = edcache.CachedDataset.from_cache(path)
    opened = time.perf_counter() - began
    print(f"   {ds!r}\n   opened in {opened * 1e3:.1f} ms, {os.path.getsize(path) / 1e6:.1f} MB\n")

    chosen = int(ds.labels["label"][0])
    began = time.perf_counter()
    view = ds.filter(label=chosen)
    filtered = time.perf_counter() - began
    print(f"4. Filtering label == {chosen} without reading a sample")
    print(f"   {len(view):,} samples in {filtered * 1e3:.1f} ms\n")

    print("5. Reading it through DataLoader(ds, batch_size=256, shuffle=True)")
    some = min(len(source), 500)
    began = time.perf_counter()
    for index in range(some):
        source[index]
    computing = (time.perf_counter() - began) / some * len(source)
    for name in ("first", "second"):
        seen, seconds = epoch(ds)
        print(f"   {name} epoch: {seen:,} samples in {seconds:.2f} s")
    print(
        f'\nLook inside: .venv/bin/edcache info "{path}"; .venv/bin/edcache view "{path}"; unzip -l "{path}"\n'
    )
    times = computing / seconds
    print(f"An epoch of {len(source):,} samples, {times:,.{0 if times > 10 else 1}f} times as fast:")
    for name, taken in {"computed": computing, "cached": seconds}.items():
        print(f"   {name:8} {taken:7.3f} s  {'█' * max(1, round(40 * taken / max(computing, seconds)))}")


if __name__ == "__main__":
    main()
