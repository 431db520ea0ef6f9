"""Indices that lie: index.pages of a sealed archive, everything around it in order."""

import struct
import zlib

import numpy as np
from catalogue import attack
from forge import Forge, dumps

READ = "index.pages does not read"
ABOUT = "index.pages does not say what the chunks say"
PAGE = "page 0 of index.pages does not read"


def _column(f: Forge, name, change):
    def apply(parts):
        values = parts["columns"][name].copy()
        change(values)
        parts["columns"][name] = values

    f.index = apply


def _meta(f: Forge, **changes):
    f.index = lambda parts: parts["meta"].update(changes)


def _page(f: Forge, **changes):
    f.pages = lambda pages: pages[0].update(changes)


@attack(
    "index",
    "a record behind the end of the file",
    "reads what is not there",
    "sample 3",
    says="outside of a file",
)
def offset_outside(f: Forge):
    _column(f, "offset", lambda v: v.__setitem__(3, 1 << 40))


@attack(
    "index",
    "a record that ends behind the end",
    "reads what is not there",
    "sample 3",
    says="outside of a file",
)
def end_outside(f: Forge):
    size = len(f.build())
    _column(f, "offset", lambda v: v.__setitem__(3, size - 8))


@attack(
    "index",
    "offset + nbytes wraps to a small number",
    "passes a check of the end",
    says="take more than a file",
)
def wrapping_end(f: Forge):
    _column(f, "nbytes", lambda v: v.__setitem__(3, (1 << 64) - 4096))


@attack(
    "index",
    "every record is the whole file",
    "a batch takes the file as often as it has samples",
    says="take more than a file",
)
def overlapping(f: Forge):
    size = len(f.build())

    def apply(parts):
        parts["columns"]["offset"] = np.zeros(10, np.uint64)
        parts["columns"]["nbytes"] = np.full(10, size, np.uint64)

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
            values = parts["columns"][name].copy()
            values[[0, 1]] = values[[1, 0]]
            parts["columns"][name] = values

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


@attack(
    "index",
    "index column unsorted",
    "a binary search finds nothing, or others",
    base="sparse",
    says="its samples are not in order",
)
def unsorted(f: Forge):
    _column(f, "index", lambda v: v.__setitem__([0, 1], v[[1, 0]]))


@attack("index", "an index twice", "one of both is found", base="sparse", says="its samples are not in order")
def twice(f: Forge):
    _column(f, "index", lambda v: v.__setitem__(1, v[0]))


@attack("index", "an index of -1", "the last sample", base="sparse", says="its samples are not in order")
def negative_index(f: Forge):
    _column(f, "index", lambda v: v.__setitem__(0, -1))


@attack(
    "index",
    "an index behind the length",
    "writes out of an array",
    "sample 0",
    base="sparse",
    says="its samples are not in order",
)
def beyond_length(f: Forge):
    _column(f, "index", lambda v: v.__setitem__(-1, 1 << 50))


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
    _meta(f, more=[])


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


@attack(
    "index",
    "chunks that overlap",
    "blocks are checked by others' checksums",
    "sample 0",
    says="its chunks overlap",
)
def chunk_overlap(f: Forge):
    f.index = lambda p: p.update(chunks=[p["chunks"][0], p["chunks"][0], *p["chunks"][2:]])


@attack("index", "chunks outside of the file", "checksums are read where nothing is", "verify", says=ABOUT)
def chunk_outside(f: Forge):
    f.index = lambda p: p.update(chunks=[*p["chunks"][:-1], [1 << 40, 1 << 40, 4096]])


@attack("index", "chunks at 2**62", "sums wrap around", "sample 0", says="its chunks overlap")
def chunk_wraps(f: Forge):
    f.index = lambda p: p.update(chunks=[*p["chunks"][:-1], [1 << 62, 1 << 62, 1 << 62]])


@attack("index", "a chunk of negative size", "ends before it begins", "sample 0", says="its chunks overlap")
def negative_chunk(f: Forge):
    f.index = lambda p: p.update(chunks=[[a, b, -n] for a, b, n in p["chunks"]])


@attack("index", "no chunks", "nothing is checked by blocks", "verify", says=ABOUT)
def no_chunks(f: Forge):
    f.index = lambda p: p.update(chunks=[])


