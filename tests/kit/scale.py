"""How much of the suite is run, by one lever, `--full`, and with which randomness.

`scripts/test` is quick. It leaves out what is marked `full`: tests, files by their `pytestmark`, and cases of
a parametrised test by `thinned`, or with the parameter "spawn" or "forkserver", by which each process imports
torch anew. The families of tests that have no end it runs at scale 0.02.
`scripts/test --full` runs every test, and each family at scale 1. Both have seed 0, so that a failure
repeats. `scripts/soak` runs the families again and again with other seeds, and larger; it alone runs
tests/faults/soak_*.py.
EDCACHE_TEST_SCALE and EDCACHE_TEST_SEED choose scale and seed of any run.

Quick is what tells at once that something broke: a part of each room and of each promise. A test is `full`
if it takes more than some two seconds, however small, or tells little that a quicker one does not.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

import pytest

SCALE = float(os.environ.get("EDCACHE_TEST_SCALE", "1"))
SEED = int(os.environ.get("EDCACHE_TEST_SEED", "0"))


def scaled(count: int, least: int = 1) -> int:
    """`count` at scale 1; never fewer than `least`."""
    return max(least, round(count * SCALE))


def seeded(name: str) -> random.Random:
    """A generator for one family."""
    return random.Random(f"{name} {SEED}")


def thinned(family: Iterable[Any], count: int) -> list[Any]:
    """The cases of a parametrised test, of which all but `count`, evenly spread, are `full`."""
    cases = list(family)
    quick = {number * len(cases) // count for number in range(count)}
    full = [pytest.param(case, marks=pytest.mark.full) for case in cases]
    return [case if number in quick else full[number] for number, case in enumerate(cases)]
