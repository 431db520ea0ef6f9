"""First epochs over an archive that is far away: scripts/bench far [--help]

nginx serves the archive, and a proxy before it delays every byte by half a round trip, lets so many bytes a
second through for all connections together, and counts. A new connection takes a round trip more. Every epoch
is that of a new process, which has read a small archive that is near.

First batch: round trips from before the archive is opened. Rate: bytes of the samples a second of the epoch,
opening included, as a part of the proxy's rate. Bytes: as a part of those of the samples. All are medians of
turns: each way once, then each once again.

far_peers.py has the peers, which are installed. Without --peers there are none.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import re
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from far_peers import BATCH, PEERS, installed, s3, sample

SPAWN = multiprocessing.get_context("spawn")
Row = tuple[float, ...]
NGINX = """
daemon off; {user} worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off; keepalive_requests 100000; client_body_temp_path {folder}/t; proxy_temp_path {folder}/t;
    fastcgi_temp_path {folder}/t; uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
    server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
}}
"""


def proxy(port: int, server: int, seconds: Any, rate: float, counts: Any) -> None:
    """Serve `port` by `server` for ever. seconds: of a round trip. counts: requests, bytes, connections."""
    free = 0.0

    async def deliver(queue: asyncio.Queue[tuple[float, bytes]], out: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while (item := await queue.get())[1]:
                await asyncio.sleep(max(0, item[0] - time.monotonic()))
                out.write(item[1])
                await out.drain()
        out.close()

    async def pass_on(source: asyncio.StreamReader, out: asyncio.StreamWriter, is_answer: bool) -> None:
        nonlocal free
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)
        delivery = asyncio.ensure_future(deliver(queue, out))
        opened = 0.0 if is_answer else time.monotonic() + seconds.value
        with suppress(OSError):
            while data := await source.read(1 << 16):
                at = max(time.monotonic(), opened)
                if is_answer:
                    free = at = max(free, at) + len(data) / rate
                    counts[1] += len(data)
                    # What the wire has not taken yet stays with the server.
                    await asyncio.sleep(max(0, free - time.monotonic() - 0.02))
                else:
                    counts[0] += data.count(b"GET ") + data.count(b"HEAD ")
                await queue.put((at + seconds.value / 2, data))
        await queue.put((0, b""))
        await delivery

    async def connected(source: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        counts[2] += 1
        answers, questions = await asyncio.open_connection("127.0.0.1", server)
        await asyncio.gather(pass_on(source, questions, False), pass_on(answers, out, True))

    async def serve() -> None:
        await (await asyncio.start_server(connected, "127.0.0.1", port)).serve_forever()

    asyncio.run(serve())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(600):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise SystemExit("a server does not start")


@contextmanager
def far(folder: Path, rate: float) -> Iterator[tuple[str, str, Any, Any]]:
    """Gives the URLs of `folder`/www, far and near; the seconds of a round trip, to be set; the counts."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        raise SystemExit("it needs nginx; install it: apt-get install nginx-light")
    near, port = free_port(), free_port()
    user = "" if Path("/proc/self").stat().st_uid else "user root;"
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=near, user=user))
    server = subprocess.Popen(
        [program, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    )
    seconds, counts = SPAWN.Value("d", 0.0, lock=False), SPAWN.Array("q", 3, lock=False)
    between = SPAWN.Process(target=proxy, args=(port, near, seconds, rate, counts), daemon=True)
    between.start()
    try:
        wait_for(near)
        wait_for(port)
        yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{near}", seconds, counts
    finally:
        between.terminate()
        server.terminate()
        server.wait()


class Way(NamedTuple):
    """How it is read, and by how many processes of their own at once."""

    reader: str
    is_shuffled: bool = False
    workers: int = 0
    has_copy: bool = False
    max_bytes: int | None = None
    readers: int = 1
    epochs: int = 1
    is_s3: bool = False


def ours(url: str, local: str, way: Way) -> Any:
    from torch.utils.data import DataLoader

    from edcache import CachedDataset
    from edcache.samplers import ChunkShuffle

    options = {"local": local, "max_bytes": way.max_bytes} if way.has_copy else {"local": False}
    if way.is_s3:
        endpoint, url = s3(url)
        options["storage_options"] = {"endpoint_url": endpoint}
    ds = CachedDataset.from_cache(url, **options)
    sampler = ChunkShuffle(ds) if way.is_shuffled else None
    if way.reader == "loader":
        return ds.loader(BATCH, sampler=sampler)
    return DataLoader(ds, BATCH, sampler=sampler, num_workers=way.workers)


def epochs(queue: Any, near: str, url: str, local: str, way: Way, shards: int, count: int) -> None:
    """Read epochs, and put the seconds to the first batch and to the end of each."""

    def opened(url: str, local: str) -> Any:
        if way.reader in PEERS:
            return PEERS[way.reader].batches(url, local, way.is_shuffled, way.workers, shards)
        return ours(url, local, way)

    multiprocessing.set_start_method("fork", force=True)
    warnings.filterwarnings("ignore", message=".*NumPy array is not writable")
    for _ in opened(near, f"{local}/near"):
        pass
    started = time.perf_counter()
    batches = opened(url, f"{local}/far")
    for _ in range(way.epochs):
        first, seen = 0.0, 0
        for batch in batches:
            first = first or time.perf_counter() - started
            assert bool((batch["x"][:, 0] == (batch["n"] % 251)).all())
            seen += len(batch["n"])
        # MDS repeats samples where workers would get different numbers of them.
        assert seen == count or (way.reader == "mds" and seen > count)
        queue.put((first, time.perf_counter() - started))
        started = time.perf_counter()


def plain(queue: Any, url: str) -> None:
    """Fetch the whole object by 8 connections, 4 MiB a request: what the wire gives to anybody."""
    parts, started = iter(range(0, 1 << 40, 1 << 22)), time.perf_counter()

    def fetch(_: int) -> float:
        first, connection = 0.0, HTTPConnection(urlsplit(url).netloc)
        for start in parts:
            wanted = {"Range": f"bytes={start}-{start + (1 << 22) - 1}"}
            connection.request("GET", urlsplit(url).path, headers=wanted)
            answer = connection.getresponse()
            answer.read()
            first = first or time.perf_counter() - started
            if answer.status != 206:
                break
        return first

    with ThreadPoolExecutor(8) as pool:
        first = min(pool.map(fetch, range(8)))
    queue.put((first, time.perf_counter() - started))


def write(folder: Path, count: int, nbytes: int, shards: int) -> None:
    from edcache import CacheWriter

    with CacheWriter(f"{folder}.zip") as writer:
        for n in range(count):
            writer.append(sample(n, nbytes))


def filled(count: int, most: int) -> int:
    """Count the shards that samples fill, if each but the last has as many: 100 samples fill 15 of 16."""
    return -(-count // -(-count // most))


def measured(place: tuple[str, str, Any, Any], name: str, ms: float, way: Way, *args: int) -> list[Row]:
    """For each epoch: seconds to the first batch and to the end, bytes and requests."""
    url, near, seconds, counts = place
    seconds.value, queue, rows = ms / 1000, SPAWN.Queue(), []
    path, end = (f"{way.reader}/", "") if way.reader in PEERS else ("edcache/", ".zip")
    url, near = f"{url}/{path}{name}{end}", f"{near}/{path}small{end}"
    with tempfile.TemporaryDirectory() as ssd:
        if way.reader == "plain":
            processes = [SPAWN.Process(target=plain, args=(queue, url))]
        else:
            to_do = (queue, near, url, ssd, way, *args)
            processes = [SPAWN.Process(target=epochs, args=to_do) for _ in range(way.readers)]
        before = list(counts)
        for process in processes:
            process.start()
        for _ in range(way.epochs):
            ended = [queue.get(timeout=120) for _ in processes]
            after = list(counts)
            rows.append((*map(max, zip(*ended, strict=True)), after[1] - before[1], after[0] - before[0]))
            before = after
        for process in processes:
            process.join()
    return rows


def ways(mb: float, peers: list[str]) -> dict[str, Way]:
    """All of them, by name."""
    named = {"plain download": Way("plain")}
    orders = (("in order", False), ("ChunkShuffle", True))
    for (behind, has_copy), (order, is_shuffled) in product(((", local=False", False), ("", True)), orders):
        named[f"loader, {order}{behind}"] = Way("loader", is_shuffled, 0, has_copy)
        for n in (0, 2):
            way = Way("DataLoader", is_shuffled, n, has_copy)
            named[f"DataLoader, {n} workers, {order}{behind}"] = way
    for order, is_shuffled in orders:
        named[f"loader, {order}, S3"] = Way("loader", is_shuffled, 0, True, is_s3=True)
    for peer, is_shuffled, n in product(peers, (False, True), (0, 2)):
        order = "shuffled" if is_shuffled else "in order"
        named[f"{peer}, {n} workers, {order}"] = Way(peer, is_shuffled, n)
    for n in (4, 8):
        named[f"{n} readers, ChunkShuffle"] = Way("loader", True, 0, True, readers=n)
    third = int(mb * 1e6 / 3)
    named["a third of the room, ChunkShuffle"] = Way("loader", True, 0, True, third, epochs=2)
    return named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=200, help="of the samples")
    parser.add_argument("--rate", type=float, default=50, help="MB/s of the wire")
    parser.add_argument("--ms", type=float, nargs="*", default=[20, 100], help="of a round trip")
    parser.add_argument("--samples", type=int, nargs="*", default=[10_000, 100_000], help="bytes of one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose name this regular expression finds")
    parser.add_argument(
        "--peers", nargs="*", default=[], choices=list(PEERS), help="to be installed, and read"
    )
    parser.add_argument("--shards", type=int, default=16, help="of each peer")
    options = parser.parse_args()
    peers = installed(options.peers)
    chosen = {n: way for n, way in ways(options.mb, peers).items() if re.search(options.only, n)}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("edcache", *peers):
            write_one = PEERS[kind].write if kind in PEERS else write
            www = Path(folder, "www", kind)
            www.mkdir(parents=True)
            write_one(www / "small", 64, 100, options.shards)
            for nbytes in options.samples:
                write_one(www / str(nbytes), int(options.mb * 1e6 / nbytes), nbytes, options.shards)
        print("| samples | round trip | way | first batch, round trips | rate | bytes | requests |")
        print("|---|---|---|---|---|---|---|")
        with far(Path(folder), options.rate * 1e6) as place:
            for nbytes, ms in product(options.samples, options.ms):
                count = int(options.mb * 1e6 / nbytes)
                shards = filled(count, options.shards)
                turns: dict[str, list[list[Row]]] = {name: [] for name in chosen}
                for _, (name, way) in product(range(options.repeats), chosen.items()):
                    turns[name].append(measured(place, str(nbytes), ms, way, shards, count))
                for name, taken in turns.items():
                    for rows in zip(*taken, strict=True):
                        first, whole, sent, asked = map(statistics.median, zip(*rows, strict=True))
                        rate = count * nbytes / whole / options.rate / 1e6
                        part = sent / count / nbytes
                        row = f"{name} | {first * 1000 / ms:.1f} | {rate:.2f} | {part:.3f} | {asked:,.0f}"
                        print(f"| {nbytes / 1000:.0f} kB | {ms:.0f} ms | {row} |", flush=True)


if __name__ == "__main__":
    main()
