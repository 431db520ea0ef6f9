"""JSON that the package does not write."""

import json

import pytest

from edcache.base import strict_json


def test_what_the_package_writes_is_read():
    for value in (
        {"a": [1, 2.5, None, True]},
        [],
        {"text": 'commas, [brackets] {and} "quotes": \\ ü \U0001f600'},
    ):
        text = json.dumps(value)
        for form in (text, text.encode(), memoryview(text.encode())):
            assert strict_json.loads(form) == value


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
        strict_json.loads(text)
