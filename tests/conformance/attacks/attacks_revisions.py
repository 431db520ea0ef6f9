"""Revisions of labels that lie: columns added or dropped after the samples were written."""

import pyarrow as pa
from catalogue import attack
from forge import Forge, arrow_file, arrow_stream, dumps


def _column(array, name="new"):
    return pa.table({f"label/{name}": array})


def _numbers(count=10):
    return pa.array(range(count), pa.int64())


def _nulls(count):
    return pa.Array.from_buffers(pa.null(), count, [None])


def _plain(f: Forge, table=None, dropped=(), **more):
    return f.unsealed().revise(_column(_numbers()) if table is None else table, dropped, **more)


@attack(
    "revisions", "more rows than its table has", "reads past the table", "verify", says="the header says 12"
)
def revision_rows(f: Forge):
    _plain(f, samples=12, end_index=12)


@attack(
    "revisions", "fewer rows than its table has", "labels of no sample", "verify", says="the header says 7"
)
def revision_few_rows(f: Forge):
    _plain(f, samples=7, end_index=7)


@attack(
    "revisions",
    "an end index that its rows do not reach",
    "a dataset of any length",
    "verify",
    says="rows end at 10",
)
def revision_end_index(f: Forge):
    _plain(f, end_index=1 << 40)


@attack(
    "revisions",
    "more rows than there are samples",
    "a longer dataset, or labels of other samples",
    "verify",
    says="has rows up to sample 40, the dataset had 10",
)
def revision_past_the_length(f: Forge):
    """The rows behind the length do not count."""
    _plain(f, _column(_numbers(40)))


@attack(
    "revisions",
    "2**60 rows that take no bytes",
    "allocates for them",
    "verify",
    says="has rows up to sample 1,152,921,504,606,846,976",
)
def revision_of_nulls(f: Forge):
    """The rows behind the length do not count."""
    _plain(f, _column(_nulls(1 << 60)), allow_64bit=True)


@attack(
    "revisions", "a column twice", "one hides the other", "verify", says="two of its columns have one name"
)
def revision_twice(f: Forge):
    _plain(f, pa.table([_numbers(), _numbers()], names=["label/new", "label/new"]))


@attack(
    "revisions", "an extension type", "its class reads what the file says", "verify", says="an extension type"
)
def revision_extension(f: Forge):
    field = pa.field("label/new", pa.int64(), metadata={"ARROW:extension:name": "arrow.json"})
    _plain(f, pa.table([_numbers()], schema=pa.schema([field])))


@attack("revisions", "a struct column", "fields that no label has", "verify", says="which no writer makes")
def revision_struct(f: Forge):
    _plain(f, _column(pa.StructArray.from_arrays([_numbers()], ["a"])))


@attack("revisions", "lists of lists 60 deep", "recursion over types", "verify", says="a nested type")
def revision_deep(f: Forge):
    array = _numbers()
    for _ in range(60):
        array = pa.ListArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), array)
    _plain(f, _column(array))


@attack(
    "revisions", "dictionary-encoded texts", "codes out of the dictionary", "verify", says="a dictionary type"
)
def revision_dictionary(f: Forge):
    _plain(f, _column(pa.array(["a", "b"] * 5).dictionary_encode()))


@attack("revisions", "decimals", "a type that no code expects", "verify", says="which no writer makes")
def revision_decimals(f: Forge):
    _plain(f, _column(_numbers().cast(pa.decimal128(30, 2))))


@attack("revisions", "compressed buffers", "allocates what they claim", "verify", says="compressed buffers")
def revision_compressed(f: Forge):
    _plain(f, compression="zstd")


@attack("revisions", "two batches", "the second is read by nobody", "verify", says="behind its batches")
def revision_batches(f: Forge):
    batch = pa.record_batch({"label/new": _numbers(5)})
    _plain(f, pa.Table.from_batches([batch, batch]), samples=10, end_index=10)


@attack("revisions", "an Arrow file, not a stream", "read by its footer", "verify", says="does not read")
def revision_file(f: Forge):
    _plain(f, pack=lambda table: arrow_file(table, table.num_rows))


@attack(
    "revisions", "bytes behind its stream", "a place to hide bytes", "verify", says="bytes behind its table"
)
def revision_longer(f: Forge):
    _plain(f, pack=lambda table: arrow_stream(table) + b"!" * 64)


