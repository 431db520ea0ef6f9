"""Indices that lie: index.arrow of a sealed archive, everything around it in order."""

import io
import struct

import numpy as np
import pyarrow as pa
from catalogue import attack
from forge import Forge, arrow_file, dumps

READ = "index.arrow does not read"
ABOUT = "index.arrow is about another length, other chunks or other dictionaries"
MORE = "index.arrow lists more than a file of"


def _column(f: Forge, name, change):
    def apply(parts):
        values = parts["columns"][name].to_numpy().copy()
        change(values)
        parts["columns"][name] = pa.array(values)

    f.index = apply


def _meta(f: Forge, **changes):
    f.index = lambda parts: parts["meta"].update(changes)


@attack("index", "a record behind the end of the file", "reads what is not there", says=MORE)
def offset_outside(f: Forge):
    _column(f, "offset", lambda v: v.__setitem__(3, 1 << 40))


@attack(
    "index",
    "a record that ends behind the end",
    "reads what is not there",
    "sample 3",
    "CorruptRecordError",
    "the file at",
)
def end_outside(f: Forge):
    size = len(f.build())
    _column(f, "offset", lambda v: v.__setitem__(3, size - 8))


@attack("index", "offset + nbytes wraps to a small number", "passes a check of the end", says=MORE)
def wrapping_end(f: Forge):
    _column(f, "nbytes", lambda v: v.__setitem__(3, (1 << 64) - 4096))


@attack(
    "index", "every record is the whole file", "a batch takes the file as often as it has samples", says=MORE
)
def overlapping(f: Forge):
    size = len(f.build())

    def apply(parts):
        parts["columns"]["offset"] = pa.array(np.zeros(10, np.uint64))
        parts["columns"]["nbytes"] = pa.array(np.full(10, size, np.uint64))

    f.index = apply


@attack(
    "index",
    "a record over a header",
    "shows other bytes as a sample",
    "verify",
    says="does not say what the chunks say",
    forged=True,
)
def over_a_header(f: Forge):
    """Reading it gives an error, or the bytes that the attacker chose; nothing more."""
    _column(f, "offset", lambda v: v.__setitem__(3, 4096))


@attack(
    "index",
    "two records exchanged",
    "samples under other indices",
    "verify",
    says="does not say what the chunks say",
    forged=True,
)
def exchanged(f: Forge):
    """Nothing but the chunks' tables can tell, which only verify reads."""

    def apply(parts):
        for name in ("offset", "nbytes", "crc32"):
            values = parts["columns"][name].to_numpy().copy()
            values[[0, 1]] = values[[1, 0]]
            parts["columns"][name] = pa.array(values)

    f.index = apply


@attack(
    "index",
    "a record's crc32",
    "checked never, or too late",
    "verify",
    says="does not say what the chunks say",
)
def record_crc(f: Forge):
    """The crc32 of the blocks around it proves the record, which is the original."""
    _column(f, "crc32", lambda v: v.__setitem__(3, 1))


@attack("index", "offsets of int32", "reinterpreted as another type", says=READ)
def wrong_dtype(f: Forge):
    f.index = lambda p: p["columns"].update(offset=p["columns"]["offset"].cast(pa.int32()))


@attack("index", "offsets of float64", "rounded", says=READ)
def float_offsets(f: Forge):
    f.index = lambda p: p["columns"].update(offset=p["columns"]["offset"].cast(pa.float64()))


@attack("index", "a null among the offsets", "the bytes below a null are used", says="nulls")
def null_offset(f: Forge):
    f.index = lambda p: p["columns"].update(
        offset=pa.array([None, *p["columns"]["offset"].to_pylist()[1:]], pa.uint64())
    )


class Noted(pa.ExtensionType):
    """An extension type."""

    def __init__(self):
        super().__init__(pa.uint64(), "edcache.test")

    def __arrow_ext_serialize__(self):
        return b"cos\nsystem\n."

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        raise AssertionError("code of an extension type ran")


@attack(
    "index",
    "a registered extension type",
    "its class deserialises what the file says",
    says="an extension type",
)
def extension_type(f: Forge):
    f.index = lambda p: p["columns"].update(
        offset=pa.ExtensionArray.from_storage(Noted(), p["columns"]["offset"])
    )


@attack("index", "a dictionary column", "indices into another batch", says=READ)
def dictionary_column(f: Forge):
    f.index = lambda p: p["columns"].update(offset=p["columns"]["offset"].dictionary_encode())


