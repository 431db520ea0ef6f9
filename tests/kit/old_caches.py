"""Caches of other systems, written as those systems wrote them; nothing here imports edcache."""

import json
import os
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import torch


def edflow_samples(count=11):
    """Dicts as edflow's datasets return them, of every kind of leaf that its caches were seen to hold."""
    return [
        {
            "image": np.full((2, 3), i, np.uint8),
            "mask": np.arange(i, dtype=np.float32),
            "label": i % 3,
            "name": f"n{i}",
            "score": np.float64(i / 2),
            "points": torch.arange(i, dtype=torch.int16),
            "meta": {"size": (i, 2), "ok": bool(i % 2), "none": None},
        }
        for i in range(count)
    ]


def with_index(sample, index):
    """A sample as it comes out of an edflow cache."""
    return {**sample, "index_": np.int64(index)}


def edflow_zip(path, samples, keys=(), *, protocol=4, labels=1, skip=(), order=None, name="example_{}.p"):
    """The zip of a finished server (labels=1), of one that was interrupted (0) or started again (2)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrived = order if order is not None else np.random.RandomState(0).permutation(len(samples))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels.p twice
        for run in range(max(labels, 1)):
            for i in arrived if run == 0 else ():
                if i not in skip:
                    out.writestr(name.format(i), pickle.dumps(with_index(samples[i], i), protocol))
            if run < labels:
                stale = run < labels - 1  # of a first run, which had fewer samples and keys
                columns = {
                    k: [s[k] for s in samples][: 1 if stale else None] for k in keys[: 1 if stale else None]
                }
                out.writestr("labels.p", pickle.dumps(columns, protocol))
    return path


def killed(path):
    """The same zip after a kill: without its directory, and with a half of one more member."""
    with zipfile.ZipFile(path) as whole:
        end = whole.start_dir
    torn = Path(path).read_bytes()[:end] + b"PK\x03\x04\x14" + bytes(40)
    Path(path).write_bytes(torn)
    return path


def edflow_decorated(path, samples, keys=(), args=(), kwargs=None, length=None):
    """What `@cachable(path)` leaves beside the zip."""
    edflow_zip(path, samples, keys)
    Path(f"{path}.p").write_bytes(pickle.dumps(len(samples) if length is None else length))
    Path(f"{path}parameters.p").write_bytes(pickle.dumps((args, kwargs or {})))
    return path


def xla_path(index, count, per_folder):
    """torch_xla's place of a sample, worked out from the digits of index // per_folder."""

    def digits(number):
        found = []
        while number:
            found.append(str(number % per_folder))
            number //= per_folder
        return found[::-1]

    depth, folders = len(digits(count // per_folder)), digits(index // per_folder)
    return os.path.join(*["0"] * (depth - len(folders)), *folders, f"{index}.pt")


def xla_folder(root, samples, *, per_folder=1000, compress=True, skip=(), count=None):
    """The folder of releases 1.7 to 2.0."""
    root = Path(root)
    count = len(samples) if count is None else count
    for i, sample in enumerate(samples):
        path = root / xla_path(i, count, per_folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        if i not in skip:
            torch.save(sample, path, _use_new_zipfile_serialization=compress)
    said = {"count": count, "compress": compress, "max_files_per_folder": per_folder}
    (root / "METADATA").write_text(json.dumps(said))
    return root
