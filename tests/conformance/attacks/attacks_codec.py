"""Schemas, records and frames that lie: the only rows of an archive, sealed and otherwise in order."""

import json
import struct

import zstandard
from catalogue import attack
from forge import Forge, Row

SCHEMA = "schema: "
DECODE = "CorruptRecordError"


def only(f: Forge, text, *records: bytes, raw_nbytes=None):
    """The archive holds these records alone, all of one schema."""
    f.entries = [entry for entry in f.entries if entry.kind != 1 or entry.content is f.chunks[0]]
    chunk = f.chunks[0]
    chunk.schemas = [text if isinstance(text, str) else json.dumps(text, separators=(",", ":"))]
    chunk.rows = [Row(i, record, 0, raw_nbytes) for i, record in enumerate(records)]
    chunk.labels = chunk.labels.take([0] * len(records))


def _schema(theme, name, idea, naive, text, record=b"", call="sample 0", error=DECODE, says=SCHEMA, **more):
    @attack(theme, idea, naive, call, error, says, forged=True, **more)
    def make(f: Forge):
        only(f, text, record)

    make.__name__ = name


def _accepted(theme, name, idea, naive, text, record, **more):
    _schema(theme, name, idea, naive, text, record, call=None, error="", says="", **more)


NODES = 40_000
_schema(
    "schemas",
    "deep_schema",
    "nested 100,000 deep",
    "recursion without end",
    "[" * 100_000,
    says="nested too deep",
)
_schema(
    "schemas",
    "deep_containers",
    "containers nested 70 deep",
    "recursion in every reader",
    '["list",[' * 70 + '"int"' + "]]" * 70,
)
_schema(
    "schemas",
    "many_nodes",
    f"{NODES:,} nodes",
    "a kilobyte of objects for five bytes",
    ["list", ["none"] * NODES],
)
_schema(
    "schemas",
    "long_schema",
    "a text of 17 MB",
    "read whole",
    '["dict",["' + "a" * (17 << 20) + '"],["int"]]',
    says="characters, more than",
)
_schema("schemas", "schema_is_number", "a number", "no kind", "5")
_schema("schemas", "schema_nan", "NaN for a dimension", "no dimension", '["array","<f4",[NaN]]')
_schema("schemas", "schema_float", "dimension 1e3", "a float as a size", '["array","<f4",[1e3]]')
_schema("schemas", "schema_bool", "dimension true", "True is 1", '["array","<f4",[true]]')
_schema(
    "schemas",
    "double_keys",
    "a dict key twice",
    "one value hides the other",
    '["dict",["a","a"],["int","int"]]',
    bytes(16),
)
_schema(
    "schemas",
    "equal_keys",
    "dict keys that are equal: 1 and true",
    "one value hides the other",
    '["dict",[["int",1],["bool",true]],["int","int"]]',
    bytes(16),
)
_schema(
    "schemas",
    "nan_keys",
    "a float key of seven bytes",
    "struct.error",
    '["dict",[["float","00000000000000"]],["int"]]',
)
_schema(
    "schemas",
    "shape_overflow",
    "a shape whose product wraps",
    "a small size of a large array",
    ["array", "<f8", [1 << 31, 1 << 31, 8]],
)
_schema("schemas", "negative_shape", "a negative dimension", "a size from the end", ["array", "<f8", [-1, 8]])
_accepted(
    "schemas",
    "empty_and_long",
    "shape (2**40, 0)",
    "multiplies before it looks at the 0",
    ["array", "<f4", [1 << 40, 0]],
    b"",
)
_schema(
    "schemas",
    "empty_overflow",
    "shape (2**62, 2**62, 0)",
    "strides that wrap",
    ["array", "<f4", [1 << 62, 1 << 62, 0]],
)
_accepted(
    "schemas", "no_item", "2**40 items of no bytes", "a loop over them", ["array", "|V0", [1 << 40]], b""
)
_schema("schemas", "many_dims", "65 dimensions", "numpy has 64", ["array", "<f4", [1] * 65], bytes(4))
_schema("schemas", "objects", "dtype of objects", "bytes become pointers", '["array","|O8",[1]]', bytes(8))
_schema(
    "schemas",
    "struct_objects",
    "objects in a structured dtype",
    "bytes become pointers",
    '["array",["struct",[["a",null,0,"|O8"]],8,false],[1]]',
    bytes(8),
)
_schema(
    "schemas",
    "evaluated_dtype",
    "a dtype's text that numpy would parse as code",
    "comma strings are parsed",
    '["array","f4,(2,)i4,O",[1]]',
)
_schema(
    "schemas",
    "deep_dtype",
    "a dtype nested 1,000 deep",
    "recursion in numpy's repr",
    '["array",' + '["struct",[["a",0,' * 1000 + '"|u1"' + "]],1]" * 1000 + ",[1]]",
)
_accepted(
    "schemas",
    "overlapping_fields",
    "fields of a dtype that overlap",
    "two names of one memory",
    '["array",["struct",[["a",0,"<f4"],["b",2,"<f4"]],8],[1]]',
    bytes(8),
)
_schema(
    "schemas",
    "field_outside",
    "a field behind its item",
    "reads the next item",
    '["array",["struct",[["a",60,"<f4"]],8],[1]]',
    bytes(8),
)
_schema(
    "schemas",
    "negative_field",
    "a field before its item",
    "reads the item before",
    '["array",["struct",[["a",-4,"<f4"]],8],[1]]',
    bytes(8),
)
_schema(
    "schemas",
    "many_fields",
    "a dtype of 60,000 fields",
    "quadratic checks of names",
    ["array", ["struct", [[f"f{i}", i, "|u1"] for i in range(60_000)], 60_000], [1]],
    says="its schema says 60000",
)
_schema(
    "schemas",
    "huge_item",
    "an item of 9,999,999,999 characters",
    "allocates one",
    '["scalar","<U9999999999"]',
)
_schema(
    "schemas",
    "large_text_item",
    "an item of 500 MB and a record of none",
    "allocates one",
    '["scalar","<U125000000"]',
    says="record of 0 bytes, its schema says 500000000",
)
_schema(
    "schemas",
    "enum_import",
    "an enum by the name of a class to import",
    "imports the module",
    '["enum","antigravity","Popen"]',
    struct.pack("<q", 1) + b"x",
    error="CodecError",
    says="which this process has not registered",
)
_schema(
    "schemas",
    "dataclass_import",
    "a dataclass by the name of a class to import",
    "imports the module, calls it",
    '["dataclass","subprocess","Popen",["args"],["int"]]',
    bytes(8),
    error="CodecError",
    says="which this process has not registered",
)
_schema(
    "schemas",
    "namedtuple_import",
    "a namedtuple of a module that is not imported",
    "imports the module",
    '["namedtuple","antigravity","Geohash",["a"],["int"]]',
    bytes(8),
    error="CodecError",
    says="which this process has not registered",
)
_schema(
    "schemas",
    "namedtuple_code",
    "a namedtuple whose name is code",
    "namedtuple evaluates its name",
    '["namedtuple","m","x(); import os",["a"],["int"]]',
    bytes(8),
    error="CodecError",
    says="which this process has not registered",
)
_schema(
    "schemas",
    "namedtuple_field",
    "a namedtuple with a field that is code",
    "namedtuple evaluates its fields",
    '["namedtuple","m","q",["a=print(1)"],["int"]]',
    bytes(8),
    error="CodecError",
    says="which this process has not registered",
)
_schema(
    "schemas",
    "image_parts",
    "an image without pixels",
    "unpacking fails",
    '["object","PIL.Image","Image",[["tuple",["int","int"]]]]',
    bytes(16),
    says="its decode= raised ValueError",
)
_schema("schemas", "path_class", "a path of the class Popen", "getattr of a module", '["path","Popen"]')
_schema(
    "schemas",
    "zone_file",
    "a time zone that is a path",
    "reads a file by name",
    '["datetime","../../../../etc/passwd"]',
    bytes(8),
)
_schema(
    "schemas",
    "zone_unknown",
    "a time zone that nobody has",
    "KeyError",
    '["datetime","No/Such_Zone"]',
    bytes(8),
    error="MissingDependencyError",
    says="no time zone 'No/Such_Zone' on this system",
)
_schema(
    "schemas",
    "zone_offset",
    "a time zone of a year",
    "ValueError of datetime",
    '["datetime",[31536000000000,null]]',
    bytes(8),
)
_schema(
    "schemas",
    "surrogates",
    "a schema that is no ASCII",
    "encodings to guess",
    '["dict",["ä"],["int"]]',
    bytes(8),
    says="not ASCII",
)
_schema(
    "schemas",
    "self_in_self",
    "a record that describes itself as describing itself",
    "recursion without end",
    '{"self":1}',
    struct.pack("<Q", 10) + b'{"self":1}' + bytes(6) + bytes(64),
    says="describes itself as",
)
_schema(
    "schemas",
    "self_pickle",
    "a record that describes itself as a pickle",
    "code runs",
    '{"self":1}',
    struct.pack("<Q", 12) + b'{"pickle":5}' + bytes(4) + b"cos\nsystem\n(S'true'\ntR.",
    says="describes itself as",
)