@attack("index", "block checksums of another place", "other bytes prove the record", "verify", says=ABOUT)
def other_crcs(f: Forge):
    f.index = lambda p: p.update(chunks=[[crcs - 8, start, n] for crcs, start, n in p["chunks"]])


@attack("index", "a million chunks", "an object for each", "verify", says=ABOUT)
def million_chunks(f: Forge):
    f.index = lambda p: p.update(chunks=bytes(24 * 1_000_000))


@attack("index", "bytes among the chunks that are no triple", "cannot reshape", says=READ)
def chunk_pairs(f: Forge):
    f.index = lambda p: p.update(chunks=p["chunks"] and bytes(16))


@attack("index", "more chunks claimed than there are", "reads pages as chunks", says=READ)
def chunks_claimed(f: Forge):
    _meta(f, chunks=1 << 40)


@attack("index", "a negative number of chunks", "counts backwards", says="it claims -1 chunks")
def chunks_negative(f: Forge):
    _meta(f, chunks=-1)


@attack(
    "index",
    "chunks that fail their crc32",
    "believed",
    "sample 0",
    says="the list of chunks of index.pages fails",
)
def chunks_crc(f: Forge):
    _meta(f, chunks_crc=7)


@attack("index", "fewer rows than the header says", "reads beyond", says="one behind the other")
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
    "does not decompress",
)
def claimed_compression(f: Forge):
    def apply(parts):
        parts["columns"]["raw_nbytes"] = parts["columns"]["nbytes"]
        parts["meta"]["compressed"] = True

    f.index = apply


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


@attack("index", "index.pages of noise", "numbers of any size", says=READ)
def index_noise(f: Forge):
    f.index_bytes = lambda data: np.random.default_rng(3).bytes(len(data))


@attack("index", "an empty index.pages", "a table before the file", None)
def empty_index(f: Forge):
    f.index_bytes = lambda data: b""


