"""Whole numbers of things, shared out as evenly as whole numbers allow."""

from __future__ import annotations

from collections.abc import Sequence

_Cells = dict[int, int]  # column -> what a share has beyond whole numbers, in parts of the weights' sum


def apportioned(counts: Sequence[int], weights: Sequence[int]) -> list[list[int]]:
    """How many of each row go into each column.

    Args:
        counts: of each row. weights: of each column, not all 0.
    Returns:
        A row for each count, which adds up to it. Each number is `count * weight / sum(weights)`, rounded
        down or up; and so is each column's sum.

    That such numbers exist is the integrality of flows in a network; they are found by moving fractions
    along cycles of the table until each is whole (controlled rounding). It takes the number of rows times
    the square of the number of columns.
    """
    whole = sum(weights)
    shares = [[divmod(count * weight, whole) for weight in weights] for count in counts]
    table = [[share for share, _ in row] for row in shares]
    rests = [[rest for _, rest in row] for row in shares]
    # One more row makes every column's sum whole.
    filling = [-sum(column) % whole for column in zip(*rests, strict=True)]
    pending: list[tuple[int, _Cells]] = []
    for number, row in enumerate([*rests, filling]):
        cells = {column: rest for column, rest in enumerate(row) if rest}
        if cells:
            pending.append((number, cells))
        while (cycle := _cycle(pending)) is not None:
            for place, column in _moved(pending, cycle, whole):
                if place < len(table):
                    table[place][column] += 1
            pending = [(place, cells) for place, cells in pending if cells]
    return table


def _cycle(rows: list[tuple[int, _Cells]]) -> list[tuple[int, int]] | None:
    """Cells (row, column) of a closed way that turns at each: along a row, along a column, and so on."""
    way_to: dict[int, list[tuple[int, int]]] = {}  # column -> the cells on the way there
    for start in sorted({column for _, cells in rows for column in cells}):
        if start in way_to:
            continue
        way_to[start] = []
        open_columns = [start]
        used: set[int] = set()
        while open_columns:
            column = open_columns.pop()
            for row, (_, cells) in enumerate(rows):
                if row in used or column not in cells:
                    continue
                used.add(row)
                for other in cells:
                    if other == column:
                        continue
                    way = [*way_to[column], (row, column), (row, other)]
                    if other in way_to:
                        return _closed(way, way_to[other])
                    way_to[other] = way
                    open_columns.append(other)
    return None


def _closed(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Two ways from one column to another, without what they share at first, there and back."""
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    return one[shared:] + other[shared:][::-1]


def _moved(rows: list[tuple[int, _Cells]], cycle: list[tuple[int, int]], whole: int) -> list[tuple[int, int]]:
    """Move from every second cell of a cycle to the others until one is whole; gives those that fill up."""
    down, up = cycle[::2], cycle[1::2]

    def room(down: list[tuple[int, int]], up: list[tuple[int, int]]) -> int:
        return min(
            min(rows[row][1][column] for row, column in down),
            min(whole - rows[row][1][column] for row, column in up),
        )

    # The way that moves less stays nearer to the shares.
    if room(up, down) < room(down, up):
        down, up = up, down
    amount = room(down, up)
    filled = []
    for row, column in down:
        rows[row][1][column] -= amount
        if not rows[row][1][column]:
            del rows[row][1][column]
    for row, column in up:
        rows[row][1][column] += amount
        if rows[row][1][column] == whole:
            filled.append((rows[row][0], column))
            del rows[row][1][column]
    return filled
