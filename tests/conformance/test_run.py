"""The suite for readers: its expected documents, its two clients, and that it notices what is wrong.

EDCACHE_WRITE_EXPECTED=1 writes the documents anew.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import client_edcache
import client_reference
import golden_samples as samples
import pytest
import run
from test_golden import EXPECTED, GOLDEN, LATER, LENGTHS, expected_labels

import edcache

HERE = Path(__file__).resolve().parent
# A larger document is kept as its digest.
MOST_NBYTES = 20_000
CLIENT = {
    name: shlex.join([sys.executable, str(HERE / f"client_{name}.py"), "{path}"])
    for name in ("reference", "edcache")
}


@pytest.fixture(autouse=True)
def _registered() -> None:
    for cls in samples.TO_REGISTER:
        edcache.register(cls)


def _image_file(data: bytes, *_: Any) -> edcache.ImageFile:
    return edcache.ImageFile(data, decode=None)


def expected_document(name: str) -> dict[str, Any]:
    """What the golden samples are, which no archive was read for."""
    values = EXPECTED[name]
    if name == "images":
        values = {i: samples.picture(i, _image_file) for i in values}
    length = LENGTHS.get(name, max(values, default=-1) + 1)
    return {
        "length": length,
        "samples": {str(i): client_edcache.canonical(value) for i, value in sorted(values.items())},
        "labels": {
            column: [client_edcache.canonical(labels.get(i)) for i in range(length)]
            for column, labels in expected_labels(name).items()
        },
    }


@pytest.mark.parametrize("name", [*EXPECTED, *LATER])
def test_the_expected_documents_are_those_of_the_golden_samples(name: str) -> None:
    path = HERE / "expected" / f"{name}.json"
    document = {"refused": True} if name in LATER else expected_document(name)
    text = json.dumps(document, indent=0) + "\n"
    if len(text) > MOST_NBYTES:
        text = json.dumps({"sha256": run.digest(document)}) + "\n"
    if os.environ.get("EDCACHE_WRITE_EXPECTED") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    written = path.read_text() if path.exists() else None
    assert written == text, (
        "EDCACHE_WRITE_EXPECTED=1 pytest tests/conformance/test_run.py writes it; look at the difference"
    )


@pytest.mark.parametrize("name", list(EXPECTED))
@pytest.mark.parametrize("client", [client_reference, client_edcache], ids=lambda c: c.__name__)
def test_both_clients_give_the_expected_documents(client: Any, name: str) -> None:
    (path,) = GOLDEN.glob(f"v*-{name}.zip")
    document = json.loads(json.dumps(client.document(str(path))))
    assert run.difference(document, json.loads(json.dumps(expected_document(name)))) is None


def test_the_reference_reader_passes_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    only = ["fixed", "torn", "large", "later-kind", "later-leaf"]
    assert run.main(["--reader", CLIENT["reference"], "--only", *only]) == 0
    assert capsys.readouterr().out == "5 of 5 as expected\n"


def test_a_reader_that_reads_what_it_does_not_know_is_noticed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "document").write_text('{"length": 0, "samples": {}, "labels": {}}')
    for script, wrong in (
        ("cat document", "is read, but a reader of version 3 does not know what it needs"),
        ("kill -9 $$", "exit"),
    ):
        assert run.main(["--reader", shlex.join(["sh", "-c", script]), "--only", "later-flag"]) == 1
        assert f"v3-later-flag.zip: {wrong}" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("client", CLIENT)
def test_clients_pass_the_whole_suite(client: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--reader", CLIENT[client]]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("cat expected | sed s/.int.:/\\'x\\':/", "no document"),
        ('sed \'s/"int": "7"/"int": "8"/\' expected', '/samples/7/dict/2/1/int: "8", expected "7"'),
        ('sed \'s/"uint8"/"int8"/\' expected', '"int8", expected "uint8"'),
        ("echo 'refused: no'; exit 3", "refused: no"),
        ("echo refused; kill -9 $$", "exit status -9"),
        ("echo Traceback; exit 1", "exit status 1"),
        ("sleep 60", "no answer within 1 seconds"),
    ],
)
def test_a_reader_that_is_wrong_is_noticed(script, says, tmp_path, monkeypatch, capsys):
    (tmp_path / "expected").write_text(json.dumps(client_reference.document(str(GOLDEN / "v3-fixed.zip"))))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run.asked, "__defaults__", (1.0,))
    assert run.main(["--reader", shlex.join(["sh", "-c", script]), "--only", "fixed"]) == 1
    assert says in capsys.readouterr().out
