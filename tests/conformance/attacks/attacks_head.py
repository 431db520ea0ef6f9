"""Heads that lie."""

import json

from catalogue import attack
from forge import PAGE, Forge, align, dumps

READ = "the head's JSON"


def _payload(text: bytes) -> bytes:
    return text.ljust(align(192 + len(text) + 1, PAGE) - 193) + b"\n"


@attack("head", "length 2**62", "wraps around when multiplied", says=READ)
def wrapping_length(f: Forge):
    f.head["length"] = 1 << 62


@attack("head", "length -1", "an array of negative size", says=READ)
def negative_head_length(f: Forge):
    f.head["length"] = -1


@attack("head", "length true", "True is 1", says=READ)
def bool_head_length(f: Forge):
    f.head["length"] = True


@attack("head", "length 1e3", "a float as an index", says=READ)
def float_head_length(f: Forge):
    f.head["length"] = 1e3


@attack("head", "length NaN", "compares with nothing", says=READ)
def nan_head_length(f: Forge):
    f.head["length"] = float("nan")


@attack("head", "length in a string", "compares with nothing", says=READ)
def text_length(f: Forge):
    f.head["length"] = "10"


@attack("head", "fingerprint nested 5,000 deep", "recursion without end", says="nested too deep")
def deep_fingerprint(f: Forge):
    text = json.dumps(f.head).encode()
    f.head_payload = _payload(
        text.replace(b'"fingerprint": null', b'"fingerprint": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000)
    )


@attack("head", "a key twice", "the first or the last counts", says="a key comes twice")
def double_head_key(f: Forge):
    f.head_payload = _payload(dumps(f.head).replace(b'{"format"', b'{"length":3,"format"'))


@attack("head", "a key more", "ignored by one, obeyed by another", says="other keys")
def unknown_head_key(f: Forge):
    f.head["hook"] = "os.system"


@attack("head", "a key less", "a KeyError", says="other keys")
def missing_head_key(f: Forge):
    del f.head["codec"]


@attack("head", "codec of nobody", "imported by name", says=READ)
def unknown_codec(f: Forge):
    f.head["codec"] = "marshal"


@attack(
    "head",
    'codec "pickle" over native schemas',
    "pickle loads what was no pickle",
    "sample 0",
    "CorruptRecordError",
    "is not of the codec 'pickle'",
)
def pickle_head(f: Forge):
    f.head["codec"] = "pickle"


@attack(
    "head",
    "native codec over a pickle schema",
    "code runs although the head says it cannot",
    "sample 0",
    "CorruptRecordError",
    "is not of the codec 'native'",
)
def pickle_schema(f: Forge):
    for chunk in f.chunks:
        chunk.schemas = ['{"pickle":5}']


@attack(
    "head",
    'codec "pickle", pickle schema, and nobody allowed it',
    "code runs on the first read",
    "sample 0",
    "CodecError",
    "the record holds pickles; pass allow_pickle=True",
)
def pickles(f: Forge):
    f.head["codec"] = "pickle"
    for chunk in f.chunks:
        chunk.schemas = ['{"pickle":5}']
        for row in chunk.rows:
            row.stored = b"cposix\nsystem\n(S'touch /tmp/edcache-was-here'\ntR."


@attack("head", "a head of 2 MB", "read whole, whatever its size", says="fail their crc32")
def large_head(f: Forge):
    f.head_payload = _payload(json.dumps(f.head).encode() + b" " * (2 << 20))


@attack("head", "labels of one name twice", "one column hides the other", says=READ)
def double_label(f: Forge):
    f.head["labels"].append(["y", "y"])


@attack("head", "a label's path is an object", "unhashable, a TypeError later", says=READ)
def path_object(f: Forge):
    f.head["labels"][0][1] = {"a": 1}


@attack("head", "a label's path holds lists", "unhashable, a TypeError later", says=READ)
def path_of_lists(f: Forge):
    f.head["labels"][0][1] = [["a"], ["b"]]


@attack("head", "a label without a path", "unpacking fails", says=READ)
def label_alone(f: Forge):
    f.head["labels"][0] = ["y"]


@attack("head", "a label's name is a number", "no attribute encode", says=READ)
def label_number(f: Forge):
    f.head["labels"][0][0] = 5


@attack("head", "claims of no samples", "division by zero", says=READ)
def no_claim(f: Forge):
    f.head["claim_size"] = 0


@attack("head", "another uuid in the JSON than in the header", "two identities", says=READ)
def another_uuid(f: Forge):
    f.head["uuid"] = "00" * 16


@attack("head", "a uuid that is no hex", "a ValueError", says=READ)
def uuid_noise(f: Forge):
    f.head["uuid"] = "zz"


@attack("head", "version 7 in the JSON of version 1", "read by rules of another version", says=READ)
def json_version(f: Forge):
    f.head["version"] = 7


@attack(
    "head",
    "a header of format version 3",
    "read by rules of another version",
    "open",
    "ArchiveError",
    "archive format 3, this release reads format 2; upgrade",
)
def header_version(f: Forge):
    f.head_header = lambda fields: fields.update(version=3)


@attack(
    "head", "the head is entry number 5", "the chain begins elsewhere", says="not one that begins an archive"
)
def head_number(f: Forge):
    f.head_header = lambda fields: fields.update(seq=5)


@attack("head", "the head counts samples", "counted twice", says="not one that begins an archive")
def head_samples(f: Forge):
    f.head_header = lambda fields: fields.update(samples=1 << 60, end_index=1 << 60)


@attack("head", "the head has a link", "a chain before the chain", says="not one that begins an archive")
def head_link(f: Forge):
    f.head_header = lambda fields: fields.update(link=1)


@attack("head", "the next entry: 2**60", "seeks there", says="fails its checksum")
def head_next(f: Forge):
    f.head_header = lambda fields: fields.update(next=fields["next"])
    data = bytearray(f.build())
    other = f.copy()
    other.entries, other.is_sealed = [], False
    other.head_header = lambda fields: fields.update(next=1 << 60)
    return other.build()[:192] + bytes(data[192:])


@attack("head", "the JSON in UTF-16", "json guesses the encoding", says="not ASCII")
def utf16_head(f: Forge):
    f.head_payload = _payload(json.dumps(f.head).encode("utf-16"))


@attack("head", "the JSON is a list", "no keys", says="other keys")
def list_head(f: Forge):
    f.head_payload = _payload(b"[1,2,3]")


@attack("head", "compression is a number", "no attribute", says=READ)
def compression_number(f: Forge):
    f.head["compression"] = 5
