"""`Session`: the state of an open archive in one process.

Opening looks at the end of the file (format/root.py). A *sealed* archive has its index and its labels as places of the
file: the index is mapped, or fetched when it is needed; labels are copied when they are. Any other one is walked entry
by entry, and its rows and labels are merged in memory (format/contents.py).

A session gives the same answers for as long as it lives: samples that come later are in another session, which
`Reader.refresh` makes of the file that has the path then (`is_outdated_by`):

    the same file, no entry more                     the old one stays
    the same file, which grew or was sealed          a new session; it goes on with the entries that this one walked
    another file with the same uuid, saved over it   a new session
    any other file                                   StaleArchiveError

It replaces the session by one assignment. Threads at work keep the old one; its file and its mapping go with the
last object that uses them, such as an array of a sample. What a session learns meanwhile, as checked records and
decoders, changes no answer: threads share it, and a forked child goes on with it.

Salvage is the same session (`skips_damage`): it notes damage and leaves it out where another one refuses. Each part is
left out by itself, and named:

    a record, or its row                 the sample; each row is bound to its record
    a label column                       the column, unless the chunks have exactly its values
    a header, a root or a note           its content; the entries behind it count as `format.salvaged` says

What must never happen:

- A byte behind the last entry is mapped: a writer may cut it off, and reading it would be a SIGBUS.
- A record is used before it was compared with its sum, unless verify="never" (checks.py).
- Salvage takes an older state, or other numbers of samples, without a word (`damage`).
- A value of another archive is handed out, which was written over the mapped one: `check_same` comes behind the last
  use of its bytes. It comes behind an error too, since foreign rows and records raise any.
- Something that the session holds refers to the session: the mapping would stay until the garbage is collected.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edcache import base, codec, format, storage
from edcache.base import CorruptArchiveError, Ints, once
from edcache.format import (
    COMPRESSED,
    PRESENT,
    Chain,
    ChunkTable,
    Contents,
    Head,
    Header,
    KeyTable,
    Place,
    Root,
    Rows,
    StoredLabels,
    pa,
)
from edcache.labels import Labels, checked_indices, origin
from edcache.reader.checks import ByteRange, Checks
from edcache.reader.group import Group, Lattice, decode_of, loaded
from edcache.reader.index import Extents, RecordIndex, Row
from edcache.reader.projection import Projection, planned
from edcache.reader.several import Made, Records, Several
from edcache.reader.stored import Piece, Stored
from edcache.storage import ByteSource, File

# Labels do not wait for the import of decoders.
if TYPE_CHECKING:
    from edcache.codec import Decoder, Decoders, Decoding


class Session:
    """State of an open archive in one process: its bytes, index, labels and samples.

    It does not change. A refresh makes a new one, and threads at work keep the old one.

    Args:
        verify, allow_pickle: as of `ReadOptions`. decoding: of pictures; None is the writer's choice.
        as_arrays: True reads tensors as numpy arrays. before: an earlier state of the same file.
        skips_damage: True leaves out damaged parts, see above.
    Attributes:
        size: bytes of the file. head: of it. sealed: True if its last root tells all that counts. chain: its entries.
        nbytes: of the file, up to the end of the last entry. extents: these bytes.
        check_same: called behind the last use of mapped bytes; StaleArchiveError if another archive was written over
            them.
        index: rows of all samples. length: samples of the dataset.
        label_columns: names of the label columns, each with True if it was added after the samples.
        damaged: one line per unreadable chunk. tables: of chunks that were read, by number; None for such a one.
        damage: of the chain, and the state that is read in spite of it; None without.
    """

    def __init__(
        self,
        file: ByteSource,
        verify: str = "touch",
        allow_pickle: bool = False,
        decoding: Decoding | None = None,
        as_arrays: bool = False,
        *,
        before: Session | None = None,
        skips_damage: bool = False,
    ) -> None:
        self.file, self.path = file, file.path
        self._verify, self._decode = verify, (allow_pickle, decoding, as_arrays)
        self.skips_damage = skips_damage
        self.size = file.size()
        self.tables: dict[int, ChunkTable | None] = {}
        self.damaged: list[str] = []
        self.damage: str | None = None
        self._chain: Chain | None = None
        self._root: Root | None = None
        self._root_place: Place | None = None
        found = format.read_root(file.pread, self.size, self.path)
        if found is not None:
            self._root, self._root_place = found
            self.head, end = self._root.head, self.size
        else:
            self._chain = self._walk_chain(before)
            # Bytes behind a root show that samples may be lost: the archive grew, and was cut.
            self.head, end = self._chain.head, self._chain.cursor.offset
            if self._chain.is_settled and not self._chain.sealed and self.damage is None:
                # Parts wait behind the root, which tells all that counts.
                self._root, self._root_place = self._chain.root, self._chain.root_place
        self.sealed = self._root is not None
        # Map no byte behind the last entry: a writer may cut off a torn tail, and reading a mapping beyond
        # the end of the file is a SIGBUS (test_process.py, test_a_torn_tail_that_is_cut_*).
        self.nbytes = min(end, self.size)
        self.extents = Extents(file, self.nbytes)
        self._view, self.check_same = self.extents.view, self.extents.check_same
        columns = self._contents.columns if self._root is None else self._root.labels
        names = self._contents.schema.names if self._root is None else columns
        self.label_columns = {name: name in columns and columns[name].is_added for name in names}
        if self._root is not None:
            # Without the session: a cycle would keep the mapping until the next garbage collection.
            self.index = RecordIndex.of(self._root, self.extents)
        else:
            contents = self._contents
            rows = contents.rows(0, contents.length)
            failures = contents.failures(rows)
            rows = format.bound(np.arange(len(rows)), rows, 0)
            self.index = RecordIndex(rows, contents.length, len(contents.held()), contents.schemas, failures)
        self.length = self.index.length

    def _walk_chain(self, before: Session | None) -> Chain:
        """Walk the chain of an archive that is not sealed, or whose end is damaged."""
        file = self.file
        if before and before._chain and not before.damage and before.file.identity() == file.identity():
            # A growing archive is opened again and again: old entries are read once.
            chain, self.tables = before._chain.copy(), before.tables
            self.damaged = before.damaged.copy()
        else:
            chain = Chain(*format.read_head(file.pread, self.path), self.path)
        chain.extend(file.pread, self.size)
        while self.size > chain.end or chain.unread is not None:
            is_fresh = not isinstance(file, File) or storage.is_fresh(file)
            damage = format.find_damage(chain, file.pread, file.next_data, self.size, is_fresh)
            if damage is None:
                break
            # A writer may have published the next entries since.
            self.size = file.size()
            if chain.extend(file.pread, self.size):
                continue
            if not self.skips_damage:
                remedy = f'"edcache copy {self.path} -o NEW --skip-damaged" keeps what is sound'
                raise CorruptArchiveError(
                    f"{self.path}: {damage}: it is damaged there; {remedy}", path=self.path
                )
            found = format.salvaged(chain, file.pread, file.next_data, self.size)
            self.damage = f"{damage}: it is damaged there; {_state(chain, found)}"
            return found
        return chain

    @property
    def chain(self) -> Chain:
        """Entries of the archive. Cost: the first use reads the header of each, if it is sealed."""
        if self._chain is None:
            chain = Chain(*format.read_head(self.extents.pread, self.path), self.path)
            chain.extend(self.extents.pread, self.size)
            self._chain = chain
        return self._chain

    @property
    def is_durable(self) -> bool:
        """False if it was sealed without a sync, and a power cut may have taken bytes since."""
        if self._root_place is None or not isinstance(self.file, File) or storage.is_fresh(self.file):
            return True
        start = self._root_place.offset - format.header_nbytes("root.json")
        header = format.parse_header(self.file.pread(start, format.MAX_HEADER_NBYTES))
        return header is not None and header.durable > 0

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.chain.chunks) if self._root is None else self._root.chunks

    @property
    def origin(self) -> Head:
        """Head, with fingerprint and length of the last source that lengthened the archive."""
        return self.chain.origin if self._root is None else self._root.origin

    @property
    def declared_length(self) -> int | None:
        """Samples of the dataset; None for an archive that was written without one."""
        has_length = self.head.length is not None or (not self.sealed and self.chain.length is not None)
        return self.length if has_length else None

    @property
    def root(self) -> Root | None:
        """Last root; of an archive that is not sealed, chunks or notes follow it."""
        return self.chain.root if self._root is None else self._root

    @once
    def _contents(self) -> Contents:
        """Rows and labels of an archive that is not sealed."""
        # A seal that is lost may have named the records of parts.
        parts = () if self.damage is None else self.chain.parts
        tables = _sound_tables(self, self.damaged)
        return Contents(self.chain, self.extents.pread, tables, checks_index=False, parts=parts)

    @property
    def has_all(self) -> bool:
        """True if every known sample has a record. An unsealed archive may lack chunks without notice."""
        absent = sum(failure.final for failure in self.index.failures)
        return self.index.present + absent == self.length

    @property
    def complete(self) -> bool:
        """True if it is sealed, and every sample has a record or failed permanently."""
        return self.sealed and self.has_all

    # --- labels ---

    @once
    def labels(self) -> Labels:
        """Columns with one value per sample. Each is read at its first use; salvage reads all now."""
        stored: Contents | StoredLabels = (
            self._contents if self._root is None else StoredLabels(self._root, self.extents.copied, self.path)
        )
        if self.skips_damage:
            return Labels(_sound_labels(self, stored), num_rows=self.length)
        return Labels(stored if isinstance(stored, StoredLabels) else stored.table, num_rows=self.length)

    @once
    def keys(self) -> KeyTable | None:
        """Table of the keys of the samples; None if they have none.

        Cost: of a mapped archive nothing is read; of one that is not sealed, its keys are hashed.
        """
        if self._root is None:
            return self._contents.keys()
        place = self._root.keys
        if place is None:
            return None
        # A mapped one is checked block by block.
        (data,) = self.extents.read_many([place[:2]], None if self._view is not None else [place.fits])
        return KeyTable(data, place.crc32, place.items, self.length, self.path)

    @property
    def original_labels(self) -> dict[str, Any]:
        """Label columns that are as written with the samples: name -> field path, None for values that are no field.

        Columns that were changed or dropped later are left out.
        """
        # The head keeps a tuple as a list.
        return {
            name: tuple(path) if isinstance(path, list) else path
            for name, path in self.head.labels
            if self.label_columns.get(name) is False
        }

    def memory(self) -> dict[str, int]:
        """Count bytes of memory: "mapped" is shared by all processes, "private" is this one's."""
        # Bits of checks, labels, and the index if it is not mapped.
        is_mapped = self.sealed and self._view is not None
        private = self.checks.nbytes + (0 if is_mapped else self.index.nbytes)
        private += origin(self.labels)[0].nbytes if "labels" in vars(self) else 0
        return {"mapped": 0 if self._view is None else self.nbytes, "private": private}

    # --- writers ---

    @property
    def has_writer(self) -> bool:
        """True if a process of this machine writes the archive now; False if unknown, as for a URL."""
        is_locked = self.file.is_locked
        return is_locked(format.LOCK_FILLER, format.FILLERS) or is_locked(format.LOCK_APPEND, 1)

    @property
    def is_abandoned(self) -> bool:
        """True if a first fill failed before its first sample and no process writes the archive now."""
        # No sample was published, and no bytes stand behind the chain.
        is_empty = not self.sealed and self.chain.holds_nothing and self.size <= self.chain.cursor.offset
        return is_empty and not self.has_writer

    # --- samples ---

    @once
    def checks(self) -> Checks:
        """Checks of records."""
        return Checks(self.extents, self.index, self._verify)

    @once
    def _stored(self) -> Stored:
        return Stored(self.checks)

    @once
    def _decoders(self) -> Decoders:
        return codec.Decoders()

    def decoder(self, number: int, index: int) -> Decoder:
        """Return the decoder of a schema, by its number. index: a sample of it. Raises: CorruptRecordError."""
        decoder = self._decoders.get(number)
        if decoder is not None:
            return decoder
        schemas = self.index.schemas
        try:
            if number >= len(schemas):
                raise base.CorruptRecordError(f"schema {number} of {len(schemas)}")
            text = schemas[number]
            if (text == codec.PICKLE_SCHEMA) != (self.head.codec == "pickle"):
                raise base.CorruptRecordError(
                    f"its schema {text[:40]} is not of the codec {self.head.codec!r} that the head names; "
                    f'run "edcache verify {self.path}"'
                )
            return self._decoders.keep(number, codec.decoder_of(text, *self._decode))
        except (base.CorruptRecordError, base.LaterReleaseError) as error:
            raise self.checks.placed(error, index) from error

    def read(self, index: int, fields: Projection | None = None, copy: bool = True) -> Any:
        """Decode one sample.

        Args:
            index: in [0, length). fields: to be read; None for all.
            copy: True returns memory that the caller owns. False returns views of the mapped file, or of fetched bytes,
                unless records are compressed. Do not write to views. They show bytes that are written over the file
                later.
        Raises:
            SampleIndexError: out of range.
            MissingSampleError: no record yet.
            CorruptRecordError: "train.zip: record 17 at offset 4,096: crc32 0x1c291ca3, the index
                says 0x9ae0daf0; ...".
            CodecError: it is a pickle, or its class is not registered.
            ImageError: "train.zip: sample 17: JPEG does not decode: ...".
        """
        try:
            record, decoder = self.fetch(index, fields)
            try:
                if fields is None:
                    return decoder.decode(record, copy=copy)
                return decode_of(decoder, fields, self.label_columns)(record)
            except (base.CodecError, base.CorruptRecordError, base.LaterReleaseError) as error:
                raise self.checks.placed(error, index) from error
        finally:
            self.check_same()

    def fetch(self, index: int, fields: Projection | None = None) -> tuple[memoryview, Decoder]:
        """Return the record of a sample, decompressed, and its decoder.

        Args:
            fields: to be read; only their blocks of a large record are checked.
        Returns:
            Read-only bytes, a view of a mapped file; and the decoder. `check_same` comes behind their last use.
        Raises: as `read`.
        """
        if not 0 <= index < self.length:
            raise base.SampleIndexError(
                f"{self.path}: index {index} not in [0, {self.length:,})", path=self.path, index=index
            )
        row, data = self._stored.record(index, partial(_wanted_in, self, fields))
        if row[4] != PRESENT:
            self.checks.check_known(index, row)
        decoder = self.decoder(row[3], index)
        try:
            if row[4] & COMPRESSED:
                data = decoder.decompressed(data)
            elif len(data) != decoder.nbytes:
                decoder.check_nbytes(len(data))
        except base.CorruptRecordError as error:
            raise self.checks.placed(error, index) from error
        return data, decoder

    # --- many records ---

    @once
    def _lattice(self) -> Lattice:
        """Mapped bytes."""
        assert self._view is not None
        return Lattice(self._view)

    @once
    def _only_decoder(self) -> Decoder | None:
        """Decoder of all records; None unless each sample has one, all of one schema, regular and mapped."""
        index = self.index
        if index.only_schema is None or self._view is None or not index.is_dense or not index.length:
            return None
        try:
            decoder = self.decoder(index.only_schema, 0)
        except (base.CorruptRecordError, base.LaterReleaseError):
            return None  # reading a record names it
        lengths = np.array([index.least_nbytes, index.most_nbytes])
        return decoder if _is_regular(decoder, lengths) else None

    def group(self, indices: Ints, fields: Projection | None = None) -> Records:
        """Return records of samples, to be read one by one or field by field, and checked as by `read`.

        Args:
            indices: int64 [n], each in [-length, length).
            fields: to be read of each; None for all.
        Returns:
            A `Group`, if all records are of one schema.
        Raises: as `read`, but for what does not decode.
        """
        try:
            if not len(indices):
                return Made(list)
            decoder = self._only_decoder
            if decoder is not None:  # The usual case: a batch of small samples takes 50 us in all.
                # One pass checks the range: as unsigned numbers, negative ones are the largest.
                if np.maximum.reduce(indices.view(np.uint64)) >= self.length:
                    indices = checked_indices(indices, self.length)
                return self._mapped_group(decoder, indices, fields)
            indices = checked_indices(indices, self.length)
            rows, stored = self.index.rows(indices), None
            if self._view is None or format.joint_flags(rows) & COMPRESSED:
                rows, stored = self._stored.records(indices, partial(_wanted_in, self, fields))
            for index in indices[rows["flags"] & PRESENT == 0].tolist():
                self.fetch(index)  # raises: it has no record
            if format.joint_flags(rows) & ~(PRESENT | COMPRESSED):
                return Made(lambda: [self.read(index, fields) for index in indices.tolist()])
            parts: list[tuple[Ints, Records]] = []
            for number in sorted(set(rows["schema"].tolist())):
                places = np.flatnonzero(rows["schema"] == number)
                own, decoder = indices[places], self.decoder(number, int(indices[places[0]]))
                if stored is None:
                    is_regular = _is_regular(decoder, rows["nbytes"][places])
                    group: Records = self._mapped_group(decoder, own, fields, is_regular)
                else:
                    pieces = [stored[place] for place in places.tolist()]
                    group = self._loaded_group(decoder, own, fields, rows[places], pieces)
                parts.append((places, group))
            return parts[0][1] if len(parts) == 1 else Several(parts)
        except Exception:  # else the Group compares the head, behind its use
            self.check_same()
            raise

    def _loaded_group(
        self, decoder: Decoder, indices: Ints, fields: Projection | None, rows: Rows, stored: list[Piece]
    ) -> Records:
        """Put records that are compressed, or were not mapped, into memory."""
        are_compressed = rows["flags"] & COMPRESSED > 0
        lengths = rows["nbytes"].astype(np.int64)
        try:
            for row in np.flatnonzero(are_compressed).tolist():
                lengths[row] = decoder.content_nbytes(stored[row].data)
            view, start = loaded(stored, lengths, are_compressed)
        except (MemoryError, ValueError, base.CorruptRecordError):
            return Made(lambda: [self.read(index, fields) for index in indices.tolist()])
        how = self.checks, self.label_columns, fields, _is_regular(decoder, lengths)
        return Group(decoder, Lattice(view), start, indices, lambda _: lengths, *how)

    def _mapped_group(
        self, decoder: Decoder, indices: Ints, fields: Projection | None, is_regular: bool = True
    ) -> Group:
        wanted = _wanted(fields, decoder)
        start = self._stored.locate(indices, wanted)
        if not self.checks.is_done:
            self.checks.records(indices, wanted)
        how = self.checks, self.label_columns, fields, is_regular
        return Group(decoder, self._lattice, start, indices, self.index.sizes, *how)

    # --- growth, and copies ---

    def is_outdated_by(self, file: ByteSource) -> bool:
        """True if a file, which has the path now, has entries that are not read here, or was saved over this one.

        Raises: StaleArchiveError, it is another archive.
        """
        if file.identity() != self.file.identity():
            if _is_rewritten(file, self.path, self.head.uuid):
                return True
            raise base.StaleArchiveError(
                f"{self.path}: the file was replaced since it was opened; open it again", path=self.path
            )
        size = file.size()
        if self.sealed:
            return size != self.size
        # The size proves nothing: a payload may be half written, a chunk may have replaced a torn tail.
        entries = format.walk(file.pread, size, self.head.uuid, self.chain.cursor, self.path)
        # An earlier look may have seen the headers of a seal without its end.
        return next(entries, None) is not None or format.read_root(file.pread, size, self.path) is not None

    def skipping_damage(self) -> Session:
        """Copy the session; the copy has no damaged label column. Samples keep their numbers."""
        other = copy.copy(self)
        other.skips_damage = True
        vars(other).pop("labels", None)
        return other


