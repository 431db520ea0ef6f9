"""Names of the old caches that are read and of the formats that are written; free of torch."""

from __future__ import annotations

from typing import Literal

Kind = Literal["edflow", "torch_xla", "monai"]
Format = Literal["webdataset", "parquet"]
