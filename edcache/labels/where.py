"""Comparisons of a label column with plain values, and the where-string that writes them as text.

    parse_where('label in (0, 1) and split == "train"', schema)   a pyarrow expression

A where-string is parsed by the grammar below and never evaluated as Python:

    where       = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation    = "not" negation | comparison
    comparison  = operand { ("==" | "=" | "!=" | "<" | "<=" | ">" | ">=") operand }
                | operand ["not"] "in" ( "(" [literals] ")" | "[" [literals] "]" )
                | operand "is" ["not"] "None"
    operand     = column | literal | "(" where ")"
                | ("startswith" | "contains") "(" column "," string ")"
    column      = name { "." name } | "col" "(" string ")"
    literal     = ["-"] number | string | "True" | "False" | "None"

Keywords may be upper case. A bool column alone is a condition. Dates and times compare with ISO strings.

Truth has three values, as in SQL: a comparison with a missing value is unknown, `not` keeps it unknown,
and a row is chosen only if the whole is true. `is None`, `== None` and a None among the values of `in`
ask for missing values. nan equals nothing.

A value is compared exactly with an integer column (2.5 lies between 2 and 3, 10**30 above all), with a time
column too; with a float column it is first rounded to the column's own precision, so that 0.1 finds 0.1
in a float32 column.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from edcache.errors import LabelTypeError, WhereError
from edcache.labels.columns import numpy_dtype, unknown_label

_MAX_TEXT = 10_000
_MAX_DEPTH = 50
_ALLOWED = (
    'allowed are column names, col("odd name"), numbers, strings, True, False, None, == != < <= > >=, '
    'in, not in, is None, is not None, and, or, not, parentheses, startswith(name, "x"), contains(name, "x")'
)

# ------------------------------------------------------------------------- columns against values

_OPERATIONS: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


class _Point(NamedTuple):
    """Where a value lies on a column's axis.

    `scalar` is the value itself if `exact`; otherwise the greatest value of the column's type below it,
    None if there is none. A value that equals nothing and orders with nothing (nan) is no point at all.
    """

    scalar: pa.Scalar | None
    exact: bool


class Column:
    """One column of a schema as the left side of comparisons; each gives a pyarrow expression.

    Raises:
        UnknownLabelError: the schema has no such column.
        LabelTypeError: in each method, a value that this column is not comparable with.
    """

    def __init__(self, name: str, schema: pa.Schema) -> None:
        if name not in schema.names:
            raise unknown_label(name, schema.names)
        self.name = name
        self.type: pa.DataType = schema.field(name).type
        self._field: pc.Expression = pc.field(name)
        if pa.types.is_dictionary(self.type):
            self.type = self.type.value_type
            self._field = self._field.cast(self.type)
        if pa.types.is_float16(self.type):
            self.type = pa.float32()  # exact, and Arrow compares no float16
            self._field = self._field.cast(self.type)

    @property
    def expression(self) -> pc.Expression:
        """The column itself."""
        return self._field

    def is_null(self) -> pc.Expression:
        """True where the value is missing."""
        return self._field.is_null()

    def compare(self, operation: str, value: object) -> pc.Expression:
        """`column <operation> value`, unknown where the column has no value."""
        if value is None and operation in ("==", "!="):
            return self.is_null() if operation == "==" else self._field.is_valid()
        if operation not in ("==", "!=") and pa.types.is_boolean(self.type):
            raise LabelTypeError(f'label "{self.name}" is bool, which has no order; compare it with == or !=')
        point = self._point(value)
        if point is None:
            return self._constant(operation == "!=")
        if point.exact:
            return _OPERATIONS[operation](self._field, pc.scalar(point.scalar))
        return self._compare_between(operation, point.scalar)

    def _compare_between(self, operation: str, below: pa.Scalar | None) -> pc.Expression:
        """The comparison with a value that lies right above `below` and is no value of the column."""
        if operation in ("==", "!="):
            return self._constant(operation == "!=")
        less = operation in ("<", "<=")
        if below is None:
            return self._constant(not less)
        limit = pc.scalar(below)
        return self._field <= limit if less else self._field > limit

    def one_of(self, values: Iterable[object]) -> pc.Expression:
        """`column in values`, unknown where the column has no value and None is not among the values."""
        with_null, scalars = self._value_set(values)
        found = self._field.isin(scalars) if len(scalars) else self._constant(False)
        if with_null:
            return self.is_null() | found if len(scalars) else self.is_null()
        return self._unless_null(found)

    def between(self, first: int, last: int) -> pc.Expression:
        """`first <= column <= last`."""
        return self.compare(">=", first) & self.compare("<=", last)

    def matches(self, function: str, pattern: str) -> pc.Expression:
        """`startswith(column, pattern)` or `contains(column, pattern)`."""
        if not _is_string(self.type):
            raise LabelTypeError(f'label "{self.name}" is {self.type}; {function}() needs a string column')
        if function == "startswith":
            return pc.starts_with(self._field, pattern=pattern)
        return pc.match_substring(self._field, pattern=pattern)

    def truth(self) -> pc.Expression:
        """The column as a condition of its own."""
        if not pa.types.is_boolean(self.type):
            raise LabelTypeError(f'label "{self.name}" is {self.type}, no condition; compare it with a value')
        return self._field

    def compare_column(self, operation: str, other: Column) -> pc.Expression:
        """`column <operation> other column`."""
        if _family(self.type) != _family(other.type) or _family(self.type) in ("other", "null"):
            raise LabelTypeError(
                f'label "{self.name}" is {self.type} and "{other.name}" is {other.type}; '
                f"only columns of one kind compare"
            )
        return _OPERATIONS[operation](self._field, other._field)

    def _constant(self, truth: bool) -> pc.Expression:
        return self._unless_null(pc.scalar(truth))

    def _unless_null(self, expression: pc.Expression) -> pc.Expression:
        return pc.if_else(self._field.is_valid(), expression, pc.scalar(pa.scalar(None, pa.bool_())))

    def _value_set(self, values: Iterable[object]) -> tuple[bool, pa.Array]:
        if isinstance(values, np.ndarray):
            if values.dtype.kind in "iu" and pa.types.is_integer(self.type):
                return False, _representable(values, self.type)
            values = values.reshape(-1) if values.dtype.kind in "mM" else values.reshape(-1).tolist()
        with_null, scalars = False, []
        for value in values:
            if value is None:
                with_null = True
                continue
            point = self._point(value)
            if point is not None and point.exact and point.scalar is not None:
                scalars.append(point.scalar)
        return with_null, pa.array(scalars, type=self.type)

    def _point(self, value: object) -> _Point | None:
        """Where `value` lies among the column's values; None if nothing compares with it."""
        value = _plain(value)
        family = _family(self.type)
        if family == "null":
            return None
        if family == "number" and isinstance(value, (int, float)) and not isinstance(value, bool):
            return _number_point(value, self.type)
        if family == "time":
            ticks = _ticks_of(value, self.type)
            if ticks is not None:
                return None if np.isnat(ticks) else _time_point(ticks, self.type)
        if family in _EXPECTED and isinstance(value, _EXPECTED[family]):
            return _Point(pa.scalar(value, self.type), exact=True) if _encodable(value) else None
        raise self._mismatch(value, family)

    def _mismatch(self, value: object, family: str) -> LabelTypeError:
        name = type(value).__name__
        article = "an" if name[0].lower() in "aeiou" else "a"
        shown = f"{value!r:.60}" if isinstance(value, (str, bytes, int, float)) else f"the {name}"
        return LabelTypeError(
            f'label "{self.name}" is {self.type}; {shown} is {article} {name}; {_REMEDIES[family]}'
        )


