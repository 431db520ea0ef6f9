"""Headers of the chain that lie, with checksums that are right."""

import json
import random

from catalogue import attack
from forge import PAGE, Entry, Forge, dumps
from reference import AMENDMENT, HEAD, REVISION

BROKEN = "before its seal at offset"
NOTE = "does not read"


def _set(**changes):
    return lambda fields: fields.update(changes)


@attack("chain", "next entry: the same again", "walks in a circle for ever", "verify", says=BROKEN)
def circle(f: Forge):
    f.entries[1].header = lambda fields: fields.update(next=fields["offset"])
    return _padded(f)


@attack("chain", "next entry: the head", "walks in a circle for ever", "verify", says=BROKEN)
def back_to_the_head(f: Forge):
    f.entries[1].header = _set(next=0)
    return _padded(f)


def _padded(f: Forge):
    """What follows would overwrite what was packed; only the first part is the archive's."""
    whole, broken = Forge.copy(f), f
    whole.entries[1].header = lambda fields: None
    data = bytearray(whole.build())
    broken.entries = broken.entries[:2]
    broken.is_sealed = False
    part = broken.build()
    start = 3 * PAGE if len(data) < 3 * PAGE else _second(data)
    data[start : start + 192] = part[start : start + 192]
    return bytes(data)


def _second(data):
    places = [at for at in range(0, len(data), PAGE) if data[at : at + 4] == b"PK\3\4"]
    return places[2]


@attack("chain", "a sequence number twice", "the later entry replaces the earlier", "verify", says=BROKEN)
def repeated_number(f: Forge):
    f.entries[1].header = _set(seq=0)


@attack("chain", "a sequence number left out", "an entry seems lost", "verify", says=BROKEN)
def skipped_number(f: Forge):
    f.entries[1].header = _set(seq=7)


@attack("chain", "2**60 samples in a chunk", "allocates for them", "verify", says=BROKEN)
def huge_samples(f: Forge):
    f.entries[1].header = _set(samples=1 << 60)


@attack(
    "chain",
    "2**60 samples in a chunk of an unsealed archive",
    "allocates for them",
    "sample 4",
    "SampleIndexError",
    "not in [-4, 4)",
    longer=True,
)
def huge_samples_unsealed(f: Forge):
    """The chunk and what follows it are no entries."""
    f.unsealed().entries[1].header = _set(samples=1 << 60)


@attack(
    "chain",
    "more samples than rows",
    "reads past the table",
    "sample 4",
    "MissingSampleError",
    "has no record yet",
)
def more_samples(f: Forge):
    f.unsealed().entries[1].header = lambda fields: fields.update(samples=fields["samples"] + 2)


@attack("chain", "a table larger than its payload", "reads the next entry as its own", "verify", says=BROKEN)
def huge_table(f: Forge):
    f.entries[1].header = _set(table_nbytes=1 << 40)


@attack("chain", "a table of no bytes", "takes records for a table", "verify", says=BROKEN)
def no_table(f: Forge):
    f.entries[1].header = _set(table_nbytes=0, table_crc=0)


@attack("chain", "an end index of 2**64 - 1", "-1 in a signed reader", "verify", says=BROKEN)
def wrapped_end_index(f: Forge):
    f.entries[1].header = _set(end_index=(1 << 64) - 1)


@attack(
    "chain",
    "an end index below its samples",
    "the dataset ends early",
    "verify",
    says="its table points outside of it",
    forged=True,
)
def small_end_index(f: Forge):
    f.entries[-1].header = _set(end_index=1)


@attack(
    "chain",
    "a chunk without rows that ends at 10**15",
    "a dataset of any length",
    "sample 4",
    "SampleIndexError",
    "not in [-4, 4)",
    longer=True,
)
def chunk_without_rows(f: Forge):
    f.unsealed()
    f.entries = f.entries[:2]
    f.chunks[1].rows, f.chunks[1].labels = [], f.chunks[1].labels.slice(0, 0)
    f.entries[1].header = _set(end_index=10**15)