def _wanted_in(session: Session, fields: Projection | None, row: Row) -> ByteRange:
    """Return the bytes of a record in which fields lie; None for all of it."""
    if fields is None or row[4] & COMPRESSED:
        return None
    try:
        return _wanted(fields, session.decoder(row[3], 0))
    except (base.CorruptRecordError, base.LaterReleaseError):
        return None  # its sum tells if the row is wrong


def _wanted(fields: Projection | None, decoder: Decoder) -> ByteRange:
    plan = None if fields is None else planned(fields, decoder)
    return None if plan is None else plan.wanted


def _is_regular(decoder: Decoder, lengths: Ints) -> bool:
    """True if a gather stays within records of these bytes; else they are read one by one."""
    least, most = int(lengths.min()), int(lengths.max())
    fits = least >= decoder.fixed_nbytes and (decoder.nbytes is None or most == decoder.nbytes == least)
    return decoder.structure is not None and fits


def _is_rewritten(file: ByteSource, path: str, uuid: bytes) -> bool:
    """True if a file is the same archive, saved over itself."""
    try:
        return format.read_head(file.pread, path)[0].uuid == uuid
    except base.LaterReleaseError:
        raise
    except base.ArchiveError:
        return False


def _sound_tables(session: Session, damaged: list[str]) -> format.TableOf:
    """Make a function that reads the table of a chunk; None for a damaged one, which is noted."""
    # Without the session: a cycle would keep the mapping until the next garbage collection.
    pread, path, tables = session.extents.pread, session.path, session.tables

    def table_of(header: Header) -> ChunkTable | None:
        if header.number not in tables:
            try:
                tables[header.number] = format.read_table(pread, header, path)
            except CorruptArchiveError as error:
                damaged.append(str(error))
                tables[header.number] = None
        return tables[header.number]

    return table_of


