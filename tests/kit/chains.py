"""An archive in memory, entry by entry, as the specification tells and without the writer."""

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa

from edcache import format
from edcache.format import Header, Root
from edcache.format.entries import Cursor

UUID = bytes(range(16))


class Archive:
    """Bytes that grow. headers: of all entries behind the head."""

    def __init__(self, labels=()):
        self.head = format.Head(UUID, labels=tuple((name, name) for name in labels))
        self.data = bytearray(format.pack_head(self.head))
        _, self.head_header = format.read_head(self.pread, "a.zip")
        self.first = self.cursor = Cursor.behind(self.head_header)
        self.headers = []

    def pread(self, offset, nbytes, is_sound=None):
        return bytes(self.data[offset : offset + nbytes])

    def entry(self, kind, name, payload, **fields):
        """Add an entry; returns its header."""
        (offset, number, link), nbytes = self.cursor, len(payload)
        end = format.align(offset + format.header_nbytes(name) + nbytes, format.PAGE)
        header = Header(kind, name, UUID, number, offset, nbytes, format.crc32(payload), end, link)
        header = replace(header, **fields)
        packed = format.pack_header(header)
        self.data = self.data.ljust(offset, b"\0")
        self.data += (packed + payload).ljust(end - offset, b"\0")
        self.headers.append(replace(header, link_after=format.link_after(packed)))
        self.cursor = Cursor.behind(self.headers[-1])
        return self.headers[-1]

    def chunk(
        self, samples, records=None, schemas=("a",), numbers=0, labels=None, kind=format.CHUNK, **fields
    ):
        """Add a chunk. numbers: which of the schemas each record is of. kind: or a part."""
        samples = np.array(samples, np.int64)
        records = [b"record"] * len(samples) if records is None else records
        labels = pa.table({}) if labels is None else labels
        number = f"{self.cursor.number:08d}"
        name = f"parts/{number}-how-keys" if kind == format.PART else f"chunks/{number}"
        rows, data = np.zeros(len(samples), format.ROW), b""
        rows["schema"], rows["flags"], rows["nbytes"] = numbers, format.PRESENT, list(map(len, records))
        start = self.cursor.offset + format.header_nbytes(name)
        for row, record in zip(rows, records, strict=True):
            data = data.ljust(format.align(len(data), format.record_alignment(len(record))), b"\0")
            row["offset"], row["crc32"] = len(data), format.crc32(format.block_crc32s(record) or record)
            data += record + format.block_crc32s(record)
        table = format.pack_table(samples, rows, schemas, labels, UUID, start)
        said = {"table_nbytes": len(table), "table_crc32": format.crc32(table)}
        place = {"first": int(samples.min()), "end": int(samples.max()) + 1}
        payload = table.ljust(format.align(len(table), 64), b"\0") + data
        return self.entry(kind, name, payload, **(said | place | fields))

    def place(self, header):
        return format.Place(header.payload_offset, header.nbytes, header.crc32)

    def seal(self, rows, schemas, labels, added=(), dropped=(), **said_too):
        """Add rows, which are as in memory, label columns, a root and a zip directory; returns the root."""
        salt = format.salt(UUID, self.cursor.offset + format.header_nbytes("index.rows"))
        index = self.entry(
            format.INDEX, "index.rows", format.bound(np.arange(len(rows)), rows, salt).tobytes()
        )
        columns = {}
        for name, column in zip(labels.column_names, labels.columns, strict=True):
            place = self.place(
                self.entry(format.COLUMN, format.column_name(name), packed_column(name, column))
            )
            columns[name] = format.Column(place, format.type_to_json(column.type), name in added)
        present = int(np.count_nonzero(rows["flags"]))
        chunks = sum(header.kind in (format.CHUNK, format.PART) for header in self.headers)
        said = len(rows), present, chunks, schemas, self.place(index), columns, list(dropped), []
        root = Root(self.head, *said, **said_too)
        self.publish_root(root)
        return root

    def publish_root(self, root):
        last = self.entry(format.ROOT, "root.json", format.pack_root(root))
        newest = {header.name: header for header in [*self.headers[:-1], last]}
        del self.data[last.payload_end :]
        self.data += format.pack_directory([self.head_header, *newest.values()], last.payload_end)
        room = format.align(len(self.data), format.PAGE)
        # The next entry begins behind the directory.
        final = replace(last, next=room)
        packed = format.pack_header(final)
        self.data[last.offset : last.offset + len(packed)] = packed
        self.headers[-1] = replace(final, link_after=format.link_after(packed))
        self.cursor = Cursor.behind(self.headers[-1])

    def walked(self, data=None):
        """The groups of entries that a walk finds in these bytes, or in other ones."""
        data = self.data if data is None else data
        reading = lambda offset, nbytes, is_sound=None: bytes(data[offset : offset + nbytes])  # noqa: E731
        return list(format.walk(reading, len(data), UUID, self.first, "a.zip"))

    def chain(self):
        chain = format.Chain(self.head, self.head_header, "a.zip")
        chain.extend(self.pread, len(self.data))
        return chain


def packed_column(name, column):
    """The Arrow file of a label column."""
    file = io.BytesIO()
    format.write_column(file.write, name, column.type, column.chunks)
    return file.getvalue()
