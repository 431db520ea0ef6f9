"""torch_xla over a cache: what its loader gets, ranks that are threads or processes, and training.

scripts/test-xla installs torch_xla and runs these; elsewhere they are skipped.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from filled import computed
from scale import scaled
from torch.utils.data import DataLoader
from written import write
from xla_ranks import BATCH, COUNT, RANKS

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import CorruptRecordError

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(
        importlib.util.find_spec("torch_xla") is None,
        reason="torch_xla is not installed; run scripts/test-xla",
    ),
]

ROOT = Path(__file__).parents[2]
KIT = ROOT / "tests" / "kit"
DTYPES = (torch.bfloat16, torch.float32, torch.float16, torch.uint8, torch.int64, torch.int32, torch.bool)


@pytest.fixture(scope="module")
def device():
    os.environ["PJRT_DEVICE"] = "CPU"
    os.environ["CPU_NUM_DEVICES"] = "1"
    import torch_xla

    return torch_xla.device()


@pytest.fixture
def on_device(device):
    """Wraps a loader as a training on XLA does."""
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    return lambda loader, **options: MpDeviceLoader(loader, device, **options)


def sample(i):
    fields = {str(dtype)[6:]: (torch.arange(24) + i).remainder(97).to(dtype).view(2, 12) for dtype in DTYPES}
    return {
        **fields,
        "array": np.full(3, i, np.float32),
        "label": i,
        "nested": [torch.tensor(i), {"k": i / 2}],
    }


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("xla") / "a.zip"
    return write(path, map(sample, range(100)), in_memory_keys=["label"])


@pytest.fixture
def ds(archive):
    return CachedDataset.from_cache(archive)


def check(batch, indices, device=None):
    """Whether a batch is exactly the samples at those indices."""
    expected = [sample(i) for i in indices]
    for dtype in DTYPES:
        found = batch[str(dtype)[6:]]
        assert found.dtype == dtype
        assert device is None or found.device == device
        assert torch.equal(found.cpu(), torch.stack([one[str(dtype)[6:]] for one in expected]))
    assert batch["array"].cpu().tolist() == [[float(i)] * 3 for i in indices]
    assert batch["label"].tolist() == list(indices)
    assert batch["nested"][0].tolist() == list(indices)
    assert batch["nested"][1]["k"].tolist() == [i / 2 for i in indices]


WORKERS = {
    "none": {},
    "forked": {"num_workers": 2, "multiprocessing_context": "fork"},
    "forked and kept": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    "spawned and kept": {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
}


@pytest.mark.parametrize("workers", WORKERS)
def test_its_loader_gets_every_batch_of_a_data_loader(ds, on_device, device, workers, tally):
    view = ds.filter("label >= 10")
    loader = on_device(DataLoader(view, 8, **WORKERS[workers]))
    for _ in range(2):
        seen = 0
        for seen, batch in enumerate(loader, 1):
            start = 10 + 8 * (seen - 1)
            check(batch, range(start, min(start + 8, 100)), device)
        assert seen == len(loader) == 12
        tally("batches on an XLA device", seen)


def test_bfloat16_takes_the_bulk_path(archive, device, monkeypatch):
    monkeypatch.setattr("edcache.reader.group.Group.samples", None)
    batch = next(iter(DataLoader(CachedDataset(None, archive).select("bfloat16"), 50)))
    assert batch["bfloat16"].dtype == torch.bfloat16
    assert torch.equal(
        batch["bfloat16"].to(device).cpu(), torch.stack([sample(i)["bfloat16"] for i in range(50)])
    )


@pytest.mark.parametrize("queued", [1, 16])
def test_its_loader_may_queue_batches_of_ours(ds, on_device, device, queued, tally):
    loader = ds.loader(4, num_threads=2, shuffle=True, seed=7)
    theirs = on_device(loader, loader_prefetch_size=queued, device_prefetch_size=queued)
    for _ in range(3):
        seen = []
        for batch in theirs:
            check(batch, batch["label"].tolist(), device)
            seen += batch["label"].tolist()
        assert sorted(seen) == list(range(100))
        tally("batches on an XLA device", len(theirs))


def test_batches_that_it_queues_lie_in_memory_of_their_own(ds):
    from torch_xla.distributed import parallel_loader

    class Slow(parallel_loader.ParallelLoader):
        """Uploads nothing before all batches are queued."""

        def _worker(self, dqueue, threads):
            queued = []
            while (batch := dqueue.cpu_loader_queue.get()) is not None:
                queued.append(batch)
            for batch in queued:
                dqueue.queue.put(batch)
            dqueue.queue.close_write()

    loader = ds.loader(5, num_threads=2)
    queue = Slow(loader, ["cpu"], loader_prefetch_size=50, device_prefetch_size=50)
    for place in range(20):
        check(queue.next_item(torch.device("cpu")), range(5 * place, 5 * place + 5))
    queue.close()


@pytest.mark.parametrize("asked", ["xla", "its number"])
def test_our_loader_brings_batches_to_the_device(ds, device, asked, tally):
    loader = ds.loader(4, num_threads=3, prefetch=4, device="xla" if asked == "xla" else device)
    held = list(loader)  # on the device they are in memory of their own
    for place, batch in enumerate(held):
        check(batch, range(4 * place, 4 * place + 4), device)
    tally("batches on an XLA device", len(held))


def test_our_loader_uploads_while_the_training_runs_its_graphs(tmp_path, device, tally):
    import torch_xla

    write(tmp_path / "small.zip", ({"x": torch.full((3,), i), "label": i} for i in range(2000)))
    loader = CachedDataset.from_cache(tmp_path / "small.zip").loader(
        10, shuffle=True, device=device, num_threads=3
    )
    for _ in range(scaled(5)):
        seen = []
        for batch in loader:
            torch_xla.sync()
            x, labels = batch["x"].cpu(), batch["label"].cpu()
            assert torch.equal(x, labels[:, None].expand(-1, 3))
            seen += labels.tolist()
        assert sorted(seen) == list(range(2000))
        tally("batches on an XLA device", len(loader))


def test_what_is_uploaded_may_be_written_again_at_once(device):
    from torch_xla.core.xla_model import send_cpu_data_to_device

    for count in (1, 1000, 1 << 16, 1 << 20, 1 << 23):
        for dtype in (torch.float32, torch.bfloat16, torch.uint8):
            memory = torch.ones(count, dtype=dtype)
            [there] = send_cpu_data_to_device([memory], device)
            memory.zero_()
            assert there.device == device
            assert bool((there.cpu() == 1).all())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_our_loader_raises_what_theirs_keeps_to_itself(tmp_path, device, on_device):
    path = tmp_path / "bad.zip"
    write(path, (torch.full((1000,), float(i)) for i in range(40)))
    at = path.read_bytes().index(torch.full((1000,), 30.0).numpy().tobytes())
    with open(path, "r+b") as file:
        file.seek(at + 100)
        file.write(b"\xff")
    ds = CachedDataset.from_cache(path)
    theirs = on_device(DataLoader(ds, 4))
    assert len(list(theirs)) == 7 < len(theirs) == 10
    loader = ds.loader(4, device=device)
    seen = 0
    with pytest.raises(CorruptRecordError, match="record 30"):
        for seen, _ in enumerate(loader, 1):  # noqa: B007
            pass
    assert seen <= 7


def test_padded_fields_arrive_as_a_list_of_values_and_lengths(tmp_path, on_device):
    with CacheWriter(tmp_path / "w.zip") as w:
        w.extend({"words": torch.arange(i % 4 + 1), "name": f"n{i}"} for i in range(8))
    words = CachedDataset.from_cache(tmp_path / "w.zip")
    collate = edcache.collate(pad={"words": -1}, multiple_of=4)
    [batch] = on_device(DataLoader(words, 8, collate_fn=collate))
    values, lengths = batch["words"]
    assert values.shape == (8, 4)
    assert values.device.type == "xla"
    assert lengths.tolist() == [i % 4 + 1 for i in range(8)]
    assert values[1].tolist() == [0, 1, -1, -1]
    assert batch["name"] == [f"n{i}" for i in range(8)]


# --- ranks ------------------------------------------------------------------------------------------


def run(how, folder):
    environment = os.environ | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(RANKS)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(KIT)])
    done = subprocess.run(
        [sys.executable, KIT / "xla_ranks.py", how, folder],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(told.read_text()) for told in sorted(folder.glob("rank-*.json"))]


@pytest.fixture(scope="module", params=["launch", "processes"])
def ranks(request, tmp_path_factory):
    """What all ranks told, and the folder in which they worked."""
    folder = tmp_path_factory.mktemp(request.param)
    return run(request.param, folder), folder, request.param


def test_ranks_are_threads_or_processes(ranks):
    told, _, how = ranks
    assert len(told) == (RANKS if how == "launch" else 2)
    assert len({one["process"] for one in told}) == (1 if how == "launch" else 2)
    assert len({(one["process"], one["thread"]) for one in told}) == len(told)
    assert len({(one["process"], one["device"]) for one in told}) == len(told)


@pytest.mark.parametrize("log", ["log", "memory-log", "old-log"])
def test_ranks_share_the_work_of_a_fill(ranks, log):
    _, folder, _ = ranks
    assert computed(folder / log) == list(range(COUNT))


@pytest.mark.parametrize("name", ["shared.zip", "lazy.zip", "old.zip"])
def test_what_ranks_filled_together_is_sound(ranks, name):
    _, folder, _ = ranks
    assert edcache.verify(folder / name).sound
    assert CachedDataset.from_cache(folder / name).complete


def test_every_rank_reads_its_share_of_the_sources_own_samples(ranks):
    told, _, _ = ranks
    assert sorted(i for one in told for i in one["seen"]) == list(range(COUNT))
    assert all(one["is_own"] and one["lazy"] and one["memory"] and one["old"] for one in told)


def test_the_loss_falls_alike_by_their_loader_and_ours(ranks):
    told, _, _ = ranks
    for one in told:
        assert one["is_same"]
        assert one["losses"] == one["own_losses"]
        assert len(one["losses"]) == COUNT // len(told) // BATCH
        assert sum(one["losses"][-3:]) < sum(one["losses"][:3]) / 5


# --- the guide --------------------------------------------------------------------------------------


def test_the_guides_program_runs_as_written(tmp_path):
    text = (ROOT / "docs" / "guides" / "xla.md").read_text(encoding="utf-8")
    [program] = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    script = tmp_path / "guide.py"
    script.write_text(program)
    environment = os.environ | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert CachedDataset.from_cache(tmp_path / "cache" / "slow-train.zip").complete
