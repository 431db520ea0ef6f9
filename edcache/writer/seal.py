"""Seal an archive: index, label columns, keys, root and zip directory, published as one group.

Steps, and what a process finds that opens the file after a kill behind each:

    1  payloads, and the zip directory without its end record    the old state; the next writer cuts the rest off
    2  sync
    3  headers, from the last to the first                       the old state, until the first header is there;
                                                                 then the new one, as the root says
    4  sync
    5  end record, and sync                                      the new state, which opens by the end of the file

Between 3 and 5 readers walk the chain, and the next writer completes the end (`Appender._mend_end`). With
sync="never" the syncs do nothing, and the root says so.

The group has all or nothing. Samples that come with a new order of the archive stand before it as *parts*, whose
records no reader counts before the rows of this group name them. A seal after growth is a whole new group behind the
old one: the bytes of the old index, keys, root and directory stay. To punch them out of the file would need to know
that no process has them mapped, and a reader, which may be on a read-only file system or another host, takes no lock;
so a rewrite alone gives them back. A change of labels of a sealed archive is a group too, with columns and a root that
names the old index.

Rows are merged window by window, and labels column by column (format/contents.py); an order, and keys, need all of
them in memory.

What must never happen: where it syncs, that the end record is on the disk before the headers, or a header before the
payloads of its group; that the index of a root names a record that no chunk or part before it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import ArchiveError, Ints, LabelError
from edcache.format import Chain, Column, Contents, Failure, Header, KeysPlace, Root, pa
from edcache.writer.appender import Appender
from edcache.writer.entry_group import EntryGroup, linked


@dataclass(frozen=True)
class LabelChange:
    """Label columns that are added to an archive or replace its columns of the same names, and names to drop.

    labels: of all samples, or of the samples `index`, int64 [rows], rising; the others keep their values.
    """

    labels: pa.Table = field(default_factory=lambda: pa.table({}))
    index: Ints | None = None
    dropped: Sequence[str] = ()


class Order(NamedTuple):
    """New order for a seal; no record moves.

    samples: int64 [n]. samples[i] is the stored sample that becomes sample i, -1 for a gap. A stored sample may appear
        twice, or not at all. None leaves all samples as they are in the chain.
    failures: of the gaps, by their new numbers.
    parts: with samples that the order names; `Contents` numbers them behind the stored ones.
    fingerprint: of the source that has this order; None at the first seal, for the source that the archive was begun
        for.
    """

    samples: Ints | None = None
    failures: Sequence[Failure] = ()
    parts: Sequence[Header] = ()
    fingerprint: dict[str, Any] | None = None


def seal(
    appender: Appender,
    change: LabelChange | None = None,
    find_order: Callable[[], Order] = Order,
) -> None:
    """Write index, labels, root and zip directory behind the chain; nothing if they are there.

    change: of labels. find_order: called under the append lock, when no process can publish; finds the order of the
        samples.
    Cost: reads the table of each chunk that the last root does not know, for the rows and for each label column. Takes
    some 150 MB of memory, and as much as `format.WINDOW` labels of a column; with keys or an order, all keys and rows.
    """
    with appender.appending():
        order = find_order()
        if not appender.chain.is_settled or change is not None or order.fingerprint is not None:
            _seal(appender, change or LabelChange(), order)


def change_labels(appender: Appender, change: LabelChange) -> None:
    """Publish label columns of a sealed archive, and drop others; it stays sealed.

    Raises: ArchiveError, it is not sealed; LabelError, a column has another length than the archive.
    After a StorageError all of it is there or none.
    """
    _check_sealed(appender)  # before a torn tail is cut off
    with appender.appending():
        root = _check_sealed(appender)
        dropped = [name for name in change.dropped if name in root.labels]
        if change.labels.num_columns or dropped:
            _seal(appender, replace(change, dropped=dropped), Order())


def _check_sealed(appender: Appender) -> Root:
    chain = appender.chain
    if chain.root is None or not chain.is_settled:
        raise ArchiveError(
            f"{appender.path}: not sealed, so its labels cannot be changed yet; fill it first, with "
            "CachedDataset(source, path) or warmup()",
            path=appender.path,
        )
    return chain.root


def _seal(appender: Appender, change: LabelChange, order: Order) -> None:
    """Publish all that the last root lacks: of a sealed archive nothing but label columns and a root."""
    chain, file = appender.chain, appender.file
    group = EntryGroup(file, chain)
    start = chain.cursor.offset
    with appender.giving_back_space():
        contents = Contents(chain, file.pread, appender.table, parts=order.parts)
        if chain.is_settled and order.samples is None:
            assert chain.root is not None
            root = replace(chain.root, chunks=len(chain.chunks))
        else:
            root = _indexed(chain, contents, group, order)
        labels, keys = _written_labels(appender, change, contents, root, group, order.samples)
        own = {name for name, _ in appender.head.labels}
        dropped = [name for name in dict.fromkeys([*root.dropped, *change.dropped]) if name in own]
        root = replace(root, labels=labels, dropped=dropped, keys=keys, is_synced=appender.syncs)
        root = replace(root, reads=chain.reads, writes=chain.writes, more={})
        group.entry(format.ROOT, "root.json").write(format.pack_root(root))
        # Up to the group: its payloads are synced before its headers.
        headers = group.headers(start if appender.syncs else min(chain.durable, start - 1))
        end = headers[-1].payload_end
        directory = format.pack_directory(chain.listed(root, headers), end)
        following = format.align(end + len(directory), format.PAGE)
        headers[-1] = linked(replace(headers[-1], next=following))
        file.pwrite(end, directory[: -format.END_NBYTES])
        appender.sync()
    group.publish(headers)
    # A reader that finds the end relies on the headers, also after a power cut.
    appender.sync()
    file.pwrite(end + len(directory) - format.END_NBYTES, directory[-format.END_NBYTES :])
    chain.add(file.pread, headers)
    appender.sync()


def _indexed(chain: Chain, contents: Contents, group: EntryGroup, order: Order) -> Root:
    """Write the index; returns its root, without label columns."""
    is_other = order.samples is not None
    known = order.failures if is_other else [one for _, one in chain.failures.values()]
    failures = {failure.index: failure for failure in known}
    present, is_plain, extremes = 0, True, []
    index = group.entry(format.INDEX, "index.rows")
    salt = format.salt(chain.head.uuid, index.place.offset)
    length = contents.length if order.samples is None else len(order.samples)
    for start, stop, rows in _rows(contents, order.samples):
        is_present = rows["flags"] & format.PRESENT > 0
        for k in [k for k in failures if start <= k < stop and is_present[k - start]]:
            del failures[k]
        present += int(np.count_nonzero(is_present))
        is_plain = is_plain and bool(np.all(rows["flags"] == format.PRESENT))
        extremes.append([int(end(rows[name])) for name in ("schema", "nbytes") for end in (np.min, np.max)])
        index.write(format.bound(np.arange(start, stop), rows, salt))
    uniform = None
    if is_plain and extremes:
        schema, last_schema, least, most = zip(*extremes, strict=True)
        if min(schema) == max(last_schema):
            uniform = min(schema), min(least), max(most)
    fingerprint = None if chain.origin is chain.head else chain.origin.fingerprint
    return Root(
        head=chain.head,
        length=length,
        present=present,
        chunks=len(chain.chunks),
        schemas=contents.schemas,
        index=index.place,
        dropped=() if chain.root is None else chain.root.dropped,
        failures=sorted(one for one in failures.values() if one.index < length),
        uniform=uniform,
        fingerprint=fingerprint if order.fingerprint is None else order.fingerprint,
        is_reordered=is_other or chain.is_reordered,
    )


def _rows(contents: Contents, order: Ints | None) -> Iterator[tuple[int, int, format.Rows]]:
    """Yield the rows of the samples of each window, as in memory, with its first sample and its end."""
    if order is None:
        for start, stop in contents.windows():
            yield start, stop, contents.rows(start, stop)
        return
    whole = contents.rows(0, contents.length)
    for start in range(0, len(order), format.WINDOW):
        chosen = order[start : start + format.WINDOW]
        rows, is_there = np.zeros(len(chosen), format.ROW), _are_there(chosen, len(whole))
        rows[is_there] = whole[chosen[is_there]]
        yield start, start + len(chosen), rows


def _written_labels(
    appender: Appender,
    change: LabelChange,
    contents: Contents,
    root: Root,
    group: EntryGroup,
    order: Ints | None,
) -> tuple[dict[str, Column], KeysPlace | None]:
    """Write the label columns that the last root lacks or that change, and the table of keys if they do.

    Returns: all columns, by name; the table.
    """
    labels = {name: column for name, column in root.labels.items() if name not in change.dropped}
    given, keys = change.labels.column_names, root.keys if format.KEY_COLUMN in labels else None

    def write(name: str, kind: pa.DataType, arrays: Iterable[pa.Array], is_added: bool) -> None:
        nonlocal keys
        table = _Keys(appender, order) if name == format.KEY_COLUMN and format.has_keys(kind) else None
        entry = group.entry(format.COLUMN, format.column_name(name))
        format.write_column(entry.write, name, kind, arrays if table is None else table.noting(arrays))
        labels[name] = Column(entry.place, format.type_to_json(kind), is_added)
        if name == format.KEY_COLUMN:
            keys = None if table is None else table.write(group)

    if not appender.chain.is_settled or order is not None:
        for name in contents.schema.names:
            if name not in change.dropped and name not in given:
                known = contents.columns.get(name)
                arrays = _values(contents, name, order)
                write(name, contents.schema.field(name).type, arrays, known.is_added if known else False)
    for name in given:
        column = _changed(appender, change, name, contents, root)
        write(name, column.type, column.chunks, True)
    return labels, keys


def _values(contents: Contents, name: str, order: Ints | None) -> Iterator[pa.Array]:
    """Yield the values of a column, window by window."""
    if order is None:
        yield from (contents.column(name, start, stop) for start, stop in contents.windows())
        return
    whole = contents.column(name)
    for start in range(0, len(order), format.WINDOW):
        chosen = order[start : start + format.WINDOW]
        yield whole.take(format.from_numpy(chosen, pa.int64(), ~_are_there(chosen, len(whole))))


def _are_there(samples: Ints, length: int) -> npt.NDArray[np.bool_]:
    """Mark the samples of an order that have a number in the chain: no gap."""
    return (samples >= 0) & (samples < length)


class _Keys:
    """Hashes of the keys of samples, noted as their column is written.

    The table of the last root has most of them: sorted, and a key takes a microsecond to hash. So its keys get the
    new numbers of their samples, and the others are merged with them.
    """

    def __init__(self, appender: Appender, order: Ints | None) -> None:
        self._hashes = [np.empty((0, 2), np.uint64)]
        self._samples = [np.empty(0, np.int64)]
        self._is_known: npt.NDArray[np.bool_] | None = None  # of the samples in their order
        self._rows = 0
        root, behind = appender.chain.root, appender.chain.behind
        if (
            order is None
            or root is None
            or root.keys is None
            or any(one.first < root.length for one in behind)
        ):
            return
        data = memoryview(appender.file.pread(root.keys.offset, root.keys.nbytes))
        table = format.KeyTable(data, root.keys.crc32, root.keys.items, root.length, appender.path)
        upper, lower, named = table.items()
        is_known = _are_there(order, root.length)
        place = np.full(root.length, -1)
        rows = np.flatnonzero(is_known)
        # Backwards: the first place of a sample that stands there twice is assigned last.
        place[order[rows][::-1]] = rows[::-1]
        has_key = np.zeros(root.length, np.bool_)
        has_key[named] = True
        is_known[rows] = has_key[order[rows]]
        samples = place[named]
        is_kept = samples >= 0
        self._hashes.append(np.stack([upper[is_kept], lower[is_kept]], axis=1).astype(np.uint64, copy=False))
        self._samples.append(samples[is_kept])
        self._is_known = is_known

    def noting(self, arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
        """Pass arrays of keys on, and note their hashes."""
        for array in arrays:
            is_new = array.is_valid().to_numpy(zero_copy_only=False)
            if self._is_known is not None:
                is_new = is_new & ~self._is_known[self._rows : self._rows + len(array)]
            new = np.flatnonzero(is_new)
            self._hashes.append(format.column_hashes(array.take(format.from_numpy(new, pa.int64()))))
            self._samples.append(new + self._rows)
            self._rows += len(array)
            yield array

    def write(self, group: EntryGroup) -> KeysPlace:
        """Write the table of the keys as an entry of a group; return its place."""
        hashes, samples = np.concatenate(self._hashes), np.concatenate(self._samples)
        self._hashes, self._samples = [], []  # they take as much memory
        table, crc, count = format.pack_keys(hashes, samples)
        entry = group.entry(format.KEYS, format.KEYS_NAME)
        entry.write(table)
        return KeysPlace(*entry.place[:2], crc, count)


def _changed(
    appender: Appender, change: LabelChange, name: str, contents: Contents, root: Root
) -> pa.ChunkedArray:
    """Return a label column as it is to be: the given values, and for other samples the ones of the archive.

    Raises: LabelError, it has not one value a sample, or its type does not go with the archive's.
    """
    given, length = change.labels.column(name), contents.length
    if change.index is None and len(given) != length:
        raise LabelError(
            f'{appender.path}: label "{name}" has {len(given):,} values, the archive '
            f"{length:,} samples; give one value per sample"
        )
    # A column that samples fill, later samples fill too.
    is_filled = name in dict(appender.head.labels) and name not in root.dropped
    if change.index is None and not is_filled:
        return given
    is_there = name in contents.schema.names and name not in change.dropped
    kind = contents.schema.field(name).type if is_there else pa.null()
    if format.merged(kind, given.type) is None:
        raise LabelError(
            f'{appender.path}: label "{name}" is {kind} in the archive and {given.type} in labels that were '
            f'added; add them under another name, or drop_labels("{name}") first'
        )
    if change.index is None:
        return given
    there = contents.column(name) if is_there else pa.nulls(length)
    tables = [pa.table({name: one}) for one in (there, given)]
    both = format.unify(tables, appender.path).column(name)
    pick = np.arange(length)
    pick[change.index] = length + np.arange(len(given))
    return both.take(format.from_numpy(pick, pa.int64()))
