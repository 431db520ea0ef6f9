"""Each kind of difference, and each way in which a sample answers, or does not."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

import pytest

from edcache.errors import StaleCacheError
from edcache.identity import FirstSample, Recipe, Recomputable, Recomputed, compare
from edcache.identity.forms import form_of
from edcache.identity.samples import record_of

OLD = Recipe(
    {"type": "S", "attribute a": 1, "attribute b": ["[1, 2]", form_of([1, 2])], "attribute n": 10},
    {"attribute inner": "1"},
    {"f": "1"},
    count=10,
)
NEW = {
    "value": {"settings": {**OLD.settings, "attribute a": 2}},
    "form": {"settings": {**OLD.settings, "attribute b": ["(2, 1)", form_of((2, 1))]}},
    "name": {"settings": {**OLD.settings, "type": "T"}},
    "an attribute more": {"settings": {**OLD.settings, "attribute c": 1}},
    "place": {"settings": {**OLD.settings, "attribute n": 12}, "count": 12},
    "inside": {"asks": {"attribute inner": "2"}},
    "code": {"code": {"f": "2"}},
    "nothing": {},
}
# By kind: the reaction where samples are equal, other ones, not to be computed, random, of a source that is known to be
# random, of a stream that shuffles, and where the user wants none to be computed.
EXPECTED = {
    "value": ["refuse"] * 7,
    "form": ["open", "refuse", "refuse", "refuse", "refuse", "refuse", "refuse"],
    "name": ["open", "refuse", "refuse", "refuse", "refuse", "refuse", "refuse"],
    "an attribute more": ["open", "refuse", "refuse", "refuse", "refuse", "refuse", "refuse"],
    "place": ["open", "refuse", "refuse", "warn", "warn", "warn", "open"],
    "inside": ["open", "refuse", "refuse", "warn", "warn", "warn", "open"],
    "code": ["open", "refuse", "warn", "warn", "warn", "warn", "open"],
    "nothing": ["open", "refuse", "open", "warn", "open", "open", "open"],
}
WAYS = "equal", "other", "fails", "random", "known to be random", "a stream that shuffles", "off"


class Given(Recomputable):
    """Samples 0 to 9, of which each holds its number."""

    path, codec, is_cheap, is_here, passes_over = "a.zip", "native", True, True, True

    def __init__(self, way: str) -> None:
        self._way, self._draws, self.drawn_of = way, itertools.count(1000), list[int]()
        self.first = FirstSample(0.0, way != "known to be random")
        self.asked = False if way == "off" else None
        self.is_repeated, self.is_stream = self.first.repeats, way == "a stream that shuffles"

    def drawn(self, most):
        return [(position, position) for position in range(min(most, 10))]

    def stored(self, number):
        return record_of({"x": number}, self.codec)

    def again(self, position, least, stored):
        self.drawn_of.append(position)
        if self._way == "fails":
            raise OSError("no data here")
        if self._way in ("random", "a stream that shuffles"):
            return Recomputed([record_of({"x": next(self._draws)}, self.codec) for _ in range(least)], 0.0)
        return Recomputed([record_of({"x": position + (self._way == "other")}, self.codec)], 0.0)


@pytest.mark.parametrize(("place", "way"), [*enumerate(WAYS)], ids=WAYS)
@pytest.mark.parametrize("kind", NEW)
def test_a_difference_does_what_its_rule_says(kind, place, way):
    now = replace(OLD, **NEW[kind])
    samples = Given(way)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            verdict = compare(OLD.to_json(), now, samples)
            verdict.check("a.zip").settle(f"{kind} {way}")
            reaction = "warn" if caught else "open"
        except StaleCacheError:
            reaction = "refuse"
    assert reaction == EXPECTED[kind][place]
    answers = {"equal": "same", "other": "other"}
    assert verdict.kind == ("other" if kind == "value" else answers.get(way, verdict.kind))
    if kind == "value" or way in ("off", "known to be random"):
        assert samples.drawn_of == []
    elif way == "equal":
        assert len(samples.drawn_of) == (1 if kind == "nothing" else 8)


def test_without_samples_what_asks_stays_unknown():
    for kind, changes in NEW.items():
        verdict = compare(OLD.to_json(), replace(OLD, **changes))
        assert verdict.kind == {"value": "other", "nothing": "same"}.get(kind, "unknown")


def test_an_archive_without_a_sample_is_gone_on_with_by_its_own_source_alone():
    for kind, changes in NEW.items():
        verdict = compare(OLD.to_json(), replace(OLD, **changes))
        if kind in ("form", "name", "an attribute more"):
            with pytest.raises(StaleCacheError, match="it has no sample yet"):
                verdict.check_begun("a.zip")
        else:
            verdict.check_begun("a.zip")


def test_a_process_that_does_not_compare_says_nothing():
    samples = Given("other")
    samples.is_here = False
    now = replace(OLD, **NEW["inside"])
    compare(OLD.to_json(), now, samples).settle("a.zip")
    assert samples.drawn_of == []


@pytest.mark.parametrize(
    ("asked", "unasked", "of_code"),
    [(None, 1, 8), (True, 1, 8), (1, 1, 1), (3, 3, 3), (False, 0, 0), (0, 0, 0)],
)
@pytest.mark.parametrize("is_cheap", [True, False])
def test_a_user_says_how_many_samples_are_compared(asked, unasked, of_code, is_cheap):
    for kind, count in (("nothing", unasked if is_cheap or asked is not None else 0), ("code", of_code)):
        samples = Given("equal")
        samples.asked, samples.is_cheap = asked, is_cheap
        compare(OLD.to_json(), replace(OLD, **NEW[kind]), samples)
        assert len(samples.drawn_of) == count