@attack("index", "index.pages cut in the middle", "a table before the payload", None)
def cut_index(f: Forge):
    f.index_bytes = lambda data: data[: len(data) // 2]


# --- pages ---


@attack(
    "index",
    "a page that fails its crc32",
    "believed",
    "sample 3",
    says="page 0 of index.pages fails its crc32",
)
def page_crc(f: Forge):
    _page(f, crc=7)


@attack("index", "pages of one row", "a table of pages as long as the archive", says="pages of 2**0 rows")
def tiny_pages(f: Forge):
    f.index = lambda p: p.update(bits=0)


@attack("index", "pages of 2**63 rows", "a shift that wraps", says="pages of 2**63 rows")
def huge_pages(f: Forge):
    f.index = lambda p: p.update(bits=63)


@attack("index", "JSON longer than the table", "reads beyond", says="bytes of JSON")
def long_json(f: Forge):
    f.index_table = lambda table: table[:4] + struct.pack("<I", 1 << 31) + table[8:]


@attack("index", "JSON of an odd length", "numbers at odd places", says="bytes of JSON")
def odd_json(f: Forge):
    f.index_table = lambda table: (
        table[:4] + struct.pack("<I", struct.unpack_from("<I", table, 4)[0] - 1) + table[8:]
    )


@attack("index", "a table of two pages for the rows of one", "which of both", says="its table of pages has")
def two_pages(f: Forge):
    f.pages = lambda pages: pages.append(dict(pages[0], behind=b""))


@attack("index", "no page for ten rows", "an IndexError", says="its table of pages has")
def no_page(f: Forge):
    f.pages = lambda pages: pages.clear()


@attack(
    "index", "a page that begins before the payload", "reads what is before it", says="one behind the other"
)
def page_before(f: Forge):
    _page(f, at=-64)


@attack("index", "a page that begins at 2**62", "reads what is not there", says="one behind the other")
def page_far(f: Forge):
    _page(f, at=1 << 62)


@attack("index", "bytes behind a page", "a place to hide bytes", says="one behind the other")
def page_behind(f: Forge):
    _page(f, behind=b"hidden!!")


@attack("index", "a page shorter than its rows", "reads beyond", says="one behind the other")
def page_short(f: Forge):
    f.pages = lambda pages: pages[0].update(payload=pages[0]["payload"][:16])


@attack("index", "widths that are none", "an IndexError", says="a width that no writer makes")
def width_none(f: Forge):
    f.pages = lambda pages: pages[0].update(widths=pages[0]["widths"] | 7 << 12)


@attack("index", "offsets of one byte", "another meaning", says="a width that no writer makes")
def width_offset(f: Forge):
    f.pages = lambda pages: pages[0].update(widths=pages[0]["widths"] & ~(7 << 3) | 1 << 3)


@attack(
    "index",
    "widths of a sixth column",
    "ignored by one, obeyed by another",
    says="a width that no writer makes",
)
def width_more(f: Forge):
    f.pages = lambda pages: pages[0].update(widths=pages[0]["widths"] | 1 << 15)


def _base(f: Forge, column, value):
    f.pages = lambda pages: pages[0]["base"].__setitem__(column, value)


@attack("index", "a base of -2**63", "wraps around", says="outside of any file")
def base_least(f: Forge):
    _base(f, 1, -(1 << 63))


@attack("index", "a negative offset", "the end of the file", "sample 0", says="outside of a file")
def base_negative(f: Forge):
    _base(f, 1, -4096)


@attack("index", "an offset at an odd place", "unaligned reads", says="multiples of 8")
def base_odd(f: Forge):
    f.pages = lambda pages: pages[0]["base"].__setitem__(1, pages[0]["base"][1] + 1)


@attack("index", "a stride of 2**62", "sums wrap around", "sample 3", says="outside of a file")
def stride_far(f: Forge):
    _page(f, stride=1 << 62)


@attack("index", "a negative stride", "runs backwards", says="outside of any file")
def stride_negative(f: Forge):
    _page(f, stride=-64)


@attack("index", "sizes of less than nothing", "slices from the end", says="outside of a file")
def base_nbytes(f: Forge):
    _base(f, 2, -8)


@attack(
    "index",
    "a sum of sizes beyond the file",
    "a batch takes more than the file has",
    says="take more than a file",
)
def total_far(f: Forge):
    _page(f, total=1 << 50)


@attack(
    "index",
    "a sum of sizes that is not theirs",
    "a limit that limits nothing",
    "sample 3",
    says="other bytes than",
)
def total_lies(f: Forge):
    _page(f, total=0)


@attack("index", "schema 2**16", "numbers of 16 bits do not reach", says="a schema that is none")
def base_schema(f: Forge):
    _base(f, 4, 1 << 16)


@attack("index", "sizes before compression where nothing is compressed", "believed", says="not compressed")
def raw_uncompressed(f: Forge):
    _base(f, 3, 1 << 40)


@attack(
    "index",
    "a size before compression of 2**60",
    "allocates it",
    "sample 0",
    "CorruptRecordError",
    "zstd frame says",
    base="zstd",
)
def raw_bomb(f: Forge):
    _base(f, 3, 1 << 60)


@attack("index", "a flag of compression that is a number", "true enough", says="does not say whether")
def compressed_flag(f: Forge):
    _meta(f, compressed=1)


@attack(
    "index",
    "ten rows of ten samples, counted from one",
    "row i is not sample i",
    says="row i is not sample i",
)
def dense_shifted(f: Forge):
    _base(f, 0, 1)


@attack(
    "index",
    "pages in another order",
    "a binary search finds others",
    base="paged",
    says="one behind the other",
)
def pages_exchanged(f: Forge):
    f.pages = lambda pages: pages.reverse()


@attack(
    "index",
    "the second page alone lies",
    "the first is believed, and so the second",
    "sample 4099 pread",
    base="paged",
    says="page 1 of index.pages fails its crc32",
)
def second_page(f: Forge):
    f.pages = lambda pages: pages[1].update(crc=7)


@attack("index", "no table", "an index of nothing", says="its table is too short")
def no_index_table(f: Forge):
    f.index_table = lambda table: b""


def _difference(f: Forge, column, difference, width):
    """The page with `difference` more in its fourth row of one column, which differs in nothing yet."""

    def change(pages):
        size, rows = (0, 1, 2, 4, 8)[width], len(pages[0]["payload"]) // 4
        delta = [0] * rows
        delta[3] = difference
        pages[0]["widths"] |= width << 3 * column
        pages[0]["payload"] += b"".join(d.to_bytes(size, "little") for d in delta)

    f.pages = change


@attack(
    "index",
    "the second page's records outside of the file, with their right crc32",
    "what was checked of the first is believed",
    base="paged",
    says="outside of a file",
)
def second_outside(f: Forge):
    f.pages = lambda pages: pages[1]["base"].__setitem__(1, 1 << 40)


@attack(
    "index",
    "the second page's sizes beyond their sum",
    "a limit that limits nothing",
    base="paged",
    says="other bytes than",
)
def second_sizes(f: Forge):
    f.pages = lambda pages: pages[1]["base"].__setitem__(2, 8)


@attack(
    "index",
    "the second page's schema is none",
    "an IndexError",
    "sample 4099",
    "CorruptRecordError",
    base="paged",
    says="schema",
)
def second_schema(f: Forge):
    f.pages = lambda pages: pages[1]["base"].__setitem__(4, 9)


@attack(
    "index",
    "the second page's samples beyond the length",
    "found by one look-up, not by another",
    base="paged",
    says="row i is not sample i",
)
def second_beyond(f: Forge):
    f.pages = lambda pages: pages[1]["base"].__setitem__(0, 1 << 40)


@attack("index", "pages of 2**11 rows", "as written, or not", base="paged", says="pages of 2**11 rows")
def small_pages(f: Forge):
    f.index = lambda p: p.update(bits=11)


@attack("index", "pages of 2**41 rows", "a page that is all memory", base="paged", says="pages of 2**41 rows")
def large_pages(f: Forge):
    f.index = lambda p: p.update(bits=41)


@attack(
    "index",
    "a difference of 2**61 units of 8 bytes",
    "it wraps to an offset in the file; elsewhere it does not",
    "sample 3",
    base="paged",
    says="a number that no writer makes",
)
def wrapping_difference(f: Forge):
    _difference(f, 1, 1 << 61, 4)


@attack(
    "index",
    "a stride of 2**61 that wraps at every eighth row",
    "some rows lie in the file, some do not",
    "sample 3",
    base="paged",
    says="outside of a file",
)
def wrapping_stride(f: Forge):
    def change(pages):
        rows = len(pages[0]["payload"]) // 4
        stride = pages[0]["stride"]
        # Modulo 2**64 every row lies where it did.
        delta = [((stride - (1 << 61)) * k % (1 << 64)) >> 3 for k in range(rows)]
        pages[0]["widths"] |= 4 << 3
        pages[0]["stride"] = 1 << 61
        pages[0]["payload"] += b"".join(d.to_bytes(8, "little") for d in delta)

    f.pages = change


@attack(
    "index",
    "a size that differs by 2**63",
    "negative, as int64",
    "sample 3",
    base="paged",
    says="a number that no writer makes",
)
def wrapping_size(f: Forge):
    _difference(f, 2, 1 << 63, 4)


@attack("index", "JSON without a key", "a KeyError", says="other keys")
def key_missing(f: Forge):
    f.index = lambda p: p["meta"].pop("schemas")


@attack("index", "JSON with a key more", "ignored by one, obeyed by another", says="other keys")
def key_unknown(f: Forge):
    _meta(f, pages=1)


@attack("index", "JSON with a key twice", "the first or the last", says=READ)
def key_twice(f: Forge):
    def twice(table):
        bits, nbytes = struct.unpack_from("<II", table)
        text = b'{"length":10,' + table[9 : 8 + nbytes].rstrip()
        text = text.ljust(-(-len(text) // 8) * 8)
        return struct.pack("<II", bits, len(text)) + text + table[8 + nbytes :]

    f.index_table = twice


@attack(
    "index",
    "differences of sizes before compression where nothing is compressed",
    "believed",
    base="paged",
    says="not compressed",
)
def raw_differences(f: Forge):
    _difference(f, 3, 8, 1)


@attack(
    "index", "a header that says its table has no bytes", "an index of nothing", says="its table is too short"
)
def table_of_nothing(f: Forge):
    f.index_header = lambda fields: fields.update(table_nbytes=0, table_crc=0)


@attack("index", "a table longer than its payload", "reads what is before it", None)
def table_beyond(f: Forge):
    """It is no header, so the archive is not sealed."""
    f.index_header = lambda fields: fields.update(table_nbytes=fields["size"] + 64)


@attack("index", "a table that begins within a page", "pages that overlap their table", says=READ)
def table_in_page(f: Forge):
    def earlier(fields):
        nbytes = len(fields["payload"]) - 8
        fields.update(table_nbytes=nbytes, table_crc=zlib.crc32(fields["payload"][8:]))

    f.index_header = earlier
