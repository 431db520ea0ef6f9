"""Where-string: comparisons of label columns, written as text.

    where_truth('label in (0, 1) and split == "train"', labels)   the rows for which that is true

Python's parser reads it, by these rules; it is never evaluated as Python:

    condition  = condition ("and" | "or") condition | "not" condition | "(" condition ")"
               | operand { ("==" | "!=" | "<" | "<=" | ">" | ">=") operand }
               | column ["not"] "in" ( "(" literals ")" | "[" literals "]" )
               | column "is" ["not"] "None"
               | ("startswith" | "contains") "(" column "," string ")"
               | column
    operand    = column | literal
    column     = name { "." name } | "col" "(" string ")"
    literal    = ["-"] number | string | "True" | "False" | "None"

A bool column alone is a condition. Dates and times compare with ISO strings.

Truth has three values, as in SQL: a comparison with a missing value is unknown, `not` keeps it unknown, and a row is
chosen only if the whole is true. `is None`, `== None` and a None among the values of `in` ask for missing values. nan
equals nothing, not even nan; -0.0 is 0.0.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from functools import reduce
from typing import TypeAlias

from edcache.base import OptionError, UnknownLabelError
from edcache.labels.compare import ComparedColumn, Truth, both, either, opposite
from edcache.labels.labels import Labels, origin

Literal: TypeAlias = "bool | int | float | str | None"

FUNCTIONS = "startswith", "contains"

_MAX_TEXT = 10_000
_MAX_DEPTH = 50
_ALLOWED = (
    'allowed are column names, col("odd name"), numbers, strings, True, False, None, == != < <= > >=, '
    'in, not in, is None, is not None, and, or, not, parentheses, startswith(name, "x"), contains(name, "x")'
)
_OPERATIONS: dict[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# Operators of other languages, and their spelling here.
_HINTS = {
    r"(?<![=!<>:])=(?!=)": "values are compared by ==",
    r"\b(AND|OR|NOT|IN|IS)\b": "and, or, not, in, is are written in lower case",
    r"(?i)\b(like|ilike|endswith|regexp|match)\b|\w\s+(contains|startswith)\b": (
        'text is searched by contains(name, "x") and startswith(name, "x")'
    ),
}


def where_truth(text: str, labels: Labels, columns: dict[str, ComparedColumn] | None = None) -> Truth:
    """Evaluate a where-string of at most 10,000 characters over the rows of `labels`.

    columns: gets the compared columns. Raises OptionError, which names the column of text,
    UnknownLabelError or LabelError.
    """
    if len(text) > _MAX_TEXT:
        raise OptionError(f"where-string of {len(text)} characters; at most {_MAX_TEXT} are read")
    text = re.sub("\r\n?", "\n", text)  # lines end so for Python
    where = _Where(text, labels, {} if columns is None else columns)
    try:
        # In parentheses it may have several lines.
        tree = ast.parse(f"({text}\n)", mode="eval")
    except SyntaxError as error:
        raise where.error(error.msg.split(".")[0], error.lineno or 1, error.offset or 1) from None
    except (
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:  # a null byte, not UTF-8; nested by the thousand
        raise where.error(str(error) or "nested too deep", 1, 2) from None
    begins_it = (tree.body.lineno, tree.body.col_offset) == (1, 0)
    if begins_it and isinstance(tree.body, (ast.BoolOp, ast.Compare)):  # with the parenthesis that was added
        raise where.error("unmatched ')'", 1, text.index(")") + 2)
    where.read(tree)
    return where.condition(tree.body, 1)


class _Where:
    """Walk through the syntax tree of a where-string; it refuses nodes that are not allowed by name."""

    def __init__(self, text: str, labels: Labels, columns: dict[str, ComparedColumn]) -> None:
        self._text = text
        self._labels = labels
        self._columns = columns

    def error(self, problem: str, line: int, column: int) -> OptionError:
        """Make an OptionError; line and column count from 1, behind an opening parenthesis."""
        words = [name for name in self._labels if keyword.iskeyword(name) and name not in _ALLOWED]
        reserved = [name for name in words if re.search(rf"\b{name}\b", self._text)]
        hints = [f'"{name}" is a word of Python: write col("{name}")' for name in reserved]
        hints += [hint for pattern, hint in _HINTS.items() if re.search(pattern, self._text)]
        if line > self._text.count("\n") + 1:
            place = "the end"
        else:
            place = f"column {max(1, column - 1)}" if line == 1 else f"line {line}, column {column}"
        text = self._text if len(self._text) <= 200 else f"{self._text[:200]}..."
        return OptionError(f'where "{text}": {"; ".join([f"{place}: {problem}", *hints, _ALLOWED])}')

    def _refusal(self, node: ast.expr, problem: str) -> OptionError:
        lines = f"({self._text}\n)".encode().split(b"\n")
        before = lines[node.lineno - 1][: node.col_offset].decode()
        return self.error(problem, node.lineno, len(before) + 1)

    def read(self, tree: ast.AST) -> None:
        """Read the columns of the text together: in an archive that is far away each takes a request."""
        origin(self._labels)[0].read([name for node in ast.walk(tree) if (name := self._name(node))])

    def condition(self, node: ast.expr, depth: int) -> Truth:
        """Evaluate a part of the text."""
        if depth > _MAX_DEPTH:
            raise self._refusal(node, f"nested deeper than {_MAX_DEPTH}")
        if isinstance(node, ast.BoolOp):
            join = both if isinstance(node.op, ast.And) else either
            return reduce(join, [self.condition(value, depth + 1) for value in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return opposite(self.condition(node.operand, depth + 1))
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            terms = map(self._compare, sides, node.ops, sides[1:])
            return reduce(both, terms)
        column = self._column(node)
        if column is not None:
            return column.truth()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._search(node, node.func.id)
        raise self._refusal(node, "this is no condition")

    def _compare(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Truth:
        column = self._column(left)
        if isinstance(operator, (ast.In, ast.NotIn)):
            if column is None:
                raise self._refusal(left, '"in" has no column on its left')
            if not isinstance(right, (ast.Tuple, ast.List)):
                raise self._refusal(right, 'expected a list of literals, as in (0, 1), (0,) or ["a", "b"]')
            found = column.one_of([self._literal(item) for item in right.elts])
            return opposite(found) if isinstance(operator, ast.NotIn) else found
        if isinstance(operator, (ast.Is, ast.IsNot)):
            if column is None or not isinstance(right, ast.Constant) or right.value is not None:
                raise self._refusal(right, '"is" asks whether a column "is None"; values are compared by ==')
            return column.compare("==" if isinstance(operator, ast.Is) else "!=", None)
        operation = _OPERATIONS[type(operator)]
        other = self._other(right)
        if column is not None and other is not None:
            return column.compare_column(operation, other)
        value = self._literal(right if other is None else left)
        if other is not None:
            column, operation = other, _FLIPPED[operation]
        if column is None:
            self._literal(left)
            raise self._refusal(left, "this compares no column")
        if value is None and operation not in ("==", "!="):
            raise self._refusal(right, f"{operation} orders no None")
        return column.compare(operation, value)

    def _other(self, node: ast.expr) -> ComparedColumn | None:
        """Return the column on the right side of a comparison, if it is one."""
        try:
            return self._column(node)
        except UnknownLabelError as error:
            raise UnknownLabelError(f'{error}; write text in quotes: "{self._name(node)}"') from None

    def _column(self, node: ast.expr) -> ComparedColumn | None:
        name = self._name(node)
        if name is None:
            return None
        if name not in self._columns:
            self._columns[name] = ComparedColumn(name, self._labels)
        return self._columns[name]

    def _name(self, node: ast.AST) -> str | None:
        """Return the column name of a node; None if it is no column."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "col":
            name = self._literal(node.args[0]) if len(node.args) == 1 and not node.keywords else None
            if not isinstance(name, str):
                raise self._refusal(node, 'expected col("name")')
            return name
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None

    def _search(self, call: ast.Call, function: str) -> Truth:
        if function not in FUNCTIONS:
            raise self._refusal(call, f'"{function}" is no function here')
        form = f'expected {function}(name, "x")'
        if len(call.args) != 2 or call.keywords:
            raise self._refusal(call, form)
        column, pattern = self._column(call.args[0]), self._literal(call.args[1])
        if column is None or not isinstance(pattern, str):
            raise self._refusal(call, form)
        return column.matches(function, pattern)

    def _literal(self, node: ast.expr) -> Literal:
        is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        inner = node.operand if isinstance(node, ast.UnaryOp) and is_negative else node
        value = inner.value if isinstance(inner, ast.Constant) else ...
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if math.isinf(value):
                raise self._refusal(node, "a number beyond float64")
            return -value if is_negative else value
        if is_negative or not isinstance(value, (bool, str, type(None))):
            raise self._refusal(node, "expected a column or a literal")
        return value
