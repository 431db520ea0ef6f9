"""MONAI, and transforms of its kind; apart from the tests, as importing MONAI takes seconds and 200 MB."""

from __future__ import annotations

import os

import torch
from optional import need

need("monai")
from monai import data as theirs  # noqa: E402 - behind the question whether it is there
from monai import transforms  # noqa: E402


class Volume(transforms.Transform):
    """Makes a volume of a number, as a reader makes one of a path."""

    def __call__(self, item):
        return item | {"image": volume(item["n"])}


class Counted(Volume):
    """Notes in a file that it ran, whatever process it ran in."""

    def __init__(self, log):
        self.log = os.fspath(log)

    def __call__(self, item):
        with open(self.log, "a") as log:
            log.write("x")
        return super().__call__(item)


class Noise(transforms.RandomizableTransform):
    def __call__(self, item):
        return {**item, "noise": self.R.random()}


def volume(n):
    return theirs.MetaTensor(
        torch.full((1, 2, 3), float(n)), affine=torch.eye(4, dtype=torch.float64) * (n + 1)
    )
