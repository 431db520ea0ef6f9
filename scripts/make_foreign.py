"""Writes tests/conformance/golden/foreign: small caches of other systems, made by those systems themselves.

    scripts/generate foreign tests/conformance/golden/foreign

Needs edflow 0.4.0 and monai; the tests that read what it wrote need neither. The samples are described in
tests/interop/test_importers_foreign.py.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import torch


def edflow_module():
    """edflow 0.4.0's own cached_dset: with a stand-in for chainer, and without the rest of edflow, which no
    longer imports beside today's numpy."""
    import importlib.util
    import types

    class ChainersMixin:
        def __getitem__(self, index):
            return self.get_example(index)

    place = Path(importlib.util.find_spec("edflow").origin).parent
    for name, path in (
        ("edflow", place),
        ("edflow.data", place / "data"),
        ("edflow.data.util", place / "data" / "util"),
    ):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(path)]
    for name, members in (
        ("chainer", {}),
        ("chainer.dataset", {"DatasetMixin": ChainersMixin}),
        ("edflow.util", {"walk": None, "update": None}),
    ):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)
    return importlib.import_module("edflow.data.util.cached_dset")


class Digits:
    """What edflow's server and worker are given."""

    name, in_memory_keys = "digits", ["label", "name"]

    def __init__(self, root):
        self.root = str(root)

    def __len__(self):
        return 7

    def __getitem__(self, i):
        sample = {"image": np.full((2, 3), i, np.uint8), "label": int(i) % 3, "name": f"n{i}", "index_": i}
        return {**sample, "points": torch.arange(int(i)), "meta": {"size": (int(i), 2.5), "none": None}}


def edflow_worker(root):
    import time

    edflow = edflow_module()
    time.sleep(3)  # the server has to be there, with its queue filled
    manager = edflow.make_client_manager("127.0.0.1")
    edflow.pickle_and_queue(lambda: Digits(root), manager.get_inqueue(), manager.get_outqueue())


def make_edflow(root):
    """By edflow's server and a worker; the server is started twice, which leaves two labels.p."""
    import multiprocessing

    worker = multiprocessing.get_context("fork").Process(target=edflow_worker, args=(root,))
    worker.start()
    edflow = edflow_module()
    edflow.CachedDataset(Digits(root), force_cache=True, keep_existing=True, chunk_size=2)
    worker.join()
    edflow.CachedDataset(Digits(root), force_cache=True, keep_existing=True)
    found = edflow.CachedDataset.from_cache(str(root), "digits")
    assert [found[i]["name"] for i in range(7)] == found.labels["name"]


def make_monai(root):
    from monai.data import PersistentDataset
    from monai.transforms import Transform

    class Loaded(Transform):
        def __call__(self, item):
            i = item["i"]
            return {
                "image": torch.full((1, 2, 2), float(i)),
                "label": i,
                "array": np.arange(i),
                "name": f"n{i}",
            }

    cached = PersistentDataset([{"i": i} for i in range(4)], Loaded(), cache_dir=str(root))
    names = []
    for i in range(4):
        before = set(root.iterdir())
        cached[i]
        names += [path.name for path in set(root.iterdir()) - before]
    (root / "order.txt").write_text("\n".join(names) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    for make in (make_edflow, make_monai):
        folder = target / make.__name__.removeprefix("make_")
        folder.mkdir(parents=True)
        make(folder)
