"""Add label columns to an archive after its samples were written, and drop columns.

Whole columns are appended to a sealed archive, with a new root. No sample is written again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from edcache import labels, storage
from edcache.base import (
    LabelError,
    OptionError,
    StaleArchiveError,
    StorageError,
    Sync,
    unknown_label,
)
from edcache.dataset.root import Archive, Reading
from edcache.format import Head, pa
from edcache.labels import LabelSpec, checked_name
from edcache.reader import Reader
from edcache.writer import Appender, LabelChange, change_labels, retry_if_replaced

_BATCH = 64


def given(
    cache: Archive,
    what: Any,
    values: Any,
    on: str | None,
) -> LabelChange:
    """Make the change of `CachedDataset.add_labels`."""
    if not isinstance(what, str):
        if values is not None:
            raise OptionError("add_labels(table) takes on= alone; values go with a name")
        return _take_table(cache, what, on)
    name = checked_name(what, "add_labels() got")
    if on is not None:
        raise OptionError(f'add_labels("{name}", ..., on="{on}"): on= goes with a table, not with a name')
    if values is None:
        raise OptionError(
            f'add_labels("{name}") got no values; give an array, {{index: value}} or a function'
        )
    if callable(values):
        return _compute(cache, LabelSpec({name: values}))
    if isinstance(values, Mapping):
        stored = cache.labels.schema.field(name).type if name in cache.labels else None
        index, column = labels.given_rows(name, values, len(cache), stored)
        return LabelChange(pa.table({name: column}), index)
    column = labels.given_column(name, values)
    if len(column) != len(cache):
        raise OptionError(
            f'label "{name}" got {len(column):,} values, but the dataset has {len(cache):,} samples; give one '
            "per sample, with None where there is none, or {index: value}"
        )
    return LabelChange(pa.table({name: column}))


def of_keys(cache: Archive, spec: LabelSpec) -> LabelChange:
    """Make the change that adds columns of `in_memory_keys` to a complete archive, by reading its samples."""
    try:
        return _compute(cache, spec)
    except LabelError as error:
        raise error.within(cache.path, cache.path) from error


def dropped(cache: Archive, names: Sequence[str]) -> LabelChange:
    """Make the change of `CachedDataset.drop_labels`."""
    known = list(cache.labels)
    if not names:
        raise OptionError(f"drop_labels() takes the names of columns; this archive has: {', '.join(known)}")
    for name in names:
        if name not in known:
            raise unknown_label(name, known)
    return LabelChange(dropped=list(dict.fromkeys(names)))


def change(archive: Archive, sync: Sync, make: Callable[[], LabelChange]) -> None:
    """Publish a change of labels, which `make` computes from the present state, and open it."""
    _check(archive.reader)
    if archive.filler is not None:
        archive.filler.flush()
        archive.reader.refresh()
    _publish(archive.reader.session.head, archive.path, sync, make())
    archive.reader.refresh()


def _publish(head: Head, path: str, sync: Sync, change: LabelChange) -> None:
    """Append changed labels to an archive, once more if another process replaces it meanwhile.

    head: of the archive that was opened.
    """

    def append() -> None:
        with closing(Appender.open(path, None, sync=sync)) as appender:
            if appender.head.uuid != head.uuid:
                raise StaleArchiveError(
                    f"{path}: another archive is here now than the one that was opened; open it again",
                    path=path,
                )
            change_labels(appender, change)

    try:
        retry_if_replaced(append)
    except StorageError as error:
        if error.errno not in storage.UNWRITABLE:
            raise
        text = (
            f"{path}: labels are kept in the archive, and it cannot be written here; copy it to where you may write, "
            "add them there, and open the copy"
        )
        raise storage.with_errno(StorageError(text, path=path), error) from error


def _check(reader: Reader) -> None:
    """Raise OptionError if the labels of an open archive cannot be changed."""
    if reader.by_request:
        raise OptionError(
            f"{reader.path}: an archive behind a URL is only read; change the labels of a copy on a disk, "
            "and upload that"
        )
    options = {
        "preload=, and a copy is not changed": reader.options.preload,
        "local=, which reads a copy": reader.options.local,
        "expected_digest=, so that it must stay the file that was published": reader.options.expected_digest,
    }
    for option, is_given in options.items():
        if is_given:
            raise OptionError(f"{reader.path}: opened with {option}; open it without to change its labels")


def _take_table(cache: Archive, given: Any, on: str | None) -> LabelChange:
    """Take all columns of a table; with `on` its rows in the order of the dataset."""
    table = labels.given_table(given)
    if on is not None:
        if on not in cache.labels:
            raise unknown_label(on, list(cache.labels))
        table = labels.joined(table, on, cache.labels.column(on))
    elif table.num_rows != len(cache):
        raise OptionError(
            f"the table has {table.num_rows:,} rows, the dataset {len(cache):,} samples; give one row per "
            "sample, or name the column that both have, by on="
        )
    for name in table.column_names:
        checked_name(name, "the table has")
    if not table.num_columns:
        raise OptionError("the table has no column to add")
    return LabelChange(table)


def _compute(cache: Archive, spec: LabelSpec) -> LabelChange:
    """Compute labels from the stored samples, or from a lazy cache."""
    archive = copy.copy(cache)
    archive.transform = None
    stored, indices = Reading(archive), np.arange(len(cache))
    if not archive.computes:
        indices = np.setdiff1d(indices, cache.missing)

    def rows() -> Iterator[tuple[int, list[Any]]]:
        for start in range(0, len(indices), _BATCH):
            batch = indices[start : start + _BATCH]
            samples = stored.asked(batch).samples()
            for index, sample in zip(batch.tolist(), samples, strict=True):
                yield index, spec.extract(index, sample)

    columns = labels.collected_columns(spec.names, rows())
    return LabelChange(columns, None if len(indices) == len(cache) else indices)
