"""Samples as files of other formats."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edcache.archives import Path
from edcache.dataset import CachedDataset
from edcache.durable import check_outlives, local_path
from edcache.errors import OptionError, PartialArchiveError
from edcache.exporting.columns import Looker, joined
from edcache.exporting.huggingface import HuggingFace, datasets_package
from edcache.exporting.leaves import Leaves
from edcache.exporting.npz import Stacked, check_npz
from edcache.exporting.places import check_free, new_file, new_folder
from edcache.exporting.plan import (
    Job,
    OnProgress,
    labels_to_go,
    nbytes_of,
    of_interest,
    place_of,
    prepared,
    scanned,
    worked,
)
from edcache.exporting.rows import Parquets
from edcache.exporting.single import Folders, Naming, Tars, check_json_labels
from edcache.fill import worker_count
from edcache.labels.exchange import Column
from edcache.sizes import parsed_bytes
from edcache.views import Samples

FORMATS: Final = ("webdataset", "files", "parquet", "hf", "npz")
_FEW: Final = 1000


@dataclass(frozen=True)
class ExportReport:
    """What `export` made.

    path: where. to: the format. samples: how many. files: how many files. nbytes: of all of them.
    """

    path: str
    to: str
    samples: int
    files: int
    nbytes: int


def export(
    ds: Samples | Path | Iterable[Path],
    out: Path,
    to: str,
    *,
    num_workers: int | str | None = 0,
    shard_size: int | str = "500MB",
    labels: bool | Sequence[str] = True,
    on_progress: OnProgress | None = None,
    allow_partial: bool = False,
) -> ExportReport:
    """Write samples as files that other tools read; every kind of sample is looked at before it begins.

    Images that are stored as files go out as these, unless a transform or `decode=` makes something else of
    them; a PIL image is written as a PNG. Leaves in dicts, lists and tuples are called "target.boxes".

    Args:
        ds: a cache, a view, or what `CachedDataset.from_cache` opens.
        out: the folder that is made, or of an npz the file; nothing may be there.
        to: "webdataset": shard-000000.tar and so on, sample 17 being 017.image.jpg, 017.x.npy, 017.label.cls;
            text is .txt, bytes .bin, everything else .json. Names become lower case.
            "files": a folder for each sample, with image.jpg, x.npy, label.txt; one file where a sample is
            one leaf.
            "parquet": part-00000.parquet and so on: arrays of one shape are Arrow's fixed_shape_tensor, from
            1025 elements on their bytes, in C order, with dtype and shape in the column's metadata; others
            are {"values", "shape"} or plain lists, images their bytes.
            "hf": what `datasets.load_from_disk` reads: Array2D to Array5D, Sequence, Image.
            "npz": one stacked array a field; where shapes vary NAME.values, NAME.offsets and NAME.shapes.
        num_workers: processes that write, a shard each, as in a DataLoader; "auto" takes one a processor.
            An npz is written by one.
        shard_size: about so many bytes has a shard, or text such as "1GB". A folder of files has none.
        labels: whether label columns that are no fields of the samples go along: as columns, or as
            labels.json; or the names of some.
        on_progress: called with (samples written, samples) now and then.
        allow_partial: take what there is of archives that are not sealed.
    Raises:
        PartialArchiveError: an archive is not sealed, so that samples may be missing.
        ExportError: 'export(): sample 17: field "x" is a tensor of torch.bfloat16 (3,); numpy has no such
            type; ...'. Before anything is written, unless a transform gives other things every time.
        MissingSampleError: a sample has no record; `ds.available()` leaves those out.
        OptionError, MissingDependencyError, ArchiveExistsError, ArchiveLockedError, StorageError.
    Cost: reads every sample once; those that a transform makes, and in parquet, hf and npz those with arrays
        of varying shapes, once before. Some 16 MiB of samples a worker are in memory. hf and npz write twice.
    Safety: written as `out + ".edcache.new"`, and given its name when all is there. Killed, it leaves that,
        and the next run begins anew. Shards are brought to the disk before; single files are not.

    >>> edcache.export(ds.filter(split="train"), "train-shards", to="webdataset", num_workers=8)
    """
    if to not in FORMATS:
        raise OptionError(f"export(): to={to!r}; choose one of {', '.join(map(repr, FORMATS))}")
    shard_nbytes = parsed_bytes(shard_size)
    if shard_nbytes is None:
        raise OptionError(f'export(): shard_size={shard_size!r}; give bytes, or text such as "500MB"')
    count = worker_count(num_workers)
    if to == "hf":
        datasets_package()
    check_outlives(out)
    target = local_path(out)
    check_free(target)
    samples = prepared(_opened(ds, allow_partial))
    if not len(samples):
        raise OptionError("export(): there is no sample to write")
    plan = _Plan(samples, to, count)
    job = Job(samples, labels_to_go(samples, labels, plan.names), plan.sample_nbytes)
    if to in ("webdataset", "files"):
        check_json_labels(job)
    tell = on_progress or (lambda done, total: None)
    tell(0, len(job))
    if to == "npz":
        _write_npz(job, plan, target, tell)
    else:
        _write_folder(job, plan, target, shard_nbytes, count, tell)
    return ExportReport(target, to, len(job), *_measured(target))


def _opened(ds: Samples | Path | Iterable[Path], allow_partial: bool) -> Samples:
    samples = ds if isinstance(ds, Samples) else CachedDataset.from_cache(ds, allow_partial=True)
    unsealed = [] if allow_partial else samples._root._unsealed()
    if unsealed:
        raise PartialArchiveError(
            f"export(): {unsealed[0]} is not sealed, so that samples may be missing; fill it again, or pass "
            "allow_partial=True"
        )
    return samples


class _Plan:
    """What samples show before anything is written.

    Attributes:
        names: of all leaves. sample_nbytes: on average. columns: where samples become rows.
    """

    def __init__(self, ds: Samples, to: str, num_workers: int) -> None:
        self.to = to
        self.columns: dict[str, Column] = {}
        look = _Looking(to)
        positions = of_interest(ds, needs_shapes=look.makes_columns)
        found, self.names, nbytes = [], set[str](), 0
        for position, shown in zip(
            positions.tolist(), scanned(ds, look, positions, num_workers), strict=True
        ):
            self.names.update(shown.names)
            nbytes += shown.nbytes
            found.append((shown.columns, place_of(position)))
        self.sample_nbytes = nbytes / max(len(positions), 1)
        if look.makes_columns:
            self.columns = joined(found)
        if to == "npz":
            check_npz(self.columns)


@dataclass(frozen=True)
class _Shown:
    names: tuple[str, ...]
    nbytes: int
    columns: dict[str, Column]


class _Looking:
    """Looks at a sample as its format will, and so raises what writing it would raise."""

    def __init__(self, to: str) -> None:
        self.makes_columns = to not in ("webdataset", "files")
        self._naming = None if self.makes_columns else Naming(to)
        self._looker = Looker(to, "biufc" if to == "npz" else "biuf")

    def __call__(self, position: int, leaves: Leaves) -> _Shown:
        place = place_of(position)
        columns: dict[str, Column] = {}
        if self._naming is not None:
            self._naming.files(leaves, place)
        else:
            columns = self._looker.look(leaves, place)
        return _Shown(tuple(leaves), nbytes_of(leaves), columns)


def _write_npz(job: Job, plan: _Plan, target: str, tell: OnProgress) -> None:
    done = 0
    stacked = Stacked(job, plan.columns, os.path.dirname(target))
    with new_file(target) as stream:
        for count in stacked.write(stream, range(len(job))):
            done += count
            tell(done, len(job))


def _write_folder(
    job: Job, plan: _Plan, target: str, shard_nbytes: int, num_workers: int, tell: OnProgress
) -> None:
    parts = job.parts(shard_nbytes)
    if plan.to == "files":
        parts = [range(s, min(s + _FEW, len(job))) for s in range(0, len(job), _FEW)]
    with new_folder(target) as work:
        writer = _writer(job, plan, work)
        done = 0
        for count in worked(writer, list(enumerate(parts)), num_workers):
            done += count
            tell(done, len(job))
        if isinstance(writer, HuggingFace):
            writer.assemble(work, len(parts))


def _writer(job: Job, plan: _Plan, work: str) -> Any:
    digits = len(str(max(len(job) - 1, 0)))
    if plan.to == "webdataset":
        return Tars(job, work, digits)
    if plan.to == "files":
        return Folders(job, work, digits)
    if plan.to == "parquet":
        return Parquets(job, plan.columns, work)
    inside = os.path.join(work, "parts")
    os.mkdir(inside)
    return HuggingFace(job, plan.columns, inside)


def _measured(path: str) -> tuple[int, int]:
    """How many files are there, and their bytes."""
    if not os.path.isdir(path):
        return 1, os.path.getsize(path)
    sizes = [
        os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names
    ]
    return len(sizes), int(np.sum(sizes, dtype=np.int64))
