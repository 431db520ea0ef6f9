"""Label columns that lie, in labels.arrow and in the chunks' tables."""

import struct

import pyarrow as pa
from catalogue import attack
from forge import Forge

READ = "labels.arrow does not read"


def _replace(f: Forge, name, array):
    f.labels = lambda table: table.set_column(
        table.column_names.index(name), name, array(table[name].combine_chunks())
    )


def _patched(f: Forge, old: bytes, new: bytes, count: int = 1):
    def patch(data):
        assert old in data
        return data.replace(old, new, count)

    f.labels_bytes = patch


@attack(
    "labels",
    "offsets of texts behind their data",
    "reads other memory, or dies",
    "labels",
    says=READ,
    base="rich",
)
def text_offsets(f: Forge):
    def patch(array):
        buffers = array.buffers()
        offsets = bytearray(buffers[1].to_pybytes())
        struct.pack_into("<i", offsets, 4 * 5, 1 << 30)
        return pa.Array.from_buffers(
            pa.string(), len(array), [None, pa.py_buffer(bytes(offsets)), buffers[2]]
        )

    _replace(f, "text", patch)


@attack("labels", "offsets of texts that fall", "negative lengths", "labels", says=READ, base="rich")
def falling_offsets(f: Forge):
    def patch(array):
        buffers = array.buffers()
        offsets = bytearray(buffers[1].to_pybytes())
        struct.pack_into("<i", offsets, 4 * 5, -7)
        return pa.Array.from_buffers(
            pa.string(), len(array), [None, pa.py_buffer(bytes(offsets)), buffers[2]]
        )

    _replace(f, "text", patch)


@attack(
    "labels",
    "offsets of lists behind their items",
    "reads other memory, or dies",
    "labels",
    says=READ,
    base="rich",
)
def list_offsets(f: Forge):
    def patch(array):
        offsets = array.buffers()[1].to_pybytes()[: 4 * (len(array) + 1)]
        lies = struct.pack(f"<{len(array) + 1}i", *range(0, 1000 * (len(array) + 1), 1000))
        _patched(f, offsets, lies)
        return array

    _replace(f, "boxes", patch)


@attack(
    "labels",
    "texts that are not UTF-8",
    "a UnicodeDecodeError at the first look",
    "labels",
    says=READ,
    base="rich",
)
def broken_text(f: Forge):
    def patch(array):
        buffers = array.buffers()
        data = b"\xff" * buffers[2].size
        return pa.Array.from_buffers(pa.string(), len(array), [None, buffers[1], pa.py_buffer(data)])

    _replace(f, "text", patch)


@attack(
    "labels",
    "a type nested 60 deep",
    "recursion in every function over types",
    "labels",
    says="a nested type",
    base="rich",
)
def deep_type(f: Forge):
    def nest(array):
        for _ in range(60):
            array = pa.ListArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), array)
        return array

    _replace(f, "text", nest)


@attack("labels", "a struct column", "fields that no label has", "labels", says="a nested type", base="rich")
def struct_column(f: Forge):
    _replace(f, "text", lambda array: pa.StructArray.from_arrays([array, array], ["a", "b"]))


@attack(
    "labels",
    "an extension type inside a list",
    "its class deserialises what the file says",
    "labels",
    says="an extension type",
    base="rich",
)
def extension_in_list(f: Forge):
    def wrap(array):
        item = pa.field("item", array.type.value_type, metadata={"ARROW:extension:name": "arrow.uuid"})
        return pa.Array.from_buffers(pa.list_(item), len(array), array.buffers()[:2], children=[array.values])

    _replace(f, "boxes", wrap)


@attack(
    "labels",
    "a zone of a megabyte",
    "a lookup of files by name",
    "labels",
    says="which no writer makes",
    base="rich",
)
def absurd_zone(f: Forge):
    _replace(f, "when", lambda array: array.cast(pa.int64()).cast(pa.timestamp("us", "../" * 300_000)))


@attack(
    "labels",
    "a zone that is a path",
    "a lookup of files by name",
    "labels",
    says="which no writer makes",
    base="rich",
)
def zone_path(f: Forge):
    _replace(f, "when", lambda array: array.cast(pa.int64()).cast(pa.timestamp("us", "/etc/passwd")))


@attack(
    "labels", "dictionary-encoded texts", "indices out of the dictionary", "labels", says=READ, base="rich"
)
def dictionary_text(f: Forge):
    _replace(f, "text", lambda array: array.dictionary_encode())


@attack(
    "labels", "decimals", "a type that no code expects", "labels", says="which no writer makes", base="rich"
)
def decimals(f: Forge):
    _replace(f, "y", lambda array: array.cast(pa.decimal128(30, 2)))


@attack("labels", "texts as views", "buffers by number", "labels", says=READ, base="rich")
def views(f: Forge):
    _replace(f, "text", lambda array: array.cast(pa.string_view()))


