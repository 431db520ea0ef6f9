"""The zip directory says another thing than the chain: two programs would read two archives."""

import struct

from catalogue import attack
from forge import MAX32, PAGE, Entry, Forge, pack_central, pack_header

DIRECTORY = "does not list what the chain holds"
UNSEALED = "opens as the unsealed archive that its chain is; the zip directory is believed by nobody here"


def _central(**changes):
    return lambda record: record.update(changes)


def _evil(**changes):
    record = {
        "made_by": 0x32D,
        "need": 20,
        "flags": 0,
        "method": 0,
        "time": 0,
        "date": 0x21,
        "crc": 0,
        "size": 0,
        "again": None,
        "name": b"evil.sh",
        "offset": 0,
        "comment": b"",
        "disk": 0,
        "internal": 0,
        "mode": 0o100644 << 16,
        "long": False,
        "extra": b"",
    }
    return pack_central(record | changes)


@attack("zip", "a name twice in the directory", "the last one, or the first, wins", "verify", says=DIRECTORY)
def duplicate_name(f: Forge):
    f.entries[1].central = _central(name=b"chunks/00000000")


@attack(
    "zip",
    "a chunk that the directory leaves out",
    "unzip extracts less than was cached",
    "verify",
    says=DIRECTORY,
)
def missing_record(f: Forge):
    f.entries[1].central = None


@attack(
    "zip",
    "a name more, inside of a record's bytes",
    "unzip extracts a file nobody wrote",
    "verify",
    says=DIRECTORY,
)
def nested_entry(f: Forge):
    f.directory = lambda records: [*records[:-2], _evil(offset=PAGE + 400, size=16), *records[-2:]]


@attack("zip", "directory in another order", "lists differ from program to program", "verify", says=DIRECTORY)
def reordered(f: Forge):
    f.directory = lambda records: [records[1], records[0], *records[2:]]


@attack(
    "zip", "another name than the local header's", "the two names are two files", "verify", says=DIRECTORY
)
def another_name(f: Forge):
    f.entries[0].central = _central(name=b"chunks/evil0000")


@attack("zip", "another crc32 than the local header's", "one of both is checked", "verify", says=DIRECTORY)
def another_crc(f: Forge):
    f.entries[0].central = _central(crc=1)


@attack(
    "zip",
    "a smaller size than the local header's",
    "the rest of the entry is hidden",
    "verify",
    says=DIRECTORY,
)
def smaller_size(f: Forge):
    f.entries[0].central = _central(size=10)


@attack("zip", "packed and unpacked size differ", "a stored entry of two sizes", "verify", says=DIRECTORY)
def two_sizes(f: Forge):
    f.entries[0].central = _central(again=10)


@attack(
    "zip", "offsets of two chunks exchanged", "each name gives the other's bytes", "verify", says=DIRECTORY
)
def exchanged_offsets(f: Forge):
    places = []
    f.entries[0].central = lambda record: (places.append(record["offset"]), record.update(offset=2 * PAGE))[0]
    f.entries[1].central = lambda record: record.update(offset=places[0])


@attack(
    "zip",
    "data descriptor flag in the directory",
    "sizes are looked for behind the data",
    "verify",
    says=DIRECTORY,
)
def descriptor_flag(f: Forge):
    f.entries[0].central = _central(flags=8)


@attack(
    "zip",
    "data descriptor flag in the local header",
    "sizes are looked for behind the data",
    "verify",
    says="before its seal",
)
def local_descriptor_flag(f: Forge):
    f.entries[0].header = _central(flags=8)


@attack("zip", "encryption flag in both", "asks for a password", "verify", says="before its seal")
def encrypted(f: Forge):
    f.entries[0].header = _central(flags=1)
    f.entries[0].central = _central(flags=1)


@attack("zip", "UTF-8 flag in the directory", "names are decoded another way", "verify", says=DIRECTORY)
def utf8_flag(f: Forge):
    f.entries[0].central = _central(flags=1 << 11)


@attack("zip", "method 8 in both", "inflates bytes that were stored", "verify", says="before its seal")
def deflated(f: Forge):
    f.entries[0].header = _central(method=8)
    f.entries[0].central = _central(method=8)


@attack("zip", "method 8 in the directory", "inflates bytes that were stored", "verify", says=DIRECTORY)
def deflated_in_the_directory(f: Forge):
    f.entries[0].central = _central(method=8)


@attack("zip", "comment of an entry", "hidden bytes; may hold end records", "verify", says=DIRECTORY)
def entry_comment(f: Forge):
    f.entries[0].central = _central(comment=b"PK\5\6" + bytes(18))


@attack("zip", "comment of the archive", "the end record is searched for in it", None)
def archive_comment(f: Forge):
    """No canonical end: the archive is unsealed, and its chain is read."""
    f.end = _central(comment=b"a comment")


