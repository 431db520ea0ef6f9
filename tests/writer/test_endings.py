"""Sources that exit where a sample is asked for: that is an error, which names the sample."""

import asyncio
import os
import subprocess
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

import edcache
from edcache import CachedDataset
from edcache.errors import MissingSampleError, SourceError
from edcache.reader import Reader

COUNT, BAD = 40, 23
EXITS = [SystemExit, GeneratorExit, asyncio.CancelledError, StopIteration]


class Ending:
    """Raises at one index."""

    def __init__(self, error, arguments=(0,)):
        self.error, self.arguments = error, arguments

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        if i == BAD:
            raise self.error(*self.arguments)
        return {"x": i}


def means(name):
    if name == "alone":
        return {}
    if name == "crew":
        return {"num_workers": 2, "multiprocessing_context": "fork"}
    return {"executor": ThreadPoolExecutor(2) if name == "threads" else ProcessPoolExecutor(1)}


@pytest.mark.full
@pytest.mark.parametrize("how", ["alone", "crew", "threads", "pool"])
@pytest.mark.parametrize("error", EXITS)
def test_an_exit_of_the_source_is_an_error_that_names_the_sample(path, error, how):
    with pytest.raises(SourceError, match=rf"a.zip: the source raised at index {BAD}: {error.__name__}: 0; "):
        CachedDataset(Ending(error), path, **means(how))
    ds = CachedDataset(Ending(error), path, on_error="skip", **means(how))
    assert [(f.index, f.error) for f in ds.errors] == [(BAD, error.__name__)]
    assert ds.missing.tolist() == [BAD]
    with pytest.raises(MissingSampleError, match=error.__name__):
        CachedDataset.from_cache(path, allow_partial=True)[BAD]
    assert [ds[i]["x"] for i in range(COUNT) if i != BAD] == [i for i in range(COUNT) if i != BAD]


class InBatches(Ending):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_exit_of_a_batch_is_an_error_of_the_sample(path, error):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a batch raised
        ds = CachedDataset(InBatches(error), path, on_error="skip")
    assert [(f.index, f.error) for f in ds.errors] == [(BAD, error.__name__)]
    assert [ds[i]["x"] for i in range(COUNT) if i != BAD] == [i for i in range(COUNT) if i != BAD]


def test_an_interrupt_of_a_batch_ends_the_fill(path, monkeypatch):
    monkeypatch.setattr("edcache.writer.recheck._some_beside", lambda *arguments: ())
    with pytest.raises(KeyboardInterrupt, match="interrupted at index [0-9]+; .*a.zip keeps"):
        CachedDataset(InBatches(KeyboardInterrupt, ()), path, on_error="skip")


@pytest.mark.parametrize("on_error", ["raise", "skip", "skip_final"])
def test_an_interrupt_ends_the_fill_and_is_no_failure_of_the_sample(path, on_error, monkeypatch):
    monkeypatch.setattr("edcache.writer.recheck._some_beside", lambda *arguments: ())
    source = Ending(KeyboardInterrupt, ())
    with pytest.raises(
        KeyboardInterrupt, match=f"interrupted at index {BAD}; .*a.zip keeps 23 of 40 samples"
    ):
        CachedDataset(source, path, on_error=on_error)
    with pytest.raises(SourceError, match=f"the source raised at index {BAD}: KeyboardInterrupt"):
        CachedDataset(source, path, on_error=on_error, **means("crew"))
    for name in ("threads", "pool"):
        with pytest.raises(
            SourceError, match=f"KeyboardInterrupt: at index {BAD}; .*a.zip keeps [0-9]+ of 40 samples"
        ):
            CachedDataset(source, path, on_error=on_error, **means(name))
    assert not Reader(path, allow_partial=True).session.index.failures


@pytest.mark.parametrize("error", EXITS)
def test_a_lazy_read_names_the_sample_and_the_others_are_kept(path, error):
    ds = CachedDataset(Ending(error), path, lazy=True)
    for i in range(COUNT):
        if i != BAD:
            assert ds[i]["x"] == i
    with pytest.raises(SourceError, match=f"the source raised at index {BAD}: {error.__name__}"):
        ds[BAD]
    ds.close()
    assert CachedDataset.from_cache(path, allow_partial=True).missing.tolist() == [BAD]


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_exit_while_it_is_iterated_is_not_its_end(path, error):
    class Stream:
        def __iter__(self):
            yield from range(5)
            raise error(0)

    with pytest.raises(
        SourceError, match=f"the source raised at index 5: {error.__name__}: 0; .*a.zip keeps 5 samples;"
    ):
        CachedDataset(Stream(), path)
    reader = Reader(path, allow_partial=True)
    assert (reader.session.index.present, reader.session.sealed) == (5, False)


PROGRAM = """
import os, signal, sys
import edcache

class Source:
    def __len__(self):
        return 40

    def __getitem__(self, i):
        if i == 23:
            os.kill(os.getpid(), signal.SIGTERM)
        return i

def leave(number, frame):
    sys.exit(7)

signal.signal(signal.SIGTERM, leave)
edcache.CachedDataset(Source(), sys.argv[1], on_error="skip")
"""


@pytest.mark.full
def test_an_exit_by_a_signal_is_no_error_of_a_sample(path):
    ended = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (7, "")
    reader = Reader(path, allow_partial=True)
    assert (reader.session.index.present, list(reader.session.index.failures)) == (23, [])
    assert CachedDataset(list(range(40)), path, fingerprint=False).complete


def test_a_worker_that_exits_without_a_word_names_the_sample(path):
    class Gone(Ending):
        def __getitem__(self, i):
            return os._exit(0) if i == BAD else {"x": i}

    with pytest.raises(SourceError, match=rf"sample {BAD} ended its process 3 times \(exit code 0\)"):
        CachedDataset(Gone(None), path, **means("crew"))
    assert edcache.CachedDataset.from_cache(path, allow_partial=True).missing.tolist() == [BAD]