@attack("index", "honest compressed buffers", "an allocation by what they claim", says="compressed buffers")
def compressed_index(f: Forge):
    f.index_options = {"compression": "zstd"}


@attack("index", "compressed buffers that claim 8 GiB each", "allocates 8 GiB", says="compressed buffers")
def compressed_bomb(f: Forge):
    f.index_options = {"compression": "lz4"}

    def claim(data):
        body = bytearray(data)
        sizes = [at for at in range(0, len(body) - 8, 8) if body[at : at + 8] == struct.pack("<q", 80)]
        assert sizes
        for at in sizes:
            body[at : at + 8] = struct.pack("<q", 8 << 30)
        return bytes(body)

    f.index_bytes = claim


@attack("index", "two batches", "the second is read too, or not", says="behind its first batch")
def two_batches(f: Forge):
    def split(data):
        table = pa.ipc.open_file(data).read_all()
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=5)
        return sink.getvalue()

    f.index_bytes = split


@attack("index", "no batch", "an index of nothing", says=READ)
def no_batch(f: Forge):
    def empty(data):
        sink = io.BytesIO()
        pa.ipc.new_file(sink, pa.ipc.open_file(data).schema).close()
        return sink.getvalue()

    f.index_bytes = empty


@attack("index", "a stream where a file belongs", "opened as what it is", says="no Arrow file")
def stream_index(f: Forge):
    def stream(data):
        table = pa.ipc.open_file(data).read_all()
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    f.index_bytes = stream


@attack("index", "other columns in the footer than in the stream", "two programs read two tables", says=READ)
def two_schemas(f: Forge):
    def swap(data):
        at = data.rindex(b"crc32")
        return data[:at] + b"CRC32" + data[at + 5 :]

    f.index_bytes = swap


@attack(
    "index",
    "other metadata in the footer than in the stream",
    "two programs read two lengths",
    says="two schemas differ",
)
def two_metadata(f: Forge):
    def swap(data):
        at = data.rindex(b'"length":10')
        return data[:at] + b'"length":99' + data[at + 11 :]

    f.index_bytes = swap


@attack(
    "index",
    "bytes between batch and footer",
    "a place to hide bytes",
    says="between the batch and the footer",
)
def hidden_in_arrow(f: Forge):
    def hide(data):
        nbytes = struct.unpack("<i", data[-10:-6])[0]
        at = len(data) - 10 - nbytes
        return data[:at] + b"hidden!!" * 4 + data[at:]

    f.index_bytes = hide


@attack(
    "index",
    "the footer's block points elsewhere",
    "another batch is read",
    says="does not point at the one batch",
)
def footer_block(f: Forge):
    def point(data):
        nbytes = struct.unpack("<i", data[-10:-6])[0]
        start = len(data) - 10 - nbytes
        batch = _batch_offset(data)
        at = data.index(struct.pack("<q", batch), start)
        return data[:at] + struct.pack("<q", batch + 8) + data[at + 8 :]

    f.index_bytes = point


def _batch_offset(data):
    return 8 + 8 + struct.unpack("<i", data[12:16])[0]


@attack("index", "a body of 2**62 bytes", "allocates the body", says=READ)
def body_length(f: Forge):
    _patch_batch(f, lambda body: 1 << 62)


def _patch_batch(f: Forge, change):
    def patch(data):
        start = _batch_offset(data)
        metadata = struct.unpack("<i", data[start + 4 : start + 8])[0]
        nbytes = struct.unpack("<i", data[-10:-6])[0]
        footer = len(data) - 10 - nbytes
        body = footer - 8 - start - 8 - metadata
        at = data.index(struct.pack("<q", body), start, start + 8 + metadata)
        return data[:at] + struct.pack("<q", change(body)) + data[at + 8 :]

    f.index_bytes = patch


@attack("index", "a body of a negative length", "wraps around", says=READ)
def negative_body(f: Forge):
    _patch_batch(f, lambda body: -8)


def _patch_buffer(f: Forge, change, which=1):
    """Change the (offset, nbytes) of a buffer of the batch; number 1 is the data of the first column."""

    def patch(data):
        start = _batch_offset(data)
        metadata = struct.unpack("<i", data[start + 4 : start + 8])[0]
        first = struct.pack("<qqqq", 0, 0, 0, 80)
        at = data.index(first, start, start + 8 + metadata) + 16 * which
        offset, nbytes = struct.unpack_from("<qq", data, at)
        return data[:at] + struct.pack("<qq", *change(offset, nbytes)) + data[at + 16 :]

    f.index_bytes = patch


