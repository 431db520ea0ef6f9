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
    ArchiveError,
    CacheKeywords,
    CacheOptions,
    CorruptArchiveError,
    OptionError,
    takes,
)
from edcache.dataset import CachedDataset
from edcache.format import PAGE, begins_archive
from edcache.interop.folders import EXTENSIONS
from edcache.interop.import_packaged import (
    BEGUN,
    ENDED,
    INDEX,
    META,
    STATE,
    HuggingFace,
    Images,
    Litdata,
    Mds,
    Tensordict,
    Webdataset,
)
from edcache.interop.import_pickles import EXAMPLE, METADATA, SAMPLE, Edflow, Monai, TorchXla
from edcache.interop.import_source import OldCache, fingerprint_of
from edcache.interop.kinds import Kind
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

_SOURCES: Final[dict[Kind, Callable[..., OldCache | Webdataset]]] = {
    source.kind: source
    for source in (Edflow, TorchXla, Monai, Webdataset, Tensordict, Mds, Litdata, HuggingFace, Images)
}


def old_cache(
    path: str, kind: Kind | None = None, *, trust_pickle: bool = False, order: Sequence[str] | None = None
) -> OldCache | Webdataset:
    """A cache of another system as a source dataset; args and errors as of `import_cache`."""
    if not os.path.exists(path):
        raise ArchiveError(f"{path}: No such file or directory")
    if kind is None:
        kind = _kind_of(path)
        if kind is None:
            raise ArchiveError(
                f"{path}: not recognised as one of {', '.join(_SOURCES)}; name its kind with kind=, "
                "or the file or folder that holds the samples themselves",
                option="kind",
            )
    elif kind not in _SOURCES:
        raise OptionError(f"kind={kind!r}; choose one of {', '.join(_SOURCES)}")
    if order is not None and kind != "monai":
        raise OptionError(f'{path}: order= is for "monai", this is "{kind}"')
    source = _SOURCES[kind](path, trust_pickle, *([] if order is None else [order]))
    if isinstance(source, OldCache) and not len(source):
        raise ArchiveError(f"{path}: no sample in this {kind} cache")
    return source


def _kind_of(path: str) -> Kind | None:
    """The kind of the old cache at a path, by its first bytes or the first names in it."""
    if not os.path.isdir(path):
        return _kind_of_file(path)
    with os.scandir(path) as entries:
        names = {entry.name for entry in islice(entries, _MOST_NAMES)}
    fits: dict[Kind, bool] = {
        "edflow": any(map(EXAMPLE.fullmatch, names)),
        "torch_xla": METADATA in names or (bool(names) and all(map(SAMPLE.fullmatch, names))),
        "monai": any(map(_HASH.fullmatch, names)),
        "webdataset": any(name.endswith(".tar") for name in names),
        "tensordict": META in names,
        "huggingface": STATE in names,
    }
    for kind, does_fit in fits.items():
        if does_fit:
            return kind
    # It may be large, so it is read only where the names alone do not tell.
    index = _index(os.path.join(path, INDEX)) if INDEX in names else {}
    if "shards" in index:
        return "mds"
    if "chunks" in index:
        return "litdata"
    return "images" if {BEGUN, ENDED} & names or _has_images(path) else None


def _kind_of_file(path: str) -> Kind | None:
    with open(path, "rb") as file:
        first = file.read(4096)
    if first[30:].startswith(_OURS):
        raise ArchiveError(f"{path}: an archive of edcache already; it needs no import")
    if first.startswith(b"PK\x03\x04"):
        return "tensordict" if path.endswith(".tdz") else "edflow"
    return "webdataset" if first[257:262] == b"ustar" else None


def _index(file: str) -> Any:
    """The dict in the index.json of a folder, which several systems write."""
    try:
        with open(file, encoding="utf-8") as stream:
            index = json.load(stream)
    except (RecursionError, ValueError):
        return {}
    return index if isinstance(index, dict) else {}


def _has_images(path: str) -> bool:
    """True if a folder has a folder with an image file in it."""
    with os.scandir(path) as entries:
        folders = list(islice((entry.path for entry in entries if entry.is_dir()), _MOST_FOLDERS))
    files = (name for folder in folders for name in os.listdir(folder))
    return any(name.lower().endswith(EXTENSIONS) for name in files)


@takes(CacheOptions)
def import_cache(
    old: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    kind: Kind | None = None,
    trust_pickle: bool = False,
    order: Sequence[str] | None = None,
    fingerprint: dict[str, Any] | bool | None = None,
    **keywords: Unpack[CacheKeywords],
) -> CachedDataset:
    """Fill an archive with the samples of another system's cache; the old one is only read.

    What is odd about the old cache is logged as warnings of the logger "edcache".

    Args:
        old: the file or folder. webdataset, tensordict, MDS, litdata and datasets read theirs themselves.
        path: the archive. One that an interrupted import left is continued.
        kind: by default it is recognised by the names of its files or its first bytes.
        trust_pickle: unpickle whatever it holds, which runs the code that its author put there. By default
            plain data, numpy arrays and torch tensors are read, and nothing else.
        order: for "monai": the names of the files, with or without ".pt", in the order of the samples.
        fingerprint: as for CachedDataset; by default the names, sizes and times of the old files.
        keywords: as for CachedDataset; the label columns are by default those of the old cache:
    Returns:
        The CachedDataset over it. Samples that the old cache lacks are missing in it too, and keep their
        indices: `CachedDataset(source, path)` with the dataset that made the old cache computes them.
    Raises:
        ArchiveError: nothing there is known, or it is damaged; what was read before is kept,
            on_error="skip" goes on.
        CodecError: "train.zip: example_3.p needs module.Class; ...".
        MissingDependencyError: "...: reading it takes a package; install it with: pip install edcache[mds]".

    >>> import_cache("cached/train.zip", "train.zip", num_workers=4)
    """
    where = os.fspath(local_path(old))
    source = old_cache(where, kind, trust_pickle=trust_pickle, order=order)
    if keywords.get("on_error") in (None, "raise"):
        source.first()  # what it needs is said at once, and by its own error
    for note in source.notes:
        logger.warning("%s: %s", where, note)
    if len(source.missing):
        keywords.setdefault("on_error", "skip")
    if keywords.get("in_memory_keys") is None:
        keywords["in_memory_keys"] = source.in_memory_keys
    own = fingerprint_of(source.kind, where) if fingerprint is None else fingerprint
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
        chosen: dict[str, Any] = {"in_memory_keys": getattr(dataset, "in_memory_keys", None)}
        chosen |= {name: value for name, value in options.items() if name in _FOR_IMPORTING}
        ds = import_cache(old, path, trust_pickle=trust_pickle, **chosen)
        logger.warning("%s: its %s samples are in %s now", old, f"{ds.info()['present']:,}", path)
    return path


def _is_something_else(path: str) -> bool:
    """True if something that is no archive is at a path."""
    try:
        is_there = os.path.exists(path) and os.path.getsize(path) > 0
        return os.path.isdir(path) or (store_at(path).found() is None and is_there)
    except CorruptArchiveError:
        with open(path, "rb") as file:
            return not begins_archive(file.read(PAGE))  # one of ours says what is wrong when it is opened
