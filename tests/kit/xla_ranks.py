"""What ranks of torch_xla do with one cache; run as a script, for a launch takes a process without a device.

    python xla_ranks.py launch FOLDER       torch_xla.launch: on a CPU, ranks are threads of one process
    python xla_ranks.py processes FOLDER    a process for each rank, each with a device of its own

Each rank writes what it saw to FOLDER/rank-<r>.json.
"""

import json
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import torch
from filled import note
from torch.utils.data import DataLoader

import edcache
from edcache.compat.torch_xla import CachedDataset as OldCachedDataset
from edcache.samplers import ChunkShuffle

COUNT, RANKS, BATCH = 240, 4, 10


class Source:
    in_memory_keys = ("label",)

    def __init__(self, log):
        self.log = str(log)

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        note(self.log, i)
        time.sleep(0.001)
        return sample(i)


def sample(i):
    """A linear problem: y = x @ (1, 2, 3), of numbers that bfloat16 holds exactly."""
    x = torch.tensor([i % 5, i % 3, i % 7], dtype=torch.bfloat16)
    return {"x": x, "y": (x.float() @ torch.tensor([1.0, 2.0, 3.0])), "label": i}


def train(batches, device, sync):
    """The loss of each step, and the samples in their order."""
    model = torch.nn.Linear(3, 1).to(device)
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()  # threads share one generator
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, seen = [], []
    for batch in batches:
        assert batch["x"].dtype == torch.bfloat16
        assert batch["x"].device == device
        loss = (model(batch["x"].float())[:, 0] - batch["y"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sync()
        losses.append(loss.item())
        seen += zip(batch["label"].tolist(), batch["x"].tolist(), batch["y"].tolist(), strict=True)
    return losses, seen


def is_own(seen):
    """Whether each is what the source gives."""
    return all(x == sample(i)["x"].tolist() and y == float(sample(i)["y"]) for i, x, y in seen)


def work(rank, ranks, folder):
    """One rank: fills, trains by two loaders, and tells."""
    import torch_xla
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    ds = edcache.CachedDataset(Source(folder / "log"), folder / "shared.zip", sync=0.05)
    device = torch_xla.device()
    order = ChunkShuffle(ds, seed=3, num_replicas=ranks, rank=rank)
    theirs = MpDeviceLoader(DataLoader(ds, BATCH, sampler=order), device)
    losses, seen = train(theirs, device, torch_xla.sync)
    ours = ds.loader(BATCH, sampler=order, device="xla")
    ours.set_epoch(0)
    own_losses, own_seen = train(ours, device, torch_xla.sync)

    old = OldCachedDataset(Source(folder / "old-log"), str(folder / "old"))
    old.warmup()
    memory = edcache.CachedDataset(Source(folder / "memory-log"), f"shm://xla{str(folder).replace('/', '-')}")
    lazy = edcache.CachedDataset(Source(folder / "lazy-log"), folder / "lazy.zip", lazy=True)
    mine = range(rank, COUNT, ranks)
    lazy_seen = all(lazy[i]["label"] == i for i in mine)
    lazy.warmup()

    told = {
        "rank": rank,
        "ranks": ranks,
        "process": os.getpid(),
        "thread": threading.get_ident(),
        "device": str(device),
        "losses": losses,
        "own_losses": own_losses,
        "seen": sorted(i for i, _, _ in seen),
        "is_same": seen == own_seen,
        "is_own": is_own(seen) and is_own(own_seen),
        "old": old.complete and old[rank]["label"] == rank,
        "memory": memory.complete and memory.batch(range(COUNT))["label"].tolist() == list(range(COUNT)),
        "lazy": lazy_seen and lazy.complete,
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(told))


def launched(ordinal, folder):
    from torch_xla import runtime

    assert ordinal == runtime.global_ordinal()
    work(ordinal, runtime.world_size(), folder)


def process(rank, folder):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "CPU_NUM_DEVICES": "1"}
    work(rank, 2, folder)


def main(how, folder):
    if how == "launch":
        import torch_xla

        torch_xla.launch(launched, args=(folder,))
        return
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=process, args=(rank, folder)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
