"""What a stranger's JSON and lengths may allocate."""

import json

import pytest

from edcache.base import bounded
from edcache.errors import LengthError


def test_what_the_package_writes_is_read():
    for value in (
        {"a": [1, 2.5, None, True]},
        [],
        {"text": 'commas, [brackets] {and} "quotes": \\ ü \U0001f600'},
    ):
        text = json.dumps(value)
        for form in (text, text.encode(), memoryview(text.encode())):
            assert bounded.loads(form) == value


@pytest.mark.parametrize(
    "text", ["[" + "0," * 600_000 + "0]", "[" + "[]," * 300_000 + "[]]"], ids=["numbers", "lists"]
)
def test_more_values_than_the_text_justifies_are_counted_not_made(text):
    with pytest.raises(ValueError, match=r"[\d,]+ values in [\d,]+ bytes of JSON, more than 2[\d,]+"):
        bounded.loads(text)


def test_many_short_texts_are_counted_too():
    with pytest.raises(ValueError, match="values in"):
        bounded.loads("[" + '"",' * 400_000 + '""]')


@pytest.mark.parametrize(
    "text", [",[{:" * 200_000, '\\",[' * 200_000, "\\" * 400_000], ids=["plain", "quotes", "backslashes"]
)
def test_what_stands_in_a_text_is_no_value(text):
    value = {"schema": text, "more": [text, 1]}
    assert bounded.loads(json.dumps(value)) == value


def test_values_that_bytes_justify_are_read():
    value = [[index, "x" * 300] for index in range(200_000)]
    assert bounded.loads(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deep"),
        ('{"a":1,"a":2}', "a key comes twice in one object of JSON"),
        ('{"a":{"b":1,"b":1}}', "a key comes twice"),
        ("{'a':1}", "Expecting property name"),
        ('["ü"]', "JSON that is not ASCII"),
        ('["ü"]'.encode(), "JSON that is not ASCII"),
        ('{"a":1}'.encode("utf-16-le"), "Expecting property name"),
        ("1" * 5000, "digits"),
    ],
)
def test_what_the_package_does_not_write_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        bounded.loads(text)


def test_lengths_are_justified_by_bytes():
    bounded.justify(bounded.FREE_NBYTES + 100, 100, "a.zip", "5 samples")
    with pytest.raises(
        LengthError,
        match=r"a\.zip: 5 samples would take 67,108,965 bytes here, the file has 100; where the length "
        r"is right, open it with its source: CachedDataset\(source, path\)",
    ):
        bounded.justify(bounded.FREE_NBYTES + 101, 100, "a.zip", "5 samples")
