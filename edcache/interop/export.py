"""`export`: write samples as files of other formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from edcache.base import ArchiveError, CodecError, OptionError, parsed_bytes, shown
from edcache.dataset import CachedDataset, Path, Samples, fields_of_labels, structures, unsealed, with_files
from edcache.interop.export_columns import nbytes_of, unified
from edcache.interop.export_formats import WRITERS, Writer, check_absent, new_folder, read
from edcache.interop.kinds import Format
from edcache.reader import OnProgress
from edcache.storage import local_path
from edcache.writer import worker_count

_PROBES: Final = 32
_INSPECTED: Final = 256


def export(
    ds: Samples | Path | Iterable[Path],
    out: Path,
    to: Format,
    *,
    num_workers: int | str | None = 0,
    shard_size: int | str = "500MB",
    labels: bool | Sequence[str] = True,
    on_progress: OnProgress | None = None,
    allow_partial: bool = False,
) -> list[str]:
    """Write samples as files that other tools read, after a check of every kind of sample.

    Images that are stored as files are written as these, unless a transform or `decode=` changes them; a PIL image is
    written as a PNG. Leaves in dicts, lists and tuples are called "target.boxes".

    Args:
        ds: a cache, a view, or an argument for `CachedDataset.from_cache`.
        out: the new folder; nothing may be there.
        to: "webdataset": shard-000000.tar and so on, sample 17 being 017.image.jpg, 017.x.npy, 017.label.cls; text is
            .txt, bytes .bin, everything else .json. Names become lower case. "files": a folder for each sample, with
            image.jpg, x.npy, label.txt; one file if a sample is one leaf. "parquet": part-00000.parquet and so on:
            arrays of one shape are Arrow's fixed_shape_tensor, from 1025 elements on their bytes, in C order, with
            dtype and shape in the column's metadata; others are {"values", "shape"} or plain lists, images their bytes.
        num_workers: processes that write a shard each; "auto": one a processor.
        shard_size: approximate bytes of a shard, or text such as "1GB". A folder of files has none.
        labels: True writes label columns that are no fields of the samples too, as columns, or as labels.json; or
            names of some.
        on_progress: called with (samples written, samples) now and then.
        allow_partial: True exports the stored samples of archives that are not sealed.
    Returns:
        The paths in the folder, sorted: shards, or an entry for each sample.
    Raises:
        ArchiveError: an archive is not sealed, so that samples may be missing.
        CodecError: 'export(): sample 17: field "x" is a tensor of torch.bfloat16 (3,); numpy has no such type; ...'.
            Before anything is written, unless the results of a transform vary.
        MissingSampleError: a sample has no record.
        OptionError, ArchiveExistsError, ArchiveError, StorageError.
    Cost: reads every sample once; results of a transform, and for parquet arrays of varying shapes, once more before. A
    worker has some 16 MiB of samples in memory.
    Safety: it is written as `out + ".edcache.new"`, and gets its name at the end. A killed run leaves that, and the
    next one begins anew. Shards are synced before; single files are not.

    >>> edcache.export(ds.filter(split="train"), "train-shards", to="webdataset", num_workers=8)
    """
    if to not in WRITERS:
        raise OptionError(f"export(): to={to!r}; choose one of {', '.join(map(repr, WRITERS))}")
    shard_nbytes = parsed_bytes(shard_size)
    if shard_nbytes is None:
        raise OptionError(f'export(): shard_size={shown(shard_size)}; give bytes, or text such as "500MB"')
    count = worker_count(num_workers)
    target = local_path(out)
    check_absent(target)
    samples = _open(ds, allow_partial)
    writer = _prepare(samples, WRITERS[to], labels, count)
    _write(writer, target, shard_nbytes, count, on_progress)
    return sorted(os.path.join(target, name) for name in os.listdir(target))


def _write(
    writer: Writer, target: str, shard_nbytes: int, num_workers: int, on_progress: OnProgress | None
) -> None:
    with new_folder(target) as writer.folder:
        tasks = list(enumerate(writer.parts(shard_nbytes)))
        for done in accumulate(_map(_write_part, writer, tasks, num_workers), initial=0):
            if on_progress is not None:
                on_progress(done, len(writer.ds))


def _open(ds: Samples | Path | Iterable[Path], allow_partial: bool) -> Samples:
    samples = ds if isinstance(ds, Samples) else CachedDataset.from_cache(ds, allow_partial=True)
    growing = [] if allow_partial else unsealed(samples)
    if growing:
        raise ArchiveError(
            f"export(): {growing[0]} is not sealed, so that samples may be missing; fill it again, or pass "
            "allow_partial=True",
            option="allow_partial",
        )
    if not len(samples):
        raise OptionError("export(): there is no sample to write")
    return with_files(samples)


def _prepare(ds: Samples, kind: type[Writer], labels: bool | Sequence[str], num_workers: int) -> Writer:
    """Make the writer, with columns and names from samples of every kind; nothing is written yet."""
    positions = _probe_positions(ds, needs_shapes=kind.name == "parquet")
    parts = np.split(positions, range(_INSPECTED, len(positions), _INSPECTED))
    looks = _map(_inspect, (ds, kind), [part.tolist() for part in parts], num_workers)
    names, sizes, columns = zip(*chain.from_iterable(looks), strict=True)
    label_names = _label_names(ds, labels, set().union(*names))
    writer = kind(ds, unified(columns), label_names, sum(sizes) / len(sizes))
    writer.check()
    return writer


def _probe_positions(ds: Samples, needs_shapes: bool) -> npt.NDArray[np.int64]:
    """Choose positions of samples of every kind: one of each schema if that suffices."""
    numbers, trees = structures(ds)
    chosen = np.zeros(len(ds), bool)
    for number, tree in enumerate(trees):
        positions = np.flatnonzero(numbers == number)
        varies = tree is None or (
            needs_shapes and any(leaf.memory is not None and leaf.shape is None for leaf in tree.leaves())
        )
        chosen[positions if varies else positions[:1]] = True
    chosen[:: max(1, len(ds) // _PROBES)] = True
    return np.flatnonzero(chosen)


def _inspect(shared: tuple[Samples, type[Writer]], positions: Sequence[int]) -> list[Any]:
    """Return the names of the leaves of each sample, its approximate bytes, and its columns."""
    ds, kind = shared
    return [
        (tuple(leaves), nbytes_of(leaves), (kind.columns_for(leaves, place), place))
        for place, leaves in read(ds, positions)
    ]


def _write_part(writer: Writer, task: tuple[int, range]) -> int:
    number, part = task
    writer.write(number, part)
    return len(part)


def _label_names(ds: Samples, labels: bool | Sequence[str], names: set[str]) -> tuple[str, ...]:
    """Return the names of the label columns to export: given ones, or all, without leaves of the samples."""
    if labels is False:
        return ()
    chosen = list(ds.labels) if labels is True else list(labels)
    for name in chosen:
        ds.labels.column(name)
    texts = {
        name: ".".join(map(str, path)) if isinstance(path, tuple) else str(path)
        for name, path in fields_of_labels(ds).items()
    }
    return tuple(name for name in chosen if texts.get(name) not in names)


_shared: Any = None  # in a worker, the first argument of each of its tasks


def _begin(shared: Any) -> None:
    global _shared
    _shared = shared
    torch.set_num_threads(1)  # a pool of threads does not survive a fork


def _call(work: Callable[[Any, Any], Any], task: Any) -> Any:
    return work(_shared, task)


def _map(
    work: Callable[[Any, Any], Any], shared: Any, tasks: Sequence[Any], num_workers: int
) -> Iterator[Any]:
    """Yield `work(shared, task)` for each task, in order, by worker processes; 0: in this one."""
    if not num_workers:
        yield from map(partial(work, shared), tasks)
        return
    workers = min(num_workers, len(tasks))
    try:
        with ProcessPoolExecutor(workers, initializer=_begin, initargs=(shared,)) as pool:
            yield from pool.map(partial(_call, work), tasks)
    except BrokenProcessPool as error:
        raise CodecError("export(): a worker process died; memory may have run out: fewer workers") from error
