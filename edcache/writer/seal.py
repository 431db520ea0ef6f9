"""Seal an archive: index, label columns, root and zip directory, published as one group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edcache import format
from edcache.base import ArchiveError, Ints, LabelError
from edcache.format import Chain, Column, Contents, Root, pa
from edcache.writer.appender import Appender
from edcache.writer.group import Group, linked


@dataclass(frozen=True)
class LabelChange:
    """Label columns that are added to an archive or replace its columns of the same names, and names to drop.

    labels: of all samples, or of the samples `index`, int64 [rows], rising; the others keep their values.
    """

    labels: pa.Table = field(default_factory=lambda: pa.table({}))
    index: Ints | None = None
    dropped: Sequence[str] = ()


def seal(appender: Appender, change: LabelChange | None = None) -> None:
    """Write index, labels, root and zip directory behind the chain; nothing if they are there.

    change: of labels. Cost: reads the table of each chunk that the last root does not know, for the rows and
    for each label column. Takes some 150 MB of memory, and as much as `format.WINDOW` labels of a column.
    """
    with appender.appending():
        if not appender.chain.sealed or change is not None:
            _seal(appender, change or LabelChange())


def change_labels(appender: Appender, change: LabelChange) -> None:
    """Publish label columns of a sealed archive, and drop others; it stays sealed.

    Raises: ArchiveError, it is not sealed; LabelError, a column has another length than the archive.
    After a StorageError all of it is there or none.
    """
    with appender.appending():
        root = appender.chain.root
        if root is None or not appender.chain.sealed:
            raise ArchiveError(
                f"{appender.path}: not sealed, so its labels cannot be changed yet; fill it first, with "
                "CachedDataset(source, path) or warmup()",
                path=appender.path,
            )
        dropped = [name for name in change.dropped if name in root.labels]
        if change.labels.num_columns or dropped:
            _seal(appender, replace(change, dropped=dropped))


def _seal(appender: Appender, change: LabelChange) -> None:
    """Publish all that the last root lacks: of a sealed archive nothing but label columns and a root.

    Payloads are synced before headers. The zip directory is written behind the root before its header, but for its
    end: if that is there, the headers are.
    """
    chain, file = appender.chain, appender.file
    contents = Contents(chain, file.pread, appender.table)
    group = Group(file, chain)
    start = chain.cursor.offset
    with appender.giving_back_space():
        if chain.sealed:
            assert chain.root is not None
            root = chain.root
        else:
            root = _indexed(chain, contents, group)
        labels = _written_labels(appender, change, contents, root, group)
        own = {name for name, _ in appender.head.labels}
        dropped = [name for name in dict.fromkeys([*root.dropped, *change.dropped]) if name in own]
        root = replace(root, labels=labels, dropped=dropped)
        group.entry(format.ROOT, "root.json").write(format.pack_root(root))
        # Up to the group: its payloads are synced before its headers.
        headers = group.headers(start if appender.syncs else min(chain.durable, start - 1))
        listed = [chain.head_header(file.pread), *chain.listed(root.labels, headers)]
        end = headers[-1].payload_end
        following = format.align(end + format.directory_nbytes([one.name for one in listed]), format.PAGE)
        listed[-1] = headers[-1] = linked(replace(headers[-1], next=following))
        directory = format.pack_directory(listed, end)
        file.pwrite(end, directory[: -format.END_NBYTES])
        appender.sync()
    group.publish(headers)
    # A reader that finds the end relies on the headers, also after a power cut.
    appender.sync()
    file.pwrite(end + len(directory) - format.END_NBYTES, directory[-format.END_NBYTES :])
    chain.add(file.pread, headers)
    appender.sync()


def _indexed(chain: Chain, contents: Contents, group: Group) -> Root:
    """Write the index; returns its root, without label columns."""
    failures, present, is_plain, extremes = dict(chain.failures), 0, True, []
    index = group.entry(format.INDEX, "index.rows")
    for start, stop in contents.windows():
        rows = contents.rows(start, stop)
        is_present = rows["flags"] & format.PRESENT > 0
        for k in [k for k in failures if start <= k < stop and is_present[k - start]]:
            del failures[k]
        present += int(np.count_nonzero(is_present))
        is_plain = is_plain and bool(np.all(rows["flags"] == format.PRESENT))
        extremes.append([int(end(rows[name])) for name in ("schema", "nbytes") for end in (np.min, np.max)])
        index.write(rows)
    uniform = None
    if is_plain and extremes:
        schema, last_schema, least, most = zip(*extremes, strict=True)
        if min(schema) == max(last_schema):
            uniform = min(schema), min(least), max(most)
    return Root(
        head=chain.head,
        length=contents.length,
        present=present,
        chunks=len(chain.chunks),
        schemas=contents.schemas,
        index=index.place,
        dropped=() if chain.root is None else chain.root.dropped,
        failures=sorted(one for _, one in failures.values() if one.index < contents.length),
        uniform=uniform,
        fingerprint=None if chain.origin is chain.head else chain.origin.fingerprint,
    )


def _written_labels(
    appender: Appender, change: LabelChange, contents: Contents, root: Root, group: Group
) -> dict[str, Column]:
    """Write the label columns that the last root lacks or that change; returns all, by name."""
    labels = {name: column for name, column in root.labels.items() if name not in change.dropped}
    given = change.labels.column_names
    if not appender.chain.sealed:
        for name in contents.schema.names:
            if name not in change.dropped and name not in given:
                arrays = (contents.column(name, start, stop) for start, stop in contents.windows())
                known = contents.columns.get(name)
                is_added = known.is_added if known else False
                labels[name] = _write(group, name, contents.schema.field(name).type, arrays, is_added)
    for name in given:
        column = _changed(appender, change, name, contents, root)
        labels[name] = _write(group, name, column.type, column.chunks, True)
    return labels


def _write(group: Group, name: str, kind: pa.DataType, arrays: Iterable[pa.Array], is_added: bool) -> Column:
    """Write a label column as an Arrow file."""
    entry = group.entry(format.COLUMN, format.column_name(name))
    format.write_column(entry.write, name, kind, arrays)
    return Column(entry.place, format.type_to_json(kind), is_added)


def _changed(
    appender: Appender, change: LabelChange, name: str, contents: Contents, root: Root
) -> pa.ChunkedArray:
    """Join a whole column: the given values, and the archive's elsewhere."""
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
    there = contents.column(name, 0, length) if is_there else pa.nulls(length)
    tables = [pa.table({name: one}) for one in (there, given)]
    both = format.unify(tables, appender.path).column(name)
    pick = np.arange(length)
    pick[change.index] = length + np.arange(len(given))
    return both.take(format.from_numpy(pick, pa.int64()))