@attack("index", "a buffer outside of its batch", "reads beyond", says="overlap, or leave its body")
def buffer_outside(f: Forge):
    _patch_buffer(f, lambda offset, nbytes: (1 << 40, nbytes))


@attack("index", "a buffer of a negative length", "wraps around", says="overlap, or leave its body")
def negative_buffer(f: Forge):
    _patch_buffer(f, lambda offset, nbytes: (offset, -80))


@attack("index", "a buffer shorter than its rows", "reads beyond", says=READ)
def short_buffer(f: Forge):
    _patch_buffer(f, lambda offset, nbytes: (offset, 8))


@attack(
    "index", "two columns in one buffer", "a little file, many columns", says="overlap, or leave its body"
)
def shared_buffer(f: Forge):
    _patch_buffer(f, lambda offset, nbytes: (0, nbytes), which=3)


@attack("index", "a buffer at an odd place", "unaligned reads", says="overlap, or leave its body")
def odd_buffer(f: Forge):
    _patch_buffer(f, lambda offset, nbytes: (offset + 1, nbytes - 8))


@attack("index", "big-endian numbers", "swaps, in new memory", says=READ)
def big_endian(f: Forge):
    def swap(data):
        # The schema table has its endianness as its first field; a writer that leaves it at 0 leaves it out.
        nbytes = struct.unpack("<i", data[-10:-6])[0]
        footer = data[len(data) - 10 - nbytes : -10]
        at = data.index(footer[-64:])
        return data[:at] + bytes(len(footer[-64:])) + data[at + 64 :]

    f.index_bytes = swap


@attack(
    "index",
    "offsets in flatbuffers that point backwards out of the bytes",
    "reads before the start",
    says=READ,
)
def negative_vtable(f: Forge):
    def patch(data):
        start = _batch_offset(data) + 8
        root = start + struct.unpack("<I", data[start : start + 4])[0]
        return data[:root] + struct.pack("<i", 1 << 30) + data[root + 4 :]

    f.index_bytes = patch


@attack("index", "a metadata size of 2**31 - 1", "allocates it", says=READ)
def metadata_size(f: Forge):
    f.index_bytes = lambda data: data[:12] + struct.pack("<i", (1 << 31) - 1) + data[16:]


@attack(
    "index",
    "index column unsorted",
    "a binary search finds nothing, or others",
    base="sparse",
    says="not strictly increasing",
)
def unsorted(f: Forge):
    _column(f, "index", lambda v: v.__setitem__([0, 1], v[[1, 0]]))


@attack("index", "an index twice", "one of both is found", base="sparse", says="not strictly increasing")
def twice(f: Forge):
    _column(f, "index", lambda v: v.__setitem__(1, v[0]))


@attack("index", "an index of -1", "the last sample", base="sparse", says="not strictly increasing")
def negative_index(f: Forge):
    _column(f, "index", lambda v: v.__setitem__(0, -1))


@attack(
    "index",
    "an index behind the length",
    "writes out of an array",
    base="sparse",
    says="not strictly increasing",
)
def beyond_length(f: Forge):
    _column(f, "index", lambda v: v.__setitem__(-1, 1 << 50))


@attack(
    "sizes",
    "length 10**15 with ten rows, and an amendment that agrees",
    "allocates by length",
    "missing",
    "LengthError",
    "samples would take",
    base="sparse",
    longer=True,
)
def agreed_length(f: Forge):
    f.amend({"length": 10**15})


@attack(
    "sizes",
    "length 10**12, labels of a sealed archive",
    "a row for each sample",
    "labels",
    "LengthError",
    "samples would take",
    base="sparse",
    longer=True,
)
def agreed_labels(f: Forge):
    f.amend({"length": 10**12})


@attack(
    "sizes",
    "length 10**12, a condition on a label",
    "a mask for all samples",
    "filter y=1",
    "LengthError",
    "samples would take",
    base="sparse",
    longer=True,
)
def agreed_filter(f: Forge):
    f.amend({"length": 10**12})


@attack("index", "length 10**15 with ten rows", "allocates by length", base="sparse", says=ABOUT)
def long_index(f: Forge):
    _meta(f, length=10**15)


@attack("index", "length 10**15, dense", "row i is sample i", says="claims 1000000000000000 samples")
def long_dense(f: Forge):
    _meta(f, length=10**15)


