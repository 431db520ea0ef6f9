"""Which kind of old cache lies at a path; an old cache to an archive; the archive of an old path."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from edcache.base import (
    CacheKeywords,
    CacheOptions,
    CorruptArchiveError,
    ForeignCacheError,
    NotAnArchiveError,
    OptionError,
    takes,
)
from edcache.dataset import CachedDataset
from edcache.interop.folders import EXTENSIONS
from edcache.interop.import_edflow import EXAMPLE, EdflowFolder, EdflowZip
from edcache.interop.import_folders import METADATA, SAMPLE, Monai, TorchXla
from edcache.interop.import_mds import INDEX, INDEX_NBYTES, Mds
from edcache.interop.import_members import zip_members
from edcache.interop.import_packaged import BEGUN, ENDED, STATE, HuggingFace, Images, Litdata
from edcache.interop.import_source import OldCache, read_file
from edcache.interop.import_tensordict import META, Tensordict
from edcache.interop.import_webdataset import Webdataset
from edcache.storage import local_path
from edcache.writer import store_at

if TYPE_CHECKING:
    from typing_extensions import Unpack

_HASH = re.compile(r"[0-9a-f]{32,}\.pt")
_MOST_NAMES = 10_000
_MOST_FOLDERS = 100
_OURS = b"edcache.json"  # the name of the first entry
_FOR_IMPORTING: Final = {"in_memory_keys", "codec", "compression", "allow_pickle", "num_workers", "progress"}
logger = logging.getLogger("edcache")


KINDS: Final[dict[str, Callable[..., OldCache]]] = {
    "edflow": lambda path, trust: (EdflowFolder if os.path.isdir(path) else EdflowZip)(path, trust),
    **{cls.kind: cls for cls in (TorchXla, Monai, Webdataset, Tensordict, Mds, Litdata, HuggingFace, Images)},
}


def _kind_of(path: str) -> str | None:
    """The kind of the old cache at a path, by its first bytes or the first names in it."""
    if not os.path.isdir(path):
        return _kind_of_file(path)
    with os.scandir(path) as entries:
        names = {entry.name for entry in islice(entries, _MOST_NAMES)}
    fits = {
        "edflow": any(map(EXAMPLE.fullmatch, names)),
        "torch_xla": METADATA in names or (bool(names) and all(map(SAMPLE.fullmatch, names))),
        "monai": any(map(_HASH.fullmatch, names)),
        "webdataset": any(name.endswith(".tar") for name in names),
        "tensordict": META in names,
    }
    for kind, does_fit in fits.items():
        if does_fit:
            return kind
    # It may be large, so it is read only where the names alone do not tell.
    index = _index(path) if INDEX in names else {}
    if "shards" in index:
        return "mds"
    if "chunks" in index:
        return "litdata"
    if STATE in names:
        return "huggingface"
    return "images" if {BEGUN, ENDED} & names or _has_images(path) else None


def _kind_of_file(path: str) -> str | None:
    with open(path, "rb") as file:
        first = file.read(4096)
    if first[30:].startswith(_OURS):
        raise ForeignCacheError(f"{path}: an archive of edcache already; it needs no import")
    if first.startswith(b"PK\x03\x04"):
        return "tensordict" if any(member.name == META for member in zip_members(path)[0]) else "edflow"
    return "webdataset" if first[257:262] == b"ustar" else None


def _index(path: str) -> dict[str, Any]:
    """What the index.json of a folder says, which several systems write."""
    file = os.path.join(path, INDEX)
    try:
        index = json.loads(read_file(file, INDEX_NBYTES))
    except (RecursionError, ValueError):
        return {}
    return index if isinstance(index, dict) else {}


def _has_images(path: str) -> bool:
    """Whether a folder has a folder with an image file in it."""
    with os.scandir(path) as entries:
        folders = list(islice((entry.path for entry in entries if entry.is_dir()), _MOST_FOLDERS))
    files = (name for folder in folders for name in os.listdir(folder))
    return any(name.lower().endswith(EXTENSIONS) for name in files)


def old_cache(
    path: str | os.PathLike[str],
    kind: str | None = None,
    *,
    trust_pickle: bool = False,
    order: Sequence[str] | None = None,
) -> OldCache:
    """A cache of another system as a source dataset.

    Args:
        kind: one of `KINDS`; by default it is recognised by the names of its files or its first bytes.
        trust_pickle: unpickle whatever it holds, which runs the code that its author put there. By default
            plain data, numpy arrays and torch tensors are read, and nothing else.
        order: for "monai": the names of the files, with or without ".pt", in the order of the samples.
    Raises:
        ForeignCacheError: nothing there is known, or it is damaged.
        PickleRefusedError: its labels need a class; a sample that does raises when it is read.
    Cost: lists the files, or the directory of the zip.

    >>> edcache.CachedDataset(old_cache("cached/train.zip"), "train.zip")
    """
    where = local_path(path)
    if not os.path.exists(where):
        raise ForeignCacheError(f"{where}: No such file or directory")
    if kind is None:
        kind = _kind_of(where)
        if kind is None:
            raise ForeignCacheError(
                f"{where}: not recognised as one of {', '.join(KINDS)}; name its kind with kind=, "
                "or the file or folder that holds the samples themselves",
                option="kind",
            )
    elif kind not in KINDS:
        raise OptionError(f"kind={kind!r}; choose one of {', '.join(KINDS)}")
    if order is not None and kind != "monai":
        raise OptionError(f'{where}: order= is for "monai", this is "{kind}"')
    return KINDS[kind](where, trust_pickle, *([] if order is None else [order]))


@takes(CacheOptions)
def import_cache(
    old: str | os.PathLike[str] | OldCache,
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    trust_pickle: bool = False,
    order: Sequence[str] | None = None,
    fingerprint: dict[str, Any] | bool | None = None,
    **keywords: Unpack[CacheKeywords],
) -> CachedDataset:
    """Fill an archive with the samples of another system's cache; the old one is only read.

    Args:
        old: where it lies; or what `old_cache` returned.
        path: the archive. One that an interrupted import left is continued.
        kind, trust_pickle, order: as for `old_cache`, which has them already where `old` comes from it.
        fingerprint: as for CachedDataset; by default what identifies the old cache.
        keywords: as for CachedDataset; the label columns are by default those of the old cache:
    Returns:
        The CachedDataset over it. Samples that the old cache lacks are missing in it too, and keep their
        indices: `CachedDataset(source, path)` with the dataset that made the old cache computes them.
    Raises:
        OptionError: one of the three comes with what `old_cache` returned.
        PickleRefusedError: "train.zip: example_3.p needs module.Class; ...".
        ForeignCacheError: the old cache is damaged; what was read before is kept, on_error="skip" goes on.

    >>> import_cache("cached/train.zip", "train.zip", num_workers=4)
    """
    if not isinstance(old, OldCache):
        source = old_cache(old, kind, trust_pickle=trust_pickle, order=order)
    elif kind is None and not trust_pickle and order is None:
        source = old
    else:
        raise OptionError(f"{old.path}: give kind=, trust_pickle= and order= to old_cache(), which opened it")
    source[source.first()]  # what it needs is said at once, and by its own error
    if len(source.missing):
        keywords.setdefault("on_error", "skip")
    if keywords.get("in_memory_keys") is None:
        keywords["in_memory_keys"] = source.in_memory_keys
    own = source.fingerprint() if fingerprint is None else fingerprint
    ds = CachedDataset(source, path, fingerprint=own, **keywords)
    more = {name: values for name, values in source.more_labels.items() if name not in ds.labels}
    if more:
        ds.add_labels(more)
    return ds


def migrated(
    path: str, dataset: Any, options: dict[str, Any], *, old: str | None = None, trust_pickle: bool = False
) -> str:
    """The archive that stands for an old path, after the samples of an old cache were taken over.

    The old cache lies at the path, and then the archive is "toy.edcache.zip" beside it, or at `old`. It is
    only read, and not at all once the archive is complete. Label columns are those of `dataset`, else of the
    old cache. Of the options of a CachedDataset, those for importing count.
    """
    if "://" in path:
        return path
    if _is_something_else(path):
        path, old = f"{path.removesuffix('.zip')}.edcache.zip", path
    if old is None or not os.path.exists(old):
        return path
    archive = store_at(path).found()
    if archive is None or not archive.complete:
        source = old_cache(old, trust_pickle=trust_pickle)
        chosen: dict[str, Any] = {"in_memory_keys": getattr(dataset, "in_memory_keys", None)}
        chosen |= {name: value for name, value in options.items() if name in _FOR_IMPORTING}
        ds = import_cache(source, path, **chosen)
        for note in source.notes:
            logger.warning("%s: %s", old, note)
        logger.warning("%s: its %s samples are in %s now", old, f"{ds.info()['present']:,}", path)
    return path


def _is_something_else(path: str) -> bool:
    """Whether something that is no archive is at a path."""
    try:
        is_there = os.path.exists(path) and os.path.getsize(path) > 0
        return os.path.isdir(path) or (store_at(path).found() is None and is_there)
    except NotAnArchiveError:
        return True
    except CorruptArchiveError:
        return False  # of ours: who opens it says what is wrong
