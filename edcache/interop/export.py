"""Samples as files of other formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader

from edcache.base import EdcacheError, OptionError, PartialArchiveError, parsed_bytes, shown
from edcache.dataset import CachedDataset, Path, Samples
from edcache.interop.export_columns import joined, nbytes_of
from edcache.interop.export_formats import FORMATS, Format, check_absent, new_output, read
from edcache.reader import OnProgress
from edcache.storage import check_outlives, local_path, refused
from edcache.writer import worker_count

_PROBES: Final = 32
_INSPECTED: Final = 256


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
        MissingSampleError: a sample has no record.
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
        raise OptionError(f'export(): shard_size={shown(shard_size)}; give bytes, or text such as "500MB"')
    count = worker_count(num_workers)
    FORMATS[to].require()
    check_outlives(out)
    target = local_path(out)
    check_absent(target)
    writer = _prepared(_opened(ds, allow_partial), FORMATS[to], labels, count)
    _write(writer, target, shard_nbytes, count, on_progress)
    return ExportReport(target, to, len(writer), *_measured(target))


def _opened(ds: Samples | Path | Iterable[Path], allow_partial: bool) -> Samples:
    samples = ds if isinstance(ds, Samples) else CachedDataset.from_cache(ds, allow_partial=True)
    unsealed = [] if allow_partial else samples._root._unsealed()
    if unsealed:
        raise PartialArchiveError(
            f"export(): {unsealed[0]} is not sealed, so that samples may be missing; fill it again, or pass "
            "allow_partial=True",
            option="allow_partial",
        )
    if not len(samples):
        raise OptionError("export(): there is no sample to write")
    return samples._with_files()


def _prepared(ds: Samples, kind: type[Format], labels: bool | Sequence[str], num_workers: int) -> Format:
    """The format with what samples of every kind tell of it; nothing is written yet."""
    positions = _probe_positions(ds, needs_shapes=bool(kind.arrays))
    parts = np.split(positions, range(_INSPECTED, len(positions), _INSPECTED))
    looks = _mapped(partial(_inspected, ds, kind), [(part.tolist(),) for part in parts], num_workers)
    names, sizes, columns = zip(*chain.from_iterable(looks), strict=True)
    label_names = _label_names(ds, labels, set().union(*names))
    writer = kind(ds, joined(columns), label_names, sum(sizes) / len(sizes))
    writer.check()
    return writer


def _probe_positions(ds: Samples, needs_shapes: bool) -> npt.NDArray[np.int64]:
    """Positions of samples of every kind there is: one of each schema where that tells enough."""
    every = np.arange(len(ds))
    numbers, trees = ds._root._structures(ds._root_indices(every))
    if ds._transform is not None:
        return every
    chosen = np.zeros(len(ds), bool)
    for number, tree in enumerate(trees):
        positions = np.flatnonzero(numbers == number)
        varies = tree is None or (
            needs_shapes and any(leaf.memory is not None and leaf.shape is None for leaf in tree.leaves())
        )
        chosen[positions if varies else positions[:1]] = True
    chosen[:: max(1, len(ds) // _PROBES)] = True
    return np.flatnonzero(chosen)


def _inspected(ds: Samples, kind: type[Format], positions: Sequence[int]) -> list[Any]:
    """Of each sample the names of its leaves, about its bytes, and the columns that it needs."""
    return [
        (tuple(leaves), nbytes_of(leaves), (kind.columns_for(leaves, place), place))
        for place, leaves in read(ds, positions)
    ]


def _label_names(ds: Samples, labels: bool | Sequence[str], names: set[str]) -> tuple[str, ...]:
    """The label columns that go along: those named, or all, but for those that are leaves of the samples."""
    if labels is False:
        return ()
    chosen = list(ds.labels) if labels is True else list(labels)
    for name in chosen:
        ds.labels.column(name)
    paths = ds._root._columns() if ds._transform is None else {}
    texts = {path: ".".join(map(str, path)) if isinstance(path, tuple) else str(path) for path in paths}
    fields = {column for path, column in paths.items() if texts[path] in names}
    return tuple(name for name in chosen if name not in fields)


def _write(
    writer: Format, target: str, shard_nbytes: int, num_workers: int, on_progress: OnProgress | None
) -> None:
    with new_output(target, writer.is_folder) as where:
        writer.begin(where)
        with closing(writer):
            parts = list(enumerate(writer.parts(shard_nbytes)))
            written = _mapped(writer.write, parts, num_workers if writer.is_folder else 0)
            counts = (len(part) for (_, part), _ in zip(parts, written, strict=True))
            for done in accumulate(counts, initial=0):
                if on_progress is not None:
                    on_progress(done, len(writer))
            writer.finish()


def _attempted(work: Callable[..., Any], arguments: Any) -> tuple[Any, EdcacheError | None]:
    try:
        return work(*arguments), None
    except EdcacheError as error:
        # Raised here, a worker's traceback would become a part of its message.
        return None, error


def _mapped(work: Callable[..., Any], calls: Any, num_workers: int) -> Iterator[Any]:
    """What calls of a function return, by their arguments, in order, by so many processes; 0: this one."""
    workers, attempt = min(num_workers, len(calls)), partial(_attempted, work)
    loader: Any = DataLoader(calls, batch_size=None, num_workers=workers, collate_fn=attempt)
    try:
        loaded = iter(loader)
    except OSError as denied:
        refused("export()", "starting worker processes", denied)
    for made, error in loaded:
        if error is not None:
            raise error
        yield made


def _measured(path: str) -> tuple[int, int]:
    """The number of files at a path, and of their bytes."""
    if not os.path.isdir(path):
        return 1, os.path.getsize(path)
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    sizes = list(map(os.path.getsize, files))
    return len(sizes), sum(sizes)