@attack("zip", "too few entries counted", "the rest is not listed", "verify", says=DIRECTORY)
def wrong_count(f: Forge):
    f.end = lambda fields: fields.update(count=fields["count"] - 1)


@attack("zip", "32-bit counts beside the 64-bit ones", "each program believes another", None)
def short_counts(f: Forge):
    """No canonical end: the archive is unsealed, and its chain is read."""
    f.end = _central(short=(2, 2, 100, 4096))


@attack("zip", "the zip64 locator points elsewhere", "another end record is used", None)
def locator(f: Forge):
    """As above."""
    f.end = lambda fields: fields.update(end64=fields["end64"] - 56)


@attack("zip", "zip64 end record of another size", "its extension hides bytes", None)
def end_size(f: Forge):
    """As above."""
    f.end = _central(size=60, more=bytes(16))


@attack("zip", "numbers of disks", "waits for the other disks", None)
def disks(f: Forge):
    """As above."""
    f.end = _central(disk=1, disks=2)


@attack("zip", "directory said to begin later", "its first records are hidden", None)
def late_directory(f: Forge):
    """As above."""
    f.end = lambda fields: fields.update(offset=fields["offset"] + 46, nbytes=fields["nbytes"] - 46)


@attack(
    "zip", "the directory of an earlier seal used again", "an older state of the data", None, base="grown"
)
def dead_directory(f: Forge):
    """Without the newer seal the growth is read by the chain."""
    f.end = lambda fields: fields.update(offset=PAGE, nbytes=100)


@attack("zip", "a second zip behind the first", "zip programs read the second, from the end", None)
def appended_zip(f: Forge):
    """A torn tail to the chain: values are the original's, and verify says unsealed."""
    data = f.build()
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, 7, 0) + b"evil.sh"
    central = _evil(offset=len(data))
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(central), len(data) + len(local), 0)
    return data + local + central + end


@attack("zip", "bytes behind the end", "most programs overlook them", None)
def trailing_bytes(f: Forge):
    """A torn tail."""
    return f.build() + b"#!/bin/sh\n" * 100


@attack(
    "zip",
    "a shell script before the archive",
    "the zip is found from its end",
    "open",
    "CorruptArchiveError",
    "does not begin with a zip entry edcache.json",
)
def prepended_script(f: Forge):
    return b"#!/bin/sh\necho evil\n" + f.build()


@attack(
    "zip",
    "a whole page before the archive, offsets adjusted",
    "the zip is sound",
    "open",
    "CorruptArchiveError",
    "does not begin with a zip entry edcache.json",
)
def prepended_page(f: Forge):
    return b"%PDF-1.7\n".ljust(PAGE) + f.build()


@attack(
    "zip", "one entry spans two chunks", "a zip bomb of overlapping entries", "verify", says="before its seal"
)
def spanning_entry(f: Forge):
    def span(fields):
        fields["size"] += 8192

    f.entries[0].header = span
    f.entries[0].central = lambda record: record.update(size=record["size"] + 8192)


@attack("zip", "a page that no entry has", "a place to hide bytes", "verify", says="before its seal")
def gap(f: Forge):
    f.entries[0].header = lambda fields: fields.update(next=fields["next"] + PAGE)


@attack(
    "zip", "an entry behind the end of the file", "reads nothing, or fails late", "verify", says=DIRECTORY
)
def beyond_the_file(f: Forge):
    f.entries[0].central = _central(offset=1 << 31)


@attack("zip", "offset 2**63 in a zip64 extra", "negative in a signed reader", "verify", says=DIRECTORY)
def huge_offset(f: Forge):
    f.entries[0].central = _central(long=True, offset=1 << 63)


@attack("zip", "size 2**64 - 1", "-1 in a signed reader", "verify", says=DIRECTORY)
def huge_size(f: Forge):
    f.entries[0].central = _central(long=True, size=(1 << 64) - 1)


@attack("zip", "zip64 where nothing is large", "two ways to say one thing", "verify", says=DIRECTORY)
def needless_zip64(f: Forge):
    f.entries[0].central = _central(long=True)


@attack(
    "zip",
    "zip64 in a local header where nothing is large",
    "two ways to say one thing",
    "verify",
    says="before its seal",
)
def needless_local_zip64(f: Forge):
    def change(fields):
        fields["extra"] = struct.pack("<HHQQ", 1, 16, fields["size"], fields["size"])
        fields["size"] = MAX32

    f.entries[0].header = change


def _named(name):
    def change(f: Forge):
        f.entries[0].header = _central(name=name)
        f.entries[0].central = _central(name=name)

    return change


@attack("zip", "name that leaves the folder", "extraction writes anywhere", "verify", says="before its seal")
def traversal(f: Forge):
    _named(b"../../../tmp/evl")(f)


