"""Caches that other systems wrote themselves (scripts/make_foreign.py) give what these systems read."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import old_caches
import pytest
import torch
from likeness import same
from scale import scaled, seeded

from edcache import import_cache
from edcache.compat import edflow
from edcache.errors import EdcacheError
from edcache.interop.importer import old_cache

FOREIGN = Path(__file__).parents[1] / "conformance" / "golden" / "foreign"


# -------------------------------------------------------------------------------------------- edflow


def digit(i):
    sample = {"image": np.full((2, 3), i, np.uint8), "label": i % 3, "name": f"n{i}", "index_": np.int64(i)}
    return {**sample, "points": torch.arange(i), "meta": {"size": (i, 2.5), "none": None}}


def test_what_edflows_server_wrote_reads_back_exactly_and_under_its_old_name(tmp_path):
    archive = tmp_path / "cached" / "digits.zip"
    archive.parent.mkdir()
    imported = import_cache(FOREIGN / "edflow" / "cached" / "digits.zip", archive, "edflow", progress=False)
    assert imported.complete
    for ds in (imported, edflow.CachedDataset.from_cache(tmp_path, "digits")):
        assert [same(ds[i], digit(i)) for i in range(7)] == [True] * 7
        assert ds.labels["label"].tolist() == [0, 1, 2, 0, 1, 2, 0]
        assert ds.labels["name"].tolist() == [f"n{i}" for i in range(7)]


# --------------------------------------------------------------------------------------------- MONAI


def test_a_folder_of_monai_reads_back_in_the_order_of_its_list(path):
    order = (FOREIGN / "monai" / "order.txt").read_text().split()
    ds = import_cache(FOREIGN / "monai", path, "monai", order=order)
    assert ds.complete
    for i, found in enumerate(ds):
        assert list(found) == ["image", "label", "array", "name"]
        assert same(found["image"], torch.full((1, 2, 2), float(i)))
        assert (found["label"], found["name"], list(found["array"])) == (i, f"n{i}", list(range(i)))


# ------------------------------------------------------------------------------------ changed bytes


def edflow_seed(tmp_path):
    return old_caches.edflow_zip(tmp_path / "seed.zip", old_caches.edflow_samples(4), ["label"])


def xla_seed(tmp_path):
    return old_caches.xla_folder(tmp_path / "seed", [{"a": i} for i in range(4)])


SEEDS = {"edflow": (edflow_seed, ""), "torch_xla": (xla_seed, "METADATA")}


@pytest.mark.parametrize("name", SEEDS)
def test_whatever_the_bytes_a_sample_is_read_or_a_typed_error_raised(tmp_path, name, tally):
    make, inside = SEEDS[name]
    seed = make(tmp_path)
    old = tmp_path / "old"
    (shutil.copytree if seed.is_dir() else shutil.copy)(seed, old)
    file = old / inside if inside else old
    data = file.read_bytes()
    random, count = seeded(f"old caches {name}"), scaled(120)
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(random.choice([1, 2, 4])):
            at = random.randrange(len(changed))
            changed[at : at + random.choice([0, 1, 1, 5])] = random.choices(
                b'0919-[]{"\xff\x00', k=random.randrange(4)
            )
        file.write_bytes(changed)
        with contextlib.suppress(EdcacheError):
            source = old_cache(str(old), name)
            for i in range(min(len(source), 6)):
                with contextlib.suppress(EdcacheError):
                    source[i]
    tally("changed old caches", count)
