"""The process of one system with one workload.

It imports the system, says so, and then answers every line that it is sent, a JSON object with "do",
by one line of JSON. What a system needs a fresh process for, it does in a fork of itself.

    python -m benchmark.worker SYSTEM WORKLOAD FOLDER_OF_THE_WORKLOAD FOLDER_OF_THE_SYSTEM
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmark import measure
from benchmark.peers import BY_NAME, System
from benchmark.peers.base import Peer
from benchmark.workloads import Workload

Answer = dict[str, Any]


class Worker:
    """Does one thing after the other with one peer.

    Args:
        make: a new peer, not opened.
    """

    def __init__(self, make: Callable[[], Peer]) -> None:
        self.make = make
        self.peer: Peer | None = None
        self.loader: Any = None
        self.before: dict[str, int] = {}

    def do(self, command: Answer) -> Answer:
        """Carry out one command; its answer."""
        return measure.answered(lambda: getattr(self, f"do_{command.pop('do')}")(**command))

    def do_build(self) -> Answer:
        return self._in_child(measure.build)

    def do_check(self) -> Answer:
        def opened_and_checked(peer: Peer) -> Answer:
            peer.open()
            measure.check(peer)
            measure.check_size(peer)
            return {}

        return self._in_child(opened_and_checked)

    def do_fresh(self) -> Answer:
        return self._in_child(measure.open_first)

    def do_select(self) -> Answer:
        return self._in_child(measure.select)

    def _in_child(self, function: Callable[[Peer], Answer]) -> Answer:
        def closed_after() -> Answer:
            peer = self.make()
            try:
                return function(peer)
            finally:
                peer.close()

        return measure.in_child(closed_after)

    def do_open(self) -> Answer:
        peer = self.make()
        self.before = measure.memory()
        peer.open()
        self.peer = peer
        return {}

    def do_read(self, seed: int) -> Answer:
        return measure.read(self._opened(), seed)

    def do_start(self, kind: str, number: int) -> Answer:
        """Make a loader and run the epoch that is not counted, in which workers start."""
        peer = self._opened()
        make = peer.loader if kind == "workers" else peer.threaded_loader
        self.loader = make(peer.workload.batch_size, number)
        began = time.perf_counter()
        measure.epoch(peer, self.loader)
        return {"warm": time.perf_counter() - began}

    def do_epoch(self, seed: int) -> Answer:
        torch.manual_seed(seed)
        return measure.epoch(self._opened(), self.loader)

    def do_stop(self) -> Answer:
        self.loader = None
        gc.collect()
        return {}

    def do_memory(self) -> Answer:
        now = measure.memory()
        return {kind: max(0, now[kind] - self.before[kind]) for kind in now}

    def do_size(self) -> Answer:
        size = measure.size_on_disk(self._opened().folder)
        return {"size": size} if size else {"absent": True}

    def _opened(self) -> Peer:
        assert self.peer is not None, "nothing was opened"
        return self.peer


def _version(system: System) -> str | None:
    return importlib.metadata.version(system.package) if system.package else None


def main(name: str, workload: str, folder: str, archive: str) -> None:
    # Systems print; the answers go where nothing of theirs does.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Two torch threads on a machine whose other core is busy are slower than one.
    torch.set_num_threads(1)

    worker: Worker | None = None

    def ready() -> Answer:
        nonlocal worker
        kind = BY_NAME[name].load()
        worker = Worker(lambda: kind(Workload(workload, Path(folder)), Path(archive)))
        return {"version": _version(BY_NAME[name])}

    print(json.dumps(measure.answered(ready)), file=answers, flush=True)
    for line in sys.stdin:
        assert worker is not None
        print(json.dumps(worker.do(json.loads(line))), file=answers, flush=True)
    if worker is not None and worker.peer is not None:
        worker.loader = None
        worker.peer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
