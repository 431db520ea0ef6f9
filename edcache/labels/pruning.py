"""Which batches of stored labels a condition can choose rows of, by the bounds of their columns alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.format import StoredLabels, number_values, pa
from edcache.labels.compare import Column

Flags = npt.NDArray[np.bool_]

_INVERSE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", "<=": ">", ">": "<="}


class Possible(NamedTuple):
    """For which batches a condition may be true of a row, and for which it may be false."""

    true: Flags
    false: Flags

    def __and__(self, other: Possible) -> Possible:
        return Possible(self.true & other.true, self.false | other.false)

    def __or__(self, other: Possible) -> Possible:
        return Possible(self.true | other.true, self.false & other.false)

    def __invert__(self) -> Possible:
        return Possible(self.false, self.true)


class BoundedColumn(Column):
    """A column whose conditions are `Possible`, where those of a `Column` are expressions."""

    def __init__(self, name: str, stored: StoredLabels) -> None:
        super().__init__(name, stored.schema)
        self._bounds = stored.bounds(name)
        every = np.ones(len(self._bounds.rows), bool)
        self._unknown = Possible(every, every)

    def is_null(self) -> Any:  # noqa: D102 - these are as in the base class
        bounds = self._bounds
        is_null, is_value = bounds.nulls > 0, bounds.nulls < bounds.rows
        return Possible(is_null | bounds.is_revised, is_value | bounds.is_revised)

    def matches(self, function: str, pattern: str) -> Any:  # noqa: D102
        super().matches(function, pattern)
        return self._unknown

    def truth(self) -> Any:  # noqa: D102
        super().truth()
        return self._unknown if pa.types.is_null(self.type) else self._versus("==", 1)

    def compare_column(self, operation: str, other: Column) -> Any:  # noqa: D102
        super().compare_column(operation, other)
        return self._unknown

    def _always(self, truth: bool) -> Any:
        return Possible(self._unknown.true & truth, self._unknown.true & (not truth))

    def _compared(self, operation: str, scalar: pa.Scalar) -> Any:
        if not self._bounds.has_order:
            return self._unknown
        return self._versus(operation, scalar.value if hasattr(scalar, "value") else scalar.as_py())

    def _among(self, scalars: pa.Array) -> Any:
        if not self._bounds.has_order:
            return self._unknown
        values = number_values(scalars)
        values = np.sort(values.view(np.int64) if values.dtype.kind in "mM" else values)
        first = np.searchsorted(values, self._bounds.least)
        is_between = first < np.searchsorted(values, self._bounds.most, "right")
        possible = self._bounds.has_values & is_between
        return Possible(possible | self._bounds.is_revised, self._unknown.false)

    def _versus(self, operation: str, value: float) -> Possible:
        may, may_not = self._may(operation, value), self._may(_INVERSE[operation], value)
        if pa.types.is_floating(self.type):
            # A nan, which the bounds leave out, differs from all numbers and orders with none.
            return self._unknown._replace(**({"false": may_not} if operation == "!=" else {"true": may}))
        return Possible(may, may_not)

    def _may(self, operation: str, value: float) -> Flags:
        """The batches with bounds between which a value may compare so."""
        least, most = self._bounds.least, self._bounds.most
        if operation == "==":
            may = (least <= value) & (value <= most)
        elif operation == "!=":
            may = (least != value) | (most != value)
        elif operation in ("<", "<="):
            may = least < value if operation == "<" else least <= value
        else:
            may = most > value if operation == ">" else most >= value
        return (self._bounds.has_values & np.asarray(may)) | self._bounds.is_revised
