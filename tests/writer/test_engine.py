"""The loop of a fill, with an engine that ends batches in any order and lets some fail."""

from contextlib import closing
from itertools import takewhile
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import scaled

from edcache import CachedDataset, SourceError
from edcache.base import FillOptions
from edcache.labels import LabelSpec
from edcache.writer import Job, new_head
from edcache.writer.engine import BatchEngine
from edcache.writer.loop import FillLoop, Presence


class AnyOrder(BatchEngine):
    """Ends some batches at a time, perhaps none; samples tell their index."""

    def __init__(self, depth, random, bad=()):
        self.depth, self._random, self._bad = depth, random, bad
        self._indices = {}
        self.submitted, self.due, self.stored, self.running, self.closed = [], [], [], 0, 0

    def submit(self, indices):
        self.running += 1
        assert self.running <= self.depth
        self.submitted += indices
        pending = self._result(indices)
        self._indices[pending] = indices
        return pending

    def ended(self, running):
        chosen = [pending for pending in [*running] if self._random.random() < 0.4]
        for pending in chosen:
            running.remove(pending)
            self.due += takewhile(lambda index: index not in self._bad, self._indices[pending])
        self.running -= len(chosen)
        return chosen

    def _result(self, indices):
        for index in indices:
            if index in self._bad:
                raise SourceError(f"bad {index}", index=index)
            self.stored.append(index)
            yield [index], [{"index": index}]

    def __exit__(self, *raised):
        self.closed += 1


def job_of(path, length, **options):
    spec = LabelSpec.parse(None)
    head = new_head(spec, length=length, claim_size=3)
    return Job([None] * length, str(path), head, spec, 5, "never", FillOptions(**options))


@given(
    length=st.integers(1, 40),
    depth=st.integers(1, 6),
    batch_size=st.integers(1, 8),
    bad=st.sets(st.integers(0, 39), max_size=3),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=scaled(200), deadline=None)
def test_samples_are_stored_under_their_indices_in_any_order_of_batches(
    tmp_path_factory, length, depth, batch_size, bad, seed
):
    path = tmp_path_factory.mktemp("loop") / "a.zip"
    job, counted = job_of(path, length, batch_size=batch_size), []
    engine = AnyOrder(depth, Random(seed), bad)
    bad = {index for index in bad if index < length}
    with closing(job.open()) as appender, closing(job.open()) as other:
        presence = Presence(appender, job)
        loop = FillLoop(job, appender, presence, engine, lambda count, nbytes: counted.append(count))
        if bad:
            with pytest.raises(SourceError):
                loop.run()
        else:
            loop.run()
            assert sorted(engine.stored) == [*range(length)]
        assert engine.closed == 1
        # Every claim is free again.
        assert all(other.claims.claim(claim) for claim in range(-(-length // 3)))
    assert len({*engine.submitted}) == len(engine.submitted)
    found = CachedDataset.from_cache(path, allow_partial=True)
    # What came back before the error, and beside it, is in the archive.
    assert engine.stored == engine.due
    kept = [index for index in range(length) if index in engine.stored]
    assert {*range(length)} - {*found.missing.tolist()} == {*kept}
    assert [found[index] for index in kept] == [{"index": index} for index in kept]
    assert sum(counted) == len(kept)


def test_a_claim_is_held_until_its_samples_are_in_the_archive(tmp_path):
    job = job_of(tmp_path / "a.zip", 12)
    with closing(job.open()) as appender, closing(job.open()) as other:
        presence = Presence(appender, job)

        class Looks(AnyOrder):
            def ended(self, running):
                other.catch_up()
                there = {*other.indices_of(other.chain.chunks).tolist()}
                for index in self.stored:
                    is_free = other.claims.claim(index // 3)
                    assert not is_free or index in there
                    if is_free:
                        other.claims.release(index // 3)
                self.running -= 1
                return [running.popleft()]

        engine = Looks(2, None)
        FillLoop(job, appender, presence, engine).run()
        assert engine.stored == [*range(12)]
        assert presence.complete
