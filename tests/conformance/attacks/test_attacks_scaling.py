"""Twice the attack is at most about twice the work: counted, not timed.

Counted are the steps of the interpreter within the package (so that a loop in one line counts as a loop),
reads, bytes read, and headers parsed.
"""

import sys
from contextlib import suppress
from pathlib import Path

import attacks_chain
import pytest
import torch
from attacks_codec import only
from forge import Forge, dumps
from scale import thinned
from sound import original
from systems import System, replace_system

import edcache
from edcache import CachedDataset, EdcacheError, format

pytestmark = [
    pytest.mark.filterwarnings("ignore::edcache.errors.PartialArchiveWarning"),
]

PACKAGE = str(Path(edcache.__file__).parent)
MOST = 2.5


class Counting(System):
    """Counts what is read."""

    def __init__(self):
        self.reads = self.nbytes = 0

    def pread(self, fd, nbytes, offset):
        data = super().pread(fd, nbytes, offset)
        self.reads += 1
        self.nbytes += len(data)
        return data


def read_all(path):
    """Open, read every sample and the labels."""
    with suppress(EdcacheError):
        ds = CachedDataset.from_cache(path, allow_partial=True)
        for index in range(min(len(ds), 10)):
            with suppress(EdcacheError):
                ds[index]
        with suppress(EdcacheError):
            ds.labels.table  # noqa: B018
        ds.close()


def verify(path):
    with suppress(EdcacheError):
        edcache.verify(path)


def work(call, path, monkeypatch):
    steps, headers = 0, 0
    parse = format.parse_header

    def counted(data):
        nonlocal headers
        headers += 1
        return parse(data)

    def trace(frame, event, argument):
        nonlocal steps
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        steps += event == "opcode"
        return trace

    counting = Counting()
    with replace_system(counting), monkeypatch.context() as patch:
        patch.setattr(format, "parse_header", counted)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            call(path)
        finally:
            sys.settrace(before)
    return {"steps": steps, "reads": counting.reads, "bytes": counting.nbytes, "headers": headers}


def chunks(f, n):
    f.entries = [f.entries[0]] * n


def losses(f, n):
    attacks_chain.losses(f, n)


def amendments(f, n):
    for k in range(n):
        f.unsealed().amend({"length": 10 + k})


def failures(f, n):
    f.unsealed().amend(dumps({"failed": [[k, True, "E", "m", "t"] for k in range(n)]}))


def many_failures(f, n):
    for k in range(n):
        f.unsealed().amend({"failed": [[100 + k, True, "E", "m", "t"]]})


def hole(f, n):
    f.unsealed()
    f.hole = n << 30


def index_chunks(f, n):
    f.index = lambda p: p.update(chunks=[[10**6 + 100 * k, 10**6 + 100 * k + 8, 64] for k in range(n)])


def nodes(f, n):
    only(f, ["list", ["int"] * n], bytes(8 * n))


def keys(f, n):
    only(f, ["dict", [f"k{k}" for k in range(n)], ["none"] * n], b"")


def fields(f, n):
    only(f, ["array", ["struct", [[f"f{k}", None, k, "|u1"] for k in range(n)], n, False], [1]], bytes(n))


def namedtuple(f, n):
    only(f, ["namedtuple", "m", "q", [f"f{k}" for k in range(n)], ["none"] * n], b"")


def depth(f, n):
    only(f, '["list",[' * n + '"int"' + "]]" * n, bytes(8))


def json_depth(f, n):
    f.unsealed().amend(b'{"failed":' + b"[" * n + b"]" * n + b"}")


def texts(f, n):
    only(f, '["strs","list"]', (8 * (n + 1)).to_bytes(8, "little") + n.to_bytes(8, "little") + bytes(8 * n))


def schemas(f, n):
    f.index = lambda p: p["meta"].update(schemas=['"int"'] * n)


GROWING = {
    f.__name__: (f, n)
    for f, n in (
        *((chunks, 30), (losses, 30), (amendments, 30), (failures, 200), (many_failures, 30), (hole, 400)),
        *((index_chunks, 1000), (nodes, 300), (keys, 300), (fields, 300), (namedtuple, 300)),
        *((depth, 25), (json_depth, 400), (texts, 2000), (schemas, 1000)),
    )
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    found = original("plain", tmp_path_factory.mktemp("sound"))
    read_all(found.path)
    edcache.verify(found.path)
    torch.set_num_threads(1)
    return found


@pytest.mark.parametrize("call", [read_all, verify], ids=["read", "verify"])
@pytest.mark.parametrize("family", thinned(list(GROWING), 5))
def test_twice_the_attack_is_at_most_about_twice_the_work(base, tmp_path, monkeypatch, family, call):
    grow, size = GROWING[family]
    counts = []
    for n in (size, 2 * size):
        f = Forge(base.path)
        f.hole = 0
        grow(f, n)
        path = tmp_path / f"{n}.zip"
        path.write_bytes(f.build())
        if f.hole:
            with open(path, "r+b") as file:
                file.truncate(f.hole)
        counts.append(work(call, path, monkeypatch))
    small, large = counts
    assert small["steps"] > 1000
    assert all(large[what] <= MOST * small[what] + 10 for what in small), (small, large)
