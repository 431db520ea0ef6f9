"""What zip programs see in an archive that the package accepts is byte for byte what the package sees."""

import hashlib
import shutil
import subprocess
import warnings
import zipfile

import pytest
from forge import Forge
from likeness import same
from range_server import serving
from sound import ORIGINALS, original
from test_attacks import NUMBERED, forged

import edcache
from edcache import CachedDataset, EdcacheError, format
from edcache.format.chain import Chain
from edcache.storage.file import File

TOOLS = {"unzip": "unzip", "7z": "p7zip-full", "bsdtar": "libarchive-tools"}
COMMANDS = {
    "unzip": lambda path, name: ["unzip", "-p", path, name],
    "7z": lambda path, name: ["7z", "x", "-so", "-bd", path, name],
    "bsdtar": lambda path, name: ["bsdtar", "-xOf", path, name],
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    made = {}
    return lambda name: made.get(name) or made.setdefault(name, original(name, folder))


def digest(data):
    return hashlib.sha256(data).hexdigest()


def as_the_package_sees_it(path):
    """Name -> bytes of every entry, by the chain; those of earlier seals count as dead."""
    file = File.open(path, "r")
    try:
        head, cursor = format.read_head(file.pread, str(path))
        chain = Chain(head, cursor, str(path))
        chain.extend(file.pread, file.size())
        first = format.parse_header(file.pread(0, format.MAX_HEADER_NBYTES))
        entries = [first, *chain.entries, *([chain.seal.index, chain.seal.labels] if chain.seal else [])]
        return {h.name: digest(file.pread(h.payload_offset, h.payload_nbytes)) for h in entries}
    finally:
        file.close()


def as_zipfile_sees_it(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with zipfile.ZipFile(path) as z:
            assert len(set(z.namelist())) == len(z.namelist())
            return {name: digest(z.read(name)) for name in z.namelist()}


def as_a_tool_sees_it(tool, path, names):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed; on Debian: apt install {TOOLS[tool]}")
    found = {}
    for name in names:
        done = subprocess.run(COMMANDS[tool](str(path), name), capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr[-500:]
        found[name] = digest(done.stdout)
    return found


def accepted(path):
    """Whether the package opens it as a sealed archive and finds nothing wrong."""
    try:
        if not CachedDataset.from_cache(path, allow_partial=True)._reader.sealed:
            return False
        report = edcache.verify(path)
    except EdcacheError:
        return False
    return report.sealed and report.sound


@pytest.mark.parametrize("name", list(ORIGINALS))
def test_every_program_sees_what_the_package_sees_in_a_sound_archive(sound, name):
    path = sound(name).path
    assert accepted(path)
    seen = as_the_package_sees_it(path)
    assert as_zipfile_sees_it(path) == seen
    for tool in COMMANDS:
        assert as_a_tool_sees_it(tool, path, list(seen)) == seen, tool


def test_what_is_accepted_of_the_attacks_is_seen_alike_by_all(sound, tmp_path, tally):
    """None that the package opens sealed, and reads without an error, shows a zip program other bytes."""
    alike = 0
    for number, attack in NUMBERED:
        if attack.theme == "files" or attack.call is not None:
            continue
        path = tmp_path / f"{number}.zip"
        forged(attack, sound(attack.base), path)
        if accepted(path):
            seen = as_the_package_sees_it(path)
            assert as_zipfile_sees_it(path) == seen, attack.name
            for tool in COMMANDS:
                assert as_a_tool_sees_it(tool, path, list(seen)) == seen, (attack.name, tool)
            alike += 1
        path.unlink()
    assert alike >= 1
    tally("hostile files seen alike by every zip program", alike)


def test_what_is_read_from_far_of_hostile_files_is_what_was_written(sound, tmp_path, tally):
    """By requests less is looked at, and the header of index.pages is believed of the directory."""
    answers = []
    for number, attack in NUMBERED:
        if attack.theme not in ("zip", "index", "labels", "revisions") or attack.forged or attack.longer:
            continue
        path = tmp_path / f"{number}.zip"
        forged(attack, sound(attack.base), path)
        written = CachedDataset.from_cache(sound(attack.base).path)
        with serving(path.read_bytes()) as served, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ds = CachedDataset.from_cache(f"{served.url}/a.zip", allow_partial=True)
                far = {index: ds[index] for index in range(len(written)) if index < len(ds)}
            except EdcacheError as error:
                answers.append(type(error).__name__)
                continue
        assert all(same(sample, written[index]) for index, sample in far.items()), attack.name
        answers.append("read")
    assert {"read", "CorruptArchiveError"} < {*answers}
    tally("hostile files read from far", len(answers))


def test_a_directory_that_lies_is_found_by_verify(sound, tmp_path):
    f = Forge(sound("plain").path)
    f.entries = [f.entries[0]] * 1100
    f.entries[500] = f.entries[0].__class__(1, f.entries[0].content, central=lambda r: r.update(crc=1))
    path = tmp_path / "long.zip"
    path.write_bytes(f.build())
    assert CachedDataset.from_cache(path)._reader.chunks == 1100
    assert not edcache.verify(path).sound
