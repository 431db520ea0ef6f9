"""Names of the old caches that are read; free of torch."""

from __future__ import annotations

from typing import Literal

Kind = Literal["edflow", "torch_xla", "monai"]