@attack(
    "revisions",
    "bytes behind its content",
    "a place to hide bytes",
    "verify",
    says="bytes behind its content are not zero",
)
def revision_padding(f: Forge):
    _plain(f).padding = b"!"


@attack(
    "revisions",
    "samples in falling order",
    "labels of other samples",
    "verify",
    says="not strictly increasing",
)
def revision_falling(f: Forge):
    _plain(f, pa.table({"index": [3, 2], "label/new": [1, 2]}), end_index=4)


@attack("revisions", "a sample below 0", "counted from the end", "verify", says="not strictly increasing")
def revision_negative(f: Forge):
    _plain(f, pa.table({"index": [-1, 2], "label/new": [1, 2]}), end_index=3)


@attack(
    "revisions", "samples as texts", "compared as what they are not", "verify", says="which no writer makes"
)
def revision_text_index(f: Forge):
    _plain(f, pa.table({"index": ["1"], "label/new": [1]}), end_index=2)


@attack("revisions", "places of records", "moves the records", "verify", says="it has the columns ['offset']")
def revision_offsets(f: Forge):
    _plain(f, pa.table({"offset": pa.array(range(10), pa.uint64()), "label/new": _numbers()}))


@attack(
    "revisions",
    "texts in a column of numbers",
    "a crash at the first look, or numbers made of texts",
    "labels",
    "LabelError",
    says='label "y" is int64 in one chunk and string in another',
)
def revision_type(f: Forge):
    _plain(f, _column(pa.array(["a"] * 10), "y"))


@attack("revisions", "a dropped column that never was", "a KeyError", None)
def revision_drops_nothing(f: Forge):
    _plain(f, pa.table({}), ["never"])


@attack(
    "revisions",
    "every column dropped",
    "columns that the head names are taken for granted",
    "label y",
    "UnknownLabelError",
    'no label "y"',
)
def revision_drops_all(f: Forge):
    _plain(f, pa.table({}), ["y", "text"])


@attack("revisions", "a column dropped twice", "removed twice", "verify", says="it drops a column twice")
def revision_drops_twice(f: Forge):
    _plain(f, pa.table({}), ["y", "y"])


@attack(
    "revisions",
    "numbers for dropped columns",
    "columns by number",
    "verify",
    says="that it drops are not names",
)
def revision_drops_numbers(f: Forge):
    _plain(f, pa.table({}), [0, 1])


@attack(
    "revisions",
    "neither a column nor a drop",
    "an entry for nothing",
    "verify",
    says="it has no label column",
)
def revision_of_nothing(f: Forge):
    _plain(f, pa.table({}))


@attack(
    "revisions",
    "a key in its metadata that none has",
    "ignored, with what it says",
    "verify",
    says="other keys",
)
def revision_keys(f: Forge):
    _plain(f, meta=dumps({"dropped": [], "more": 1}))


@attack("revisions", "more rows than its end index", "labels of no sample", None)
def revision_inconsistent(f: Forge):
    """Its header is none."""
    _plain(f, samples=10, end_index=3)


@attack(
    "revisions",
    "an index that knows no revision",
    "labels without it",
    "verify",
    says="index.pages does not say what the chunks say",
)
def seal_without_revision(f: Forge):
    f.revise(_column(_numbers()))


@attack(
    "revisions",
    "an index that tells of revisions where none is",
    "labels of nobody",
    "verify",
    says="index.pages does not say what the chunks say",
)
def seal_of_no_revision(f: Forge):
    f.index = lambda parts: parts["meta"].update(labels=[["y", True], ["text", False]])


def _sealed(f: Forge, said, labels):
    f.revise(_column(_numbers()))
    f.index = lambda parts: parts["meta"].update(labels=said)
    f.labels = labels


NAMES = [["y", False], ["text", False], ["new", True]]


@attack("revisions", "one name for two columns in the index", "one hides the other", says="have one name")
def seal_names_twice(f: Forge):
    _sealed(f, [*NAMES, ["new", True]], lambda table: table.append_column("new", _numbers()))


@attack(
    "revisions", "columns in the index that are none", "a TypeError", says="one of its label columns is none"
)
def seal_names_numbers(f: Forge):
    _sealed(f, [["y", 1]], lambda table: table)


