"""pyarrow as `pa` and pyarrow.compute as `pc`, loaded by the first call that needs them.

Together they take 0.2 s, and much of the package is imported by processes that never look at a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:

    class _Arrow:
        def __getattr__(self, name: str) -> Any:
            import pyarrow

            # Kept, so that the next look-up is that of any attribute.
            value = self.__dict__[name] = getattr(pyarrow, name)
            return value

    class _Compute:
        def __getattr__(self, name: str) -> Any:
            import pyarrow.compute

            value = self.__dict__[name] = getattr(pyarrow.compute, name)
            return value

    pa, pc = _Arrow(), _Compute()

__all__ = ["pa", "pc"]
