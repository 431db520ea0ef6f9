"""The peers of scripts/bench far: each writes the samples its own way, and reads them through the same wire.

webdataset reads plain http, by curl. litdata and MDS read object stores alone, no plain http(s): they take
nginx for an S3, as some ways of edcache do. They need no more of the protocol than HEAD and GET, and nginx
looks at no key and no signature. What is not set here is as each has it by default; the number of shards is
the same for all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

BATCH = 64
os.environ.update(
    AWS_ACCESS_KEY_ID="any",
    AWS_SECRET_ACCESS_KEY="any",
    AWS_DEFAULT_REGION="us-east-1",
)


def sample(n: int, nbytes: int) -> dict[str, Any]:
    return {"x": np.full(nbytes, n % 251, np.uint8), "n": n}


def installed(names: list[str]) -> list[str]:
    """Install them; who cannot be is left out, with a line."""
    from benchmark.install import install
    from benchmark.peers import BY_NAME

    missing = install([BY_NAME[name] for name in names])
    if "webdataset" in names and not shutil.which("curl"):
        missing["webdataset"] = "it reads http by curl; install it: apt-get install curl"
    for name, reason in missing.items():
        print(f"without {name}: {reason}")
    return [name for name in names if name not in missing]


def s3(url: str) -> tuple[str, str]:
    """The endpoint, and the URL behind it: the first folder is the bucket."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}", f"s3:/{parts.path}"


class LitData:
    """Chunks by `optimize`, read by StreamingDataset and StreamingDataLoader."""

    @staticmethod
    def write(folder: Path, count: int, nbytes: int, shards: int) -> None:
        from litdata import optimize

        made, each = partial(sample, nbytes=nbytes), -(-count // shards)
        optimize(made, list(range(count)), str(folder), chunk_size=each, num_workers=1, verbose=False)

    @staticmethod
    def batches(url: str, local: str, is_shuffled: bool, workers: int, shards: int) -> Iterable[Any]:
        from litdata import StreamingDataLoader, StreamingDataset
        from litdata.streaming import downloader

        # There is no option for an S3 without TLS.
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
        endpoint, remote = s3(url)
        options = {"endpoint_url": endpoint}
        ds = StreamingDataset(
            remote, cache_dir=local, shuffle=is_shuffled, drop_last=False, storage_options=options
        )
        return StreamingDataLoader(ds, batch_size=BATCH, num_workers=workers)


class Mds:
    """Arrays of declared shape, without compression and hashes, read by StreamingDataset."""

    @staticmethod
    def write(folder: Path, count: int, nbytes: int, shards: int) -> None:
        from benchmark.peers.mds import MDSWriter

        columns = {"x": f"ndarray:uint8:{nbytes}", "n": "int"}
        size = (
            -(-count // shards) * (nbytes + 12) + 1000
        )  # a head, and of each sample the number and an offset
        with MDSWriter(out=str(folder), columns=columns, size_limit=size) as writer:
            for n in range(count):
                writer.write(sample(n, nbytes))

    @staticmethod
    def batches(url: str, local: str, is_shuffled: bool, workers: int, shards: int) -> Iterable[Any]:
        from benchmark.peers.mds import StreamingDataset, clean_stale_shared_memory
        from torch.utils.data import DataLoader

        clean_stale_shared_memory()
        os.environ["S3_ENDPOINT_URL"], remote = s3(url)
        ds = StreamingDataset(remote=remote, local=local, shuffle=is_shuffled, batch_size=BATCH)
        for stream in ds.streams:
            # Forked workers would share its connection; without TLS they read parts of each other's answers.
            stream._downloader.clean_up()
        return DataLoader(ds, BATCH, num_workers=workers)


class WebDataset:
    """Tar shards, shuffled among each other and in a buffer of 1,000 samples. It keeps no copy."""

    @staticmethod
    def write(folder: Path, count: int, nbytes: int, shards: int) -> None:
        import webdataset

        folder.mkdir(parents=True)
        with webdataset.ShardWriter(
            str(folder / "%06d.tar"), maxcount=-(-count // shards), verbose=0
        ) as sink:
            for n in range(count):
                sink.write({"__key__": f"{n:08d}", "bin": sample(n, nbytes)["x"].tobytes()})

    @staticmethod
    def batches(url: str, local: str, is_shuffled: bool, workers: int, shards: int) -> Iterable[Any]:
        import webdataset
        from torch.utils.data import default_collate

        urls = [f"{url}/{n:06d}.tar" for n in range(shards)]
        ds = webdataset.WebDataset(urls, shardshuffle=shards if is_shuffled else False)
        ds = ds.shuffle(1000 if is_shuffled else 0).map(_record).batched(BATCH, default_collate)
        return webdataset.WebLoader(ds, batch_size=None, num_workers=workers)


def _record(record: dict[str, Any]) -> dict[str, Any]:
    return {"x": np.frombuffer(record["bin"], np.uint8), "n": int(record["__key__"])}


PEERS = {"litdata": LitData, "mds": Mds, "webdataset": WebDataset}
