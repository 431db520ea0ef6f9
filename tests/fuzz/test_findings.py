"""What fuzzing found, each as the smallest thing that shows it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import target_index
from fuzz_archives import assembled, drawn, in_memory

from edcache import Reader, format
from edcache.contents import Chain
from edcache.errors import CorruptArchiveError, CorruptRecordError
from edcache.format import Cursor, Head, Header
from edcache.labels.tables import parse_labels


def test_an_amendment_with_an_infinite_number_says_nothing():
    text = b'{"length": 3, "lost": [1e999]}'
    crc = format.crc32(text)
    header = Header(3, bytes(16), 0, 4096, 0, len(text), crc, 8192, table_nbytes=len(text), table_crc=crc)
    chain = Chain(Head(bytes(16)), Cursor(4096, 0, 0), "a.zip")
    chain.note(lambda offset, nbytes: text, header)
    assert (chain.length, chain.lost) == (None, set())


@pytest.mark.parametrize(
    "kind",
    [pa.run_end_encoded(pa.int16(), pa.int8()), pa.list_(pa.int8(), 2), pa.struct([("a", pa.int8())])],
    ids=["run-end", "fixed-size list", "struct"],
)
def test_a_label_column_of_a_type_that_no_writer_makes_is_refused(kind):
    columns = {"y": pa.nulls(3, kind)}
    data = target_index._packed("labels", columns, {"rows": 3}, 0)
    with pytest.raises(CorruptArchiveError, match=r"column 'y' has type .*, which no writer makes"):
        parse_labels(data, 3)


def test_a_record_that_claims_to_hold_petabytes_is_corrupt_alone_and_among_others():
    archive = drawn(2)
    archive.seal = []
    part = archive.parts[0]
    part.is_changed = True
    part.table.columns["raw_nbytes"][1] = 1 << 55
    with in_memory(assembled(archive)) as path:
        reader = Reader(path, io="pread")
        for read in (lambda: reader.read(1), lambda: reader.read_many(np.arange(3))):
            with pytest.raises(
                CorruptRecordError, match=r"record 1 at offset .*, the index 36028797018963968"
            ):
                read()
        assert reader.read(0)["y"] == 0
        reader.close()


def test_a_chunk_that_claims_more_samples_than_its_table_could_hold_takes_no_memory():
    archive = drawn(5)
    archive.parts[0].lies["samples"] = 1 << 40
    with in_memory(assembled(archive)) as path:
        reader = Reader(path, io="pread")
        assert reader.present == 2
        assert "its table does not read" in reader.damaged[0] or "it has 2 rows" in reader.damaged[0]
        reader.close()