@attack(
    "schemas",
    "8 schemas of 3,000 nodes, each for one record",
    "all their decoders are kept",
    None,
    forged=True,
)
def many_large_schemas(f: Forge):
    """Only so many decoders are kept as their texts are short together."""
    only(f, '"int"', *[bytes(8 * 3_000)] * 8)
    chunk = f.chunks[0]
    chunk.schemas = [json.dumps(["dict", [name], [["list", ["int"] * 3_000]]]) for name in "abcdefgh"]
    for number, row in enumerate(chunk.rows):
        row.schema = number


def _record(name, idea, naive, text, record, says, call="sample 0", error=DECODE):
    _schema("records", name, idea, naive, text, record, call=call, error=error, says=says)


_record(
    "slot_outside",
    "a slot that leaves its record",
    "reads the next record",
    '"str"',
    struct.pack("<q", 1 << 40) + b"abc",
    "its leaf",
)
_record(
    "slot_negative",
    "a slot of -1",
    "a slice from the end",
    '"bytes"',
    struct.pack("<q", -1) + bytes(8),
    "its leaf",
)
_record(
    "slot_short",
    "slots that do not fill the record",
    "hidden bytes",
    '"bytes"',
    struct.pack("<q", 1) + bytes(64),
    "its leaves end at",
)
_record(
    "short_record",
    "a record shorter than its schema",
    "reads beyond",
    '["array","<f8",[100]]',
    bytes(8),
    "record of 8 bytes, its schema says 800",
)
_record(
    "long_record",
    "a record longer than its schema",
    "hidden bytes",
    '["array","<f8",[1]]',
    bytes(800),
    "record of 800 bytes, its schema says 8",
)
_record(
    "no_record",
    "a record of no bytes",
    "nothing to unpack",
    '"int"',
    b"",
    "record of 0 bytes, its schema says 8",
)
_record(
    "no_slots",
    "a record without room for its slots",
    "struct.error",
    '["list",["str","str"]]',
    bytes(4),
    "needs at least 16",
)
_record(
    "dims_product",
    "dimensions of 2**62 by 2**62",
    "a product of 0",
    '["array","<f8",2]',
    struct.pack("<qq", 1 << 62, 1 << 62),
    "does not fit an address space",
)
_record(
    "dims_zero",
    "dimensions of 0 by 2**63 - 1",
    "strides that wrap",
    '["tensor","float32",2]',
    struct.pack("<qq", 0, (1 << 63) - 1),
    "does not fit an address space",
)
_record(
    "dims_negative",
    "dimensions of -1 by -8",
    "a positive product",
    '["array","|u1",2]',
    struct.pack("<qq", -1, -8) + bytes(8),
    "is negative",
)
_record(
    "broken_utf8",
    "a text that is not UTF-8",
    "UnicodeDecodeError",
    '"str"',
    struct.pack("<q", 4) + b"\xff\xfe\x80\x81",
    "does not decode",
)
_record(
    "texts_count",
    "2**61 texts",
    "8 * count wraps",
    '["strs","list"]',
    struct.pack("<qq", 8, 1 << 61),
    "texts in 8 bytes",
)
_record(
    "texts_lengths",
    "texts whose lengths do not sum up",
    "reads beyond",
    '["strs","list"]',
    struct.pack("<qqqq", 24, 2, 1 << 62, 1 << 62),
    "do not sum to",
)
_record(
    "texts_negative",
    "texts of negative length",
    "slices from the end",
    '["strs","list"]',
    struct.pack("<qqqq", 24, 2, -5, 5),
    "do not sum to",
)
_record(
    "ints_odd",
    "ints of seven bytes",
    "ValueError of numpy",
    '["ints","list"]',
    struct.pack("<q", 7) + bytes(7),
    "does not decode",
)
_record("bool_two", "a bool of 2", "true and not true", '"bool"', b"\2", "bool stored as 2")
_record(
    "bools_two",
    "bools of 2",
    "true and not true",
    '["bools","list"]',
    struct.pack("<q", 1) + b"\2",
    "a bool is neither 0 nor 1",
)
_record("date_zero", "day 0", "ValueError of datetime", '"date"', bytes(8), "does not decode")
_record("date_far", "day 2**62", "OverflowError", '"date"', struct.pack("<q", 1 << 62), "does not decode")
_record(
    "datetime_far",
    "a time behind the year 9999",
    "OverflowError",
    '["datetime",null]',
    struct.pack("<q", (1 << 63) - 1),
    "does not decode",
)
_record(
    "time_far",
    "a time behind midnight",
    "a time of the next day",
    '["time",null]',
    struct.pack("<q", 1 << 60),
    "time of day stored as",
)
_record(
    "timedelta_far",
    "a timedelta of 2**31 days",
    "OverflowError",
    '"timedelta"',
    struct.pack("<iii", (1 << 31) - 1, 0, 0),
    "does not decode",
)
_record(
    "self_length",
    "a record whose schema is longer than it",
    "reads beyond",
    '{"self":1}',
    struct.pack("<Q", 1 << 60),
    "says its schema takes",
)
_record(
    "self_noise",
    "a record whose schema is noise",
    "a ValueError of json",
    '{"self":1}',
    struct.pack("<Q", 8) + b"\xff" * 8,
    "does not decode",
)
IMAGE = '["object","PIL.Image","Image",[["tuple",["str","int","int","bytes","none","none",["dict",[],[]]]]]]'


