"""Samples as files of other formats."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from edcache.base import OptionError, PartialArchiveError, parsed_bytes
from edcache.dataset import CachedDataset, Path, Samples
from edcache.interop.export_columns import Columns, columns_of, joined
from edcache.interop.export_files import Folders, Tars, check_json_labels, files_of
from edcache.interop.export_leaves import nbytes_of
from edcache.interop.export_npz import check_npz, write_npz
from edcache.interop.export_plan import (
    OnProgress,
    Plan,
    Writer,
    labels_to_go,
    of_interest,
    prepared,
    read,
    worked,
)
from edcache.interop.export_tables import HuggingFace, Parquets, datasets_package
from edcache.interop.export_targets import check_free, new_file, new_folder
from edcache.storage import check_outlives, local_path
from edcache.writer import worker_count

FORMATS: Final = ("webdataset", "files", "parquet", "hf", "npz")
_WRITERS: Final = {"webdataset": Tars, "files": Folders, "parquet": Parquets, "hf": HuggingFace}
_FILES: Final = ("webdataset", "files")
_FOLDERS_A_PART: Final = 1000
_LOOKED_AT: Final = 256


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
        num_workers: processes that write a shard each; "auto": one a processor. An npz is written by one.
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
    target = _target(out, to)
    plan = _planned(_opened(ds, allow_partial), to, labels, count)
    with closing(_written(plan, to, target, shard_nbytes, count)) as counts:
        for done in accumulate(counts, initial=0):
            if on_progress is not None:
                on_progress(done, len(plan))
    return ExportReport(target, to, len(plan), *_measured(target))


def _target(out: Path, to: str) -> str:
    """Where it goes, if nothing is there and what writes it is installed."""
    if to == "hf":
        datasets_package()
    check_outlives(out)
    target = local_path(out)
    check_free(target)
    return target


def _opened(ds: Samples | Path | Iterable[Path], allow_partial: bool) -> Samples:
    samples = ds if isinstance(ds, Samples) else CachedDataset.from_cache(ds, allow_partial=True)
    unsealed = [] if allow_partial else samples._root._unsealed()
    if unsealed:
        raise PartialArchiveError(
            f"export(): {unsealed[0]} is not sealed, so that samples may be missing; fill it again, or pass "
            "allow_partial=True"
        )
    if not len(samples):
        raise OptionError("export(): there is no sample to write")
    return prepared(samples)


def _planned(ds: Samples, to: str, labels: bool | Sequence[str], num_workers: int) -> Plan:
    """What samples show before anything is written: one of every kind there is."""
    positions = of_interest(ds, needs_shapes=to not in _FILES)
    parts = [positions[at : at + _LOOKED_AT].tolist() for at in range(0, len(positions), _LOOKED_AT)]
    looks = [look for part in worked(_Look(ds, to), parts, num_workers) for look in part]
    columns: Columns = {}
    if to not in _FILES:
        columns = joined((look.columns, look.place) for look in looks)
    if to == "npz":
        check_npz(columns)
    names = {name for look in looks for name in look.names}
    sample_nbytes = sum(look.nbytes for look in looks) / max(len(looks), 1)
    plan = Plan(ds, columns, labels_to_go(ds, labels, names), sample_nbytes)
    if to in _FILES:
        check_json_labels(plan)
    return plan


class _Shown(NamedTuple):
    """What one sample shows: its leaves' names, about its bytes, and the columns that it needs."""

    place: str
    names: tuple[str, ...]
    nbytes: int
    columns: Columns


@dataclass(frozen=True)
class _Look:
    """Looks at samples as their format will, and so raises what writing them would raise."""

    ds: Samples
    to: str

    def __call__(self, positions: Sequence[int]) -> list[_Shown]:
        shown = []
        for place, leaves in read(self.ds, positions):
            columns: Columns = {}
            if self.to in _FILES:
                files_of(leaves, place, self.to)
            else:
                columns = columns_of(leaves, place, self.to, "biufc" if self.to == "npz" else "biuf")
            shown.append(_Shown(place, tuple(leaves), nbytes_of(leaves), columns))
        return shown


def _written(
    plan: Plan, to: str, target: str, shard_nbytes: int, num_workers: int
) -> Generator[int, None, None]:
    """Write all; yields how many samples more were written."""
    if to == "npz":
        with new_file(target) as stream:
            yield from write_npz(plan, os.path.dirname(target), stream)
        return
    parts = plan.parts(shard_nbytes)
    if to == "files":
        whole = range(len(plan))
        parts = [whole[start : start + _FOLDERS_A_PART] for start in whole[::_FOLDERS_A_PART]]
    with new_folder(target) as work:
        folder = work
        if to == "hf":
            folder = os.path.join(work, "parts")
            os.mkdir(folder)
        writer: Writer = _WRITERS[to](plan, folder)
        if isinstance(writer, HuggingFace):
            writer.features  # noqa: B018 - what cannot be one is told now
        yield from worked(writer, list(enumerate(parts)), num_workers)
        if isinstance(writer, HuggingFace):
            writer.assemble(work, len(parts))


def _measured(path: str) -> tuple[int, int]:
    """How many files are there, and their bytes."""
    if not os.path.isdir(path):
        return 1, os.path.getsize(path)
    sizes = [
        os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names
    ]
    return len(sizes), int(np.sum(sizes, dtype=np.int64))
