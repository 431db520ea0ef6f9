"""How much of an open-ended family of tests is run, and with which randomness.

The suite runs each family at scale 1 and seed 0, so that a failure repeats. `scripts/soak` runs the same
families again and again with other seeds, and larger.
"""

from __future__ import annotations

import os
import random

SCALE = float(os.environ.get("EDCACHE_TEST_SCALE", "1"))
SEED = int(os.environ.get("EDCACHE_TEST_SEED", "0"))


def scaled(count: int) -> int:
    """`count` at scale 1; at least 1."""
    return max(1, round(count * SCALE))


def seeded(name: str) -> random.Random:
    """A generator for one family."""
    return random.Random(f"{name} {SEED}")