@attack("zip", "absolute name", "extraction writes anywhere", "verify", says="before its seal")
def absolute(f: Forge):
    _named(b"/tmp/evil000000")(f)


@attack("zip", "NUL in a name", "C programs see a shorter one", "verify", says="before its seal")
def nul_name(f: Forge):
    _named(b"chunks/0\x00000000")(f)


@attack("zip", "backslashes in a name", "folders on Windows", "verify", says="before its seal")
def backslash(f: Forge):
    _named(b"chunks\\00000000")(f)


@attack("zip", "name of a device", "Windows opens it", "verify", says="before its seal")
def device_name(f: Forge):
    _named(b"CON")(f)


@attack("zip", "a symbolic link by its mode", "extraction makes one", "verify", says=DIRECTORY)
def symlink_mode(f: Forge):
    f.entries[0].central = _central(mode=0o120777 << 16)


@attack("zip", "setuid mode", "extraction sets it", "verify", says=DIRECTORY)
def setuid_mode(f: Forge):
    f.entries[0].central = _central(mode=0o104755 << 16)


@attack("zip", "made on another system", "modes mean another thing", "verify", says=DIRECTORY)
def made_by(f: Forge):
    f.entries[0].central = _central(made_by=0x0B17)


@attack(
    "zip", "a Unicode path extra with another name", "some programs take that name", "verify", says=DIRECTORY
)
def unicode_path(f: Forge):
    extra = struct.pack("<HHBI", 0x7075, 12, 1, 0) + b"evil.sh"
    f.entries[0].central = _central(extra=extra)


@attack("zip", "an unknown extra field", "a place to hide bytes", "verify", says=DIRECTORY)
def unknown_extra(f: Forge):
    f.entries[0].central = _central(extra=struct.pack("<HH", 0x1234, 8) + b"hidden!!")


@attack("zip", "a zip64 extra twice", "the first or the last counts", "verify", says=DIRECTORY)
def double_zip64(f: Forge):
    f.entries[0].central = _central(extra=struct.pack("<HHQ", 1, 8, 0) * 2)


@attack("zip", "a later version needed", "a program may refuse or guess", "verify", says=DIRECTORY)
def version_needed(f: Forge):
    f.entries[0].central = _central(need=63)


@attack("zip", "a date", "a clock leaks into the bytes", "verify", says=DIRECTORY)
def dated(f: Forge):
    f.entries[0].central = _central(date=0x5A21, time=77)


@attack("zip", "internal attributes", "text conversion on extraction", "verify", says=DIRECTORY)
def internal_attributes(f: Forge):
    f.entries[0].central = _central(internal=1)


@attack("zip", "a digital signature record", "skipped by some, refused by others", None)
def signature(f: Forge):
    """The directory ends with labels.arrow, or the archive is unsealed."""
    f.between = b"PK\5\5" + struct.pack("<H", 8) + b"signed!!"


@attack("zip", "index.pages twice in the directory", "another index for others", "verify", says=DIRECTORY)
def two_indices_listed(f: Forge):
    f.directory = lambda records: [*records[:-2], records[-2], *records[-2:]]


@attack("zip", "another mode of index.pages", "a seal of another shape", None)
def seal_mode(f: Forge):
    """The seal is none; the chain is read."""
    f.index_central = _central(mode=0)


def _lying_again(**changes):
    """The directory's second copy of the private fields of index.pages, with a crc32 that fits the lie."""

    def change(f: Forge):
        kept = {}
        f.index_header = kept.update

        def central(record):
            packed = pack_header(kept | changes)
            at = 30 + len(kept["name"]) + 4
            record["extra"] = struct.pack("<HH", 0x6465, 96) + packed[at : at + 96]

        f.index_central = central

    change.__name__ = f"copy_lies_of_{next(iter(changes))}"
    return change


for _field, _value in (
    ("table_nbytes", 1 << 40),
    ("samples", 0),
    ("end_index", 1 << 50),
    ("kind", 1),
    ("seq", (1 << 64) - 1),
):
    attack(
        "zip",
        f"the directory's copy of the header of index.pages lies: {_field}",
        "another index for who reads from far",
        None,
    )(_lying_again(**{_field: _value}))


@attack("zip", "a torn copy of the header of index.pages", "the same", None)
def torn_copy(f: Forge):
    f.index_central = lambda record: record.update(extra=record["extra"][:50] + bytes(50))


@attack(
    "zip",
    "a file of its own between chunks",
    "data that zip programs list and the cache does not",
    "verify",
    says="before its seal",
)
def foreign_entry(f: Forge):
    def change(fields):
        fields["name"] = b"evil.sh"
        fields["kind"] = 9

    f.entries.insert(1, Entry(3, b"#!/bin/sh", header=change, central=_central(name=b"evil.sh")))
