"""`import_cache`: old caches of other systems to archives."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from edcache.base import ArchiveError, CacheKeywords, CacheOptions, OptionError, cut_traceback, takes
from edcache.dataset import CachedDataset
from edcache.interop.import_pickles import Edflow, Monai, TorchXla
from edcache.interop.import_source import OldCache, recipe_of_files
from edcache.interop.kinds import Kind
from edcache.storage import located

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger("edcache")

_SOURCES: Final[dict[Kind, Callable[..., OldCache]]] = {
    "edflow": Edflow,
    "torch_xla": TorchXla,
    "monai": Monai,
}


def old_cache(
    path: str, kind: Kind, *, trust_pickle: bool = False, order: Sequence[str] | None = None
) -> OldCache:
    """Open a cache of another system as a source dataset; arguments and errors as of `import_cache`."""
    if kind not in _SOURCES:
        raise OptionError(f"kind={kind!r}; choose one of {', '.join(_SOURCES)}")
    if order is not None and kind != "monai":
        raise OptionError(f'{path}: order= is for "monai", this is "{kind}"')
    if not os.path.exists(path):
        raise ArchiveError(f"{path}: No such file or directory")
    source = _SOURCES[kind](path, trust_pickle, *([] if order is None else [order]))
    if not len(source):
        raise ArchiveError(f"{path}: no sample in this {kind} cache")
    return source


@takes(CacheOptions)
@cut_traceback
def import_cache(
    old: str | os.PathLike[str],
    path: str | os.PathLike[str],
    kind: Kind,
    *,
    trust_pickle: bool = False,
    order: Sequence[str] | None = None,
    fingerprint: dict[str, Any] | bool | None = None,
    **keywords: Unpack[CacheKeywords],
) -> CachedDataset:
    """Fill an archive with the samples of another system's cache; the old one is only read.

    Notes on the old cache are logged as warnings of the logger "edcache".

    Args:
        old: the file or folder.
        path: the archive. An interrupted import is continued.
        kind: "edflow", "torch_xla" or "monai".
        trust_pickle: True unpickles everything, which runs any code of its author. By default only plain data, numpy
            arrays and torch tensors are read.
        order: for "monai": the names of the files, with or without ".pt", in the order of the samples.
        fingerprint: as for CachedDataset; by default the names, sizes and times of the old files.
        keywords: as for CachedDataset; the label columns are by default the old cache's.
    Returns:
        The CachedDataset over it. Samples that the old cache lacks are missing in it too, and keep their indices:
        `CachedDataset(source, path)` with the dataset that made the old cache computes them.
    Raises:
        ArchiveError: there is no such cache, or it is damaged; samples that were read before are kept,
            on_error="skip" goes on.
        CodecError: "train.zip: example_3.p needs module.Class; ...".

    >>> import_cache("cached/train.zip", "train.zip", "edflow", num_workers=4)
    """
    where = os.fspath(located(old).local_path())
    source = old_cache(where, kind, trust_pickle=trust_pickle, order=order)
    if keywords.get("on_error") in (None, "raise"):
        source.first()  # raises its own error at once
    for note in source.notes:
        logger.warning("%s: %s", where, note)
    if len(source.missing):
        keywords.setdefault("on_error", "skip")
    if keywords.get("in_memory_keys") is None:
        keywords["in_memory_keys"] = source.in_memory_keys
    own: Any = recipe_of_files(source.kind, where) if fingerprint is None else fingerprint
    ds = CachedDataset(source, path, fingerprint=own, **keywords)
    more = {name: values for name, values in source.more_labels.items() if name not in ds.labels}
    if more:
        ds.add_labels(more)
    return ds