_EXPECTED: dict[str, type] = {"bool": bool, "string": str, "bytes": bytes}
_REMEDIES = {
    "bool": "compare it with True or False",
    "number": "compare it with a number",
    "string": "compare it with a str",
    "bytes": "compare it with bytes",
    "time": "compare it with a date or time of its kind, an ISO string or a timedelta",
    "null": "",
    "other": "such a column compares with None alone; give a callable that gets the numpy column",
}


def _family(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if _is_string(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind) or pa.types.is_duration(kind):
        return "time"
    return "null" if pa.types.is_null(kind) else "other"


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _plain(value: Any) -> Any:
    """A numpy scalar, or an array or tensor without dimensions, as its Python value."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return value
    if isinstance(value, np.generic) or getattr(value, "shape", None) == ():
        return value.item()
    return value


def _encodable(value: object) -> bool:
    if not isinstance(value, str) or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number_point(value: float, kind: pa.DataType) -> _Point | None:
    if isinstance(value, float) and math.isnan(value):
        return None
    if pa.types.is_floating(kind):
        return _Point(pa.scalar(_rounded(value, kind), kind), exact=True)
    limits = np.iinfo(numpy_dtype(kind))
    low, high = int(limits.min), int(limits.max)
    if value < low:
        return _Point(None, exact=False)
    if value > high:
        return _Point(pa.scalar(high, kind), exact=False)
    floor = math.floor(value)
    return _Point(pa.scalar(floor, kind), exact=floor == value)


def _rounded(value: float, kind: pa.DataType) -> float:
    try:
        wide = float(value)
    except OverflowError:
        wide = math.inf if value > 0 else -math.inf
    with np.errstate(over="ignore"):
        return float(numpy_dtype(kind).type(wide))


def _representable(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    dtype = numpy_dtype(kind)
    limits = np.iinfo(dtype)
    fits = (values >= int(limits.min)) & (values <= int(limits.max))
    return pa.array(values[fits].astype(dtype), type=kind)


# ---- times: a value as datetime64 or timedelta64, then down to the column's unit


def _ticks_of(value: object, kind: pa.DataType) -> Any:
    """The value as datetime64 or timedelta64; None if it is no time of the column's kind."""
    if pa.types.is_duration(kind):
        return _duration_of(value)
    return _instant_of(value, aware_column=pa.types.is_timestamp(kind) and kind.tz is not None)


def _time_point(ticks: Any, kind: pa.DataType) -> _Point:
    unit = "D" if pa.types.is_date32(kind) else kind.unit
    floor, exact = _floor_ticks(ticks, unit)
    return _tick_point(floor, exact, kind)


def _duration_of(value: object) -> Any:
    if isinstance(value, np.timedelta64):
        return value
    if isinstance(value, dt.timedelta):
        return np.timedelta64(value // dt.timedelta(microseconds=1), "us")
    return None


def _instant_of(value: object, aware_column: bool) -> Any:
    if isinstance(value, np.datetime64):
        return value
    if isinstance(value, str):
        return _parsed_instant(value, aware_column)
    if isinstance(value, dt.datetime):
        return _datetime_instant(value, aware_column)
    return np.datetime64(value, "D") if isinstance(value, dt.date) else None


def _parsed_instant(text: str, aware_column: bool) -> Any:
    if not re.match(r"\d{4}-\d\d", text):
        return None  # numpy also reads "now" and "today"
    try:
        if re.search(r"(Z|[+-]\d\d:?\d\d)$", text[10:]):
            return _datetime_instant(dt.datetime.fromisoformat(text.replace("Z", "+00:00")), aware_column)
        return np.datetime64(text)
    except ValueError:
        return None


def _datetime_instant(value: dt.datetime, aware_column: bool) -> Any:
    if hasattr(value, "to_datetime64"):
        return value.to_datetime64()
    if value.tzinfo is None:
        return np.datetime64(value, "us")
    if not aware_column:
        return None  # a column without a zone has no instant to compare with
    return np.datetime64(value.astimezone(dt.timezone.utc).replace(tzinfo=None), "us")


_TICKS_PER_DAY = {
    "D": 1,
    "h": 24,
    "m": 24 * 60,
    **{unit: 86_400 * 1000**i for i, unit in enumerate(("s", "ms", "us", "ns", "ps", "fs", "as"))},
}


def _floor_ticks(value: Any, unit: str) -> tuple[int, bool]:
    """The value in whole units, rounded down, and whether nothing was lost; in unbounded integers."""
    if np.datetime_data(value.dtype)[0] in ("Y", "M", "W"):
        value = value.astype(f"{value.dtype.kind}8[D]")
    own, step = np.datetime_data(value.dtype)
    scaled = int(value.astype("i8")) * step * _TICKS_PER_DAY[unit]
    floor, rest = divmod(scaled, _TICKS_PER_DAY[own])
    return floor, rest == 0


def _tick_point(floor: int, exact: bool, kind: pa.DataType) -> _Point:
    storage = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    limits = np.iinfo(numpy_dtype(storage))
    if floor <= int(limits.min):
        return _Point(None, exact=False)
    exact = exact and floor <= int(limits.max)
    ticks = pa.array([min(floor, int(limits.max))], type=storage)
    return _Point(ticks.view(kind)[0], exact)


# ---------------------------------------------------------------------------------- the where-string


def parse_where(text: str, schema: pa.Schema) -> pc.Expression:
    """Read a where-string; nothing in it is ever run as Python.

    Args:
        text: at most 10,000 characters, nested at most 50 deep; the grammar is in this module's docstring.
        schema: of the label table, for the names and types of its columns.
    Returns:
        A pyarrow expression over that table, true for the rows that are asked for.
    Raises:
        WhereError: `where "label = = 3": column 9: found "=", expected a column or a literal; allowed ...`.
        UnknownLabelError: a name that is no column.
        LabelTypeError: a column compared with a value of another kind.
    """
    if len(text) > _MAX_TEXT:
        raise WhereError(f"where-string of {len(text)} characters; at most {_MAX_TEXT} are read")
    parser = _Parser(text, schema)
    return parser.whole()


class _Token(NamedTuple):
    kind: str  # "name", "number", "string", "op", "end"
    text: str
    start: int  # 0-based


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
      | (?P<name>[^\W\d]\w*(?:\.\w+)*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<op>==|!=|<=|>=|[=<>()\[\],-])
    )""",
    re.VERBOSE,
)
_KEYWORDS = frozenset({"and", "or", "not", "in", "is"})
_CONSTANTS = {"True": True, "False": False, "None": None}
_COMPARISONS = frozenset({"==", "=", "!=", "<", "<=", ">", ">="})
_FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t", "r": "\r"}


class _Literal(NamedTuple):
    value: bool | int | float | str | None


_Operand: TypeAlias = "Column | _Literal | pc.Expression"
_Join: TypeAlias = "Callable[[pc.Expression, pc.Expression], pc.Expression]"


class _Parser:
    """Recursive descent over the tokens; one method per line of the grammar."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        self._tokens = list(self._tokenize())
        self._at = 0
        self._depth = 0

    def whole(self) -> pc.Expression:
        operand = self._where()
        if self._next.kind != "end":
            raise self._unexpected("the end, and, or")
        return self._condition(operand, 0)

    # A lone column or literal passes through unchanged: in parentheses it may still be compared.

    def _where(self) -> _Operand:
        return self._joined("or", self._conjunction, lambda left, right: left | right)

    def _conjunction(self) -> _Operand:
        return self._joined("and", self._negation, lambda left, right: left & right)

    def _joined(self, word: str, part: Callable[[], _Operand], join: _Join) -> _Operand:
        start = self._next.start
        first = part()
        if not self._next_is_word(word):
            return first
        terms = [self._condition(first, start)]
        while self._skip(word):
            start = self._next.start
            terms.append(self._condition(part(), start))
        return _folded(terms, join)

    def _negation(self) -> _Operand:
        negations = 0
        while self._skip("not"):
            negations += 1
        start = self._next.start
        operand = self._comparison()
        if not negations:
            return operand
        condition = self._condition(operand, start)
        return ~condition if negations % 2 else condition

    def _comparison(self) -> _Operand:
        start = self._next.start
        left = self._operand()
        if self._next.kind == "op" and self._next.text in _COMPARISONS:
            return self._chain(left)
        if self._skip("is"):
            return self._is_none(left, start)
        negate = self._skip("not")
        if self._skip("in"):
            found = self._column_only(left, "in", start).one_of(self._literals())
            return ~found if negate else found
        if negate:
            raise self._unexpected("in")
        return left

    def _chain(self, left: _Operand) -> pc.Expression:
        terms = []
        while self._next.kind == "op" and self._next.text in _COMPARISONS:
            operator = self._take()
            right = self._operand()
            terms.append(self._compared(left, operator, right))
            left = right
        return _folded(terms, lambda first, second: first & second)

    def _compared(self, left: _Operand, operator: _Token, right: _Operand) -> pc.Expression:
        operation = "==" if operator.text == "=" else operator.text
        for side in (left, right):
            if isinstance(side, _Literal) and side.value is None and operation not in ("==", "!="):
                raise self._error(f"{operation} orders no None", operator.start)
        if isinstance(left, Column) and isinstance(right, Column):
            return left.compare_column(operation, right)
        if isinstance(left, Column) and isinstance(right, _Literal):
            return left.compare(operation, right.value)
        if isinstance(left, _Literal) and isinstance(right, Column):
            return right.compare(_FLIPPED[operation], left.value)
        raise self._error(f'"{operator.text}" compares no column', operator.start)

    def _is_none(self, left: _Operand, start: int) -> pc.Expression:
        negate = self._skip("not")
        if self._next.kind != "name" or self._next.text != "None":
            raise self._unexpected("None (with any other value use ==)")
        self._take()
        missing = self._column_only(left, "is", start).is_null()
        return ~missing if negate else missing

    def _column_only(self, operand: _Operand, word: str, start: int) -> Column:
        if not isinstance(operand, Column):
            raise self._error(f'"{word}" has no column on its left', start)
        return operand

    def _condition(self, operand: _Operand, start: int) -> pc.Expression:
        if isinstance(operand, Column):
            return operand.truth()
        if isinstance(operand, _Literal):
            raise self._error("a literal alone is no condition", start)
        return operand

    def _operand(self) -> _Operand:
        token = self._next
        if token.kind == "name" and token.text.lower() not in _KEYWORDS:
            return self._named()
        if token.kind in ("number", "string") or token.text == "-":
            return self._literal()
        if token.kind == "op" and token.text == "(":
            return self._parenthesis()
        raise self._unexpected("a column or a literal")

    def _parenthesis(self) -> _Operand:
        opening = self._take()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"nested deeper than {_MAX_DEPTH}", opening.start)
        inner = self._where()
        self._expect(")")
        self._depth -= 1
        return inner

    def _named(self) -> _Operand:
        token = self._next
        if token.text in _CONSTANTS:
            return self._literal()
        self._take()
        if self._next.kind == "op" and self._next.text == "(":
            return self._call(token)
        if self._next.kind in ("string", "number"):
            raise self._unexpected("a comparison")
        return self._column(token)

    def _column(self, token: _Token) -> Column:
        first = token.text.split(".")[0]
        if token.text not in self._schema.names and first != token.text and first in self._schema.names:
            raise self._error(f'"{token.text}" is no column, and columns have no attributes', token.start)
        return Column(token.text, self._schema)

    def _call(self, function: _Token) -> _Operand:
        if function.text not in ("col", "startswith", "contains"):
            raise self._error(f'"{function.text}" is no function here', function.start)
        self._expect("(")
        if function.text == "col":
            name = self._string()
            self._expect(")")
            return Column(name, self._schema)
        start = self._next.start
        column = self._column_only(self._operand(), function.text, start)
        self._expect(",")
        pattern = self._string()
        self._expect(")")
        return column.matches(function.text, pattern)

    def _literals(self) -> list[object]:
        closing = {"(": ")", "[": "]"}.get(self._next.text if self._next.kind == "op" else "")
        if closing is None:
            raise self._unexpected('a list of literals, as in (0, 1) or ["a", "b"]')
        self._take()
        values: list[object] = []
        while not self._next_is(closing):
            values.append(self._literal().value)
            if not self._next_is(closing):
                self._expect(",")
        self._take()
        return values

    def _literal(self) -> _Literal:
        negative = self._next_is("-")
        if negative:
            self._take()
        token = self._next
        if token.kind == "number":
            number = self._number(self._take())
            return _Literal(-number if negative else number)
        if negative:
            raise self._unexpected("a number")
        if token.kind == "string":
            return _Literal(self._string())
        if token.kind == "name" and token.text in _CONSTANTS:
            return _Literal(_CONSTANTS[self._take().text])
        raise self._unexpected("a literal")

    def _number(self, token: _Token) -> float:
        if token.text.isdigit():
            # Counted first: int() of many digits is slow, or refused by Python itself.
            if len(token.text) > 20 or int(token.text) >= 2**64:
                raise self._error("an integer beyond 64 bits", token.start)
            return int(token.text)
        number = float(token.text)
        if math.isinf(number):
            raise self._error(f"{token.text:.30} is beyond float64", token.start)
        return number

    def _string(self) -> str:
        if self._next.kind != "string":
            raise self._unexpected("a string")
        token = self._take()
        return re.sub(r"\\(.)", lambda found: self._unescaped(found, token), token.text[1:-1])

    def _unescaped(self, found: re.Match[str], token: _Token) -> str:
        if found[1] not in _ESCAPES:
            raise self._error(f"the string holds the unknown escape {found[0]}", token.start)
        return _ESCAPES[found[1]]

    # ---- tokens

    def _tokenize(self) -> Iterable[_Token]:
        at = 0
        end = len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None or found.lastgroup is None:
                at += len(self._text[at:]) - len(self._text[at:].lstrip())
                raise self._error(f"cannot read {self._text[at]!a}", at)
            yield _Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup))
            at = found.end()
        yield _Token("end", "", end)

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _next_is(self, text: str) -> bool:
        return self._next.kind == "op" and self._next.text == text

    def _skip(self, keyword: str) -> bool:
        if not self._next_is_word(keyword):
            return False
        self._at += 1
        return True

    def _next_is_word(self, keyword: str) -> bool:
        return self._next.kind == "name" and self._next.text in (keyword, keyword.upper())

    def _expect(self, text: str) -> None:
        if not self._next_is(text):
            raise self._unexpected(f'"{text}"')
        self._at += 1

    def _unexpected(self, expected: str) -> WhereError:
        token = self._next
        found = "the end" if token.kind == "end" else f'"{token.text:.40}"'
        return self._error(f"found {found}, expected {expected}", token.start)

    def _error(self, problem: str, start: int) -> WhereError:
        text = self._text if len(self._text) <= 200 else f"{self._text[:200]}..."
        return WhereError(f'where "{text}": column {start + 1}: {problem}; {_ALLOWED}')


def _folded(terms: Sequence[pc.Expression], join: _Join) -> pc.Expression:
    # As a balanced tree: a thousand terms in a row would nest the expression a thousand deep.
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return join(_folded(terms[:middle], join), _folded(terms[middle:], join))
