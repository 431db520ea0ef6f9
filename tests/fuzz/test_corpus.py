"""Every input that ever broke a target, and some that reach far, on every Python version."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz_hunt import TARGETS, symptom, target_of

CORPUS = Path(__file__).parent / "corpus"


def inputs_of(name):
    """Whole files; and the lines of kept.hex, each an input that once reached code that none before did."""
    files = [path for path in sorted((CORPUS / name).iterdir()) if path.suffix not in (".note", ".hex")]
    lines = (CORPUS / name / "kept.hex").read_text().split()
    return [path.read_bytes() for path in files] + [bytes.fromhex(line) for line in lines]


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_bears_what_once_broke_it(name, tally):
    inputs = inputs_of(name)
    assert inputs
    for data in inputs:
        target_of(name).run(data)
    tally("fuzz corpus", len(inputs))


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_bears_its_seeds(name, tally):
    seeds = target_of(name).seeds()
    for data in [b"", *seeds]:
        target_of(name).run(data)
    tally("fuzz corpus", len(seeds))


def test_the_corpus_is_small():
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 200_000


def test_a_finding_is_told_apart_from_what_is_sound(monkeypatch):
    """The tests above can fail: an exception, a signal and a hang are each seen for what they are."""
    import os
    import signal
    import time

    import fuzz_hunt

    where = target_of("where")
    assert symptom("where", b"") is None
    monkeypatch.setattr(where, "run", lambda data: data[7])
    assert symptom("where", b"").startswith("IndexError in ")
    monkeypatch.setattr(where, "run", lambda data: os.kill(os.getpid(), signal.SIGKILL))
    assert symptom("where", b"") == f"ends with {-signal.SIGKILL}"
    monkeypatch.setattr(where, "run", lambda data: time.sleep(60))
    monkeypatch.setattr(fuzz_hunt, "TIMEOUT", 0.2)
    assert symptom("where", b"") == "hangs"