@attack("labels", "run-end encoded numbers", "ten rows that are 2**60", "labels", says=READ, base="rich")
def run_ends(f: Forge):
    _replace(
        f,
        "y",
        lambda array: pa.RunEndEncodedArray.from_arrays(pa.array([len(array)], pa.int64()), pa.array([1])),
    )


@attack("labels", "a column twice", "one hides the other", "labels", says=READ, base="rich")
def twice_labelled(f: Forge):
    f.labels = lambda table: table.append_column("y", table["y"])


@attack(
    "labels",
    "a column under another name",
    "a label that the head does not know",
    "labels",
    says="other columns than the head says",
    base="rich",
)
def renamed(f: Forge):
    f.labels = lambda table: table.rename_columns(["z", *table.column_names[1:]])


@attack(
    "labels",
    "columns in another order",
    "found by position",
    "labels",
    says="other columns than the head says",
    base="rich",
)
def reordered_labels(f: Forge):
    f.labels = lambda table: table.select(table.column_names[::-1])


@attack(
    "labels", "50,000 columns", "an object for each", "labels", says="columns, 5 are written", base="rich"
)
def many_label_columns(f: Forge):
    f.labels = lambda table: pa.table({f"c{i}": table["y"] for i in range(50_000)})


@attack(
    "labels",
    "fewer rows than samples",
    "an IndexError late",
    "labels",
    says="rows, the index has",
    base="rich",
)
def fewer_label_rows(f: Forge):
    f.labels = lambda table: table.slice(0, 5)


@attack("labels", "a null column of 2**40 rows", "takes no bytes, until it is read", "labels", says=READ)
def null_rows(f: Forge):
    f.labels = lambda table: pa.table({name: pa.nulls(len(table)) for name in table.column_names})

    def lengthen(parts, rows):
        rows["rows"] = 1 << 40
        for part in parts:
            part["nulls"] = 1 << 40

    f.label_parts = lengthen


@attack(
    "labels",
    "compressed buffers",
    "an allocation by what they claim",
    "labels",
    says=READ,
    base="rich",
)
def compressed_labels(f: Forge):
    f.labels_options = {"compression": "zstd"}


@attack(
    "labels",
    "other labels than the chunks'",
    "filters choose others",
    "verify",
    says="labels.arrow does not say what the chunks say",
    forged=True,
)
def other_labels(f: Forge):
    """Nothing but the chunks' tables can tell, which only verify reads."""
    _replace(f, "y", lambda array: pa.array([7] * len(array), array.type))


def _lie(f: Forge, name: str, **lies):
    """Change what the table says of a column; a function gets what it said."""

    def change(parts, rows):
        part = parts[["y", "text", "boxes", "when", "ok"].index(name)]
        part.update({key: lie(part[key]) if callable(lie) else lie for key, lie in lies.items()})

    f.label_parts = change


@attack("labels", "a validity bitmap shorter than its rows", "reads beyond", "labels", says=READ, base="rich")
def short_validity(f: Forge):
    _replace(f, "y", lambda array: pa.array([None if i % 2 else i for i in range(len(array))], pa.int64()))
    _lie(f, "y", sizes=lambda sizes: [1, *sizes[1:]])


@attack(
    "labels",
    "a count of nulls that lies",
    "skips the bitmap, or reads where none is",
    "labels",
    says=READ,
    base="rich",
)
def lying_nulls(f: Forge):
    _lie(f, "y", nulls=1 << 40)


@attack("labels", "more items of lists than there are", "reads beyond", "labels", says=READ, base="rich")
def lying_items(f: Forge):
    _lie(f, "boxes", items=1 << 40)


@attack(
    "labels",
    "two columns over one memory",
    "checked and held twice, or thousands of times",
    "labels",
    says="buffers that overlap",
    base="rich",
)
def shared_memory(f: Forge):
    def share(parts, rows):
        parts[1] |= {"at": parts[0]["at"], "sizes": parts[0]["sizes"]}

    f.label_parts = share


@attack(
    "labels",
    "a column behind the batches",
    "its table as labels",
    "labels",
    says="leave its batches",
    base="rich",
)
def behind_the_batches(f: Forge):
    _lie(f, "ok", at=1 << 40)


@attack("labels", "batches of 2**62 rows", "a row for no bytes", "labels", says="batches of", base="rich")
def long_batches(f: Forge):
    f.label_parts = lambda parts, rows: rows.update(batch_rows=1 << 62)


@attack(
    "labels",
    "bounds that leave values out",
    "filters that miss rows",
    "verify",
    says="other bounds",
    forged=True,
    base="rich",
)
def lying_bounds(f: Forge):
    """Verify compares them with the values."""
    _lie(f, "y", most=1)


@attack(
    "labels",
    "a batch that says otherwise than the table",
    "other tools read other labels",
    "verify",
    says="not where its table says",
    forged=True,
    base="rich",
)
def lying_message(f: Forge):
    def patch(data):
        node = struct.pack("<qq", 40, 0)
        at = data.index(node)
        return data[:at] + struct.pack("<qq", 1 << 40, 0) + data[at + 16 :]

    f.labels_bytes = patch