def _sound_labels(session: Session, stored: Contents | StoredLabels) -> pa.Table:
    """Read the label columns that are sound, or whose values the chunks have; warn of each other one."""
    columns: dict[str, Any] = {}
    for name, is_added in session.label_columns.items():
        try:
            columns[name] = stored.column(name)
        except CorruptArchiveError as error:
            column = None if is_added else _column_of_records(session, stored.schema.field(name))
            if column is not None:
                columns[name] = column
            else:
                text = str(error).removeprefix(f"{session.path}: ").partition(";")[0]
                base.warn(f"{session.path}: {text}; the column is left out", base.PartialArchiveWarning)
    return pa.table(columns)


def _column_of_records(session: Session, field: pa.Field) -> Any:
    """Take a column that came with the samples from their chunks; None if one of these does not read."""
    try:
        # A chunk before the root that does not read costs no sample.
        tables = filter(None, map(_sound_tables(session, []), session.chain.chunks))
    except CorruptArchiveError:  # the head of a sealed archive
        return None
    rows = session.index.unbound_rows(np.arange(session.length))
    return format.column_of_records(field, tables, rows)


def _state(before: Chain, found: Chain) -> str:
    """Tell which state of a damaged archive is read. before: its chain up to the damage."""
    last, new = found.root_header, max(0, len(found.chunks) - len(before.chunks))
    seal = "" if last is None else f"the seal at offset {last.offset:,} and "
    count = len(found.behind) + len(found.parts)
    return f"read are {seal}{count:,} chunks, with {new:,} chunks found behind the damage"
