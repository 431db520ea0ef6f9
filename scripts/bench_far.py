"""First epochs over an archive that is far away: python scripts/bench_far.py [--help]

nginx serves the archive, and a proxy before it delays every byte by half a round trip, lets so many bytes a
second through for all connections together, and counts. A new connection takes a round trip more. Every epoch
is that of a new process, which has imported everything. First batch: round trips from before the archive is
opened. Rate: bytes of the archive a second of the epoch, opening included, as a part of the proxy's rate.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SPAWN = multiprocessing.get_context("spawn")
BATCH = 64
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
                    counts[0] += data.count(b"GET ")
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
    """How it is read: the loader, the order, options of `from_cache`, processes and epochs."""

    loader: str
    order: str
    options: dict[str, Any]
    readers: int = 1
    epochs: int = 1


def epochs(queue: Any, near: str, url: str, loader: str, order: str, options: dict[str, Any], n: int) -> None:
    """Read `n` epochs, and put the seconds to the first batch and to the end of each."""
    from torch.utils.data import DataLoader

    from edcache import CachedDataset
    from edcache.samplers import ChunkShuffle

    CachedDataset.from_cache(f"{near}/small.zip").batch([0])
    started = time.perf_counter()
    ds = CachedDataset.from_cache(url, **options)
    sampler = ChunkShuffle(ds) if order == "ChunkShuffle" else None
    batches: Any = ds.loader(BATCH, sampler=sampler)
    if loader == "DataLoader":
        batches = DataLoader(ds, BATCH, sampler=sampler, num_workers=2, multiprocessing_context="fork")
    for _ in range(n):
        first, seen = 0.0, 0
        for batch in batches:
            first = first or time.perf_counter() - started
            assert bool((batch["x"][:, 0] == (batch["n"] % 251)).all())
            seen += len(batch["n"])
        assert seen == len(ds)
        queue.put((first, time.perf_counter() - started))
        started = time.perf_counter()


def plain(queue: Any, url: str) -> None:
    """Fetch the whole object by 8 connections, 4 MiB a request: what the wire gives to anybody."""
    parts, started = iter(range(0, 1 << 40, 1 << 22)), time.perf_counter()

    def fetch(_: int) -> float:
        first, connection = 0.0, HTTPConnection(url.split("/")[2])
        for start in parts:
            wanted = {"Range": f"bytes={start}-{start + (1 << 22) - 1}"}
            connection.request("GET", f"/{url.split('/')[3]}", headers=wanted)
            answer = connection.getresponse()
            answer.read()
            first = first or time.perf_counter() - started
            if answer.status != 206:
                break
        return first

    with ThreadPoolExecutor(8) as pool:
        first = min(pool.map(fetch, range(8)))
    queue.put((first, time.perf_counter() - started))


def built(path: Path, nbytes: int, sample: int) -> None:
    from edcache import CacheWriter

    with CacheWriter(path) as writer:
        for n in range(nbytes // sample):
            x = np.full(sample, n % 251, np.uint8)
            writer.append({"x": x, "n": n})


def measured(place: tuple[str, str, Any, Any], name: str, ms: float, way: Way) -> list[tuple[float, ...]]:
    """For each epoch: seconds to the first batch and to the end, bytes and requests."""
    url, near, seconds, counts = place
    seconds.value, queue, rows = ms / 1000, SPAWN.Queue(), []
    with tempfile.TemporaryDirectory() as ssd:
        options = way.options | ({"local": ssd} if "local" in way.options else {})
        to_do = (queue, near, f"{url}/{name}", way.loader, way.order, options, way.epochs)
        if way.loader == "plain":
            processes = [SPAWN.Process(target=plain, args=(queue, f"{url}/{name}"))]
        else:
            processes = [SPAWN.Process(target=epochs, args=to_do) for _ in range(way.readers)]
        before = list(counts)
        for process in processes:
            process.start()
        for _ in range(way.epochs):
            ended = [queue.get(timeout=600) for _ in processes]
            after = list(counts)
            rows.append((*map(max, zip(*ended, strict=True)), after[1] - before[1], after[0] - before[0]))
            before = after
        for process in processes:
            process.join()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=200, help="of each archive")
    parser.add_argument("--rate", type=float, default=50, help="MB/s of the wire")
    parser.add_argument("--ms", type=float, nargs="*", default=[20, 100], help="of a round trip")
    parser.add_argument("--samples", type=int, nargs="*", default=[10_000, 100_000], help="bytes of one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="rows that have this in their name")
    options = parser.parse_args()
    local = {"local": ""}
    ways = {"plain download": Way("plain", "", {})}
    for copy, behind in (({}, ""), (local, ", local=")):
        for loader, order in product(("loader", "DataLoader"), ("in order", "ChunkShuffle")):
            ways[f"{loader}, {order}{behind}"] = Way(loader, order, copy)
    for n in (4, 8):
        ways[f"{n} readers, ChunkShuffle, local="] = Way("loader", "ChunkShuffle", local, n)
    third = local | {"max_bytes": int(options.mb * 1e6 / 3)}
    ways["a third of the room, ChunkShuffle"] = Way("loader", "ChunkShuffle", third, epochs=2)
    print("| samples | round trip | way | first batch, round trips | rate | bytes | requests |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        www = Path(folder, "www")
        www.mkdir()
        built(www / "small.zip", 1000, 100)
        for sample in options.samples:
            built(www / f"{sample}.zip", int(options.mb * 1e6), sample)
        with far(Path(folder), options.rate * 1e6) as place:
            for sample, ms, (name, way) in product(options.samples, options.ms, ways.items()):
                if options.only not in name:
                    continue
                nbytes = (www / f"{sample}.zip").stat().st_size
                runs = [measured(place, f"{sample}.zip", ms, way) for _ in range(options.repeats)]
                for rows in zip(*runs, strict=True):
                    first, whole, sent, asked = map(statistics.median, zip(*rows, strict=True))
                    rate = nbytes / whole / options.rate / 1e6
                    figures = f"{first * 1000 / ms:.1f} | {rate:.2f} | {sent / nbytes:.3f} | {asked:,.0f}"
                    print(f"| {sample / 1000:.0f} kB | {ms:.0f} ms | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