def _image(width, height, mode, pixels):
    return struct.pack("<qqqq", width, height, len(mode), len(pixels)) + mode.ljust(8, b"\0") + pixels


_record(
    "image_mode",
    "an image of no mode",
    "looked up in Pillow",
    IMAGE,
    _image(1, 1, b"XX", b"x"),
    "bytes of pixels",
)
_record(
    "image_size",
    "an image of 2**30 by 2**30 pixels",
    "allocates them",
    IMAGE,
    _image(1 << 30, 1 << 30, b"RGB", bytes(8)),
    "bytes of pixels",
)
_record(
    "image_empty",
    "an image of no width and 2**31 - 1 rows",
    "a pointer for each row",
    IMAGE,
    _image(0, (1 << 31) - 1, b"RGB", b""),
    "bytes of pixels",
)
_record(
    "image_negative",
    "an image of -1 by -1 pixels",
    "a positive product",
    IMAGE,
    _image(-1, -1, b"L", b"x"),
    "bytes of pixels",
)
_accepted(
    "records",
    "bigint",
    "an int of 2 MB",
    "printing it takes quadratic time",
    '"bigint"',
    struct.pack("<q", 2 << 20) + b"\1" * (2 << 20),
)
_accepted(
    "records",
    "nul_path",
    "a path with NULs and dots",
    "opened",
    '["path","PosixPath"]',
    struct.pack("<q", 16) + b"../../etc/pa\0swd",
)