@attack("index", "length of 5,000 digits", "conversion takes quadratic time", says=READ)
def digits(f: Forge):
    f.index = lambda p: (
        p.update(meta=dumps(p["meta"]).replace(b'"length":10', b'"length":1' + b"0" * 5000))
        or p.update(meta=_Length(p["meta"]))
    )


class _Length(bytes):
    """Metadata as bytes that still say a length to the packer."""

    def __getitem__(self, key):
        return 10 if key == "length" else super().__getitem__(key)


@attack("index", "length null", "compares with nothing", says=READ)
def null_length(f: Forge):
    f.index = lambda p: p.update(meta=_Length(dumps(p["meta"]).replace(b'"length":10', b'"length":null')))


@attack("index", "metadata of 20 MB of empty lists", "a gigabyte of Python objects", says="values in")
def metadata_bomb(f: Forge):
    f.index = lambda p: p.update(meta=_Length(b'{"length":10,"schemas":[' + b"[]," * 6_600_000 + b"[]]}"))


@attack(
    "index", "metadata of 8 MB of one text outside of the BMP", "four bytes a character, twice", says=READ
)
def wide_metadata(f: Forge):
    f.index = lambda p: p.update(meta=_Length(b'{"length":10,"x":"\\ud83d\\ude00' + b"a" * (8 << 20) + b'"}'))


@attack("index", "metadata that is a number", "no keys", says="other keys")
def metadata_number(f: Forge):
    f.index = lambda p: p.update(meta=_Length(b"7"))


@attack("index", "metadata with another key", "ignored by one, obeyed by another", says="other keys")
def metadata_key(f: Forge):
    _meta(f, chunks=[])


@attack("index", "100,000 keys of Arrow metadata", "an object for each", says="metadata that no writer makes")
def many_keys(f: Forge):
    f.index = lambda p: p["keys"].update({f"k{i}": "v" for i in range(100_000)})


@attack("index", "schemas that are numbers", "no attribute encode", says="its schemas are not texts")
def schema_numbers(f: Forge):
    _meta(f, schemas=[5])


@attack("index", "70,000 schemas", "numbers of 16 bits do not reach", says="the format allows 65,536")
def many_schemas(f: Forge):
    _meta(f, schemas=['"int"'] * 70_000)


@attack(
    "index",
    "a schema number out of range",
    "an IndexError",
    "sample 3",
    "CorruptRecordError",
    "schema 9 of 1",
)
def schema_number(f: Forge):
    _column(f, "schema", lambda v: v.__setitem__(3, 9))


@attack(
    "index",
    "another schema than the chunk's",
    "bytes read as another type",
    "verify",
    says="does not say what the chunks say",
    forged=True,
)
def another_schema(f: Forge):
    """Decodes to what its bytes are in that schema, or is refused."""
    _meta(f, schemas=['["dict",["image"],["bytes"]]'])


@attack("index", "chunks that overlap", "blocks are checked by others' checksums", says="its chunks overlap")
def chunk_overlap(f: Forge):
    f.index = lambda p: p.update(chunks=[p["chunks"][0], p["chunks"][0], *p["chunks"][2:]])


@attack("index", "chunks outside of the file", "checksums are read where nothing is", says=ABOUT)
def chunk_outside(f: Forge):
    f.index = lambda p: p.update(chunks=[*p["chunks"][:-1], [1 << 40, 1 << 40, 4096]])


@attack("index", "chunks at 2**62", "sums wrap around", says="its chunks overlap")
def chunk_wraps(f: Forge):
    f.index = lambda p: p.update(chunks=[*p["chunks"][:-1], [1 << 62, 1 << 62, 1 << 62]])


@attack("index", "a chunk of negative size", "ends before it begins", says="its chunks overlap")
def negative_chunk(f: Forge):
    f.index = lambda p: p.update(chunks=[[a, b, -n] for a, b, n in p["chunks"]])


@attack("index", "no chunks", "nothing is checked by blocks", says=ABOUT)
def no_chunks(f: Forge):
    f.index = lambda p: p.update(chunks=[])


@attack("index", "block checksums of another place", "other bytes prove the record", says=ABOUT)
def other_crcs(f: Forge):
    f.index = lambda p: p.update(chunks=[[crcs - 8, start, n] for crcs, start, n in p["chunks"]])


@attack("index", "a million chunks", "an object for each", says=ABOUT)
def million_chunks(f: Forge):
    f.index = lambda p: p.update(chunks=struct.pack("<qqq", 0, 0, 0).hex() and _triples(1_000_000))


