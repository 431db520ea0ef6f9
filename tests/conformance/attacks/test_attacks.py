"""Every hostile file is refused by the call that README.md names, or read as what it was; no more happens."""

import os
import shutil
from pathlib import Path

import attacks_chain  # noqa: F401 - they put their attacks on the list
import attacks_codec  # noqa: F401
import attacks_files  # noqa: F401
import attacks_head  # noqa: F401
import attacks_images  # noqa: F401
import attacks_index  # noqa: F401
import attacks_labels  # noqa: F401
import attacks_revisions  # noqa: F401
import attacks_zip  # noqa: F401
import pytest
import reference
from catalogue import numbered
from forge import Forge
from optional import need
from ordeal import tried
from scale import thinned
from sound import ORIGINALS, original

import edcache
from edcache import CachedDataset

# Libraries have threads by now; the child uses none of what they hold.
pytestmark = [
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::edcache.errors.PartialArchiveWarning"),
]

NUMBERED = numbered()
# Opening asks which file systems are of other machines.
MOUNTS = ("open", "/proc/self/mountinfo")
# A time zone is looked for in the files of `zoneinfo`.
BENIGN = {
    "zone_unknown": ("tzdata", "zoneinfo", "No/Such_Zone"),
}
# The where-string of the ordeal is parsed by Python's parser, which runs none of it.
WHERE = ("(col('",)
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    made = {}

    def get(name):
        if name not in made:
            made[name] = original(name, folder)
        return made[name]

    return get


def forged(attack, sound, path):
    """Write the hostile file of an attack."""
    f = Forge(sound.path)
    f.path, f.original = path, sound.path.read_bytes()
    data = attack.make(f)
    if not os.path.lexists(path):
        path.write_bytes(data if data is not None else f.build())


def copied(path, copy):
    """A copy that leaves holes holes; None for what is no file."""
    if not path.is_file() or path.is_symlink():
        return None
    if path.stat().st_size < 1 << 30:
        return Path(shutil.copyfile(path, copy))
    with open(path, "rb") as file:
        copy.write_bytes(file.read(1 << 20))
    os.truncate(copy, path.stat().st_size)
    return copy


@pytest.mark.parametrize(
    "attack", thinned([a for _, a in NUMBERED], 60), ids=[f"{n}-{a.name}" for n, a in NUMBERED]
)
def test_a_hostile_file_is_refused_or_read_as_what_it_was(attack, sound, tmp_path, tally):
    if attack.theme == "images" or attack.name.startswith("image_"):
        need("PIL")
    path, copy = tmp_path / "hostile.zip", tmp_path / "copy.zip"
    base = sound(attack.base)
    forged(attack, base, path)
    heard = tried(path, base, forged=attack.forged, longer=attack.longer, copy=copied(path, copy))
    assert [h for h in heard if h.outcome == "harm"] == []
    events = {(h.error, h.message) for h in heard if h.call == "audit"}
    benign = (*BENIGN.get(attack.name, ()), *WHERE)
    assert [e for e in events - {MOUNTS} if not any(part in e[1] for part in benign)] == []
    calls = {h.call: h for h in heard}
    if attack.call == "verify":
        said = calls.get("verify says") or calls["verify"]
        assert said.outcome in ("unsound", "refused")
        assert attack.says in said.message
    elif attack.call is None:
        elsewhere = ("append", "verify")
        refused = {h.error for h in heard if h.outcome == "refused" and h.call not in elsewhere}
        # Of the one behind the last, and of a batch of samples that have other fields.
        own = {"OptionError"} if attack.name == "many_large_schemas" else set()
        assert refused <= {"SampleIndexError"} | own
    else:
        name = "open mmap" if attack.call == "open" else attack.call
        assert (calls[name].outcome, calls[name].error) == ("refused", attack.error)
        assert attack.says in calls[name].message
        if attack.call == "open":
            assert calls["open pread"].error == attack.error
    assert not Path("/tmp/edcache-was-here").exists()
    tally("hostile files", 1)
    tally("calls on hostile files", len(heard))


def test_the_sound_archives_pass_the_ordeal_unharmed(sound, tmp_path):
    for name in ORIGINALS:
        base = sound(name)
        heard = tried(base.path, base, copy=Path(shutil.copyfile(base.path, tmp_path / f"{name}.zip")))
        fine = ("returned", "sealed", "refused")
        harm = [h for h in heard if h.outcome not in fine and (h.error, h.message) != MOUNTS]
        assert [h for h in harm if not any(part in h.message for part in WHERE)] == []
        refused = {h.error for h in heard if h.outcome == "refused"}
        assert refused <= {"MissingSampleError", "SampleIndexError"}


def test_a_forge_that_changes_nothing_makes_the_same_file(sound, tmp_path):
    """But for the footer of labels.arrow, which may be laid out in many ways."""
    for name in set(ORIGINALS) - {"grown"}:
        path = tmp_path / f"{name}.zip"
        path.write_bytes(Forge(sound(name).path).build())
        labels = reference.entries(path)[-1].fields
        assert labels["kind"] == reference.LABELS
        same = slice(labels["offset"])
        assert path.read_bytes()[same] == sound(name).path.read_bytes()[same]
        assert reference.read_zip(path) == reference.read_zip(sound(name).path)
        assert edcache.verify(path).sound


def test_the_child_sees_time_and_signals(sound):
    """The ordeal itself: what must not happen is noticed where it does."""
    import ordeal

    base = sound("plain")

    def spin():
        import signal

        signal.setitimer(signal.ITIMER_PROF, 0.2)
        while True:
            pass

    assert ordeal.in_child(spin, base.path, base)[-1].error == "SIGPROF"
    assert ordeal.in_child(lambda: os.kill(os.getpid(), 9), base.path, base)[-1].error == "SIGKILL"


def test_attacks_have_names_of_their_own():
    assert len({attack.name for _, attack in NUMBERED}) == len(NUMBERED) >= 100


def test_every_error_that_an_attack_names_is_one_of_the_package():
    assert all(
        issubclass(getattr(edcache.errors, a.error), edcache.EdcacheError) for _, a in NUMBERED if a.error
    )
    assert CachedDataset is not None
