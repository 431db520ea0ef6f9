"""`export`: write samples as files of other formats."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from edcache.base import ArchiveError, OptionError, parsed_bytes, shown
from edcache.dataset import CachedDataset, Path, Samples, fields_of_labels, structures, unsealed, with_files
from edcache.interop.export_columns import nbytes_of
from edcache.interop.export_formats import WRITERS, Writer, check_absent, new_folder, read
from edcache.interop.kinds import Format
from edcache.storage import local_path

_PROBES: Final = 32
_READ_TOGETHER: Final = 256


def export(
    ds: Samples | Path | Iterable[Path],
    out: Path,
    to: Format,
    *,
    shard_size: int | str = "500MB",
    labels: bool | Sequence[str] = True,
    allow_partial: bool = False,
) -> list[str]:
    """Write samples as files that other tools read.

    Images that are stored as files are written as these, unless a transform or `decode=` changes them; a PIL image is
    written as a PNG. Leaves in dicts, lists and tuples are called "target.boxes".

    Args:
        ds: a cache, a view, or an argument for `CachedDataset.from_cache`.
        out: the new folder; nothing may be there.
        to: "webdataset": shard-000000.tar and so on, sample 17 being 017.image.jpg, 017.x.npy, 017.label.cls; text is
            .txt, bytes .bin, everything else .json. Names become lower case. `tar xf` makes files of it. "parquet":
            part-00000.parquet and so on: arrays of one shape are Arrow's fixed_shape_tensor, from 1025 elements on
            their bytes, in C order, with dtype and shape in the column's metadata; others are {"values", "shape"} or
            plain lists, images their bytes.
        shard_size: approximate bytes of a shard, or text such as "1GB".
        labels: True writes label columns that are no fields of the samples too, as columns, or as labels.json; or
            names of some.
        allow_partial: True exports the stored samples of archives that are not sealed.
    Returns:
        The paths of the shards, sorted.
    Raises:
        ArchiveError: an archive is not sealed, so that samples may be missing.
        CodecError: 'export(): sample 17: field "x" is a tensor of torch.bfloat16 (3,); numpy has no such type; ...'.
        MissingSampleError: a sample has no record.
        OptionError, ArchiveExistsError, ArchiveError, StorageError.
    Cost: reads every sample once, by this process; for parquet results of a transform, and arrays of varying shapes,
        once more before. Some 16 MiB of samples are in memory.
    Safety: it is written as `out + ".edcache.new"`, and gets its name at the end. An error leaves nothing. A killed run
        leaves that, and the next one begins anew. Shards are synced before.

    >>> edcache.export(ds.filter(split="train"), "train-shards", to="webdataset")
    """
    if to not in WRITERS:
        raise OptionError(f"export(): to={to!r}; choose one of {', '.join(map(repr, WRITERS))}")
    shard_nbytes = parsed_bytes(shard_size)
    if shard_nbytes is None:
        raise OptionError(f'export(): shard_size={shown(shard_size)}; give bytes, or text such as "500MB"')
    target = local_path(out)
    check_absent(target)
    writer = _prepare(_open(ds, allow_partial), WRITERS[to], labels)
    with new_folder(target) as folder:
        for number, part in enumerate(writer.parts(shard_nbytes)):
            writer.write(folder, number, part)
    return sorted(os.path.join(target, name) for name in os.listdir(target))


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


def _prepare(ds: Samples, kind: type[Writer], labels: bool | Sequence[str]) -> Writer:
    """Make the writer, with names and columns from samples of every kind; nothing is written yet."""
    writer, names, nbytes = kind(ds), set[str](), 0
    positions = _probe_positions(ds, needs_shapes=kind.name == "parquet")
    for some in np.split(positions, range(_READ_TOGETHER, len(positions), _READ_TOGETHER)):
        for place, leaves in read(ds, some.tolist()):
            names |= leaves.keys()
            nbytes += nbytes_of(leaves)
            writer.look_at(leaves, place)
    writer.sample_nbytes, writer.labels = nbytes / len(positions), _label_names(ds, labels, names)
    writer.check()
    return writer


def _probe_positions(ds: Samples, needs_shapes: bool) -> npt.NDArray[np.int64]:
    """Choose positions of samples of every kind: one of each schema if that suffices."""
    numbers, trees = structures(ds)
    chosen = np.zeros(len(ds), bool)
    for number, tree in enumerate(trees):
        positions = np.flatnonzero(numbers == number)
        varies = needs_shapes and (
            tree is None or any(leaf.memory is not None and leaf.shape is None for leaf in tree.leaves())
        )
        chosen[positions if varies else positions[:1]] = True
    chosen[:: max(1, len(ds) // _PROBES)] = True
    return np.flatnonzero(chosen)


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