# --- zstd -------------------------------------------------------------------------------------------


def frame(content: bytes, level=3, **options) -> bytes:
    return zstandard.ZstdCompressor(level=level, **options).compress(content)


def claimed(size: int, blocks: bytes) -> bytes:
    """A single-segment frame that claims so many bytes, with blocks as given."""
    return b"\x28\xb5\x2f\xfd" + bytes([0b11100000]) + struct.pack("<Q", size) + blocks


def block(kind: int, size: int, data: bytes, last: bool) -> bytes:
    return struct.pack("<I", size << 3 | kind << 1 | last)[:3] + data


def _frame(name, idea, naive, make, raw_nbytes, says, call="sample 0", error=DECODE, text='"bytes"', **more):
    @attack("zstd", idea, naive, call, error, says, base="zstd", forged=True, **more)
    def forged(f: Forge):
        only(f, text, make(), raw_nbytes=raw_nbytes)

    forged.__name__ = name


CONTENT = struct.pack("<q", 92) + b"x" * 92
_frame(
    "size_larger",
    "a frame that says more than the index",
    "allocates by the frame",
    lambda: frame(CONTENT),
    50,
    "zstd frame says 100 bytes, the index 50",
)
_frame(
    "size_smaller",
    "a frame that says less than the index",
    "the rest is other memory",
    lambda: frame(CONTENT),
    500,
    "zstd frame says 100 bytes, the index 500",
)
_frame(
    "size_unknown",
    "a frame without its size",
    "decompresses without an end",
    lambda: frame(CONTENT, write_content_size=False),
    100,
    "says nothing of its size",
)
_frame(
    "size_zero",
    "a frame of no content, an index of 100",
    "0 stands for unknown",
    lambda: frame(b""),
    100,
    "zstd frame says 0 bytes",
)
_frame(
    "two_frames",
    "a second frame behind the first",
    "both are joined",
    lambda: frame(CONTENT) + frame(CONTENT),
    100,
    "does not decompress",
)
_frame(
    "trailing",
    "bytes behind a frame",
    "hidden bytes",
    lambda: frame(CONTENT) + b"hidden",
    100,
    "does not decompress",
)
_frame(
    "skippable_before",
    "a skippable frame before",
    "skipped, with any content",
    lambda: b"\x50\x2a\x4d\x18" + struct.pack("<I", 8) + bytes(8) + frame(CONTENT),
    100,
    "zstd frame",
)
_frame(
    "skippable_behind",
    "a skippable frame behind",
    "skipped, with any content",
    lambda: frame(CONTENT) + b"\x50\x2a\x4d\x18" + struct.pack("<I", 8) + bytes(8),
    100,
    "does not decompress",
)
_frame("no_frame", "noise", "ZstdError", lambda: b"noise noise noise", 100, "does not decompress")
_frame("empty_frame", "no bytes", "ZstdError", lambda: b"", 100, "does not decompress")
_frame(
    "cut_frame",
    "half a frame",
    "ZstdError",
    lambda: frame(bytes(range(256)) * 10)[:100],
    2560,
    "does not decompress",
)
_frame(
    "wrong_dictionary",
    "a frame that needs a dictionary nobody has",
    "decompresses without",
    lambda: (
        b"\x28\xb5\x2f\xfd"
        + bytes([0b00100011])
        + struct.pack("<I", 77)
        + bytes([100])
        + block(1, 100, b"x", True)
    ),
    100,
    "does not decompress",
)
_frame(
    "huge_window",
    "a window of 2 TB",
    "allocates it",
    lambda: (
        b"\x28\xb5\x2f\xfd" + bytes([0b11 << 6, 31 << 3]) + struct.pack("<Q", 100) + block(1, 100, b"x", True)
    ),
    100,
    "does not decompress",
)
_frame(
    "raw_wraps",
    "a raw size of 2**63 + 8",
    "negative in a signed reader",
    lambda: frame(CONTENT),
    (1 << 63) + 8,
    "outside of any file",
    call="open",
    error="CorruptArchiveError",
)