@attack(
    "labels",
    "a chunk's label of another type than the head's other chunks",
    "a cast that changes values",
    "open",
    "LabelError",
    'label "y" is',
)
def mixed_types(f: Forge):
    f.unsealed()
    chunk = f.chunks[1]
    chunk.labels = chunk.labels.set_column(0, "y", pa.array(["text"] * len(chunk.rows)))


@attack(
    "labels",
    "a chunk's label column under another name",
    "nulls for all others",
    "open",
    "LabelError",
    "one chunk has the labels",
)
def chunk_renamed(f: Forge):
    f.unsealed()
    chunk = f.chunks[1]
    chunk.labels = chunk.labels.rename_columns(["z", *chunk.labels.column_names[1:]])


@attack(
    "labels",
    "a chunk's labels nested",
    "no cast exists",
    "sample 4",
    "MissingSampleError",
    "has no record yet",
)
def chunk_nested(f: Forge):
    f.unsealed()
    chunk = f.chunks[1]
    struct_column = pa.StructArray.from_arrays([pa.array([1] * len(chunk.rows))], ["a"])
    chunk.labels = chunk.labels.set_column(0, "y", struct_column)


def _types(value):
    def change(f: Forge):
        f.unsealed().chunks[1].meta = lambda meta: meta.update(labels=value)

    return change


@attack(
    "labels",
    "label types: an integer that is Infinity",
    "an OverflowError",
    "sample 4",
    "MissingSampleError",
    "has no record yet",
)
def infinite_type(f: Forge):
    _types({"y": ["int64", False, False, float("inf")], "text": ["string", False, False, None]})(f)


@attack(
    "labels",
    "label types: a list as a type's name",
    "unhashable",
    "sample 4",
    "MissingSampleError",
    "has no record yet",
)
def list_type(f: Forge):
    _types({"y": [[["list"], "int64"], False, False, None]})(f)


@attack(
    "labels",
    "label types: a number",
    "no attribute items",
    "sample 4",
    "MissingSampleError",
    "has no record yet",
)
def number_type(f: Forge):
    _types(5)(f)


@attack(
    "labels",
    "a chunk's table with compressed buffers",
    "an allocation by what they claim",
    "sample 4",
    "MissingSampleError",
    "has no record yet",
)
def compressed_chunk(f: Forge):
    f.unsealed().chunks[1].options = {"compression": "zstd"}


@attack(
    "labels",
    "a chunk's table with two batches",
    "the second is read too, or not",
    "sample 4",
    "MissingSampleError",
    "has no record yet",
)
def chunk_batches(f: Forge):
    f.unsealed().chunks[1].table = lambda table: table[:-8] + table


@attack(
    "labels",
    "bytes between a chunk's table and its block checksums",
    "a place to hide bytes",
    "verify",
    says="points outside of it",
)
def hidden_in_table(f: Forge):
    f.unsealed().chunks[1].table = lambda table: table + b"hidden!!"


@attack(
    "labels",
    "a chunk's metadata of 300,000 lists",
    "a hundred bytes of memory for three",
    "sample 4",
    "MissingSampleError",
    "has no record yet",
)
def chunk_metadata(f: Forge):
    f.unsealed().chunks[1].meta = lambda meta: meta.update(schemas=[[]] * 300_000)


def _batches(f: Forge, change):
    """labels.arrow in batches of 16 rows: three, of five columns each."""
    f.batch_rows = 16
    f.label_parts = change


@attack(
    "labels",
    "the second batch's place in the first",
    "one batch is read as another",
    "labels",
    says="overlap",
    base="rich",
)
def batches_overlap(f: Forge):
    _batches(f, lambda parts, rows: parts[5].update(at=parts[0]["at"]))


@attack(
    "labels",
    "a batch outside of the payload",
    "reads beyond",
    "labels",
    says="leave its batches",
    base="rich",
)
def batch_outside(f: Forge):
    _batches(f, lambda parts, rows: parts[-1].update(at=1 << 40, crc32=0))


@attack("labels", "batches in another order", "rows of others", "labels", says="overlap", base="rich")
def batches_reversed(f: Forge):
    _batches(f, lambda parts, rows: parts.reverse())


@attack(
    "labels",
    "more batches than there are rows for",
    "labels of no sample",
    "labels",
    says="another size than its columns need",
    base="rich",
)
def batches_more(f: Forge):
    _batches(f, lambda parts, rows: parts.extend(map(dict, parts[-5:])))


@attack(
    "labels",
    "a least value above the greatest, in one batch of three",
    "a filter leaves its rows out",
    "verify",
    says="other bounds than values",
    forged=True,
    base="rich",
)
def bounds_crossed(f: Forge):
    _batches(f, lambda parts, rows: parts[5].update(least=9, most=-9 % (1 << 64)))


@attack(
    "labels",
    "bounds that hold none of the values, in one batch of three",
    "a filter leaves its rows out",
    "verify",
    says="other bounds than values",
    forged=True,
    base="rich",
)
def bounds_elsewhere(f: Forge):
    _batches(f, lambda parts, rows: parts[5].update(least=7, most=8))