@attack(
    "revisions",
    "other columns than the index says",
    "a KeyError",
    "labels",
    says="other columns than index.pages says",
)
def seal_other_columns(f: Forge):
    _sealed(f, NAMES, lambda table: table)


@attack(
    "revisions",
    "labels.arrow with other values than its revision",
    "believed",
    "verify",
    says="labels.arrow does not say what the chunks and revisions say",
)
def seal_other_values(f: Forge):
    _sealed(f, NAMES, lambda table: table.append_column("new", pa.array([7] * 10)))


@attack(
    "revisions",
    "revised labels said to be the samples' own",
    "what select() reads of a field is the label",
    "verify",
    says="index.pages does not say what the chunks say",
)
def seal_revised_as_own(f: Forge):
    """An attacker who writes all else can write the samples too; `verify` finds the contradiction."""
    names = [["y", False], ["text", False], ["new", False]]
    _sealed(f, names, lambda table: table.append_column("new", _numbers()))


@attack(
    "revisions",
    "a row of labels per sample where only records have one",
    "the labels of other samples",
    "verify",
    says="labels.arrow does not say what the chunks say",
    base="sparse",
    forged=True,
)
def seal_rows_per_sample(f: Forge):
    f.labels_header = lambda fields: fields.update(samples=fields["end_index"])
    f.labels = lambda table: pa.concat_tables([table] * 3).slice(0, 28).combine_chunks()


def _crc(fields):
    fields.update(crc_of_payload=1, table_crc=1)


@attack("revisions", "one behind a seal whose link is another's", "an entry of another history", "verify")
def behind_link(f: Forge):
    f.revise_behind(_column(_numbers())).header = lambda fields: fields.update(link=fields["link"] ^ 1)


@attack(
    "revisions",
    "one behind a seal that fails its crc32",
    "labels of damaged bytes",
    "labels",
    says="fails its crc32",
)
def behind_crc(f: Forge):
    entry = f.revise_behind(_column(_numbers()))
    header = entry.header
    entry.header = lambda fields: (header(fields), _crc(fields))


@attack(
    "revisions",
    "one behind a seal with rows of samples that are not there",
    "labels of other samples, or a longer dataset",
    "verify",
    says="has rows up to sample 40, the dataset had 10",
)
def behind_past_the_length(f: Forge):
    """The rows behind the length do not count."""
    f.revise_behind(_column(_numbers(40)))


@attack(
    "revisions",
    "2**60 rows behind a seal that take no bytes",
    "allocates for them",
    "verify",
    says="has rows up to sample 1,152,921,504,606,846,976",
)
def behind_of_nulls(f: Forge):
    """The rows behind the length do not count."""
    f.revise_behind(_column(_nulls(1 << 60)), allow_64bit=True)


@attack(
    "revisions",
    "texts behind a seal, of a column of numbers",
    "a column of two types",
    "labels",
    says="is int64, string in a revision behind the seal",
)
def behind_type(f: Forge):
    f.revise_behind(pa.table({"index": [3], "label/y": ["a"]}))


@attack(
    "revisions",
    "one behind no seal that says it is",
    "bytes behind it that nothing proves",
    "verify",
    says="is one behind a seal, and follows none",
)
def behind_nothing(f: Forge):
    f.unsealed().revise_behind(_column(_numbers()))


@attack(
    "revisions",
    "one behind a seal that its directory does not list",
    "labels that zip programs do not see",
    "verify",
    says="does not list what the chain holds",
)
def behind_unlisted(f: Forge):
    entry = f.revise_behind(_column(_numbers()))
    header = entry.header

    def change(fields):
        header(fields)
        fields["next"] = fields["offset"] + 4096

    entry.header, entry.central = change, None


@attack(
    "revisions",
    "bytes between one behind a seal and the next",
    "a place to hide bytes",
    "verify",
    says="the dead directory of an earlier seal is damaged",
)
def behind_hides_bytes(f: Forge):
    f.revise_behind(_column(_numbers()))
    entry = f.revise_behind(_column(_numbers(), "more"))
    header = entry.header

    def hide(fields):
        header(fields)
        f._data[fields["offset"] - 1] = 1

    entry.header = hide