@attack("chain", "index.pages without labels.arrow", "an index that no seal confirms", None)
def index_without_labels(f: Forge):
    """A walk takes both or none: unsealed."""
    data = f.build()
    at = data.rindex(b"labels.arrow", 0, data.rindex(b"PK\1\2")) - 30
    return data[:at]


@attack("chain", "labels.arrow under another number", "labels of another seal", None)
def labels_number(f: Forge):
    """The seal is none."""
    f.labels_header = lambda fields: fields.update(seq=fields["seq"] + 1)


@attack("chain", "pages between index and labels", "hidden bytes in the seal", None)
def gap_in_the_seal(f: Forge):
    """The seal is none."""
    f.index_header = lambda fields: fields.update(next=fields["next"] + PAGE)


@attack("chain", "a second head in the chain", "starts over with another length", "verify", says=BROKEN)
def second_head(f: Forge):
    f.entries.insert(1, Entry(HEAD, b"{}", central=None))


@attack("chain", "an entry of kind 9", "skipped, with what it says", "verify", says=BROKEN)
def unknown_kind(f: Forge):
    f.entries[1].header = _set(kind=9)


@attack("chain", "a chunk of format version 3", "read as version 2", "verify", says=BROKEN)
def later_version(f: Forge):
    f.entries[1].header = _set(version=3)


@attack("chain", "a chunk of another archive", "data of another cache", "verify", says=BROKEN)
def foreign_chunk(f: Forge):
    f.entries[1].header = _set(uuid=b"another archive!")


@attack("chain", "a chunk with another link", "a stale chunk comes back", "verify", says=BROKEN)
def wrong_link(f: Forge):
    f.entries[1].header = _set(link=12345)


@attack("chain", "a chunk that says it is elsewhere", "spliced in from another place", "verify", says=BROKEN)
def wrong_offset(f: Forge):
    f.entries[1].header = lambda fields: fields.update(offset=fields["offset"] + PAGE)


@attack("chain", "bytes in a header's padding", "a place to hide bytes", "verify", says=BROKEN)
def header_padding(f: Forge):
    f.entries[1].header = _set(padding=b"!")


@attack("chain", "everything claimed to be on the disk", "losses of a power cut are not looked for", None)
def durable_beyond(f: Forge):
    """Of this writers alone make use; what was lost fails its crc32 all the same."""
    f.entries[1].header = _set(durable=1 << 62)


@attack(
    "chain",
    "bytes behind an amendment's text",
    "a place to hide bytes",
    "verify",
    says="bytes behind its content are not zero",
)
def amendment_padding(f: Forge):
    f.amend({"length": 10}).padding = b"!"


@attack(
    "chain",
    "bytes behind the last record",
    "a place to hide bytes",
    "verify",
    says="bytes that belong to no record are not zero",
)
def chunk_padding(f: Forge):
    f.chunks[0].padding = b"!"


@attack(
    "chain",
    "bytes in a directory that died",
    "a place to hide bytes",
    "verify",
    says="dead directory of an earlier seal",
    base="grown",
)
def dead_bytes(f: Forge):
    data = bytearray(f.original)
    at = data.index(b"PK\5\6") + 22
    assert data[at : at + 32] == bytes(32)
    data[at : at + 32] = b"!" * 32
    return bytes(data)


@attack(
    "chain",
    "a table whose own checksum is wrong",
    "parsed all the same",
    "sample 4",
    "MissingSampleError",
    "has no record yet",
)
def table_crc(f: Forge):
    f.unsealed().entries[1].header = _set(table_crc=1)


@attack(
    "chain",
    "an amendment: negative length",
    "an array of negative size",
    error="CorruptArchiveError",
    says=NOTE,
)
def negative_length(f: Forge):
    f.unsealed().amend({"length": -1})


@attack("chain", "an amendment: length 1e3", "a float as an index", says=NOTE)
def float_length(f: Forge):
    f.unsealed().amend({"length": 1e3})


@attack("chain", "an amendment: length true", "True is 1", says=NOTE)
def bool_length(f: Forge):
    f.unsealed().amend({"length": True})


@attack("chain", "an amendment: length 10**4000", "conversion takes quadratic time", says=NOTE)
def long_length(f: Forge):
    f.unsealed().amend(b'{"length":1%s}' % (b"0" * 4000))