def _triples(count):
    import base64

    return base64.b64encode(bytes(24 * count))


@attack("index", "chunks that are no base64", "binascii.Error", says=READ)
def chunk_noise(f: Forge):
    f.index = lambda p: p.update(chunks=b"*" * 64)


@attack("index", "chunks that are no triples", "cannot reshape", says=READ)
def chunk_pairs(f: Forge):
    f.index = lambda p: p.update(chunks=b"AAAAAAAAAAAAAAAAAAAAAA==")


@attack("index", "a dictionary outside of the file", "reads what is not there", base="dict", says=ABOUT)
def dictionary_outside(f: Forge):
    _meta(f, dictionaries=[[1 << 40, 100, 7]])


@attack(
    "index",
    "a dictionary twice a thousand times",
    "read a thousand times",
    base="dict",
    says="its dictionaries overlap",
)
def dictionary_often(f: Forge):
    f.index = lambda p: p["meta"].update(dictionaries=p["meta"]["dictionaries"] * 1000)


@attack(
    "index",
    "dictionaries of floats",
    "truncated to ints",
    base="dict",
    says="one of its dictionaries is none",
)
def dictionary_floats(f: Forge):
    f.index = lambda p: p["meta"].update(
        dictionaries=[[float(x) for x in d] for d in p["meta"]["dictionaries"]]
    )


@attack("index", "no dictionary", "zstd guesses", base="dict", says=ABOUT)
def no_dictionary(f: Forge):
    _meta(f, dictionaries=[])


@attack("index", "a column more", "ignored by one, obeyed by another", says=READ)
def extra_column(f: Forge):
    f.index = lambda p: p["columns"].update(path=p["columns"]["offset"])


@attack("index", "1,000 columns", "an object for each", says="columns, 6 are written")
def many_columns(f: Forge):
    f.index = lambda p: p["columns"].update({f"c{i}": p["columns"]["offset"] for i in range(1000)})


@attack("index", "a column less", "a KeyError", says=READ)
def missing_column(f: Forge):
    f.index = lambda p: p["columns"].pop("crc32")


@attack("index", "columns in another order", "read by position", says=READ)
def column_order(f: Forge):
    f.index = lambda p: p.update(columns=dict(reversed(p["columns"].items())))


@attack("index", "a column twice", "one hides the other", says=READ)
def column_twice(f: Forge):
    def double(data):
        table = pa.ipc.open_file(data).read_all()
        table = table.append_column("offset", table["offset"])
        return arrow_file(table)

    f.index_bytes = double


@attack("index", "fewer rows than the header says", "reads beyond", says="rows, the header says")
def fewer_rows(f: Forge):
    f.index = lambda p: p.update(columns={name: column[:5] for name, column in p["columns"].items()})


@attack("index", "a header that claims more rows than the length", "a length of another meaning", None)
def more_rows(f: Forge):
    """A seal of other numbers is none; the chain is read."""
    f.index_header = lambda fields: fields.update(samples=1 << 40)


@attack(
    "index",
    "compression claimed of records that have none",
    "decompresses what was no frame",
    "sample 0",
    "CorruptRecordError",
    "no zstd frame",
)
def claimed_compression(f: Forge):
    f.index = lambda p: p["columns"].update(raw_nbytes=p["columns"]["nbytes"])


@attack(
    "index",
    "failures of samples that are there",
    "errors for what can be read",
    "verify",
    says="does not say what the chunks say",
)
def failures_of_present(f: Forge):
    """Never looked at for a sample that has a record."""
    _meta(f, failed=[[0, True, "E", "m", "t"]])


@attack(
    "index",
    "a failure behind the length",
    "an index out of range",
    says="one of its failures is of no sample",
)
def failure_beyond(f: Forge):
    _meta(f, failed=[[10**15, True, "E", "m", "t"]])


@attack("index", "an Arrow file of noise", "ArrowInvalid", says=READ)
def index_noise(f: Forge):
    f.index_bytes = lambda data: np.random.default_rng(3).bytes(len(data))


@attack("index", "an empty index.arrow", "ArrowInvalid", says=READ)
def empty_index(f: Forge):
    f.index_bytes = lambda data: b""


@attack("index", "index.arrow cut in the middle", "ArrowInvalid", says=READ)
def cut_index(f: Forge):
    f.index_bytes = lambda data: data[: len(data) // 2]