@attack("chain", "an amendment: NaN", "not a number", says=NOTE)
def nan_length(f: Forge):
    f.unsealed().amend(b'{"length":NaN}')


@attack("chain", "an amendment nested 100,000 deep", "recursion without end", says="nested too deep")
def deep_amendment(f: Forge):
    f.unsealed().amend(b'{"failed":' + b"[" * 100_000)


@attack("chain", "an amendment: a key twice", "the first or the last counts", says="a key comes twice")
def double_key(f: Forge):
    f.unsealed().amend(b'{"length":11,"length":12}')


@attack("chain", "an amendment: a fingerprint without length", "of samples that nobody counts", says=NOTE)
def bare_fingerprint(f: Forge):
    f.unsealed().amend({"fingerprint": {"type": "m:Source"}})


@attack("chain", "an amendment: a fingerprint that is a list", "no attribute get", says=NOTE)
def fingerprint_list(f: Forge):
    f.unsealed().amend({"length": 10, "fingerprint": ["m:Source"]})


@attack("chain", "an amendment with another key", "ignored by one, obeyed by another", says=NOTE)
def unknown_revision(f: Forge):
    f.unsealed().amend({"length": 10, "path": "/etc/passwd"})


@attack("chain", "an amendment that is a list", "no attribute get", says=NOTE)
def amendment_list(f: Forge):
    f.unsealed().amend([1, 2])


@attack("chain", "an amendment of no JSON", "a ValueError of json", says=NOTE)
def amendment_noise(f: Forge):
    f.unsealed().amend(random.Random(1).randbytes(500))


@attack("chain", "an amendment in UTF-16", "bytes that mean two things", says=NOTE)
def amendment_utf16(f: Forge):
    f.unsealed().amend(json.dumps({"length": 3}).encode("utf-16"))


@attack("chain", "an amendment that gives itself up", "a contradiction", says="that are not before it")
def lost_itself(f: Forge):
    f.unsealed().amend({"lost": [[0, len(f.entries)]]})


@attack("chain", "an amendment that gives up -1", "the last of a list", says="that are not before it")
def lost_negative(f: Forge):
    f.unsealed().amend({"lost": [[-1, 0]]})


@attack(
    "chain",
    "an amendment that gives up every chunk",
    "an error for a cache that is empty",
    "sample 0",
    "MissingSampleError",
    "has no record yet",
    longer=True,
)
def lost_all(f: Forge):
    f.unsealed().amend({"lost": [[0, 2]], "length": 10})


@attack(
    "chain",
    "a chunk given up while the seal lists it",
    "a seal that contradicts its chain",
    "verify",
    says="index.pages does not say what the chunks say",
)
def lost_and_sealed(f: Forge):
    f.amend({"lost": [[1, 1]]})
    f.entries[1].central = None


@attack("chain", "a failure of a negative index", "the last of a list", says=NOTE)
def negative_failure(f: Forge):
    f.unsealed().amend({"failed": [[-1, True, "E", "m", "t"]]})


@attack("chain", "a failure that is no list", "no length", says=NOTE)
def malformed_failure(f: Forge):
    f.unsealed().amend({"failed": [7, "x", None]})


@attack(
    "chain",
    "1,500 chunks, each given up by an amendment of its own",
    "filters the list each time: quadratic",
    "sample 0",
    "SampleIndexError",
    "not in [-0, 0)",
    longer=True,
)
def quadratic_losses(f: Forge):
    losses(f, 1500)


def losses(f: Forge, count: int) -> None:
    chunk = f.unsealed().entries[0]
    f.entries = [chunk] * count
    for seq in range(count):
        f.amend({"lost": [[seq, seq]]})


@attack("chain", "an amendment that is a revision by its kind", "JSON as Arrow", "verify", says=BROKEN)
def kind_of_amendment(f: Forge):
    f.amend({"length": 10}).header = _set(kind=REVISION)


@attack("chain", "an amendment with samples", "counted twice", "verify", says=BROKEN)
def amendment_with_samples(f: Forge):
    f.entries.insert(1, Entry(AMENDMENT, dumps({"length": 10}), header=_set(samples=5)))
